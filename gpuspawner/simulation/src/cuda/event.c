/* Events: moments in a stream. */
#include <stdlib.h>

#include "sim.h"

enum { DISABLE_TIMING = 2, MOST_FLAGS = 7 };

struct event {
    struct object object;
    unsigned flags;
    CUcontext context;
    uint64_t record; /* how often it was recorded; 0: never */
    uint64_t done;   /* the newest recording that is complete and has its time in at_ns */
    uint64_t at_ns;
    bool in_ring; /* the newest recording is with the daemon: */
    unsigned card;
    uint64_t ticket;
    uint32_t slot;
};

static bool complete(struct event *event) { /* the work lock is held */
    if (event->in_ring && channel_done(event->card, event->ticket)) {
        event->in_ring = false;
        event->at_ns = channel_event_ns(event->card, event->slot);
        event->done = event->record;
    }
    return event->done == event->record;
}

void event_stamp(struct event *event, uint64_t record, uint64_t at_ns) {
    if (event->record != record) return;
    event->at_ns = at_ns;
    event->done = record;
}

void event_to_ring(struct event *event, uint64_t record, struct stream *stream) {
    if (event->record != record) return;
    unsigned card = stream->context->card;
    if (event->slot != SIM_NO_EVENT && event->card != card) {
        channel_slot_retire(event->card, event->slot, event->ticket);
        event->slot = SIM_NO_EVENT;
    }
    if (event->slot == SIM_NO_EVENT) event->slot = channel_slot(card);
    event->card = card;
    event->ticket = channel_push(card, 0, event->slot);
    event->in_ring = true;
    if (event->ticket > stream->ticket) stream->ticket = event->ticket;
}

void event_await(struct event *event, uint64_t record) {
    pthread_mutex_lock(&work_lock);
    while (object_valid(event, KIND_EVENT) && event->record == record && !complete(event)) {
        if (event->in_ring) {
            unsigned card = event->card;
            uint64_t ticket = event->ticket;
            pthread_mutex_unlock(&work_lock);
            channel_wait(card, ticket);
            pthread_mutex_lock(&work_lock);
            if (!channel_done(card, ticket)) break; /* the daemon has gone */
        } else {
            pthread_cond_wait(&work_done, &work_lock);
        }
    }
    pthread_mutex_unlock(&work_lock);
}

#define CHECK_EVENT(event) do { NEED_INIT(); \
    if (!object_valid(event, KIND_EVENT)) return CUDA_ERROR_INVALID_HANDLE; } while (0)

API cuEventCreate(CUevent *event, unsigned flags) {
    NEED_CONTEXT(context);
    if (!event || flags > MOST_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&work_lock);
    struct event *made = object_new(KIND_EVENT, sizeof *made);
    pthread_mutex_unlock(&work_lock);
    if (!made) return CUDA_ERROR_OPERATING_SYSTEM;
    made->flags = flags;
    made->context = context;
    made->slot = SIM_NO_EVENT;
    *event = made;
    return CUDA_SUCCESS;
}

API cuEventDestroy_v2(CUevent event) {
    CHECK_EVENT(event);
    pthread_mutex_lock(&work_lock);
    if (event->slot != SIM_NO_EVENT) channel_slot_retire(event->card, event->slot, event->ticket);
    object_free(event);
    pthread_cond_broadcast(&work_done);
    pthread_mutex_unlock(&work_lock);
    return CUDA_SUCCESS;
}
ALIAS(cuEventDestroy, cuEventDestroy_v2);

API cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
    struct stream *stream;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_of(handle, &stream);
    if (result) return result;
    CHECK_EVENT(event);
    pthread_mutex_lock(&work_lock);
    uint64_t record = ++event->record;
    event->in_ring = false;
    pthread_mutex_unlock(&work_lock);
    return stream_submit(stream, &(struct operation){.kind = OP_RECORD, .event = {event, record}});
}
ALIAS(cuEventRecordWithFlags_ptsz, cuEventRecordWithFlags);

API cuEventRecord(CUevent event, CUstream handle) { return cuEventRecordWithFlags(event, handle, 0); }
ALIAS(cuEventRecord_ptsz, cuEventRecord);

API cuEventQuery(CUevent event) {
    CHECK_EVENT(event);
    pthread_mutex_lock(&work_lock);
    bool done = complete(event);
    pthread_mutex_unlock(&work_lock);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(CUevent event) {
    CHECK_EVENT(event);
    event_await(event, event->record);
    return CUDA_SUCCESS;
}

API cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    CHECK_EVENT(start);
    CHECK_EVENT(end);
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    if (!start->record || !end->record || (start->flags | end->flags) & DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&work_lock);
    bool done = complete(start) && complete(end);
    if (done) *milliseconds = (float)((double)(int64_t)(end->at_ns - start->at_ns) / 1e6);
    pthread_mutex_unlock(&work_lock);
    return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
ALIAS(cuEventElapsedTime_v2, cuEventElapsedTime);

API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    struct stream *stream;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = stream_of(handle, &stream);
    if (result) return result;
    CHECK_EVENT(event);
    pthread_mutex_lock(&work_lock);
    bool done = complete(event), same_queue = event->in_ring && event->card == stream->context->card;
    /* One process's launches run on a card in the order they were made, so the wait is already kept. */
    if (!done && same_queue && !stream->pending && event->ticket > stream->ticket) stream->ticket = event->ticket;
    bool queue = !done && !(same_queue && !stream->pending);
    uint64_t record = event->record;
    pthread_mutex_unlock(&work_lock);
    if (!queue) return CUDA_SUCCESS;
    return stream_submit(stream, &(struct operation){.kind = OP_WAIT, .event = {event, record}});
}
ALIAS(cuStreamWaitEvent_ptsz, cuStreamWaitEvent);
