/* Launches are paid for with the session's time on the card (budget.h), at what launches of that kind took when they were
 * last timed. A launch now and then is timed; when its time is known, the difference is paid or given back for all launches
 * of its kind since the one before, so that in the end every launch has cost what it took. A long kernel is owed for
 * afterwards.
 *
 * What a launch costs us: a look at the limit file's generation; for a part of a card also a lookup in a small table and a
 * subtraction, since time is bought in advance in small pieces. Nothing here waits for the card, only for the session's
 * turn, and for the first launch of its kind before a second one is let through. */
#include "throttle.h"

#include "budget.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define KINDS 1024
#define GUESS_NS INT64_C(10000)     /* a launch of which nothing is known yet */
#define ADVANCE_NS INT64_C(100000)  /* time is bought in pieces of at least so much */
#define ALWAYS_TIMED_NS INT64_C(500000) /* launches that take longer are all timed, of shorter ones about one for each of it */
#define RAREST 256
#define MOST_UNKNOWN 4
#define MOST_TIMED 60
#define FIRST_WAIT_NS INT64_C(1000000000)
#define NAP_NS INT64_C(50000)
#define LONGEST_NAP_NS INT64_C(10000000)
#define LATE_NS INT64_C(50000)
#define MOST_LATE 8
#define MOST_FAILURES 16
#define MOST_ODD 4
#define MOST_ODD_TOGETHER 32
#define MOST_FORGIVEN_NS INT64_C(8000000)

enum { UNKNOWN = -1 };
enum { MODE_RELAXED = 2 };

_Atomic uint64_t throttle_seen;
_Atomic int throttle_mode = THROTTLE_FREE;
static _Atomic int captures;
static _Atomic bool by_the_clock; /* no times can be had from this driver */
static _Atomic int failures, unknown_timed;
static atomic_flag looking = ATOMIC_FLAG_INIT;

/* Launches of one kind. Threads write these at once: one that is lost is of no account. */
static struct kind {
    _Atomic uint64_t key; /* 0: nothing */
    _Atomic int64_t cost_ns;
    _Atomic uint32_t launches; /* since one was timed */
    _Atomic int32_t until;     /* the next one is */
    _Atomic int32_t odd;       /* so many in a row took longer than those before */
    _Atomic bool timed;        /* the first one is being timed */
} kinds[KINDS] __attribute__((aligned(64)));

static _Thread_local struct {
    int64_t credit_ns; /* bought and not used */
    int card;          /* for this one */
} own = {0, NO_CARD};

_Thread_local struct timed throttle_timed;

#define GET(field) atomic_load_explicit(&(field), memory_order_relaxed)
#define SET(field, value) atomic_store_explicit(&(field), value, memory_order_relaxed)

void throttle_after_fork(void)
{
    for (int i = 0; i < KINDS; i++)
        SET(kinds[i].key, 0);
    atomic_flag_clear(&looking);
    SET(captures, 0);
    SET(unknown_timed, 0);
    own.credit_ns = 0;
}

void throttle_capture(int more)
{
    if (atomic_fetch_add(&captures, more) + more < 0)
        SET(captures, 0);
}

/* The MPS server lets processes compute at the same time, so that no launch's time is its own. It counts where it is not
 * the session's: else anybody could leave a pipe there. */
static bool mps_is_on(void)
{
    char path[512];
    struct statx status;
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    snprintf(path, sizeof path, "%.480s/control", folder != NULL && folder[0] != '\0' ? folder : "/tmp/nvidia-mps");
#ifdef HOST_FLAVOUR
    bool anyone = true;
#else
    bool anyone = false;
#endif
    return statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &status) == 0 &&
           (S_ISFIFO(status.stx_mode) || S_ISSOCK(status.stx_mode)) && (anyone || status.stx_uid != getuid());
}

/* With burst all of a card is held, too: not back, but so that not much is launched ahead when the node takes it back. */
static bool is_held(int card)
{
    struct compute_limit limit = limits_compute(card);
    return limit.part < ABI_WHOLE || limit.burst;
}

