/* Control commands: what tests and people use to script faults. One line in, one line or JSON out. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon.h"

const char *const metric_names[SIM_METRIC_COUNT] = {
    [SIM_METRIC_UTILIZATION] = "utilization", [SIM_METRIC_POWER] = "power",
    [SIM_METRIC_ENERGY] = "energy",           [SIM_METRIC_TEMPERATURE] = "temperature",
    [SIM_METRIC_CLOCKS] = "clocks",           [SIM_METRIC_FAN] = "fan",
    [SIM_METRIC_ECC] = "ecc",                 [SIM_METRIC_PCIE] = "pcie",
    [SIM_METRIC_NVLINK] = "nvlink",           [SIM_METRIC_PROCESSES] = "processes",
    [SIM_METRIC_MEMORY] = "memory",           [SIM_METRIC_XID] = "xid",
    [SIM_METRIC_LIMITS] = "memory-limits",
};

static int failed(char *reply, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reply, size, format, arguments);
    va_end(arguments);
    return SIM_INVALID;
}

static bool number(const char *text, uint64_t most, uint64_t *value) {
    char *end;
    if (!text || *text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long read = strtoull(text, &end, 10);
    if (*end || errno || read > most) return false;
    *value = read;
    return true;
}

/* Values that `set CARD NAME VALUE` writes. Counters are set, not added to. */
#define FIELD(member, most) offsetof(struct sim_card, member), sizeof(((struct sim_card *)0)->member), most
static const struct setting {
    const char *name;
    size_t offset, size;
    uint64_t most;
} settings[] = {
    {"power", FIELD(power_mw, 2000000)},
    {"power-limit", FIELD(power_limit_mw, 2000000)},
    {"utilization", FIELD(utilization, 100)},
    {"memory-utilization", FIELD(memory_utilization, 100)},
    {"temperature", FIELD(temperature, 150)},
    {"memory-temperature", FIELD(memory_temperature, 150)},
    {"sm-clock", FIELD(sm_clock_mhz, 10000)},
    {"memory-clock", FIELD(memory_clock_mhz, 20000)},
    {"fan", FIELD(fan_percent, 100)},
    {"throttle-reasons", FIELD(throttle_reasons, UINT64_MAX)},
    {"ecc-corrected", FIELD(ecc_corrected, UINT64_MAX)},
    {"ecc-uncorrected", FIELD(ecc_uncorrected, UINT64_MAX)},
    {"ecc-corrected-lifetime", FIELD(ecc_corrected_lifetime, UINT64_MAX)},
    {"ecc-uncorrected-lifetime", FIELD(ecc_uncorrected_lifetime, UINT64_MAX)},
    {"remapped-corrected", FIELD(remapped_corrected, 512)},
    {"remapped-uncorrected", FIELD(remapped_uncorrected, 512)},
    {"remap-pending", FIELD(remap_pending, 1)},
    {"remap-failed", FIELD(remap_failed, 1)},
    {"retired-pages", FIELD(retired_pages, 64)},
    {"retired-pending", FIELD(retired_pending, 1)},
    {"pcie-gen", FIELD(pcie_gen, 7)},
    {"pcie-width", FIELD(pcie_width, 16)},
    {"pcie-tx", FIELD(pcie_tx_kbps, UINT32_MAX)},
    {"pcie-rx", FIELD(pcie_rx_kbps, UINT32_MAX)},
    {"pcie-replays", FIELD(pcie_replays, UINT32_MAX)},
};

static const struct setting link_settings[] = {
    {"up", FIELD(link_up[0], 1)},
    {"tx-kib", FIELD(link_tx_kib[0], UINT64_MAX)},
    {"rx-kib", FIELD(link_rx_kib[0], UINT64_MAX)},
    {"replays", FIELD(link_replays[0], UINT64_MAX)},
    {"recoveries", FIELD(link_recoveries[0], UINT64_MAX)},
    {"crc-errors", FIELD(link_crc[0], UINT64_MAX)},
};
#undef FIELD
#define COUNT(array) (sizeof(array) / sizeof *(array))

static void store(unsigned card, const struct setting *setting, unsigned element, uint64_t value) {
    char *at = (char *)&sim.page->cards[card] + setting->offset + element * setting->size;
    uint32_t narrow = (uint32_t)value;
    page_write_begin();
    memcpy(at, setting->size == 8 ? (void *)&value : (void *)&narrow, setting->size);
    page_write_end();
}

