/* Everything that makes a card compute, graphs apart (cuda_graph.c), by all the names that it has; and captures, in which
 * a launch computes nothing. */
#include "throttle.h"

#define MOST_CARDS 64

struct launch_config { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    CUstream stream;
};

struct launch_params { /* CUDA_LAUNCH_PARAMS */
    void *function;
    unsigned grid[3], block[3], shared;
    CUstream stream;
    void **parameters;
};

/* What is launched and at what size: launches with one key take the same time, more or less. */
static inline uint64_t key_of(const void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                              unsigned bz)
{
    uint64_t grid = gx + gy * UINT64_C(0x9e3779b97f4a7c15) + gz * UINT64_C(0xd6e8feb86659fd93);
    uint64_t block = bx + ((uint64_t)by << 11) + ((uint64_t)bz << 22);
    return ((uint64_t)(uintptr_t)function ^ grid) * UINT64_C(0xbf58476d1ce4e5b9) + block * UINT64_C(0x94d049bb133111eb);
}

/* Nothing stays on our stack, so that the driver is jumped to where the launch is not timed. */
#define LAUNCH(symbol, type, key, stream, per_thread, ...)                                                              \
    if (LIKELY(!throttle_enter(key, stream, per_thread)))                                                               \
        return REAL(symbol, type, __VA_ARGS__);                                                                         \
    CUresult result = REAL(symbol, type, __VA_ARGS__);                                                                  \
    throttle_leave(&throttle_timed, result);                                                                            \
    return result

#define KERNEL_TYPE                                                                                                     \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)

#define KERNEL(name, per_thread)                                                                                        \
    EXPORT CUresult name(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,  \
                         unsigned shared, CUstream stream, void **parameters, void **extra)                             \
    {                                                                                                                   \
        LAUNCH(name, KERNEL_TYPE, key_of(function, gx, gy, gz, bx, by, bz), stream, per_thread, function, gx, gy, gz,   \
               bx, by, bz, shared, stream, parameters, extra);                                                          \
    }
KERNEL(cuLaunchKernel, false)
KERNEL(cuLaunchKernel_ptsz, true)

#define COOPERATIVE_TYPE                                                                                                \
    (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **)

#define COOPERATIVE(name, per_thread)                                                                                   \
    EXPORT CUresult name(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,  \
                         unsigned shared, CUstream stream, void **parameters)                                           \
    {                                                                                                                   \
        LAUNCH(name, COOPERATIVE_TYPE, key_of(function, gx, gy, gz, bx, by, bz), stream, per_thread, function, gx, gy,  \
               gz, bx, by, bz, shared, stream, parameters);                                                             \
    }
COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

#define EX_TYPE (const struct launch_config *, void *, void **, void **)

#define EX(name, per_thread)                                                                                            \
    EXPORT CUresult name(const struct launch_config *c, void *function, void **parameters, void **extra)                \
    {                                                                                                                   \
        if (c == NULL)                                                                                                  \
            return REAL(name, EX_TYPE, c, function, parameters, extra);                                                 \
        uint64_t key = key_of(function, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2]);     \
        LAUNCH(name, EX_TYPE, key, c->stream, per_thread, c, function, parameters, extra);                              \
    }
EX(cuLaunchKernelEx, false)
EX(cuLaunchKernelEx_ptsz, true)

/* The first forms of all, whose blocks were set beforehand. */
EXPORT CUresult cuLaunch(void *function)
{
    LAUNCH(cuLaunch, (void *), key_of(function, 1, 1, 1, 0, 0, 0), NULL, false, function);
}

EXPORT CUresult cuLaunchGrid(void *function, int width, int height)
{
    LAUNCH(cuLaunchGrid, (void *, int, int), key_of(function, (unsigned)width, (unsigned)height, 1, 0, 0, 0), NULL, false,
           function, width, height);
}

EXPORT CUresult cuLaunchGridAsync(void *function, int width, int height, CUstream stream)
{
    LAUNCH(cuLaunchGridAsync, (void *, int, int, CUstream),
           key_of(function, (unsigned)width, (unsigned)height, 1, 0, 0, 0), stream, false, function, width, height, stream);
}

/* One kernel on each of several cards: each is paid for on its own. */
EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(struct launch_params *list, unsigned count, unsigned flags)
{
    struct timed timed[MOST_CARDS];
    bool leave[MOST_CARDS] = {false};
    unsigned looked_at = list != NULL && count <= MOST_CARDS ? count : 0;
    for (unsigned i = 0; i < looked_at; i++) {
        const struct launch_params *p = &list[i];
        uint64_t key = key_of(p->function, p->grid[0], p->grid[1], p->grid[2], p->block[0], p->block[1], p->block[2]);
        leave[i] = throttle_enter(key, p->stream, false);
        timed[i] = throttle_timed;
    }
    CUresult result =
        REAL(cuLaunchCooperativeKernelMultiDevice, (struct launch_params *, unsigned, unsigned), list, count, flags);
    for (unsigned i = 0; i < looked_at; i++)
        if (leave[i])
            throttle_leave(&timed[i], result);
    return result;
}

/* ---- captures ---- */
#define BEGIN(name, type, list, ...)                                                                                    \
    EXPORT CUresult name list                                                                                           \
    {                                                                                                                   \
        throttle_capture(1);                                                                                            \
        CUresult result = REAL(name, type, __VA_ARGS__);                                                                \
        if (result != CUDA_SUCCESS)                                                                                     \
            throttle_capture(-1);                                                                                       \
        return result;                                                                                                  \
    }
BEGIN(cuStreamBeginCapture, (CUstream), (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_ptsz, (CUstream), (CUstream stream), stream)
BEGIN(cuStreamBeginCapture_v2, (CUstream, int), (CUstream stream, int mode), stream, mode)
BEGIN(cuStreamBeginCapture_v2_ptsz, (CUstream, int), (CUstream stream, int mode), stream, mode)
#define TO_GRAPH_TYPE (CUstream, CUgraph, const CUgraphNode *, const void *, size_t, int)
#define TO_GRAPH_LIST                                                                                                   \
    (CUstream stream, CUgraph graph, const CUgraphNode *after, const void *edges, size_t count, int mode)
BEGIN(cuStreamBeginCaptureToGraph, TO_GRAPH_TYPE, TO_GRAPH_LIST, stream, graph, after, edges, count, mode)
BEGIN(cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH_TYPE, TO_GRAPH_LIST, stream, graph, after, edges, count, mode)

/* A capture that was invalidated ends this way, too, with an error. */
#define END(name)                                                                                                       \
    EXPORT CUresult name(CUstream stream, CUgraph *graph)                                                               \
    {                                                                                                                   \
        CUresult result = REAL(name, (CUstream, CUgraph *), stream, graph);                                             \
        if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)                                  \
            throttle_capture(-1);                                                                                       \
        return result;                                                                                                  \
    }
END(cuStreamEndCapture)
END(cuStreamEndCapture_ptsz)
