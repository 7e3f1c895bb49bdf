/* Connected processes: who they are, what they hold, what they ask for. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon.h"

static void watch_client(int fd, struct source *source) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = source};
    epoll_ctl(sim.epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

void client_accept(int listener, bool control) {
    static int spare = -1;
    if (spare < 0) spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && (errno == EMFILE || errno == ENFILE) && spare >= 0) {
        /* Out of descriptors: turn this one away, or the listener would keep the loop spinning. */
        close(spare);
        spare = -1;
        close(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
        return;
    }
    if (fd < 0) return;
    struct ucred who;
    socklen_t size = sizeof who;
    struct client *client = NULL;
    unsigned of_user = 0;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size)) goto refuse;
    for (struct client *other = sim.clients; other; other = other->next) of_user += other->uid == who.uid;
    if (sim.client_count >= MAX_CLIENTS || (who.uid && of_user >= MAX_CLIENTS_PER_USER)) goto refuse;
    client = calloc(1, sizeof *client);
    if (!client) goto refuse;
    client->fd = fd;
    client->pid = who.pid;
    client->uid = who.uid;
    client->slot = -1;
    client->control = control;
    /* The socket alone would not do: a child that inherited it would keep a dead parent's memory. */
    client->pidfd = who.pid > 0 ? (int)syscall(SYS_pidfd_open, who.pid, 0) : -1;
    if (client->pidfd < 0 && errno == ESRCH && who.pid > 0) goto refuse;
    client->socket_source = (struct source){SOURCE_CLIENT, client};
    client->pid_source = (struct source){SOURCE_PIDFD, client};
    watch_client(fd, &client->socket_source);
    if (client->pidfd >= 0) watch_client(client->pidfd, &client->pid_source);
    client->next = sim.clients;
    if (sim.clients) sim.clients->previous = client;
    sim.clients = client;
    sim.client_count++;
    return;
refuse:
    free(client);
    close(fd);
}

/* Under page_write_begin(). What a slice holds, its card holds too. */
static void add_used(unsigned place, uint64_t bytes) {
    struct sim_card *card = &sim.page->cards[place];
    if (!bytes) return;
    __atomic_store_n(&card->used, card->used + bytes, __ATOMIC_RELEASE);
    if (place < SIM_MAX_CARDS) return;
    struct sim_card *whole = &sim.page->cards[card->parent];
    __atomic_store_n(&whole->used, whole->used + bytes, __ATOMIC_RELEASE);
}

/* Give back what it held and close it; the struct itself goes in clients_sweep(). */
void client_drop(struct client *client) {
    if (client->dead) return;
    client->dead = true;
    close(client->fd);
    if (client->pidfd >= 0) close(client->pidfd);
    timed_forget(client);
    page_write_begin();
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++) {
        add_used(i, -client->used[i]);
        sim.page->cards[i].contexts -= client->contexts[i];
    }
    if (client->slot >= 0) {
        memset(&sim.page->processes[client->slot], 0, sizeof *sim.page->processes);
        while (sim.page->process_high && !sim.page->processes[sim.page->process_high - 1].pid)
            sim.page->process_high--;
    }
    page_write_end();
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++)
        if (client->contexts[i]) card_follow_load(i);
    if (client->previous) client->previous->next = client->next;
    else sim.clients = client->next;
    if (client->next) client->next->previous = client->previous;
    sim.client_count--;
    client->next = sim.dead_clients;
    sim.dead_clients = client;
}

/* Events of one round may still point at a client that an earlier event dropped. */
void clients_sweep(void) {
    while (sim.dead_clients) {
        struct client *client = sim.dead_clients;
        sim.dead_clients = client->next;
        free(client);
    }
}

bool client_slot(struct client *client) {
    if (client->slot >= 0) return true;
    for (int i = 0; i < SIM_MAX_PROCESSES; i++) {
        if (sim.page->processes[i].pid) continue;
        page_write_begin();
        sim.page->processes[i].pid = (uint32_t)(client->pid > 0 ? client->pid : 0x7fffffff);
        sim.page->processes[i].uid = client->uid;
        if ((uint32_t)i >= sim.page->process_high) sim.page->process_high = (uint32_t)i + 1;
        page_write_end();
        client->slot = i;
        return true;
    }
    return false;
}

static int take(struct client *client, unsigned index, uint64_t bytes, bool context) {
    struct sim_card *card = &sim.page->cards[index];
    if (card->lost || (index >= SIM_MAX_CARDS && sim.page->cards[card->parent].lost)) return SIM_CARD_LOST;
    if (index < SIM_MAX_CARDS ? card->mig_mode : !card->has_compute) return SIM_NOT_SUPPORTED;
    if (!bytes || bytes > card->model.memory_bytes - card->used) return bytes ? SIM_NO_MEMORY : SIM_INVALID;
    if (!limits_allow(client, index, bytes)) return SIM_NO_MEMORY;
    if (sim.cards[index].refusals > 0) return sim.cards[index].refusals--, SIM_NO_MEMORY;
    if (!client_slot(client)) return SIM_FULL;
    struct sim_process *process = &sim.page->processes[client->slot];
    page_write_begin();
    add_used(index, bytes);
    client->used[index] += bytes;
    process->used[index] = client->used[index];
    if (context) process->contexts[index] = ++client->contexts[index], card->contexts++;
    page_write_end();
    if (context && card->contexts == 1) card_follow_load(index);
    return SIM_OK;
}

