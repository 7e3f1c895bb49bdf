/* Host memory known to the driver, and what is known about any pointer. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

static CUresult host_new(CUcontext context, uint64_t base, uint64_t size, enum memory_kind kind, unsigned flags) {
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation) return CUDA_ERROR_OPERATING_SYSTEM;
    *allocation = (struct allocation){.node.key = base, .size = size, .taken = (size + 4095) & ~4095ull, .kind = kind,
                                      .flags = flags, .ordinal = context->ordinal, .context = context};
    LOCK();
    allocation->id = ++driver.next_id;
    node_insert(&driver.allocations, &allocation->node);
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
    NEED_CONTEXT(context);
    if (!pointer || !size || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    if (size > UINT64_MAX / 2) return CUDA_ERROR_OUT_OF_MEMORY;
    void *base = mmap(NULL, (size + 4095) & ~4095ull, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = host_new(context, (uint64_t)(uintptr_t)base, size, MEM_HOST, flags);
    if (result) munmap(base, (size + 4095) & ~4095ull);
    else *pointer = base;
    return result;
}

API cuMemAllocHost_v2(void **pointer, size_t size) { return cuMemHostAlloc(pointer, size, 0); }

static CUresult host_end(const void *pointer, enum memory_kind kind, CUresult otherwise) {
    NEED_CONTEXT(context);
    uint64_t base = (uint64_t)(uintptr_t)pointer;
    context_wait(context);
    LOCK();
    struct allocation *found = memory_find(base);
    bool good = found && found->node.key == base && found->kind == kind;
    if (good) memory_delete(found);
    UNLOCK();
    return good ? CUDA_SUCCESS : otherwise;
}

API cuMemFreeHost(void *pointer) { return host_end(pointer, MEM_HOST, CUDA_ERROR_INVALID_VALUE); }

API cuMemHostRegister_v2(void *pointer, size_t size, unsigned flags) {
    NEED_CONTEXT(context);
    uint64_t base = (uint64_t)(uintptr_t)pointer;
    if (!pointer || !size || flags > 15 || base + size < base) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *before = (struct allocation *)node_at_most(driver.allocations, base + size - 1, UINT64_MAX);
    bool taken = before && before->node.key + before->size > base;
    UNLOCK();
    if (taken) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return host_new(context, base, size, MEM_REGISTERED, flags);
}

API cuMemHostUnregister(void *pointer) {
    return host_end(pointer, MEM_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *pointer, unsigned flags) {
    NEED_CONTEXT(context);
    if (!device || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *found = memory_find((uint64_t)(uintptr_t)pointer);
    bool good = found && (found->kind == MEM_HOST || found->kind == MEM_REGISTERED);
    UNLOCK();
    if (!good) return CUDA_ERROR_INVALID_VALUE;
    *device = (uint64_t)(uintptr_t)pointer;
    return CUDA_SUCCESS;
}

API cuMemHostGetFlags(unsigned *flags, void *pointer) {
    NEED_CONTEXT(context);
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *found = memory_find((uint64_t)(uintptr_t)pointer);
    bool good = found && (found->kind == MEM_HOST || found->kind == MEM_REGISTERED);
    if (good) *flags = found->flags;
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* ---- pointer attributes ---- */
enum { POINTER_CONTEXT = 1, POINTER_MEMORY_TYPE, POINTER_DEVICE, POINTER_HOST, POINTER_P2P_TOKENS, POINTER_SYNC_MEMOPS,
       POINTER_BUFFER_ID, POINTER_IS_MANAGED, POINTER_ORDINAL, POINTER_LEGACY_IPC, POINTER_START, POINTER_SIZE,
       POINTER_MAPPED, POINTER_HANDLE_TYPES, POINTER_RDMA, POINTER_ACCESS, POINTER_POOL, POINTER_MAPPING_SIZE,
       POINTER_MAPPING_BASE, POINTER_BLOCK_ID, POINTER_HW_DECOMPRESS };

