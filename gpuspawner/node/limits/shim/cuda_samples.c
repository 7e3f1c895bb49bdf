/* Times of single launches: an event before and one after, and the card says what lay between. They are asked for when the
 * launch has run, and never waited for. Where the card had nothing to do for the stream, what passed here between the two
 * calls is not the launch's. Events belong to a context and are used again. */
#include "throttle.h"

#include <sched.h>

#define MOST 64
#define MOST_STREAMS 4 /* asked about at a time */

static struct sample {
    CUevent before, after; /* NULL: not made yet */
    CUcontext context;
    CUstream stream;
    bool busy, ended, idle;
    int64_t gap_ns;
    uint64_t number;
    struct reading reading;
} samples[MOST];
static atomic_flag locked = ATOMIC_FLAG_INIT;
static uint64_t next_number;
static _Atomic int pending;
static _Atomic int64_t ahead_ns;

bool samples_try_lock(void) { return !atomic_flag_test_and_set_explicit(&locked, memory_order_acquire); }
void samples_unlock(void) { atomic_flag_clear_explicit(&locked, memory_order_release); }

void samples_lock(void)
{
    while (!samples_try_lock())
        sched_yield();
}
int samples_pending(void) { return pending; }
int64_t samples_ahead_ns(void) { return ahead_ns; }

static int64_t charged(const struct sample *sample)
{
    return sample->reading.charged_ns > 0 ? sample->reading.charged_ns * sample->reading.launches : 0;
}

static void drop_events(struct sample *sample)
{
    if (sample->before != NULL)
        (void)REAL(cuEventDestroy_v2, (CUevent), sample->before);
    if (sample->after != NULL)
        (void)REAL(cuEventDestroy_v2, (CUevent), sample->after);
    sample->before = sample->after = NULL;
}

static void finish(struct sample *sample)
{
    if (sample->busy) {
        pending--;
        ahead_ns -= charged(sample);
    }
    sample->busy = false;
}

static CUresult record(CUevent event, CUstream stream, bool per_thread)
{
    return per_thread ? REAL(cuEventRecord_ptsz, (CUevent, CUstream), event, stream)
                      : REAL(cuEventRecord, (CUevent, CUstream), event, stream);
}

/* In the context of the stream, which need not be the current one. */
static bool make_events(struct sample *sample, CUcontext context, bool current)
{
    CUcontext popped;
    if (!current && REAL(cuCtxPushCurrent_v2, (CUcontext), context) != CUDA_SUCCESS)
        return false;
    if (REAL(cuEventCreate, (CUevent *, unsigned), &sample->before, 0) != CUDA_SUCCESS)
        sample->before = NULL;
    else if (REAL(cuEventCreate, (CUevent *, unsigned), &sample->after, 0) != CUDA_SUCCESS)
        sample->after = NULL;
    if (!current)
        (void)REAL(cuCtxPopCurrent_v2, (CUcontext *), &popped);
    if (sample->after == NULL)
        drop_events(sample);
    sample->context = context;
    return sample->before != NULL;
}

static struct sample *free_sample(CUcontext context, bool current)
{
    struct sample *empty = NULL, *other = NULL;
    for (int i = 0; i < MOST; i++) {
        struct sample *sample = &samples[i];
        if (sample->busy)
            continue;
        if (sample->before == NULL)
            empty = sample;
        else if (sample->context == context)
            return sample;
        else
            other = sample;
    }
    struct sample *found = empty != NULL ? empty : other;
    if (found == NULL)
        return NULL;
    drop_events(found);
    return make_events(found, context, current) ? found : NULL;
}

static bool is_idle(CUstream stream, bool per_thread)
{
    return (per_thread ? REAL(cuStreamQuery_ptsz, (CUstream), stream) : REAL(cuStreamQuery, (CUstream), stream)) == CUDA_SUCCESS;
}