static void look(uint64_t generation)
{
    static atomic_flag said_mps = ATOMIC_FLAG_INIT, said_times = ATOMIC_FLAG_INIT;
    if (generation == 0 || atomic_flag_test_and_set(&looking))
        return; /* what was in force stays so */
    int count = limits_count(), found = THROTTLE_FREE, parts = 0;
    for (int card = 0; card < count; card++) {
        if (is_held(card))
            parts++, found = count == 1 ? card : THROTTLE_ASK;
    }
    if (parts != 0 && mps_is_on()) {
        say_once(&said_mps, "compute is not held to the share: the MPS server is on, which shares cards by its own rules");
        found = THROTTLE_FREE;
    } else if (parts != 0 && (real(SYM_cuEventRecord) == NULL || real(SYM_cuEventQuery) == NULL)) {
        say_once(&said_times, "compute is held to the share by the clock alone: the driver has no event times");
        SET(by_the_clock, true);
    }
    SET(throttle_mode, found);
    SET(throttle_seen, generation);
    atomic_flag_clear(&looking);
}

/* By the system call itself: a launch must not become a point at which a thread can be cancelled. */
static void sleep_until(int64_t at)
{
    struct timespec moment = {at / 1000000000, at % 1000000000};
    (void)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, &moment, NULL);
}

static struct kind *known_kind(uint64_t key)
{
    size_t at = (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 54);
    if (GET(kinds[at].key) == key)
        return &kinds[at];
    return GET(kinds[at ^ 1].key) == key ? &kinds[at ^ 1] : NULL;
}

static struct kind *new_kind(uint64_t key)
{
    size_t at = (size_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 54);
    if (GET(kinds[at].key) != 0 && GET(kinds[at ^ 1].key) == 0)
        at ^= 1;
    struct kind *kind = &kinds[at];
    SET(kind->cost_ns, UNKNOWN);
    SET(kind->launches, 0);
    SET(kind->until, 1);
    SET(kind->odd, 0);
    SET(kind->timed, false);
    SET(kind->key, key);
    return kind;
}

void throttle_forget(uint64_t key)
{
    struct kind *kind = known_kind(key);
    if (kind != NULL)
        SET(kind->key, 0);
}

/* How many launches to the next one that is timed. By chance, so that a loop of several kinds cannot be in step with it. */
static int32_t next_timed(int64_t cost)
{
    static _Atomic uint32_t chance = 2463534242u;
    if (cost >= ALWAYS_TIMED_NS)
        return 1;
    uint32_t x = GET(chance);
    x ^= x << 13, x ^= x >> 17, x ^= x << 5;
    SET(chance, x);
    int64_t every = cost > ALWAYS_TIMED_NS / RAREST ? ALWAYS_TIMED_NS / cost : RAREST;
    return 1 + (int32_t)(x % (uint32_t)(2 * every));
}

static void failed(void)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (atomic_fetch_add(&failures, 1) + 1 < MOST_FAILURES)
        return;
    say_once(&said, "compute is held to the share by the clock alone: the driver gives no times for what is launched");
    SET(by_the_clock, true);
}

/* Whether a launch took so much longer than those before it that it may have been held up: by another session's work at
 * the edge of our turn, or by whatever stopped us between the mark and the launch. Several in a row are believed. */
static bool is_odd(struct kind *kind, const struct reading *reading, int64_t cost)
{
    if (cost == UNKNOWN || reading->took_ns <= (reading->alone ? 4 * cost + ADVANCE_NS : cost + cost / 8))
        return false;
    SET(kind->odd, GET(kind->odd) + 1);
    return GET(kind->odd) < (budget_is_shared(reading->card) ? MOST_ODD_TOGETHER : MOST_ODD);
}

static void learn(const struct reading *reading)
{
    struct kind *kind = known_kind(reading->key);
    int64_t cost = kind != NULL ? GET(kind->cost_ns) : UNKNOWN;
    int64_t charged = reading->charged_ns, took = reading->took_ns;
    if (charged == UNKNOWN) {
        charged = GUESS_NS;
        atomic_fetch_sub(&unknown_timed, 1);
        if (kind != NULL)
            SET(kind->timed, false);
    }
    if (took < 0) {
        failed();
        return;
    }
    SET(failures, 0);
    if (kind != NULL && is_odd(kind, reading, cost)) {
        /* The next one is asked before others of its kind are taken to have cost the same. */
        bool forgiven = !reading->alone && took - cost < MOST_FORGIVEN_NS;
        SET(kind->until, 1);
        SET(kind->launches, GET(kind->launches) + (uint32_t)reading->launches - 1);
        budget_charge(reading->card, (forgiven ? cost : took) - charged);
        return;
    }
    budget_charge(reading->card, (took - charged) * reading->launches);
    if (kind == NULL)
        return;
    SET(kind->odd, 0);
    cost = cost == UNKNOWN ? took : (cost + took) / 2;
    SET(kind->cost_ns, cost);
    if (GET(kind->until) > next_timed(cost)) /* it takes longer than was thought: time it more often */
        SET(kind->until, next_timed(cost));
}

