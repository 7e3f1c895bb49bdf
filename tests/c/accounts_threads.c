/* Threads of one process on the shim's accounts, limits and table, for the thread sanitizer; the test changes the limits all
 * the while. Ends with 0 when everything that was taken has been given back. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda.h"

#define THREADS 6
#define STEPS 4000
#define HELD 16

void shim_after_fork(void) {}

static void *work(void *seed)
{
    unsigned short state[3] = {1, 2, (unsigned short)(uintptr_t)seed};
    struct held mine[HELD];
    int live = 0;
    for (int step = 0; step < STEPS; step++) {
        struct account rows[4];
        int card = (int)(nrand48(state) % 2);
        uint64_t bytes = GRANULE * (1 + (uint64_t)nrand48(state) % 64);
        if (nrand48(state) % 50 == 0)
            (void)(accounts_list(card, rows, 4) + accounts_used(card));
        if (live < HELD && accounts_reserve(card, bytes)) {
            uint64_t key = ((uint64_t)(uintptr_t)seed << 32) + (uint64_t)step * GRANULE;
            mine[live] = (struct held){key, HELD_PLAIN, card, bytes, seed};
            if (!table_put(&mine[live]))
                abort();
            live++;
        } else if (live > 0) {
            struct held found;
            live--;
            if (!table_take(HELD_PLAIN, mine[live].key, &found) || found.bytes != mine[live].bytes)
                abort();
            accounts_release(found.card, found.bytes);
        }
    }
    table_end_context(seed);
    return NULL;
}

int main(void)
{
    pthread_t threads[THREADS];
    if (!accounts_ready())
        return 2;
    for (uintptr_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0)
            return 2;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    printf("%llu %llu\n", (unsigned long long)accounts_used(0), (unsigned long long)accounts_used(1));
    return 0;
}
