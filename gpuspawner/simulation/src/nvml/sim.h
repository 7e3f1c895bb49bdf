/* The simulated NVML's own header: values and layouts are NVML's binary interface. */
#ifndef GPUSPAWNER_SIM_NVML_H
#define GPUSPAWNER_SIM_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/client.h"

#define API __attribute__((visibility("default"))) nvmlReturn
#define ALIAS(name, of) extern __typeof__(of) name __attribute__((alias(#of), visibility("default")))

typedef enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_GPU_IS_LOST = 15,
    NVML_IN_USE = 19,
    NVML_NO_DATA = 21,
    NVML_INSUFFICIENT_RESOURCES = 23,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999,
} nvmlReturn;

typedef struct device {
    unsigned index;
} *nvmlDevice;

#define NOT_AVAILABLE_U64 UINT64_MAX
#define DRIVER_VERSION_TEXT "615.71.00"
#define CUDA_VERSION_NUMBER 13050

/* The page after checking that NVML is initialised and the daemon there. */
nvmlReturn page_get(const struct sim_page **page);
/* A consistent copy of the card's state. Lost cards: NVML_GPU_IS_LOST, unless `facts` only are wanted. */
nvmlReturn card_get(nvmlDevice device, struct sim_card *card, bool facts);
nvmlReturn device_at(unsigned index, nvmlDevice *device);
uint64_t energy_mj(const struct sim_card *card);
int64_t wall_us(void);
nvmlReturn copy_text(char *out, unsigned size, const char *text);

#define CARD(device, card) struct sim_card card; \
    do { nvmlReturn got_ = card_get(device, &card, false); if (got_) return got_; } while (0)
#define FACTS(device, card) struct sim_card card; \
    do { nvmlReturn got_ = card_get(device, &card, true); if (got_) return got_; } while (0)
#define LACKS(card, metric) ((card).unsupported >> (metric) & 1)
#define NEED_METRIC(card, metric) do { if (LACKS(card, metric)) return NVML_NOT_SUPPORTED; } while (0)
#define NEED(pointer) do { if (!(pointer)) return NVML_INVALID_ARGUMENT; } while (0)

#endif
