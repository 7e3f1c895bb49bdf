/* Memory inside graphs. The driver takes it when a graph that has allocation nodes is first launched or uploaded, and keeps
 * it for graphs until it is trimmed; it says how much that is (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), by device. So the
 * size of a graph is found when it is instantiated, and reserved before a launch that may take it. Graphs without such
 * nodes are not looked at. */
#include "throttle.h"

#include <pthread.h>
#include <stdlib.h>

#define CHUNK (UINT64_C(2) << 20)
#define MOST_DEVICES 64
#define DEEPEST 16 /* graphs in graphs */

enum { NODE_GRAPH = 4, NODE_ALLOCATION = 10 };
enum { RESERVED_CURRENT = 2 };
enum { UPLOAD_AT_ONCE = 2 };
enum { MODE_RELAXED = 2 };

struct node_params { /* CUDA_MEM_ALLOC_NODE_PARAMS */
    struct allocation_prop pool;
    unsigned char rest_of_pool[88 - sizeof(struct allocation_prop)];
    const void *access;
    size_t access_count, bytes;
    CUdeviceptr address;
};
_Static_assert(sizeof(struct node_params) == 120, "CUDA_MEM_ALLOC_NODE_PARAMS");

struct instantiate_params { /* CUDA_GRAPH_INSTANTIATE_PARAMS */
    uint64_t flags;
    CUstream stream;
    CUgraphNode error_node;
    int result;
};

struct range {
    CUdevice device;
    CUdeviceptr start, end;
};
struct ranges {
    struct range *rows;
    size_t count, room;
};

struct graph { /* an executable one with memory in it */
    bool mapped; /* launched on `stream` after the last trim, so the driver takes nothing more for it */
    CUstream stream;
    uint64_t trims;
    int parts;
    struct part {
        CUdevice device;
        uint64_t bytes;
    } part[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int graphs; /* how many there are */
static uint64_t trims;
static uint64_t charged[MOST_DEVICES];

void graphs_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    atomic_store(&graphs, 0);
    for (int i = 0; i < MOST_DEVICES; i++)
        charged[i] = 0;
}

static bool add_range(struct ranges *ranges, CUdevice device, CUdeviceptr start, uint64_t bytes)
{
    if (ranges->count == ranges->room) {
        size_t room = ranges->room == 0 ? 16 : ranges->room * 2;
        struct range *rows = realloc(ranges->rows, room * sizeof *rows);
        if (rows == NULL)
            return false;
        ranges->rows = rows;
        ranges->room = room;
    }
    ranges->rows[ranges->count++] = (struct range){device, start, start + bytes};
    return true;
}

/* False: no memory of our own to remember it in. */
static bool collect(CUgraph graph, struct ranges *ranges, int depth)
{
    size_t count = 0;
    if (depth == DEEPEST || REAL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *), graph, NULL, &count) != CUDA_SUCCESS)
        return true;
    CUgraphNode *nodes = calloc(count + 1, sizeof *nodes);
    bool ok = nodes != NULL;
    if (ok && REAL(cuGraphGetNodes, (CUgraph, CUgraphNode *, size_t *), graph, nodes, &count) != CUDA_SUCCESS)
        count = 0;
    for (size_t i = 0; ok && i < count; i++) {
        int type;
        struct node_params params;
        CUgraph child;
        if (REAL(cuGraphNodeGetType, (CUgraphNode, int *), nodes[i], &type) != CUDA_SUCCESS)
            continue;
        if (type == NODE_ALLOCATION &&
            REAL(cuGraphMemAllocNodeGetParams, (CUgraphNode, struct node_params *), nodes[i], &params) == CUDA_SUCCESS &&
            params.pool.location.type == LOCATION_DEVICE)
            ok = add_range(ranges, params.pool.location.id, params.address, params.bytes);
        else if (type == NODE_GRAPH &&
                 REAL(cuGraphChildGraphNodeGetGraph, (CUgraphNode, CUgraph *), nodes[i], &child) == CUDA_SUCCESS)
            ok = collect(child, ranges, depth + 1);
    }
    free(nodes);
    return ok;
}

static int by_place(const void *a, const void *b)
{
    const struct range *left = a, *right = b;
    if (left->device != right->device)
        return left->device < right->device ? -1 : 1;
    return left->start < right->start ? -1 : left->start > right->start;
}

