/* gpuspawner-launch: starts one session in namespaces of its own and stays until its last process ended.
 *
 *   launcher (the hub's child, keeps the pid that the hub polls and signals)
 *     guard  (host's PID namespace; holds the lock on `alive` until everything below it is gone)
 *       init (pid 1 of the session; reaps, forwards signals, ends with the server)
 *         server
 *
 * The guard exists for the moment when the launcher is killed by SIGKILL: PID 1's own files are closed before its
 * namespace is emptied, so a lock held by it would be released while processes of the session still run.
 */
#ifndef GPUSPAWNER_LAUNCH_H
#define GPUSPAWNER_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Exit statuses of our own, from sysexits.h so that they are not taken for the server's. */
enum { EXIT_USAGE = 64, EXIT_NO_SETUP = 71, EXIT_BUSY = 75, EXIT_NO_COMMAND = 127 };

/* What happens to the file system, in the order in which the plan lists it. */
enum op_kind { OP_COVER, OP_SCRATCH, OP_REBUILD, OP_BIND, OP_BIND_READONLY, OP_LINK, OP_SEAL, OP_PROC };

struct op {
    enum op_kind kind;
    bool optional;      /* a failure is told on stderr, and the session starts all the same */
    const char *source; /* OP_BIND*: what is bound; OP_LINK: the link's text */
    const char *target;
    int source_fd; /* opened before anything is covered */
};

enum { MOST_GROUPS = 16 };

struct plan {
    bool namespaces;
    const char *alive;
    const char *home;
    const char *cgroup; /* the folder of the cgroup to run in, or NULL */
    bool has_uid;
    uid_t uid;
    gid_t gid;
    gid_t groups[MOST_GROUPS]; /* besides gid */
    size_t group_count;
    struct op *ops;
    size_t op_count;
};

/* plan.c: reads the plan, NUL-terminated words; exits with a message on anything it does not know. */
void plan_read(const char *path, struct plan *plan);

/* mounts.c: true, or false after a line on stderr. */
bool mounts_apply(struct plan *plan);
bool mounts_probe(void);

/* privileges.c */
bool privileges_map_ids(pid_t child, uid_t uid, gid_t gid);
bool privileges_drop(const struct plan *plan);

/* calls.c: for good, for this process and all that it starts. Needs no_new_privs. */
bool calls_close(void);

/* guard.c: never return. `status` of the session is the process's exit status, 128 + signal where a signal ended it. */
extern const int forwarded_signals[];
extern const size_t forwarded_signal_count;
int order_to_kill(void); /* the signal by which the guard is told to end the session at once */
int status_to_exit(int status);
void block_signals(void);
void unblock_signals(void);
_Noreturn void guard_run(struct plan *plan, pid_t launcher, char **command);

__attribute__((format(printf, 1, 2))) void complain(const char *format, ...);
void *must(void *memory);

#endif
