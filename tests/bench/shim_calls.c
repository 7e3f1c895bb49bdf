/* shim_calls DRIVER SHIM WHAT: nanoseconds of processor time of a call directly and through the shim, by turns.
 * Prints one line for each round: directly, through the shim. WHAT is alloc, info, launch, graph, or a number of allocations
 * that live on all the while: then the oldest of them is released and another made, or, with a minus sign, any of them. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROUNDS 41
#define CALLS 20000

struct api {
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
    int (*alloc)(unsigned long long *, size_t), (*release)(unsigned long long), (*info)(size_t *, size_t *);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    int (*graph)(void *, void *);
};

struct ring {
    unsigned long long *live;
    size_t count, at;
    int oldest;
};

static int bad;

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "%s is missing\n", name);
        exit(2);
    }
    return symbol;
}

static struct api open_api(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL), *context;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    struct api api = {find(library, "cuInit"), find(library, "cuDevicePrimaryCtxRetain"), find(library, "cuCtxSetCurrent"),
                      find(library, "cuMemAlloc_v2"), find(library, "cuMemFree_v2"), find(library, "cuMemGetInfo_v2"),
                      find(library, "cuLaunchKernel"), find(library, "cuGraphLaunch")};
    if (api.init(0) || api.retain(&context, 0) || api.set(context)) {
        fprintf(stderr, "%s does not start\n", path);
        exit(2);
    }
    return api;
}

static void renew(const struct api *api, struct ring *ring)
{
    bad |= api->release(ring->live[ring->at]) | api->alloc(&ring->live[ring->at], 512);
    ring->at = (ring->at + (ring->oldest ? 1 : 611953)) % ring->count; /* a prime: comes by all of them */
}

static struct ring fill(const struct api *api, long count)
{
    struct ring ring = {NULL, (size_t)labs(count), 0, count > 0};
    ring.live = calloc(ring.count + 1, sizeof *ring.live);
    for (size_t i = 0; i < ring.count; i++)
        bad |= api->alloc(&ring.live[i], 512);
    return ring;
}

static double nanoseconds(const struct api *api, const char *what, struct ring *ring)
{
    struct timespec from, to;
    unsigned long long pointer;
    size_t left, all;
    char kernel;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    if (strcmp(what, "alloc") == 0)
        for (int i = 0; i < CALLS; i++)
            bad |= api->alloc(&pointer, 512) | api->release(pointer);
    else if (strcmp(what, "info") == 0)
        for (int i = 0; i < CALLS; i++)
            bad |= api->info(&left, &all);
    else if (strcmp(what, "launch") == 0)
        for (int i = 0; i < CALLS; i++)
            bad |= api->launch(&kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
    else if (strcmp(what, "graph") == 0)
        for (int i = 0; i < CALLS; i++)
            bad |= api->graph(&kernel, NULL);
    else
        for (int i = 0; i < CALLS; i++)
            renew(api, ring);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    return ((double)(to.tv_sec - from.tv_sec) * 1e9 + (double)(to.tv_nsec - from.tv_nsec)) / CALLS;
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    struct api shim = open_api(words[2]), driver = open_api(words[1]);
    long live = strtol(words[3], NULL, 10);
    struct ring here = fill(&driver, live), there = fill(&shim, live);
    for (int round = -3; round < ROUNDS; round++) { /* the first ones warm up */
        double first = nanoseconds(&driver, words[3], &here), second = nanoseconds(&shim, words[3], &there);
        if (round >= 0)
            printf("%.3f %.3f\n", first, second);
    }
    return bad;
}
