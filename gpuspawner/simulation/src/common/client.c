#define _GNU_SOURCE
#include "client.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int connection = -1;
static const struct sim_page *page;
static bool fork_handler;

static void close_locked(void) {
    if (connection >= 0) close(connection);
    connection = -1;
    /* The page stays mapped: other threads may be reading it. It is small, and reconnecting is rare. */
    __atomic_store_n(&page, NULL, __ATOMIC_RELEASE);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void after_fork_parent(void) { pthread_mutex_unlock(&lock); }

/* The parent's connection speaks for the parent: the child makes its own. */
static void after_fork_child(void) {
    close_locked();
    pthread_mutex_init(&lock, NULL);
}

static int exchange(const struct sim_request *request, const char *text, struct sim_reply *reply, void *more,
                    size_t more_size, int *fd) {
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct iovec out[2] = {{(void *)(uintptr_t)request, sizeof *request},
                           {(void *)(uintptr_t)text, text ? strlen(text) : 0}};
    struct msghdr asked = {.msg_iov = out, .msg_iovlen = 2};
    struct iovec parts[2] = {{reply, sizeof *reply}, {more, more_size}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = more ? 2 : 1, .msg_control = control.bytes,
                             .msg_controllen = sizeof control.bytes};
    ssize_t size;
    if (fd) *fd = -1;
    do size = sendmsg(connection, &asked, MSG_NOSIGNAL);
    while (size < 0 && errno == EINTR);
    if (size != (ssize_t)(sizeof *request + out[1].iov_len)) return SIM_GONE;
    do size = recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
    while (size < 0 && errno == EINTR);
    if (size != (ssize_t)(sizeof *reply + more_size) || reply->magic != SIM_MAGIC) return SIM_GONE;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
        int got;
        memcpy(&got, CMSG_DATA(header), sizeof got);
        if (fd) *fd = got;
        else close(got);
    }
    return reply->status;
}

static int connect_locked(void) {
    if (connection >= 0) return SIM_OK;
    const char *path = getenv("GPUSPAWNER_SIM_SOCKET");
    if (!path || !*path) path = SIM_DEFAULT_SOCKET;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) return SIM_GONE;
    strcpy(address.sun_path, path);
    connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0) return SIM_GONE;
    int failed, fd = -1;
    do failed = connect(connection, (struct sockaddr *)&address, sizeof address);
    while (failed && errno == EINTR);
    struct sim_request hello = {.magic = SIM_MAGIC, .op = SIM_HELLO, .value = SIM_VERSION};
    struct sim_reply reply = {0};
    if (failed || exchange(&hello, NULL, &reply, NULL, 0, &fd) != SIM_OK || fd < 0 || reply.value != sizeof *page) goto gone;
    const struct sim_page *mapped = mmap(NULL, sizeof *page, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    fd = -1;
    if (mapped == MAP_FAILED) goto gone;
    __atomic_store_n(&page, mapped, __ATOMIC_RELEASE);
    if (!fork_handler) fork_handler = !pthread_atfork(before_fork, after_fork_parent, after_fork_child);
    return SIM_OK;
gone:
    if (fd >= 0) close(fd);
    close_locked();
    return SIM_GONE;
}

int sim_connect(void) {
    pthread_mutex_lock(&lock);
    int status = connect_locked();
    pthread_mutex_unlock(&lock);
    return status;
}

void sim_disconnect(void) {
    pthread_mutex_lock(&lock);
    close_locked();
    pthread_mutex_unlock(&lock);
}

const struct sim_page *sim_page(void) { return __atomic_load_n(&page, __ATOMIC_ACQUIRE); }

int sim_call(enum sim_op op, unsigned card, uint64_t bytes, uint64_t *value, int *fd) {
    struct sim_request request = {.magic = SIM_MAGIC, .op = op, .card = card, .bytes = bytes};
    struct sim_reply reply = {0};
    pthread_mutex_lock(&lock);
    int status = connection < 0 ? SIM_GONE : exchange(&request, NULL, &reply, NULL, 0, fd);
    if (status == SIM_GONE) close_locked();
    pthread_mutex_unlock(&lock);
    if (value) *value = reply.value;
    return status;
}

int sim_get_limits(unsigned card, const char *cgroup, struct sim_limits *limits) {
    struct sim_request request = {
        .magic = SIM_MAGIC, .op = cgroup ? SIM_GET_LIMITS : SIM_OWN_LIMITS, .card = card};
    struct sim_reply reply = {0};
    pthread_mutex_lock(&lock);
    int status = connection < 0 ? SIM_GONE : exchange(&request, cgroup, &reply, limits, sizeof *limits, NULL);
    if (status == SIM_GONE) close_locked();
    pthread_mutex_unlock(&lock);
    return status;
}

int sim_set_limits(unsigned card, const char *cgroup, uint64_t soft, uint64_t hard) {
    struct sim_request request = {
        .magic = SIM_MAGIC, .op = SIM_SET_LIMITS, .card = card, .bytes = soft, .value = hard};
    struct sim_reply reply = {0};
    pthread_mutex_lock(&lock);
    int status = connection < 0 ? SIM_GONE : exchange(&request, cgroup, &reply, NULL, 0, NULL);
    if (status == SIM_GONE) close_locked();
    pthread_mutex_unlock(&lock);
    return status;
}

void sim_post(enum sim_op op, unsigned card) {
    struct sim_request request = {.magic = SIM_MAGIC, .op = op, .card = card};
    pthread_mutex_lock(&lock);
    if (connection >= 0) send(connection, &request, sizeof request, MSG_NOSIGNAL);
    pthread_mutex_unlock(&lock);
}

bool sim_connected(void) {
    pthread_mutex_lock(&lock);
    struct pollfd hangup = {.fd = connection, .events = POLLRDHUP};
    bool there = connection >= 0 && poll(&hangup, 1, 0) == 0;
    pthread_mutex_unlock(&lock);
    return there;
}

void sim_read(const struct sim_page *from_page, void *copy, const void *from, size_t size) {
    for (int tries = 0; tries < 100000; tries++) {
        uint32_t before = __atomic_load_n(&from_page->sequence, __ATOMIC_ACQUIRE);
        if (before & 1) {
            sched_yield();
            continue;
        }
        memcpy(copy, from, size);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&from_page->sequence, __ATOMIC_RELAXED) == before) return;
    }
    /* A daemon killed in the middle of writing leaves an odd number behind: take what is there. */
    memcpy(copy, from, size);
}
