/* victim PHASE: a program behind the shim that stops itself before and after the calls of one phase, so that a stepper can
 * follow it through them (stepper.c). Without a tracer ($STEPPER unset) it just runs. Ends with 0, or 3 if a call failed. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuDevicePrimaryCtxRelease_v2(int), cuMemAlloc_v2(unsigned long long *, size_t), cuMemFree_v2(unsigned long long);

static int failed;

static void mark(void)
{
    if (getenv("STEPPER") != NULL)
        raise(SIGSTOP);
}

int main(int count, char **words)
{
    const char *phase = count > 1 ? words[1] : "";
    size_t size = count > 2 ? strtoull(words[2], NULL, 10) : 1 << 20;
    unsigned long long address = 0;
    void *context;
    failed |= cuInit(0);
    if (strcmp(phase, "join") == 0)
        mark();
    failed |= cuDevicePrimaryCtxRetain(&context, 0) | cuCtxSetCurrent(context);
    if (strcmp(phase, "join") == 0)
        mark();
    if (strcmp(phase, "take") == 0)
        mark();
    failed |= cuMemAlloc_v2(&address, size);
    while (strcmp(phase, "hold") == 0 && !failed)
        raise(SIGSTOP);
    if (strcmp(phase, "take") == 0 || strcmp(phase, "give") == 0)
        mark();
    failed |= cuMemFree_v2(address);
    if (strcmp(phase, "give") == 0 || strcmp(phase, "leave") == 0)
        mark();
    failed |= cuDevicePrimaryCtxRelease_v2(0);
    if (strcmp(phase, "leave") == 0)
        mark();
    return failed ? 3 : 0;
}
