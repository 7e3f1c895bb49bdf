/* Contexts. The driver takes memory for each that no call asked for; how much, the node measures once per card and writes
 * into the limit file (`context_bytes`). That amount is charged before a context is made and given back when it ends, with
 * everything that lived in it. */
#include "throttle.h"

#include <pthread.h>

#define MOST_CONTEXTS 256
#define MOST_DEVICES 64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    CUcontext context;
    int card;
    uint64_t bytes;
} made[MOST_CONTEXTS];
static struct {
    bool charged;
    CUcontext context;
    int card;
    uint64_t bytes;
} primary[MOST_DEVICES];
static struct {
    CUgreenCtx green;
    CUcontext context; /* the one it gave out */
    CUdevice device;
} greens[MOST_CONTEXTS];
static _Atomic int green_contexts; /* places of `greens` below it may be in use; never falls */

void contexts_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    for (int i = 0; i < MOST_CONTEXTS; i++)
        made[i].context = NULL;
    for (int i = 0; i < MOST_DEVICES; i++)
        primary[i].charged = false;
    atomic_store(&green_contexts, 0);
}

/* A card without a limit has no memory: not even a context. */
static bool charge(CUdevice device, int *card, uint64_t *bytes)
{
    *card = card_of_device(device);
    struct card_limit limit = limits_of(*card);
    *bytes = limit.context_bytes;
    return limit.present && limit.memory_bytes > 0 && !limit.frozen && reserve(*card, *bytes);
}

static void forget(CUcontext context)
{
    samples_context_ended(context);
    table_end_context(context);
    vmm_context_ended(context);
    pools_changed();
    graphs_settle();
}

static CUresult keep(CUresult result, CUcontext *context, int card, uint64_t bytes)
{
    int free_place = 0;
    if (result != CUDA_SUCCESS) {
        accounts_release(card, bytes);
        return result;
    }
    pthread_mutex_lock(&lock);
    while (free_place < MOST_CONTEXTS && made[free_place].context != NULL)
        free_place++;
    if (free_place < MOST_CONTEXTS) { /* else it stays charged until the process ends */
        made[free_place].context = *context;
        made[free_place].card = card;
        made[free_place].bytes = bytes;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* Whether the device exists is the driver's to say, so an unknown one is passed on. */
#define CREATE(device, symbol, type, ...)                                                                               \
    int card;                                                                                                           \
    uint64_t bytes;                                                                                                     \
    if (context == NULL)                                                                                                \
        return CUDA_ERROR_INVALID_VALUE;                                                                                \
    if (!device_exists(device))                                                                                         \
        return REAL(symbol, type, __VA_ARGS__);                                                                         \
    if (!charge(device, &card, &bytes))                                                                                 \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                                \
    return keep(REAL(symbol, type, __VA_ARGS__), context, card, bytes)

static bool device_exists(CUdevice device)
{
    unsigned flags;
    int active;
    return REAL(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *), device, &flags, &active) == CUDA_SUCCESS;
}

EXPORT CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    CREATE(device, cuCtxCreate, (CUcontext *, unsigned, CUdevice), context, flags, device);
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    CREATE(device, cuCtxCreate_v2, (CUcontext *, unsigned, CUdevice), context, flags, device);
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *context, void *affinity, int count, unsigned flags, CUdevice device)
{
    CREATE(device, cuCtxCreate_v3, (CUcontext *, void *, int, unsigned, CUdevice), context, affinity, count, flags, device);
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned flags, CUdevice device)
{
    CREATE(device, cuCtxCreate_v4, (CUcontext *, void *, unsigned, CUdevice), context, parameters, flags, device);
}

/* ---- contexts for graphics interfaces; not in every driver ---- */
EXPORT CUresult cuGLCtxCreate(CUcontext *context, unsigned flags, CUdevice device)
{
    CREATE(device, cuGLCtxCreate, (CUcontext *, unsigned, CUdevice), context, flags, device);
}

EXPORT CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device)
{
    CREATE(device, cuGLCtxCreate_v2, (CUcontext *, unsigned, CUdevice), context, flags, device);
}

#define VDPAU_TYPE (CUcontext *, unsigned, CUdevice, uint32_t, void *)

EXPORT CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned flags, CUdevice device, uint32_t screen, void *lookup)
{
    CREATE(device, cuVDPAUCtxCreate, VDPAU_TYPE, context, flags, device, screen, lookup);
}

EXPORT CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device, uint32_t screen, void *lookup)
{
    CREATE(device, cuVDPAUCtxCreate_v2, VDPAU_TYPE, context, flags, device, screen, lookup);
}

