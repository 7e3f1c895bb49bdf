#include "launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const int forwarded_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGCONT};
const size_t forwarded_signal_count = sizeof forwarded_signals / sizeof *forwarded_signals;

int order_to_kill(void) { return SIGRTMIN + 3; }

int status_to_exit(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

void block_signals(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
}

void unblock_signals(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static bool is_forwarded(int signal_number)
{
    for (size_t i = 0; i < forwarded_signal_count; i++)
        if (forwarded_signals[i] == signal_number)
            return true;
    return false;
}

static _Noreturn void run_server(const struct plan *plan, char **command)
{
    unblock_signals();
    for (size_t i = 0; i < forwarded_signal_count; i++)
        signal(forwarded_signals[i], SIG_DFL);
    setsid();
    execvp(command[0], command);
    complain("cannot run %s: %s", command[0], strerror(errno));
    (void)plan;
    _exit(EXIT_NO_COMMAND);
}

/* PID 1 of the session. When it returns, the kernel ends whatever is left in the namespace. */
static int init_run(const struct plan *plan, char **command, int life)
{
    pid_t server = fork();
    if (server < 0) {
        complain("cannot start a process: %s", strerror(errno));
        return EXIT_NO_SETUP;
    }
    if (server == 0) {
        close(life);
        run_server(plan, command);
    }
    sigset_t all;
    sigfillset(&all);
    for (;;) {
        int status;
        for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;)
            if (pid == server)
                return status_to_exit(status);
        int got = sigwaitinfo(&all, NULL);
        if (got > 0 && is_forwarded(got))
            kill(server, got);
    }
}

static void change_directory(const struct plan *plan, const char *directory)
{
    if (directory[0] == '/' && chdir(directory) == 0)
        return;
    if (chdir(plan->home) != 0 && chdir("/") != 0)
        complain("cannot enter %s: %s", plan->home, strerror(errno));
}

static _Noreturn void child_run(struct plan *plan, char **command, int life, const char *directory)
{
    char go;
    /* The guard writes once the ids are mapped and `alive` is written; an end of file means that it is gone. */
    if (read(life, &go, 1) != 1)
        _exit(EXIT_NO_SETUP);
    if (!plan->namespaces) {
        if (!privileges_drop(plan) || !calls_close())
            _exit(EXIT_NO_SETUP);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        change_directory(plan, directory);
        close(life);
        run_server(plan, command);
    }
    mode_t mask = umask(0);
    umask(mask);
    if (!mounts_apply(plan) || !privileges_drop(plan) || !calls_close())
        _exit(EXIT_NO_SETUP);
    umask(mask);
    change_directory(plan, directory);
    /* After the change of user, since that clears both. Not dumpable: the session may not trace or open its PID 1. */
    prctl(PR_SET_DUMPABLE, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct pollfd ended = {life, 0, 0};
    if (poll(&ended, 1, 0) > 0)
        _exit(EXIT_NO_SETUP);
    _exit(init_run(plan, command, life));
}

static pid_t start_child(struct plan *plan)
{
    if (!plan->namespaces)
        return fork();
    unsigned long flags = CLONE_NEWNS | CLONE_NEWPID | SIGCHLD;
    if (geteuid() != 0)
        flags |= CLONE_NEWUSER;
#if defined(__s390__)
    return (pid_t)syscall(SYS_clone, NULL, flags, NULL, NULL, NULL);
#else
    return (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
#endif
}

static int lock_alive(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fd < 0) {
        complain("cannot open %s: %s", path, strerror(errno));
        _exit(EXIT_NO_SETUP);
    }
    if (fcntl(fd, F_OFD_SETLK, &lock) != 0) {
        complain("%s: this session already runs", path);
        _exit(EXIT_BUSY);
    }
    return fd;
}

/* Without namespaces the session may write what it likes into `alive`. Our lock on its first byte then ends at our pid,
 * for whoever asks the kernel for it; the rest is held too, shared, so that the length can be no one else's doing. */
static bool say_pid_by_lock(int fd)
{
    struct flock rest = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = getpid()};
    return fcntl(fd, F_OFD_SETLK, &rest) == 0;
}

static bool write_alive(int fd, const struct plan *plan, pid_t child)
{
    char path[64], text[256];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/ns/pid", (int)child);
    unsigned long long inode = plan->namespaces && stat(path, &status) == 0 ? (unsigned long long)status.st_ino : 0;
    int length = snprintf(text, sizeof text, "guard %d\nchild %d\npidns %llu\n", (int)getpid(), (int)child, inode);
    return ftruncate(fd, 0) == 0 && pwrite(fd, text, (size_t)length, 0) == length;
}

/* Without a PID namespace: every process below us, since we are their reaper. They are stopped first so that none can
 * fork its way out while we walk. Returns whether any was found. */
static bool signal_descendants(int signal_number)
{
    enum { MOST = 1 << 16 };
    static struct { pid_t pid, parent; bool ours; } seen[MOST];
    size_t count = 0;
    DIR *proc = opendir("/proc");
    if (proc == NULL)
        return false;
    for (struct dirent *entry; (entry = readdir(proc)) != NULL && count < MOST;) {
        char path[300], text[512];
        int pid = atoi(entry->d_name), parent = 0;
        if (pid <= 0)
            continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
        if (fd >= 0)
            close(fd);
        text[length > 0 ? length : 0] = '\0';
        char *after = strrchr(text, ')'); /* the name may hold anything, parentheses too */
        char state;
        if (after == NULL || sscanf(after + 1, " %c %d", &state, &parent) != 2 || state == 'Z')
            continue;
        seen[count].pid = pid, seen[count].parent = parent, seen[count].ours = false, count++;
    }
    closedir(proc);
    bool any = false, more = true;
    while (more) {
        more = false;
        for (size_t i = 0; i < count; i++) {
            bool below = seen[i].parent == getpid();
            for (size_t j = 0; !below && j < count; j++)
                below = seen[j].ours && seen[j].pid == seen[i].parent;
            if (below && !seen[i].ours)
                seen[i].ours = any = more = true;
        }
    }
    for (size_t i = 0; i < count; i++)
        if (seen[i].ours)
            kill(seen[i].pid, signal_number);
    return any;
}

static void end_descendants(void)
{
    for (;;) {
        while (signal_descendants(SIGSTOP) && signal_descendants(SIGKILL)) {
            struct timespec moment = {0, 5000000};
            while (waitpid(-1, NULL, WNOHANG) > 0)
                ;
            nanosleep(&moment, NULL);
        }
        pid_t got = waitpid(-1, NULL, WNOHANG);
        if (got < 0 && errno == ECHILD)
            return;
        if (got == 0) {
            struct timespec moment = {0, 5000000};
            nanosleep(&moment, NULL);
        }
    }
}

_Noreturn void guard_run(struct plan *plan, pid_t launcher, char **command)
{
    char directory[4096];
    int life[2];
    if (getcwd(directory, sizeof directory) == NULL)
        directory[0] = '\0';
    setsid();
    prctl(PR_SET_PDEATHSIG, order_to_kill());
    if (getppid() != launcher)
        _exit(EXIT_NO_SETUP);
    int alive = lock_alive(plan->alive);
    if (pipe2(life, O_CLOEXEC) != 0 || (!plan->namespaces && !say_pid_by_lock(alive)))
        _exit(EXIT_NO_SETUP);
    if (!plan->namespaces)
        prctl(PR_SET_CHILD_SUBREAPER, 1);
    uid_t uid = geteuid();
    gid_t gid = getegid();
    pid_t child = start_child(plan);
    if (child < 0) {
        complain("cannot make namespaces: %s", strerror(errno));
        _exit(EXIT_NO_SETUP);
    }
    if (child == 0) {
        close(life[1]);
        close(alive);
        child_run(plan, command, life[0], directory);
    }
    close(life[0]);
    if ((plan->namespaces && uid != 0 && !privileges_map_ids(child, uid, gid)) ||
        !write_alive(alive, plan, child) || write(life[1], "", 1) != 1) {
        kill(child, SIGKILL);
        _exit(EXIT_NO_SETUP);
    }
    sigset_t all;
    sigfillset(&all);
    for (;;) {
        siginfo_t info = {0};
        int got = sigwaitinfo(&all, NULL);
        if (got == order_to_kill()) {
            kill(child, SIGKILL);
            if (plan->namespaces) /* returns once the whole namespace is empty */
                waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT);
            else
                end_descendants();
            _exit(128 + SIGKILL);
        }
        if (got > 0 && is_forwarded(got))
            kill(child, got);
        /* WNOWAIT: as long as the lock is held, the pid that `alive` names cannot be anyone else's. */
        if (waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid == child) {
            int status = info.si_code == CLD_EXITED ? info.si_status : 128 + info.si_status;
            if (!plan->namespaces)
                end_descendants();
            _exit(status);
        }
        if (!plan->namespaces) { /* adopted processes that ended; the server itself was looked at above */
            while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0 && info.si_pid != child) {
                waitpid(info.si_pid, NULL, 0);
                info.si_pid = 0;
            }
        }
    }
}
