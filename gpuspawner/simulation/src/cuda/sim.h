/* The simulated CUDA driver's own header: the public types it needs (values and layouts are the driver
 * API's, part of its binary interface) and the state its files share. */
#ifndef GPUSPAWNER_SIM_CUDA_H
#define GPUSPAWNER_SIM_CUDA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../common/client.h"

#define API __attribute__((visibility("default"))) CUresult
/* A second exported name for the same function, such as the form for the per-thread default stream. */
#define ALIAS(name, of) extern __typeof__(of) name __attribute__((alias(#of), visibility("default")))

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef struct context *CUcontext;
typedef struct stream *CUstream;
typedef struct event *CUevent;
typedef struct module *CUmodule;
typedef struct function *CUfunction;
typedef struct array *CUarray;
typedef struct mipmap *CUmipmappedArray;
typedef struct pool *CUmemoryPool;
typedef uint64_t CUmemHandle;

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_UNSUPPORTED_LIMIT = 215,
    CUDA_ERROR_FILE_NOT_FOUND = 301,
    CUDA_ERROR_OPERATING_SYSTEM = 304,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_PEER_ACCESS_NOT_ENABLED = 705,
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708,
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_UNKNOWN = 999,
} CUresult;

enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };
enum { LOCATION_DEVICE = 1, LOCATION_HOST = 2, LOCATION_HOST_NUMA = 3, LOCATION_HOST_NUMA_CURRENT = 4 };

typedef struct { char bytes[16]; } CUuuid;
typedef struct { int type, id; } CUmemLocation;
typedef struct { CUmemLocation location; int flags; } CUmemAccessDesc;

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *win32;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    int type, handle_types;
    CUmemLocation location;
    void *win32;
    size_t max_size;
    unsigned short usage;
    unsigned char reserved[54];
} CUmemPoolProps;

typedef struct { size_t width, height; int format; unsigned channels; } CUDA_ARRAY_DESCRIPTOR;
typedef struct { size_t width, height, depth; int format; unsigned channels, flags; } CUDA_ARRAY3D_DESCRIPTOR;

typedef struct {
    size_t src_x, src_y; int src_type; const void *src_host; CUdeviceptr src_device; CUarray src_array;
    size_t src_pitch;
    size_t dst_x, dst_y; int dst_type; void *dst_host; CUdeviceptr dst_device; CUarray dst_array;
    size_t dst_pitch;
    size_t width, height;
} CUDA_MEMCPY2D;

typedef struct { /* also CUDA_MEMCPY3D_PEER, whose contexts stand where this has reserved pointers */
    size_t src_x, src_y, src_z, src_level; int src_type; const void *src_host; CUdeviceptr src_device;
    CUarray src_array; CUcontext src_context; size_t src_pitch, src_height;
    size_t dst_x, dst_y, dst_z, dst_level; int dst_type; void *dst_host; CUdeviceptr dst_device;
    CUarray dst_array; CUcontext dst_context; size_t dst_pitch, dst_height;
    size_t width, height, depth;
} CUDA_MEMCPY3D;

typedef struct {
    unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
    CUstream stream;
    void *attributes;
    unsigned attribute_count;
} CUlaunchConfig;

/* ---- ordered ranges (ranges.c) ---- */
struct node {
    uint64_t key, key2;
    struct node *left, *right;
    uint32_t priority;
};
void node_insert(struct node **root, struct node *node);
struct node *node_remove(struct node **root, uint64_t key, uint64_t key2);
struct node *node_at_most(struct node *root, uint64_t key, uint64_t key2);
struct node *node_at_least(struct node *root, uint64_t key, uint64_t key2);
struct node *node_first(struct node *root);

struct arena { /* a range of numbers handed out in pieces */
    struct node *by_base, *by_size;
};
bool arena_add(struct arena *arena, uint64_t base, uint64_t size);
/* The piece's base, or 0. size and align are multiples of SIM_ALLOC_GRANULE. */
uint64_t arena_take(struct arena *arena, uint64_t size, uint64_t align);
void arena_give(struct arena *arena, uint64_t base, uint64_t size);

