/* Which processes use a card, and how much. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct process_v1 { unsigned pid; unsigned long long used; };
struct process_v3 { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; };

struct reading { uint32_t pid, utilization, gpu_instance, compute_instance; uint64_t used, stamp_us; };

/* Those with a context or memory on the card, at most `most`; returns how many there are. */
static unsigned read_processes(const struct sim_page *page, unsigned card, struct reading *list, unsigned most) {
    unsigned found = 0;
    uint32_t high = __atomic_load_n(&page->process_high, __ATOMIC_ACQUIRE);
    for (uint32_t i = 0; i < high && i < SIM_MAX_PROCESSES; i++) {
        struct sim_process process;
        sim_read(page, &process, &page->processes[i], sizeof process);
        if (!process.pid) continue;
        for (unsigned place = 0; place < SIM_MAX_PLACES; place++) {
            if (!process.contexts[place] && !process.used[place]) continue;
            const struct sim_card *at = &page->cards[place]; /* a card shows its own processes and those of its slices */
            if (place != card && !(at->slice && at->parent == card)) continue;
            if (found < most)
                list[found] = (struct reading){process.pid, process.utilization[place],
                                               at->slice ? at->gpu_instance : ~0u, at->slice ? 0 : ~0u,
                                               process.used[place], process.stamp_us[place]};
            found++;
        }
    }
    return found;
}

static nvmlReturn list_processes(nvmlDevice device, unsigned *count, void *out, bool with_instances) {
    CARD(device, card);
    NEED(count);
    NEED_METRIC(card, SIM_METRIC_PROCESSES);
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    struct reading *list = malloc(SIM_MAX_PROCESSES * sizeof *list);
    if (!list) return NVML_UNKNOWN;
    unsigned found = read_processes(page, device->index, list, SIM_MAX_PROCESSES), room = out ? *count : 0;
    *count = found;
    if (found > room) {
        result = NVML_INSUFFICIENT_SIZE;
    } else {
        for (unsigned i = 0; i < found; i++) {
            if (with_instances)
                ((struct process_v3 *)out)[i] = (struct process_v3){
                    list[i].pid, list[i].used, list[i].gpu_instance, list[i].compute_instance};
            else
                ((struct process_v1 *)out)[i] = (struct process_v1){list[i].pid, list[i].used};
        }
    }
    free(list);
    return result;
}

API nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice device, unsigned *count, struct process_v3 *list) {
    return list_processes(device, count, list, true);
}
ALIAS(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);

API nvmlDeviceGetComputeRunningProcesses(nvmlDevice device, unsigned *count, struct process_v1 *list) {
    return list_processes(device, count, list, false);
}

/* Nobody draws on a simulated card, and there is no MPS server. */
static nvmlReturn no_processes(nvmlDevice device, unsigned *count) {
    CARD(device, card);
    NEED(count);
    NEED_METRIC(card, SIM_METRIC_PROCESSES);
    *count = 0;
    return NVML_SUCCESS;
}

#define NOBODY(name) \
    API name(nvmlDevice device, unsigned *count, void *list) { \
        (void)list; \
        return no_processes(device, count); \
    }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

struct detail { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; unsigned long long protected_used; };
struct detail_list { unsigned version, mode, count; struct detail *list; };

API nvmlDeviceGetRunningProcessDetailList(nvmlDevice device, struct detail_list *out) {
    CARD(device, card);
    NEED(out);
    NEED_METRIC(card, SIM_METRIC_PROCESSES);
    if (out->version != (1u << 24 | sizeof *out)) return NVML_ARGUMENT_VERSION_MISMATCH;
    if (out->mode) return out->count = 0, NVML_SUCCESS; /* 0: compute */
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    struct reading *list = malloc(SIM_MAX_PROCESSES * sizeof *list);
    if (!list) return NVML_UNKNOWN;
    unsigned found = read_processes(page, device->index, list, SIM_MAX_PROCESSES), room = out->list ? out->count : 0;
    out->count = found;
    if (found > room) result = NVML_INSUFFICIENT_SIZE;
    else
        for (unsigned i = 0; i < found; i++)
            out->list[i] = (struct detail){list[i].pid, list[i].used, list[i].gpu_instance,
                                            list[i].compute_instance, NOT_AVAILABLE_U64};
    free(list);
    return result;
}

/* ---- utilisation: the newest reading of every process that has one after `since` ---- */
struct sample { unsigned pid; unsigned long long stamp_us; unsigned sm, memory, encoder, decoder; };
struct sample_v1 { unsigned long long stamp_us; unsigned pid, sm, memory, encoder, decoder, jpeg, ofa; };
struct samples_v1 { unsigned version, count; unsigned long long since; struct sample_v1 *list; };

static nvmlReturn newer(nvmlDevice device, uint64_t since, struct reading **out, unsigned *count) {
    CARD(device, card);
    NEED_METRIC(card, SIM_METRIC_UTILIZATION);
    NEED_METRIC(card, SIM_METRIC_PROCESSES);
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    struct reading *list = malloc(SIM_MAX_PROCESSES * sizeof *list);
    if (!list) return NVML_UNKNOWN;
    unsigned found = read_processes(page, device->index, list, SIM_MAX_PROCESSES), kept = 0;
    for (unsigned i = 0; i < found; i++)
        if (list[i].stamp_us > since) list[kept++] = list[i];
    *out = list;
    *count = kept;
    return NVML_SUCCESS;
}

API nvmlDeviceGetProcessUtilization(nvmlDevice device, struct sample *out, unsigned *count, unsigned long long since) {
    NEED(count);
    struct reading *list;
    unsigned found;
    nvmlReturn result = newer(device, since, &list, &found);
    if (result) return result;
    if (!found) result = NVML_NOT_FOUND;
    else if (!out || *count < found) result = NVML_INSUFFICIENT_SIZE;
    else
        for (unsigned i = 0; i < found; i++)
            out[i] = (struct sample){list[i].pid, list[i].stamp_us, list[i].utilization, list[i].utilization / 2, 0, 0};
    *count = found;
    free(list);
    return result;
}

API nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice device, struct samples_v1 *out) {
    NEED(out);
    if (out->version != (1u << 24 | sizeof *out)) return NVML_ARGUMENT_VERSION_MISMATCH;
    struct reading *list;
    unsigned found;
    nvmlReturn result = newer(device, out->since, &list, &found);
    if (result) return result;
    if (!found) result = NVML_NOT_FOUND;
    else if (!out->list || out->count < found) result = NVML_INSUFFICIENT_SIZE;
    else
        for (unsigned i = 0; i < found; i++)
            out->list[i] = (struct sample_v1){list[i].stamp_us, list[i].pid, list[i].utilization,
                                              list[i].utilization / 2, 0, 0, 0, 0};
    out->count = found;
    free(list);
    return result;
}
