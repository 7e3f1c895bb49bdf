/* Arrays and mipmapped arrays: kept as rows of bytes, each level an array of its own. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define MOST_LEVELS 16
enum { FLAG_LAYERED = 1, FLAG_CUBEMAP = 4 };

struct array {
    struct object object;
    CUcontext context;
    CUDA_ARRAY3D_DESCRIPTOR descriptor;
    uint64_t base; /* 0: destroyed */
    struct layout layout;
    bool level; /* of a mipmapped array, which owns the memory */
    struct array *next;
};

struct mipmap {
    struct object object;
    CUcontext context;
    unsigned count;
    uint64_t base;
    struct array *levels[MOST_LEVELS];
    struct mipmap *next;
};

static struct array *arrays;
static struct mipmap *mipmaps;

static unsigned element_bytes(int format, unsigned channels) {
    unsigned one;
    switch (format) {
    case 0x01: case 0x08: one = 1; break;
    case 0x02: case 0x09: case 0x10: one = 2; break;
    case 0x03: case 0x0a: case 0x20: one = 4; break;
    case 0xc0: case 0xc6: return channels == 1 ? 1 : 0;
    case 0xc1: case 0xc7: return channels == 2 ? 2 : 0;
    case 0xc2: case 0xc8: return channels == 4 ? 4 : 0;
    case 0xc3: case 0xc9: return channels == 1 ? 2 : 0;
    case 0xc4: case 0xca: return channels == 2 ? 4 : 0;
    case 0xc5: case 0xcb: return channels == 4 ? 8 : 0;
    default: return 0;
    }
    return channels == 1 || channels == 2 || channels == 4 ? one * channels : 0;
}

static bool plan(const CUDA_ARRAY3D_DESCRIPTOR *wanted, struct layout *layout, uint64_t *bytes) {
    unsigned element = element_bytes(wanted->format, wanted->channels);
    if (!element || !wanted->width || wanted->width > (1u << 30)) return false;
    if (wanted->height > (1u << 20) || wanted->depth > (1u << 20)) return false;
    if (wanted->flags & FLAG_CUBEMAP && (wanted->width != wanted->height || wanted->depth % 6)) return false;
    layout->width = wanted->width * element;
    layout->pitch = (layout->width + 31) & ~(size_t)31;
    layout->rows = wanted->height ? wanted->height : 1;
    layout->layers = wanted->depth ? wanted->depth : 1;
    uint64_t plane = layout->pitch * layout->rows;
    if (__builtin_mul_overflow(plane, layout->layers, bytes)) return false;
    *bytes = (*bytes + SIM_ALLOC_GRANULE - 1) & ~(SIM_ALLOC_GRANULE - 1);
    return true;
}

bool array_layout(CUarray array, struct layout *layout) {
    if (!object_valid(array, KIND_ARRAY)) return false;
    *layout = array->layout;
    return true;
}

/* The lock is held. base 0: take memory for it. */
static CUresult array_new(CUcontext context, const CUDA_ARRAY3D_DESCRIPTOR *wanted, uint64_t base, struct array **out) {
    struct layout layout;
    uint64_t bytes;
    if (!plan(wanted, &layout, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    struct array *array = object_new(KIND_ARRAY, sizeof *array);
    if (!array) return CUDA_ERROR_OPERATING_SYSTEM;
    struct allocation *allocation = NULL;
    CUresult result = base ? CUDA_SUCCESS : memory_new(context, MEM_ARRAY, bytes, bytes, &allocation);
    if (result) {
        object_free(array);
        return result;
    }
    array->context = context;
    array->descriptor = *wanted;
    array->level = base != 0;
    array->base = base ? base : allocation->node.key;
    array->layout = layout;
    array->layout.base = array->base;
    if (!base) {
        array->next = arrays;
        arrays = array;
    }
    *out = array;
    return CUDA_SUCCESS;
}

static void delete_memory(uint64_t base) {
    struct allocation *found = memory_find(base);
    if (found) memory_delete(found);
}

static void array_end(struct array *array) {
    struct array **at = &arrays;
    while (*at && *at != array) at = &(*at)->next;
    if (*at) *at = array->next;
    if (!array->level) delete_memory(array->base);
    object_free(array);
}

static void mipmap_end(struct mipmap *mipmap) {
    struct mipmap **at = &mipmaps;
    while (*at && *at != mipmap) at = &(*at)->next;
    if (*at) *at = mipmap->next;
    for (unsigned i = 0; i < mipmap->count; i++) object_free(mipmap->levels[i]);
    delete_memory(mipmap->base);
    object_free(mipmap);
}

void arrays_delete_of(CUcontext context) {
    for (struct array *array = arrays, *next; array; array = next) {
        next = array->next;
        if (array->context == context) array_end(array);
    }
    for (struct mipmap *mipmap = mipmaps, *next; mipmap; mipmap = next) {
        next = mipmap->next;
        if (mipmap->context == context) mipmap_end(mipmap);
    }
}

void arrays_after_fork(void) {
    arrays = NULL;
    mipmaps = NULL;
}

API cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted) {
    NEED_CONTEXT(context);
    if (!array || !wanted) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult result = array_new(context, wanted, 0, array);
    UNLOCK();
    return result;
}

API cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted) {
    if (!wanted) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR full = {wanted->width, wanted->height, 0, wanted->format, wanted->channels, 0};
    return cuArray3DCreate_v2(array, &full);
}

