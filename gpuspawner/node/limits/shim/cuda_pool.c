/* Stream-ordered memory. A pool is charged with what it has reserved from the card, not with what the program uses of that:
 * the driver says how much (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT). It grows only in allocations, which we see, but shrinks
 * by itself when streams are synchronised; so the accounts of a pool that may shrink are settled after synchronisations,
 * before anybody is refused, and when the program asks for free memory. */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

#define CHUNK (UINT64_C(2) << 20)
enum { RESERVED_CURRENT = 5, USED_CURRENT = 7 };

struct pool {
    CUmemoryPool handle;
    int card;
    uint64_t charged;
    uint64_t live; /* allocations that are not yet freed */
    bool destroyed;
    bool may_shrink;
    struct pool *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool *pools;
static _Atomic int shrinkable; /* pools with may_shrink */

void pools_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    pools = NULL;
    atomic_store(&shrinkable, 0);
}

static void set_may_shrink(struct pool *pool, bool may)
{
    if (pool->may_shrink != may)
        atomic_fetch_add(&shrinkable, may ? 1 : -1);
    pool->may_shrink = may;
}

/* Everything below: with the lock held. */

static void drop(struct pool *pool)
{
    struct pool **at = &pools;
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    set_may_shrink(pool, false);
    accounts_release(pool->card, pool->charged);
    free(pool);
}

static bool read_pool(struct pool *pool, uint64_t *reserved, uint64_t *used)
{
    return REAL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *), pool->handle, RESERVED_CURRENT, reserved) ==
               CUDA_SUCCESS &&
           REAL(cuMemPoolGetAttribute, (CUmemoryPool, int, void *), pool->handle, USED_CURRENT, used) == CUDA_SUCCESS;
}

static void settle(struct pool *pool)
{
    uint64_t reserved, used;
    if (pool->destroyed || !read_pool(pool, &reserved, &used))
        return;
    if (reserved < pool->charged)
        accounts_release(pool->card, pool->charged - reserved);
    else
        accounts_add(pool->card, reserved - pool->charged);
    pool->charged = reserved;
    set_may_shrink(pool, reserved > used);
}

static void settle_all(void)
{
    for (struct pool *pool = pools; pool != NULL; pool = pool->next)
        if (pool->may_shrink)
            settle(pool);
}

static void trim_all(int card)
{
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        if (pool->card == card && pool->may_shrink && !pool->destroyed) {
            (void)REAL(cuMemPoolTrimTo, (CUmemoryPool, size_t), pool->handle, 0);
            settle(pool);
        }
    }
}

static bool reserve_locked(int card, uint64_t bytes)
{
    if (accounts_reserve(card, bytes))
        return true;
    if (atomic_load(&shrinkable) == 0)
        return false;
    settle_all();
    if (accounts_reserve(card, bytes))
        return true;
    trim_all(card);
    return accounts_reserve(card, bytes);
}

static struct pool *find(CUmemoryPool handle)
{
    struct pool *pool = pools;
    while (pool != NULL && (pool->handle != handle || pool->destroyed))
        pool = pool->next;
    return pool;
}

static struct pool *add(CUmemoryPool handle, int card)
{
    struct pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->handle = handle;
    pool->card = card;
    pool->next = pools;
    pools = pool;
    return pool;
}

/* Without the lock again. */

bool reserve(int card, uint64_t bytes)
{
    if (accounts_reserve(card, bytes))
        return true;
    if (card == NO_CARD || atomic_load(&shrinkable) == 0)
        return false;
    pthread_mutex_lock(&lock);
    bool ok = reserve_locked(card, bytes);
    pthread_mutex_unlock(&lock);
    return ok;
}

void pools_settle(void)
{
    if (atomic_load_explicit(&shrinkable, memory_order_relaxed) == 0)
        return;
    pthread_mutex_lock(&lock);
    settle_all();
    pthread_mutex_unlock(&lock);
}

void pools_changed(void)
{
    pthread_mutex_lock(&lock);
    for (struct pool *pool = pools; pool != NULL; pool = pool->next) {
        set_may_shrink(pool, !pool->destroyed);
        settle(pool);
    }
    pthread_mutex_unlock(&lock);
}

bool is_capturing(CUstream stream, bool per_thread)
{
    int status = 0;
    CUresult result = per_thread ? REAL(cuStreamIsCapturing_ptsz, (CUstream, int *), stream, &status)
                                 : REAL(cuStreamIsCapturing, (CUstream, int *), stream, &status);
    return result == CUDA_SUCCESS && status != 0;
}

