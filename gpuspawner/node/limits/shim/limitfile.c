#include "common.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEFAULT_PATH "/run/gpuspawner/limits/limit"
#ifndef TRIES /* fewer where a test damages it at each look */
#define TRIES 10000
#endif

static struct abi_limit_file *_Atomic file;
const _Atomic uint64_t *_Atomic limits_word;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The copy last believed, field by field, so that a lookup is a few loads: `seen` is its generation, 0 for none. */
static _Atomic uint64_t seen;
static struct {
    _Atomic uint64_t memory_bytes, context_bytes;
    _Atomic uint32_t compute, compute_from;
    _Atomic bool present, frozen, burst;
} current[ABI_CARDS];
static uint8_t uuids[ABI_CARDS][16]; /* a position never changes its card */
static _Atomic int positions;

static uint64_t checksum(const struct abi_limits *limits)
{
    const uint8_t *bytes = (const uint8_t *)limits;
    uint64_t value = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < sizeof *limits; i++)
        if (i < offsetof(struct abi_limits, checksum) || i >= offsetof(struct abi_limits, count))
            value = (value ^ bytes[i]) * UINT64_C(0x100000001b3);
    return value;
}

static const char *path(void) { return path_of("GPUSPAWNER_LIMITS", DEFAULT_PATH); }

static void refuse(const char *why)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    say_once(&said, "no card may be used: limit file %s: %s", path(), why);
}

/* With the lock held. */
static bool map_file(void)
{
    if (atomic_load_explicit(&file, memory_order_acquire) != NULL)
        return true;
    int fd = open(path(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        refuse(strerror(errno));
        return false;
    }
    void *view = MAP_FAILED;
    bool right = is_file_of(fd, ABI_LIMIT_SIZE);
    if (right)
        view = mmap(NULL, ABI_LIMIT_SIZE, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (view == MAP_FAILED) {
        refuse(right ? "cannot be mapped" : "not a file of 4096 bytes");
        return false;
    }
    struct abi_limit_file *candidate = view;
    const char *problem = wrong_header(candidate->magic, ABI_LIMIT_MAGIC, candidate->version);
    if (problem == NULL && candidate->size != ABI_LIMIT_SIZE)
        problem = "its header names another size";
    if (problem != NULL) {
        munmap(view, ABI_LIMIT_SIZE);
        refuse(problem);
        return false;
    }
    atomic_store_explicit(&file, candidate, memory_order_release);
    atomic_store_explicit(&limits_word, &candidate->generation, memory_order_release);
    return true;
}

static uint32_t part(uint32_t thousandths) { return thousandths < ABI_WHOLE ? thousandths : ABI_WHOLE; }

static void believe(const struct abi_limits *limits)
{
    int known = atomic_load_explicit(&positions, memory_order_relaxed);
    for (int i = 0; i < (int)limits->count; i++) {
        const struct abi_entry *entry = &limits->entries[i];
        if (i >= known)
            memcpy(uuids[i], entry->uuid, 16);
        bool same = memcmp(uuids[i], entry->uuid, 16) == 0;
        bool present = same && (entry->flags & ABI_ENTRY_PRESENT) != 0;
        atomic_store_explicit(&current[i].memory_bytes, present ? entry->memory_bytes : 0, memory_order_relaxed);
        atomic_store_explicit(&current[i].context_bytes, present ? entry->context_bytes : 0, memory_order_relaxed);
        atomic_store_explicit(&current[i].compute, present ? part(entry->compute) : 0, memory_order_relaxed);
        atomic_store_explicit(&current[i].compute_from, part(entry->compute_from), memory_order_relaxed);
        atomic_store_explicit(&current[i].frozen, (entry->flags & ABI_ENTRY_FROZEN) != 0, memory_order_relaxed);
        atomic_store_explicit(&current[i].burst, (entry->flags & ABI_ENTRY_BURST) != 0, memory_order_relaxed);
        atomic_store_explicit(&current[i].present, present, memory_order_relaxed);
    }
    if ((int)limits->count > known)
        atomic_store_explicit(&positions, (int)limits->count, memory_order_release);
    atomic_store_explicit(&seen, limits->generation, memory_order_release);
}

/* Reads the copy in force until one is whole. A writer that died half-way left the other copy untouched, so that only a
 * damaged file fails here. */
static bool refresh(void)
{
    bool ok = false;
    pthread_mutex_lock(&lock);
    if (map_file()) {
        struct abi_limit_file *map = atomic_load_explicit(&file, memory_order_relaxed);
        for (int i = 0; i < TRIES && !ok; i++) {
            struct abi_limits copy;
            uint64_t generation = atomic_load_explicit(&map->generation, memory_order_acquire);
            memcpy(&copy, &map->copies[generation & 1].limits, sizeof copy);
            atomic_thread_fence(memory_order_acquire);
            if (generation != 0 && copy.generation == generation && copy.count <= ABI_CARDS &&
                copy.checksum == checksum(&copy)) {
                believe(&copy);
                ok = true;
            }
        }
        if (!ok) {
            atomic_store_explicit(&seen, 0, memory_order_release);
            refuse("torn or damaged");
        }
    }
    pthread_mutex_unlock(&lock);
    return ok;
}

bool limits_ready(void)
{
    struct abi_limit_file *map = atomic_load_explicit(&file, memory_order_acquire);
    if (UNLIKELY(map == NULL))
        return refresh();
    uint64_t generation = atomic_load_explicit(&map->generation, memory_order_acquire);
    if (UNLIKELY(generation == 0 || generation != atomic_load_explicit(&seen, memory_order_acquire)))
        return refresh();
    return true;
}

uint64_t limits_generation(void) { return limits_ready() ? atomic_load_explicit(&seen, memory_order_acquire) : 0; }

int limits_find(const uint8_t uuid[16])
{
    if (!limits_ready())
        return NO_CARD;
    int count = atomic_load_explicit(&positions, memory_order_acquire);
    for (int i = 0; i < count; i++)
        if (memcmp(uuids[i], uuid, 16) == 0)
            return i;
    return NO_CARD;
}

struct card_limit limits_of(int card)
{
    struct card_limit limit = {0, 0, false, false};
    if (card == NO_CARD || !limits_ready())
        return limit;
    limit.present = atomic_load_explicit(&current[card].present, memory_order_relaxed);
    limit.memory_bytes = atomic_load_explicit(&current[card].memory_bytes, memory_order_relaxed);
    limit.context_bytes = atomic_load_explicit(&current[card].context_bytes, memory_order_relaxed);
    limit.frozen = atomic_load_explicit(&current[card].frozen, memory_order_relaxed);
    return limit;
}

struct compute_limit limits_compute(int card)
{
    struct compute_limit limit = {0, 0, false};
    if (card == NO_CARD || !limits_ready())
        return limit;
    limit.part = atomic_load_explicit(&current[card].compute, memory_order_relaxed);
    limit.burst = atomic_load_explicit(&current[card].burst, memory_order_relaxed);
    limit.from = atomic_load_explicit(&current[card].compute_from, memory_order_relaxed);
    return limit;
}

int limits_count(void) { return limits_ready() ? atomic_load_explicit(&positions, memory_order_acquire) : 0; }

void limits_uuid(int card, uint8_t uuid[16]) { memcpy(uuid, uuids[card], 16); }

void limits_after_fork(void) { pthread_mutex_init(&lock, NULL); }