static bool *override_of(unsigned card, const char *name) {
    struct daemon_card *own = &sim.cards[card];
    if (!strcmp(name, "power")) return &own->has_power;
    if (!strcmp(name, "utilization") || !strcmp(name, "memory-utilization")) return &own->has_utilization;
    if (!strcmp(name, "temperature") || !strcmp(name, "memory-temperature")) return &own->has_temperature;
    if (!strcmp(name, "sm-clock") || !strcmp(name, "memory-clock")) return &own->has_clocks;
    return NULL;
}

static int set_value(unsigned card, const char *name, const char *text, char *reply, size_t size) {
    for (size_t i = 0; name && i < COUNT(settings); i++) {
        const struct setting *setting = &settings[i];
        if (strcmp(setting->name, name)) continue;
        bool *override = override_of(card, name);
        uint64_t value;
        if (override && text && !strcmp(text, "auto")) {
            *override = false;
            card_follow_load(card);
            return SIM_OK;
        }
        if (!number(text, setting->most, &value))
            return failed(reply, size, "%s: got \"%.40s\"; allowed are 0 to %llu%s", name, text ? text : "",
                          (unsigned long long)setting->most, override ? " or auto" : "");
        card_follow_load(card); /* the energy up to now, at the old power */
        store(card, setting, 0, value);
        if (override) *override = true;
        if (!strcmp(name, "fan")) sim.page->cards[card].unsupported &= ~(1ull << SIM_METRIC_FAN);
        card_follow_load(card);
        return SIM_OK;
    }
    int n = snprintf(reply, size, "name: got \"%.40s\"; allowed is one of", name ? name : "");
    for (size_t i = 0; i < COUNT(settings); i++)
        n += snprintf(reply + n, size - (size_t)n, " %s", settings[i].name);
    return SIM_INVALID;
}

static int set_link(unsigned card, const char *link_text, const char *name, const char *text, char *reply,
                    size_t size) {
    uint64_t link, value;
    unsigned links = sim.page->cards[card].model.nvlinks;
    if (!number(link_text, links - 1, &link))
        return failed(reply, size, "link: got \"%.40s\"; allowed are 0 to %u", link_text ? link_text : "", links - 1);
    for (size_t i = 0; name && i < COUNT(link_settings); i++) {
        if (strcmp(link_settings[i].name, name)) continue;
        if (!number(text, link_settings[i].most, &value))
            return failed(reply, size, "%s: got \"%.40s\"; allowed are 0 to %llu", name, text ? text : "",
                          (unsigned long long)link_settings[i].most);
        store(card, &link_settings[i], (unsigned)link, value);
        return SIM_OK;
    }
    return failed(reply, size, "name: got \"%.40s\"; allowed is one of up tx-kib rx-kib replays recoveries crc-errors",
                  name ? name : "");
}

static int support(unsigned card, const char *name, bool supported, char *reply, size_t size) {
    for (unsigned i = 0; name && i < SIM_METRIC_COUNT; i++) {
        if (strcmp(metric_names[i], name)) continue;
        page_write_begin();
        if (supported) sim.page->cards[card].unsupported &= ~(1ull << i);
        else sim.page->cards[card].unsupported |= 1ull << i;
        page_write_end();
        return SIM_OK;
    }
    int n = snprintf(reply, size, "metric: got \"%.40s\"; allowed is one of", name ? name : "");
    for (unsigned i = 0; i < SIM_METRIC_COUNT; i++)
        n += snprintf(reply + n, size - (size_t)n, " %s", metric_names[i]);
    return SIM_INVALID;
}

static void set_lost(unsigned index, bool lost) {
    card_follow_load(index);
    page_write_begin();
    sim.page->cards[index].lost = lost;
    sim.page->cards[index].energy_at_ns = now_ns();
    page_write_end();
    if (lost) card_xid(index, 79); /* "GPU has fallen off the bus" */
}

