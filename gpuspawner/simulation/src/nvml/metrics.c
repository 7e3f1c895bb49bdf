/* Readings: memory, load, power, temperature, clocks, errors. */
#define _GNU_SOURCE
#include <string.h>
#include <time.h>

#include "sim.h"

struct memory { unsigned long long total, free, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
#define MEMORY_V2 (2u << 24 | (unsigned)sizeof(struct memory_v2))

API nvmlDeviceGetMemoryInfo(nvmlDevice device, struct memory *memory) {
    CARD(device, card);
    NEED(memory);
    NEED_METRIC(card, SIM_METRIC_MEMORY);
    memory->total = card.model.memory_bytes;
    memory->used = card.used;
    memory->free = memory->total - memory->used;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice device, struct memory_v2 *memory) {
    NEED(memory);
    if (memory->version != MEMORY_V2) return NVML_ARGUMENT_VERSION_MISMATCH;
    struct memory plain;
    nvmlReturn result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result) return result;
    memory->total = plain.total;
    memory->reserved = 0; /* all of a simulated card's memory can be had */
    memory->free = plain.free;
    memory->used = plain.used;
    const struct sim_page *page = sim_page();
    struct sim_limits own;
    if (page && page->limited && !sim_get_limits(device->index, NULL, &own) && own.hard < plain.total) {
        memory->total = own.hard; /* within a limited cgroup, its limit is the card */
        memory->used = own.used;
        memory->free = own.used < own.hard ? own.hard - own.used : 0;
        if (memory->free > plain.free) memory->free = plain.free;
    }
    return NVML_SUCCESS;
}

API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice device, unsigned long long *total_free_used) {
    CARD(device, card);
    NEED(total_free_used);
    NEED_METRIC(card, SIM_METRIC_MEMORY);
    uint64_t window = 1; /* the next power of two above the memory, as boards for servers have it */
    while (window < card.model.memory_bytes) window <<= 1;
    total_free_used[0] = window;
    total_free_used[1] = window - (2u << 20);
    total_free_used[2] = 2u << 20;
    return NVML_SUCCESS;
}

API nvmlDeviceGetUtilizationRates(nvmlDevice device, unsigned *gpu_memory) {
    CARD(device, card);
    NEED(gpu_memory);
    NEED_METRIC(card, SIM_METRIC_UTILIZATION);
    gpu_memory[0] = card.utilization;
    gpu_memory[1] = card.memory_utilization;
    return NVML_SUCCESS;
}

#define ENGINE(name) \
    API name(nvmlDevice device, unsigned *utilization, unsigned *period_us) { \
        CARD(device, card); \
        if (!utilization || !period_us) return NVML_INVALID_ARGUMENT; \
        NEED_METRIC(card, SIM_METRIC_UTILIZATION); \
        *utilization = 0; \
        *period_us = 100000; \
        return NVML_SUCCESS; \
    }
ENGINE(nvmlDeviceGetEncoderUtilization)
ENGINE(nvmlDeviceGetDecoderUtilization)
ENGINE(nvmlDeviceGetJpgUtilization)
ENGINE(nvmlDeviceGetOfaUtilization)

/* ---- power ---- */
#define READING(name, type, metric, value) \
    API name(nvmlDevice device, type *out) { \
        CARD(device, card); \
        NEED(out); \
        NEED_METRIC(card, metric); \
        *out = (type)(value); \
        return NVML_SUCCESS; \
    }
READING(nvmlDeviceGetPowerUsage, unsigned, SIM_METRIC_POWER, card.power_mw)
READING(nvmlDeviceGetPowerManagementLimit, unsigned, SIM_METRIC_POWER, card.power_limit_mw)
READING(nvmlDeviceGetEnforcedPowerLimit, unsigned, SIM_METRIC_POWER, card.power_limit_mw)
READING(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, SIM_METRIC_POWER, card.model.power_limit_mw)
READING(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, SIM_METRIC_ENERGY, energy_mj(&card))

uint64_t energy_mj(const struct sim_card *card) {
    uint64_t nj = card->energy_nj;
    if (!card->lost) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        uint64_t now = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
        if (now > card->energy_at_ns) nj += (now - card->energy_at_ns) / 1000 * card->power_mw;
    }
    return nj / 1000000;
}

API nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice device, unsigned *least, unsigned *most) {
    CARD(device, card);
    if (!least || !most) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_POWER);
    *least = card.model.power_min_mw;
    *most = card.model.power_limit_mw;
    return NVML_SUCCESS;
}

/* ---- temperature and fan ---- */
API nvmlDeviceGetTemperature(nvmlDevice device, unsigned sensor, unsigned *celsius) {
    CARD(device, card);
    if (!celsius || sensor) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_TEMPERATURE);
    *celsius = (unsigned)card.temperature;
    return NVML_SUCCESS;
}

struct temperature_v1 { unsigned version, sensor; int celsius; };

API nvmlDeviceGetTemperatureV(nvmlDevice device, struct temperature_v1 *reading) {
    NEED(reading);
    if (reading->version != (1u << 24 | sizeof *reading)) return NVML_ARGUMENT_VERSION_MISMATCH;
    unsigned celsius;
    nvmlReturn result = nvmlDeviceGetTemperature(device, reading->sensor, &celsius);
    if (!result) reading->celsius = (int)celsius;
    return result;
}

API nvmlDeviceGetTemperatureThreshold(nvmlDevice device, unsigned which, unsigned *celsius) {
    CARD(device, card);
    if (!celsius || which > 7) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_TEMPERATURE);
    const struct sim_model *model = &card.model;
    const unsigned limits[] = {model->temperature_shutdown, model->temperature_slowdown, model->temperature_memory_max,
                               model->temperature_slowdown - 2};
    if (which > 3) return NVML_NOT_SUPPORTED;
    *celsius = limits[which];
    return NVML_SUCCESS;
}

struct margin_v1 { unsigned version; int margin; };

API nvmlDeviceGetMarginTemperature(nvmlDevice device, struct margin_v1 *margin) {
    CARD(device, card);
    NEED(margin);
    NEED_METRIC(card, SIM_METRIC_TEMPERATURE);
    margin->margin = (int)card.model.temperature_slowdown - card.temperature;
    return NVML_SUCCESS;
}

READING(nvmlDeviceGetFanSpeed, unsigned, SIM_METRIC_FAN, card.fan_percent)

API nvmlDeviceGetNumFans(nvmlDevice device, unsigned *count) {
    CARD(device, card);
    NEED(count);
    *count = LACKS(card, SIM_METRIC_FAN) ? 0 : 1;
    return NVML_SUCCESS;
}

API nvmlDeviceGetFanSpeed_v2(nvmlDevice device, unsigned fan, unsigned *percent) {
    nvmlReturn result = nvmlDeviceGetFanSpeed(device, percent);
    return !result && fan ? NVML_INVALID_ARGUMENT : result;
}

/* ---- clocks ---- */
enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEMORY, CLOCK_VIDEO };

API nvmlDeviceGetClockInfo(nvmlDevice device, unsigned type, unsigned *mhz) {
    CARD(device, card);
    if (!mhz || type > CLOCK_VIDEO) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_CLOCKS);
    *mhz = type == CLOCK_MEMORY ? card.memory_clock_mhz : card.sm_clock_mhz;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMaxClockInfo(nvmlDevice device, unsigned type, unsigned *mhz) {
    CARD(device, card);
    if (!mhz || type > CLOCK_VIDEO) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_CLOCKS);
    *mhz = type == CLOCK_MEMORY ? card.model.memory_clock_mhz : card.model.sm_clock_mhz;
    return NVML_SUCCESS;
}
ALIAS(nvmlDeviceGetApplicationsClock, nvmlDeviceGetMaxClockInfo);
ALIAS(nvmlDeviceGetDefaultApplicationsClock, nvmlDeviceGetMaxClockInfo);
ALIAS(nvmlDeviceGetMaxCustomerBoostClock, nvmlDeviceGetMaxClockInfo);

API nvmlDeviceGetClock(nvmlDevice device, unsigned type, unsigned which, unsigned *mhz) {
    if (which > 3) return NVML_INVALID_ARGUMENT;
    return which ? nvmlDeviceGetMaxClockInfo(device, type, mhz) : nvmlDeviceGetClockInfo(device, type, mhz);
}

