#include "launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void complain(const char *format, ...)
{
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    fprintf(stderr, "gpuspawner-launch: %s\n", line);
}

void *must(void *memory)
{
    if (memory == NULL) {
        complain("out of memory");
        exit(EXIT_NO_SETUP);
    }
    return memory;
}

static _Noreturn void bad_plan(const char *path, const char *what, const char *word)
{
    complain("plan %s: %s: %s", path, what, word);
    exit(EXIT_USAGE);
}

static char *read_whole(const char *path, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat status;
    if (fd < 0 || fstat(fd, &status) != 0)
        bad_plan(path, "cannot be read", strerror(errno));
    char *text = must(malloc((size_t)status.st_size + 1));
    size_t got = 0;
    while (got < (size_t)status.st_size) {
        ssize_t n = read(fd, text + got, (size_t)status.st_size - got);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            bad_plan(path, "cannot be read", n < 0 ? strerror(errno) : "it is shorter than it was");
        got += (size_t)n;
    }
    close(fd);
    text[got] = '\0';
    *size = got;
    return text;
}

static const struct {
    const char *verb;
    enum op_kind kind;
    bool has_source;
    bool optional;
} verbs[] = {
    {"cover", OP_COVER, false, false},
    {"scratch", OP_SCRATCH, false, false},
    {"rebuild", OP_REBUILD, false, false},
    {"bind", OP_BIND, true, false},
    {"bind?", OP_BIND, true, true},
    {"bindro", OP_BIND_READONLY, true, false},
    {"bindro?", OP_BIND_READONLY, true, true},
    {"link", OP_LINK, true, false},
    {"seal", OP_SEAL, false, false},
    {"proc", OP_PROC, false, false},
};

static unsigned long number(const char *path, const char *verb, const char *word)
{
    char *end = NULL;
    errno = 0;
    unsigned long value = strtoul(word, &end, 10);
    if (errno != 0 || end == word || *end != '\0' || value >= (unsigned long)(uid_t)-1)
        bad_plan(path, verb, word);
    return value;
}

void plan_read(const char *path, struct plan *plan)
{
    size_t size = 0;
    char *text = read_whole(path, &size);
    if (size == 0 || text[size - 1] != '\0')
        bad_plan(path, "is cut short", "the last word has no end");
    char *at = text, *end = text + size;
    memset(plan, 0, sizeof *plan);
    while (at < end) {
        const char *verb = at;
        at += strlen(verb) + 1;
        const char *first = at < end ? at : NULL;
        if (first == NULL)
            bad_plan(path, "a word is missing after", verb);
        at += strlen(first) + 1;
        if (strcmp(verb, "mode") == 0) {
            if (strcmp(first, "namespaces") != 0 && strcmp(first, "advisory") != 0)
                bad_plan(path, "unknown mode", first);
            plan->namespaces = strcmp(first, "namespaces") == 0;
            continue;
        }
        if (strcmp(verb, "alive") == 0) {
            plan->alive = first;
            continue;
        }
        if (strcmp(verb, "cgroup") == 0) {
            plan->cgroup = first;
            continue;
        }
        if (strcmp(verb, "home") == 0) {
            plan->home = first;
            continue;
        }
        if (strcmp(verb, "uid") == 0) {
            plan->uid = (uid_t)number(path, verb, first);
            plan->has_uid = true;
            continue;
        }
        if (strcmp(verb, "gid") == 0) {
            plan->gid = (gid_t)number(path, verb, first);
            continue;
        }
        if (strcmp(verb, "group") == 0) {
            if (plan->group_count == MOST_GROUPS)
                bad_plan(path, "too many groups", first);
            plan->groups[plan->group_count++] = (gid_t)number(path, verb, first);
            continue;
        }
        size_t known = 0;
        while (known < sizeof verbs / sizeof *verbs && strcmp(verbs[known].verb, verb) != 0)
            known++;
        if (known == sizeof verbs / sizeof *verbs)
            bad_plan(path, "unknown word", verb);
        struct op op = {verbs[known].kind, verbs[known].optional, NULL, first, -1};
        if (verbs[known].has_source) {
            if (at >= end)
                bad_plan(path, "a word is missing after", first);
            op.source = first;
            op.target = at;
            at += strlen(at) + 1;
        }
        plan->ops = must(realloc(plan->ops, (plan->op_count + 1) * sizeof *plan->ops));
        plan->ops[plan->op_count++] = op;
    }
    if (plan->alive == NULL || plan->home == NULL)
        bad_plan(path, "a word is missing", "alive and home are needed");
}
