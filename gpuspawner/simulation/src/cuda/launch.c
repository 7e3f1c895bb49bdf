/* Launches: refused, or in timed mode queued for as long as the model says they take. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static CUresult refuse(void) {
    static bool said;
    if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
        fputs("gpuspawner: this is a simulated card, on which kernels are not computed; copies and memory are real\n",
              stderr);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* A kernel whose name ends in "_us" and digits takes that many microseconds. Any other takes one wave time
 * (control command kernel-wave-ns) for each time its threads fill the card. */
static uint64_t duration(CUcontext context, const char *name, uint64_t blocks, uint64_t threads) {
    const char *digits = name + strlen(name);
    while (digits > name && digits[-1] >= '0' && digits[-1] <= '9') digits--;
    if (*digits && digits - name >= 3 && !strncmp(digits - 3, "_us", 3)) return strtoull(digits, NULL, 10) * 1000;
    uint64_t room = (uint64_t)card_of(context)->model.sm_count * 2048;
    uint64_t all = blocks * threads;
    return (all + room - 1) / room * driver.page->kernel_wave_ns;
}

CUresult launch_duration(CUcontext context, CUfunction function, const struct size *size, uint64_t *duration_ns) {
    const char *name = function_name(function);
    if (!name) return CUDA_ERROR_INVALID_HANDLE;
    const unsigned *grid = size->grid, *block = size->block;
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2], threads = (uint64_t)block[0] * block[1] * block[2];
    if (!grid[0] || !grid[1] || !grid[2] || grid[0] > 0x7fffffff || grid[1] > 65535 || grid[2] > 65535 || !threads ||
        block[0] > 1024 || block[1] > 1024 || block[2] > 64 || threads > 1024 ||
        size->shared > card_of(context)->model.shared_per_block_optin)
        return CUDA_ERROR_INVALID_VALUE;
    if (!driver.page->timed) return refuse();
    *duration_ns = duration(context, name, blocks, threads);
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const struct size *size, CUstream handle) {
    struct stream *stream;
    struct operation operation = {.kind = OP_LAUNCH};
    CUresult result = stream_of(handle, &stream);
    if (!result) result = launch_duration(stream->context, function, size, &operation.duration_ns);
    return result ? result : stream_submit(stream, &operation);
}

API cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, CUstream stream, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    return launch(function, &(struct size){{gx, gy, gz}, {bx, by, bz}, shared}, stream);
}
ALIAS(cuLaunchKernel_ptsz, cuLaunchKernel);

API cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz, unsigned shared, CUstream stream, void **parameters) {
    (void)parameters;
    return launch(function, &(struct size){{gx, gy, gz}, {bx, by, bz}, shared}, stream);
}
ALIAS(cuLaunchCooperativeKernel_ptsz, cuLaunchCooperativeKernel);

typedef struct { CUfunction function; struct size size; CUstream stream; void **parameters; } CUDA_LAUNCH_PARAMS;

API cuLaunchCooperativeKernelMultiDevice(const CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags) {
    (void)flags;
    if (!list || !count) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        CUresult result = (uintptr_t)list[i].stream <= 2 ? CUDA_ERROR_INVALID_VALUE
                                                         : launch(list[i].function, &list[i].size, list[i].stream);
        if (result) return result;
    }
    return CUDA_SUCCESS;
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    (void)parameters, (void)extra;
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    return launch(function,
                  &(struct size){{config->grid_x, config->grid_y, config->grid_z},
                                 {config->block_x, config->block_y, config->block_z}, config->shared_bytes},
                  config->stream);
}
ALIAS(cuLaunchKernelEx_ptsz, cuLaunchKernelEx);

/* ---- occupancy, from threads and shared memory; kernels are taken to use 32 registers ---- */
API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
    NEED_CONTEXT(context);
    if (!function_name(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (!blocks || threads < 1) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_model *model = &card_of(context)->model;
    int warps = (threads + 31) / 32, most = 64 / warps;
    if (most > 32) most = 32;
    size_t each = shared + (model->cc_major >= 8 ? 1024 : 0);
    if (shared > model->shared_per_block_optin || threads > 1024) most = 0;
    else if (shared && (size_t)most > model->shared_per_sm / each) most = (int)(model->shared_per_sm / each);
    *blocks = most;
    return CUDA_SUCCESS;
}

API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int threads, size_t shared,
                                                         unsigned flags) {
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared);
}

API cuOccupancyMaxPotentialBlockSize(int *least_grid, int *block, CUfunction function, size_t (*shared_of)(int),
                                     size_t shared, int limit) {
    NEED_CONTEXT(context);
    if (!least_grid || !block) return CUDA_ERROR_INVALID_VALUE;
    if (!function_name(function)) return CUDA_ERROR_INVALID_HANDLE;
    int best = 0, best_threads = 0;
    for (int threads = limit > 0 && limit < 1024 ? limit : 1024; threads > 0; threads -= threads % 32 ? threads % 32 : 32) {
        int blocks;
        size_t dynamic = shared_of ? shared_of(threads) : shared;
        if (cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, dynamic) || blocks * threads <= best)
            continue;
        best = blocks * threads;
        best_threads = threads;
    }
    *block = best_threads;
    *least_grid = best_threads ? best / best_threads * (int)card_of(context)->model.sm_count : 0;
    return CUDA_SUCCESS;
}

API cuOccupancyMaxPotentialBlockSizeWithFlags(int *least_grid, int *block, CUfunction function,
                                              size_t (*shared_of)(int), size_t shared, int limit, unsigned flags) {
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    return cuOccupancyMaxPotentialBlockSize(least_grid, block, function, shared_of, shared, limit);
}

API cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int threads) {
    NEED_CONTEXT(context);
    if (!function_name(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (!bytes || blocks < 1 || threads < 1) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_model *model = &card_of(context)->model;
    size_t each = model->shared_per_sm / (unsigned)blocks;
    each -= model->cc_major >= 8 && each >= 1024 ? 1024 : 0;
    *bytes = each < model->shared_per_block_optin ? each : model->shared_per_block_optin;
    return CUDA_SUCCESS;
}

API cuProfilerStart(void) {
    NEED_CONTEXT(context);
    return CUDA_SUCCESS;
}

API cuProfilerStop(void) {
    NEED_CONTEXT(context);
    return CUDA_SUCCESS;
}

API cuFlushGPUDirectRDMAWrites(int target, int scope) {
    (void)target, (void)scope;
    NEED_CONTEXT(context);
    return CUDA_SUCCESS;
}
