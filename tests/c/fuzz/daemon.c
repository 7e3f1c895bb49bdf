/* The daemon of the simulated cards, spoken to by one client that keeps to no rules. The input is messages, each after its
 * length in one byte; a first byte of 0 gives the message the right number at its start. What the client held is free again
 * when it has gone. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct sockaddr_un address = {.sun_family = AF_UNIX};
static socklen_t length;

static void start(void)
{
    char error[512];
    if (!cards_create("2*h100-80gb,1*v100-16gb", 0, true, error, sizeof error))
        abort();
    sim.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    sim.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    length = sizeof(sa_family_t); /* the kernel chooses an abstract name */
    if (bind(sim.listen_fd, (struct sockaddr *)&address, length) || listen(sim.listen_fd, 8))
        abort();
    length = sizeof address;
    if (getsockname(sim.listen_fd, (struct sockaddr *)&address, &length))
        abort();
}

static void speak(int fd, const uint8_t *data, size_t size)
{
    static uint8_t answer[1 << 18];
    uint8_t message[256];
    uint32_t magic = SIM_MAGIC;
    memcpy(message, data, size);
    if (size > sizeof magic && message[0] == 0)
        memcpy(message, &magic, sizeof magic);
    if (send(fd, message, size, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 || sim.clients == NULL)
        return;
    client_read(sim.clients);
    timed_advance_all();
    struct iovec part = {answer, sizeof answer};
    char control[CMSG_SPACE(sizeof(int))];
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) > 0) {
        struct cmsghdr *with = CMSG_FIRSTHDR(&header);
        if (with != NULL && with->cmsg_type == SCM_RIGHTS)
            close(*(int *)CMSG_DATA(with));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (sim.page == NULL)
        start();
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length))
        abort();
    client_accept(sim.listen_fd, size > 0 && data[0] % 2); /* commands are for its own socket alone */
    for (size_t at = 0; at < size && sim.clients != NULL;) {
        size_t most = size - at - 1, part = data[at] < most ? data[at] : most;
        speak(fd, data + at + 1, part);
        at += 1 + part;
    }
    close(fd);
    if (sim.clients != NULL)
        client_drop(sim.clients);
    clients_sweep();
    sim.quit = sim.quit_when_unused = false;
    for (unsigned card = 0; card < sim.page->card_count; card++)
        if (sim.page->cards[card].used != 0 || sim.page->cards[card].contexts != 0)
            abort();
    return 0;
}
