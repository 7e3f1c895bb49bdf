#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static bool write_once(pid_t pid, const char *name, const char *text)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (!ok)
        complain("cannot write %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

/* The user is mapped onto itself, so that files made in the session belong to the same user outside. */
bool privileges_map_ids(pid_t child, uid_t uid, gid_t gid)
{
    char text[64];
    snprintf(text, sizeof text, "%u %u 1\n", (unsigned)uid, (unsigned)uid);
    if (!write_once(child, "uid_map", text) || !write_once(child, "setgroups", "deny"))
        return false;
    snprintf(text, sizeof text, "%u %u 1\n", (unsigned)gid, (unsigned)gid);
    return write_once(child, "gid_map", text);
}

bool privileges_drop(const struct plan *plan)
{
    /* Without a bounding set not even a program run as root gets a capability back. EPERM: it was already taken from us. */
    for (int cap = 0; cap <= CAP_LAST_CAP; cap++) {
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0 && errno != EINVAL && errno != EPERM) {
            complain("cannot drop capability %d: %s", cap, strerror(errno));
            return false;
        }
    }
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (plan->has_uid && plan->uid != geteuid()) {
        gid_t groups[1 + MOST_GROUPS] = {plan->gid};
        memcpy(groups + 1, plan->groups, plan->group_count * sizeof *groups);
        if (setgroups(1 + plan->group_count, groups) != 0 || setresgid(plan->gid, plan->gid, plan->gid) != 0 ||
            setresuid(plan->uid, plan->uid, plan->uid) != 0) {
            complain("cannot become uid %u gid %u: %s", (unsigned)plan->uid, (unsigned)plan->gid, strerror(errno));
            return false;
        }
    }
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2];
    memset(none, 0, sizeof none);
    if (syscall(SYS_capset, &header, none) != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) {
        complain("cannot give up privileges: %s", strerror(errno));
        return false;
    }
    return true;
}
