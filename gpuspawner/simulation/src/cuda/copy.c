/* Copies: every direction comes down to one box of bytes, from rows to rows. */
#include <string.h>

#include "sim.h"

void copy_run(const struct copy *copy) {
    if (copy->width == copy->src_pitch && copy->width == copy->dst_pitch && copy->depth == 1) {
        memmove(copy->dst, copy->src, copy->width * copy->height);
        return;
    }
    for (size_t z = 0; z < copy->depth; z++)
        for (size_t y = 0; y < copy->height; y++)
            memmove(copy->dst + z * copy->dst_slice + y * copy->dst_pitch,
                    copy->src + z * copy->src_slice + y * copy->src_pitch, copy->width);
}

enum side { HOST, DEVICE, EITHER };

/* Whether [address, address+size) may be used as `side`; *pageable for host memory unknown to the driver. */
static bool usable(uint64_t address, uint64_t size, enum side side, bool *pageable) {
    LOCK();
    struct allocation *found = memory_find(address);
    bool good = found ? memory_span(address, size) != NULL : side != DEVICE;
    if (found && found->kind == MEM_ARRAY) good = false;
    /* A host pointer may run over the end of a registered range, as the host does not mind. */
    if (found && side == HOST && (found->kind == MEM_REGISTERED || found->kind == MEM_HOST)) good = true;
    UNLOCK();
    if (!found) *pageable = true;
    return good && address;
}

static CUresult submit(struct stream *stream, const struct copy *copy, bool wait) {
    if (!copy->width || !copy->height || !copy->depth) return CUDA_SUCCESS;
    if (!wait) return stream_submit(stream, &(struct operation){.kind = OP_COPY, .copy = *copy});
    CUresult result = stream_wait(stream);
    if (!result && driver.page->timed) channel_wait(stream->context->card, channel_head(stream->context->card));
    if (!result) copy_run(copy);
    return result;
}

static CUresult linear(uint64_t dst, enum side dst_side, uint64_t src, enum side src_side, size_t size,
                       CUstream handle, bool async) {
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result || !size) return result;
    bool pageable = false;
    if (!usable(dst, size, dst_side, &pageable) || !usable(src, size, src_side, &pageable))
        return CUDA_ERROR_INVALID_VALUE;
    struct copy copy = {.src = (void *)(uintptr_t)src, .dst = (void *)(uintptr_t)dst, .src_pitch = size,
                        .dst_pitch = size, .width = size, .height = 1, .depth = 1};
    /* Pageable memory may be gone when the call returns, so such a copy is done by then. */
    return submit(stream, &copy, !async || pageable);
}

#define ADDRESS(pointer) ((uint64_t)(uintptr_t)(pointer))

API cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t size) {
    return linear(dst, DEVICE, ADDRESS(src), HOST, size, NULL, false);
}
ALIAS(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2);

API cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size) {
    return linear(ADDRESS(dst), HOST, src, DEVICE, size, NULL, false);
}
ALIAS(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2);

API cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    return linear(dst, DEVICE, src, DEVICE, size, NULL, false);
}
ALIAS(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2);

API cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    return linear(dst, EITHER, src, EITHER, size, NULL, false);
}
ALIAS(cuMemcpy_ptds, cuMemcpy);

API cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, CUstream stream) {
    return linear(dst, DEVICE, ADDRESS(src), HOST, size, stream, true);
}
ALIAS(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2);

API cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream) {
    return linear(ADDRESS(dst), HOST, src, DEVICE, size, stream, true);
}
ALIAS(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2);

API cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    return linear(dst, DEVICE, src, DEVICE, size, stream, true);
}
ALIAS(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2);

API cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    return linear(dst, EITHER, src, EITHER, size, stream, true);
}
ALIAS(cuMemcpyAsync_ptsz, cuMemcpyAsync);