/* Nothing of ours may disturb a capture that the program has under way somewhere: -1 where there is none, else the mode to
 * go back to. */
static int relax(void)
{
    int mode = MODE_RELAXED;
    if (GET(captures) == 0)
        return -1;
    return REAL(cuThreadExchangeStreamCaptureMode, (int *), &mode) == CUDA_SUCCESS ? mode : -1;
}

static void go_back(int mode)
{
    if (mode >= 0)
        (void)REAL(cuThreadExchangeStreamCaptureMode, (int *), &mode);
}

static void read_times(void)
{
    struct reading reading;
    if (samples_pending() == 0 || !samples_try_lock())
        return;
    int mode = relax();
    while (samples_next(&reading))
        learn(&reading);
    go_back(mode);
    samples_unlock();
}

/* Before a second launch of a kind of which nothing is known, when more are being timed than we can keep, or when a period's
 * work is on its way to the card: for a while only, since a program may want them all on the card at once. */
static void wait_for_times(const struct kind *kind)
{
    int64_t since = budget_now(), now = since;
    while (now - since < FIRST_WAIT_NS) {
        bool unknown = GET(kind->cost_ns) == UNKNOWN;
        if (!(unknown && GET(kind->timed)) && !(unknown && GET(unknown_timed) >= MOST_UNKNOWN) &&
            samples_pending() < MOST_TIMED && samples_ahead_ns() < PERIOD_NS)
            return;
        int64_t waited = now - since;
        if (waited > NAP_NS)
            sleep_until(now + (waited < LONGEST_NAP_NS ? NAP_NS : LONGEST_NAP_NS / 4));
        read_times();
        now = budget_now();
    }
}

static void buy(int card)
{
    int64_t wanted = own.credit_ns < -ADVANCE_NS ? -own.credit_ns : ADVANCE_NS, at;
    while ((at = budget_take(card, wanted)) != 0) {
        int64_t now = budget_now();
        sleep_until(at < now + LONGEST_NAP_NS ? at : now + LONGEST_NAP_NS);
        read_times();
    }
    own.credit_ns += wanted;
}

struct paid { /* UNKNOWN: the guess */
    uint64_t key;
    int card;
    int64_t cost_ns;
};

static bool begin(struct kind *kind, const struct paid *paid, CUstream stream, bool per_thread)
{
    struct timed *timed = &throttle_timed;
    int64_t cost = paid->cost_ns;
    bool alone = !budget_is_shared(paid->card) && budget_alone(paid->card, cost == UNKNOWN ? 0 : cost);
    struct reading reading = {paid->key, paid->card, cost, GET(kind->launches), alone, 0};
    if (GET(captures) != 0 && (uintptr_t)stream <= 2)
        return false; /* marks in the default stream are not allowed beside a capture */
    if (!samples_try_lock())
        return false; /* another thread is at it; the next launch is timed */
    int mode = relax();
    timed->sample = samples_begin(&reading, stream, per_thread);
    go_back(mode);
    samples_unlock();
    if (timed->sample == NO_SAMPLE) {
        failed();
        return false;
    }
    timed->key = paid->key;
    timed->stream = stream;
    timed->per_thread = per_thread;
    timed->launches = reading.launches;
    timed->unknown = cost == UNKNOWN;
    if (timed->unknown) {
        SET(kind->timed, true);
        atomic_fetch_add(&unknown_timed, 1);
    }
    SET(kind->launches, 0);
    SET(kind->until, next_timed(cost == UNKNOWN ? 0 : cost));
    timed->began_ns = budget_now();
    return true;
}

static int card_of_launch(CUstream stream)
{
    CUcontext context, current, popped;
    int card;
    if ((uintptr_t)stream > 2 && REAL(cuStreamGetCtx, (CUstream, CUcontext *), stream, &context) == CUDA_SUCCESS &&
        REAL(cuCtxGetCurrent, (CUcontext *), &current) == CUDA_SUCCESS && context != current &&
        REAL(cuCtxPushCurrent_v2, (CUcontext), context) == CUDA_SUCCESS) {
        (void)current_card(&card);
        (void)REAL(cuCtxPopCurrent_v2, (CUcontext *), &popped);
    } else {
        (void)current_card(&card);
    }
    return card != NO_CARD && is_held(card) ? card : NO_CARD;
}

