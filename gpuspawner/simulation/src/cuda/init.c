/* Start of the library, errors, and what a fork leaves behind. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>

#include "sim.h"

#define DRIVER_VERSION 13050
#define MOST_ADDRESSES (8ull << 40)
#define LEAST_ADDRESSES (1ull << 30)

struct driver driver = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

CUresult result_of(int status) {
    switch (status) {
    case SIM_OK: return CUDA_SUCCESS;
    case SIM_NO_MEMORY: return CUDA_ERROR_OUT_OF_MEMORY;
    case SIM_INVALID: return CUDA_ERROR_INVALID_VALUE;
    case SIM_CARD_LOST: return CUDA_ERROR_UNKNOWN;
    case SIM_GONE: return CUDA_ERROR_NO_DEVICE;
    case SIM_FULL: return CUDA_ERROR_OPERATING_SYSTEM;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* ---- objects ---- */
static struct object *free_objects[KIND_GRAPH_GONE - KIND_CONTEXT + 1];

void *object_new(enum kind kind, size_t size) {
    struct object **list = &free_objects[kind - KIND_CONTEXT], *object = *list;
    if (object) {
        *list = object->next_free;
        memset(object, 0, size);
    } else if (!(object = calloc(1, size))) {
        return NULL;
    }
    object->kind = kind;
    object->generation = driver.generation;
    return object;
}

void object_free(void *pointer) {
    struct object *object = pointer;
    object->next_free = free_objects[object->kind - KIND_CONTEXT];
    free_objects[object->kind - KIND_CONTEXT] = object;
    object->kind = 0;
}

bool object_valid(const void *pointer, enum kind kind) {
    const struct object *object = pointer;
    return object && !((uintptr_t)object & 7) && object->kind == kind && object->generation == driver.generation;
}

/* ---- CUDA_VISIBLE_DEVICES ---- */
/* The MIG device with this uuid, or for NULL the first of a card that is cut up; -1 if there is none. */
static int find_slice(const char *uuid, size_t length, unsigned card) {
    for (int place = SIM_MAX_CARDS; place < SIM_MAX_PLACES; place++) {
        const struct sim_card *slice = &driver.page->cards[place];
        if (!slice->has_compute) continue;
        if (uuid ? length == strlen(slice->uuid) && !strncasecmp(slice->uuid, uuid, length) : slice->parent == card)
            return place;
    }
    return -1;
}

static bool is_cut(unsigned card) { return driver.page->cards[card].mig_mode; }

static int find_card(const char *word, size_t length) {
    if (length > 4 && !strncasecmp(word, "MIG-", 4)) return find_slice(word, length, 0);
    if (length && word[0] >= '0' && word[0] <= '9') {
        char *end;
        unsigned long index = strtoul(word, &end, 10);
        if (end != word + length || index >= driver.page->card_count) return -1;
        return is_cut((unsigned)index) ? find_slice(NULL, 0, (unsigned)index) : (int)index;
    }
    int found = -1;
    for (unsigned i = 0; length > 4 && i < driver.page->card_count; i++)
        if (!strncasecmp(driver.page->cards[i].uuid, word, length)) {
            if (found >= 0) return -1; /* a shortened UUID must be unique */
            found = (int)i;
        }
    return found >= 0 && is_cut((unsigned)found) ? find_slice(NULL, 0, (unsigned)found) : found;
}