static CUresult peer_contexts(CUcontext dst, CUcontext src) {
    NEED_INIT();
    return object_valid(dst, KIND_CONTEXT) && object_valid(src, KIND_CONTEXT) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

API cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size) {
    CUresult result = peer_contexts(dst_context, src_context);
    return result ? result : linear(dst, DEVICE, src, DEVICE, size, NULL, false);
}
ALIAS(cuMemcpyPeer_ptds, cuMemcpyPeer);

API cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t size,
                      CUstream stream) {
    CUresult result = peer_contexts(dst_context, src_context);
    return result ? result : linear(dst, DEVICE, src, DEVICE, size, stream, true);
}
ALIAS(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync);

/* ---- boxes ---- */
struct end { int type; uint64_t address; CUarray array; size_t x, y, z, pitch, rows; };

static bool resolve(const struct end *end, const CUDA_MEMCPY3D *box, uint8_t **start, size_t *pitch, size_t *slice,
                    bool *pageable) {
    uint64_t base = end->address;
    size_t rows = end->rows, span, last;
    *pitch = end->pitch;
    if (end->type == MEMORY_ARRAY) {
        struct layout layout;
        if (!array_layout(end->array, &layout)) return false;
        if (end->x + box->width > layout.width || end->y + box->height > layout.rows ||
            end->z + box->depth > layout.layers)
            return false;
        base = layout.base;
        *pitch = layout.pitch;
        rows = layout.rows;
    } else if (end->type < MEMORY_HOST || end->type > MEMORY_UNIFIED) {
        return false;
    }
    if (!*pitch && box->height == 1 && box->depth == 1) *pitch = end->x + box->width;
    if (!*pitch) *pitch = box->width; /* as the driver takes a pitch of 0: packed */
    if (*pitch < box->width || (box->depth > 1 && rows < box->height)) return false;
    if (__builtin_mul_overflow(*pitch, rows ? rows : box->height, slice)) return false;
    size_t first = end->z * *slice + end->y * *pitch + end->x;
    if (__builtin_mul_overflow(*slice, box->depth - 1, &span)) return false;
    last = first + span + (box->height - 1) * *pitch + box->width;
    *start = (uint8_t *)(uintptr_t)(base + first);
    if (end->type == MEMORY_ARRAY) return true;
    enum side side = end->type == MEMORY_HOST ? HOST : end->type == MEMORY_DEVICE ? DEVICE : EITHER;
    return usable(base + first, last - first, side, pageable);
}

static CUresult box_copy(const CUDA_MEMCPY3D *box, CUstream handle, bool async) {
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result) return result;
    if (!box || box->src_level || box->dst_level) return CUDA_ERROR_INVALID_VALUE;
    if (!box->width || !box->height || !box->depth) return CUDA_SUCCESS;
    struct copy copy = {.width = box->width, .height = box->height, .depth = box->depth};
    struct end src = {box->src_type, box->src_type == MEMORY_HOST ? ADDRESS(box->src_host) : box->src_device,
                      box->src_array, box->src_x, box->src_y, box->src_z, box->src_pitch, box->src_height};
    struct end dst = {box->dst_type, box->dst_type == MEMORY_HOST ? ADDRESS(box->dst_host) : box->dst_device,
                      box->dst_array, box->dst_x, box->dst_y, box->dst_z, box->dst_pitch, box->dst_height};
    uint8_t *from;
    bool pageable = false;
    if (!resolve(&src, box, &from, &copy.src_pitch, &copy.src_slice, &pageable) ||
        !resolve(&dst, box, &copy.dst, &copy.dst_pitch, &copy.dst_slice, &pageable))
        return CUDA_ERROR_INVALID_VALUE;
    copy.src = from;
    return submit(stream, &copy, !async || pageable);
}

static CUresult plane_copy(const CUDA_MEMCPY2D *plane, CUstream handle, bool async) {
    if (!plane) return CUDA_ERROR_INVALID_VALUE;
    CUDA_MEMCPY3D box = {
        .src_x = plane->src_x, .src_y = plane->src_y, .src_type = plane->src_type, .src_host = plane->src_host,
        .src_device = plane->src_device, .src_array = plane->src_array, .src_pitch = plane->src_pitch,
        .dst_x = plane->dst_x, .dst_y = plane->dst_y, .dst_type = plane->dst_type, .dst_host = plane->dst_host,
        .dst_device = plane->dst_device, .dst_array = plane->dst_array, .dst_pitch = plane->dst_pitch,
        .width = plane->width, .height = plane->height, .depth = 1,
    };
    return box_copy(&box, handle, async);
}

API cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy) { return plane_copy(copy, NULL, false); }
ALIAS(cuMemcpy2D_v2_ptds, cuMemcpy2D_v2);
ALIAS(cuMemcpy2DUnaligned_v2, cuMemcpy2D_v2);
ALIAS(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2D_v2);

API cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) { return plane_copy(copy, stream, true); }
ALIAS(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync_v2);

API cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy) { return box_copy(copy, NULL, false); }
ALIAS(cuMemcpy3D_v2_ptds, cuMemcpy3D_v2);

API cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream) { return box_copy(copy, stream, true); }
ALIAS(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync_v2);

API cuMemcpy3DPeer(const CUDA_MEMCPY3D *copy) { return box_copy(copy, NULL, false); }
ALIAS(cuMemcpy3DPeer_ptds, cuMemcpy3DPeer);

API cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D *copy, CUstream stream) { return box_copy(copy, stream, true); }
ALIAS(cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeerAsync);

/* ---- one-dimensional arrays ---- */
static CUresult array_line(CUarray array, size_t at, uint64_t other, bool to_array, int other_type, size_t size,
                           CUstream stream, bool async) {
    CUDA_MEMCPY3D box = {.width = size, .height = 1, .depth = 1};
    void *host = (void *)(uintptr_t)other;
    if (to_array) {
        box.dst_type = MEMORY_ARRAY, box.dst_array = array, box.dst_x = at;
        box.src_type = other_type, box.src_host = host, box.src_device = other;
    } else {
        box.src_type = MEMORY_ARRAY, box.src_array = array, box.src_x = at;
        box.dst_type = other_type, box.dst_host = host, box.dst_device = other;
    }
    return box_copy(&box, stream, async);
}

API cuMemcpyHtoA_v2(CUarray dst, size_t at, const void *src, size_t size) {
    return array_line(dst, at, ADDRESS(src), true, MEMORY_HOST, size, NULL, false);
}
ALIAS(cuMemcpyHtoA_v2_ptds, cuMemcpyHtoA_v2);

API cuMemcpyAtoH_v2(void *dst, CUarray src, size_t at, size_t size) {
    return array_line(src, at, ADDRESS(dst), false, MEMORY_HOST, size, NULL, false);
}
ALIAS(cuMemcpyAtoH_v2_ptds, cuMemcpyAtoH_v2);

API cuMemcpyDtoA_v2(CUarray dst, size_t at, CUdeviceptr src, size_t size) {
    return array_line(dst, at, src, true, MEMORY_DEVICE, size, NULL, false);
}
ALIAS(cuMemcpyDtoA_v2_ptds, cuMemcpyDtoA_v2);

API cuMemcpyAtoD_v2(CUdeviceptr dst, CUarray src, size_t at, size_t size) {
    return array_line(src, at, dst, false, MEMORY_DEVICE, size, NULL, false);
}
ALIAS(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoD_v2);

API cuMemcpyHtoAAsync_v2(CUarray dst, size_t at, const void *src, size_t size, CUstream stream) {
    return array_line(dst, at, ADDRESS(src), true, MEMORY_HOST, size, stream, true);
}
ALIAS(cuMemcpyHtoAAsync_v2_ptsz, cuMemcpyHtoAAsync_v2);

API cuMemcpyAtoHAsync_v2(void *dst, CUarray src, size_t at, size_t size, CUstream stream) {
    return array_line(src, at, ADDRESS(dst), false, MEMORY_HOST, size, stream, true);
}
ALIAS(cuMemcpyAtoHAsync_v2_ptsz, cuMemcpyAtoHAsync_v2);
