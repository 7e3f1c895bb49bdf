/* Streams. Work is done at once on the calling thread when nothing in its stream waits before it. Host
 * functions, and what follows them, go through one worker thread in the order they came in. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

pthread_mutex_t work_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t work_done = PTHREAD_COND_INITIALIZER;
static pthread_cond_t work_waiting = PTHREAD_COND_INITIALIZER;
static struct operation *queue_first, **queue_end = &queue_first;
static struct stream *streams; /* under work_lock */
static bool worker_runs;
static uint64_t next_stream_id = 1;

void worker_after_fork(void) {
    pthread_mutex_init(&work_lock, NULL);
    pthread_cond_init(&work_done, NULL);
    pthread_cond_init(&work_waiting, NULL);
    queue_first = NULL;
    queue_end = &queue_first;
    streams = NULL;
    worker_runs = false;
}

static void run_operation(struct operation *operation) {
    struct stream *stream = operation->stream;
    switch (operation->kind) {
    case OP_COPY: copy_run(&operation->copy); break;
    case OP_FILL: fill_run(&operation->fill); break;
    case OP_HOST: operation->host.call(operation->host.data); break;
    case OP_CALLBACK: operation->callback.call(operation->callback.handle, CUDA_SUCCESS, operation->callback.data); break;
    case OP_WAIT: event_await(operation->event.event, operation->event.record); break;
    case OP_FREE: pool_free_at(operation->base); break;
    case OP_LAUNCH:
        operation->ticket = channel_push(stream->context->card, operation->duration_ns, SIM_NO_EVENT);
        break;
    case OP_RECORD: break; /* by the caller, under the lock */
    }
}

static void *worker(void *unused) {
    (void)unused;
    pthread_mutex_lock(&work_lock);
    for (;;) {
        while (!queue_first) pthread_cond_wait(&work_waiting, &work_lock);
        struct operation *operation = queue_first;
        if (!(queue_first = operation->next)) queue_end = &queue_first;
        struct stream *stream = operation->stream;
        uint64_t before = operation->ticket > stream->ticket ? operation->ticket : stream->ticket;
        pthread_mutex_unlock(&work_lock);
        if (before && operation->kind != OP_LAUNCH) channel_wait(stream->context->card, before);
        run_operation(operation);
        pthread_mutex_lock(&work_lock);
        if (operation->kind == OP_RECORD) event_stamp(operation->event.event, operation->event.record, clock_ns());
        if (operation->kind == OP_LAUNCH) stream->ticket = operation->ticket;
        stream->context->pending--;
        if (!--stream->pending && stream->destroyed) object_free(stream);
        pthread_cond_broadcast(&work_done);
        free(operation);
    }
    return NULL;
}

static bool start_worker(void) {
    if (worker_runs) return true;
    sigset_t all, old;
    pthread_t thread;
    pthread_attr_t attributes;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals are for the program's own threads */
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    worker_runs = !pthread_create(&thread, &attributes, worker, NULL);
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return worker_runs;
}

