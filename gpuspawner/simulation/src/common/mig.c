/* Fractions, numbers of instances and the profiles' names: NVIDIA, MIG User Guide, "Supported MIG Profiles", tables for
 * A100, H100 and H200. Placements and profile ids: the same guide's examples of `nvidia-smi mig -lgip` and `-lgipp`;
 * multiprocessors: what `-lgip` prints for A100-SXM4 and H100-SXM5. The memory of a slice is the fraction of the card's
 * memory, in whole MiB; a real driver keeps some of it for itself. Profiles with media engines are left out. */
#include "mig.h"

#include <stdio.h>
#include <string.h>

#define MIB (1ull << 20)

const struct mig_profile mig_profiles[MIG_PROFILES] = {
    {.id = 19, .nvml_profile = 0, .compute = 1, .memory = 1, .starts = 0x7f, .most = 7,
     .multiprocessors_ampere = 14, .multiprocessors_hopper = 16, .copy_engines = 1},
    {.id = 15, .nvml_profile = 9, .compute = 1, .memory = 2, .starts = 0x55, .most = 4,
     .multiprocessors_ampere = 14, .multiprocessors_hopper = 26, .copy_engines = 1},
    {.id = 14, .nvml_profile = 1, .compute = 2, .memory = 2, .starts = 0x15, .most = 3,
     .multiprocessors_ampere = 28, .multiprocessors_hopper = 32, .copy_engines = 2},
    {.id = 9, .nvml_profile = 2, .compute = 3, .memory = 4, .starts = 0x11, .most = 2,
     .multiprocessors_ampere = 42, .multiprocessors_hopper = 60, .copy_engines = 3},
    {.id = 5, .nvml_profile = 3, .compute = 4, .memory = 4, .starts = 0x01, .most = 1,
     .multiprocessors_ampere = 56, .multiprocessors_hopper = 64, .copy_engines = 4},
    {.id = 0, .nvml_profile = 4, .compute = 7, .memory = 8, .starts = 0x01, .most = 1,
     .multiprocessors_ampere = 98, .multiprocessors_hopper = 132, .copy_engines = 8},
};

bool mig_supported(const struct sim_model *model) { return model->cc_major == 8 || model->cc_major == 9; }

const struct mig_profile *mig_profile_of_id(unsigned id) {
    for (unsigned i = 0; i < MIG_PROFILES; i++)
        if (mig_profiles[i].id == id) return &mig_profiles[i];
    return NULL;
}

unsigned mig_multiprocessors(const struct mig_profile *profile, const struct sim_model *model) {
    return model->cc_major == 8 ? profile->multiprocessors_ampere : profile->multiprocessors_hopper;
}

uint64_t mig_memory(const struct mig_profile *profile, const struct sim_model *model) {
    return model->memory_bytes * profile->memory / MIG_MEMORY_SLICES / MIB * MIB;
}

void mig_name(const struct mig_profile *profile, const struct sim_model *model, char *text, size_t size) {
    /* As printed on the card, which the model's slug ends with; halves are rounded as in the tables (17.6 is 18gb). */
    const char *dash = strrchr(model->slug, '-');
    unsigned whole = 0;
    sscanf(dash ? dash + 1 : "", "%u", &whole);
    snprintf(text, size, "%ug.%ugb", profile->compute, (whole * profile->memory + 4) / 8);
}