API cuArrayDestroy(CUarray array) {
    NEED_CONTEXT(context);
    if (!object_valid(array, KIND_ARRAY) || array->level) return CUDA_ERROR_INVALID_HANDLE;
    context_wait(context);
    LOCK();
    array_end(array);
    UNLOCK();
    return CUDA_SUCCESS;
}

API cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *descriptor, CUarray array) {
    NEED_INIT();
    if (!object_valid(array, KIND_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
    *descriptor = array->descriptor;
    return CUDA_SUCCESS;
}

API cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *descriptor, CUarray array) {
    NEED_INIT();
    if (!object_valid(array, KIND_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    if (!descriptor) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR *full = &array->descriptor;
    *descriptor = (CUDA_ARRAY_DESCRIPTOR){full->width, full->height, full->format, full->channels};
    return CUDA_SUCCESS;
}

API cuArrayGetMemoryRequirements(size_t *requirements, CUarray array, CUdevice device) {
    NEED_DEVICE(device);
    if (!object_valid(array, KIND_ARRAY)) return CUDA_ERROR_INVALID_HANDLE;
    if (!requirements) return CUDA_ERROR_INVALID_VALUE;
    const struct layout *layout = &array->layout;
    uint64_t bytes = (uint64_t)layout->pitch * layout->rows * layout->layers;
    requirements[0] = (bytes + SIM_ALLOC_GRANULE - 1) & ~(SIM_ALLOC_GRANULE - 1);
    requirements[1] = SIM_ALLOC_GRANULE;
    return CUDA_SUCCESS;
}

static CUDA_ARRAY3D_DESCRIPTOR level_of(const CUDA_ARRAY3D_DESCRIPTOR *base, unsigned level) {
    CUDA_ARRAY3D_DESCRIPTOR part = *base;
    part.width = base->width >> level ? base->width >> level : 1;
    if (base->height) part.height = base->height >> level ? base->height >> level : 1;
    if (base->depth && !(base->flags & FLAG_LAYERED)) part.depth = base->depth >> level ? base->depth >> level : 1;
    return part;
}

API cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned count) {
    NEED_CONTEXT(context);
    if (!out || !wanted || !count) return CUDA_ERROR_INVALID_VALUE;
    unsigned most = 1;
    while (wanted->width >> most || wanted->height >> most) most++;
    if (count > most) count = most;
    if (count > MOST_LEVELS) return CUDA_ERROR_INVALID_VALUE;
    uint64_t offsets[MOST_LEVELS], total = 0;
    for (unsigned i = 0; i < count; i++) {
        CUDA_ARRAY3D_DESCRIPTOR part = level_of(wanted, i);
        struct layout layout;
        uint64_t bytes;
        if (!plan(&part, &layout, &bytes)) return CUDA_ERROR_INVALID_VALUE;
        offsets[i] = total;
        total += bytes;
    }
    LOCK();
    struct mipmap *mipmap = object_new(KIND_MIPMAP, sizeof *mipmap);
    struct allocation *allocation;
    CUresult result = mipmap ? memory_new(context, MEM_ARRAY, total, total, &allocation) : CUDA_ERROR_OPERATING_SYSTEM;
    if (!result) {
        mipmap->context = context;
        mipmap->base = allocation->node.key;
        mipmap->next = mipmaps;
        mipmaps = mipmap;
        for (unsigned i = 0; i < count && !result; i++) {
            CUDA_ARRAY3D_DESCRIPTOR part = level_of(wanted, i);
            result = array_new(context, &part, mipmap->base + offsets[i], &mipmap->levels[i]);
            if (!result) mipmap->count++;
        }
        if (result) mipmap_end(mipmap);
        else *out = mipmap;
    } else if (mipmap) {
        object_free(mipmap);
    }
    UNLOCK();
    return result;
}

API cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray mipmap, unsigned level) {
    NEED_INIT();
    if (!object_valid(mipmap, KIND_MIPMAP)) return CUDA_ERROR_INVALID_HANDLE;
    if (!array || level >= mipmap->count) return CUDA_ERROR_INVALID_VALUE;
    *array = mipmap->levels[level];
    return CUDA_SUCCESS;
}

API cuMipmappedArrayDestroy(CUmipmappedArray mipmap) {
    NEED_CONTEXT(context);
    if (!object_valid(mipmap, KIND_MIPMAP)) return CUDA_ERROR_INVALID_HANDLE;
    context_wait(context);
    LOCK();
    mipmap_end(mipmap);
    UNLOCK();
    return CUDA_SUCCESS;
}
