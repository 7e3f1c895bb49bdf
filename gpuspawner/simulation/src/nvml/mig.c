/* MIG through NVML: mode, profiles, GPU instances with one compute instance each, handles of MIG devices. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "../common/mig.h"
#include "sim.h"

#define NAME_SIZE 96

struct placement { unsigned start, size; };
struct gpu_profile {
    unsigned id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
};
struct gpu_profile_v2 {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    unsigned long long memory_mib;
    char name[NAME_SIZE];
};
struct compute_profile { unsigned id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa; };
struct compute_profile_v2 {
    unsigned version, id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    char name[NAME_SIZE];
};
struct gpu_instance_info { nvmlDevice device; unsigned id, profile; struct placement placement; };
struct compute_instance_info {
    nvmlDevice device;
    nvmlDevice gpu_instance;
    unsigned id, profile;
    struct placement placement;
};
struct attributes {
    unsigned multiprocessors, copy, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    unsigned long long memory_mib;
};

/* Handles of GPU instances, compute instances and MIG devices are all the slice's device. */
static nvmlReturn slice_get(nvmlDevice handle, struct sim_card *slice) {
    nvmlReturn result = card_get(handle, slice, false);
    if (result) return result;
    return slice->slice ? NVML_SUCCESS : NVML_INVALID_ARGUMENT;
}

static nvmlReturn result_of(int status) {
    switch (status) {
    case SIM_OK: return NVML_SUCCESS;
    case SIM_NOT_SUPPORTED: return NVML_NOT_SUPPORTED;
    case SIM_NOT_FOUND: return NVML_NOT_FOUND;
    case SIM_IN_USE: return NVML_IN_USE;
    case SIM_NO_ROOM: return NVML_INSUFFICIENT_RESOURCES;
    case SIM_DENIED: return NVML_NO_PERMISSION;
    case SIM_CARD_LOST: return NVML_GPU_IS_LOST;
    case SIM_GONE: return NVML_DRIVER_NOT_LOADED;
    case SIM_INVALID: return NVML_INVALID_ARGUMENT;
    default: return NVML_UNKNOWN;
    }
}

API nvmlDeviceGetMigMode(nvmlDevice device, unsigned *current, unsigned *pending) {
    CARD(device, card);
    if (!current || !pending) return NVML_INVALID_ARGUMENT;
    if (card.slice || !mig_supported(&card.model)) return NVML_NOT_SUPPORTED;
    *current = *pending = card.mig_mode;
    return NVML_SUCCESS;
}

API nvmlDeviceSetMigMode(nvmlDevice device, unsigned mode, nvmlReturn *activation) {
    CARD(device, card);
    NEED(activation);
    if (mode > 1) return NVML_INVALID_ARGUMENT;
    nvmlReturn result = result_of(sim_call(SIM_MIG_MODE, device->index, mode, NULL, NULL));
    *activation = result == NVML_IN_USE ? NVML_IN_USE : NVML_SUCCESS;
    return result == NVML_IN_USE ? NVML_SUCCESS : result;
}

API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice device, unsigned *count) {
    CARD(device, card);
    NEED(count);
    *count = mig_supported(&card.model) && !card.slice ? MIG_COMPUTE_SLICES : 0;
    return NVML_SUCCESS;
}

API nvmlDeviceIsMigDeviceHandle(nvmlDevice device, unsigned *is) {
    FACTS(device, card);
    NEED(is);
    *is = card.slice;
    return NVML_SUCCESS;
}

/* ---- profiles ---- */
static void describe(const struct mig_profile *profile, const struct sim_card *card, struct gpu_profile_v2 *out) {
    unsigned version = out->version;
    *out = (struct gpu_profile_v2){.version = version, .id = profile->id, .slices = profile->compute,
                                   .instances = profile->most, .copy = profile->copy_engines,
                                   .multiprocessors = mig_multiprocessors(profile, &card->model),
                                   .memory_mib = mig_memory(profile, &card->model) >> 20};
    char name[32];
    mig_name(profile, &card->model, name, sizeof name);
    snprintf(out->name, sizeof out->name, "MIG %s", name);
}

static nvmlReturn profile_at(nvmlDevice device, unsigned number, bool by_id, struct gpu_profile_v2 *out) {
    CARD(device, card);
    NEED(out);
    if (card.slice || !mig_supported(&card.model)) return NVML_NOT_SUPPORTED;
    for (unsigned i = 0; i < MIG_PROFILES; i++)
        if ((by_id ? mig_profiles[i].id : mig_profiles[i].nvml_profile) == number)
            return describe(&mig_profiles[i], &card, out), NVML_SUCCESS;
    return NVML_NOT_SUPPORTED;
}

API nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice device, unsigned number, struct gpu_profile_v2 *out) {
    NEED(out);
    if (out->version != (2u << 24 | (unsigned)sizeof *out)) return NVML_ARGUMENT_VERSION_MISMATCH;
    return profile_at(device, number, false, out);
}

API nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice device, unsigned id, struct gpu_profile_v2 *out) {
    NEED(out);
    if (out->version != (2u << 24 | (unsigned)sizeof *out)) return NVML_ARGUMENT_VERSION_MISMATCH;
    return profile_at(device, id, true, out);
}

API nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice device, unsigned number, struct gpu_profile *out) {
    struct gpu_profile_v2 full = {0};
    NEED(out);
    nvmlReturn result = profile_at(device, number, false, &full);
    if (!result)
        *out = (struct gpu_profile){full.id, 0, full.slices, full.instances, full.multiprocessors, full.copy,
                                    0, 0, 0, 0, full.memory_mib};
    return result;
}

/* Which memory slices and how many compute slices of a card are taken. */
static unsigned taken(const struct sim_page *page, unsigned card, unsigned *compute) {
    unsigned memory = 0;
    *compute = 0;
    for (unsigned place = SIM_MAX_CARDS; place < SIM_MAX_PLACES; place++) {
        struct sim_card slice;
        sim_read(page, &slice, &page->cards[place], sizeof slice);
        if (!slice.slice || slice.parent != card) continue;
        memory |= ((1u << slice.size) - 1) << slice.start;
        *compute += mig_profile_of_id(slice.profile)->compute;
    }
    return memory;
}

API nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice device, unsigned id, unsigned *count) {
    CARD(device, card);
    NEED(count);
    const struct mig_profile *profile = mig_profile_of_id(id);
    if (!profile) return NVML_INVALID_ARGUMENT;
    if (!card.mig_mode) return NVML_NOT_SUPPORTED;
    unsigned compute, memory = taken(sim_page(), device->index, &compute);
    *count = 0;
    for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++) {
        unsigned mask = ((1u << profile->memory) - 1) << start;
        if (!(profile->starts >> start & 1) || memory & mask || compute + profile->compute > MIG_COMPUTE_SLICES) continue;
        memory |= mask;
        compute += profile->compute;
        ++*count;
    }
    return NVML_SUCCESS;
}

API nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice device, unsigned id, struct placement *list, unsigned *count) {
    CARD(device, card);
    NEED(count);
    const struct mig_profile *profile = mig_profile_of_id(id);
    if (!profile) return NVML_INVALID_ARGUMENT;
    if (card.slice || !mig_supported(&card.model)) return NVML_NOT_SUPPORTED;
    unsigned found = 0, room = list ? *count : 0;
    for (unsigned start = 0; start < MIG_MEMORY_SLICES; start++) {
        if (!(profile->starts >> start & 1)) continue;
        if (found < room) list[found] = (struct placement){start, profile->memory};
        found++;
    }
    *count = found;
    return list && found > room ? NVML_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

/* ---- GPU instances ---- */
static nvmlReturn create(nvmlDevice device, unsigned id, unsigned start, nvmlDevice *made) {
    CARD(device, card);
    NEED(made);
    uint64_t place;
    int status = sim_call(SIM_MIG_CREATE, device->index, (uint64_t)start << 32 | id, &place, NULL);
    return status ? result_of(status) : device_at((unsigned)place, made);
}

API nvmlDeviceCreateGpuInstance(nvmlDevice device, unsigned id, nvmlDevice *made) {
    return create(device, id, SIM_ANY_START, made);
}

API nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice device, unsigned id, const struct placement *at, nvmlDevice *made) {
    NEED(at);
    return create(device, id, at->start, made);
}

API nvmlGpuInstanceDestroy(nvmlDevice instance) {
    struct sim_card slice;
    nvmlReturn result = slice_get(instance, &slice);
    return result ? result : result_of(sim_call(SIM_MIG_DESTROY, instance->index, 0, NULL, NULL));
}