READING(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, SIM_METRIC_CLOCKS, card.throttle_reasons)
ALIAS(nvmlDeviceGetCurrentClocksEventReasons, nvmlDeviceGetCurrentClocksThrottleReasons);
READING(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, SIM_METRIC_CLOCKS, 0x1ff)
ALIAS(nvmlDeviceGetSupportedClocksEventReasons, nvmlDeviceGetSupportedClocksThrottleReasons);

/* ---- ECC, retired pages, remapped rows ---- */
API nvmlDeviceGetEccMode(nvmlDevice device, unsigned *current, unsigned *pending) {
    CARD(device, card);
    if (!current || !pending) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_ECC);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

READING(nvmlDeviceGetDefaultEccMode, unsigned, SIM_METRIC_ECC, 1)

static uint64_t ecc_count(const struct sim_card *card, unsigned type, unsigned counter) {
    if (type) return counter ? card->ecc_uncorrected_lifetime : card->ecc_uncorrected;
    return counter ? card->ecc_corrected_lifetime : card->ecc_corrected;
}

API nvmlDeviceGetTotalEccErrors(nvmlDevice device, unsigned type, unsigned counter, unsigned long long *count) {
    CARD(device, card);
    if (!count || type > 1 || counter > 1) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_ECC);
    *count = ecc_count(&card, type, counter);
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryErrorCounter(nvmlDevice device, unsigned type, unsigned counter, unsigned location,
                                    unsigned long long *count) {
    CARD(device, card);
    if (!count || type > 1 || counter > 1 || location > 7) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_ECC);
    *count = location == 2 ? ecc_count(&card, type, counter) : 0; /* all errors are the memory's */
    return NVML_SUCCESS;
}

API nvmlDeviceGetDetailedEccErrors(nvmlDevice device, unsigned type, unsigned counter, unsigned long long *counts) {
    NEED(counts);
    memset(counts, 0, 4 * sizeof *counts);
    return nvmlDeviceGetTotalEccErrors(device, type, counter, &counts[2]);
}

API nvmlDeviceGetRemappedRows(nvmlDevice device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                              unsigned *failed) {
    CARD(device, card);
    if (!corrected || !uncorrected || !pending || !failed) return NVML_INVALID_ARGUMENT;
    if (card.model.cc_major < 8) return NVML_NOT_SUPPORTED; /* V100 retires pages instead */
    NEED_METRIC(card, SIM_METRIC_ECC);
    *corrected = card.remapped_corrected;
    *uncorrected = card.remapped_uncorrected;
    *pending = card.remap_pending;
    *failed = card.remap_failed;
    return NVML_SUCCESS;
}

API nvmlDeviceGetRowRemapperHistogram(nvmlDevice device, unsigned *histogram) {
    CARD(device, card);
    NEED(histogram);
    if (card.model.cc_major < 8) return NVML_NOT_SUPPORTED;
    NEED_METRIC(card, SIM_METRIC_ECC);
    unsigned used = card.remapped_corrected + card.remapped_uncorrected, banks = 640;
    if (used > banks) used = banks;
    histogram[0] = banks - used; /* banks with all spare rows left */
    histogram[1] = used;
    histogram[2] = histogram[3] = histogram[4] = 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetRetiredPages(nvmlDevice device, unsigned cause, unsigned *count, unsigned long long *addresses) {
    CARD(device, card);
    if (!count || cause > 1) return NVML_INVALID_ARGUMENT;
    if (card.model.cc_major >= 8) return NVML_NOT_SUPPORTED;
    NEED_METRIC(card, SIM_METRIC_ECC);
    unsigned there = cause ? card.retired_pages : 0, room = *count; /* 1: double-bit errors */
    *count = there;
    if (!addresses && there) return NVML_INSUFFICIENT_SIZE;
    if (there > room) return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < there; i++) addresses[i] = (i + 1ull) << 16;
    return NVML_SUCCESS;
}

API nvmlDeviceGetRetiredPagesPendingStatus(nvmlDevice device, unsigned *pending) {
    CARD(device, card);
    NEED(pending);
    if (card.model.cc_major >= 8) return NVML_NOT_SUPPORTED;
    NEED_METRIC(card, SIM_METRIC_ECC);
    *pending = card.retired_pending;
    return NVML_SUCCESS;
}
