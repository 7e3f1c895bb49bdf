/* Memory pools and stream-ordered allocation. A pool takes memory from its card in multiples of
 * SIM_LARGE_GRANULE and counts what it hands out in multiples of SIM_ALLOC_GRANULE. It never suffers from
 * fragments: what is reserved is what is used, rounded up, plus what was freed and not yet returned. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum attribute { REUSE_FOLLOW = 1, REUSE_OPPORTUNISTIC, REUSE_INTERNAL, RELEASE_THRESHOLD, RESERVED_CURRENT,
                 RESERVED_HIGH, USED_CURRENT, USED_HIGH };

struct pool {
    struct object object;
    int ordinal;
    unsigned card;
    bool is_default, destroyed; /* destroyed pools go when their last allocation does */
    uint64_t reserved, reserved_high, used, used_high, threshold, max_size;
    int reuse[4];
    CUmemPoolProps properties;
    struct pool *next;
};

#define UP(value, unit) (((value) + (unit) - 1) & ~((uint64_t)(unit) - 1))

static struct pool *pool_new(int ordinal) {
    struct pool *pool = object_new(KIND_POOL, sizeof *pool);
    if (!pool) return NULL;
    pool->ordinal = ordinal;
    pool->card = driver.card_of[ordinal];
    pool->reuse[REUSE_FOLLOW] = pool->reuse[REUSE_OPPORTUNISTIC] = pool->reuse[REUSE_INTERNAL] = 1;
    pool->properties = (CUmemPoolProps){.type = 1, .location = {LOCATION_DEVICE, ordinal}};
    pool->next = driver.pools;
    driver.pools = pool;
    return pool;
}

static struct pool *default_pool(int ordinal) {
    if (!driver.default_pool[ordinal]) {
        struct pool *pool = pool_new(ordinal);
        if (!pool) return NULL;
        pool->is_default = true;
        driver.default_pool[ordinal] = pool;
    }
    return driver.default_pool[ordinal];
}

static struct pool *current_pool(int ordinal) {
    struct pool *pool = driver.current_pool[ordinal];
    return pool && object_valid(pool, KIND_POOL) && !pool->destroyed ? pool : default_pool(ordinal);
}

static void shrink(struct pool *pool, uint64_t keep) {
    uint64_t least = UP(pool->used, SIM_LARGE_GRANULE);
    if (keep < least) keep = least;
    keep = UP(keep, SIM_LARGE_GRANULE);
    if (pool->reserved <= keep) return;
    memory_refund(pool->card, pool->reserved - keep);
    pool->reserved = keep;
}

void pools_trim(unsigned card, bool to_threshold) {
    for (struct pool *pool = driver.pools; pool; pool = pool->next)
        if (pool->card == card && pool->reserved > pool->used) {
            uint64_t keep = to_threshold ? pool->threshold : 0;
            if (keep < pool->reserved) shrink(pool, keep);
        }
}

static void pool_end(struct pool *pool) {
    shrink(pool, 0);
    struct pool **at = &driver.pools;
    while (*at != pool) at = &(*at)->next;
    *at = pool->next;
    object_free(pool);
}

void pool_free(struct allocation *allocation) {
    struct pool *pool = allocation->pool;
    pool->used -= UP(allocation->size, SIM_ALLOC_GRANULE);
    memory_delete(allocation);
    if (pool->destroyed && !pool->used) pool_end(pool);
}

void pool_free_at(uint64_t base) {
    LOCK();
    struct allocation *found = memory_find(base);
    if (found && found->node.key == base && found->kind == MEM_POOL) pool_free(found);
    UNLOCK();
}

void pools_delete_of(int ordinal) {
    struct node *node = node_first(driver.allocations);
    while (node) {
        struct allocation *allocation = (struct allocation *)node;
        uint64_t key = node->key;
        if (allocation->kind == MEM_POOL && allocation->ordinal == ordinal) pool_free(allocation);
        node = node_at_least(driver.allocations, key + 1, 0);
    }
    for (struct pool *pool = driver.pools; pool; pool = pool->next)
        if (pool->ordinal == ordinal) shrink(pool, 0);
}

static CUresult pool_take(struct pool *pool, CUcontext context, size_t size, struct allocation **out) {
    uint64_t rounded = UP(size, SIM_ALLOC_GRANULE);
    if (rounded < size) return CUDA_ERROR_OUT_OF_MEMORY;
    if (pool->max_size && rounded > pool->max_size - pool->used) return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t want = UP(pool->used + rounded, SIM_LARGE_GRANULE);
    if (want > pool->reserved) {
        uint64_t more = want - pool->reserved;
        pool->reserved = want; /* pools_trim, on the way, must not take this one's for spare */
        uint64_t used = pool->used;
        pool->used = want;
        CUresult result = memory_charge(pool->card, more);
        pool->used = used;
        if (result) {
            pool->reserved -= more;
            return result;
        }
    }
    CUresult result = memory_new(context, MEM_POOL, size, 0, out);
    if (result) return result;
    (*out)->pool = pool;
    (*out)->ordinal = pool->ordinal;
    pool->used += rounded;
    if (pool->used > pool->used_high) pool->used_high = pool->used;
    if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, CUmemoryPool given, CUstream handle) {
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result) return result;
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    if (!size) return *pointer = 0, CUDA_SUCCESS;
    LOCK();
    struct pool *pool = given ? given : current_pool(stream->context->ordinal);
    struct allocation *allocation;
    result = pool ? pool_take(pool, stream->context, size, &allocation) : CUDA_ERROR_OPERATING_SYSTEM;
    if (!result) *pointer = allocation->node.key;
    UNLOCK();
    return result;
}