API nvmlGpuInstanceGetInfo(nvmlDevice instance, struct gpu_instance_info *info) {
    struct sim_card slice;
    nvmlReturn result = slice_get(instance, &slice);
    if (result) return result;
    NEED(info);
    *info = (struct gpu_instance_info){.id = slice.gpu_instance, .profile = slice.profile,
                                       .placement = {slice.start, slice.size}};
    return device_at(slice.parent, &info->device);
}

/* The n-th slice of a card that fits: of a profile, with an instance id, or with compute; place or 0. */
static unsigned find_slice(unsigned card, int profile, int instance, bool compute, unsigned number) {
    const struct sim_page *page = sim_page();
    for (unsigned place = SIM_MAX_CARDS; page && place < SIM_MAX_PLACES; place++) {
        struct sim_card slice;
        sim_read(page, &slice, &page->cards[place], sizeof slice);
        if (!slice.slice || slice.parent != card || (compute && !slice.has_compute)) continue;
        if ((profile >= 0 && slice.profile != (unsigned)profile) ||
            (instance >= 0 && slice.gpu_instance != (unsigned)instance)) continue;
        if (!number--) return place;
    }
    return 0;
}

API nvmlDeviceGetGpuInstances(nvmlDevice device, unsigned id, nvmlDevice *list, unsigned *count) {
    CARD(device, card);
    if (!list || !count) return NVML_INVALID_ARGUMENT;
    if (!card.mig_mode) return NVML_NOT_SUPPORTED;
    unsigned found = 0, place;
    while ((place = find_slice(device->index, (int)id, -1, false, found))) device_at(place, &list[found++]);
    *count = found;
    return NVML_SUCCESS;
}

API nvmlDeviceGetGpuInstanceById(nvmlDevice device, unsigned id, nvmlDevice *instance) {
    CARD(device, card);
    NEED(instance);
    unsigned place = find_slice(device->index, -1, (int)id, false, 0);
    return place ? device_at(place, instance) : NVML_NOT_FOUND;
}

/* ---- compute instances: one that fills its GPU instance ---- */
static nvmlReturn compute_profile(nvmlDevice instance, unsigned number, struct compute_profile_v2 *out) {
    struct sim_card slice;
    nvmlReturn result = slice_get(instance, &slice);
    if (result) return result;
    const struct mig_profile *profile = mig_profile_of_id(slice.profile);
    static const unsigned numbers[] = {[1] = 0, [2] = 1, [3] = 2, [4] = 3, [7] = 4};
    if (numbers[profile->compute] != number) return NVML_NOT_SUPPORTED;
    unsigned version = out->version;
    *out = (struct compute_profile_v2){.version = version, .id = number, .slices = profile->compute, .instances = 1,
                                       .multiprocessors = slice.model.sm_count, .copy = profile->copy_engines};
    const char *name = strstr(slice.model.name, "MIG ");
    snprintf(out->name, sizeof out->name, "%.*s", (int)strcspn(name, "("), name);
    return NVML_SUCCESS;
}

API nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlDevice instance, unsigned number, unsigned engine,
                                                  struct compute_profile_v2 *out) {
    NEED(out);
    if (out->version != (2u << 24 | (unsigned)sizeof *out)) return NVML_ARGUMENT_VERSION_MISMATCH;
    return engine ? NVML_NOT_SUPPORTED : compute_profile(instance, number, out);
}

API nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlDevice instance, unsigned number, unsigned engine,
                                                 struct compute_profile *out) {
    struct compute_profile_v2 full = {0};
    NEED(out);
    nvmlReturn result = engine ? NVML_NOT_SUPPORTED : compute_profile(instance, number, &full);
    if (!result)
        *out = (struct compute_profile){full.id, full.slices, full.instances, full.multiprocessors, full.copy, 0, 0, 0, 0};
    return result;
}

API nvmlGpuInstanceCreateComputeInstance(nvmlDevice instance, unsigned id, nvmlDevice *made) {
    struct compute_profile_v2 profile = {0};
    NEED(made);
    nvmlReturn result = compute_profile(instance, id, &profile);
    if (result) return result == NVML_NOT_SUPPORTED ? NVML_INVALID_ARGUMENT : result;
    *made = instance;
    return result_of(sim_call(SIM_MIG_COMPUTE, instance->index, 1, NULL, NULL));
}

API nvmlComputeInstanceDestroy(nvmlDevice instance) {
    struct sim_card slice;
    nvmlReturn result = slice_get(instance, &slice);
    return result ? result : result_of(sim_call(SIM_MIG_COMPUTE, instance->index, 0, NULL, NULL));
}

