/* A driver that does next to nothing and returns at once, so that what remains of a call's time is the shim's. It knows one
 * card, counts nothing, and hands out numbers that were not handed out before, in the steps of a real driver. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101 };

static uint64_t next = 1 << 20;
static int primary; /* how often it is retained, green contexts included */
static void *current;

static uint64_t number(void) { return __atomic_add_fetch(&next, 512, __ATOMIC_RELAXED); }

API cuInit(unsigned flags) { return flags != 0; }
API cuDeviceGetUuid_v2(char *uuid, int device)
{
    memcpy(uuid, "null driver 0000", 16);
    return device == 0 ? SUCCESS : INVALID_DEVICE;
}

/* ---- contexts ---- */
API cuCtxGetDevice(int *device) { return *device = 0, SUCCESS; }
API cuCtxGetCurrent(void **context) { return *context = current, SUCCESS; }
API cuCtxSetCurrent(void *context) { return current = context, SUCCESS; }
API cuDevicePrimaryCtxRetain(void **context, int device)
{
    primary++;
    return *context = &primary, device == 0 ? SUCCESS : INVALID_DEVICE;
}
API cuDevicePrimaryCtxRelease_v2(int device) { return primary--, device == 0 ? SUCCESS : INVALID_DEVICE; }
API cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active)
{
    *flags = 0, *active = primary > 0;
    return device == 0 ? SUCCESS : INVALID_DEVICE;
}
API cuGreenCtxCreate(void **green, void *resources, int device, unsigned flags)
{
    (void)device, (void)flags;
    if (resources == NULL)
        return INVALID_VALUE;
    primary++;
    return *green = (void *)(uintptr_t)number(), SUCCESS;
}
API cuGreenCtxDestroy(void *green) { return primary--, green == NULL ? INVALID_VALUE : SUCCESS; }
API cuCtxFromGreenCtx(void **context, void *green) { return *context = (char *)green + 1, SUCCESS; }

/* ---- memory ---- */
API cuMemAlloc_v2(unsigned long long *address, size_t size) { return *address = number(), size == 0; }
API cuMemFree_v2(unsigned long long address) { return address == 0 ? INVALID_VALUE : SUCCESS; }
API cuMemGetInfo_v2(size_t *left, size_t *total) { return *left = *total = (size_t)1 << 40, SUCCESS; }
API cuMemCreate(unsigned long long *handle, size_t size, const void *prop, unsigned long long flags)
{
    (void)prop, (void)flags;
    return *handle = number(), size == 0;
}
API cuMemRelease(unsigned long long handle) { return handle == 0 ? INVALID_VALUE : SUCCESS; }
API cuArray3DCreate_v2(void **array, const void *descriptor)
{
    return *array = (void *)(uintptr_t)number(), descriptor == NULL;
}
API cuArrayDestroy(void *array) { return array == NULL ? INVALID_VALUE : SUCCESS; }
API cuMemMapArrayAsync(void *maps, unsigned count, void *stream) { return (void)maps, (void)count, stream != NULL; }

/* ---- work, which takes no time ---- */
API cuEventCreate(void **event, unsigned flags) { return *event = (void *)(uintptr_t)number(), flags != 0; }
API cuEventDestroy_v2(void *event) { return event == NULL; }
API cuEventRecord(void *event, void *stream) { return (void)stream, event == NULL; }
API cuEventQuery(void *event) { return event == NULL; }
API cuEventElapsedTime_v2(float *milliseconds, void *from, void *to) { return *milliseconds = 0, from == NULL || to == NULL; }
API cuStreamQuery(void *stream) { return (void)stream, SUCCESS; }
API cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **arguments, void **extra)
{
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)arguments, (void)extra;
    return function == NULL ? INVALID_VALUE : SUCCESS;
}
API cuGraphLaunch(void *graph, void *stream) { return (void)stream, graph == NULL; }