/* The lock is held. */
static CUresult enqueue(struct stream *stream, const struct operation *operation) {
    struct operation *copy = malloc(sizeof *copy);
    if (!copy || !start_worker()) {
        free(copy);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *copy = *operation;
    copy->stream = stream;
    copy->next = NULL;
    *queue_end = copy;
    queue_end = &copy->next;
    stream->pending++;
    stream->context->pending++;
    pthread_cond_signal(&work_waiting);
    return CUDA_SUCCESS;
}

static bool launches_done(struct stream *stream) {
    return !stream->ticket || channel_done(stream->context->card, stream->ticket);
}

CUresult stream_submit(struct stream *stream, const struct operation *operation) {
    CUresult result = CUDA_SUCCESS;
    struct operation copy = *operation;
    copy.stream = stream;
    pthread_mutex_lock(&work_lock);
    bool later = stream->pending;
    switch (operation->kind) {
    case OP_HOST: case OP_CALLBACK: case OP_WAIT: later = true; break;
    case OP_COPY: case OP_FILL: case OP_FREE: later |= !launches_done(stream); break;
    case OP_LAUNCH: case OP_RECORD: break;
    }
    if (later) {
        result = enqueue(stream, operation);
    } else if (operation->kind == OP_RECORD) {
        /* In timed mode it comes when the process has its turn on the card, as on a real one. */
        if (launches_done(stream) && !channel_is_open(stream->context->card)) event_stamp(operation->event.event, operation->event.record, clock_ns());
        else event_to_ring(operation->event.event, operation->event.record, stream);
    }
    pthread_mutex_unlock(&work_lock);
    if (later || operation->kind == OP_RECORD) return result;
    run_operation(&copy);
    if (operation->kind == OP_LAUNCH) {
        pthread_mutex_lock(&work_lock);
        if (copy.ticket > stream->ticket) stream->ticket = copy.ticket;
        pthread_mutex_unlock(&work_lock);
    }
    return CUDA_SUCCESS;
}

bool stream_idle(struct stream *stream) {
    pthread_mutex_lock(&work_lock);
    bool idle = !stream->pending && launches_done(stream);
    pthread_mutex_unlock(&work_lock);
    return idle;
}

CUresult stream_wait(struct stream *stream) {
    pthread_mutex_lock(&work_lock);
    while (stream->pending) pthread_cond_wait(&work_done, &work_lock);
    uint64_t ticket = stream->ticket;
    unsigned card = stream->context->card;
    pthread_mutex_unlock(&work_lock);
    if (ticket) channel_wait(card, ticket);
    return driver.page->cards[card].lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

CUresult context_wait(CUcontext context) {
    pthread_mutex_lock(&work_lock);
    while (context->pending) pthread_cond_wait(&work_done, &work_lock);
    pthread_mutex_unlock(&work_lock);
    if (driver.page->timed) channel_wait(context->card, channel_head(context->card));
    if (driver.pools) {
        LOCK();
        pools_trim(context->card, true);
        UNLOCK();
    }
    return card_of(context)->lost ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

struct stream *stream_new(CUcontext context, unsigned flags, int priority) {
    pthread_mutex_lock(&work_lock);
    struct stream *stream = object_new(KIND_STREAM, sizeof *stream);
    if (stream) {
        stream->context = context;
        stream->flags = flags;
        stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
        stream->id = next_stream_id++;
        stream->next = streams;
        streams = stream;
    }
    pthread_mutex_unlock(&work_lock);
    return stream;
}

/* The work lock is held. */
static void unlink_stream(struct stream *stream) {
    struct stream **at = &streams;
    while (*at && *at != stream) at = &(*at)->next;
    if (*at) *at = stream->next;
    stream->destroyed = true;
    if (!stream->pending) object_free(stream);
}

void streams_delete_of(CUcontext context) {
    pthread_mutex_lock(&work_lock);
    for (struct stream *stream = streams, *next; stream; stream = next) {
        next = stream->next;
        if (stream->context == context) unlink_stream(stream);
    }
    pthread_mutex_unlock(&work_lock);
}

CUresult stream_of(CUstream handle, struct stream **stream) {
    NEED_CONTEXT(context);
    if ((uintptr_t)handle <= 2) { /* null, legacy, per-thread: one default stream per context plays all */
        *stream = context->default_stream;
        return CUDA_SUCCESS;
    }
    if (!object_valid(handle, KIND_STREAM) || handle->destroyed) return CUDA_ERROR_INVALID_HANDLE;
    *stream = handle;
    return CUDA_SUCCESS;
}

API cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority) {
    NEED_CONTEXT(context);
    if (!handle || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct stream *stream = stream_new(context, flags, priority);
    UNLOCK();
    if (!stream) return CUDA_ERROR_OPERATING_SYSTEM;
    *handle = stream;
    return CUDA_SUCCESS;
}

API cuStreamCreate(CUstream *handle, unsigned flags) { return cuStreamCreateWithPriority(handle, flags, 0); }

API cuStreamDestroy_v2(CUstream handle) {
    struct stream *stream;
    CUresult result = stream_of(handle, &stream);
    if (result) return result;
    if ((uintptr_t)handle <= 2 || stream == stream->context->default_stream) return CUDA_ERROR_INVALID_HANDLE;
    LOCK();
    pthread_mutex_lock(&work_lock);
    unlink_stream(stream);
    pthread_mutex_unlock(&work_lock);
    UNLOCK();
    return CUDA_SUCCESS;
}
ALIAS(cuStreamDestroy, cuStreamDestroy_v2);

#define WITH_STREAM(handle) struct stream *stream; \
    do { CUresult got_ = stream_of(handle, &stream); if (got_) return got_; } while (0)

API cuStreamGetPriority(CUstream handle, int *priority) {
    WITH_STREAM(handle);
    if (!priority) return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->priority;
    return CUDA_SUCCESS;
}
ALIAS(cuStreamGetPriority_ptsz, cuStreamGetPriority);

API cuStreamGetFlags(CUstream handle, unsigned *flags) {
    WITH_STREAM(handle);
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->flags;
    return CUDA_SUCCESS;
}
ALIAS(cuStreamGetFlags_ptsz, cuStreamGetFlags);

API cuStreamGetId(CUstream handle, unsigned long long *id) {
    WITH_STREAM(handle);
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    *id = stream->id;
    return CUDA_SUCCESS;
}
ALIAS(cuStreamGetId_ptsz, cuStreamGetId);

API cuStreamGetCtx(CUstream handle, CUcontext *context) {
    WITH_STREAM(handle);
    if (!context) return CUDA_ERROR_INVALID_VALUE;
    *context = stream->context;
    return CUDA_SUCCESS;
}
ALIAS(cuStreamGetCtx_ptsz, cuStreamGetCtx);

API cuStreamGetCtx_v2(CUstream handle, CUcontext *context, void **green) {
    if (green) *green = NULL;
    return cuStreamGetCtx(handle, context);
}
ALIAS(cuStreamGetCtx_v2_ptsz, cuStreamGetCtx_v2);

API cuStreamGetDevice(CUstream handle, CUdevice *device) {
    WITH_STREAM(handle);
    if (!device) return CUDA_ERROR_INVALID_VALUE;
    *device = stream->context->ordinal;
    return CUDA_SUCCESS;
}
ALIAS(cuStreamGetDevice_ptsz, cuStreamGetDevice);

API cuStreamQuery(CUstream handle) {
    WITH_STREAM(handle);
    return stream_idle(stream) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
ALIAS(cuStreamQuery_ptsz, cuStreamQuery);

API cuStreamSynchronize(CUstream handle) {
    WITH_STREAM(handle);
    CUresult result = stream_wait(stream);
    if (driver.pools) {
        LOCK();
        pools_trim(stream->context->card, true);
        UNLOCK();
    }
    return result;
}
ALIAS(cuStreamSynchronize_ptsz, cuStreamSynchronize);

API cuStreamIsCapturing(CUstream handle, int *status) {
    WITH_STREAM(handle);
    (void)stream;
    if (!status) return CUDA_ERROR_INVALID_VALUE;
    *status = 0;
    return CUDA_SUCCESS;
}
ALIAS(cuStreamIsCapturing_ptsz, cuStreamIsCapturing);

API cuLaunchHostFunc(CUstream handle, void (*call)(void *), void *data) {
    WITH_STREAM(handle);
    if (!call) return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(stream, &(struct operation){.kind = OP_HOST, .host = {call, data}});
}
ALIAS(cuLaunchHostFunc_ptsz, cuLaunchHostFunc);

API cuLaunchHostFunc_v2(CUstream handle, void (*call)(void *), void *data, unsigned mode) {
    (void)mode; /* how a waiting thread gets to know: no difference here */
    return cuLaunchHostFunc(handle, call, data);
}
ALIAS(cuLaunchHostFunc_v2_ptsz, cuLaunchHostFunc_v2);

API cuStreamAddCallback(CUstream handle, void (*call)(CUstream, CUresult, void *), void *data, unsigned flags) {
    WITH_STREAM(handle);
    if (!call || flags) return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(stream, &(struct operation){.kind = OP_CALLBACK, .callback = {call, handle, data}});
}
ALIAS(cuStreamAddCallback_ptsz, cuStreamAddCallback);
