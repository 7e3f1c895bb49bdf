/* A hash table in shards, each with its own lock and open addressing. A place holds a group: the keys of TOGETHER granules
 * that follow each other, as small pieces do that the driver cuts from one block, so that many of them are not a cache miss
 * each. A group that has become empty closes its gap, so that the table never fills with graves and a lookup takes a few
 * steps however many allocations came and went. */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

#define SHARDS 64
#define FIRST_ROOM 8
#define TOGETHER 8
#define SIDE_BY_SIDE 4

struct group {
    uint64_t key; /* of the first one */
    enum held_kind kind;
    uint32_t taken; /* a bit for each */
    uint32_t home;  /* where it should lie: the lower half of its hash */
    struct {
        uint64_t bytes;
        void *owner;
    } held[TOGETHER];
    int cards[TOGETHER];
};

static struct shard {
    pthread_mutex_t lock;
    struct group *places; /* nothing taken: free */
    size_t room, count;   /* room: 0 or a power of two */
} shards[SHARDS] = {[0 ... SHARDS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static unsigned member(uint64_t key) { return (unsigned)(key / GRANULE % TOGETHER); }

/* Handles are not in granules: what is below one stays in the key. */
static uint64_t group_key(uint64_t key) { return key - member(key) * GRANULE; }

/* Groups that follow each other lie side by side, too: they differ in the lowest bits only. */
static uint64_t hash(enum held_kind kind, uint64_t key)
{
    uint64_t group = key / (GRANULE * TOGETHER);
    uint64_t value = group / SIDE_BY_SIDE + (uint64_t)kind * UINT64_C(0x9e3779b97f4a7c15);
    value ^= key % GRANULE * UINT64_C(0xd6e8feb86659fd93);
    value = (value ^ (value >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    value = (value ^ (value >> 27)) * UINT64_C(0x94d049bb133111eb);
    return value ^ (value >> 31) ^ group % SIDE_BY_SIDE;
}

static struct shard *shard_of(uint64_t code) { return &shards[code >> 58]; }

/* The place of a group, or a free one where it would lie. `key`: of its first. */
static size_t find(const struct shard *shard, enum held_kind kind, uint64_t key, uint64_t code)
{
    size_t at = code & (shard->room - 1);
    while (shard->places[at].taken != 0 && (shard->places[at].key != key || shard->places[at].kind != kind))
        at = (at + 1) & (shard->room - 1);
    return at;
}

static bool grow(struct shard *shard)
{
    size_t room = shard->room == 0 ? FIRST_ROOM : shard->room * 2, old_room = shard->room;
    struct group *old = shard->places, *places = calloc(room, sizeof *places);
    if (places == NULL)
        return false;
    shard->places = places;
    shard->room = room;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].taken != 0)
            places[find(shard, old[i].kind, old[i].key, old[i].home)] = old[i];
    free(old);
    return true;
}

static void close_gap(struct shard *shard, size_t at)
{
    size_t mask = shard->room - 1, gap = at;
    for (size_t next = (at + 1) & mask; shard->places[next].taken != 0; next = (next + 1) & mask) {
        size_t wanted = shard->places[next].home & mask;
        if (((next - wanted) & mask) >= ((next - gap) & mask)) {
            shard->places[gap] = shard->places[next];
            gap = next;
        }
    }
    shard->places[gap].taken = 0;
    shard->count--;
}

bool table_put(const struct held *held)
{
    uint64_t key = group_key(held->key), code = hash(held->kind, key);
    unsigned which = member(held->key);
    struct shard *shard = shard_of(code);
    pthread_mutex_lock(&shard->lock);
    bool ok = (shard->count + 1) * 2 <= shard->room || grow(shard);
    if (ok) {
        struct group *group = &shard->places[find(shard, held->kind, key, code)];
        shard->count += group->taken == 0;
        group->key = key;
        group->kind = held->kind;
        group->home = (uint32_t)code;
        group->taken |= 1u << which;
        group->held[which].bytes = held->bytes;
        group->held[which].owner = held->owner;
        group->cards[which] = held->card;
    }
    pthread_mutex_unlock(&shard->lock);
    return ok;
}

static bool look(enum held_kind kind, uint64_t key, struct held *held, bool take)
{
    uint64_t first = group_key(key), code = hash(kind, first);
    unsigned which = member(key);
    struct shard *shard = shard_of(code);
    pthread_mutex_lock(&shard->lock);
    size_t at = shard->room != 0 ? find(shard, kind, first, code) : 0;
    struct group *group = shard->room != 0 ? &shard->places[at] : NULL;
    bool found = group != NULL && (group->taken & 1u << which) != 0;
    if (found) {
        *held = (struct held){key, kind, group->cards[which], group->held[which].bytes, group->held[which].owner};
        if (take && (group->taken &= ~(1u << which)) == 0)
            close_gap(shard, at);
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
        for (bool again = true; again;) { /* closing a gap may move a group to where we have been */
            again = false;
            for (size_t at = 0; at < shard->room; at++) {
                struct group *group = &shard->places[at];
                if (group->taken == 0 || (group->kind != HELD_PLAIN && group->kind != HELD_ARRAY))
                    continue;
                for (unsigned which = 0; which < TOGETHER; which++) {
                    if ((group->taken & 1u << which) == 0 || group->held[which].owner != context)
                        continue;
                    accounts_release(group->cards[which], group->held[which].bytes);
                    group->taken &= ~(1u << which);
                }
                if (group->taken == 0) {
                    close_gap(shard, at);
                    again = true;
                }
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