static CUresult ended(CUresult result, CUcontext context)
{
    if (result != CUDA_SUCCESS)
        return result;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < MOST_CONTEXTS; i++) {
        if (context != NULL && made[i].context == context) {
            made[i].context = NULL;
            accounts_release(made[i].card, made[i].bytes);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    forget(context);
    return result;
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext context) { return ended(REAL(cuCtxDestroy_v2, (CUcontext), context), context); }

EXPORT CUresult cuCtxDestroy(CUcontext context) { return ended(REAL(cuCtxDestroy, (CUcontext), context), context); }

/* ---- the primary context: made at the first retain, gone when the driver says that it is not active ---- */
EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    if (device < 0 || device >= MOST_DEVICES || !device_exists(device))
        return REAL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), context, device);
    pthread_mutex_lock(&lock);
    CUresult result;
    if (!primary[device].charged && !charge(device, &primary[device].card, &primary[device].bytes)) {
        pthread_mutex_unlock(&lock);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    result = REAL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), context, device);
    if (result == CUDA_SUCCESS) {
        primary[device].charged = true;
        primary[device].context = *context;
    } else if (!primary[device].charged) {
        accounts_release(primary[device].card, primary[device].bytes);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

static CUresult primary_ended(CUresult result, CUdevice device)
{
    unsigned flags;
    int active = 1;
    if (result != CUDA_SUCCESS || device < 0 || device >= MOST_DEVICES)
        return result;
    pthread_mutex_lock(&lock);
    if (primary[device].charged &&
        REAL(cuDevicePrimaryCtxGetState, (CUdevice, unsigned *, int *), device, &flags, &active) == CUDA_SUCCESS &&
        active == 0) {
        primary[device].charged = false;
        accounts_release(primary[device].card, primary[device].bytes);
        forget(primary[device].context);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return primary_ended(REAL(cuDevicePrimaryCtxRelease_v2, (CUdevice), device), device);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return primary_ended(REAL(cuDevicePrimaryCtxRelease, (CUdevice), device), device);
}

EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return primary_ended(REAL(cuDevicePrimaryCtxReset_v2, (CUdevice), device), device);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return primary_ended(REAL(cuDevicePrimaryCtxReset, (CUdevice), device), device);
}

/* ---- green contexts: a part of the primary one, which lives as long as they do and owns their memory ---- */
EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *green, void *resources, CUdevice device, unsigned flags)
{
#define CALL REAL(cuGreenCtxCreate, (CUgreenCtx *, void *, CUdevice, unsigned), green, resources, device, flags)
    if (green == NULL || device < 0 || device >= MOST_DEVICES || !device_exists(device))
        return CALL;
    pthread_mutex_lock(&lock);
    bool new = !primary[device].charged;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!new || charge(device, &primary[device].card, &primary[device].bytes))
        result = CALL;
#undef CALL
    else
        new = false;
    if (result != CUDA_SUCCESS && new)
        accounts_release(primary[device].card, primary[device].bytes);
    if (result == CUDA_SUCCESS && new) {
        CUcontext context = NULL;
        primary[device].charged = true;
        if (REAL(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice), &context, device) == CUDA_SUCCESS)
            (void)REAL(cuDevicePrimaryCtxRelease_v2, (CUdevice), device);
        primary[device].context = context;
    }
    int count = atomic_load(&green_contexts), place = 0;
    while (place < count && greens[place].green != NULL)
        place++;
    if (result == CUDA_SUCCESS && place < MOST_CONTEXTS) {
        greens[place].green = *green;
        greens[place].context = NULL;
        greens[place].device = device;
        if (place == count)
            atomic_store(&green_contexts, count + 1);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
    CUresult result = REAL(cuGreenCtxDestroy, (CUgreenCtx), green);
    pthread_mutex_lock(&lock);
    for (int i = 0; result == CUDA_SUCCESS && i < atomic_load(&green_contexts); i++)
        if (greens[i].green == green)
            greens[i].green = NULL, greens[i].context = NULL;
    pthread_mutex_unlock(&lock);
    for (int device = 0; device < MOST_DEVICES; device++)
        (void)primary_ended(result, device);
    return result;
}

EXPORT CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx green)
{
    CUresult result = REAL(cuCtxFromGreenCtx, (CUcontext *, CUgreenCtx), context, green);
    pthread_mutex_lock(&lock);
    for (int i = 0; result == CUDA_SUCCESS && i < atomic_load(&green_contexts); i++)
        if (greens[i].green == green)
            greens[i].context = *context;
    pthread_mutex_unlock(&lock);
    return result;
}

CUcontext contexts_owner(CUcontext context)
{
    if (atomic_load_explicit(&green_contexts, memory_order_relaxed) == 0)
        return context;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < atomic_load(&green_contexts); i++) {
        if (greens[i].context == context && context != NULL) {
            context = primary[greens[i].device].context;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    return context;
}
