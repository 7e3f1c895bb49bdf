/* The session's view of the file system. The plan says what; this file knows how. */
#include "launch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static bool failed(const char *what, const char *path)
{
    complain("%s %s: %s", what, path, strerror(errno));
    return false;
}

static bool make_parents(const char *path, bool last_too)
{
    char copy[PATH_MAX];
    if (snprintf(copy, sizeof copy, "%s", path) >= (int)sizeof copy) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (char *slash = copy + 1; *slash != '\0'; slash++) {
        if (*slash != '/')
            continue;
        *slash = '\0';
        if (mkdir(copy, 0755) != 0 && errno != EEXIST && errno != EROFS)
            return false;
        *slash = '/';
    }
    return !last_too || mkdir(copy, 0755) == 0 || errno == EEXIST;
}

static bool make_target(const char *path, bool directory)
{
    struct stat status;
    if (stat(path, &status) == 0) {
        if (S_ISDIR(status.st_mode) == directory)
            return true;
        errno = directory ? ENOTDIR : EISDIR;
        return false;
    }
    if (directory)
        return make_parents(path, true);
    if (!make_parents(path, false))
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    return fd >= 0 && close(fd) == 0;
}

/* In a user namespace the flags that a mount came with are locked: a remount has to repeat them. */
static bool remount_readonly(const char *path)
{
    struct statvfs status;
    if (statvfs(path, &status) != 0)
        return false;
    unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY;
    flags |= status.f_flag & ST_NOSUID ? MS_NOSUID : 0;
    flags |= status.f_flag & ST_NODEV ? MS_NODEV : 0;
    flags |= status.f_flag & ST_NOEXEC ? MS_NOEXEC : 0;
    flags |= status.f_flag & ST_NOATIME ? MS_NOATIME : 0;
    flags |= status.f_flag & ST_NODIRATIME ? MS_NODIRATIME : 0;
    flags |= status.f_flag & ST_RELATIME ? MS_RELATIME : 0;
    return mount(NULL, path, NULL, flags, NULL) == 0;
}

static bool bind_fd(int fd, const char *target)
{
    char source[64];
    snprintf(source, sizeof source, "/proc/self/fd/%d", fd);
    return mount(source, target, NULL, MS_BIND | MS_REC, NULL) == 0;
}

static bool mount_tmpfs(const char *path, const char *options)
{
    return make_target(path, true) && mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, options) == 0;
}

static bool rebuild_entry(int old, const char *path, const char *name)
{
    char target[PATH_MAX];
    struct stat status;
    if (snprintf(target, sizeof target, "%s/%s", path, name) >= (int)sizeof target ||
        fstatat(old, name, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return false;
    if (S_ISLNK(status.st_mode)) {
        char text[PATH_MAX];
        ssize_t length = readlinkat(old, name, text, sizeof text - 1);
        if (length < 0)
            return false;
        text[length] = '\0';
        return symlink(text, target) == 0;
    }
    int fd = openat(old, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    bool ok = fd >= 0 && make_target(target, S_ISDIR(status.st_mode)) && bind_fd(fd, target);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Covers a directory in which we may not create anything by a tmpfs that shows all its old entries. Entries that vanish or
 * may not be bound are left out: nothing is shown that was not there. */
static bool rebuild(const char *path)
{
    int old = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (old < 0 || !mount_tmpfs(path, "mode=0755"))
        return false;
    DIR *entries = fdopendir(old);
    if (entries == NULL)
        return false;
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            (void)rebuild_entry(dirfd(entries), path, entry->d_name);
    }
    closedir(entries);
    return true;
}

static bool apply(const struct op *op)
{
    struct stat status;
    switch (op->kind) {
    case OP_COVER:
        return mount_tmpfs(op->target, "mode=0755") || failed("cannot cover", op->target);
    case OP_SCRATCH:
        return mount_tmpfs(op->target, "mode=1777") || failed("cannot make private", op->target);
    case OP_REBUILD:
        return rebuild(op->target) || failed("cannot rebuild", op->target);
    case OP_BIND:
    case OP_BIND_READONLY:
        if (op->source_fd < 0)
            return false;
        if (fstat(op->source_fd, &status) != 0 || !make_target(op->target, S_ISDIR(status.st_mode)) ||
            !bind_fd(op->source_fd, op->target))
            return failed("cannot bind to", op->target);
        if (op->kind == OP_BIND_READONLY && !remount_readonly(op->target))
            return failed("cannot make read-only", op->target);
        return true;
    case OP_LINK:
        return (make_parents(op->target, false) && symlink(op->source, op->target) == 0) ||
               failed("cannot link", op->target);
    case OP_SEAL:
        return remount_readonly(op->target) || failed("cannot seal", op->target);
    case OP_PROC:
        return mount("proc", op->target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0 ||
               failed("cannot mount proc on", op->target);
    }
    return false;
}

bool mounts_apply(struct plan *plan)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return failed("cannot make private", "/");
    for (size_t i = 0; i < plan->op_count; i++) {
        struct op *op = &plan->ops[i];
        if (op->kind != OP_BIND && op->kind != OP_BIND_READONLY)
            continue;
        op->source_fd = open(op->source, O_PATH | O_CLOEXEC);
        if (op->source_fd < 0 && !failed("cannot open", op->source) && !op->optional)
            return false;
    }
    umask(0022);
    for (size_t i = 0; i < plan->op_count; i++) {
        if (!apply(&plan->ops[i]) && !plan->ops[i].optional)
            return false;
    }
    for (size_t i = 0; i < plan->op_count; i++) {
        if (plan->ops[i].source_fd >= 0)
            close(plan->ops[i].source_fd);
    }
    return true;
}

/* Does what every session needs, in a throw-away namespace: AppArmor and masked /proc refuse here, not at clone(). */
bool mounts_probe(void)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        return failed("cannot make private", "/");
    int etc = open("/etc", O_PATH | O_CLOEXEC);
    if (mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755") != 0)
        return failed("cannot mount a tmpfs on", "/tmp");
    if (mkdir("/tmp/etc", 0755) != 0 || etc < 0 || !bind_fd(etc, "/tmp/etc") || !remount_readonly("/tmp/etc"))
        return failed("cannot bind", "/etc");
    if (mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) != 0)
        return failed("cannot mount proc on", "/proc");
    return true;
}
