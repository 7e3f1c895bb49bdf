/* driver SECONDS KEPT SEED...: calls LLVMFuzzerTestOneInput with inputs made from the seeds by small random changes, and
 * keeps an input as a further seed where it reached code that none before it did. The random numbers are the same each time.
 * The file KEPT always holds the input of the call that runs, for after a crash. Compiled with clang -fsanitize=fuzzer, the
 * targets need no such driver. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 8192
#define MOST_SEEDS 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void __sanitizer_cov_trace_pc(void);

struct input {
    size_t size;
    uint8_t *data;
};

static struct input seeds[MOST_SEEDS];
static size_t seed_count;
static uint8_t reached[1 << 16];
static uintptr_t before;
static bool fresh;

void __sanitizer_cov_trace_pc(void)
{
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    uint8_t *place = &reached[(here ^ before * 31) * UINT64_C(0x9e3779b97f4a7c15) >> 48];
    before = here;
    fresh |= *place == 0;
    *place = 1;
}

static uint64_t chance(uint64_t below)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return below != 0 ? state % below : 0;
}

static void keep(const uint8_t *data, size_t size)
{
    if (seed_count == MOST_SEEDS)
        return;
    uint8_t *copy = malloc(size + 1);
    if (copy == NULL)
        exit(2);
    memcpy(copy, data, size);
    seeds[seed_count++] = (struct input){size, copy};
}

static size_t mutate(uint8_t *data, size_t size)
{
    static const uint64_t odd[] = {0, 1, 2, 7, 8, 16, 255, 256, 511, 512, 4096, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX};
    for (uint64_t left = 1 + chance(6); left > 0; left--) {
        size_t at = chance(size), room = size - at;
        switch (chance(7)) {
        case 0:
            if (size > 0)
                data[at] ^= (uint8_t)(1 << chance(8));
            break;
        case 1:
            if (size > 0)
                data[at] = (uint8_t)chance(256);
            break;
        case 2: { /* a number that is often a border */
            uint64_t value = odd[chance(sizeof odd / sizeof *odd)] + (uint64_t)chance(3) - 1;
            size_t width = (size_t)1 << chance(4);
            if (room >= width)
                memcpy(data + at, &value, width);
            break;
        }
        case 3: /* a part of another one */
            if (seed_count > 0) {
                const struct input *other = &seeds[chance(seed_count)];
                size_t from = chance(other->size), length = chance(other->size - from + 1);
                length = length < LONGEST - at ? length : LONGEST - at;
                memcpy(data + at, other->data + from, length);
                size = at + length > size ? at + length : size;
            }
            break;
        case 4:
            size = at;
            break;
        case 5:
            if (room > 1) {
                memmove(data + at, data + at + 1, room - 1);
                size--;
            }
            break;
        default:
            if (size < LONGEST) {
                memmove(data + at + 1, data + at, room);
                data[at] = (uint8_t)chance(256);
                size++;
            }
        }
    }
    return size;
}

int main(int count, char **words)
{
    static uint8_t data[LONGEST];
    if (count < 4)
        return 2;
    int fd = open(words[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct {
        uint64_t size;
        uint8_t data[LONGEST];
    } *kept = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof *kept) == 0)
        kept = mmap(NULL, sizeof *kept, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (kept == MAP_FAILED)
        return 2;
    for (int i = 3; i < count; i++) {
        int seed = open(words[i], O_RDONLY | O_CLOEXEC);
        ssize_t size = read(seed, data, sizeof data);
        if (size < 0)
            return 2;
        close(seed);
        keep(data, (size_t)size);
    }
    size_t given = seed_count, calls = 0;
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do {
        const struct input *seed = &seeds[calls < given ? calls : chance(seed_count)];
        size_t size = seed->size;
        memcpy(data, seed->data, size);
        if (calls >= given)
            size = mutate(data, size);
        kept->size = size;
        memcpy(kept->data, data, size);
        fresh = false, before = 0;
        LLVMFuzzerTestOneInput(data, size);
        if (fresh && calls >= given)
            keep(data, size);
        calls++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (calls < given + 200 || now.tv_sec - from.tv_sec < atol(words[1]));
    printf("%zu calls, %zu seeds\n", calls, seed_count);
    return 0;
}
