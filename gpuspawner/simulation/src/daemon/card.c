/* The cards: made from a specification, published in the shared page. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../common/models.h"
#include "daemon.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

struct state sim;

uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void page_write_begin(void) {
    __atomic_store_n(&sim.page->sequence, sim.page->sequence + 1, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
}

void page_write_end(void) {
    __atomic_store_n(&sim.page->sequence, sim.page->sequence + 1, __ATOMIC_RELEASE);
}

static void fill_card(struct sim_card *card, const struct sim_model *model, unsigned index, unsigned node) {
    card->model = *model;
    uint32_t hash = 2166136261u; /* FNV-1a of the slug, so that the UUID tells models apart */
    for (const char *c = model->slug; *c; c++) hash = (hash ^ (uint8_t)*c) * 16777619u;
    /* "51a1 ca4d" reads simulated card; the rest is node, model and index. */
    snprintf(card->uuid, sizeof card->uuid, "GPU-51a1ca4d-%04x-4000-8000-%04x%08x", node & 0xffff,
             hash & 0xffff, index);
    snprintf(card->serial, sizeof card->serial, "0%05u%07u", node & 0xffff, index + 1);
    card->pci_domain = 0;
    card->pci_bus = 0x10 + index;
    card->pci_slot = 0;
    card->power_limit_mw = model->power_limit_mw;
    card->energy_at_ns = now_ns();
    card->sm_clock_mhz = model->sm_clock_idle_mhz;
    card->memory_clock_mhz = model->memory_clock_mhz;
    card->throttle_reasons = 1; /* idle */
    card->pcie_gen = model->pcie_gen;
    card->pcie_width = model->pcie_width;
    for (uint32_t link = 0; link < model->nvlinks; link++) card->link_up[link] = 1;
    card->unsupported = 1u << SIM_METRIC_FAN; /* these boards have no fan of their own */
}

static bool parse_cards(const char *spec, unsigned node, char *error, size_t error_size) {
    char *copy = strdup(spec), *save = NULL;
    bool good = true;
    for (char *part = strtok_r(copy, ",", &save); part && good; part = strtok_r(NULL, ",", &save)) {
        while (*part == ' ') part++;
        unsigned long count = 1;
        char *star = strchr(part, '*'), *slug = part;
        if (star) {
            char *end;
            count = strtoul(part, &end, 10);
            if (end != star || part[0] < '0' || part[0] > '9') count = 0;
            slug = star + 1;
        }
        const struct sim_model *model = sim_model_find(slug);
        if (!model || !count || count > SIM_MAX_CARDS) {
            int n = snprintf(error, error_size, "cards: got \"%.40s\"; allowed is N*MODEL, joined by commas, "
                             "N from 1 to %d, MODEL one of", part, SIM_MAX_CARDS);
            for (unsigned i = 0; (model = sim_model_at(i)); i++)
                n += snprintf(error + n, error_size - (size_t)n, " %s", model->slug);
            good = false;
        }
        for (; good && count; count--) {
            if (sim.page->card_count == SIM_MAX_CARDS) {
                snprintf(error, error_size, "cards: got more than %d; allowed are 1 to %d", SIM_MAX_CARDS,
                         SIM_MAX_CARDS);
                good = false;
                break;
            }
            unsigned index = sim.page->card_count++;
            fill_card(&sim.page->cards[index], model, index, node);
        }
    }
    free(copy);
    if (good && !sim.page->card_count) {
        snprintf(error, error_size, "cards: got \"%.40s\"; allowed is N*MODEL, joined by commas", spec);
        good = false;
    }
    return good;
}

bool cards_create(const char *spec, unsigned node, bool timed, char *error, size_t error_size) {
    int fd = memfd_create("gpuspawner-simulation", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    size_t size = sizeof *sim.page;
    if (fd < 0 || ftruncate(fd, (off_t)size)) {
        snprintf(error, error_size, "cannot make the shared page: %m");
        return false;
    }
    sim.page = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (sim.page == MAP_FAILED) {
        snprintf(error, error_size, "cannot map the shared page: %m");
        return false;
    }
    /* From here on only our own mapping can write. Older kernels lack the seal; a descriptor opened for
     * reading keeps other users out there, too. */
    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    sim.page_fd = open(path, O_RDONLY | O_CLOEXEC);
    if (sim.page_fd >= 0) close(fd);
    else sim.page_fd = fd;
    sim.slice_ns = 2000000;
    sim.page->magic = SIM_MAGIC;
    sim.page->version = SIM_VERSION;
    sim.page->size = (uint32_t)size;
    sim.page->timed = timed;
    sim.page->kernel_wave_ns = 10000;
    sim.page->started_ns = now_ns();
    if (!parse_cards(spec, node, error, error_size)) return false;
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++) {
        sim.cards[i].now_ns = sim.cards[i].window_start_ns = now_ns();
        if (i < sim.page->card_count) card_follow_load(i);
    }
    sim.page->alive = 1;
    return true;
}

bool place_there(unsigned place) {
    if (place >= SIM_MAX_PLACES) return false;
    return place < SIM_MAX_CARDS ? place < sim.page->card_count : sim.page->cards[place].slice;
}

void card_follow_load(unsigned index) {
    struct sim_card *card = &sim.page->cards[index];
    struct daemon_card *own = &sim.cards[index];
    const struct sim_model *model = &card->model;
    page_write_begin();
    uint64_t now = now_ns();
    if (!card->lost) card->energy_nj += (now - card->energy_at_ns) / 1000 * card->power_mw;
    /* What is cut off below a microsecond is counted next time. */
    card->energy_at_ns = now - (now - card->energy_at_ns) % 1000;
    if (!own->has_utilization) {
        card->utilization = own->busy_percent;
        card->memory_utilization = own->busy_percent / 2;
    }
    uint32_t load = card->utilization > 100 ? 100 : card->utilization;
    if (!own->has_power)
        card->power_mw = model->power_idle_mw +
                         (uint32_t)((uint64_t)(card->power_limit_mw - model->power_idle_mw) * load / 100);
    if (!own->has_temperature) {
        card->temperature = 30 + (int32_t)load * 40 / 100;
        card->memory_temperature = card->temperature + 6;
    }
    if (!own->has_clocks) {
        bool awake = load || card->contexts;
        card->sm_clock_mhz = awake ? model->sm_clock_mhz : model->sm_clock_idle_mhz;
        card->memory_clock_mhz = model->memory_clock_mhz;
        if (awake) card->throttle_reasons &= ~1ull;
        else card->throttle_reasons |= 1;
    }
    page_write_end();
}

void card_xid(unsigned index, uint32_t code) {
    page_write_begin();
    uint64_t number = sim.page->xid_count + 1u;
    sim.page->xids[number % SIM_XID_RING] =
        (struct sim_xid){.number = number, .at_ns = now_ns(), .card = index, .code = code};
    page_write_end();
    __atomic_store_n(&sim.page->xid_count, (uint32_t)number, __ATOMIC_RELEASE);
    syscall(SYS_futex, &sim.page->xid_count, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}
