/* Timed mode: this process's queue of launches on each card, shared with the daemon. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

void channels_after_fork(void) {
    for (int i = 0; i < SIM_MAX_PLACES; i++) driver.channels[i].page = NULL;
}

bool channel_open(unsigned card) {
    struct channel *channel = &driver.channels[card];
    if (channel->page) return true;
    int fd;
    if (sim_call(SIM_CHANNEL, card, 0, NULL, &fd) != SIM_OK || fd < 0) return false;
    void *page = mmap(NULL, sizeof *channel->page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page == MAP_FAILED) return false;
    madvise(page, sizeof *channel->page, MADV_DONTFORK);
    pthread_mutex_init(&channel->lock, NULL);
    channel->page = page;
    return true;
}

bool channel_is_open(unsigned card) { return driver.channels[card].page != NULL; }

static uint64_t tail_of(struct channel *channel) { return __atomic_load_n(&channel->page->tail, __ATOMIC_ACQUIRE); }

bool channel_done(unsigned card, uint64_t ticket) {
    struct channel *channel = &driver.channels[card];
    return !channel->page || tail_of(channel) >= ticket;
}

uint64_t channel_head(unsigned card) {
    struct channel *channel = &driver.channels[card];
    return channel->page ? __atomic_load_n(&channel->page->head, __ATOMIC_ACQUIRE) : 0;
}

void channel_wait(unsigned card, uint64_t ticket) {
    struct channel *channel = &driver.channels[card];
    if (!channel->page || tail_of(channel) >= ticket) return;
    struct sim_channel *page = channel->page;
    __atomic_add_fetch(&page->waiters, 1, __ATOMIC_SEQ_CST);
    for (;;) {
        uint64_t tail = __atomic_load_n(&page->tail, __ATOMIC_SEQ_CST);
        if (tail >= ticket || driver.page->cards[card].lost) break;
        struct timespec most = {.tv_nsec = 100000000};
        long woken = syscall(SYS_futex, &page->tail, FUTEX_WAIT, (uint32_t)tail, &most, NULL, 0);
        if (woken && errno == ETIMEDOUT && !sim_connected()) break;
    }
    __atomic_sub_fetch(&page->waiters, 1, __ATOMIC_SEQ_CST);
}

/* Returns the ticket: the item is done once the daemon's tail has reached it. */
uint64_t channel_push(unsigned card, uint64_t duration_ns, uint32_t event_slot) {
    struct channel *channel = &driver.channels[card];
    struct sim_channel *page = channel->page;
    if (!page) return 0;
    pthread_mutex_lock(&channel->lock);
    uint64_t head = page->head;
    if (head - tail_of(channel) >= SIM_RING) {
        channel_wait(card, head - SIM_RING + 1);
        if (head - tail_of(channel) >= SIM_RING) { /* card lost or daemon gone */
            pthread_mutex_unlock(&channel->lock);
            return head;
        }
    }
    page->ring[head % SIM_RING] =
        (struct sim_work){.duration_ns = duration_ns, .submitted_ns = clock_ns(), .event = event_slot};
    __atomic_store_n(&page->head, head + 1, __ATOMIC_SEQ_CST);
    bool ring = __atomic_load_n(&page->sleeping, __ATOMIC_SEQ_CST) &&
                __atomic_exchange_n(&page->sleeping, 0, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&channel->lock);
    if (ring) sim_post(SIM_DOORBELL, card);
    return head + 1;
}

uint32_t channel_slot(unsigned card) {
    struct channel *channel = &driver.channels[card];
    if (!channel->page) return SIM_NO_EVENT;
    pthread_mutex_lock(&channel->lock);
    uint32_t slot = SIM_NO_EVENT;
    struct retired *oldest = &channel->retired[channel->retired_first];
    if (channel->retired_count && tail_of(channel) >= oldest->ticket) {
        slot = oldest->slot;
        channel->retired_first = (channel->retired_first + 1) % channel->retired_room;
        channel->retired_count--;
    } else if (channel->next_slot < SIM_EVENTS) {
        slot = channel->next_slot++;
    }
    pthread_mutex_unlock(&channel->lock);
    return slot;
}

/* The slot may be used again once the daemon cannot write to it any more. */
void channel_slot_retire(unsigned card, uint32_t slot, uint64_t ticket) {
    struct channel *channel = &driver.channels[card];
    if (!channel->page) return;
    pthread_mutex_lock(&channel->lock);
    if (!channel->retired) {
        channel->retired = calloc(SIM_EVENTS, sizeof *channel->retired);
        channel->retired_room = channel->retired ? SIM_EVENTS : 0;
    }
    if (channel->retired_count < channel->retired_room) {
        size_t at = (channel->retired_first + channel->retired_count++) % channel->retired_room;
        channel->retired[at] = (struct retired){slot, ticket};
    }
    pthread_mutex_unlock(&channel->lock);
}

uint64_t channel_event_ns(unsigned card, uint32_t slot) {
    struct channel *channel = &driver.channels[card];
    if (!channel->page || slot >= SIM_EVENTS) return clock_ns();
    return __atomic_load_n(&channel->page->event_ns[slot], __ATOMIC_ACQUIRE);
}