API nvmlGpuInstanceGetComputeInstanceById(nvmlDevice instance, unsigned id, nvmlDevice *compute) {
    struct sim_card slice;
    nvmlReturn result = slice_get(instance, &slice);
    if (result) return result;
    NEED(compute);
    if (id || !slice.has_compute) return NVML_NOT_FOUND;
    *compute = instance;
    return NVML_SUCCESS;
}

API nvmlGpuInstanceGetComputeInstances(nvmlDevice instance, unsigned id, nvmlDevice *list, unsigned *count) {
    struct compute_profile_v2 profile = {0};
    if (!list || !count) return NVML_INVALID_ARGUMENT;
    nvmlReturn result = compute_profile(instance, id, &profile);
    if (result) return result;
    *count = nvmlGpuInstanceGetComputeInstanceById(instance, 0, list) == NVML_SUCCESS;
    return NVML_SUCCESS;
}

API nvmlComputeInstanceGetInfo_v2(nvmlDevice compute, struct compute_instance_info *info) {
    struct sim_card slice;
    nvmlReturn result = slice_get(compute, &slice);
    if (result) return result;
    NEED(info);
    if (!slice.has_compute) return NVML_INVALID_ARGUMENT;
    const struct mig_profile *profile = mig_profile_of_id(slice.profile);
    *info = (struct compute_instance_info){.gpu_instance = compute, .placement = {0, profile->compute}};
    static const unsigned numbers[] = {[1] = 0, [2] = 1, [3] = 2, [4] = 3, [7] = 4};
    info->profile = numbers[profile->compute];
    return device_at(slice.parent, &info->device);
}

/* ---- MIG devices ---- */
API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice device, unsigned index, nvmlDevice *mig) {
    CARD(device, card);
    NEED(mig);
    if (!card.mig_mode || index >= MIG_COMPUTE_SLICES) return NVML_NOT_FOUND;
    unsigned place = find_slice(device->index, -1, -1, true, index);
    return place ? device_at(place, mig) : NVML_NOT_FOUND;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice mig, nvmlDevice *device) {
    struct sim_card slice;
    nvmlReturn result = slice_get(mig, &slice);
    if (result) return result;
    NEED(device);
    return device_at(slice.parent, device);
}

API nvmlDeviceGetGpuInstanceId(nvmlDevice mig, unsigned *id) {
    struct sim_card slice;
    nvmlReturn result = slice_get(mig, &slice);
    if (result) return result;
    NEED(id);
    *id = slice.gpu_instance;
    return NVML_SUCCESS;
}

API nvmlDeviceGetComputeInstanceId(nvmlDevice mig, unsigned *id) {
    struct sim_card slice;
    nvmlReturn result = slice_get(mig, &slice);
    if (result) return result;
    NEED(id);
    *id = 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetAttributes_v2(nvmlDevice mig, struct attributes *out) {
    struct sim_card slice;
    nvmlReturn result = slice_get(mig, &slice);
    if (result) return result == NVML_INVALID_ARGUMENT ? NVML_NOT_SUPPORTED : result;
    NEED(out);
    const struct mig_profile *profile = mig_profile_of_id(slice.profile);
    *out = (struct attributes){.multiprocessors = slice.model.sm_count, .copy = profile->copy_engines,
                               .gpu_slices = profile->compute, .compute_slices = profile->compute,
                               .memory_mib = slice.model.memory_bytes >> 20};
    return NVML_SUCCESS;
}

/* ---- memory limits of cgroups ---- */
struct set_limits { const char *cgroup; unsigned long long soft, hard; };
struct get_limits { const char *cgroup; unsigned long long soft, hard, used; };

API nvmlDeviceSetMemoryLimits_v1(nvmlDevice device, const struct set_limits *limits) {
    CARD(device, card);
    if (!limits || !limits->cgroup) return NVML_INVALID_ARGUMENT;
    return result_of(sim_set_limits(device->index, limits->cgroup, limits->soft, limits->hard));
}

API nvmlDeviceGetMemoryLimits_v1(nvmlDevice device, struct get_limits *limits) {
    CARD(device, card);
    if (!limits || !limits->cgroup) return NVML_INVALID_ARGUMENT;
    struct sim_limits found;
    nvmlReturn result = result_of(sim_get_limits(device->index, limits->cgroup, &found));
    if (result) return result;
    limits->soft = found.soft;
    limits->hard = found.hard;
    limits->used = found.used;
    return NVML_SUCCESS;
}
