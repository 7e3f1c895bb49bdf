/* Contexts, primary ones included, and each thread's stack of current contexts. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MOST_CURRENT 128

static __thread struct {
    CUcontext stack[MOST_CURRENT];
    unsigned depth;
} current;

static uint64_t next_context_id = 1;

void context_after_fork(void) { current.depth = 0; }

CUresult context_current(CUcontext *context) {
    NEED_INIT();
    CUcontext top = current.depth ? current.stack[current.depth - 1] : NULL;
    if (!top) return CUDA_ERROR_INVALID_CONTEXT;
    if (!object_valid(top, KIND_CONTEXT)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (card_of(top)->lost) return CUDA_ERROR_UNKNOWN;
    *context = top;
    return CUDA_SUCCESS;
}

/* The lock is held. */
static CUresult create(int ordinal, unsigned flags, bool primary, CUcontext *out) {
    unsigned card = driver.card_of[ordinal];
    CUresult result = result_of(sim_call(SIM_CONTEXT_OPEN, card, 0, NULL, NULL));
    if (result) return result;
    CUcontext context = object_new(KIND_CONTEXT, sizeof *context);
    if (context) context->default_stream = stream_new(context, 0, 0);
    if (!context || !context->default_stream || (driver.page->timed && !channel_open(card))) {
        if (context) object_free(context);
        sim_call(SIM_CONTEXT_CLOSE, card, 0, NULL, NULL);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    context->ordinal = ordinal;
    context->card = card;
    context->flags = flags;
    context->primary = primary;
    context->id = next_context_id++;
    context->cache_config = 0;
    context->limits[0] = 1024;             /* stack */
    context->limits[1] = 7 << 20;          /* printf buffer */
    context->limits[2] = 8 << 20;          /* device heap */
    context->limits[3] = 2;
    context->limits[4] = 2048;
    context->limits[5] = 64;
    context->next = driver.contexts;
    driver.contexts = context;
    *out = context;
    return CUDA_SUCCESS;
}

/* The lock is held; its work has ended. */
static void destroy(CUcontext context) {
    memory_delete_of(context);
    arrays_delete_of(context);
    streams_delete_of(context);
    CUcontext *at = &driver.contexts;
    while (*at != context) at = &(*at)->next;
    *at = context->next;
    CUcontext other = driver.contexts;
    while (other && other->ordinal != context->ordinal) other = other->next;
    if (!other) {
        pools_delete_of(context->ordinal);
        graphs_delete_of(context->ordinal);
    }
    sim_call(SIM_CONTEXT_CLOSE, context->card, 0, NULL, NULL);
    object_free(context);
}

static CUresult create_and_push(CUcontext *context, unsigned flags, CUdevice device) {
    NEED_DEVICE(device);
    if (!context || flags & ~0xffu) return CUDA_ERROR_INVALID_VALUE;
    if (current.depth == MOST_CURRENT) return CUDA_ERROR_OPERATING_SYSTEM;
    LOCK();
    CUresult result = create(device, flags, false, context);
    UNLOCK();
    if (!result) current.stack[current.depth++] = *context;
    return result;
}

API cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device) {
    return create_and_push(context, flags, device);
}
ALIAS(cuCtxCreate, cuCtxCreate_v2);

API cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned flags, CUdevice device) {
    if (count && affinities) return CUDA_ERROR_NOT_SUPPORTED;
    return create_and_push(context, flags, device);
}

API cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device) {
    struct { void *affinities; int count; void *cig; } asked = {0};
    if (parameters) memcpy(&asked, parameters, sizeof asked);
    if (asked.count || asked.cig) return CUDA_ERROR_NOT_SUPPORTED;
    return create_and_push(context, flags, device);
}

