/* cuGetProcAddress: entry points by public name, CUDA version and flags. */
#include <stdint.h>
#include <string.h>

#include "entries.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500 };
enum { QUERY_SUCCESS = 0, QUERY_NOT_FOUND = 1, QUERY_VERSION_NOT_SUFFICIENT = 2 };
enum { FLAG_LEGACY = 1, FLAG_PER_THREAD = 2 };

static const struct entry *first_of(const char *name) {
    size_t low = 0, high = sim_entry_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(sim_entries[middle].name, name) < 0) low = middle + 1;
        else high = middle;
    }
    return low < sim_entry_count && !strcmp(sim_entries[low].name, name) ? &sim_entries[low] : NULL;
}

/* The newest form that `version` knows; the per-thread one where asked for and there is one. */
static int look_up(const char *name, void **function, int version, uint64_t flags) {
    const struct entry *entry = first_of(name), *best = NULL, *best_thread = NULL;
    *function = NULL;
    if (!entry) return QUERY_NOT_FOUND;
    for (; entry < sim_entries + sim_entry_count && !strcmp(entry->name, name); entry++) {
        if (entry->version > version) continue;
        if (entry->per_thread) best_thread = entry;
        else best = entry;
    }
    if ((flags & FLAG_PER_THREAD) && best_thread) best = best_thread;
    if (!best) return QUERY_VERSION_NOT_SUFFICIENT;
    memcpy(function, &best->symbol, sizeof *function);
    return QUERY_SUCCESS;
}

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status);
EXPORT int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    if (!name || !function || flags > (FLAG_LEGACY | FLAG_PER_THREAD)) return INVALID_VALUE;
    int found = look_up(name, function, version, flags);
    if (status) *status = found;
    return found == QUERY_SUCCESS ? SUCCESS : NOT_FOUND;
}

EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);
EXPORT int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
