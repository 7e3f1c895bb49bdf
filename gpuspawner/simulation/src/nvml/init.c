/* Start and end of the library, the system's facts, device handles. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "sim.h"

static unsigned users; /* nvmlInit calls not yet matched by nvmlShutdown */
static struct device devices[SIM_MAX_PLACES];

API nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (sim_connect() != SIM_OK) return NVML_DRIVER_NOT_LOADED;
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++) devices[i].index = i;
    __atomic_add_fetch(&users, 1, __ATOMIC_SEQ_CST);
    return NVML_SUCCESS;
}

API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
ALIAS(nvmlInit, nvmlInit_v2);

API nvmlShutdown(void) {
    unsigned now = __atomic_load_n(&users, __ATOMIC_SEQ_CST);
    do {
        if (!now) return NVML_UNINITIALIZED;
    } while (!__atomic_compare_exchange_n(&users, &now, now - 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
    if (now == 1) sim_disconnect();
    return NVML_SUCCESS;
}

nvmlReturn page_get(const struct sim_page **page) {
    if (!__atomic_load_n(&users, __ATOMIC_SEQ_CST)) return NVML_UNINITIALIZED;
    if (!sim_connected()) { /* the daemon went, or this is a forked child */
        sim_disconnect();
        if (sim_connect() != SIM_OK) return NVML_DRIVER_NOT_LOADED;
    }
    *page = sim_page();
    return *page ? NVML_SUCCESS : NVML_DRIVER_NOT_LOADED;
}

nvmlReturn card_get(nvmlDevice device, struct sim_card *card, bool facts) {
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    if (device < devices || device >= devices + SIM_MAX_PLACES) return NVML_INVALID_ARGUMENT;
    sim_read(page, card, &page->cards[device->index], sizeof *card);
    if (device->index < SIM_MAX_CARDS ? device->index >= page->card_count : !card->slice) return NVML_INVALID_ARGUMENT;
    if (card->slice) { /* a slice is as lost and as hot as its card */
        const struct sim_card *whole = &page->cards[card->parent];
        card->lost = whole->lost;
        card->temperature = whole->temperature;
    }
    return card->lost && !facts ? NVML_GPU_IS_LOST : NVML_SUCCESS;
}

nvmlReturn device_at(unsigned index, nvmlDevice *device) {
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    if (!device || index >= SIM_MAX_PLACES) return NVML_INVALID_ARGUMENT;
    if (index < SIM_MAX_CARDS && index >= page->card_count) return NVML_INVALID_ARGUMENT;
    *device = &devices[index];
    return NVML_SUCCESS;
}

nvmlReturn copy_text(char *out, unsigned size, const char *text) {
    if (!out) return NVML_INVALID_ARGUMENT;
    if (size <= strlen(text)) return NVML_INSUFFICIENT_SIZE;
    strcpy(out, text);
    return NVML_SUCCESS;
}

int64_t wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* ---- system ---- */
#define NEED_LIBRARY() do { const struct sim_page *page_; nvmlReturn got_ = page_get(&page_); if (got_) return got_; } while (0)

API nvmlSystemGetDriverVersion(char *text, unsigned size) {
    NEED_LIBRARY();
    return copy_text(text, size, DRIVER_VERSION_TEXT);
}

API nvmlSystemGetNVMLVersion(char *text, unsigned size) { return copy_text(text, size, "13." DRIVER_VERSION_TEXT); }

API nvmlSystemGetCudaDriverVersion_v2(int *version) {
    NEED(version);
    *version = CUDA_VERSION_NUMBER;
    return NVML_SUCCESS;
}
ALIAS(nvmlSystemGetCudaDriverVersion, nvmlSystemGetCudaDriverVersion_v2);

API nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
    NEED_LIBRARY();
    if (!name || !size) return NVML_INVALID_ARGUMENT;
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file) return NVML_NOT_FOUND;
    size_t got = fread(name, 1, size - 1, file);
    name[got] = 0; /* the first word: the words are separated by zero bytes */
    fclose(file);
    return NVML_SUCCESS;
}

/* ---- finding devices ---- */
API nvmlDeviceGetCount_v2(unsigned *count) {
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    NEED(count);
    *count = page->card_count;
    return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetCount, nvmlDeviceGetCount_v2);

API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice *device) {
    return index < SIM_MAX_CARDS ? device_at(index, device) : NVML_INVALID_ARGUMENT;
}
ALIAS(nvmlDeviceGetHandleByIndex, nvmlDeviceGetHandleByIndex_v2);

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice *device) {
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    if (!uuid || !device) return NVML_INVALID_ARGUMENT;
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++)
        if ((i < page->card_count || page->cards[i].has_compute) && !strcasecmp(page->cards[i].uuid, uuid))
            return device_at(i, device);
    return NVML_NOT_FOUND;
}

API nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice *device) {
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    if (!serial || !device) return NVML_INVALID_ARGUMENT;
    for (unsigned i = 0; i < page->card_count; i++)
        if (!strcmp(page->cards[i].serial, serial)) return device_at(i, device);
    return NVML_NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice *device) {
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    unsigned domain, bus, slot;
    if (!text || !device) return NVML_INVALID_ARGUMENT;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2) return NVML_INVALID_ARGUMENT;
    }
    for (unsigned i = 0; i < page->card_count; i++) {
        const struct sim_card *card = &page->cards[i];
        if (card->pci_domain == domain && card->pci_bus == bus && card->pci_slot == slot) return device_at(i, device);
    }
    return NVML_NOT_FOUND;
}
ALIAS(nvmlDeviceGetHandleByPciBusId, nvmlDeviceGetHandleByPciBusId_v2);

API nvmlUnitGetCount(unsigned *count) {
    NEED_LIBRARY();
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

API nvmlGetExcludedDeviceCount(unsigned *count) {
    NEED(count);
    *count = 0;
    return NVML_SUCCESS;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn error) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.", "In use by another client", "Insufficient Memory", "No data",
        "The requested vgpu operation is not available on target device because ECC is enabled",
        "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated",
        "System not ready", "No GPUs were found", "Resource not in correct state", "Reset type not supported",
    };
    return (unsigned)error < sizeof texts / sizeof *texts ? texts[error] : "Unknown Error";
}