API cuCtxDestroy_v2(CUcontext context) {
    NEED_INIT();
    if (!object_valid(context, KIND_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->primary) return CUDA_ERROR_INVALID_CONTEXT;
    context_wait(context);
    if (current.depth && current.stack[current.depth - 1] == context) current.depth--;
    LOCK();
    destroy(context);
    UNLOCK();
    return CUDA_SUCCESS;
}
ALIAS(cuCtxDestroy, cuCtxDestroy_v2);

API cuCtxPushCurrent_v2(CUcontext context) {
    NEED_INIT();
    if (!object_valid(context, KIND_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    if (current.depth == MOST_CURRENT) return CUDA_ERROR_OPERATING_SYSTEM;
    current.stack[current.depth++] = context;
    return CUDA_SUCCESS;
}
ALIAS(cuCtxPushCurrent, cuCtxPushCurrent_v2);

API cuCtxPopCurrent_v2(CUcontext *context) {
    NEED_INIT();
    if (!current.depth) return CUDA_ERROR_INVALID_CONTEXT;
    CUcontext top = current.stack[--current.depth];
    if (context) *context = top;
    return CUDA_SUCCESS;
}
ALIAS(cuCtxPopCurrent, cuCtxPopCurrent_v2);

API cuCtxSetCurrent(CUcontext context) {
    NEED_INIT();
    if (context && !object_valid(context, KIND_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    if (!context) {
        if (current.depth) current.depth--;
    } else if (current.depth) {
        current.stack[current.depth - 1] = context;
    } else {
        current.stack[current.depth++] = context;
    }
    return CUDA_SUCCESS;
}

API cuCtxGetCurrent(CUcontext *context) {
    NEED_INIT();
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = current.depth ? current.stack[current.depth - 1] : NULL;
    return CUDA_SUCCESS;
}

API cuCtxGetDevice(CUdevice *device) {
    NEED_CONTEXT(context);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context->ordinal;
    return CUDA_SUCCESS;
}

static CUresult given_or_current(CUcontext *context) {
    if (!*context) return context_current(context);
    NEED_INIT();
    return object_valid(*context, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuCtxGetDevice_v2(CUdevice *device, CUcontext context) {
    CUresult result = given_or_current(&context);
    if (result) return result;
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = context->ordinal;
    return CUDA_SUCCESS;
}

API cuCtxGetId(CUcontext context, unsigned long long *id) {
    CUresult result = given_or_current(&context);
    if (result) return result;
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = context->id;
    return CUDA_SUCCESS;
}

API cuCtxGetFlags(unsigned *flags) {
    NEED_CONTEXT(context);
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

API cuCtxSetFlags(unsigned flags) {
    NEED_CONTEXT(context);
    context->flags = flags;
    return CUDA_SUCCESS;
}

API cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    CUresult result = given_or_current(&context);
    if (result) return result;
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

API cuCtxSynchronize(void) {
    NEED_CONTEXT(context);
    return context_wait(context);
}

API cuCtxSynchronize_v2(CUcontext context) {
    CUresult result = given_or_current(&context);
    return result ? result : context_wait(context);
}

API cuCtxSetLimit(int limit, size_t value) {
    NEED_CONTEXT(context);
    if (limit < 0 || limit > 10) return CUDA_ERROR_INVALID_VALUE;
    if (limit > 6) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

API cuCtxGetLimit(size_t *value, int limit) {
    NEED_CONTEXT(context);
    if (!value || limit < 0 || limit > 10) return CUDA_ERROR_INVALID_VALUE;
    if (limit > 6) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

API cuCtxGetCacheConfig(int *config) {
    NEED_CONTEXT(context);
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = context->cache_config;
    return CUDA_SUCCESS;
}

API cuCtxSetCacheConfig(int config) {
    NEED_CONTEXT(context);
    if (config < 0 || config > 3) return CUDA_ERROR_INVALID_VALUE;
    context->cache_config = config;
    return CUDA_SUCCESS;
}

API cuCtxGetSharedMemConfig(int *config) {
    NEED_CONTEXT(context);
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    *config = context->shared_config ? context->shared_config : 1;
    return CUDA_SUCCESS;
}

API cuCtxSetSharedMemConfig(int config) {
    NEED_CONTEXT(context);
    if (config < 0 || config > 2) return CUDA_ERROR_INVALID_VALUE;
    context->shared_config = config;
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    NEED_CONTEXT(context);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}

API cuCtxResetPersistingL2Cache(void) {
    NEED_CONTEXT(context);
    return CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
    NEED_CONTEXT(context);
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    if (!object_valid(peer, KIND_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->ordinal == context->ordinal) return CUDA_ERROR_INVALID_DEVICE;
    unsigned bit = 1u << peer->ordinal;
    if (context->peers & bit) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= bit;
    return CUDA_SUCCESS;
}

API cuCtxDisablePeerAccess(CUcontext peer) {
    NEED_CONTEXT(context);
    if (!object_valid(peer, KIND_CONTEXT)) return CUDA_ERROR_INVALID_CONTEXT;
    unsigned bit = 1u << peer->ordinal;
    if (!(context->peers & bit)) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~bit;
    return CUDA_SUCCESS;
}

/* ---- primary contexts ---- */
API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    NEED_DEVICE(device);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult result = CUDA_SUCCESS;
    if (!driver.primary[device])
        result = create(device, driver.primary_flags[device], true, &driver.primary[device]);
    if (!result) {
        driver.primary[device]->retained++;
        *context = driver.primary[device];
    }
    UNLOCK();
    return result;
}

static CUresult primary_end(CUdevice device, bool reset) {
    NEED_DEVICE(device);
    LOCK();
    CUcontext context = driver.primary[device];
    if (!context) {
        UNLOCK();
        return reset ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    }
    if (!reset && --context->retained) {
        UNLOCK();
        return CUDA_SUCCESS;
    }
    driver.primary[device] = NULL;
    UNLOCK();
    context_wait(context);
    LOCK();
    destroy(context);
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuDevicePrimaryCtxRelease_v2(CUdevice device) { return primary_end(device, false); }
ALIAS(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2);

API cuDevicePrimaryCtxReset_v2(CUdevice device) { return primary_end(device, true); }
ALIAS(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset_v2);

API cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned flags) {
    NEED_DEVICE(device);
    LOCK();
    driver.primary_flags[device] = flags;
    if (driver.primary[device]) driver.primary[device]->flags = flags;
    UNLOCK();
    return CUDA_SUCCESS;
}
ALIAS(cuDevicePrimaryCtxSetFlags, cuDevicePrimaryCtxSetFlags_v2);

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    NEED_DEVICE(device);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    *flags = driver.primary_flags[device];
    *active = driver.primary[device] != NULL;
    return CUDA_SUCCESS;
}
