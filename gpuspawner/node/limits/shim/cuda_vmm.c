/* Virtual memory functions: physical memory made by cuMemCreate. It lives until its last handle is released and its last
 * mapping is gone. Memory on the host is not charged, nor is what another process shared (that one pays for it). */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

struct physical {
    int card;
    uint64_t bytes;
    uint64_t handles, mappings;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* A sparse array that physical memory was mapped into. It holds on to that memory until it ends itself: which of its tiles
 * are still mapped is not followed. */
static struct hold {
    CUarray array;
    CUcontext context; /* with which the array ends at the latest */
    struct physical *physical;
    struct hold *next;
} *holds;

void vmm_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    holds = NULL;
}

/* With the lock held. */
static void end_if_unused(struct physical *physical)
{
    if (physical->handles != 0 || physical->mappings != 0)
        return;
    accounts_release(physical->card, physical->bytes);
    free(physical);
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const struct allocation_prop *prop,
                            unsigned long long flags)
{
#define CALL REAL(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const struct allocation_prop *, unsigned long long), \
                  handle, size, prop, flags)
    if (handle == NULL || prop == NULL || size == 0 || prop->location.type != LOCATION_DEVICE)
        return CALL;
    int card = card_of_device(prop->location.id);
    if (!reserve(card, size)) /* the driver takes whole granules only and refuses other sizes */
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct physical *physical = malloc(sizeof *physical);
    CUresult result = physical != NULL ? CALL : CUDA_ERROR_OUT_OF_MEMORY;
#undef CALL
    if (result != CUDA_SUCCESS) {
        accounts_release(card, size);
        free(physical);
        return result;
    }
    *physical = (struct physical){card, size, 1, 0};
    struct held held = {*handle, HELD_PHYSICAL, card, size, physical};
    if (!table_put(&held)) {
        (void)REAL(cuMemRelease, (CUmemGenericAllocationHandle), *handle);
        accounts_release(card, size);
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result; /* cppcheck-suppress memleak ; the table has it */
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    struct held held;
    pthread_mutex_lock(&lock);
    bool known = table_take(HELD_PHYSICAL, handle, &held);
    CUresult result = REAL(cuMemRelease, (CUmemGenericAllocationHandle), handle);
    if (known && result == CUDA_SUCCESS) {
        struct physical *physical = held.owner;
        if (--physical->handles != 0)
            table_put(&held);
        else
            end_if_unused(physical);
    } else if (known) {
        table_put(&held);
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle *, void *), handle, address);
    struct held known, mapping;
    if (result == CUDA_SUCCESS) {
        if (table_get(HELD_PHYSICAL, *handle, &known)) {
            ((struct physical *)known.owner)->handles++;
        } else if (table_get(HELD_MAPPING, (uint64_t)(uintptr_t)address, &mapping) && mapping.owner != NULL) {
            struct physical *physical = mapping.owner; /* all its handles had been released */
            struct held held = {*handle, HELD_PHYSICAL, physical->card, physical->bytes, physical};
            physical->handles += table_put(&held);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT CUresult cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                         unsigned long long flags)
{
    pthread_mutex_lock(&lock);
    CUresult result =
        REAL(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long), address, size,
             offset, handle, flags);
    if (result == CUDA_SUCCESS) {
        struct held physical;
        bool ours = table_get(HELD_PHYSICAL, handle, &physical);
        struct held held = {address, HELD_MAPPING, NO_CARD, size, ours ? physical.owner : NULL};
        if (table_put(&held) && ours)
            ((struct physical *)physical.owner)->mappings++;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* One call may end several mappings that follow each other. */
EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size)
{
    pthread_mutex_lock(&lock);
    CUresult result = REAL(cuMemUnmap, (CUdeviceptr, size_t), address, size);
    struct held held;
    for (uint64_t at = address; result == CUDA_SUCCESS && at - address < size; at += held.bytes) {
        if (!table_take(HELD_MAPPING, at, &held))
            break;
        struct physical *physical = held.owner;
        if (physical != NULL) {
            physical->mappings--;
            end_if_unused(physical);
        }
    }
    pthread_mutex_unlock(&lock);
    return result;
}

/* ---- sparse arrays ---- */
struct array_map { /* CUarrayMapInfo */
    int resource_type;
    CUarray array; /* or mipmapped array */
    int subresource_type;
    uint64_t subresource[4];
    int operation, handle_type;
    CUmemGenericAllocationHandle handle;
    unsigned long long offset;
    unsigned devices, flags, reserved[2];
};
_Static_assert(sizeof(struct array_map) == 96, "CUarrayMapInfo");
enum { OPERATION_MAP = 1 };

static bool holds_already(CUarray array, const struct physical *physical)
{
    struct hold *hold = holds;
    while (hold != NULL && (hold->array != array || hold->physical != physical))
        hold = hold->next;
    return hold != NULL;
}

/* False: no memory to remember it. */
static bool hold(const struct array_map *map)
{
    struct held physical, array;
    if (map->operation != OPERATION_MAP || !table_get(HELD_PHYSICAL, map->handle, &physical) ||
        holds_already(map->array, physical.owner))
        return true;
    struct hold *made = malloc(sizeof *made);
    if (made == NULL)
        return false;
    bool known = table_get(HELD_ARRAY, (uint64_t)(uintptr_t)map->array, &array);
    *made = (struct hold){map->array, known ? array.owner : NULL, physical.owner, holds};
    holds = made;
    made->physical->mappings++;
    return true;
}

static void end_holds(CUarray array, CUcontext context)
{
    pthread_mutex_lock(&lock);
    for (struct hold **at = &holds; *at != NULL;) {
        struct hold *hold = *at;
        if ((array == NULL || hold->array != array) && (context == NULL || hold->context != context)) {
            at = &hold->next;
            continue;
        }
        *at = hold->next;
        hold->physical->mappings--;
        end_if_unused(hold->physical);
        free(hold);
    }
    pthread_mutex_unlock(&lock);
}

void vmm_array_ended(CUarray array) { end_holds(array, NULL); }
void vmm_context_ended(CUcontext context) { end_holds(NULL, context); }

/* Held before the driver is asked: where it refuses, the array keeps a hold too many, and nothing is charged too little. */
#define MAP_ARRAY(symbol)                                                                                               \
    bool ok = true;                                                                                                     \
    pthread_mutex_lock(&lock);                                                                                          \
    for (unsigned i = 0; maps != NULL && ok && i < count; i++)                                                          \
        ok = hold(&maps[i]);                                                                                            \
    pthread_mutex_unlock(&lock);                                                                                        \
    return ok ? REAL(symbol, (struct array_map *, unsigned, CUstream), maps, count, stream) : CUDA_ERROR_OUT_OF_MEMORY

EXPORT CUresult cuMemMapArrayAsync(struct array_map *maps, unsigned count, CUstream stream)
{
    MAP_ARRAY(cuMemMapArrayAsync);
}

EXPORT CUresult cuMemMapArrayAsync_ptsz(struct array_map *maps, unsigned count, CUstream stream)
{
    MAP_ARRAY(cuMemMapArrayAsync_ptsz);
}