int samples_begin(const struct reading *reading, CUstream stream, bool per_thread)
{
    CUcontext current = NULL, context;
    if (REAL(cuCtxGetCurrent, (CUcontext *), &current) != CUDA_SUCCESS)
        return NO_SAMPLE;
    if ((uintptr_t)stream <= 2 || REAL(cuStreamGetCtx, (CUstream, CUcontext *), stream, &context) != CUDA_SUCCESS)
        context = current;
    struct sample *sample = free_sample(context, context == current);
    if (sample == NULL)
        return NO_SAMPLE;
    sample->idle = is_idle(stream, per_thread);
    if (record(sample->before, stream, per_thread) != CUDA_SUCCESS) {
        drop_events(sample);
        return NO_SAMPLE;
    }
    sample->reading = *reading;
    sample->stream = stream;
    sample->number = next_number++;
    sample->busy = true;
    sample->ended = false;
    pending++;
    ahead_ns += charged(sample);
    return (int)(sample - samples);
}

bool samples_end(int index, CUstream stream, bool per_thread, int64_t gap_ns, int64_t most_gap_ns)
{
    struct sample *sample = &samples[index];
    if (!sample->busy) /* its context has ended meanwhile */
        return false;
    sample->ended = true;
    sample->gap_ns = gap_ns;
    if (!sample->idle && gap_ns > most_gap_ns) {
        finish(sample);
        return false;
    }
    if (record(sample->after, stream, per_thread) == CUDA_SUCCESS)
        return true;
    finish(sample);
    drop_events(sample);
    return false;
}

void samples_cancel(int index)
{
    if (samples[index].busy)
        finish(&samples[index]);
}

static int64_t took(const struct sample *sample)
{
    float milliseconds = -1;
    CUresult result = real(SYM_cuEventElapsedTime_v2) != NULL
                          ? REAL(cuEventElapsedTime_v2, (float *, CUevent, CUevent), &milliseconds, sample->before,
                                 sample->after)
                          : REAL(cuEventElapsedTime, (float *, CUevent, CUevent), &milliseconds, sample->before,
                                 sample->after);
    if (result != CUDA_SUCCESS || !(milliseconds >= 0))
        return -1;
    int64_t ns = (int64_t)((double)milliseconds * 1e6) - (sample->idle ? sample->gap_ns : 0);
    return ns > 0 ? ns : 0;
}

bool samples_next(struct reading *reading)
{
    CUstream waited[MOST_STREAMS];
    int streams = 0;
    for (uint64_t from = 0; streams < MOST_STREAMS;) { /* by age; a stream in which one has not run has run none after it */
        struct sample *oldest = NULL;
        for (int i = 0; i < MOST; i++) {
            struct sample *sample = &samples[i];
            bool behind = !sample->busy || !sample->ended || sample->number < from;
            for (int j = 0; j < streams && !behind; j++)
                behind = waited[j] == sample->stream; /* cppcheck-suppress uninitvar ; below `streams` they are set */
            if (!behind && (oldest == NULL || sample->number < oldest->number))
                oldest = sample;
        }
        if (oldest == NULL)
            return false;
        CUresult result = REAL(cuEventQuery, (CUevent), oldest->after);
        if (result == CUDA_ERROR_NOT_READY) {
            waited[streams++] = oldest->stream;
            from = oldest->number + 1;
            continue;
        }
        *reading = oldest->reading;
        reading->took_ns = result == CUDA_SUCCESS ? took(oldest) : -1;
        finish(oldest);
        if (result != CUDA_SUCCESS)
            drop_events(oldest);
        return true;
    }
    return false;
}

void samples_context_ended(CUcontext context)
{
    samples_lock();
    for (int i = 0; i < MOST; i++) {
        if (samples[i].context != context || context == NULL)
            continue;
        finish(&samples[i]);
        samples[i].before = samples[i].after = NULL; /* the driver has destroyed them */
        samples[i].context = NULL;
    }
    samples_unlock();
}

void samples_after_fork(void)
{
    samples_unlock();
    for (int i = 0; i < MOST; i++)
        samples[i] = (struct sample){0};
    pending = 0;
    ahead_ns = 0;
}