/* What the graph may take by device. Nodes that use an address again after it was freed inside count once. */
static struct graph *measure(const struct ranges *ranges)
{
    struct graph *graph = calloc(1, sizeof *graph + MOST_DEVICES * sizeof graph->part[0]);
    if (graph == NULL)
        return NULL;
    qsort(ranges->rows, ranges->count, sizeof *ranges->rows, by_place);
    for (size_t i = 0; i < ranges->count;) {
        CUdevice device = ranges->rows[i].device;
        CUdeviceptr start = ranges->rows[i].start, end = ranges->rows[i].end;
        for (i++; i < ranges->count && ranges->rows[i].device == device && ranges->rows[i].start <= end; i++)
            end = ranges->rows[i].end > end ? ranges->rows[i].end : end;
        uint64_t bytes;
        if (!round_up(end - start, CHUNK, &bytes))
            bytes = UINT64_MAX >> 2;
        if (graph->parts == 0 || graph->part[graph->parts - 1].device != device) {
            if (graph->parts == MOST_DEVICES)
                break;
            graph->part[graph->parts++] = (struct part){device, 0};
        }
        uint64_t *sum = &graph->part[graph->parts - 1].bytes;
        if (__builtin_add_overflow(*sum, bytes, sum))
            *sum = UINT64_MAX;
    }
    return graph;
}

/* ---- with the lock held ---- */

/* Brings the account of a device to what the driver says; `granted` was reserved for what it may have taken just now. */
static void settle(CUdevice device, uint64_t granted)
{
    uint64_t reserved = 0;
    if (device < 0 || device >= MOST_DEVICES)
        return;
    int card = card_of_device(device);
    if (REAL(cuDeviceGetGraphMemAttribute, (CUdevice, int, void *), device, RESERVED_CURRENT, &reserved) != CUDA_SUCCESS)
        reserved = charged[device] + granted;
    uint64_t counted = charged[device] + granted;
    if (reserved < counted)
        accounts_release(card, counted - reserved);
    else
        accounts_add(card, reserved - counted);
    charged[device] = reserved;
}

static void trim(CUdevice device)
{
    trims++;
    (void)REAL(cuDeviceGraphMemTrim, (CUdevice), device);
    settle(device, 0);
}

/* Graphs of the stream that still run keep their memory, and the new one could have had it after them: they are waited for
 * before anything is refused. Nothing of this may disturb a capture that the program has under way elsewhere. */
static bool make_room(const struct part *part, CUstream stream, bool per_thread)
{
    int card = card_of_device(part->device), mode = MODE_RELAXED;
    if (reserve(card, part->bytes))
        return true;
    if (card == NO_CARD || part->device >= MOST_DEVICES || charged[part->device] == 0)
        return false;
    (void)REAL(cuThreadExchangeStreamCaptureMode, (int *), &mode);
    trim(part->device);
    bool ok = reserve(card, part->bytes);
    if (!ok && charged[part->device] != 0) {
        (void)(per_thread ? REAL(cuStreamSynchronize_ptsz, (CUstream), stream) : REAL(cuStreamSynchronize, (CUstream), stream));
        trim(part->device);
        ok = reserve(card, part->bytes);
    }
    (void)REAL(cuThreadExchangeStreamCaptureMode, (int *), &mode);
    return ok;
}

static bool needs_nothing(const struct graph *graph, CUstream stream)
{
    return graph->mapped && graph->stream == stream && graph->trims == trims;
}

static bool admit(const struct graph *graph, CUstream stream, bool per_thread)
{
    for (int i = 0; i < graph->parts; i++) {
        if (make_room(&graph->part[i], stream, per_thread))
            continue;
        while (i-- > 0)
            accounts_release(card_of_device(graph->part[i].device), graph->part[i].bytes);
        return false;
    }
    return true;
}

static void launched(struct graph *graph, CUstream stream, CUresult result)
{
    for (int i = 0; i < graph->parts; i++)
        settle(graph->part[i].device, graph->part[i].bytes);
    graph->mapped = result == CUDA_SUCCESS;
    graph->stream = stream;
    graph->trims = trims;
}

/* ---- without it ---- */

typedef CUresult (*run_function)(CUgraphExec, CUstream);

static CUresult run(run_function function, CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct held held;
    if (UNLIKELY(function == NULL))
        return CUDA_ERROR_NOT_SUPPORTED;
    if (atomic_load_explicit(&graphs, memory_order_relaxed) == 0)
        return function(exec, stream);
    pthread_mutex_lock(&lock);
    CUresult result;
    if (!table_get(HELD_GRAPH, (uint64_t)(uintptr_t)exec, &held) || needs_nothing(held.owner, stream) ||
        is_capturing(stream, per_thread)) {
        pthread_mutex_unlock(&lock);
        return function(exec, stream);
    }
    if (admit(held.owner, stream, per_thread)) {
        result = function(exec, stream);
        launched(held.owner, stream, result);
    } else {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* All that it runs is one launch. */
static CUresult launch(enum symbol symbol, CUgraphExec exec, CUstream stream, bool per_thread)
{
    bool leave = throttle_enter((uint64_t)(uintptr_t)exec, stream, per_thread);
    CUresult result = run((run_function)real(symbol), exec, stream, per_thread);
    if (UNLIKELY(leave))
        throttle_leave(&throttle_timed, result);
    return result;
}

EXPORT CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { return launch(SYM_cuGraphLaunch, exec, stream, false); }

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(SYM_cuGraphLaunch_ptsz, exec, stream, true);
}

EXPORT CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return run((run_function)real(SYM_cuGraphUpload), exec, stream, false);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return run((run_function)real(SYM_cuGraphUpload_ptsz), exec, stream, true);
}

