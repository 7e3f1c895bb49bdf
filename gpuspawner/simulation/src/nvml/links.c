/* PCIe, NVLink, and the field values that many readings can also be had by. */
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>

#include "sim.h"

#define READING(name, value) \
    API name(nvmlDevice device, unsigned *out) { \
        CARD(device, card); \
        NEED(out); \
        NEED_METRIC(card, SIM_METRIC_PCIE); \
        *out = (unsigned)(value); \
        return NVML_SUCCESS; \
    }
READING(nvmlDeviceGetCurrPcieLinkGeneration, card.pcie_gen)
READING(nvmlDeviceGetCurrPcieLinkWidth, card.pcie_width)
READING(nvmlDeviceGetMaxPcieLinkGeneration, card.model.pcie_gen)
READING(nvmlDeviceGetGpuMaxPcieLinkGeneration, card.model.pcie_gen)
READING(nvmlDeviceGetMaxPcieLinkWidth, card.model.pcie_width)
READING(nvmlDeviceGetPcieReplayCounter, card.pcie_replays)

static unsigned pcie_speed(unsigned generation) { /* MT/s per lane */
    static const unsigned speeds[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    return generation < sizeof speeds / sizeof *speeds ? speeds[generation] : 0;
}
READING(nvmlDeviceGetPcieSpeed, pcie_speed(card.pcie_gen))

API nvmlDeviceGetPcieThroughput(nvmlDevice device, unsigned which, unsigned *kbps) {
    CARD(device, card);
    if (!kbps || which > 1) return NVML_INVALID_ARGUMENT;
    NEED_METRIC(card, SIM_METRIC_PCIE);
    *kbps = which ? card.pcie_rx_kbps : card.pcie_tx_kbps;
    return NVML_SUCCESS;
}

/* ---- NVLink ---- */
#define LINK(device, link, card) CARD(device, card); \
    NEED_METRIC(card, SIM_METRIC_NVLINK); \
    do { if ((link) >= SIM_MAX_LINKS) return NVML_INVALID_ARGUMENT; \
         if ((link) >= card.model.nvlinks) return NVML_NOT_SUPPORTED; } while (0)

API nvmlDeviceGetNvLinkState(nvmlDevice device, unsigned link, unsigned *active) {
    LINK(device, link, card);
    NEED(active);
    *active = card.link_up[link];
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkVersion(nvmlDevice device, unsigned link, unsigned *version) {
    LINK(device, link, card);
    NEED(version);
    *version = card.model.nvlink_version;
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkCapability(nvmlDevice device, unsigned link, unsigned capability, unsigned *value) {
    LINK(device, link, card);
    if (!value || capability > 5) return NVML_INVALID_ARGUMENT;
    *value = capability != 1 && capability != 3 && capability != 4; /* no access to system memory, no bridge */
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkErrorCounter(nvmlDevice device, unsigned link, unsigned counter, unsigned long long *value) {
    LINK(device, link, card);
    if (!value || counter > 4) return NVML_INVALID_ARGUMENT;
    *value = counter == 0 ? card.link_replays[link] : counter == 1 ? card.link_recoveries[link]
             : counter == 2 ? card.link_crc[link] : 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkUtilizationCounter(nvmlDevice device, unsigned link, unsigned counter, unsigned long long *rx,
                                          unsigned long long *tx) {
    LINK(device, link, card);
    if (!rx || !tx || counter > 1) return NVML_INVALID_ARGUMENT;
    *rx = card.link_rx_kib[link];
    *tx = card.link_tx_kib[link];
    return NVML_SUCCESS;
}

API nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice device, unsigned link, unsigned *type) {
    LINK(device, link, card);
    NEED(type);
    *type = 2; /* a switch */
    return NVML_SUCCESS;
}

/* ---- field values ---- */
struct field {
    uint32_t id, scope;
    int64_t timestamp, latency_us;
    uint32_t type, result;
    union {
        double d;
        unsigned ui;
        unsigned long ul;
        unsigned long long ull;
        long long sll;
        int si;
    } value;
};
enum { TYPE_UNSIGNED = 1, TYPE_ULL = 3, TYPE_SIGNED = 5 };

static nvmlReturn number(struct field *field, uint64_t value) {
    field->type = TYPE_ULL;
    field->value.ull = value;
    return NVML_SUCCESS;
}

static nvmlReturn small(struct field *field, unsigned value) {
    field->type = TYPE_UNSIGNED;
    field->value.ui = value;
    return NVML_SUCCESS;
}

/* Links 0 to 5, then their total, then links 6 to 11 under other numbers: how the fields are laid out. */
static int link_field(uint32_t id, uint32_t low, uint32_t high) {
    if (id >= low && id <= low + 6) return (int)(id - low) == 6 ? -1 : (int)(id - low);
    if (high && id >= high && id < high + 6) return (int)(id - high) + 6;
    return -2;
}

static nvmlReturn counters(struct field *field, const struct sim_card *card, const uint64_t *values, int link) {
    if (link >= (int)card->model.nvlinks) return NVML_NOT_SUPPORTED;
    if (link >= 0) return number(field, values[link]);
    uint64_t total = 0;
    for (unsigned i = 0; i < card->model.nvlinks; i++) total += values[i];
    return number(field, total);
}

static nvmlReturn scoped(struct field *field, const struct sim_card *card, const uint64_t *values) {
    if (field->scope == UINT32_MAX) return counters(field, card, values, -1); /* all links */
    return field->scope < card->model.nvlinks ? number(field, values[field->scope]) : NVML_INVALID_ARGUMENT;
}

static nvmlReturn nvlink_field(struct field *field, const struct sim_card *card) {
    const struct sim_model *model = &card->model;
    static const uint64_t none[SIM_MAX_LINKS];
    int link;
    if ((link = link_field(field->id, 32, 96)) > -2) return counters(field, card, card->link_crc, link);
    if ((link = link_field(field->id, 39, 102)) > -2) return counters(field, card, none, link);
    if ((link = link_field(field->id, 46, 108)) > -2) return counters(field, card, card->link_replays, link);
    if ((link = link_field(field->id, 53, 114)) > -2) return counters(field, card, card->link_recoveries, link);
    if ((link = link_field(field->id, 84, 132)) > -2)
        return link >= (int)model->nvlinks ? NVML_NOT_SUPPORTED : small(field, model->nvlink_mbps);
    switch (field->id) {
    case 91: return small(field, model->nvlinks);
    case 138: case 140: return scoped(field, card, card->link_tx_kib);
    case 139: case 141: return scoped(field, card, card->link_rx_kib);
    case 161: return scoped(field, card, card->link_replays);
    case 162: return scoped(field, card, card->link_recoveries);
    case 163: return scoped(field, card, card->link_crc);
    case 164: return field->scope < model->nvlinks ? small(field, model->nvlink_mbps) : NVML_INVALID_ARGUMENT;
    case 165: return field->scope < model->nvlinks ? small(field, card->link_up[field->scope] ? 1 : 0) : NVML_INVALID_ARGUMENT;
    case 166: return small(field, model->nvlink_version);
    default: return NVML_NOT_SUPPORTED;
    }
}

static nvmlReturn read_field(struct field *field, const struct sim_card *card) {
    enum sim_metric metric;
    uint32_t id = field->id;
    if (id <= 31 || (id >= 92 && id <= 93) || (id >= 142 && id <= 145)) metric = SIM_METRIC_ECC;
    else if (id == 82 || (id >= 193 && id <= 196)) metric = SIM_METRIC_TEMPERATURE;
    else if (id == 83) metric = SIM_METRIC_ENERGY;
    else if (id == 94 || id == 95 || id == 197 || id == 198) metric = SIM_METRIC_PCIE;
    else if (id >= 185 && id <= 192) metric = SIM_METRIC_POWER;
    else metric = SIM_METRIC_NVLINK;
    if (LACKS(*card, metric)) return NVML_NOT_SUPPORTED;
    const struct sim_model *model = &card->model;
    bool remaps = model->cc_major >= 8;
    switch (id) {
    case 1: case 2: return small(field, 1);
    case 3: case 11: return number(field, card->ecc_corrected);
    case 4: case 12: return number(field, card->ecc_uncorrected);
    case 5: case 22: return number(field, card->ecc_corrected_lifetime);
    case 6: case 23: return number(field, card->ecc_uncorrected_lifetime);
    case 29: return remaps ? NVML_NOT_SUPPORTED : number(field, 0);
    case 30: return remaps ? NVML_NOT_SUPPORTED : number(field, card->retired_pages);
    case 31: case 93: return remaps ? NVML_NOT_SUPPORTED : number(field, card->retired_pending);
    case 92: return remaps ? NVML_NOT_SUPPORTED : number(field, 0);
    case 82: return small(field, (unsigned)card->memory_temperature);
    case 83: return number(field, energy_mj(card));
    case 94: return number(field, card->pcie_replays);
    case 95: return number(field, 0);
    case 142: return remaps ? number(field, card->remapped_corrected) : NVML_NOT_SUPPORTED;
    case 143: return remaps ? number(field, card->remapped_uncorrected) : NVML_NOT_SUPPORTED;
    case 144: return remaps ? number(field, card->remap_pending) : NVML_NOT_SUPPORTED;
    case 145: return remaps ? number(field, card->remap_failed) : NVML_NOT_SUPPORTED;
    case 185: case 186: return small(field, card->power_mw);
    case 187: return small(field, model->power_min_mw);
    case 188: case 189: return small(field, model->power_limit_mw);
    case 190: case 192: return small(field, card->power_limit_mw);
    default: break;
    }
    if (id >= 7 && id <= 28) return number(field, 0); /* errors elsewhere than in the memory */
    return metric == SIM_METRIC_NVLINK ? nvlink_field(field, card) : NVML_NOT_SUPPORTED;
}

API nvmlDeviceGetFieldValues(nvmlDevice device, int count, struct field *fields) {
    CARD(device, card);
    if (count < 1 || !fields) return NVML_INVALID_ARGUMENT;
    for (int i = 0; i < count; i++) {
        fields[i].timestamp = wall_us();
        fields[i].latency_us = 0;
        fields[i].value.ull = 0;
        fields[i].result = read_field(&fields[i], &card);
    }
    return NVML_SUCCESS;
}
