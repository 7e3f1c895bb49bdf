/* A hash table in shards, each with its own lock and open addressing. A place is a group, one cache line: what is known
 * about up to TOGETHER granules that follow each other and have one owner, as small pieces do that the driver cuts from one
 * block, so that many of them are not a cache miss each. A group that has become empty closes its gap, so that the table
 * never fills with graves and a lookup takes a few steps however many allocations came and went. */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define SHARDS 64
#define FIRST_ROOM 8
#define TOGETHER 8
#define SIDE_BY_SIDE 4
#define LINE 64
#define MOST_GRANULES ((UINT64_C(1) << 40) - 1) /* 512 TiB */

struct group {
    uint64_t key; /* of the first one */
    void *owner;
    uint32_t home; /* where it should lie: the lower half of its hash */
    uint8_t kind;
    uint8_t taken; /* a bit for each; none: the place is free */
    int8_t card;
    uint8_t high[TOGETHER]; /* each one's size in granules, by 40 bits */
    uint8_t unused;
    uint32_t low[TOGETHER];
};
_Static_assert(sizeof(struct group) == LINE, "a group is a cache line");

static struct shard {
    _Alignas(LINE) pthread_mutex_t lock;
    struct group *places;
    size_t room, count; /* room: 0 or a power of two */
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
    return (value ^ (value >> 31)) / SIDE_BY_SIDE * SIDE_BY_SIDE + group % SIDE_BY_SIDE;
}

static struct shard *shard_of(uint64_t code) { return &shards[code >> 58]; }

static bool is_group(const struct group *group, enum held_kind kind, uint64_t key)
{
    return group->key == key && group->kind == kind;
}

static size_t free_place(const struct shard *shard, uint32_t home)
{
    size_t at = home & (shard->room - 1);
    while (shard->places[at].taken != 0)
        at = (at + 1) & (shard->room - 1);
    return at;
}

static bool grow(struct shard *shard)
{
    size_t room = shard->room == 0 ? FIRST_ROOM : shard->room * 2, old_room = shard->room;
    struct group *old = shard->places, *places = aligned_alloc(LINE, room * sizeof *places);
    if (places == NULL)
        return false;
    memset(places, 0, room * sizeof *places);
    shard->places = places;
    shard->room = room;
    for (size_t i = 0; i < old_room; i++)
        if (old[i].taken != 0)
            places[free_place(shard, old[i].home)] = old[i];
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

static uint64_t bytes_of(const struct group *group, unsigned which)
{
    return ((uint64_t)group->high[which] << 32 | group->low[which]) * GRANULE;
}

/* The group that holds the key; NULL if none does. Keys that follow each other may have several groups, one for each owner. */
static struct group *find(const struct shard *shard, enum held_kind kind, uint64_t key, uint64_t code)
{
    uint64_t first = group_key(key);
    unsigned bit = 1u << member(key);
    for (size_t at = code & (shard->room - 1); shard->room != 0 && shard->places[at].taken != 0;
         at = (at + 1) & (shard->room - 1))
        if ((shard->places[at].taken & bit) != 0 && is_group(&shard->places[at], kind, first))
            return &shard->places[at];
    return NULL;
}

static void take(struct shard *shard, struct group *group, unsigned which)
{
    group->taken &= (uint8_t)~(1u << which);
    if (group->taken == 0)
        close_gap(shard, (size_t)(group - shard->places));
}

/* Where a group for `held` lies or may lie. The driver may give an address out again whose end we did not see: what was
 * known of it goes. */
static struct group *place_for(struct shard *shard, const struct held *held, uint64_t key, uint64_t code)
{
    struct group *old = find(shard, held->kind, held->key, code);
    if (UNLIKELY(old != NULL))
        take(shard, old, member(held->key));
    size_t at = code & (shard->room - 1);
    for (; shard->places[at].taken != 0; at = (at + 1) & (shard->room - 1)) {
        struct group *group = &shard->places[at];
        if (is_group(group, held->kind, key) && group->owner == held->owner && group->card == held->card)
            break;
    }
    return &shard->places[at];
}

bool table_put(const struct held *held)
{
    uint64_t key = group_key(held->key), code = hash(held->kind, key), granules = held->bytes / GRANULE;
    unsigned which = member(held->key);
    if (held->bytes % GRANULE != 0 || granules > MOST_GRANULES)
        return false;
    struct shard *shard = shard_of(code);
    pthread_mutex_lock(&shard->lock);
    bool ok = (shard->count + 1) * 2 <= shard->room || grow(shard);
    if (ok) {
        struct group *group = place_for(shard, held, key, code);
        if (group->taken == 0) {
            shard->count++;
            group->key = key;
            group->owner = held->owner;
            group->home = (uint32_t)code;
            group->kind = (uint8_t)held->kind;
            group->card = (int8_t)held->card;
        }
        group->taken |= (uint8_t)(1u << which);
        group->low[which] = (uint32_t)granules;
        group->high[which] = (uint8_t)(granules >> 32);
    }
    pthread_mutex_unlock(&shard->lock);
    return ok;
}

static bool look(enum held_kind kind, uint64_t key, struct held *held, bool remove)
{
    uint64_t code = hash(kind, group_key(key));
    struct shard *shard = shard_of(code);
    pthread_mutex_lock(&shard->lock);
    struct group *group = find(shard, kind, key, code);
    if (group != NULL) {
        *held = (struct held){key, kind, group->card, bytes_of(group, member(key)), group->owner};
        if (remove)
            take(shard, group, member(key));
    }
    pthread_mutex_unlock(&shard->lock);
    return group != NULL;
}

bool table_take(enum held_kind kind, uint64_t key, struct held *held) { return look(kind, key, held, true); }
bool table_get(enum held_kind kind, uint64_t key, struct held *held) { return look(kind, key, held, false); }

void table_end_context(void *context)
{
    for (int i = 0; i < SHARDS; i++) {
        struct shard *shard = &shards[i];
        pthread_mutex_lock(&shard->lock);
        for (size_t at = 0; at < shard->room;) {
            struct group *group = &shard->places[at];
            if (group->taken == 0 || group->owner != context || (group->kind != HELD_PLAIN && group->kind != HELD_ARRAY)) {
                at++;
                continue;
            }
            for (unsigned which = 0; which < TOGETHER; which++)
                if ((group->taken & 1u << which) != 0)
                    accounts_release(group->card, bytes_of(group, which));
            close_gap(shard, at); /* may move another one here: look again */
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