/* The list ends at the first entry that is no card, as the driver has it; a card named twice hides all. */
static void find_devices(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    driver.device_count = 0;
    if (!list) {
        /* Where a MIG device is there, a program sees that one and nothing else. */
        for (unsigned i = 0; i < driver.page->card_count; i++) {
            int slice = is_cut(i) ? find_slice(NULL, 0, i) : -1;
            if (slice < 0) continue;
            driver.card_of[0] = (unsigned)slice;
            driver.device_count = 1;
            return;
        }
        for (unsigned i = 0; i < driver.page->card_count; i++)
            if (!is_cut(i)) driver.card_of[driver.device_count++] = i;
        return;
    }
    while (*list) {
        while (*list == ' ') list++;
        size_t length = strcspn(list, ",");
        size_t trimmed = length;
        while (trimmed && list[trimmed - 1] == ' ') trimmed--;
        int card = find_card(list, trimmed);
        if (card < 0) break;
        for (int i = 0; i < driver.device_count; i++)
            if (driver.card_of[i] == (unsigned)card) {
                driver.device_count = 0;
                return;
            }
        if (card >= SIM_MAX_CARDS) { /* a process uses one MIG device at most, and no card beside it */
            driver.card_of[0] = (unsigned)card;
            driver.device_count = 1;
            return;
        }
        driver.card_of[driver.device_count++] = (unsigned)card;
        list += length + (list[length] == ',');
    }
}

/* Card memory lives in one large private mapping: nothing is committed before it is written, one mapping
 * serves any number of allocations, and addresses say by themselves whose they are. */
bool memory_setup(void) {
    for (uint64_t size = MOST_ADDRESSES; size >= LEAST_ADDRESSES; size /= 2) {
        void *base = mmap(NULL, size + SIM_LARGE_GRANULE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (base == MAP_FAILED) continue;
        madvise(base, size + SIM_LARGE_GRANULE, MADV_DONTFORK);
        madvise(base, size + SIM_LARGE_GRANULE, MADV_DONTDUMP);
        madvise(base, size + SIM_LARGE_GRANULE, MADV_NOHUGEPAGE); /* one byte written: one page taken */
        driver.arena_base = ((uint64_t)(uintptr_t)base + SIM_LARGE_GRANULE - 1) & ~(SIM_LARGE_GRANULE - 1);
        driver.arena_size = size;
        return arena_add(&driver.addresses, driver.arena_base, size);
    }
    return false;
}

static void before_fork(void) { LOCK(); }
static void after_fork_parent(void) { UNLOCK(); }

/* The child starts afresh: it holds nothing, and its parent's handles mean nothing to it. */
static void after_fork_child(void) {
    uint32_t generation = driver.generation + 1;
    memset(&driver, 0, sizeof driver);
    driver.generation = generation;
    pthread_mutex_init(&driver.lock, NULL);
    memset(free_objects, 0, sizeof free_objects);
    context_after_fork();
    arrays_after_fork();
    vmm_after_fork();
    worker_after_fork();
    channels_after_fork();
    graphs_after_fork();
}

API cuInit(unsigned flags) {
    static bool fork_handler;
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult result = CUDA_SUCCESS;
    if (!driver.ready) {
        result = result_of(sim_connect());
        if (!result) {
            driver.page = sim_page();
            find_devices();
            if (!driver.device_count) result = CUDA_ERROR_NO_DEVICE;
            else if (!driver.arena_base && !memory_setup()) result = CUDA_ERROR_OPERATING_SYSTEM;
            else driver.ready = true;
            if (!fork_handler)
                fork_handler = !pthread_atfork(before_fork, after_fork_parent, after_fork_child);
        }
    }
    UNLOCK();
    return result;
}

API cuDriverGetVersion(int *version) {
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    *version = DRIVER_VERSION;
    return CUDA_SUCCESS;
}

/* The way in for the CUDA runtime library. It hands our answer on: PyTorch takes "no device" for a machine without a
 * card and says nothing, and any other error it prints in the user's notebook. */
API cuGetExportTable(const void **table, const CUuuid *id) {
    (void)id;
    if (table) *table = NULL;
    return CUDA_ERROR_NO_DEVICE;
}

/* ---- errors ---- */
static const struct { int code; const char *name, *text; } errors[] = {
#define ERROR(code, name, text) {code, "CUDA_" #name, text},
#include "errors.inc"
#undef ERROR
};

API cuGetErrorName(CUresult error, const char **name) {
    if (!name) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)error) return *name = errors[i].name, CUDA_SUCCESS;
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult error, const char **text) {
    if (!text) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == (int)error) return *text = errors[i].text, CUDA_SUCCESS;
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}