API cuMemAllocAsync(CUdeviceptr *pointer, size_t size, CUstream stream) { return allocate(pointer, size, NULL, stream); }
ALIAS(cuMemAllocAsync_ptsz, cuMemAllocAsync);

#define CHECK_POOL(pool) do { NEED_INIT(); \
    if (!object_valid(pool, KIND_POOL) || (pool)->destroyed) return CUDA_ERROR_INVALID_VALUE; } while (0)

API cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t size, CUmemoryPool pool, CUstream stream) {
    CHECK_POOL(pool);
    return allocate(pointer, size, pool, stream);
}
ALIAS(cuMemAllocFromPoolAsync_ptsz, cuMemAllocFromPoolAsync);

API cuMemFree_v2(CUdeviceptr pointer);

API cuMemFreeAsync(CUdeviceptr pointer, CUstream handle) {
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result) return result;
    if (!pointer) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *found = memory_find(pointer);
    enum memory_kind kind = found && found->node.key == pointer ? found->kind : MEM_ARRAY;
    UNLOCK();
    if (kind == MEM_DEVICE || kind == MEM_GRAPH) return cuMemFree_v2(pointer);
    if (kind != MEM_POOL) return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(stream, &(struct operation){.kind = OP_FREE, .base = pointer});
}
ALIAS(cuMemFreeAsync_ptsz, cuMemFreeAsync);

API cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties) {
    NEED_INIT();
    if (!pool || !properties || properties->type != 1) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != LOCATION_DEVICE || properties->handle_types) return CUDA_ERROR_NOT_SUPPORTED;
    NEED_DEVICE(properties->location.id);
    LOCK();
    struct pool *made = pool_new(properties->location.id);
    if (made) {
        made->properties = *properties;
        made->max_size = properties->max_size;
    }
    UNLOCK();
    if (!made) return CUDA_ERROR_OPERATING_SYSTEM;
    *pool = made;
    return CUDA_SUCCESS;
}

API cuMemPoolDestroy(CUmemoryPool pool) {
    CHECK_POOL(pool);
    if (pool->is_default) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    pool->destroyed = true;
    if (!pool->used) pool_end(pool);
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    CHECK_POOL(pool);
    LOCK();
    if (keep < pool->reserved) shrink(pool, keep);
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CHECK_POOL(pool);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    LOCK();
    switch (attribute) {
    case REUSE_FOLLOW: case REUSE_OPPORTUNISTIC: case REUSE_INTERNAL:
        pool->reuse[attribute] = *(int *)value;
        break;
    case RELEASE_THRESHOLD: pool->threshold = *(uint64_t *)value; break;
    case RESERVED_HIGH: /* may only be put back to what is now */
        if (*(uint64_t *)value) result = CUDA_ERROR_INVALID_VALUE;
        else pool->reserved_high = pool->reserved;
        break;
    case USED_HIGH:
        if (*(uint64_t *)value) result = CUDA_ERROR_INVALID_VALUE;
        else pool->used_high = pool->used;
        break;
    default: result = CUDA_ERROR_INVALID_VALUE;
    }
    UNLOCK();
    return result;
}

API cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CHECK_POOL(pool);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = CUDA_SUCCESS;
    LOCK();
    switch (attribute) {
    case REUSE_FOLLOW: case REUSE_OPPORTUNISTIC: case REUSE_INTERNAL:
        *(int *)value = pool->reuse[attribute];
        break;
    case RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; break;
    case RESERVED_CURRENT: *(uint64_t *)value = pool->reserved; break;
    case RESERVED_HIGH: *(uint64_t *)value = pool->reserved_high; break;
    case USED_CURRENT: *(uint64_t *)value = pool->used; break;
    case USED_HIGH: *(uint64_t *)value = pool->used_high; break;
    case 9: *(int *)value = pool->properties.type; break;
    case 10: *(int *)value = pool->properties.handle_types; break;
    case 11: *(int *)value = pool->properties.location.id; break;
    case 12: *(int *)value = pool->properties.location.type; break;
    case 13: *(uint64_t *)value = pool->max_size; break;
    case 14: *(int *)value = 0; break;
    default: result = CUDA_ERROR_INVALID_VALUE;
    }
    UNLOCK();
    return result;
}

API cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count) {
    CHECK_POOL(pool);
    for (size_t i = 0; i < count; i++)
        if (!access || access[i].location.type != LOCATION_DEVICE || access[i].location.id < 0 ||
            access[i].location.id >= driver.device_count)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS; /* every card reaches every pool here */
}

API cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *location) {
    CHECK_POOL(pool);
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    *flags = 3;
    return CUDA_SUCCESS;
}

API cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    NEED_DEVICE(device);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    *pool = default_pool(device);
    UNLOCK();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

API cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    NEED_DEVICE(device);
    if (!pool) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    *pool = current_pool(device);
    UNLOCK();
    return *pool ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

API cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    NEED_DEVICE(device);
    CHECK_POOL(pool);
    if (pool->ordinal != device) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    driver.current_pool[device] = pool;
    UNLOCK();
    return CUDA_SUCCESS;
}

static CUresult at_location(const CUmemLocation *location, int type) {
    NEED_INIT();
    if (!location) return CUDA_ERROR_INVALID_VALUE;
    if (location->type != LOCATION_DEVICE || type != 1) return CUDA_ERROR_NOT_SUPPORTED;
    NEED_DEVICE(location->id);
    return CUDA_SUCCESS;
}

API cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = at_location(location, type);
    return result ? result : cuDeviceGetDefaultMemPool(pool, location->id);
}

API cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    CUresult result = at_location(location, type);
    return result ? result : cuDeviceGetMemPool(pool, location->id);
}

API cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    CUresult result = at_location(location, type);
    return result ? result : cuDeviceSetMemPool(location->id, pool);
}