/* Where time has to be bought, or the launch is to be timed. `cost`: what was subtracted for it. */
static __attribute__((noinline)) bool settle(struct kind *kind, uint64_t key, CUstream stream, bool per_thread,
                                             int64_t cost)
{
    int64_t turn;
    if (GET(by_the_clock)) {
        while ((turn = budget_turn(own.card)) != 0)
            sleep_until(turn);
        own.credit_ns = 0;
        return false;
    }
    read_times();
    wait_for_times(kind);
    if (cost == UNKNOWN && (cost = GET(kind->cost_ns)) != UNKNOWN)
        own.credit_ns -= cost - GUESS_NS;
    if (own.credit_ns < 0)
        buy(own.card);
    return GET(kind->until) <= 0 && begin(kind, &(struct paid){key, own.card, cost}, stream, per_thread);
}

/* All that is not the same as at the launch before. */
static __attribute__((noinline)) bool pay_slowly(uint64_t key, CUstream stream, bool per_thread)
{
    uint64_t generation = limits_generation();
    if (generation != GET(throttle_seen))
        look(generation);
    int card = GET(throttle_mode);
    if (card < 0 && (card == THROTTLE_FREE || (card = card_of_launch(stream)) == NO_CARD))
        return false;
    if (GET(captures) != 0 && is_capturing(stream, per_thread))
        return false;
    if (own.card != card)
        own.card = card, own.credit_ns = 0;
    struct kind *kind = known_kind(key);
    if (kind == NULL)
        kind = new_kind(key);
    int64_t cost = GET(kind->cost_ns);
    SET(kind->until, GET(kind->until) - 1);
    SET(kind->launches, GET(kind->launches) + 1);
    own.credit_ns -= cost != UNKNOWN ? cost : GUESS_NS;
    return settle(kind, key, stream, per_thread, cost);
}

/* Written so that nothing has to be kept over a call: this is what every launch on a part of a card costs. */
bool throttle_pay(uint64_t key, CUstream stream, bool per_thread)
{
    const _Atomic uint64_t *word = atomic_load_explicit(&limits_word, memory_order_acquire);
    key |= key == 0;
    struct kind *kind = known_kind(key);
    if (UNLIKELY(word == NULL || kind == NULL) || UNLIKELY(GET(*word) != GET(throttle_seen)) ||
        UNLIKELY(GET(throttle_mode) != own.card) || UNLIKELY(GET(captures) != 0))
        return pay_slowly(key, stream, per_thread);
    int64_t cost = GET(kind->cost_ns), credit = own.credit_ns - cost;
    int32_t until = GET(kind->until) - 1;
    if (UNLIKELY(cost == UNKNOWN))
        return pay_slowly(key, stream, per_thread);
    SET(kind->until, until);
    SET(kind->launches, GET(kind->launches) + 1);
    own.credit_ns = credit;
    if (LIKELY(credit >= 0 && until > 0))
        return false;
    return settle(kind, key, stream, per_thread, cost);
}

void throttle_leave(const struct timed *timed, CUresult result)
{
    static _Atomic int late;
    struct kind *kind = known_kind(timed->key);
    int64_t cost = kind != NULL ? GET(kind->cost_ns) : UNKNOWN, gap = budget_now() - timed->began_ns;
    int64_t most_gap = cost == UNKNOWN || GET(late) >= MOST_LATE ? INT64_MAX : LATE_NS + cost / 8;
    bool good = result == CUDA_SUCCESS;
    samples_lock();
    if (good)
        good = samples_end(timed->sample, timed->stream, timed->per_thread, gap, most_gap);
    else
        samples_cancel(timed->sample);
    samples_unlock();
    SET(late, good ? 0 : GET(late) + 1);
    if (good)
        return;
    if (timed->unknown)
        atomic_fetch_sub(&unknown_timed, 1);
    if (kind != NULL) {
        SET(kind->timed, false);
        SET(kind->until, 1);
        SET(kind->launches, GET(kind->launches) + timed->launches - (result != CUDA_SUCCESS));
    }
}
