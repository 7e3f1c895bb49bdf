/* How a program reaches us: by symbol, since we are libcuda.so.1 to it, and by cuGetProcAddress. */
#include "throttle.h"

#include <string.h>

#define S(symbol, name, version, per_thread) extern CUresult symbol();
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
SYMBOLS(S)
#pragma GCC diagnostic pop
#undef S

static const struct {
    const char *symbol, *name;
    int version;
    bool per_thread;
    void *ours; /* NULL: only called by us */
} symbols[] = {
#define S(symbol, name, version, per_thread) {#symbol, #name, version, per_thread, (void *)symbol},
    SYMBOLS(S)
#undef S
#define S(symbol, name, version, per_thread) {#symbol, #name, version, per_thread, NULL},
    HELPERS(S)
#undef S
};

void *_Atomic reals[SYMBOL_COUNT];

void *find_real(enum symbol symbol)
{
    void *function = driver_symbol(symbols[symbol].symbol);
    if (function != NULL)
        atomic_store_explicit(&reals[symbol], function, memory_order_release);
    return function;
}

enum { PER_THREAD_DEFAULT_STREAM = 2 };

/* What the driver returned for a name, version and flags is the newest form that the version knows: ours is the same one,
 * unless the driver shows by its pointer that it means another. Lookups of one function give one pointer, always. */
static void swap(const char *name, void **function, int version, uint64_t flags)
{
    int best = -1;
    bool per_thread = (flags & PER_THREAD_DEFAULT_STREAM) != 0;
    for (int i = 0; i < SYMBOL_COUNT && symbols[i].ours != NULL; i++) {
        if (strcmp(symbols[i].name, name) != 0 || symbols[i].version > version || (symbols[i].per_thread && !per_thread))
            continue;
        if (best < 0 || symbols[i].per_thread || (!symbols[best].per_thread && symbols[i].version >= symbols[best].version))
            best = i;
    }
    void *known = best >= 0 ? real((enum symbol)best) : NULL, *nothing = NULL;
    if (best >= 0 && known == NULL) /* not exported, only to be had this way */
        atomic_compare_exchange_strong(&reals[best], &nothing, *function);
    for (int i = 0; (best < 0 || (known != NULL && known != *function)) && i < SYMBOL_COUNT && symbols[i].ours != NULL; i++)
        if (real((enum symbol)i) == *function)
            best = i, known = *function;
    if (best >= 0)
        *function = symbols[best].ours;
    else
        review(name);
}

EXPORT CUresult cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    CUresult result = REAL(cuGetProcAddress, (const char *, void **, int, uint64_t), name, function, version, flags);
    if (result == CUDA_SUCCESS && name != NULL && function != NULL && *function != NULL)
        swap(name, function, version, flags);
    return result;
}

EXPORT CUresult cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    CUresult result = REAL(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *), name, function, version,
                           flags, status);
    if (result == CUDA_SUCCESS && name != NULL && function != NULL && *function != NULL)
        swap(name, function, version, flags);
    return result;
}

void shim_after_fork(void)
{
    table_after_fork();
    pools_after_fork();
    vmm_after_fork();
    contexts_after_fork();
    graphs_after_fork();
    samples_after_fork();
    throttle_after_fork();
}
