/* MIG: a card cut into slices. A slice is a place of its own behind the cards; one compute instance fills it. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "../common/mig.h"
#include "daemon.h"

static unsigned taken_memory(unsigned card) {
    unsigned taken = 0;
    for (unsigned place = SIM_MAX_CARDS; place < SIM_MAX_PLACES; place++) {
        const struct sim_card *slice = &sim.page->cards[place];
        if (slice->slice && slice->parent == card) taken |= ((1u << slice->size) - 1) << slice->start;
    }
    return taken;
}

static unsigned taken_compute(unsigned card) {
    unsigned taken = 0;
    for (unsigned place = SIM_MAX_CARDS; place < SIM_MAX_PLACES; place++) {
        const struct sim_card *slice = &sim.page->cards[place];
        if (slice->slice && slice->parent == card) taken += mig_profile_of_id(slice->profile)->compute;
    }
    return taken;
}

static bool has_slices(unsigned card) { return taken_memory(card); }

static int set_mode(unsigned card, bool on) {
    struct sim_card *at = &sim.page->cards[card];
    if (card >= SIM_MAX_CARDS || !mig_supported(&at->model)) return SIM_NOT_SUPPORTED;
    if (!at->mig_mode != !on && (at->used || has_slices(card))) return SIM_IN_USE;
    page_write_begin();
    at->mig_mode = on;
    page_write_end();
    return SIM_OK;
}

static unsigned free_instance_id(unsigned card) {
    for (unsigned id = 1;; id++) {
        bool used = false;
        for (unsigned place = SIM_MAX_CARDS; place < SIM_MAX_PLACES; place++) {
            const struct sim_card *slice = &sim.page->cards[place];
            used |= slice->slice && slice->parent == card && slice->gpu_instance == id;
        }
        if (!used) return id;
    }
}

static void fill_slice(struct sim_card *slice, unsigned card, const struct mig_profile *profile, unsigned start) {
    struct sim_card whole_copy = sim.page->cards[card]; /* the compiler cannot know that the two are apart */
    const struct sim_card *whole = &whole_copy;
    char name[32];
    *slice = *whole;
    slice->mig_mode = 0;
    slice->slice = 1;
    slice->parent = card;
    slice->profile = profile->id;
    slice->gpu_instance = free_instance_id(card);
    slice->start = start;
    slice->size = profile->memory;
    slice->used = slice->contexts = 0;
    slice->model.memory_bytes = mig_memory(profile, &whole->model);
    slice->model.sm_count = mig_multiprocessors(profile, &whole->model);
    slice->model.nvlinks = 0;
    mig_name(profile, &whole->model, name, sizeof name);
    size_t length = strlen(whole->model.name) - strlen(" (simulated)");
    snprintf(slice->model.name, sizeof slice->model.name, "%.*s MIG %s (simulated)", (int)length, whole->model.name, name);
    /* The uuid goes with the place on the card, as a real driver's does. */
    snprintf(slice->uuid, sizeof slice->uuid, "MIG%.15s5%.13s%02x%02x%02x00", whole->uuid + 3, whole->uuid + 19,
             card & 0xff, start & 0xff, profile->id & 0xff);
    /* What is read of a slice is its memory and processes; the rest is the card's. */
    slice->unsupported = ~(1ull << SIM_METRIC_MEMORY | 1ull << SIM_METRIC_PROCESSES | 1ull << SIM_METRIC_TEMPERATURE |
                           1ull << SIM_METRIC_ECC);
}

static int create(unsigned card, unsigned id, unsigned wanted, uint64_t *value) {
    const struct mig_profile *profile = mig_profile_of_id(id);
    struct sim_card *whole = &sim.page->cards[card];
    if (card >= SIM_MAX_CARDS || !whole->mig_mode) return SIM_NOT_SUPPORTED;
    if (whole->lost) return SIM_CARD_LOST;
    if (!profile || (wanted != SIM_ANY_START && (wanted >= MIG_MEMORY_SLICES || !(profile->starts >> wanted & 1))))
        return SIM_INVALID;
    if (taken_compute(card) + profile->compute > MIG_COMPUTE_SLICES) return SIM_NO_ROOM;
    unsigned taken = taken_memory(card);
    for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++) {
        unsigned mask = ((1u << profile->memory) - 1) << start;
        if (!(profile->starts >> start & 1) || (wanted != SIM_ANY_START && wanted != start) || taken & mask) continue;
        for (unsigned place = SIM_MAX_CARDS; place < SIM_MAX_PLACES; place++) {
            if (sim.page->cards[place].slice) continue;
            page_write_begin();
            fill_slice(&sim.page->cards[place], card, profile, start);
            page_write_end();
            *value = place;
            return SIM_OK;
        }
        return SIM_FULL;
    }
    return SIM_NO_ROOM;
}

static int set_compute(struct sim_card *slice, bool on) {
    if (!slice->slice) return SIM_NOT_FOUND;
    if (slice->has_compute == on) return on ? SIM_NO_ROOM : SIM_NOT_FOUND;
    if (slice->used) return SIM_IN_USE;
    page_write_begin();
    slice->has_compute = on;
    page_write_end();
    return SIM_OK;
}

int mig_request(const struct sim_request *request, uint64_t *value) {
    unsigned place = request->card;
    struct sim_card *at = &sim.page->cards[place];
    switch (request->op) {
    case SIM_MIG_MODE: return set_mode(place, request->bytes);
    case SIM_MIG_CREATE: return create(place, request->bytes & 0xffff, (request->bytes >> 32) & 0xffff, value);
    case SIM_MIG_COMPUTE: return place < SIM_MAX_CARDS ? SIM_INVALID : set_compute(at, request->bytes);
    default:
        if (place < SIM_MAX_CARDS) return SIM_INVALID;
        if (at->used || at->has_compute) return SIM_IN_USE;
        page_write_begin();
        memset(at, 0, sizeof *at);
        page_write_end();
        return SIM_OK;
    }
}
