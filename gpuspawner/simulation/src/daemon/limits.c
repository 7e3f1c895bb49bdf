/* The driver's own memory limits of cgroups, as NVIDIA documents them ("MPS v3 Memory Partitioning", driver 615 and
 * later): soft and hard limit of a card for a cgroup of version 2 and those below it. The hard one is held at the
 * moment of an allocation. Who is in which cgroup is read from the kernel, for the process that the kernel names. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon.h"

#define MOST_LIMITS 1024

struct limit {
    char cgroup[SIM_CGROUP_MAX]; /* below the mount: "/", "/a/b" */
    ino_t inode;                 /* a cgroup made anew under the same name has no limits */
    unsigned card;
    uint64_t soft, hard;
};

static struct limit limits[MOST_LIMITS];
static unsigned limit_count;

/* Where cgroups of version 2 are mounted; empty if nowhere. */
static const char *mount_point(void) {
    static char found[256];
    if (*found) return found;
    FILE *mounts = fopen("/proc/self/mounts", "re");
    char line[1024], where[256], kind[32];
    while (mounts && fgets(line, sizeof line, mounts))
        if (sscanf(line, "%*s %255s %31s", where, kind) == 2 && !strcmp(kind, "cgroup2")) {
            strcpy(found, where);
            break;
        }
    if (mounts) fclose(mounts);
    return found;
}

static void cgroup_of(pid_t pid, char *cgroup) {
    char path[64], line[SIM_CGROUP_MAX + 8];
    snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
    FILE *file = fopen(path, "re");
    strcpy(cgroup, "/");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "0::/", 4)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(cgroup, SIM_CGROUP_MAX, "%.*s", SIM_CGROUP_MAX - 1, line + 3);
        }
    if (file) fclose(file);
}

static bool holds_any(const struct client *client) {
    for (unsigned i = 0; i < SIM_MAX_PLACES; i++)
        if (client->used[i]) return true;
    return false;
}

/* Memory stays charged to the cgroup that it was taken in. */
static const char *charged(struct client *client) {
    if (!*client->cgroup || !holds_any(client)) cgroup_of(client->pid, client->cgroup);
    return client->cgroup;
}

static bool is_below(const char *cgroup, const char *above) {
    size_t length = strlen(above);
    if (length == 1) return true;
    return !strncmp(cgroup, above, length) && (!cgroup[length] || cgroup[length] == '/');
}

static uint64_t used_in(const char *cgroup, unsigned card) {
    uint64_t used = 0;
    for (struct client *client = sim.clients; client; client = client->next)
        if (client->used[card] && is_below(charged(client), cgroup)) used += client->used[card];
    return used;
}

static int find_cgroup(const char *path, char *cgroup, ino_t *inode) {
    const char *root = mount_point();
    char resolved[4096];
    struct stat info;
    size_t length = strlen(root);
    if (!length || !realpath(path, resolved) || stat(resolved, &info) || !S_ISDIR(info.st_mode)) return SIM_NOT_FOUND;
    if (strncmp(resolved, root, length) || (resolved[length] && resolved[length] != '/')) return SIM_NOT_FOUND;
    if (strlen(resolved + length) >= SIM_CGROUP_MAX) return SIM_INVALID;
    strcpy(cgroup, resolved[length] ? resolved + length : "/");
    *inode = info.st_ino;
    return SIM_OK;
}

static void forget(unsigned i) {
    limits[i] = limits[--limit_count];
    sim.page->limited = limit_count;
}

/* A cgroup that was removed has no limits any more, and neither has another that got its name. */
static void forget_removed(void) {
    for (unsigned i = limit_count; i-- > 0;) {
        char path[SIM_CGROUP_MAX + 256];
        struct stat info;
        snprintf(path, sizeof path, "%s%s", mount_point(), limits[i].cgroup);
        if (stat(path, &info) || info.st_ino != limits[i].inode) forget(i);
    }
}

static struct limit *find(const char *cgroup, unsigned card) {
    for (unsigned i = 0; i < limit_count; i++)
        if (limits[i].card == card && !strcmp(limits[i].cgroup, cgroup)) return &limits[i];
    return NULL;
}

static bool unsupported(unsigned card) {
    const struct sim_card *at = &sim.page->cards[card];
    return card >= SIM_MAX_CARDS || at->mig_mode || (at->unsupported >> SIM_METRIC_LIMITS & 1);
}

int limits_set(unsigned card, const char *path, uint64_t soft, uint64_t hard) {
    char cgroup[SIM_CGROUP_MAX];
    ino_t inode;
    if (unsupported(card)) return SIM_NOT_SUPPORTED;
    int status = find_cgroup(path, cgroup, &inode);
    if (status) return status;
    if (soft > hard) return SIM_INVALID;
    forget_removed();
    struct limit *limit = find(cgroup, card);
    if (hard != SIM_NO_LIMIT && used_in(cgroup, card) > hard) {
        if (sim.below_usage == BELOW_REFUSE) return SIM_IN_USE;
        if (sim.below_usage == BELOW_IGNORE) return SIM_OK;
    }
    if (!soft && hard == SIM_NO_LIMIT) {
        if (limit) forget((unsigned)(limit - limits));
        return SIM_OK;
    }
    if (!limit) {
        if (limit_count == MOST_LIMITS) return SIM_FULL;
        limit = &limits[limit_count++];
        *limit = (struct limit){.inode = inode, .card = card};
        strcpy(limit->cgroup, cgroup);
        sim.page->limited = limit_count;
    }
    limit->soft = soft;
    limit->hard = hard;
    return SIM_OK;
}

/* The nearest limit at or above a cgroup, as the driver reports it. */
static void read_limits(const char *cgroup, unsigned card, struct sim_limits *out) {
    char at[SIM_CGROUP_MAX];
    snprintf(at, sizeof at, "%s", cgroup);
    for (;;) {
        const struct limit *limit = find(at, card);
        if (limit) {
            *out = (struct sim_limits){limit->soft, limit->hard, used_in(at, card)};
            return;
        }
        char *slash = strrchr(at, '/');
        if (!slash || !at[1]) break;
        slash[slash == at] = 0;
    }
    *out = (struct sim_limits){0, SIM_NO_LIMIT, used_in(cgroup, card)};
}

int limits_get(unsigned card, const char *path, struct sim_limits *out) {
    char cgroup[SIM_CGROUP_MAX];
    ino_t inode;
    if (unsupported(card)) return SIM_NOT_SUPPORTED;
    int status = find_cgroup(path, cgroup, &inode);
    if (status) return status;
    forget_removed();
    read_limits(cgroup, card, out);
    return SIM_OK;
}

int limits_own(struct client *client, unsigned card, struct sim_limits *out) {
    if (unsupported(card)) return SIM_NOT_SUPPORTED;
    forget_removed();
    read_limits(charged(client), card, out);
    return SIM_OK;
}

bool limits_allow(struct client *client, unsigned card, uint64_t bytes) {
    if (!limit_count || unsupported(card)) return true;
    forget_removed();
    const char *cgroup = charged(client);
    for (unsigned i = 0; i < limit_count; i++) {
        const struct limit *limit = &limits[i];
        if (limit->card != card || !is_below(cgroup, limit->cgroup)) continue;
        uint64_t used = used_in(limit->cgroup, card);
        if (used > limit->hard || bytes > limit->hard - used) return false;
    }
    return true;
}
