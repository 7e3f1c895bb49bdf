/* Card memory: what is taken from a card, where it lies, and finding an allocation by address. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

#define PAGE 4096ull
#define UP(value, unit) (((value) + (unit) - 1) & ~((uint64_t)(unit) - 1))

CUresult memory_charge(unsigned card, uint64_t bytes) {
    int status = sim_call(SIM_ALLOC, card, bytes, NULL, NULL);
    if (status == SIM_NO_MEMORY) { /* what pools keep without using it comes before a refusal */
        pools_trim(card, false);
        status = sim_call(SIM_ALLOC, card, bytes, NULL, NULL);
    }
    return result_of(status);
}

void memory_refund(unsigned card, uint64_t bytes) {
    if (bytes) sim_call(SIM_FREE, card, bytes, NULL, NULL);
}

void memory_zero(uint64_t base, uint64_t size) {
    uint64_t first = UP(base, PAGE), end = base + size, last = end & ~(PAGE - 1);
    bool ours = base >= driver.arena_base && end <= driver.arena_base + driver.arena_size;
    bool mapped = !ours && last > first && vmm_owns(base, size);
    if ((!ours && !mapped) || last <= first) {
        memset((void *)(uintptr_t)base, 0, size);
        return;
    }
    memset((void *)(uintptr_t)base, 0, first - base);
    /* Whole pages are dropped: they read as zero and take no memory until they are written. */
    if (madvise((void *)(uintptr_t)first, last - first, mapped ? MADV_REMOVE : MADV_DONTNEED))
        memset((void *)(uintptr_t)first, 0, last - first);
    memset((void *)(uintptr_t)last, 0, end - last);
}

CUresult memory_new(CUcontext context, enum memory_kind kind, uint64_t size, uint64_t charge,
                    struct allocation **out) {
    uint64_t taken = UP(size, SIM_ALLOC_GRANULE), align = SIM_ALLOC_GRANULE;
    if (taken < size) return CUDA_ERROR_OUT_OF_MEMORY;
    if (taken >= SIM_LARGE_GRANULE) align = SIM_LARGE_GRANULE;
    else if (taken >= PAGE) align = PAGE;
    if (align > SIM_ALLOC_GRANULE) taken = UP(taken, PAGE); /* so that its pages are nobody else's */
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation) return CUDA_ERROR_OPERATING_SYSTEM;
    CUresult result = charge ? memory_charge(context->card, charge) : CUDA_SUCCESS;
    uint64_t base = result ? 0 : arena_take(&driver.addresses, taken, align);
    if (!base) {
        if (!result) memory_refund(context->card, charge);
        free(allocation);
        return result ? result : CUDA_ERROR_OUT_OF_MEMORY;
    }
    *allocation = (struct allocation){.node.key = base, .size = size, .taken = taken, .charged = charge,
                                      .kind = kind, .ordinal = context->ordinal, .context = context,
                                      .id = ++driver.next_id};
    node_insert(&driver.allocations, &allocation->node);
    *out = allocation;
    return CUDA_SUCCESS;
}

void memory_delete(struct allocation *allocation) {
    uint64_t base = allocation->node.key;
    node_remove(&driver.allocations, base, 0);
    if (allocation->kind == MEM_HOST) {
        munmap((void *)(uintptr_t)base, allocation->taken);
    } else if (allocation->kind != MEM_REGISTERED && allocation->kind != MEM_MAPPED) {
        if (allocation->taken >= PAGE) madvise((void *)(uintptr_t)base, allocation->taken, MADV_DONTNEED);
        arena_give(&driver.addresses, base, allocation->taken);
        memory_refund(driver.card_of[allocation->ordinal], allocation->charged);
    }
    free(allocation);
}

struct allocation *memory_find(uint64_t address) {
    struct allocation *found = (struct allocation *)node_at_most(driver.allocations, address, UINT64_MAX);
    if (!found || address - found->node.key >= found->size) return NULL;
    return found;
}

struct allocation *memory_span(uint64_t address, uint64_t size) {
    struct allocation *first = memory_find(address), *part = first;
    if (!first || address + size < address) return NULL;
    if (part->kind == MEM_MAPPED && !(part->flags & 1)) return NULL; /* no access granted */
    /* Mapped pieces of one reservation may follow each other without a gap. */
    while (part && address + size > part->node.key + part->size) {
        if (part->kind != MEM_MAPPED) return NULL;
        part = memory_find(part->node.key + part->size);
        if (part && (part->kind != MEM_MAPPED || !(part->flags & 1))) return NULL;
    }
    return part ? first : NULL;
}

