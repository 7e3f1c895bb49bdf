/* Which card it is, and how much memory the program is told that it has. */
#include "cuda.h"

#include <limits.h>
#include <pthread.h>

#define MOST_DEVICES 64

/* Position in the limit file + 1 by device ordinal: CUDA_VISIBLE_DEVICES reorders and hides, the uuid stays. */
static _Atomic int cards[MOST_DEVICES];

int card_of_device(CUdevice device)
{
    if (device < 0 || device >= MOST_DEVICES)
        return NO_CARD;
    int known = atomic_load_explicit(&cards[device], memory_order_relaxed);
    if (known > 0)
        return known - 1;
    uint8_t uuid[16];
    CUresult result = real(SYM_cuDeviceGetUuid_v2) != NULL
                          ? REAL(cuDeviceGetUuid_v2, (uint8_t *, CUdevice), uuid, device)
                          : REAL(cuDeviceGetUuid, (uint8_t *, CUdevice), uuid, device);
    if (result != CUDA_SUCCESS)
        return NO_CARD;
    int card = limits_find(uuid);
    if (card != NO_CARD)
        atomic_store_explicit(&cards[device], card + 1, memory_order_relaxed);
    return card;
}

CUresult current_card(int *card)
{
    CUdevice device;
    CUresult result = REAL(cuCtxGetDevice, (CUdevice *), &device);
    *card = result == CUDA_SUCCESS ? card_of_device(device) : NO_CARD;
    return result;
}

CUcontext current_context(void)
{
    CUcontext context = NULL;
    return REAL(cuCtxGetCurrent, (CUcontext *), &context) == CUDA_SUCCESS ? contexts_owner(context) : NULL;
}

/* A session without a card: as the driver answers where no card is visible, whatever CUDA_VISIBLE_DEVICES says. A limit
 * file that cannot be believed is another matter, of which the first allocation speaks. */
EXPORT CUresult cuInit(unsigned flags)
{
    if (flags == 0 && limits_ready() && limits_count() == 0)
        return CUDA_ERROR_NO_DEVICE;
    return REAL(cuInit, (unsigned), flags);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    int card;
    CUresult result = current_card(&card);
    if (result != CUDA_SUCCESS)
        return result;
    if (free_bytes == NULL || total_bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    pools_settle();
    uint64_t room = limits_room(card), used = accounts_used(card);
    *total_bytes = limits_of(card).memory_bytes;
    *free_bytes = used < room ? room - used : 0;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo(unsigned *free_bytes, unsigned *total_bytes)
{
    size_t free_whole, total_whole;
    if (free_bytes == NULL || total_bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuMemGetInfo_v2(&free_whole, &total_whole);
    if (result == CUDA_SUCCESS) {
        *free_bytes = free_whole > UINT_MAX ? UINT_MAX : (unsigned)free_whole;
        *total_bytes = total_whole > UINT_MAX ? UINT_MAX : (unsigned)total_whole;
    }
    return result;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult result = REAL(cuDeviceTotalMem_v2, (size_t *, CUdevice), bytes, device);
    if (result == CUDA_SUCCESS)
        *bytes = limits_of(card_of_device(device)).memory_bytes;
    return result;
}

EXPORT CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device)
{
    size_t whole;
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuDeviceTotalMem_v2(&whole, device);
    if (result == CUDA_SUCCESS)
        *bytes = whole > UINT_MAX ? UINT_MAX : (unsigned)whole;
    return result;
}
