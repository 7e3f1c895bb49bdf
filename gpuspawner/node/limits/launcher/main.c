#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Descriptors that came with us are the hub's: none of them belongs into a session. */
static void close_inherited(void)
{
    if (syscall(SYS_close_range, 3U, ~0U, 0U) == 0)
        return;
    long most = sysconf(_SC_OPEN_MAX);
    for (int fd = 3; fd < (most > 0 && most < 65536 ? most : 65536); fd++)
        close(fd);
}

static int probe(void)
{
    int pipe_fds[2];
    if (pipe(pipe_fds) != 0)
        return EXIT_NO_SETUP;
    uid_t uid = geteuid();
    gid_t gid = getegid();
    unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | SIGCHLD | (uid != 0 ? CLONE_NEWUSER : 0);
    pid_t child = (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
    if (child < 0) {
        complain("cannot make namespaces: %s", strerror(errno));
        return EXIT_NO_SETUP;
    }
    if (child == 0) {
        char go;
        close(pipe_fds[1]);
        _exit(read(pipe_fds[0], &go, 1) == 1 && mounts_probe() ? 0 : EXIT_NO_SETUP);
    }
    close(pipe_fds[0]);
    bool mapped = uid == 0 || privileges_map_ids(child, uid, gid);
    if (!mapped || write(pipe_fds[1], "", 1) != 1)
        kill(child, SIGKILL);
    int status;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR)
        ;
    return status_to_exit(status);
}

/* The session's limits on the card hold for this cgroup: without it there is no session. */
static bool enter_cgroup(const char *folder)
{
    char path[4096];
    int size = snprintf(path, sizeof path, "%s/cgroup.procs", folder);
    int fd = size < (int)sizeof path ? open(path, O_WRONLY | O_CLOEXEC) : -1;
    bool entered = fd >= 0 && write(fd, "0", 1) == 1;
    if (!entered)
        complain("cannot enter the cgroup %s: %s", folder, strerror(errno));
    if (fd >= 0)
        close(fd);
    return entered;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--probe") == 0)
        return probe();
    if (argc < 5 || strcmp(argv[1], "--plan") != 0 || strcmp(argv[3], "--") != 0) {
        fprintf(stderr, "usage: gpuspawner-launch --plan FILE -- COMMAND [ARGUMENT ...]\n"
                        "       gpuspawner-launch --probe\n");
        return EXIT_USAGE;
    }
    close_inherited();
    struct plan plan;
    plan_read(argv[2], &plan);
    if (plan.cgroup != NULL && !enter_cgroup(plan.cgroup))
        return EXIT_NO_SETUP;
    /* Blocked, not handled: what arrives before a child exists is still there when we look. */
    signal(SIGCHLD, SIG_DFL);
    block_signals();
    setsid();
    pid_t self = getpid(), guard = fork();
    if (guard < 0) {
        complain("cannot start a process: %s", strerror(errno));
        return EXIT_NO_SETUP;
    }
    if (guard == 0)
        guard_run(&plan, self, argv + 4);
    sigset_t all;
    sigfillset(&all);
    for (;;) {
        int status;
        if (waitpid(guard, &status, WNOHANG) == guard)
            return status_to_exit(status);
        int got = sigwaitinfo(&all, NULL);
        for (size_t i = 0; i < forwarded_signal_count; i++)
            if (got == forwarded_signals[i])
                kill(guard, got);
    }
}
