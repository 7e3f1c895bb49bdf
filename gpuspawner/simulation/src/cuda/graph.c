/* Graphs of memory nodes: made, instantiated and launched as on a real card, where memory comes with the first launch or
 * upload and stays for graphs until it is trimmed. In timed mode kernel nodes take time, one after the other. Other kinds
 * of nodes, empty ones apart, are not supported. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define UP(value, unit) (((value) + (unit) - 1) & ~((uint64_t)(unit) - 1))

enum { TYPE_KERNEL = 0, TYPE_EMPTY = 5, TYPE_ALLOCATION = 10, TYPE_FREE = 11 };
enum { FLAG_AUTO_FREE = 1, FLAG_UPLOAD = 2, FLAGS = 0xf };
enum { USED_CURRENT, USED_HIGH, RESERVED_CURRENT, RESERVED_HIGH };

typedef struct {
    CUmemPoolProps pool;
    const CUmemAccessDesc *access;
    size_t access_count, bytes;
    CUdeviceptr pointer;
} CUDA_MEM_ALLOC_NODE_PARAMS;

typedef struct { /* the first form ends before `kernel` */
    CUfunction function;
    struct size size;
    void **parameters, **extra;
    CUfunction kernel;
    CUcontext context;
} CUDA_KERNEL_NODE_PARAMS;

typedef struct {
    int type, reserved[3];
    union {
        CUDA_KERNEL_NODE_PARAMS kernel;
        CUDA_MEM_ALLOC_NODE_PARAMS allocation;
        CUdeviceptr freed;
        long long room[29];
    };
    long long reserved2;
} CUgraphNodeParams;

typedef struct {
    uint64_t flags;
    CUstream stream;
    struct graph_node *error_node;
    int result;
} CUDA_GRAPH_INSTANTIATE_PARAMS;

struct graph_node {
    struct object object;
    int type;
    CUDA_MEM_ALLOC_NODE_PARAMS params; /* allocation */
    CUdeviceptr freed;
    uint64_t duration_ns; /* kernel */
    struct graph_node *next;
};

struct graph {
    struct object object;
    struct graph_node *nodes, **end;
    size_t count;
    unsigned uses; /* its own handle, and executable ones made from it */
};

struct graph_exec {
    struct object object;
    struct graph *graph;
    int ordinal; /* -1: no memory */
    uint64_t bytes;
    bool mapped, auto_free;
    struct graph_exec *next;
};

static struct graph_exec *execs;
static struct { uint64_t spare, high, used_high; } kept[SIM_MAX_PLACES]; /* spare: of graphs that have gone */

void graphs_after_fork(void) {
    execs = NULL;
    memset(kept, 0, sizeof kept);
}

/* ---- the lock is held ---- */
static uint64_t mapped_bytes(int ordinal) {
    uint64_t sum = 0;
    for (struct graph_exec *exec = execs; exec; exec = exec->next)
        if (exec->mapped && exec->ordinal == ordinal) sum += exec->bytes;
    return sum;
}

static void note(int ordinal) {
    uint64_t used = mapped_bytes(ordinal), reserved = used + kept[ordinal].spare;
    if (used > kept[ordinal].used_high) kept[ordinal].used_high = used;
    if (reserved > kept[ordinal].high) kept[ordinal].high = reserved;
}

/* A graph allocation is live from the launch that made it until it is freed. */
static struct allocation *found_at(CUdeviceptr pointer) {
    struct allocation *found = memory_find(pointer);
    return found && found->node.key == pointer && found->kind == MEM_GRAPH ? found : NULL;
}

static bool has_live(const struct graph *graph) {
    for (struct graph_node *node = graph->nodes; node; node = node->next) {
        struct allocation *found = node->type == TYPE_ALLOCATION ? found_at(node->params.pointer) : NULL;
        if (found && found->flags) return true;
    }
    return false;
}

CUresult graph_memory_free(CUdeviceptr pointer) {
    struct allocation *found = found_at(pointer);
    if (!found || !found->flags) return CUDA_ERROR_INVALID_VALUE;
    found->flags = 0;
    return CUDA_SUCCESS;
}

static void graph_end(struct graph *graph) {
    if (--graph->uses) return;
    for (struct graph_node *node = graph->nodes, *next; node; node = next) {
        next = node->next;
        struct allocation *found = node->type == TYPE_ALLOCATION ? found_at(node->params.pointer) : NULL;
        if (found) memory_delete(found);
        object_free(node);
    }
    graph->object.kind = KIND_GRAPH;
    object_free(graph);
}

