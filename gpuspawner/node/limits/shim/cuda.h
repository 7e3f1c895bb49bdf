/* The part of the CUDA driver API that the shim stands in front of. Types are our own, so that no CUDA header is needed to
 * build: layouts and numbers are those of the driver's binary interface, which never change for a given symbol. */
#ifndef GPUSPAWNER_CUDA_H
#define GPUSPAWNER_CUDA_H

#include <stddef.h>

#include "common.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct pool_handle *CUmemoryPool;
typedef struct array *CUarray;
typedef struct graph_handle *CUgraph;
typedef struct graph_exec *CUgraphExec;
typedef struct graph_node *CUgraphNode;
typedef struct green_context *CUgreenCtx;
typedef unsigned long long CUmemGenericAllocationHandle;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
};

struct location { /* CUmemLocation */
    int type, id;
};
enum { LOCATION_DEVICE = 1 };

struct allocation_prop { /* CUmemAllocationProp and CUmemPoolProps start alike */
    int type, handle_types;
    struct location location;
};

struct array_descriptor { /* CUDA_ARRAY_DESCRIPTOR_v2 */
    size_t width, height;
    int format;
    unsigned channels;
};
struct array_descriptor_v1 {
    unsigned width, height;
    int format;
    unsigned channels;
};
struct array3d_descriptor { /* CUDA_ARRAY3D_DESCRIPTOR_v2 */
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct array3d_descriptor_v1 {
    unsigned width, height, depth;
    int format;
    unsigned channels, flags;
};

/* Every symbol that the shim exports: the symbol, the name by which cuGetProcAddress knows it, the CUDA version from which
 * that name means this symbol, and whether it is the form for the per-thread default stream. */
#define SYMBOLS(S)                                                                                                      \
    S(cuGetProcAddress, cuGetProcAddress, 11030, 0)                                                                     \
    S(cuGetProcAddress_v2, cuGetProcAddress, 12000, 0)                                                                  \
    S(cuInit, cuInit, 2000, 0)                                                                                          \
    S(cuMemGetInfo, cuMemGetInfo, 2000, 0)                                                                              \
    S(cuMemGetInfo_v2, cuMemGetInfo, 3020, 0)                                                                           \
    S(cuDeviceTotalMem, cuDeviceTotalMem, 2000, 0)                                                                      \
    S(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, 0)                                                                   \
    S(cuCtxCreate, cuCtxCreate, 2000, 0)                                                                                \
    S(cuCtxCreate_v2, cuCtxCreate, 3020, 0)                                                                             \
    S(cuCtxCreate_v3, cuCtxCreate, 11040, 0)                                                                            \
    S(cuCtxCreate_v4, cuCtxCreate, 12050, 0)                                                                            \
    S(cuCtxDestroy, cuCtxDestroy, 2000, 0)                                                                              \
    S(cuCtxDestroy_v2, cuCtxDestroy, 4000, 0)                                                                           \
    S(cuGLCtxCreate, cuGLCtxCreate, 2000, 0)                                                                            \
    S(cuGLCtxCreate_v2, cuGLCtxCreate, 3020, 0)                                                                         \
    S(cuVDPAUCtxCreate, cuVDPAUCtxCreate, 3010, 0)                                                                      \
    S(cuVDPAUCtxCreate_v2, cuVDPAUCtxCreate, 3020, 0)                                                                   \
    S(cuGreenCtxCreate, cuGreenCtxCreate, 12040, 0)                                                                     \
    S(cuGreenCtxDestroy, cuGreenCtxDestroy, 12040, 0)                                                                   \
    S(cuCtxFromGreenCtx, cuCtxFromGreenCtx, 12040, 0)                                                                   \
    S(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, 0)                                                      \
    S(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, 7000, 0)                                                    \
    S(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, 0)                                                \
    S(cuDevicePrimaryCtxReset, cuDevicePrimaryCtxReset, 7000, 0)                                                        \
    S(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, 0)                                                    \
    S(cuMemAlloc, cuMemAlloc, 2000, 0)                                                                                  \
    S(cuMemAlloc_v2, cuMemAlloc, 3020, 0)                                                                               \
    S(cuMemAllocPitch, cuMemAllocPitch, 2000, 0)                                                                        \
    S(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, 0)                                                                     \
    S(cuMemAllocManaged, cuMemAllocManaged, 6000, 0)                                                                    \
    S(cuMemFree, cuMemFree, 2000, 0)                                                                                    \
    S(cuMemFree_v2, cuMemFree, 3020, 0)                                                                                 \
    S(cuArrayCreate, cuArrayCreate, 2000, 0)                                                                            \
    S(cuArrayCreate_v2, cuArrayCreate, 3020, 0)                                                                         \
    S(cuArray3DCreate, cuArray3DCreate, 2000, 0)                                                                        \
    S(cuArray3DCreate_v2, cuArray3DCreate, 3020, 0)                                                                     \
    S(cuArrayDestroy, cuArrayDestroy, 2000, 0)                                                                          \
    S(cuMipmappedArrayCreate, cuMipmappedArrayCreate, 5000, 0)                                                          \
    S(cuMipmappedArrayDestroy, cuMipmappedArrayDestroy, 5000, 0)                                                        \
    S(cuMemCreate, cuMemCreate, 10020, 0)                                                                               \
    S(cuMemRelease, cuMemRelease, 10020, 0)                                                                             \
    S(cuMemMap, cuMemMap, 10020, 0)                                                                                     \
    S(cuMemUnmap, cuMemUnmap, 10020, 0)                                                                                 \
    S(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, 0)                                               \
    S(cuMemMapArrayAsync, cuMemMapArrayAsync, 11010, 0)                                                                 \
    S(cuMemMapArrayAsync_ptsz, cuMemMapArrayAsync, 11010, 1)                                                            \
    S(cuMemAllocAsync, cuMemAllocAsync, 11020, 0)                                                                       \
    S(cuMemAllocAsync_ptsz, cuMemAllocAsync, 11020, 1)                                                                  \
    S(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, 0)                                                       \
    S(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync, 11020, 1)                                                  \
    S(cuMemFreeAsync, cuMemFreeAsync, 11020, 0)                                                                         \
    S(cuMemFreeAsync_ptsz, cuMemFreeAsync, 11020, 1)                                                                    \
    S(cuMemPoolCreate, cuMemPoolCreate, 11020, 0)                                                                       \
    S(cuMemPoolDestroy, cuMemPoolDestroy, 11020, 0)                                                                     \
    S(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, 0)                                                                       \
    S(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, 0)                                                           \
    S(cuGraphInstantiate, cuGraphInstantiate, 10000, 0)                                                                 \
    S(cuGraphInstantiate_v2, cuGraphInstantiate, 11000, 0)                                                              \
    S(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, 0)                                               \
    S(cuGraphInstantiateWithParams, cuGraphInstantiateWithParams, 12000, 0)                                             \
    S(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams, 12000, 1)                                        \
    S(cuGraphExecDestroy, cuGraphExecDestroy, 10000, 0)                                                                 \
    S(cuGraphUpload, cuGraphUpload, 11010, 0)                                                                           \
    S(cuGraphUpload_ptsz, cuGraphUpload, 11010, 1)                                                                      \
    S(cuGraphLaunch, cuGraphLaunch, 10000, 0)                                                                           \
    S(cuGraphLaunch_ptsz, cuGraphLaunch, 10000, 1)                                                                      \
    S(cuDeviceGraphMemTrim, cuDeviceGraphMemTrim, 11040, 0)                                                             \
    S(cuLaunch, cuLaunch, 2000, 0)                                                                                      \
    S(cuLaunchGrid, cuLaunchGrid, 2000, 0)                                                                              \
    S(cuLaunchGridAsync, cuLaunchGridAsync, 2000, 0)                                                                    \
    S(cuLaunchKernel, cuLaunchKernel, 4000, 0)                                                                          \
    S(cuLaunchKernel_ptsz, cuLaunchKernel, 7000, 1)                                                                     \
    S(cuLaunchKernelEx, cuLaunchKernelEx, 11060, 0)                                                                     \
    S(cuLaunchKernelEx_ptsz, cuLaunchKernelEx, 11060, 1)                                                                \
    S(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000, 0)                                                    \
    S(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel, 9000, 1)                                               \
    S(cuLaunchCooperativeKernelMultiDevice, cuLaunchCooperativeKernelMultiDevice, 9000, 0)                              \
    S(cuStreamBeginCapture, cuStreamBeginCapture, 10000, 0)                                                             \
    S(cuStreamBeginCapture_ptsz, cuStreamBeginCapture, 10000, 1)                                                        \
    S(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, 0)                                                          \
    S(cuStreamBeginCapture_v2_ptsz, cuStreamBeginCapture, 10010, 1)                                                     \
    S(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030, 0)                                               \
    S(cuStreamBeginCaptureToGraph_ptsz, cuStreamBeginCaptureToGraph, 12030, 1)                                          \
    S(cuStreamEndCapture, cuStreamEndCapture, 10000, 0)                                                                 \
    S(cuStreamEndCapture_ptsz, cuStreamEndCapture, 10000, 1)                                                            \
    S(cuStreamSynchronize, cuStreamSynchronize, 2000, 0)                                                                \
    S(cuStreamSynchronize_ptsz, cuStreamSynchronize, 7000, 1)                                                           \
    S(cuEventSynchronize, cuEventSynchronize, 2000, 0)                                                                  \
    S(cuCtxSynchronize, cuCtxSynchronize, 2000, 0)                                                                      \
    S(cuCtxSynchronize_v2, cuCtxSynchronize, 13000, 0)

/* What we only call. */
#define HELPERS(S)                                                                                                      \
    S(cuCtxPushCurrent_v2, cuCtxPushCurrent, 4000, 0)                                                                   \
    S(cuCtxPopCurrent_v2, cuCtxPopCurrent, 4000, 0)                                                                     \
    S(cuStreamQuery, cuStreamQuery, 2000, 0)                                                                            \
    S(cuStreamQuery_ptsz, cuStreamQuery, 7000, 1)                                                                       \
    S(cuStreamGetCtx, cuStreamGetCtx, 9020, 0)                                                                          \
    S(cuEventCreate, cuEventCreate, 2000, 0)                                                                            \
    S(cuEventDestroy_v2, cuEventDestroy, 4000, 0)                                                                       \
    S(cuEventRecord, cuEventRecord, 2000, 0)                                                                            \
    S(cuEventRecord_ptsz, cuEventRecord, 7000, 1)                                                                       \
    S(cuEventQuery, cuEventQuery, 2000, 0)                                                                              \
    S(cuEventElapsedTime, cuEventElapsedTime, 2000, 0)                                                                  \
    S(cuEventElapsedTime_v2, cuEventElapsedTime, 12080, 0)                                                              \
    S(cuCtxGetDevice, cuCtxGetDevice, 2000, 0)                                                                          \
    S(cuCtxGetCurrent, cuCtxGetCurrent, 4000, 0)                                                                        \
    S(cuDeviceGetUuid, cuDeviceGetUuid, 9020, 0)                                                                        \
    S(cuDeviceGetUuid_v2, cuDeviceGetUuid, 11040, 0)                                                                    \
    S(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, 7000, 0)                                                  \
    S(cuDeviceGetMemPool, cuDeviceGetMemPool, 11020, 0)                                                                 \
    S(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, 0)                                                           \
    S(cuStreamGetDevice, cuStreamGetDevice, 12080, 0)                                                                   \
    S(cuStreamIsCapturing, cuStreamIsCapturing, 10000, 0)                                                               \
    S(cuStreamIsCapturing_ptsz, cuStreamIsCapturing, 10000, 1)                                                          \
    S(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, 0)                                   \
    S(cuDeviceGetGraphMemAttribute, cuDeviceGetGraphMemAttribute, 11040, 0)                                             \
    S(cuGraphGetNodes, cuGraphGetNodes, 10000, 0)                                                                       \
    S(cuGraphNodeGetType, cuGraphNodeGetType, 10000, 0)                                                                 \
    S(cuGraphMemAllocNodeGetParams, cuGraphMemAllocNodeGetParams, 11040, 0)                                             \
    S(cuGraphChildGraphNodeGetGraph, cuGraphChildGraphNodeGetGraph, 10000, 0)

enum symbol {
#define S(symbol, name, version, per_thread) SYM_##symbol,
    SYMBOLS(S) HELPERS(S)
#undef S
    SYMBOL_COUNT
};

/* cuda_entry.c. The driver's own function; NULL where the driver has none. */
extern void *_Atomic reals[SYMBOL_COUNT];
void *find_real(enum symbol symbol);
static inline void *real(enum symbol symbol)
{
    void *function = atomic_load_explicit(&reals[symbol], memory_order_acquire);
    return LIKELY(function != NULL) ? function : find_real(symbol);
}
/* Calls it; NOT_SUPPORTED where the driver has none. `type` is the parameter list. */
#ifdef __cppcheck__ /* which does not follow the other form */
#define REAL(symbol, type, ...) symbol(__VA_ARGS__)
#else
#define REAL(symbol, type, ...)                                                                                         \
    ({                                                                                                                  \
        CUresult(*function_) type = (CUresult(*) type)real(SYM_##symbol);                                               \
        function_ != NULL ? function_(__VA_ARGS__) : CUDA_ERROR_NOT_SUPPORTED;                                          \
    })
#endif

/* cuda_query.c: the card of a device, or of the current context; NO_CARD if it is none of the session's. The current one
 * fails as the driver does where there is no context. */
int card_of_device(CUdevice device);
CUresult current_card(int *card);
CUcontext current_context(void);

/* table.c: what the program holds, by handle or address. */
enum held_kind { HELD_PLAIN, HELD_ARRAY, HELD_POOLED, HELD_PHYSICAL, HELD_MAPPING, HELD_GRAPH };
struct held {
    uint64_t key;
    enum held_kind kind;
    int card;
    uint64_t bytes;
    void *owner; /* context, pool, physical allocation or graph, by kind */
};
bool table_put(const struct held *held);
bool table_take(enum held_kind kind, uint64_t key, struct held *held);
bool table_get(enum held_kind kind, uint64_t key, struct held *held);
/* Takes out everything that ends with a context, and gives its bytes back. */
void table_end_context(void *context);
void table_after_fork(void);

/* cuda_pool.c */
/* Reserves, and if there is no room lets pools give up what they keep unused, as the driver itself would. */
bool reserve(int card, uint64_t bytes);
/* Frees stream-ordered memory by cuMemFree. */
CUresult pools_free(CUdeviceptr address);
/* Brings the accounts of all pools up to date where they may have shrunk; nearly free where none has. */
void pools_settle(void);
/* A context ended, and with it perhaps what pools held. */
void pools_changed(void);
void pools_after_fork(void);
bool is_capturing(CUstream stream, bool per_thread);

/* cuda_vmm.c */
/* A sparse array, or all of a context, ended, and with it the hold that it had on physical memory. */
void vmm_array_ended(CUarray array);
void vmm_context_ended(CUcontext context);
void vmm_after_fork(void);

/* cuda_context.c: the context with which memory that is made in `context` ends. */
CUcontext contexts_owner(CUcontext context);
void contexts_after_fork(void);

/* cuda_graph.c: a context ended, and with it perhaps what the driver kept for graphs. */
void graphs_settle(void);
void graphs_after_fork(void);

/* cuda_review.c: a program asks for an entry point that is not ours. */
void review(const char *name);

#define GRANULE UINT64_C(512) /* the driver's smallest unit for plain memory */
static inline bool round_up(uint64_t value, uint64_t unit, uint64_t *out)
{
    if (value > UINT64_MAX - (unit - 1))
        return false;
    *out = (value + unit - 1) / unit * unit;
    return true;
}

#endif
