/* Timed mode: launches take time. Each card is one engine that processes use in turn, a slice each. The
 * play is exact: work is given the times it would have had, however late the daemon looks at it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"

#define WINDOW_NS 100000000ull     /* utilisation is read anew this often while there is work */
#define LOOK_NS 50000ll            /* look again at the earliest after this */
#define MOST_TURNS 20000u
#define MAX_DURATION_NS 600000000000ull

int timed_channel(struct client *client, unsigned card) {
    if (!sim.page->timed || client->queues[card]) return -1;
    int fd = memfd_create("gpuspawner-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    struct sim_channel *channel = MAP_FAILED;
    struct queue *queue = calloc(1, sizeof *queue);
    if (queue && !ftruncate(fd, sizeof *channel) && client_slot(client))
        channel = mmap(NULL, sizeof *channel, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (channel == MAP_FAILED || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
        if (channel != MAP_FAILED) munmap(channel, sizeof *channel);
        free(queue);
        close(fd);
        return -1;
    }
    channel->magic = SIM_MAGIC;
    channel->version = SIM_VERSION;
    channel->sleeping = 1;
    queue->channel = channel;
    queue->client = client;
    struct queue **ring = &sim.cards[card].queues;
    if (*ring) {
        queue->next = (*ring)->next;
        (*ring)->next = queue;
    } else {
        *ring = queue->next = queue;
    }
    client->queues[card] = queue;
    return fd;
}

static void wake(struct queue *queue) {
    struct sim_channel *channel = queue->channel;
    __atomic_store_n(&channel->tail, queue->done, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&channel->waiters, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &channel->tail, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

void timed_forget(struct client *client) {
    for (unsigned card = 0; card < SIM_MAX_PLACES; card++) {
        struct queue *queue = client->queues[card];
        if (!queue) continue;
        struct queue *before = queue;
        while (before->next != queue) before = before->next;
        before->next = queue->next;
        if (sim.cards[card].queues == queue) {
            sim.cards[card].queues = queue->next == queue ? NULL : queue->next;
            sim.cards[card].slice_left_ns = sim.slice_ns;
        }
        munmap(queue->channel, sizeof *queue->channel);
        free(queue);
        client->queues[card] = NULL;
    }
}

/* The oldest item of the queue, or NULL. A client that counts its head wrong is dropped. */
static const struct sim_work *front(struct queue *queue, struct sim_work *copy, uint64_t now) {
    if (queue->client->dead) return NULL;
    uint64_t waiting = __atomic_load_n(&queue->channel->head, __ATOMIC_SEQ_CST) - queue->done;
    if (!waiting) return NULL;
    if (waiting > SIM_RING) return NULL;
    *copy = queue->channel->ring[queue->done % SIM_RING];
    if (copy->submitted_ns > now) copy->submitted_ns = now;
    if (copy->duration_ns > MAX_DURATION_NS) copy->duration_ns = MAX_DURATION_NS;
    if (!queue->started) {
        queue->started = true;
        queue->remaining_ns = copy->duration_ns;
    }
    return copy;
}

static void finish(struct queue *queue, const struct sim_work *work, uint64_t at) {
    if (work->event < SIM_EVENTS)
        __atomic_store_n(&queue->channel->event_ns[work->event], at, __ATOMIC_RELEASE);
    queue->done++;
    queue->started = false;
}

/* The next queue in turn with work submitted by `at`; *next becomes the moment some work comes up. */
static struct queue *whose_turn(struct daemon_card *card, uint64_t at, uint64_t now, struct sim_work *work,
                                uint64_t *next) {
    struct queue *queue = card->queues;
    *next = UINT64_MAX;
    if (!queue) return NULL;
    do {
        if (front(queue, work, now)) {
            if (work->submitted_ns <= at) {
                if (queue != card->queues) {
                    card->queues = queue;
                    card->slice_left_ns = sim.slice_ns;
                }
                return queue;
            }
            if (work->submitted_ns < *next) *next = work->submitted_ns;
        }
        queue = queue->next;
    } while (queue != card->queues);
    return NULL;
}

/* Play one card's work up to `now`. Returns whether some is left. */
static bool advance(unsigned index, uint64_t now) {
    struct daemon_card *card = &sim.cards[index];
    if (!card->queues || sim.page->cards[index].lost) {
        card->now_ns = now;
        return false;
    }
    bool left = false;
    struct queue *queue;
    struct sim_work work;
    uint64_t next;
    for (unsigned turns = 0;; turns++) {
        if (turns == MOST_TURNS) return true; /* the other clients' requests come first */
        queue = whose_turn(card, card->now_ns, now, &work, &next);
        if (!queue) {
            if (next == UINT64_MAX || next >= now) {
                left = next != UINT64_MAX;
                card->now_ns = now;
                if (!left) break;
                continue; /* submitted just now: an event record may be done at once */
            }
            card->now_ns = next;
            continue;
        }
        uint64_t run = now - card->now_ns;
        if (queue->remaining_ns < run) run = queue->remaining_ns;
        if (card->slice_left_ns < run) run = card->slice_left_ns;
        card->now_ns += run;
        card->busy_ns += run;
        queue->busy_ns += run;
        card->total_ns += run;
        queue->total_ns += run;
        queue->remaining_ns -= run;
        card->slice_left_ns -= run;
        if (!queue->remaining_ns) {
            finish(queue, &work, card->now_ns);
            wake(queue);
        }
        if (!card->slice_left_ns) {
            card->queues = queue->next;
            card->slice_left_ns = sim.slice_ns;
        }
        if (card->now_ns >= now && queue->remaining_ns) {
            left = true;
            break;
        }
    }
    return left;
}

static void read_load(unsigned index, uint64_t now) {
    struct daemon_card *card = &sim.cards[index];
    uint64_t window = now - card->window_start_ns;
    if (window < WINDOW_NS) return;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    page_write_begin();
    for (struct queue *queue = card->queues; queue; queue = queue->next == card->queues ? NULL : queue->next) {
        if (queue->client->slot < 0) continue;
        struct sim_process *process = &sim.page->processes[queue->client->slot];
        process->utilization[index] = (uint32_t)((queue->busy_ns * 100 + window / 2) / window);
        process->stamp_us[index] = (uint64_t)wall.tv_sec * 1000000u + (uint64_t)wall.tv_nsec / 1000;
        queue->busy_ns = 0;
    }
    page_write_end();
    card->busy_percent = (uint32_t)((card->busy_ns * 100 + window / 2) / window);
    card->busy_ns = 0;
    card->window_start_ns = now;
    card_follow_load(index);
}

static bool working[SIM_MAX_PLACES];

bool timed_advance_all(void) {
    if (!sim.page->timed) return false;
    bool any = false;
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++) {
        if (!place_there(i)) continue;
        struct daemon_card *card = &sim.cards[i];
        uint64_t now = now_ns();
        working[i] = advance(i, now);
        /* Say that we go to sleep, then look once more: what comes later rings. */
        if (!working[i] && card->queues) {
            struct queue *queue = card->queues;
            do {
                __atomic_store_n(&queue->channel->sleeping, 1, __ATOMIC_SEQ_CST);
                queue = queue->next;
            } while (queue != card->queues);
            working[i] = advance(i, now_ns());
        }
        if (working[i] && card->queues) {
            struct queue *queue = card->queues;
            do {
                __atomic_store_n(&queue->channel->sleeping, 0, __ATOMIC_SEQ_CST);
                queue = queue->next;
            } while (queue != card->queues);
        }
        read_load(i, now_ns());
        any |= working[i];
    }
    return any;
}

int64_t timed_next_ns(void) {
    if (!sim.page->timed) return -1;
    int64_t soonest = -1;
    uint64_t now = now_ns();
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++) {
        if (!place_there(i)) continue;
        struct daemon_card *card = &sim.cards[i];
        int64_t wait = -1;
        if (working[i] && card->queues) {
            /* Until the running item ends, or its slice does where others wait. */
            wait = (int64_t)(card->queues->started ? card->queues->remaining_ns : 0);
            if (card->queues->next != card->queues && (int64_t)card->slice_left_ns < wait)
                wait = (int64_t)card->slice_left_ns;
            if (wait < LOOK_NS) wait = LOOK_NS;
            if (wait > (int64_t)WINDOW_NS) wait = WINDOW_NS;
        } else if (card->busy_percent || card->busy_ns) {
            uint64_t due = card->window_start_ns + WINDOW_NS;
            wait = due > now ? (int64_t)(due - now) : 0; /* the reading falls back to idle */
        }
        if (wait >= 0 && (soonest < 0 || wait < soonest)) soonest = wait;
    }
    return soonest;
}