/* ---- objects ---- */
enum kind { KIND_CONTEXT = 0x43545831, KIND_STREAM, KIND_EVENT, KIND_MODULE, KIND_FUNCTION, KIND_ARRAY,
            KIND_MIPMAP, KIND_POOL, KIND_PHYSICAL, KIND_GRAPH, KIND_NODE, KIND_EXEC,
            KIND_GRAPH_GONE };

struct object { /* heads every handle's struct; a struct is never given back to libc, so that a stale
                   handle is recognised and not read after free */
    uint32_t kind; /* 0: destroyed */
    uint32_t generation; /* of the process: a forked child's handles are another's */
    struct object *next_free;
};
void *object_new(enum kind kind, size_t size);
void object_free(void *object);
bool object_valid(const void *object, enum kind kind);

enum memory_kind { MEM_DEVICE, MEM_MANAGED, MEM_HOST, MEM_REGISTERED, MEM_POOL, MEM_MAPPED, MEM_ARRAY, MEM_GRAPH };

struct allocation {
    struct node node; /* key: base */
    uint64_t size;    /* as asked for */
    uint64_t taken;   /* rounded: what was taken from the arena */
    uint64_t charged; /* bytes charged to the card for it alone */
    enum memory_kind kind;
    unsigned flags;
    int ordinal; /* -1: host */
    CUcontext context;
    struct pool *pool;
    struct physical *physical; /* MEM_MAPPED */
    uint64_t id;
    bool sync_memops;
};

struct context {
    struct object object;
    int ordinal;
    unsigned card, flags;
    bool primary;
    unsigned retained; /* primary only */
    uint64_t id;
    size_t limits[16];
    int cache_config, shared_config;
    unsigned pending; /* queued operations over all its streams */
    struct stream *default_stream;
    unsigned peers; /* bit per ordinal */
    struct context *next;
};

struct stream {
    struct object object;
    CUcontext context;
    unsigned flags;
    int priority;
    uint64_t id;
    unsigned pending; /* operations that wait in the worker's queue */
    uint64_t ticket;  /* timed mode: position behind its last launch */
    bool destroyed; /* by the program; goes when its work is done */
    struct stream *next;
};

struct channel {
    struct sim_channel *page;
    pthread_mutex_t lock;
    uint32_t next_slot;
    struct retired { uint32_t slot; uint64_t ticket; } *retired;
    size_t retired_first, retired_count, retired_room;
};

struct driver {
    pthread_mutex_t lock; /* everything below */
    bool ready;
    uint32_t generation;
    const struct sim_page *page;
    int device_count;
    unsigned card_of[SIM_MAX_PLACES];
    CUcontext primary[SIM_MAX_PLACES], contexts;
    unsigned primary_flags[SIM_MAX_PLACES];
    struct node *allocations;
    struct arena addresses;
    uint64_t arena_base, arena_size;
    uint64_t next_id;
    struct pool *default_pool[SIM_MAX_PLACES], *current_pool[SIM_MAX_PLACES], *pools;
    struct channel channels[SIM_MAX_PLACES];
};
extern struct driver driver;

#define LOCK() pthread_mutex_lock(&driver.lock)
#define UNLOCK() pthread_mutex_unlock(&driver.lock)
#define NEED_INIT() do { if (!driver.ready) return CUDA_ERROR_NOT_INITIALIZED; } while (0)
#define NEED_CONTEXT(name) CUcontext name; \
    do { CUresult need_ = context_current(&name); if (need_) return need_; } while (0)
#define NEED_DEVICE(device) do { NEED_INIT(); \
    if ((device) < 0 || (device) >= driver.device_count) return CUDA_ERROR_INVALID_DEVICE; } while (0)

/* init.c */
CUresult result_of(int sim_status);
uint64_t clock_ns(void);
bool memory_setup(void);

/* context.c */
CUresult context_current(CUcontext *context);
void context_after_fork(void);
static inline const struct sim_card *card_of(CUcontext context) { return &driver.page->cards[context->card]; }

/* memory.c; the lock is held */
CUresult memory_charge(unsigned card, uint64_t bytes);
void memory_refund(unsigned card, uint64_t bytes);
CUresult memory_new(CUcontext context, enum memory_kind kind, uint64_t size, uint64_t charge,
                    struct allocation **out);
