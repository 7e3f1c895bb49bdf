/* gpuspawner-simd: plays GPU cards for the client libraries. See usage(); control commands stand in control.c. */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon.h"

static void usage(FILE *out) {
    fputs("usage: gpuspawner-simd [--socket PATH] [--cards SPEC] [--timed] [--node N] [--pidfile PATH]\n"
          "  --socket PATH   where to listen (default " SIM_DEFAULT_SOCKET "); PATH" SIM_CONTROL_SUFFIX " is for control\n"
          "  --cards SPEC    such as 2*h100-80gb or 1*v100-32gb,2*a100-80gb (default 2*h100-80gb)\n"
          "  --timed         kernel launches take time instead of being refused\n"
          "  --node N        0 to 65535, part of every card's UUID and serial number\n"
          "  --check         say whether these cards can be played, and end\n"
          "  --pidfile PATH  write the process id there once ready\n", out);
}

static int listen_at(const char *path, mode_t mode) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        fprintf(stderr, "gpuspawner-simd: socket: got a path of %zu bytes; allowed are %zu\n", strlen(path),
                sizeof address.sun_path - 1);
        return -1;
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (!connect(fd, (struct sockaddr *)&address, sizeof address) || errno == EAGAIN) {
        fprintf(stderr, "gpuspawner-simd: socket: another daemon answers at %s\n", path);
        close(fd);
        return -1;
    }
    close(fd);
    struct stat info;
    if (!lstat(path, &info) && S_ISSOCK(info.st_mode)) unlink(path); /* left behind by one that was killed */
    fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    mode_t before = umask(0177); /* never open to others, not even for a moment */
    bool bound = fd >= 0 && !bind(fd, (struct sockaddr *)&address, sizeof address);
    umask(before);
    if (!bound || chmod(path, mode) || listen(fd, 1024)) {
        fprintf(stderr, "gpuspawner-simd: socket: cannot listen at %s: %m\n", path);
        if (fd >= 0) close(fd);
        return -1;
    }
    return fd;
}

static void watch(int fd, struct source *source) {
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = source};
    epoll_ctl(sim.epoll_fd, EPOLL_CTL_ADD, fd, &event);
}

static void loop(int signal_fd) {
    struct source listener = {.kind = SOURCE_LISTENER}, signals = {.kind = SOURCE_SIGNAL};
    struct source control = {.kind = SOURCE_CONTROL};
    watch(sim.listen_fd, &listener);
    watch(sim.control_fd, &control);
    watch(signal_fd, &signals);
    while (!sim.quit) {
        struct epoll_event events[64];
        int64_t wait = timed_next_ns();
        struct timespec timeout = {.tv_sec = wait / 1000000000, .tv_nsec = wait % 1000000000};
        int n = (int)epoll_pwait2(sim.epoll_fd, events, 64, wait < 0 ? NULL : &timeout, NULL);
        if (n < 0 && errno == ENOSYS)
            n = epoll_wait(sim.epoll_fd, events, 64, wait < 0 ? -1 : (int)(wait / 1000000));
        for (int i = 0; i < n; i++) {
            struct source *source = events[i].data.ptr;
            switch (source->kind) {
            case SOURCE_LISTENER: client_accept(sim.listen_fd, false); break;
            case SOURCE_CONTROL: client_accept(sim.control_fd, true); break;
            case SOURCE_SIGNAL: sim.quit = true; break;
            case SOURCE_CLIENT:
                if (!source->client->dead) client_read(source->client);
                break;
            case SOURCE_PIDFD:
                if (!source->client->dead) client_drop(source->client);
                break;
            }
        }
        timed_advance_all();
        clients_sweep();
        if (sim.quit_when_unused && !sim.client_count) sim.quit = true;
    }
}

int main(int argc, char **argv) {
    const char *path = SIM_DEFAULT_SOCKET, *cards = "2*h100-80gb", *pidfile = NULL;
    bool timed = false, check = false;
    unsigned node = 0;
    static const struct option options[] = {
        {"socket", required_argument, NULL, 's'}, {"cards", required_argument, NULL, 'c'},
        {"timed", no_argument, NULL, 't'},        {"check", no_argument, NULL, 'k'},
        {"node", required_argument, NULL, 'n'},
        {"pidfile", required_argument, NULL, 'p'}, {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        char *end;
        switch (c) {
        case 's': path = optarg; break;
        case 'c': cards = optarg; break;
        case 't': timed = true; break;
        case 'k': check = true; break;
        case 'p': pidfile = optarg; break;
        case 'n': {
            unsigned long value = strtoul(optarg, &end, 10);
            if (*end || end == optarg || *optarg == '-' || value > 65535) {
                fprintf(stderr, "gpuspawner-simd: node: got \"%s\"; allowed are 0 to 65535\n", optarg);
                return 2;
            }
            node = (unsigned)value;
            break;
        }
        case 'h': usage(stdout); return 0;
        default: usage(stderr); return 2;
        }
    }
    if (optind < argc) {
        usage(stderr);
        return 2;
    }
    struct rlimit files;
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    char error[512];
    if (!cards_create(cards, node, timed, error, sizeof error)) {
        fprintf(stderr, "gpuspawner-simd: %s\n", error);
        return 2;
    }
    if (check) return 0;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    sim.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    char control[sizeof ((struct sockaddr_un *)0)->sun_path + sizeof SIM_CONTROL_SUFFIX];
    snprintf(control, sizeof control, "%s" SIM_CONTROL_SUFFIX, path);
    sim.listen_fd = listen_at(path, 0666);
    if (signal_fd < 0 || sim.epoll_fd < 0 || sim.listen_fd < 0) return 1;
    sim.control_fd = listen_at(control, 0600);
    if (sim.control_fd < 0) {
        unlink(path);
        return 1;
    }
    if (pidfile) {
        FILE *file = fopen(pidfile, "we");
        if (!file) {
            fprintf(stderr, "gpuspawner-simd: pidfile: cannot write %s: %m\n", pidfile);
            unlink(path);
            unlink(control);
            return 1;
        }
        fprintf(file, "%d\n", (int)getpid());
        fclose(file);
    }
    printf("ready %s\n", path);
    fflush(stdout);
    loop(signal_fd);
    sim.page->alive = 0;
    unlink(path);
    unlink(control);
    if (pidfile) unlink(pidfile);
    return 0;
}
