#ifndef GPUSPAWNER_SIM_MODELS_H
#define GPUSPAWNER_SIM_MODELS_H

#include "protocol.h"

/* The model with this slug ("h100-80gb"), or NULL. */
const struct sim_model *sim_model_find(const char *slug);
/* The i-th model, or NULL behind the last. */
const struct sim_model *sim_model_at(unsigned i);

#endif