static int give(struct client *client, unsigned index, uint64_t bytes, bool context) {
    struct sim_card *card = &sim.page->cards[index];
    /* A context's own part can only go with the context. */
    uint64_t contexts = client->contexts[index] * SIM_CONTEXT_BYTES;
    if (context ? !client->contexts[index] : bytes > client->used[index] - contexts) return SIM_INVALID;
    if (client->slot < 0) return SIM_INVALID;
    struct sim_process *process = &sim.page->processes[client->slot];
    page_write_begin();
    add_used(index, -bytes);
    client->used[index] -= bytes;
    process->used[index] = client->used[index];
    if (context) process->contexts[index] = --client->contexts[index], card->contexts--;
    page_write_end();
    if (context && !card->contexts) card_follow_load(index);
    return SIM_OK;
}

/* A reply that cannot be sent at once goes to a client that breaks the rules: one call at a time. */
static void answer(struct client *client, int status, uint64_t value, int fd, const char *text, size_t text_size) {
    struct sim_reply reply = {.magic = SIM_MAGIC, .status = status, .value = value};
    struct iovec parts[2] = {{&reply, sizeof reply}, {(void *)(uintptr_t)text, text_size}};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = text_size ? 2 : 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    if (sendmsg(client->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) client_drop(client);
}

/* Root, and the daemon's own user outside of sessions: those have PID namespaces of their own. */
static bool owns_cards(const struct client *client) {
    char path[64], theirs[64] = "", ours[64] = "";
    if (!client->uid) return true;
    if (client->uid != geteuid()) return false;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)client->pid);
    return readlink(path, theirs, sizeof theirs - 1) > 0 && readlink("/proc/self/ns/pid", ours, sizeof ours - 1) > 0 &&
           !strcmp(theirs, ours);
}

static void serve_control(struct client *client, char *line) {
    static char reply[SIM_REPLY_TEXT_MAX];
    /* Who may open the socket could have passed it on; a session of the daemon's own user has no such socket. */
    if (!client->control || !owns_cards(client)) {
        static const char denied[] = "control is for root and the daemon's own user, at the socket whose name ends in "
                                     SIM_CONTROL_SUFFIX;
        answer(client, SIM_DENIED, 0, -1, denied, sizeof denied - 1);
        return;
    }
    reply[0] = 0;
    int status = control_run(line, reply, sizeof reply);
    answer(client, status, 0, -1, reply, strlen(reply));
}

void client_read(struct client *client) {
    static struct {
        struct sim_request request;
        char text[SIM_CONTROL_MAX + 1];
    } message;
    ssize_t size = recv(client->fd, &message, sizeof message - 1, MSG_DONTWAIT | MSG_TRUNC);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    const struct sim_request *request = &message.request;
    bool control = request->op == SIM_CONTROL;
    bool text = control || request->op == SIM_SET_LIMITS || request->op == SIM_GET_LIMITS;
    if (size < (ssize_t)sizeof *request || size > (ssize_t)sizeof message - 1 || request->magic != SIM_MAGIC ||
        (size != (ssize_t)sizeof *request && !text)) {
        client_drop(client); /* end of stream, or not one of ours */
        return;
    }
    message.text[size - (ssize_t)sizeof *request] = 0;
    if (control) {
        serve_control(client, message.text);
        return;
    }
    if (client->control) {
        client_drop(client);
        return;
    }
    if (request->op == SIM_HELLO) {
        client->greeted = request->value == SIM_VERSION;
        answer(client, client->greeted ? SIM_OK : SIM_INVALID, sizeof *sim.page,
               client->greeted ? sim.page_fd : -1, NULL, 0);
        return;
    }
    if (!client->greeted || !place_there(request->card)) {
        client_drop(client);
        return;
    }
    unsigned card = request->card;
    int status = SIM_INVALID, fd = -1;
    uint64_t value = 0;
    struct sim_limits limits = {0};
    bool rules = owns_cards(client);
    switch (request->op) {
    case SIM_CONTEXT_OPEN: status = take(client, card, SIM_CONTEXT_BYTES, true); break;
    case SIM_CONTEXT_CLOSE: status = give(client, card, SIM_CONTEXT_BYTES, true); break;
    case SIM_ALLOC: status = take(client, card, request->bytes, false); break;
    case SIM_FREE: status = give(client, card, request->bytes, false); break;
    case SIM_CHANNEL:
        fd = timed_channel(client, card);
        status = fd >= 0 ? SIM_OK : sim.page->timed ? SIM_INVALID : SIM_NOT_TIMED;
        break;
    case SIM_DOORBELL: return; /* waking up was all */
    case SIM_SET_LIMITS:
        status = rules ? limits_set(card, message.text, request->bytes, request->value) : SIM_DENIED;
        break;
    case SIM_GET_LIMITS: status = limits_get(card, message.text, &limits); break;
    case SIM_OWN_LIMITS: status = limits_own(client, card, &limits); break;
    case SIM_MIG_MODE:
    case SIM_MIG_CREATE:
    case SIM_MIG_DESTROY:
    case SIM_MIG_COMPUTE: status = rules ? mig_request(request, &value) : SIM_DENIED; break;
    }
    bool asks_limits = request->op == SIM_GET_LIMITS || request->op == SIM_OWN_LIMITS;
    answer(client, status, value, fd, asks_limits ? (const char *)&limits : NULL, asks_limits ? sizeof limits : 0);
    if (fd >= 0) close(fd);
}