struct request {
    CUdeviceptr *address;
    size_t size;
    CUmemoryPool pool; /* NULL: the current pool of the stream's device */
    CUstream stream;
    bool per_thread;
};

static CUresult call(const struct request *r)
{
    if (r->pool == NULL)
        return r->per_thread ? REAL(cuMemAllocAsync_ptsz, (CUdeviceptr *, size_t, CUstream), r->address, r->size, r->stream)
                             : REAL(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream), r->address, r->size, r->stream);
    return r->per_thread ? REAL(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr *, size_t, CUmemoryPool, CUstream), r->address,
                                r->size, r->pool, r->stream)
                         : REAL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream), r->address,
                                r->size, r->pool, r->stream);
}

static CUresult free_async(CUdeviceptr address, CUstream stream, bool per_thread)
{
    return per_thread ? REAL(cuMemFreeAsync_ptsz, (CUdeviceptr, CUstream), address, stream)
                      : REAL(cuMemFreeAsync, (CUdeviceptr, CUstream), address, stream);
}

/* The pool that serves the request, with the lock held. */
static CUresult pool_of(const struct request *r, struct pool **found)
{
    CUdevice device;
    CUmemoryPool handle = r->pool;
    bool own_stream = (uintptr_t)r->stream > 2; /* 0, 1 and 2 are the default streams */
    if (!own_stream || REAL(cuStreamGetDevice, (CUstream, CUdevice *), r->stream, &device) != CUDA_SUCCESS) {
        CUresult result = REAL(cuCtxGetDevice, (CUdevice *), &device);
        if (result != CUDA_SUCCESS)
            return result;
    }
    if (handle == NULL) {
        CUresult result = REAL(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice), &handle, device);
        if (result != CUDA_SUCCESS)
            return result;
    }
    *found = find(handle);
    if (*found == NULL)
        *found = add(handle, card_of_device(device));
    return *found != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static uint64_t spare(struct pool *pool)
{
    uint64_t reserved, used;
    return read_pool(pool, &reserved, &used) && reserved > used ? reserved - used : 0;
}

static CUresult allocate_locked(const struct request *r)
{
    struct pool *pool;
    uint64_t growth;
    CUresult result = pool_of(r, &pool);
    if (result != CUDA_SUCCESS)
        return result;
    if (!round_up(r->size, CHUNK, &growth))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct card_limit limit = limits_of(pool->card);
    if ((!limit.present && pool->card != NO_CARD) || limit.frozen)
        return CUDA_ERROR_OUT_OF_MEMORY;
    /* As if nothing that the pool keeps could serve it. If there is no room for that, pools give up what they keep, frees
     * that still wait for their turn included; what this one still has then may serve the request without growth. */
    if (!reserve_locked(pool->card, growth)) {
        if (pool->may_shrink)
            (void)REAL(cuStreamSynchronize, (CUstream), r->stream);
        if (!reserve_locked(pool->card, growth)) {
            if (spare(pool) < r->size)
                return CUDA_ERROR_OUT_OF_MEMORY;
            growth = 0;
        }
    }
    result = call(r);
    uint64_t reserved = pool->charged, used = 0;
    bool known = read_pool(pool, &reserved, &used);
    uint64_t grown = known && reserved > pool->charged ? reserved - pool->charged : 0;
    if (grown > growth && result == CUDA_SUCCESS && !accounts_reserve(pool->card, grown - growth)) {
        /* The driver took more than the request in whole chunks, and that does not fit. */
        (void)free_async(*r->address, r->stream, r->per_thread);
        accounts_release(pool->card, growth);
        set_may_shrink(pool, true);
        trim_all(pool->card);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (grown < growth)
        accounts_release(pool->card, growth - grown);
    pool->charged += grown;
    settle(pool);
    if (result == CUDA_SUCCESS) {
        struct held held = {*r->address, HELD_POOLED, pool->card, 0, pool};
        if (!table_put(&held)) {
            (void)free_async(*r->address, r->stream, r->per_thread);
            set_may_shrink(pool, true);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        pool->live++;
    }
    return result;
}

static CUresult allocate(const struct request *r)
{
    if (r->address == NULL || r->size == 0 || is_capturing(r->stream, r->per_thread)) /* a capture takes no memory yet */
        return call(r);
    pthread_mutex_lock(&lock);
    CUresult result = allocate_locked(r);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream)
{
    return allocate(&(struct request){address, size, NULL, stream, false});
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *address, size_t size, CUstream stream)
{
    return allocate(&(struct request){address, size, NULL, stream, true});
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    if (pool == NULL)
        return REAL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream), address, size, pool, stream);
    return allocate(&(struct request){address, size, pool, stream, false});
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *address, size_t size, CUmemoryPool pool, CUstream stream)
{
    if (pool == NULL)
        return REAL(cuMemAllocFromPoolAsync, (CUdeviceptr *, size_t, CUmemoryPool, CUstream), address, size, pool, stream);
    return allocate(&(struct request){address, size, pool, stream, true});
}

