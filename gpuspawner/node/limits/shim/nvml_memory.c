/* What the session's tools are told about memory and processes: the share as the card's size, the session's use as what is
 * used, and of all processes only the session's, by the pids that they have inside. */
#include "nvml.h"

#define MOST_ROWS 1024
#define NO_INSTANCE 0xffffffffu

static nvmlReturn_t figures(nvmlDevice_t device, struct memory *memory)
{
    nvmlReturn_t result;
    int card = card_of_handle(device, &result);
    if (card == NO_CARD)
        return result;
    accounts_reclaim();
    uint64_t total = limits_of(card).memory_bytes, room = limits_room(card), used = accounts_used(card);
    if (used == UINT64_MAX) /* no usage file: nothing can be used, and one line on stderr said why */
        used = total;
    *memory = (struct memory){total, used < room ? room - used : 0, used};
    return NVML_SUCCESS;
}

/* The driver is asked first, so that a lost card is reported as the driver reports it. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, struct memory *memory)
{
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, struct memory *), device, memory);
    return result == NVML_SUCCESS ? figures(device, memory) : result;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, struct memory_v2 *memory)
{
    nvmlReturn_t result = REAL(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, struct memory_v2 *), device, memory);
    struct memory plain;
    if (result == NVML_SUCCESS)
        result = figures(device, &plain);
    if (result == NVML_SUCCESS)
        *memory = (struct memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    return result;
}

static nvmlReturn_t rows_of(nvmlDevice_t device, struct account rows[MOST_ROWS], unsigned *count)
{
    nvmlReturn_t result;
    int card = card_of_handle(device, &result);
    if (card == NO_CARD)
        return result;
    *count = accounts_list(card, rows, MOST_ROWS);
    return NVML_SUCCESS;
}

/* NVML's way: the caller says how many rows there is room for and is told how many are needed. */
#define FILL(device, count, rows, row)                                                                                  \
    struct account found[MOST_ROWS];                                                                                    \
    unsigned needed = 0, room;                                                                                           \
    if (count == NULL || (*count != 0 && rows == NULL))                                                                 \
        return NVML_ERROR_INVALID_ARGUMENT;                                                                             \
    nvmlReturn_t result = rows_of(device, found, &needed);                                                              \
    if (result != NVML_SUCCESS)                                                                                         \
        return result;                                                                                                  \
    room = *count;                                                                                                      \
    *count = needed;                                                                                                    \
    if (needed > room)                                                                                                  \
        return NVML_ERROR_INSUFFICIENT_SIZE;                                                                            \
    for (unsigned i = 0; i < needed; i++)                                                                               \
        rows[i] = row;                                                                                                  \
    return NVML_SUCCESS

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, struct process_v1 *rows)
{
    FILL(device, count, rows, ((struct process_v1){found[i].pid, found[i].bytes}));
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, struct process_v2 *rows)
{
    FILL(device, count, rows, ((struct process_v2){found[i].pid, found[i].bytes, NO_INSTANCE, NO_INSTANCE}));
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, struct process_v2 *rows)
{
    return nvmlDeviceGetComputeRunningProcesses_v2(device, count, rows);
}

static nvmlReturn_t nobody(nvmlDevice_t device, unsigned *count)
{
    nvmlReturn_t result;
    if (count == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (card_of_handle(device, &result) == NO_CARD)
        return result;
    *count = 0;
    return NVML_SUCCESS;
}

/* The usage file does not say which process draws and which computes: all are in the list of those that compute. */
#define NOBODY(name)                                                                                                    \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *rows);                                         \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned *count, void *rows)                                          \
    {                                                                                                                   \
        (void)rows;                                                                                                     \
        return nobody(device, count);                                                                                   \
    }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

EXPORT nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, struct process_details *details)
{
    if (details == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (details->mode != 0) {
        return nobody(device, &details->count);
    }
    FILL(device, (&details->count), details->rows,
         ((struct process_detail){found[i].pid, found[i].bytes, NO_INSTANCE, NO_INSTANCE, 0}));
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned *count, unsigned *pids)
{
    (void)device, (void)count, (void)pids;
    return NVML_ERROR_NOT_SUPPORTED;
}

/* ---- use by process: rows of others are left out ---- */
static bool is_own(const struct account *rows, unsigned count, unsigned pid)
{
    for (unsigned i = 0; i < count && i < MOST_ROWS; i++)
        if (rows[i].pid == pid)
            return true;
    return false;
}

#define KEEP_OWN(device, samples, count)                                                                                \
    do {                                                                                                                \
        struct account own[MOST_ROWS];                                                                                  \
        unsigned owns = 0, kept = 0;                                                                                    \
        result = rows_of(device, own, &owns);                                                                           \
        for (unsigned i = 0; result == NVML_SUCCESS && i < *(count); i++)                                               \
            if (is_own(own, owns, (samples)[i].pid))                                                                    \
                (samples)[kept++] = (samples)[i];                                                                       \
        *(count) = kept;                                                                                                \
        if (result == NVML_SUCCESS && kept == 0)                                                                        \
            result = NVML_ERROR_NOT_FOUND;                                                                              \
    } while (0)

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, struct utilization *samples, unsigned *count,
                                                    unsigned long long since)
{
    nvmlReturn_t result =
        REAL(nvmlDeviceGetProcessUtilization, (nvmlDevice_t, struct utilization *, unsigned *, unsigned long long), device,
             samples, count, since);
    if (result == NVML_SUCCESS && samples != NULL)
        KEEP_OWN(device, samples, count);
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, struct utilizations *samples)
{
    nvmlReturn_t result =
        REAL(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t, struct utilizations *), device, samples);
    if (result == NVML_SUCCESS && samples->rows != NULL)
        KEEP_OWN(device, samples->rows, &samples->count);
    return result;
}