/* NULL in *graph: none in it. */
static bool find_memory(CUgraph source, struct graph **graph)
{
    struct ranges ranges = {NULL, 0, 0};
    *graph = NULL;
    bool ok = collect(source, &ranges, 0);
    if (ok && ranges.count != 0)
        ok = (*graph = measure(&ranges)) != NULL;
    free(ranges.rows);
    return ok;
}

static CUresult instantiated(CUresult result, CUgraphExec *exec, struct graph *graph)
{
    if (result != CUDA_SUCCESS || graph == NULL) {
        free(graph);
        return result;
    }
    struct held held = {(uint64_t)(uintptr_t)*exec, HELD_GRAPH, NO_CARD, 0, graph};
    if (table_put(&held)) {
        atomic_fetch_add(&graphs, 1);
        return result;
    }
    (void)REAL(cuGraphExecDestroy, (CUgraphExec), *exec);
    free(graph);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#define INSTANTIATE(symbol, type, ...)                                                                                  \
    struct graph *graph;                                                                                                \
    if (!find_memory(source, &graph))                                                                                   \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                                \
    return instantiated(REAL(symbol, type, __VA_ARGS__), exec, graph)

#define WITH_LOG (CUgraphExec *, CUgraph, CUgraphNode *, char *, size_t)

EXPORT CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph source, CUgraphNode *error, char *log, size_t room)
{
    INSTANTIATE(cuGraphInstantiate, WITH_LOG, exec, source, error, log, room);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph source, CUgraphNode *error, char *log, size_t room)
{
    INSTANTIATE(cuGraphInstantiate_v2, WITH_LOG, exec, source, error, log, room);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph source, unsigned long long flags)
{
    INSTANTIATE(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long), exec, source, flags);
}

/* May upload the graph on the way, which takes its memory. */
static CUresult with_params(enum symbol symbol, CUgraphExec *exec, CUgraph source, struct instantiate_params *params,
                            bool per_thread)
{
    struct graph *graph;
    CUresult (*function)(CUgraphExec *, CUgraph, struct instantiate_params *) =
        (CUresult(*)(CUgraphExec *, CUgraph, struct instantiate_params *))real(symbol);
    if (function == NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!find_memory(source, &graph))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (graph == NULL || params == NULL || (params->flags & UPLOAD_AT_ONCE) == 0)
        return instantiated(function(exec, source, params), exec, graph);
    pthread_mutex_lock(&lock);
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (admit(graph, params->stream, per_thread)) {
        result = function(exec, source, params);
        launched(graph, params->stream, result);
    }
    pthread_mutex_unlock(&lock);
    return instantiated(result, exec, graph);
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph source, struct instantiate_params *params)
{
    return with_params(SYM_cuGraphInstantiateWithParams, exec, source, params, false);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph source, struct instantiate_params *params)
{
    return with_params(SYM_cuGraphInstantiateWithParams_ptsz, exec, source, params, true);
}

/* Its memory stays with the driver, for other graphs. */
EXPORT CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct held held;
    throttle_forget((uint64_t)(uintptr_t)exec);
    if (atomic_load_explicit(&graphs, memory_order_relaxed) == 0)
        return REAL(cuGraphExecDestroy, (CUgraphExec), exec);
    pthread_mutex_lock(&lock);
    bool known = table_take(HELD_GRAPH, (uint64_t)(uintptr_t)exec, &held);
    CUresult result = REAL(cuGraphExecDestroy, (CUgraphExec), exec);
    if (known && result == CUDA_SUCCESS) {
        struct graph *graph = held.owner;
        atomic_fetch_sub(&graphs, 1);
        for (int i = 0; i < graph->parts; i++)
            settle(graph->part[i].device, 0);
        free(graph);
    } else if (known) {
        table_put(&held);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    pthread_mutex_lock(&lock);
    trims++;
    CUresult result = REAL(cuDeviceGraphMemTrim, (CUdevice), device);
    settle(device, 0);
    pthread_mutex_unlock(&lock);
    return result;
}

void graphs_settle(void)
{
    pthread_mutex_lock(&lock);
    trims++;
    for (int device = 0; device < MOST_DEVICES; device++)
        if (charged[device] != 0)
            settle(device, 0);
    pthread_mutex_unlock(&lock);
}
