/* Event sets: waiting for XID errors. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

#define EVENT_XID 8ull

typedef struct event_set {
    pthread_mutex_t lock;
    const struct sim_page *page; /* events are numbered by one daemon's life */
    uint32_t seen;
    bool wanted[SIM_MAX_PLACES];
} *nvmlEventSet;

struct event_data {
    nvmlDevice device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

API nvmlEventSetCreate(nvmlEventSet *set) {
    const struct sim_page *page;
    nvmlReturn result = page_get(&page);
    if (result) return result;
    NEED(set);
    struct event_set *made = calloc(1, sizeof *made);
    if (!made) return NVML_UNKNOWN;
    pthread_mutex_init(&made->lock, NULL);
    made->page = page;
    made->seen = __atomic_load_n(&page->xid_count, __ATOMIC_ACQUIRE);
    *set = made;
    return NVML_SUCCESS;
}

API nvmlEventSetFree(nvmlEventSet set) {
    NEED(set);
    pthread_mutex_destroy(&set->lock);
    free(set);
    return NVML_SUCCESS;
}

API nvmlDeviceGetSupportedEventTypes(nvmlDevice device, unsigned long long *types) {
    CARD(device, card);
    NEED(types);
    *types = LACKS(card, SIM_METRIC_XID) ? 0 : EVENT_XID;
    return NVML_SUCCESS;
}

API nvmlDeviceRegisterEvents(nvmlDevice device, unsigned long long types, nvmlEventSet set) {
    CARD(device, card);
    NEED(set);
    if (types & ~EVENT_XID || LACKS(card, SIM_METRIC_XID)) return NVML_NOT_SUPPORTED;
    pthread_mutex_lock(&set->lock);
    if (types & EVENT_XID) set->wanted[device->index] = true;
    pthread_mutex_unlock(&set->lock);
    return NVML_SUCCESS;
}

/* The next event of a registered card, if there is one. */
static bool take(struct event_set *set, const struct sim_page *page, uint32_t newest, struct event_data *data) {
    bool found = false;
    pthread_mutex_lock(&set->lock);
    if (set->page != page) set->page = page, set->seen = 0; /* another daemon's life has begun */
    if (newest - set->seen > SIM_XID_RING) set->seen = newest - SIM_XID_RING; /* older ones are overwritten */
    while (set->seen != newest && !found) {
        struct sim_xid xid;
        sim_read(page, &xid, &page->xids[++set->seen % SIM_XID_RING], sizeof xid);
        if (xid.card >= SIM_MAX_PLACES || !set->wanted[xid.card]) continue;
        *data = (struct event_data){.type = EVENT_XID, .data = xid.code, .gpu_instance = ~0u, .compute_instance = ~0u};
        found = device_at(xid.card, &data->device) == NVML_SUCCESS;
    }
    pthread_mutex_unlock(&set->lock);
    return found;
}

API nvmlEventSetWait_v2(nvmlEventSet set, struct event_data *data, unsigned timeout_ms) {
    if (!set || !data) return NVML_INVALID_ARGUMENT;
    int64_t end = wall_us() + (int64_t)timeout_ms * 1000;
    for (;;) {
        const struct sim_page *page;
        nvmlReturn result = page_get(&page);
        if (result) return result;
        uint32_t newest = __atomic_load_n(&page->xid_count, __ATOMIC_ACQUIRE);
        if (take(set, page, newest, data)) return NVML_SUCCESS;
        int64_t left = end - wall_us();
        if (left <= 0) return NVML_TIMEOUT;
        if (left > 250000) left = 250000; /* look now and then whether the daemon is there */
        struct timespec most = {.tv_nsec = left * 1000};
        syscall(SYS_futex, &page->xid_count, FUTEX_WAIT, newest, &most, NULL, 0);
    }
}

API nvmlEventSetWait(nvmlEventSet set, struct event_data *data, unsigned timeout_ms) {
    struct event_data full;
    nvmlReturn result = nvmlEventSetWait_v2(set, &full, timeout_ms);
    NEED(data);
    if (!result) memcpy(data, &full, offsetof(struct event_data, gpu_instance));
    return result;
}
