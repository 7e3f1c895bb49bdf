/* How much of a card's time the session has left.
 *
 * The word is a moment, `paid_until`: all time of the session up to there is spent. Computing for c moves it by c / part.
 * Every turn brings the session's time up to the end of its period (`granted`), and it may spend while paid_until lies
 * before that. So one compare-and-swap spends, a process that is killed leaves nothing half done, and any value that a
 * hostile process writes means no more than time spent by its own session: it is brought to between two periods unspent
 * and MOST_OWED_NS owed. */
#include "budget.h"

#include <time.h>
#include <unistd.h>

#define MOST_OWED_NS INT64_C(30000000000)
#define EDGE_NS INT64_C(3000000) /* turns overlap by so much: a kernel is not cut off, and nobody wakes up to the instant */
#define KEPT_PERIODS 2 /* what was not spent in one period may be spent in the next */

int64_t budget_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* no system call: the kernel's page answers */
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t part_of(struct compute_limit limit) { return limit.part != 0 ? limit.part : 1; }

/* The newest turn that began by `at`. */
static int64_t turn_before(struct compute_limit limit, int64_t at)
{
    int64_t offset = PERIOD_NS / ABI_WHOLE * limit.from;
    return at < offset ? 0 : (at - offset) / PERIOD_NS * PERIOD_NS + offset;
}

static int64_t between(int64_t value, int64_t least, int64_t most)
{
    return value < least ? least : value > most ? most : value;
}

static int64_t believable(uint64_t paid, int64_t granted, int64_t now)
{
    return between(paid > INT64_MAX ? INT64_MAX : (int64_t)paid, granted - KEPT_PERIODS * PERIOD_NS, now + MOST_OWED_NS);
}

static int64_t stretched(int64_t ns, struct compute_limit limit)
{
    return between(ns, -MOST_OWED_NS, MOST_OWED_NS) * ABI_WHOLE / part_of(limit);
}

void budget_charge(int card, int64_t ns)
{
    struct abi_compute *compute = accounts_compute(card);
    struct compute_limit limit = limits_compute(card);
    if (compute == NULL || ns == 0)
        return;
    int64_t now = budget_now(), granted = turn_before(limit, now) + PERIOD_NS;
    uint64_t paid = atomic_load_explicit(&compute->paid_until, memory_order_relaxed), next;
    do {
        next = (uint64_t)between(believable(paid, granted, now) + stretched(ns, limit), 0, now + MOST_OWED_NS);
    } while (!atomic_compare_exchange_weak(&compute->paid_until, &paid, next));
}

static void sign(struct abi_compute *compute, int64_t now)
{
    uint64_t self = (uint64_t)getpid();
    uint64_t before = atomic_load_explicit(&compute->buyer, memory_order_relaxed);
    if (before == self)
        return;
    atomic_store_explicit(&compute->buyer, self, memory_order_relaxed);
    if (before != 0)
        atomic_store_explicit(&compute->many_until, (uint64_t)(now + 2 * PERIOD_NS), memory_order_relaxed);
}

bool budget_is_shared(int card)
{
    struct abi_compute *compute = accounts_compute(card);
    return compute != NULL &&
           atomic_load_explicit(&compute->many_until, memory_order_relaxed) > (uint64_t)budget_now();
}

int64_t budget_take(int card, int64_t ns)
{
    struct abi_compute *compute = accounts_compute(card);
    struct compute_limit limit = limits_compute(card);
    if (compute == NULL || limit.part >= ABI_WHOLE)
        return 0;
    int64_t now = budget_now(), granted = turn_before(limit, now) + PERIOD_NS;
    uint64_t paid = atomic_load_explicit(&compute->paid_until, memory_order_relaxed), next;
    do {
        int64_t spent = believable(paid, granted, now);
        if (spent >= granted) /* the first turn that brings time beyond what is spent */
            return between(turn_before(limit, spent), now + 1, now + PERIOD_NS);
        next = (uint64_t)between(spent + stretched(ns, limit), 0, now + MOST_OWED_NS);
    } while (!atomic_compare_exchange_weak(&compute->paid_until, &paid, next));
    sign(compute, now);
    return 0;
}

int64_t budget_turn(int card)
{
    struct compute_limit limit = limits_compute(card);
    int64_t now = budget_now(), turn = turn_before(limit, now);
    if (limit.part >= ABI_WHOLE || now - turn < PERIOD_NS / ABI_WHOLE * part_of(limit))
        return 0;
    return turn + PERIOD_NS;
}

bool budget_alone(int card, int64_t ns)
{
    struct abi_compute *compute = accounts_compute(card);
    struct compute_limit limit = limits_compute(card);
    if (compute == NULL)
        return false;
    int64_t now = budget_now(), turn = turn_before(limit, now);
    int64_t whole = PERIOD_NS / ABI_WHOLE * part_of(limit);
    int64_t paid = believable(atomic_load_explicit(&compute->paid_until, memory_order_relaxed), turn + PERIOD_NS, now);
    int64_t before = (paid - turn) / ABI_WHOLE * part_of(limit); /* launched in this turn, and to be run first */
    int64_t begins = now - turn > before ? now - turn : before;
    return begins >= EDGE_NS && begins + ns <= whole - EDGE_NS;
}
