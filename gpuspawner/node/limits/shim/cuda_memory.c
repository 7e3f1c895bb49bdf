/* Plain, pitched and managed memory, and arrays: taken from the driver in multiples of GRANULE, and freed with their
 * context. Everything is reserved before the driver is asked and given back if it refuses. */
#include "cuda.h"

static CUresult begin(uint64_t bytes, int *card)
{
    CUresult result = current_card(card);
    if (result != CUDA_SUCCESS)
        return result;
    return reserve(*card, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* False: no room to remember it, so it must not be kept. */
static bool remember(enum held_kind kind, uint64_t key, int card, uint64_t bytes)
{
    struct held held = {key, kind, card, bytes, current_context()};
    return table_put(&held);
}

static CUresult undo_plain(CUdeviceptr address, int card, uint64_t bytes)
{
    (void)REAL(cuMemFree_v2, (CUdeviceptr), address);
    accounts_release(card, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size)
{
    int card;
    uint64_t bytes;
    if (address == NULL || size == 0)
        return REAL(cuMemAlloc_v2, (CUdeviceptr *, size_t), address, size);
    if (!round_up(size, GRANULE, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = begin(bytes, &card);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAlloc_v2, (CUdeviceptr *, size_t), address, size);
    if (result != CUDA_SUCCESS)
        accounts_release(card, bytes);
    else if (!remember(HELD_PLAIN, *address, card, bytes))
        return undo_plain(*address, card, bytes);
    return result;
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags)
{
    int card;
    uint64_t bytes;
    if (address == NULL || size == 0)
        return REAL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned), address, size, flags);
    if (!round_up(size, GRANULE, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = begin(bytes, &card);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocManaged, (CUdeviceptr *, size_t, unsigned), address, size, flags);
    if (result != CUDA_SUCCESS)
        accounts_release(card, bytes);
    else if (!remember(HELD_PLAIN, *address, card, bytes))
        return undo_plain(*address, card, bytes);
    return result;
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *address, size_t *pitch, size_t width, size_t height, unsigned element)
{
    int card;
    uint64_t row, bytes, taken;
    if (address == NULL || pitch == NULL || width == 0 || height == 0)
        return REAL(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned), address, pitch, width, height,
                    element);
    if (!round_up(width, GRANULE, &row) || __builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = begin(bytes, &card);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAllocPitch_v2, (CUdeviceptr *, size_t *, size_t, size_t, unsigned), address, pitch, width, height,
                  element);
    if (result != CUDA_SUCCESS) {
        accounts_release(card, bytes);
        return result;
    }
    /* The row that the driver chose may be longer, or shorter, than the one we reserved. */
    if (__builtin_mul_overflow(*pitch, height, &taken) || !round_up(taken, GRANULE, &taken) ||
        (taken > bytes && !reserve(card, taken - bytes)))
        return undo_plain(*address, card, bytes);
    if (taken < bytes)
        accounts_release(card, bytes - taken);
    if (!remember(HELD_PLAIN, *address, card, taken))
        return undo_plain(*address, card, taken);
    return result;
}

/* Taken out of the table first, since the driver may hand the address to another thread as soon as it is free. */
EXPORT CUresult cuMemFree_v2(CUdeviceptr address)
{
    struct held held;
    bool plain = table_take(HELD_PLAIN, address, &held);
    if (!plain && table_get(HELD_POOLED, address, &held)) /* allowed for stream-ordered memory too */
        return pools_free(address);
    CUresult result = REAL(cuMemFree_v2, (CUdeviceptr), address);
    if (plain && result == CUDA_SUCCESS)
        accounts_release(held.card, held.bytes);
    else if (plain)
        table_put(&held);
    return result;
}

/* ---- the forms of CUDA 3.1 and before, with 32-bit numbers ---- */
EXPORT CUresult cuMemAlloc(unsigned *address, unsigned size)
{
    int card;
    uint64_t bytes;
    if (address == NULL || size == 0)
        return REAL(cuMemAlloc, (unsigned *, unsigned), address, size);
    round_up(size, GRANULE, &bytes);
    CUresult result = begin(bytes, &card);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMemAlloc, (unsigned *, unsigned), address, size);
    if (result != CUDA_SUCCESS)
        accounts_release(card, bytes);
    else if (!remember(HELD_PLAIN, *address, card, bytes))
        return undo_plain(*address, card, bytes);
    return result;
}

EXPORT CUresult cuMemAllocPitch(unsigned *address, unsigned *pitch, unsigned width, unsigned height, unsigned element)
{
    (void)address, (void)pitch, (void)width, (void)height, (void)element;
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult cuMemFree(unsigned address) { return cuMemFree_v2(address); }

/* ---- arrays ---- */
enum { ARRAY_SPARSE = 0x40, ARRAY_DEFERRED = 0x80 };

/* Bytes of one element: CUarray_format says the channel's type. Formats that are not listed count as the largest. */
static uint64_t element_bytes(int format, unsigned channels)
{
    switch (format) {
    case 0x01: case 0x08: return channels;            /* 8-bit integers */
    case 0x02: case 0x09: case 0x10: return 2ull * channels; /* 16-bit integers, half */
    case 0x03: case 0x0a: case 0x20: return 4ull * channels; /* 32-bit integers, float */
    case 0xc0: case 0xc6: return 1;
    case 0xc1: case 0xc3: case 0xc7: case 0xc9: return 2;
    case 0xc2: case 0xc4: case 0xc8: case 0xca: return 4;
    case 0xc5: case 0xcb: return 8;
    default: return 16;
    }
}

static uint64_t at_least_1(uint64_t value) { return value != 0 ? value : 1; }

/* Rows of elements, rounded up to ROW, times height and depth, rounded up to GRANULE; a mipmap's levels each so, halved from
 * one to the next, as many as there are until nothing is left to halve. A real driver's tiling may take somewhat more; the
 * node sees that in the driver's own figures. */
static bool array_bytes(const struct array3d_descriptor *d, unsigned levels, uint64_t *bytes)
{
    enum { ROW = 32, LAYERED = 1 };
    uint64_t width = at_least_1(d->width), height = at_least_1(d->height), depth = at_least_1(d->depth);
    bool layered = (d->flags & LAYERED) != 0;
    *bytes = 0;
    if (d->flags & (ARRAY_SPARSE | ARRAY_DEFERRED)) /* memory comes later, mapped by cuMemMapArrayAsync */
        return true;
    for (unsigned level = 0; level < levels; level++) {
        uint64_t part;
        if (__builtin_mul_overflow(width, element_bytes(d->format, d->channels), &part) || !round_up(part, ROW, &part) ||
            __builtin_mul_overflow(part, height, &part) || __builtin_mul_overflow(part, depth, &part) ||
            !round_up(part, GRANULE, &part) || __builtin_add_overflow(*bytes, part, bytes))
            return false;
        if (width == 1 && height == 1 && (layered || depth == 1))
            break;
        width = at_least_1(width / 2), height = at_least_1(height / 2);
        depth = layered ? depth : at_least_1(depth / 2);
    }
    return true;
}

static CUresult array_begin(const struct array3d_descriptor *descriptor, unsigned levels, int *card, uint64_t *bytes)
{
    if (!array_bytes(descriptor, levels, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return begin(*bytes, card);
}

static CUresult array_end(CUresult result, CUarray *array, int card, uint64_t bytes, bool mipmap)
{
    if (result == CUDA_SUCCESS && !remember(HELD_ARRAY, (uint64_t)(uintptr_t)*array, card, bytes)) {
        (void)(mipmap ? REAL(cuMipmappedArrayDestroy, (CUarray), *array) : REAL(cuArrayDestroy, (CUarray), *array));
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS)
        accounts_release(card, bytes);
    return result;
}

EXPORT CUresult cuArrayCreate_v2(CUarray *array, const struct array_descriptor *d)
{
    int card;
    uint64_t bytes;
    if (array == NULL || d == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct array3d_descriptor whole = {d->width, d->height, 0, d->format, d->channels, 0};
    CUresult result = array_begin(&whole, 1, &card, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuArrayCreate_v2, (CUarray *, const struct array_descriptor *), array, d);
    return array_end(result, array, card, bytes, false);
}

EXPORT CUresult cuArrayCreate(CUarray *array, const struct array_descriptor_v1 *d)
{
    if (d == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct array_descriptor whole = {d->width, d->height, d->format, d->channels};
    return cuArrayCreate_v2(array, &whole);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *array, const struct array3d_descriptor *d)
{
    int card;
    uint64_t bytes;
    if (array == NULL || d == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = array_begin(d, 1, &card, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuArray3DCreate_v2, (CUarray *, const struct array3d_descriptor *), array, d);
    return array_end(result, array, card, bytes, false);
}

EXPORT CUresult cuArray3DCreate(CUarray *array, const struct array3d_descriptor_v1 *d)
{
    if (d == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct array3d_descriptor whole = {d->width, d->height, d->depth, d->format, d->channels, d->flags};
    return cuArray3DCreate_v2(array, &whole);
}

EXPORT CUresult cuMipmappedArrayCreate(CUarray *array, const struct array3d_descriptor *d, unsigned levels)
{
    int card;
    uint64_t bytes;
    if (array == NULL || d == NULL || levels == 0 || levels > 64)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = array_begin(d, levels, &card, &bytes);
    if (result != CUDA_SUCCESS)
        return result;
    result = REAL(cuMipmappedArrayCreate, (CUarray *, const struct array3d_descriptor *, unsigned), array, d, levels);
    return array_end(result, array, card, bytes, true);
}

static CUresult array_destroyed(CUresult result, CUarray array, bool known, const struct held *held)
{
    if (known && result == CUDA_SUCCESS) {
        accounts_release(held->card, held->bytes);
        vmm_array_ended(array);
    } else if (known) {
        table_put(held);
    }
    return result;
}

EXPORT CUresult cuArrayDestroy(CUarray array)
{
    struct held held;
    bool known = table_take(HELD_ARRAY, (uint64_t)(uintptr_t)array, &held);
    return array_destroyed(REAL(cuArrayDestroy, (CUarray), array), array, known, &held);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUarray array)
{
    struct held held;
    bool known = table_take(HELD_ARRAY, (uint64_t)(uintptr_t)array, &held);
    return array_destroyed(REAL(cuMipmappedArrayDestroy, (CUarray), array), array, known, &held);
}