void memory_delete_of(CUcontext context) {
    struct node *node = node_first(driver.allocations);
    while (node) {
        struct allocation *allocation = (struct allocation *)node;
        uint64_t key = node->key;
        bool goes = allocation->context == context &&
                    (allocation->kind == MEM_DEVICE || allocation->kind == MEM_MANAGED || allocation->kind == MEM_HOST);
        if (goes) memory_delete(allocation);
        node = node_at_least(driver.allocations, key + 1, 0);
    }
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    NEED_CONTEXT(context);
    if (!free_bytes || !total) return CUDA_ERROR_INVALID_VALUE;
    const struct sim_card *card = card_of(context);
    *total = card->model.memory_bytes;
    *free_bytes = *total - __atomic_load_n(&card->used, __ATOMIC_ACQUIRE);
    struct sim_limits own;
    if (driver.page->limited && !sim_get_limits((unsigned)(card - driver.page->cards), NULL, &own) && own.hard < *total) {
        size_t left = own.used < own.hard ? own.hard - own.used : 0;
        *total = own.hard; /* within a limited cgroup, its limit is the card */
        if (left < *free_bytes) *free_bytes = left;
    }
    return CUDA_SUCCESS;
}

API cuMemGetInfo(unsigned *free_bytes, unsigned *total) {
    size_t whole, left;
    if (!free_bytes || !total) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemGetInfo_v2(&left, &whole);
    if (result) return result;
    *free_bytes = left > UINT32_MAX ? UINT32_MAX : (unsigned)left;
    *total = whole > UINT32_MAX ? UINT32_MAX : (unsigned)whole;
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, size_t size, enum memory_kind kind, unsigned flags) {
    NEED_CONTEXT(context);
    if (!pointer || !size) return CUDA_ERROR_INVALID_VALUE;
    if (size > UINT64_MAX - SIM_LARGE_GRANULE) return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *allocation;
    LOCK();
    CUresult result = memory_new(context, kind, size, UP(size, SIM_ALLOC_GRANULE), &allocation);
    if (!result) {
        allocation->flags = flags;
        *pointer = allocation->node.key;
    }
    UNLOCK();
    return result;
}

API cuMemAlloc_v2(CUdeviceptr *pointer, size_t size) { return allocate(pointer, size, MEM_DEVICE, 0); }

API cuMemAllocManaged(CUdeviceptr *pointer, size_t size, unsigned flags) {
    if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE; /* attach global or host */
    return allocate(pointer, size, MEM_MANAGED, flags);
}

API cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height, unsigned element) {
    NEED_CONTEXT(context);
    if (!pointer || !pitch || !width || !height || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = UP(width, SIM_ALLOC_GRANULE), size;
    if (row < width || __builtin_mul_overflow(row, height, &size)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = allocate(pointer, size, MEM_DEVICE, 0);
    if (!result) *pitch = row;
    return result;
}

API cuMemFree_v2(CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    if (!pointer) return CUDA_SUCCESS;
    context_wait(context);
    LOCK();
    struct allocation *found = memory_find(pointer);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    if (found && found->node.key == pointer) {
        result = CUDA_SUCCESS;
        if (found->kind == MEM_DEVICE || found->kind == MEM_MANAGED) memory_delete(found);
        else if (found->kind == MEM_POOL) pool_free(found);
        else if (found->kind == MEM_GRAPH) result = graph_memory_free(pointer);
        else result = CUDA_ERROR_INVALID_VALUE;
    }
    UNLOCK();
    return result;
}

API cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    NEED_CONTEXT(context);
    LOCK();
    struct allocation *found = memory_find(pointer);
    if (found && found->kind == MEM_REGISTERED) found = NULL;
    if (found && base) *base = found->node.key;
    if (found && size) *size = found->size;
    UNLOCK();
    return found ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

/* ---- hints about managed memory: accepted where they make sense, nothing to do ---- */
static CUresult managed_only(CUdeviceptr pointer, size_t size) {
    NEED_CONTEXT(context);
    LOCK();
    struct allocation *found = size ? memory_span(pointer, size) : NULL;
    bool good = found && found->kind == MEM_MANAGED;
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAdvise(CUdeviceptr pointer, size_t size, int advice, CUdevice device) {
    (void)device;
    return advice < 1 || advice > 6 ? CUDA_ERROR_INVALID_VALUE : managed_only(pointer, size);
}

API cuMemAdvise_v2(CUdeviceptr pointer, size_t size, int advice, CUmemLocation location) {
    (void)location;
    return advice < 1 || advice > 6 ? CUDA_ERROR_INVALID_VALUE : managed_only(pointer, size);
}

API cuMemPrefetchAsync(CUdeviceptr pointer, size_t size, CUdevice device, CUstream stream) {
    (void)device;
    struct stream *checked;
    CUresult result = stream_of(stream, &checked);
    return result ? result : managed_only(pointer, size);
}
ALIAS(cuMemPrefetchAsync_ptsz, cuMemPrefetchAsync);

API cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t size, CUmemLocation location, unsigned flags, CUstream stream) {
    (void)location;
    struct stream *checked;
    CUresult result = flags ? CUDA_ERROR_INVALID_VALUE : stream_of(stream, &checked);
    return result ? result : managed_only(pointer, size);
}
ALIAS(cuMemPrefetchAsync_v2_ptsz, cuMemPrefetchAsync_v2);

API cuStreamAttachMemAsync(CUstream stream, CUdeviceptr pointer, size_t size, unsigned flags) {
    (void)flags;
    struct stream *checked;
    CUresult result = stream_of(stream, &checked);
    return result ? result : managed_only(pointer, size ? size : 1);
}
ALIAS(cuStreamAttachMemAsync_ptsz, cuStreamAttachMemAsync);