static int state_json(char *reply, size_t size) {
    timed_advance_all(); /* so that times are those of now */
    size_t n = (size_t)snprintf(reply, size, "{\"timed\":%s,\"clock_ns\":%llu,\"clients\":%u,\"xids\":%u,\"cards\":[",
                                sim.page->timed ? "true" : "false", (unsigned long long)now_ns(), sim.client_count,
                                sim.page->xid_count);
    for (unsigned i = 0; i < sim.page->card_count; i++) {
        const struct sim_card *card = &sim.page->cards[i];
        n += (size_t)snprintf(reply + n, size - n,
                              "%s{\"index\":%u,\"model\":\"%s\",\"name\":\"%s\",\"uuid\":\"%s\","
                              "\"memory_bytes\":%llu,\"used_bytes\":%llu,\"contexts\":%u,\"lost\":%s,\"busy_ns\":%llu}",
                              i ? "," : "", i, card->model.slug, card->model.name, card->uuid,
                              (unsigned long long)card->model.memory_bytes, (unsigned long long)card->used,
                              card->contexts, card->lost ? "true" : "false",
                              (unsigned long long)sim.cards[i].total_ns);
    }
    n += (size_t)snprintf(reply + n, size - n, "],\"processes\":[");
    bool first = true;
    for (const struct client *client = sim.clients; client && n + 512 < size; client = client->next)
        for (unsigned i = 0; i < SIM_MAX_PLACES; i++)
            if (client->used[i]) {
                n += (size_t)snprintf(reply + n, size - n,
                                      "%s{\"pid\":%d,\"card\":%u,\"used_bytes\":%llu,\"busy_ns\":%llu}",
                                      first ? "" : ",", (int)client->pid, i, (unsigned long long)client->used[i],
                                      (unsigned long long)(client->queues[i] ? client->queues[i]->total_ns : 0));
                first = false;
            }
    snprintf(reply + n, size - n, "]}");
    return SIM_OK;
}

static const char commands[] =
    "state | set CARD NAME VALUE | link CARD LINK NAME VALUE | unsupported CARD METRIC | supported CARD METRIC | "
    "xid CARD CODE | refuse CARD N | lose CARD | restore CARD | limits-below-usage accept|refuse|ignore | kernel-wave-ns N | slice-ns N | quit-when-unused | quit";

int control_run(char *line, char *reply, size_t size) {
    char *save = NULL, *words[6] = {0};
    for (int i = 0; i < 6; i++)
        if (!(words[i] = strtok_r(i ? NULL : line, " \t\n", &save))) break;
    const char *verb = words[0] ? words[0] : "";
    uint64_t card, value;
    if (!strcmp(verb, "state")) return state_json(reply, size);
    if (!strcmp(verb, "quit")) return sim.quit = true, SIM_OK;
    if (!strcmp(verb, "quit-when-unused")) return sim.quit_when_unused = true, SIM_OK;
    if (!strcmp(verb, "limits-below-usage")) {
        static const char *const words_[] = {"accept", "refuse", "ignore"};
        for (unsigned i = 0; i < COUNT(words_); i++)
            if (words[1] && !strcmp(words[1], words_[i])) return sim.below_usage = (enum below_usage)i, SIM_OK;
        return failed(reply, size, "limits-below-usage: got \"%.40s\"; allowed is one of accept refuse ignore",
                      words[1] ? words[1] : "");
    }
    if (!strcmp(verb, "kernel-wave-ns") || !strcmp(verb, "slice-ns")) {
        if (!number(words[1], 60000000000ull, &value) || !value)
            return failed(reply, size, "%s: got \"%.40s\"; allowed are 1 to 60000000000", verb,
                          words[1] ? words[1] : "");
        if (*verb == 'k') sim.page->kernel_wave_ns = value;
        else sim.slice_ns = value;
        return SIM_OK;
    }
    static const char *const with_card[] = {"set", "link", "unsupported", "supported", "xid", "refuse", "lose", "restore"};
    bool known = false;
    for (size_t i = 0; i < COUNT(with_card); i++) known |= !strcmp(verb, with_card[i]);
    if (!known) return failed(reply, size, "command: got \"%.40s\"; allowed: %s", verb, commands);
    if (!number(words[1], sim.page->card_count - 1, &card))
        return failed(reply, size, "card: got \"%.40s\"; allowed are 0 to %u", words[1] ? words[1] : "",
                      sim.page->card_count - 1);
    unsigned index = (unsigned)card;
    if (!strcmp(verb, "set")) return set_value(index, words[2], words[3], reply, size);
    if (!strcmp(verb, "link")) return set_link(index, words[2], words[3], words[4], reply, size);
    if (!strcmp(verb, "unsupported")) return support(index, words[2], false, reply, size);
    if (!strcmp(verb, "supported")) return support(index, words[2], true, reply, size);
    if (!strcmp(verb, "refuse")) {
        if (!number(words[2], UINT64_MAX, &value))
            return failed(reply, size, "refusals: got \"%.40s\"; allowed are 0 to %llu", words[2] ? words[2] : "",
                          (unsigned long long)UINT64_MAX);
        sim.cards[index].refusals = value;
        return SIM_OK;
    }
    if (!strcmp(verb, "xid")) {
        if (!number(words[2], 65535, &value))
            return failed(reply, size, "code: got \"%.40s\"; allowed are 0 to 65535", words[2] ? words[2] : "");
        card_xid(index, (uint32_t)value);
        return SIM_OK;
    }
    set_lost(index, !strcmp(verb, "lose"));
    return SIM_OK;
}
