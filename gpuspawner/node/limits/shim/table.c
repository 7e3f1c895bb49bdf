/* A hash table in shards, each with its own lock and open addressing; a removal closes its gap, so that it never fills with
 * graves and a lookup takes a few steps however many allocations came and went. */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 64
#define FIRST_ROOM 16

struct place {
    struct held held;
    bool taken;
};

static struct shard {
    pthread_mutex_t lock;
    struct place *places;
    size_t room, count; /* room: 0 or a power of two */
} shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static uint64_t hash(enum held_kind kind, uint64_t key)
{
    uint64_t value = key + (uint64_t)kind * UINT64_C(0x9e3779b97f4a7c15);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31);
}

static struct shard *shard_of(uint64_t code) { return &shards[code >> 58]; }

static size_t find(const struct shard *shard, enum held_kind kind, uint64_t key, uint64_t code)
{
    size_t at = code & (shard->room - 1);
    while (shard->places[at].taken && (shard->places[at].held.key != key || shard->places[at].held.kind != kind))
        at = (at + 1) & (shard->room - 1);
    return at;
}

static bool grow(struct shard *shard)
{
    size_t room = shard->room == 0 ? FIRST_ROOM : shard->room * 2;
    struct place *old = shard->places, *places = calloc(room, sizeof *places);
    size_t old_room = shard->room;
    if (places == NULL)
        return false;
    shard->places = places;
    shard->room = room;
    for (size_t i = 0; i < old_room; i++) {
        if (old[i].taken) {
            const struct held *held = &old[i].held;
            places[find(shard, held->kind, held->key, hash(held->kind, held->key))] = old[i];
        }
    }
    free(old);
    return true;
}

static void remove_at(struct shard *shard, size_t at)
{
    size_t mask = shard->room - 1, gap = at;
    for (size_t next = (at + 1) & mask; shard->places[next].taken; next = (next + 1) & mask) {
        const struct held *held = &shard->places[next].held;
        size_t wanted = hash(held->kind, held->key) & mask;
        if (((next - wanted) & mask) >= ((next - gap) & mask)) {
            shard->places[gap] = shard->places[next];
            gap = next;
        }
    }
    shard->places[gap].taken = false;
    shard->count--;
}

bool table_put(const struct held *held)
{
    uint64_t code = hash(held->kind, held->key);
    struct shard *shard = shard_of(code);
    pthread_mutex_lock(&shard->lock);
    bool ok = (shard->count + 1) * 4 <= shard->room * 3 || grow(shard);
    if (ok) {
        size_t at = find(shard, held->kind, held->key, code);
        shard->count += !shard->places[at].taken;
        shard->places[at] = (struct place){*held, true};
    }
    pthread_mutex_unlock(&shard->lock);
    return ok;
}

static bool look(enum held_kind kind, uint64_t key, struct held *held, bool take)
{
    uint64_t code = hash(kind, key);
    struct shard *shard = shard_of(code);
    pthread_mutex_lock(&shard->lock);
    size_t at = shard->room != 0 ? find(shard, kind, key, code) : 0;
    bool found = shard->room != 0 && shard->places[at].taken;
    if (found) {
        *held = shard->places[at].held;
        if (take)
            remove_at(shard, at);
    }
    pthread_mutex_unlock(&shard->lock);
    return found;
}

bool table_take(enum held_kind kind, uint64_t key, struct held *held) { return look(kind, key, held, true); }
bool table_get(enum held_kind kind, uint64_t key, struct held *held) { return look(kind, key, held, false); }

void table_end_context(void *context)
{
    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &shards[i];
        pthread_mutex_lock(&shard->lock);
        for (bool again = true; again;) { /* closing a gap may move an entry to where we have been */
            again = false;
            for (size_t at = 0; at < shard->room; at++) {
                const struct held *held = &shard->places[at].held;
                if (!shard->places[at].taken || held->owner != context ||
                    (held->kind != HELD_PLAIN && held->kind != HELD_ARRAY))
                    continue;
                accounts_release(held->card, held->bytes);
                remove_at(shard, at);
                again = true;
            }
        }
        pthread_mutex_unlock(&shard->lock);
    }
}

/* The child holds nothing; what its parent's tables took of its memory stays behind. */
void table_after_fork(void)
{
    for (int i = 0; i < SHARDS; i++) {
        pthread_mutex_init(&shards[i].lock, NULL);
        shards[i].places = NULL;
        shards[i].room = shards[i].count = 0;
    }
}
