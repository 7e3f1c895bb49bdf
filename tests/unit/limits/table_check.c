/* The shim's table against a plain array, by random steps; prints what ends with a context. */
#include <stdio.h>
#include <stdlib.h>

#include "table.c"

#define KEYS 6000

static uint64_t released;

void accounts_release(int card, uint64_t bytes) { released += bytes + (uint64_t)card; }

int main(void)
{
    static struct held all[KEYS];
    static bool in[KEYS];
    unsigned short state[3] = {1, 2, 3};
    static char contexts[3];
    for (int i = 0; i < KEYS; i++) {
        uint64_t key = i % 3 == 0 ? UINT64_C(0x7f0000000000) + (uint64_t)i * 512 /* small pieces */
                       : i % 3 == 1 ? UINT64_C(0x7e0000000000) + ((uint64_t)i << 21) /* large ones */
                                    : UINT64_C(0x561200000010) + (uint64_t)i * 48; /* handles */
        all[i] = (struct held){key, HELD_PLAIN + (enum held_kind)(i % 3), i % 16, ((uint64_t)i * i * i + 1) * GRANULE, &contexts[i % 5 % 3]};
    }
    for (int step = 0; step < 400000; step++) {
        int i = (int)(nrand48(state) % (step / 100000 % 2 ? KEYS : KEYS / 20 + 1)); /* grows and shrinks */
        struct held found;
        bool expected = in[i], put = nrand48(state) % 2, take = !put && nrand48(state) % 4;
        if (put) {
            all[i].owner = &contexts[nrand48(state) % 3]; /* an address may come again, and be another's */
            if (!table_put(&all[i]))
                return 2;
            in[i] = true;
            continue;
        }
        bool got = take ? table_take(all[i].kind, all[i].key, &found) : table_get(all[i].kind, all[i].key, &found);
        if (got != expected || (got && (found.key != all[i].key || found.kind != all[i].kind || found.card != all[i].card ||
                                        found.bytes != all[i].bytes || found.owner != all[i].owner)))
            return 3;
        in[i] = expected && !take;
    }
    uint64_t expected = 0;
    for (int i = 0; i < KEYS; i++) {
        if (in[i] && all[i].owner == &contexts[1] && (all[i].kind == HELD_PLAIN || all[i].kind == HELD_ARRAY)) {
            expected += all[i].bytes + (uint64_t)all[i].card;
            in[i] = false;
        }
    }
    table_end_context(&contexts[1]);
    if (expected == 0 || released != expected)
        return 4;
    struct held found;
    for (int i = 0; i < KEYS; i++)
        if (table_take(all[i].kind, all[i].key, &found) != in[i])
            return 5;
    for (int i = 0; i < SHARDS; i++)
        if (shards[i].count != 0)
            return 6;
    return 0;
}
