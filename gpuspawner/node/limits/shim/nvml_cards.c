/* A session sees its own cards and no others, numbered from 0. */
#include "nvml.h"

#include <ctype.h>
#include <string.h>

#define UUID_TEXT 96
#define MOST_CARDS 64

/* Position + 1 by the driver's index, kept because a lost card no longer tells its uuid. */
static _Atomic int known[MOST_CARDS];

void shim_after_fork(void) {}

static bool parse_uuid(const char *text, uint8_t uuid[16])
{
    int digits = 0;
    if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0)
        return false;
    for (text += 4; *text != '\0'; text++) {
        if (*text == '-')
            continue;
        if (!isxdigit((unsigned char)*text) || digits == 32)
            return false;
        int value = isdigit((unsigned char)*text) ? *text - '0' : tolower((unsigned char)*text) - 'a' + 10;
        uuid[digits / 2] = (uint8_t)(digits % 2 == 0 ? value << 4 : uuid[digits / 2] | value);
        digits++;
    }
    return digits == 32;
}

static int present(int card) { return card != NO_CARD && limits_of(card).present ? card : NO_CARD; }

int card_of_handle(nvmlDevice_t device, nvmlReturn_t *result)
{
    char text[UUID_TEXT];
    uint8_t uuid[16];
    *result = REAL(nvmlDeviceGetUUID, (nvmlDevice_t, char *, unsigned), device, text, sizeof text);
    if (*result != NVML_SUCCESS)
        return NO_CARD;
    int card = parse_uuid(text, uuid) ? present(limits_find(uuid)) : NO_CARD;
    if (card == NO_CARD)
        *result = NVML_ERROR_NO_PERMISSION;
    return card;
}

static nvmlReturn_t real_handle(unsigned index, nvmlDevice_t *device)
{
    return REAL(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *), index, device);
}

static bool is_ours(unsigned index)
{
    nvmlDevice_t device;
    nvmlReturn_t result = real_handle(index, &device);
    int card = NO_CARD;
    if (result == NVML_SUCCESS)
        card = card_of_handle(device, &result);
    if (card != NO_CARD)
        atomic_store(&known[index], card + 1);
    else if (result != NVML_ERROR_NO_PERMISSION && atomic_load(&known[index]) > 0)
        card = present(atomic_load(&known[index]) - 1);
    return card != NO_CARD;
}

/* The driver's indices of the session's cards, in order. */
static nvmlReturn_t list(unsigned indices[MOST_CARDS], unsigned *count)
{
    unsigned all = 0;
    *count = 0;
    nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2, (unsigned *), &all);
    for (unsigned i = 0; result == NVML_SUCCESS && i < all && i < MOST_CARDS; i++)
        if (is_ours(i))
            indices[(*count)++] = i;
    return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    unsigned indices[MOST_CARDS];
    return count == NULL ? NVML_ERROR_INVALID_ARGUMENT : list(indices, count);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    unsigned indices[MOST_CARDS], count;
    nvmlReturn_t result = list(indices, &count);
    if (result != NVML_SUCCESS)
        return result;
    if (index >= count || device == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    return real_handle(indices[index], device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    unsigned indices[MOST_CARDS], count, own;
    nvmlReturn_t result = REAL(nvmlDeviceGetIndex, (nvmlDevice_t, unsigned *), device, &own);
    if (result == NVML_SUCCESS)
        result = list(indices, &count);
    if (result != NVML_SUCCESS)
        return result;
    for (unsigned i = 0; i < count; i++) {
        if (indices[i] == own) {
            *index = i;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* A handle that the driver gave us, if it is one of the session's. */
static nvmlReturn_t ours_or_not_found(nvmlReturn_t result, nvmlDevice_t *device)
{
    nvmlReturn_t own;
    if (result != NVML_SUCCESS || card_of_handle(*device, &own) != NO_CARD || own != NVML_ERROR_NO_PERMISSION)
        return result;
    *device = NULL;
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return ours_or_not_found(REAL(nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *), uuid, device), device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const void *uuid, nvmlDevice_t *device)
{
    return ours_or_not_found(REAL(nvmlDeviceGetHandleByUUIDV, (const void *, nvmlDevice_t *), uuid, device), device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return ours_or_not_found(REAL(nvmlDeviceGetHandleBySerial, (const char *, nvmlDevice_t *), serial, device), device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus, nvmlDevice_t *device)
{
    return ours_or_not_found(REAL(nvmlDeviceGetHandleByPciBusId_v2, (const char *, nvmlDevice_t *), bus, device), device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus, nvmlDevice_t *device)
{
    return ours_or_not_found(REAL(nvmlDeviceGetHandleByPciBusId, (const char *, nvmlDevice_t *), bus, device), device);
}
