/* A program without any library, the simulated driver's included: it takes card memory at the daemon's socket itself.
 * usage: static_client SOCKET CARD BYTES. Prints "STATUS BYTES" and then stays until it is ended. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "../../gpuspawner/simulation/src/common/protocol.h"

static int call(int fd, unsigned op, unsigned card, unsigned long long bytes, unsigned long long value)
{
    struct sim_request request = {SIM_MAGIC, op, card, 0, bytes, value};
    struct sim_reply reply;
    if (send(fd, &request, sizeof request, 0) != (ssize_t)sizeof request || recv(fd, &reply, sizeof reply, 0) <= 0)
        return -1;
    return reply.status;
}

int main(int argc, char **argv)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (argc != 4 || strlen(argv[1]) >= sizeof address.sun_path)
        return 2;
    strcpy(address.sun_path, argv[1]);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        perror("connect");
        return 1;
    }
    unsigned card = (unsigned)atoi(argv[2]);
    int status = call(fd, SIM_HELLO, 0, 0, SIM_VERSION);
    if (status == 0)
        status = call(fd, SIM_CONTEXT_OPEN, card, 0, 0);
    if (status == 0)
        status = call(fd, SIM_ALLOC, card, strtoull(argv[3], NULL, 10), 0);
    printf("%d %s\n", status, argv[3]);
    fflush(stdout);
    for (;;)
        pause();
}