/* The lock is held; found may be NULL. Sizes written are the interface's. */
static CUresult attribute_of(void *out, int attribute, CUdeviceptr pointer, struct allocation *found) {
    bool host = found && (found->kind == MEM_HOST || found->kind == MEM_REGISTERED);
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case POINTER_CONTEXT: *(CUcontext *)out = found->kind == MEM_MAPPED || found->kind == MEM_POOL ? NULL : found->context; break;
    case POINTER_MEMORY_TYPE: *(unsigned *)out = host ? MEMORY_HOST : MEMORY_DEVICE; break;
    case POINTER_DEVICE: *(CUdeviceptr *)out = pointer; break;
    case POINTER_HOST:
        if (!host && found->kind != MEM_MANAGED) return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)(uintptr_t)pointer;
        break;
    case POINTER_SYNC_MEMOPS: *(unsigned char *)out = found->sync_memops; break;
    case POINTER_BUFFER_ID: case POINTER_BLOCK_ID: *(uint64_t *)out = found->id; break;
    case POINTER_IS_MANAGED: *(unsigned char *)out = found->kind == MEM_MANAGED; break;
    case POINTER_ORDINAL: *(int *)out = found->ordinal; break;
    case POINTER_LEGACY_IPC: *(unsigned char *)out = 0; break;
    case POINTER_START: *(CUdeviceptr *)out = found->node.key; break;
    case POINTER_SIZE: *(size_t *)out = found->size; break;
    case POINTER_MAPPED: *(unsigned char *)out = 1; break;
    case POINTER_HANDLE_TYPES: *(uint64_t *)out = 0; break;
    case POINTER_RDMA: *(unsigned char *)out = 0; break;
    case POINTER_ACCESS: *(int *)out = 3; break;
    case POINTER_POOL: *(CUmemoryPool *)out = found->pool; break;
    case POINTER_MAPPING_SIZE: *(size_t *)out = found->taken; break;
    case POINTER_MAPPING_BASE: *(CUdeviceptr *)out = found->node.key; break;
    case POINTER_HW_DECOMPRESS: *(unsigned char *)out = 0; break;
    default: return attribute == POINTER_P2P_TOKENS ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *out, int attribute, CUdeviceptr pointer) {
    NEED_INIT();
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult result = attribute_of(out, attribute, pointer, memory_find(pointer));
    UNLOCK();
    return result;
}

/* Unlike the single form this does not fail for a pointer it does not know: values are zero then. */
API cuPointerGetAttributes(unsigned count, int *attributes, void **out, CUdeviceptr pointer) {
    NEED_INIT();
    if (!count || !attributes || !out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *found = memory_find(pointer);
    for (unsigned i = 0; i < count; i++) {
        if (attribute_of(out[i], attributes[i], pointer, found) == CUDA_SUCCESS) continue;
        switch (attributes[i]) {
        case POINTER_CONTEXT: case POINTER_HOST: case POINTER_POOL: *(void **)out[i] = NULL; break;
        case POINTER_DEVICE: case POINTER_START: case POINTER_MAPPING_BASE: *(CUdeviceptr *)out[i] = 0; break;
        case POINTER_SIZE: case POINTER_MAPPING_SIZE: case POINTER_BUFFER_ID: case POINTER_BLOCK_ID:
        case POINTER_HANDLE_TYPES: *(uint64_t *)out[i] = 0; break;
        case POINTER_MEMORY_TYPE: case POINTER_ACCESS: *(int *)out[i] = 0; break;
        case POINTER_ORDINAL: *(int *)out[i] = -2; break;
        case POINTER_P2P_TOKENS: break;
        default: *(unsigned char *)out[i] = 0;
        }
    }
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr pointer) {
    NEED_INIT();
    if (!value || attribute != POINTER_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *found = memory_find(pointer);
    if (found) found->sync_memops = *(const unsigned char *)value;
    UNLOCK();
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemRangeGetAttribute(void *out, size_t size, int attribute, CUdeviceptr pointer, size_t count) {
    NEED_INIT();
    if (!out || size < 4 || size % 4 || attribute < 1 || attribute > 8) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *found = memory_span(pointer, count);
    bool good = found && found->kind == MEM_MANAGED;
    UNLOCK();
    if (!good) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < size / 4; i++) ((int *)out)[i] = attribute == 1 || attribute == 5 || attribute == 7 ? 0 : -2;
    return CUDA_SUCCESS;
}
