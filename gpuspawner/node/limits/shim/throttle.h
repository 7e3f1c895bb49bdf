/* Compute is held to the session's part of the card's time. */
#ifndef GPUSPAWNER_THROTTLE_H
#define GPUSPAWNER_THROTTLE_H

#include "cuda.h"

/* A launch that is being timed. */
struct timed {
    int sample;
    CUstream stream;
    bool per_thread;
    bool unknown; /* the first one of its kind */
    uint64_t key;
    uint32_t launches;
    int64_t began_ns;
};

/* cuda_throttle.c. Before a launch: pays for it, waits until the session's turn comes if there is nothing to pay with, and
 * begins to time it now and then. `key` names what is launched and at what size. True: throttle_leave has to follow the
 * launch. Inline, since a whole card is nothing to wait for. */
enum { THROTTLE_FREE = -2, THROTTLE_ASK = -3 }; /* else the one card there is */
extern _Atomic uint64_t throttle_seen;
extern _Atomic int throttle_mode;
/* What is being timed on this thread, if the last throttle_enter was true. */
extern _Thread_local struct timed throttle_timed;
bool throttle_pay(uint64_t key, CUstream stream, bool per_thread);
static inline bool throttle_enter(uint64_t key, CUstream stream, bool per_thread)
{
    const _Atomic uint64_t *word = atomic_load_explicit(&limits_word, memory_order_acquire);
    if (LIKELY(word != NULL && atomic_load_explicit(word, memory_order_relaxed) ==
                                   atomic_load_explicit(&throttle_seen, memory_order_relaxed)) &&
        LIKELY(atomic_load_explicit(&throttle_mode, memory_order_relaxed) == THROTTLE_FREE))
        return false;
    return throttle_pay(key, stream, per_thread);
}
void throttle_leave(const struct timed *timed, CUresult result);
/* The program may use the key for something else from now on. */
void throttle_forget(uint64_t key);
void throttle_after_fork(void);

/* Captures of streams under way in this process: what is launched into one does not run. */
void throttle_capture(int more);

/* cuda_samples.c: times of single launches, by the card's own clock. All with `samples_lock` held but the last two. */
void samples_lock(void);
bool samples_try_lock(void);
void samples_unlock(void);
enum { NO_SAMPLE = -1 };
struct reading {
    uint64_t key;
    int card;
    int64_t charged_ns, launches; /* charged for each of so many launches, of which one was timed */
    bool alone;                   /* nobody else was on the card, as far as one can know */
    int64_t took_ns;              /* less than 0: cannot be known */
};
/* Marks the stream before the launch; NO_SAMPLE where that cannot be done. */
int samples_begin(const struct reading *reading, CUstream stream, bool per_thread);
/* And after it, unless the launch was refused; `gap_ns` passed here between the two. Where the card had work of the stream
 * before the first mark but may have run out of it, a time after more than `most_gap_ns` is of no use: false. */
bool samples_end(int sample, CUstream stream, bool per_thread, int64_t gap_ns, int64_t most_gap_ns);
void samples_cancel(int sample);
/* The oldest one whose launch has run. */
bool samples_next(struct reading *reading);
int samples_pending(void);
int64_t samples_ahead_ns(void); /* what those and the launches before them were charged */
void samples_context_ended(CUcontext context);
void samples_after_fork(void);

#endif