/* `known`: taken out of the table before the driver was asked. */
static CUresult freed(CUresult result, bool known, const struct held *held)
{
    if (known && result == CUDA_SUCCESS) {
        struct pool *pool = held->owner;
        pool->live--;
        if (pool->destroyed && pool->live == 0) {
            drop(pool);
        } else {
            set_may_shrink(pool, true);
            settle(pool);
        }
    } else if (known) {
        table_put(held);
    }
    return result;
}

static CUresult free_ordered(CUdeviceptr address, CUstream stream, bool per_thread)
{
    struct held held;
    if (table_take(HELD_PLAIN, address, &held)) { /* allowed for plain memory too */
        CUresult result = free_async(address, stream, per_thread);
        if (result == CUDA_SUCCESS)
            accounts_release(held.card, held.bytes);
        else
            table_put(&held);
        return result;
    }
    pthread_mutex_lock(&lock);
    bool known = table_take(HELD_POOLED, address, &held);
    CUresult result = freed(free_async(address, stream, per_thread), known, &held);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return free_ordered(address, stream, false); }

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) { return free_ordered(address, stream, true); }

CUresult pools_free(CUdeviceptr address)
{
    struct held held;
    pthread_mutex_lock(&lock);
    bool known = table_take(HELD_POOLED, address, &held);
    CUresult result = freed(REAL(cuMemFree_v2, (CUdeviceptr), address), known, &held);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *pool, const struct allocation_prop *props)
{
    CUresult result = REAL(cuMemPoolCreate, (CUmemoryPool *, const struct allocation_prop *), pool, props);
    if (result != CUDA_SUCCESS || props->location.type != LOCATION_DEVICE)
        return result;
    pthread_mutex_lock(&lock);
    struct pool *added = add(*pool, card_of_device(props->location.id));
    if (added != NULL)
        settle(added);
    pthread_mutex_unlock(&lock);
    if (added == NULL) {
        (void)REAL(cuMemPoolDestroy, (CUmemoryPool), *pool);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result;
}

/* A pool with allocations lives on in the driver until the last of them is freed, and so does its charge. */
EXPORT CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    CUresult result = REAL(cuMemPoolDestroy, (CUmemoryPool), handle);
    if (pool != NULL && result == CUDA_SUCCESS) {
        set_may_shrink(pool, false);
        pool->destroyed = true;
        if (pool->live == 0)
            drop(pool);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    CUresult result = REAL(cuMemPoolTrimTo, (CUmemoryPool, size_t), handle, keep);
    if (pool != NULL)
        settle(pool);
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value)
{
    pthread_mutex_lock(&lock);
    struct pool *pool = find(handle);
    CUresult result = REAL(cuMemPoolSetAttribute, (CUmemoryPool, int, void *), handle, attribute, value);
    if (pool != NULL)
        settle(pool);
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- synchronisations, after which pools may have shrunk ---- */
#define SYNCHRONISE(symbol, type, ...)                                                                                  \
    CUresult result = REAL(symbol, type, __VA_ARGS__);                                                                  \
    pools_settle();                                                                                                     \
    return result

EXPORT CUresult cuStreamSynchronize(CUstream stream) { SYNCHRONISE(cuStreamSynchronize, (CUstream), stream); }

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream stream) { SYNCHRONISE(cuStreamSynchronize_ptsz, (CUstream), stream); }

EXPORT CUresult cuEventSynchronize(CUevent event) { SYNCHRONISE(cuEventSynchronize, (CUevent), event); }

EXPORT CUresult cuCtxSynchronize(void) { SYNCHRONISE(cuCtxSynchronize, (void), ); }

EXPORT CUresult cuCtxSynchronize_v2(CUcontext context) { SYNCHRONISE(cuCtxSynchronize_v2, (CUcontext), context); }
