/* The launcher's reader of plans. What it refuses, it refuses by ending the program; here it comes back instead. */
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static jmp_buf refused;
static char said[2048];
static void *text, *ops;

static _Noreturn void come_back(int status) { longjmp(refused, status); }
static void *new_text(size_t size) { return text = malloc(size); }
static void *more_ops(void *old, size_t size) { return (void)old, ops = realloc(ops, size); }

#define exit come_back
#define malloc new_text
#define realloc more_ops
#define fprintf(stream, ...) ((void)snprintf(said, sizeof said, __VA_ARGS__))
#include "../../../gpuspawner/node/limits/launcher/plan.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("plan", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size)
        abort();
    struct plan plan;
    if (setjmp(refused) == 0) {
        plan_read(path, &plan);
        size_t all = strlen(plan.alive) + strlen(plan.home);
        for (size_t i = 0; i < plan.op_count; i++)
            all += strlen(plan.ops[i].target) + (plan.ops[i].source != NULL ? strlen(plan.ops[i].source) : 0);
        if (all > size)
            abort();
    }
    free(text), free(ops);
    text = ops = NULL;
    return 0;
}