static void trim(int ordinal) {
    memory_refund(driver.card_of[ordinal], kept[ordinal].spare);
    kept[ordinal].spare = 0;
    for (struct graph_exec *exec = execs; exec; exec = exec->next) {
        if (!exec->mapped || exec->ordinal != ordinal || has_live(exec->graph)) continue;
        exec->mapped = false;
        memory_refund(driver.card_of[ordinal], exec->bytes);
    }
}

void graphs_delete_of(int ordinal) {
    for (struct graph_exec *exec = execs; exec; exec = exec->next)
        if (exec->ordinal == ordinal)
            for (struct graph_node *node = exec->graph->nodes; node; node = node->next)
                if (node->type == TYPE_ALLOCATION) graph_memory_free(node->params.pointer);
    trim(ordinal);
}

static CUresult map(struct graph_exec *exec) {
    if (exec->ordinal < 0 || exec->mapped) return CUDA_SUCCESS;
    uint64_t *spare = &kept[exec->ordinal].spare, more = exec->bytes > *spare ? exec->bytes - *spare : 0;
    CUresult result = more ? memory_charge(driver.card_of[exec->ordinal], more) : CUDA_SUCCESS;
    if (result) return result;
    *spare -= exec->bytes - more;
    exec->mapped = true;
    note(exec->ordinal);
    return CUDA_SUCCESS;
}

static CUresult run(struct graph_exec *exec) {
    CUresult result = map(exec);
    for (struct graph_node *node = exec->graph->nodes; node && !result; node = node->next) {
        struct allocation *found = node->type == TYPE_ALLOCATION ? found_at(node->params.pointer) : NULL;
        if (found && found->flags && !exec->auto_free) result = CUDA_ERROR_INVALID_VALUE;
        else if (found) found->flags = 1;
        if (node->type == TYPE_FREE) result = graph_memory_free(node->freed);
    }
    return result;
}

/* ---- making one ---- */
#define CHECK_LOCKED(good) do { if (!(good)) { UNLOCK(); return CUDA_ERROR_INVALID_VALUE; } } while (0)
#define CHECK(object, kind) do { NEED_INIT(); if (!object_valid(object, kind)) return CUDA_ERROR_INVALID_VALUE; } while (0)