void memory_delete(struct allocation *allocation);
struct allocation *memory_find(uint64_t address);
/* The last byte's range must be mapped, too; NULL if [address, address+size) is not wholly ours. */
struct allocation *memory_span(uint64_t address, uint64_t size);
void memory_zero(uint64_t base, uint64_t size);
void memory_delete_of(CUcontext context);

/* pool.c; the lock is held */
void pools_trim(unsigned card, bool to_threshold);
void pool_free(struct allocation *allocation);
/* The card's last context has gone: so does all that its pools hold. */
void pools_delete_of(int ordinal);

/* graph.c; the lock is held */
CUresult graph_memory_free(CUdeviceptr pointer);
/* The card's last context has gone. */
void graphs_delete_of(int ordinal);
void graphs_after_fork(void);

/* vmm.c */
/* Whether the range is virtual memory of ours, whose pages may be dropped. Takes the lock. */
bool vmm_owns(uint64_t base, uint64_t size);
void vmm_after_fork(void);

/* array.c */
struct layout { uint64_t base; size_t pitch, width, rows, layers; };
bool array_layout(CUarray array, struct layout *layout);
void arrays_delete_of(CUcontext context);
void arrays_after_fork(void);

/* stream.c */
enum operation_kind { OP_COPY, OP_FILL, OP_HOST, OP_CALLBACK, OP_RECORD, OP_WAIT, OP_LAUNCH, OP_FREE };
struct copy { const uint8_t *src; uint8_t *dst; size_t src_pitch, src_slice, dst_pitch, dst_slice,
              width, height, depth; };
struct fill { uint64_t base; size_t pitch, width, height; uint32_t value; unsigned element; };
struct operation {
    enum operation_kind kind;
    struct stream *stream;
    uint64_t ticket; /* wait for the stream's launches up to here first */
    union {
        struct copy copy;
        struct fill fill;
        struct { void (*call)(void *); void *data; } host;
        struct { void (*call)(CUstream, CUresult, void *); CUstream handle; void *data; } callback;
        struct { struct event *event; uint64_t record; } event;
        uint64_t duration_ns; /* launch */
        uint64_t base;        /* free */
    };
    struct operation *next;
};
/* The stream a handle means in the current context; `handle` may be 0, 1 or 2. */
CUresult stream_of(CUstream handle, struct stream **stream);
/* In stream order: at once on this thread if nothing waits before it, else by the worker. */
CUresult stream_submit(struct stream *stream, const struct operation *operation);
CUresult stream_wait(struct stream *stream);
bool stream_idle(struct stream *stream);
CUresult context_wait(CUcontext context);
struct stream *stream_new(CUcontext context, unsigned flags, int priority);
void stream_end(struct stream *stream);
void streams_delete_of(CUcontext context);
void worker_after_fork(void);
void copy_run(const struct copy *copy);
void fill_run(const struct fill *fill);
void pool_free_at(uint64_t base);

/* event.c; `record` is the number of the event's recording, so that an older one cannot complete a newer.
 * The first two are called with the work lock held (stream.c). */
void event_stamp(struct event *event, uint64_t record, uint64_t at_ns);
void event_to_ring(struct event *event, uint64_t record, struct stream *stream);
void event_await(struct event *event, uint64_t record);
extern pthread_mutex_t work_lock;
extern pthread_cond_t work_done;

/* channel.c: timed mode */
bool channel_open(unsigned card);
bool channel_is_open(unsigned card);
uint64_t channel_push(unsigned card, uint64_t duration_ns, uint32_t event_slot);
bool channel_done(unsigned card, uint64_t ticket);
void channel_wait(unsigned card, uint64_t ticket);
uint64_t channel_head(unsigned card);
uint32_t channel_slot(unsigned card);
void channel_slot_retire(unsigned card, uint32_t slot, uint64_t ticket);
uint64_t channel_event_ns(unsigned card, uint32_t slot);
void channels_after_fork(void);

/* launch.c: how long a kernel takes, if it may be launched like this. */
struct size { unsigned grid[3], block[3], shared; };
CUresult launch_duration(CUcontext context, CUfunction function, const struct size *size, uint64_t *duration_ns);

/* module.c */
const char *function_name(CUfunction function);

#endif
