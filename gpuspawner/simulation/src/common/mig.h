/* MIG profiles, the same for the daemon and NVML. */
#ifndef GPUSPAWNER_SIM_MIG_H
#define GPUSPAWNER_SIM_MIG_H

#include <stdbool.h>
#include <stddef.h>

#include "protocol.h"

#define MIG_MEMORY_SLICES 8
#define MIG_COMPUTE_SLICES 7
#define MIG_PROFILES 6

struct mig_profile {
    unsigned id;           /* the driver's: 19, 15, 14, 9, 5, 0 */
    unsigned nvml_profile; /* NVML_GPU_INSTANCE_PROFILE_* */
    unsigned compute, memory; /* slices: sevenths and eighths of the card */
    unsigned starts;          /* a bit for each memory slice at which it may begin */
    unsigned most;            /* instances on one card */
    unsigned multiprocessors_ampere, multiprocessors_hopper, copy_engines;
};

extern const struct mig_profile mig_profiles[MIG_PROFILES];
bool mig_supported(const struct sim_model *model);
const struct mig_profile *mig_profile_of_id(unsigned id);
unsigned mig_multiprocessors(const struct mig_profile *profile, const struct sim_model *model);
uint64_t mig_memory(const struct mig_profile *profile, const struct sim_model *model);
/* "1g.10gb": compute slices, and the printed size of the memory. */
void mig_name(const struct mig_profile *profile, const struct sim_model *model, char *text, size_t size);

#endif
