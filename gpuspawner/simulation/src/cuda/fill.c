/* Memory sets. */
#include <string.h>

#include "sim.h"

void fill_run(const struct fill *fill) {
    for (size_t y = 0; y < fill->height; y++) {
        uint64_t row = fill->base + y * fill->pitch;
        size_t bytes = fill->width * fill->element;
        if (!fill->value) {
            memory_zero(row, bytes);
        } else if (fill->element == 1) {
            memset((void *)(uintptr_t)row, (int)fill->value, bytes);
        } else if (fill->element == 2) {
            uint16_t *at = (uint16_t *)(uintptr_t)row;
            for (size_t x = 0; x < fill->width; x++) at[x] = (uint16_t)fill->value;
        } else {
            uint32_t *at = (uint32_t *)(uintptr_t)row;
            for (size_t x = 0; x < fill->width; x++) at[x] = fill->value;
        }
    }
}

static CUresult fill(CUdeviceptr base, size_t pitch, uint32_t value, unsigned element, size_t width, size_t height,
                     CUstream handle) {
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result) return result;
    if (base % element || pitch % element) return CUDA_ERROR_INVALID_VALUE;
    if (!width || !height) return CUDA_SUCCESS;
    size_t bytes, rows;
    if (__builtin_mul_overflow(width, element, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    if (height == 1 && !pitch) pitch = bytes;
    if (pitch < bytes || __builtin_mul_overflow(pitch, height - 1, &rows)) return CUDA_ERROR_INVALID_VALUE;
    if (pitch == bytes && !__builtin_mul_overflow(width, height, &width)) bytes *= height, height = 1, rows = 0;
    LOCK();
    struct allocation *found = memory_span(base, rows + bytes);
    if (found && found->kind == MEM_ARRAY) found = NULL;
    UNLOCK();
    if (!found) return CUDA_ERROR_INVALID_VALUE;
    struct operation operation = {.kind = OP_FILL, .fill = {base, pitch, width, height, value, element}};
    return stream_submit(stream, &operation);
}

/* The driver may return from a plain memory set before it is done; the default stream keeps the order. */
API cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t n) { return fill(at, 0, value, 1, n, 1, NULL); }
API cuMemsetD16_v2(CUdeviceptr at, unsigned short value, size_t n) { return fill(at, 0, value, 2, n, 1, NULL); }
API cuMemsetD32_v2(CUdeviceptr at, unsigned value, size_t n) { return fill(at, 0, value, 4, n, 1, NULL); }
ALIAS(cuMemsetD8_v2_ptds, cuMemsetD8_v2);
ALIAS(cuMemsetD16_v2_ptds, cuMemsetD16_v2);
ALIAS(cuMemsetD32_v2_ptds, cuMemsetD32_v2);

API cuMemsetD2D8_v2(CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height) {
    return fill(at, pitch, value, 1, width, height, NULL);
}
API cuMemsetD2D16_v2(CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height) {
    return fill(at, pitch, value, 2, width, height, NULL);
}
API cuMemsetD2D32_v2(CUdeviceptr at, size_t pitch, unsigned value, size_t width, size_t height) {
    return fill(at, pitch, value, 4, width, height, NULL);
}
ALIAS(cuMemsetD2D8_v2_ptds, cuMemsetD2D8_v2);
ALIAS(cuMemsetD2D16_v2_ptds, cuMemsetD2D16_v2);
ALIAS(cuMemsetD2D32_v2_ptds, cuMemsetD2D32_v2);

API cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t n, CUstream s) { return fill(at, 0, value, 1, n, 1, s); }
API cuMemsetD16Async(CUdeviceptr at, unsigned short value, size_t n, CUstream s) { return fill(at, 0, value, 2, n, 1, s); }
API cuMemsetD32Async(CUdeviceptr at, unsigned value, size_t n, CUstream s) { return fill(at, 0, value, 4, n, 1, s); }
ALIAS(cuMemsetD8Async_ptsz, cuMemsetD8Async);
ALIAS(cuMemsetD16Async_ptsz, cuMemsetD16Async);
ALIAS(cuMemsetD32Async_ptsz, cuMemsetD32Async);

API cuMemsetD2D8Async(CUdeviceptr at, size_t pitch, unsigned char value, size_t width, size_t height, CUstream s) {
    return fill(at, pitch, value, 1, width, height, s);
}
API cuMemsetD2D16Async(CUdeviceptr at, size_t pitch, unsigned short value, size_t width, size_t height, CUstream s) {
    return fill(at, pitch, value, 2, width, height, s);
}
API cuMemsetD2D32Async(CUdeviceptr at, size_t pitch, unsigned value, size_t width, size_t height, CUstream s) {
    return fill(at, pitch, value, 4, width, height, s);
}
ALIAS(cuMemsetD2D8Async_ptsz, cuMemsetD2D8Async);
ALIAS(cuMemsetD2D16Async_ptsz, cuMemsetD2D16Async);
ALIAS(cuMemsetD2D32Async_ptsz, cuMemsetD2D32Async);