API cuGraphCreate(struct graph **graph, unsigned flags) {
    NEED_INIT();
    if (!graph || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct graph *made = object_new(KIND_GRAPH, sizeof *made);
    if (made) {
        made->end = &made->nodes;
        made->uses = 1;
    }
    UNLOCK();
    if (!made) return CUDA_ERROR_OPERATING_SYSTEM;
    *graph = made;
    return CUDA_SUCCESS;
}

API cuGraphDestroy(struct graph *graph) {
    CHECK(graph, KIND_GRAPH);
    LOCK();
    graph->object.kind = KIND_GRAPH_GONE; /* an executable one may still need it */
    graph_end(graph);
    UNLOCK();
    return CUDA_SUCCESS;
}

static CUresult add(struct graph_node **out, struct graph *graph, int type, struct graph_node **made) {
    CHECK(graph, KIND_GRAPH);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    struct graph_node *node = object_new(KIND_NODE, sizeof *node);
    if (!node) return CUDA_ERROR_OPERATING_SYSTEM;
    node->type = type;
    *graph->end = node;
    graph->end = &node->next;
    graph->count++;
    *out = *made = node;
    return CUDA_SUCCESS;
}

API cuGraphAddEmptyNode(struct graph_node **out, struct graph *graph, struct graph_node *const *after, size_t count) {
    (void)after, (void)count;
    struct graph_node *node;
    LOCK();
    CUresult result = add(out, graph, TYPE_EMPTY, &node);
    UNLOCK();
    return result;
}

static CUresult add_kernel(struct graph_node **out, struct graph *graph, CUfunction function, const struct size *size) {
    NEED_CONTEXT(context);
    uint64_t duration_ns;
    CUresult result = launch_duration(context, function, size, &duration_ns);
    if (result) return result;
    struct graph_node *node;
    LOCK();
    if (!(result = add(out, graph, TYPE_KERNEL, &node))) node->duration_ns = duration_ns;
    UNLOCK();
    return result;
}

API cuGraphAddKernelNode(struct graph_node **out, struct graph *graph, struct graph_node *const *after, size_t count,
                         const CUDA_KERNEL_NODE_PARAMS *params) {
    (void)after, (void)count;
    return params ? add_kernel(out, graph, params->function, &params->size) : CUDA_ERROR_INVALID_VALUE;
}

API cuGraphAddKernelNode_v2(struct graph_node **out, struct graph *graph, struct graph_node *const *after, size_t count,
                            const CUDA_KERNEL_NODE_PARAMS *params) {
    (void)after, (void)count;
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    return add_kernel(out, graph, params->function ? params->function : params->kernel, &params->size);
}

/* A node that follows a free directly has the freed address again, if it fits there. */
static CUdeviceptr address_of(struct graph_node *const *after, size_t count, size_t bytes) {
    for (size_t i = 0; i < count; i++) {
        if (!object_valid(after[i], KIND_NODE) || after[i]->type != TYPE_FREE) continue;
        struct allocation *found = found_at(after[i]->freed);
        if (found && found->size >= bytes) return found->node.key;
    }
    return 0;
}

API cuGraphAddMemAllocNode(struct graph_node **out, struct graph *graph, struct graph_node *const *after, size_t count,
                           CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    NEED_CONTEXT(context);
    if (!params || !params->bytes || params->pool.type != 1) return CUDA_ERROR_INVALID_VALUE;
    if (params->pool.location.type != LOCATION_DEVICE || params->pool.handle_types) return CUDA_ERROR_NOT_SUPPORTED;
    NEED_DEVICE(params->pool.location.id);
    LOCK();
    CHECK_LOCKED(object_valid(graph, KIND_GRAPH));
    params->pointer = address_of(after, count, params->bytes);
    CUresult result = CUDA_SUCCESS;
    if (!params->pointer) {
        struct allocation *allocation;
        result = memory_new(context, MEM_GRAPH, params->bytes, 0, &allocation);
        if (!result) {
            allocation->ordinal = params->pool.location.id;
            params->pointer = allocation->node.key;
        }
    }
    struct graph_node *node;
    if (!result) result = add(out, graph, TYPE_ALLOCATION, &node);
    if (!result) node->params = *params;
    UNLOCK();
    return result;
}

API cuGraphAddMemFreeNode(struct graph_node **out, struct graph *graph, struct graph_node *const *after, size_t count,
                          CUdeviceptr pointer) {
    (void)after, (void)count;
    NEED_INIT();
    LOCK();
    CHECK_LOCKED(found_at(pointer));
    struct graph_node *node;
    CUresult result = add(out, graph, TYPE_FREE, &node);
    if (!result) node->freed = pointer;
    UNLOCK();
    return result;
}

API cuGraphAddNode(struct graph_node **out, struct graph *graph, struct graph_node *const *after, size_t count,
                   CUgraphNodeParams *params) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    switch (params->type) {
    case TYPE_KERNEL: return cuGraphAddKernelNode_v2(out, graph, after, count, &params->kernel);
    case TYPE_EMPTY: return cuGraphAddEmptyNode(out, graph, after, count);
    case TYPE_ALLOCATION: return cuGraphAddMemAllocNode(out, graph, after, count, &params->allocation);
    case TYPE_FREE: return cuGraphAddMemFreeNode(out, graph, after, count, params->freed);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

API cuGraphAddNode_v2(struct graph_node **out, struct graph *graph, struct graph_node *const *after, const void *edges,
                      size_t count, CUgraphNodeParams *params) {
    return edges ? CUDA_ERROR_NOT_SUPPORTED : cuGraphAddNode(out, graph, after, count, params);
}
ALIAS(cuGraphAddNode_v3, cuGraphAddNode_v2);

API cuGraphGetNodes(struct graph *graph, struct graph_node **nodes, size_t *count) {
    CHECK(graph, KIND_GRAPH);
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    size_t at = 0;
    if (nodes) {
        for (struct graph_node *node = graph->nodes; node && at < *count; node = node->next) nodes[at++] = node;
        for (size_t i = at; i < *count; i++) nodes[i] = NULL;
    }
    *count = nodes ? at : graph->count;
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuGraphNodeGetType(struct graph_node *node, int *type) {
    CHECK(node, KIND_NODE);
    if (!type) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

API cuGraphMemAllocNodeGetParams(struct graph_node *node, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    CHECK(node, KIND_NODE);
    if (!params || node->type != TYPE_ALLOCATION) return CUDA_ERROR_INVALID_VALUE;
    *params = node->params;
    return CUDA_SUCCESS;
}

API cuGraphMemFreeNodeGetParams(struct graph_node *node, CUdeviceptr *pointer) {
    CHECK(node, KIND_NODE);
    if (!pointer || node->type != TYPE_FREE) return CUDA_ERROR_INVALID_VALUE;
    *pointer = node->freed;
    return CUDA_SUCCESS;
}

/* ---- running it ---- */

/* Bytes for the graph's memory: every address once, in whole large granules. */
static uint64_t size_of(const struct graph *graph, int *ordinal) {
    uint64_t sum = 0;
    *ordinal = -1;
    for (struct graph_node *node = graph->nodes; node; node = node->next) {
        if (node->type != TYPE_ALLOCATION) continue;
        struct graph_node *before = graph->nodes;
        while (before != node && (before->type != TYPE_ALLOCATION || before->params.pointer != node->params.pointer))
            before = before->next;
        if (before != node) continue;
        struct allocation *found = found_at(node->params.pointer);
        sum += UP(found ? found->size : node->params.bytes, SIM_LARGE_GRANULE);
        *ordinal = node->params.pool.location.id;
    }
    return sum;
}

API cuGraphInstantiateWithFlags(struct graph_exec **out, struct graph *graph, unsigned long long flags) {
    CHECK(graph, KIND_GRAPH);
    if (!out || flags & ~(unsigned long long)FLAGS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct graph_exec *exec = object_new(KIND_EXEC, sizeof *exec);
    if (exec) {
        exec->graph = graph;
        exec->bytes = size_of(graph, &exec->ordinal);
        exec->auto_free = flags & FLAG_AUTO_FREE;
        exec->next = execs;
        execs = exec;
        graph->uses++;
    }
    UNLOCK();
    if (!exec) return CUDA_ERROR_OPERATING_SYSTEM;
    *out = exec;
    return CUDA_SUCCESS;
}

API cuGraphInstantiate_v2(struct graph_exec **out, struct graph *graph, struct graph_node **error, char *log, size_t room) {
    if (error) *error = NULL;
    if (log && room) *log = 0;
    return cuGraphInstantiateWithFlags(out, graph, 0);
}
ALIAS(cuGraphInstantiate, cuGraphInstantiate_v2);

API cuGraphExecDestroy(struct graph_exec *exec) {
    CHECK(exec, KIND_EXEC);
    LOCK();
    struct graph_exec **at = &execs;
    while (*at != exec) at = &(*at)->next;
    *at = exec->next;
    if (exec->mapped) kept[exec->ordinal].spare += exec->bytes;
    graph_end(exec->graph);
    object_free(exec);
    UNLOCK();
    return CUDA_SUCCESS;
}

static CUresult launch(struct graph_exec *exec, CUstream handle, CUresult (*what)(struct graph_exec *)) {
    CHECK(exec, KIND_EXEC);
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result || (exec->ordinal >= 0 && (result = stream_wait(stream)))) return result;
    LOCK();
    result = what(exec);
    UNLOCK();
    struct graph_node *node = what == run ? exec->graph->nodes : NULL;
    for (; node && !result; node = node->next)
        if (node->type == TYPE_KERNEL)
            result = stream_submit(stream, &(struct operation){.kind = OP_LAUNCH, .duration_ns = node->duration_ns});
    return result;
}

API cuGraphLaunch(struct graph_exec *exec, CUstream stream) { return launch(exec, stream, run); }
ALIAS(cuGraphLaunch_ptsz, cuGraphLaunch);

API cuGraphUpload(struct graph_exec *exec, CUstream stream) { return launch(exec, stream, map); }
ALIAS(cuGraphUpload_ptsz, cuGraphUpload);

API cuGraphInstantiateWithParams(struct graph_exec **out, struct graph *graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    if (!params) return CUDA_ERROR_INVALID_VALUE;
    params->error_node = NULL;
    params->result = 1;
    CUresult result = cuGraphInstantiateWithFlags(out, graph, params->flags);
    if (!result && params->flags & FLAG_UPLOAD && (result = cuGraphUpload(*out, params->stream))) {
        cuGraphExecDestroy(*out);
        *out = NULL;
    }
    params->result = result != CUDA_SUCCESS;
    return result;
}
ALIAS(cuGraphInstantiateWithParams_ptsz, cuGraphInstantiateWithParams);

/* ---- what is kept for graphs ---- */
API cuDeviceGraphMemTrim(CUdevice device) {
    NEED_DEVICE(device);
    LOCK();
    trim(device);
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    NEED_DEVICE(device);
    if (!value || attribute < USED_CURRENT || attribute > RESERVED_HIGH) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    uint64_t used = mapped_bytes(device);
    *(uint64_t *)value = attribute == USED_CURRENT ? used : attribute == USED_HIGH ? kept[device].used_high
                       : attribute == RESERVED_CURRENT ? used + kept[device].spare : kept[device].high;
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuDeviceSetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    NEED_DEVICE(device);
    if (!value || *(uint64_t *)value || (attribute != USED_HIGH && attribute != RESERVED_HIGH))
        return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    *(attribute == USED_HIGH ? &kept[device].used_high : &kept[device].high) = 0;
    note(device);
    UNLOCK();
    return CUDA_SUCCESS;
}
