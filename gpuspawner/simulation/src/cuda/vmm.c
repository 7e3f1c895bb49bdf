/* Virtual memory management: address ranges, physical memory, and mapping one into the other. Physical
 * memory is one sparse file per process, so that a piece can be mapped at several addresses and any number
 * of pieces costs one descriptor. It is charged to the card from creation until the last use has gone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

#define MOST_PHYSICAL (8ull << 40)

struct physical {
    struct object object;
    CUmemAllocationProp properties;
    uint64_t offset, size;
    unsigned card, handles, mappings;
};

struct reservation {
    struct node node; /* key: base */
    uint64_t size, raw_base, raw_size;
};

static struct node *reservations;
static struct arena physical_space;
static int file = -1;

void vmm_after_fork(void) {
    if (file >= 0) close(file);
    file = -1;
    reservations = NULL;
    physical_space = (struct arena){0};
}

static bool file_ready(void) {
    if (file >= 0) return true;
    int fd = memfd_create("gpuspawner-card-memory", MFD_CLOEXEC);
    /* Offset 0 stands for failure in an arena, so numbers start one granule up. */
    if (fd < 0 || ftruncate(fd, (off_t)MOST_PHYSICAL) ||
        !arena_add(&physical_space, SIM_LARGE_GRANULE, MOST_PHYSICAL - SIM_LARGE_GRANULE)) {
        if (fd >= 0) close(fd);
        return false;
    }
    file = fd;
    return true;
}

static struct physical *physical_of(CUmemHandle handle) {
    struct physical *physical = (struct physical *)(uintptr_t)handle;
    return object_valid(physical, KIND_PHYSICAL) ? physical : NULL;
}

static void physical_release(struct physical *physical) {
    if (physical->handles || physical->mappings) return;
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->offset, (off_t)physical->size);
    arena_give(&physical_space, physical->offset, physical->size);
    memory_refund(physical->card, physical->size);
    object_free(physical);
}

static CUresult check_properties(const CUmemAllocationProp *properties) {
    NEED_INIT();
    if (!properties || properties->type != 1) return CUDA_ERROR_INVALID_VALUE;
    if (properties->location.type != LOCATION_DEVICE || properties->handle_types) return CUDA_ERROR_NOT_SUPPORTED;
    NEED_DEVICE(properties->location.id);
    return CUDA_SUCCESS;
}

API cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option) {
    CUresult result = check_properties(properties);
    if (result) return result;
    if (!granularity || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    *granularity = SIM_LARGE_GRANULE;
    return CUDA_SUCCESS;
}

API cuMemCreate(CUmemHandle *handle, size_t size, const CUmemAllocationProp *properties, unsigned long long flags) {
    CUresult result = check_properties(properties);
    if (result) return result;
    if (!handle || flags || !size || size % SIM_LARGE_GRANULE) return CUDA_ERROR_INVALID_VALUE;
    unsigned card = driver.card_of[properties->location.id];
    LOCK();
    struct physical *physical = file_ready() ? object_new(KIND_PHYSICAL, sizeof *physical) : NULL;
    result = physical ? memory_charge(card, size) : CUDA_ERROR_OPERATING_SYSTEM;
    if (!result && !(physical->offset = arena_take(&physical_space, size, SIM_LARGE_GRANULE))) {
        memory_refund(card, size);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (!result) {
        physical->properties = *properties;
        physical->size = size;
        physical->card = card;
        physical->handles = 1;
        *handle = (CUmemHandle)(uintptr_t)physical;
    } else if (physical) {
        object_free(physical);
    }
    UNLOCK();
    return result;
}

API cuMemRelease(CUmemHandle handle) {
    NEED_INIT();
    LOCK();
    struct physical *physical = physical_of(handle);
    bool good = physical && physical->handles;
    if (good) {
        physical->handles--;
        physical_release(physical);
    }
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t align, CUdeviceptr wanted, unsigned long long flags) {
    NEED_INIT();
    if (!pointer || !size || size % SIM_LARGE_GRANULE || flags || align & (align - 1) || size > MOST_PHYSICAL)
        return CUDA_ERROR_INVALID_VALUE;
    if (align < SIM_LARGE_GRANULE) align = SIM_LARGE_GRANULE;
    uint64_t raw_size = size + align;
    struct reservation *reservation = calloc(1, sizeof *reservation);
    void *raw = reservation ? mmap((void *)(uintptr_t)wanted, raw_size, PROT_NONE,
                                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) : MAP_FAILED;
    if (raw == MAP_FAILED) {
        free(reservation);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise(raw, raw_size, MADV_DONTFORK);
    uint64_t base = ((uint64_t)(uintptr_t)raw + align - 1) & ~((uint64_t)align - 1);
    *reservation = (struct reservation){.node.key = base, .size = size, .raw_base = (uint64_t)(uintptr_t)raw,
                                        .raw_size = raw_size};
    LOCK();
    node_insert(&reservations, &reservation->node);
    UNLOCK();
    *pointer = base;
    return CUDA_SUCCESS;
}

static struct reservation *reserved(uint64_t base, uint64_t size) {
    struct reservation *found = (struct reservation *)node_at_most(reservations, base, UINT64_MAX);
    if (!found || size > found->size || base - found->node.key > found->size - size) return NULL;
    return found;
}

bool vmm_owns(uint64_t base, uint64_t size) {
    LOCK();
    bool ours = reserved(base, size) != NULL;
    UNLOCK();
    return ours;
}

/* The first mapping that touches the range, or NULL. */
static struct allocation *mapped_within(uint64_t base, uint64_t size) {
    struct allocation *found = memory_find(base);
    if (found) return found;
    struct node *next = node_at_least(driver.allocations, base, 0);
    return next && next->key < base + size ? (struct allocation *)next : NULL;
}

API cuMemAddressFree(CUdeviceptr pointer, size_t size) {
    NEED_INIT();
    LOCK();
    struct reservation *found = reserved(pointer, size);
    bool good = found && found->node.key == pointer && found->size == size && !mapped_within(pointer, size);
    if (good) {
        node_remove(&reservations, pointer, 0);
        munmap((void *)(uintptr_t)found->raw_base, found->raw_size);
        free(found);
    }
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemHandle handle, unsigned long long flags) {
    NEED_INIT();
    if (!size || (pointer | size | offset) % SIM_LARGE_GRANULE || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = physical_of(handle);
    struct allocation *allocation = NULL;
    if (physical && offset <= physical->size && size <= physical->size - offset && reserved(pointer, size) &&
        !mapped_within(pointer, size) && (allocation = calloc(1, sizeof *allocation))) {
        void *at = mmap((void *)(uintptr_t)pointer, size, PROT_NONE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file,
                        (off_t)(physical->offset + offset));
        if (at == MAP_FAILED) {
            free(allocation);
            result = CUDA_ERROR_OPERATING_SYSTEM;
        } else {
            madvise(at, size, MADV_DONTFORK);
            *allocation = (struct allocation){.node.key = pointer, .size = size, .taken = size, .kind = MEM_MAPPED,
                                              .ordinal = physical->properties.location.id, .physical = physical,
                                              .id = ++driver.next_id};
            node_insert(&driver.allocations, &allocation->node);
            physical->mappings++;
            result = CUDA_SUCCESS;
        }
    }
    UNLOCK();
    return result;
}

/* Every mapping in [base, base+size) must lie wholly inside, without a gap. */
static bool covers(uint64_t base, uint64_t size) {
    uint64_t at = base;
    while (at < base + size) {
        struct allocation *found = memory_find(at);
        if (!found || found->kind != MEM_MAPPED || found->node.key != at) return false;
        at += found->size;
    }
    return at == base + size;
}

API cuMemUnmap(CUdeviceptr pointer, size_t size) {
    NEED_INIT();
    CUcontext context;
    if (!context_current(&context)) context_wait(context);
    LOCK();
    bool good = size && covers(pointer, size);
    for (uint64_t at = pointer; good && at < pointer + size;) {
        struct allocation *found = memory_find(at);
        struct physical *physical = found->physical;
        at += found->size;
        mmap((void *)(uintptr_t)found->node.key, found->size, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
        memory_delete(found);
        physical->mappings--;
        physical_release(physical);
    }
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *access, size_t count) {
    NEED_INIT();
    if (!size || !access || !count) return CUDA_ERROR_INVALID_VALUE;
    int flags = 0;
    for (size_t i = 0; i < count; i++) {
        int type = access[i].location.type, id = access[i].location.id;
        if (type < LOCATION_DEVICE || type > LOCATION_HOST_NUMA_CURRENT) return CUDA_ERROR_INVALID_VALUE;
        if (type == LOCATION_DEVICE && (id < 0 || id >= driver.device_count)) return CUDA_ERROR_INVALID_DEVICE;
        if (access[i].flags != 0 && access[i].flags != 1 && access[i].flags != 3) return CUDA_ERROR_INVALID_VALUE;
        flags |= access[i].flags;
    }
    LOCK();
    bool good = covers(pointer, size);
    for (uint64_t at = pointer; good && at < pointer + size;) {
        struct allocation *found = memory_find(at);
        /* The host does the copying here, so what one card may read is readable for all. */
        int protection = flags & 2 ? PROT_READ | PROT_WRITE : flags & 1 ? PROT_READ : PROT_NONE;
        mprotect((void *)(uintptr_t)at, found->size, protection);
        found->flags = (unsigned)flags;
        at += found->size;
    }
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer) {
    NEED_INIT();
    if (!flags || !location) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct allocation *found = memory_find(pointer);
    bool good = found && found->kind == MEM_MAPPED;
    if (good) *flags = found->flags;
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemHandle handle) {
    NEED_INIT();
    LOCK();
    struct physical *physical = physical_of(handle);
    if (physical && properties) *properties = physical->properties;
    UNLOCK();
    return physical && properties ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

API cuMemRetainAllocationHandle(CUmemHandle *handle, void *pointer) {
    NEED_INIT();
    LOCK();
    struct allocation *found = memory_find((uint64_t)(uintptr_t)pointer);
    bool good = handle && found && found->kind == MEM_MAPPED;
    if (good) {
        found->physical->handles++;
        *handle = (CUmemHandle)(uintptr_t)found->physical;
    }
    UNLOCK();
    return good ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
