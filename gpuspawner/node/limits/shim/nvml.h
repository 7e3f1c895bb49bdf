/* The part of NVML that the shim stands in front of; layouts and numbers are those of NVML's binary interface. */
#ifndef GPUSPAWNER_NVML_H
#define GPUSPAWNER_NVML_H

#include "common.h"

typedef int nvmlReturn_t;
typedef struct device *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
};

struct memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};
struct memory_v2 { /* nvmlMemory_v2_t */
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v1 { /* nvmlProcessInfo_v1_t */
    unsigned pid;
    unsigned long long used;
};
struct process_v2 { /* nvmlProcessInfo_v2_t, and nvmlProcessInfo_t of _v3 */
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct process_detail { /* nvmlProcessDetail_v1_t */
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
    unsigned long long used_protected;
};
struct process_details { /* nvmlProcessDetailList_v1_t */
    unsigned version, mode, count;
    struct process_detail *rows;
};
struct utilization { /* nvmlProcessUtilizationSample_t */
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
};
struct utilization_v1 { /* nvmlProcessUtilizationInfo_v1_t */
    unsigned long long time;
    unsigned pid, sm, memory, encoder, decoder, jpeg, flow;
};
struct utilizations { /* nvmlProcessesUtilizationInfo_v1_t */
    unsigned version, count;
    unsigned long long since;
    struct utilization_v1 *rows;
};

/* Calls the driver's own function. The caller's `function_` is looked up once per place. */
#ifdef __cppcheck__ /* which does not follow the other form */
#define REAL(name, type, ...) name(__VA_ARGS__)
#else
#define REAL(name, type, ...)                                                                                           \
    ({                                                                                                                  \
        static void *_Atomic known_;                                                                                    \
        void *function_ = atomic_load_explicit(&known_, memory_order_acquire);                                          \
        if (function_ == NULL)                                                                                          \
            atomic_store_explicit(&known_, function_ = driver_symbol(#name), memory_order_release);                     \
        function_ != NULL ? ((nvmlReturn_t(*) type)function_)(__VA_ARGS__) : NVML_ERROR_FUNCTION_NOT_FOUND;             \
    })
#endif

/* nvml_cards.c: the card of a handle; NO_CARD, and why in *result, if it is none of the session's. */
int card_of_handle(nvmlDevice_t device, nvmlReturn_t *result);

#endif
