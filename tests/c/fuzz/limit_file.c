/* The shim's reader of the limit file, which changes under it all the while. Half the inputs get right checksums, since
 * nearly all would be refused for that alone. The first byte decides; what follows it goes over a good file. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TRIES 2
#include "limitfile.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void shim_after_fork(void) {}

static uint8_t *writable(void)
{
    static uint8_t *map;
    if (map != NULL)
        return map;
    int fd = open(getenv("GPUSPAWNER_LIMITS"), O_RDWR | O_CLOEXEC);
    map = mmap(NULL, ABI_LIMIT_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        abort();
    return map;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    uint8_t *map = writable();
    struct abi_limit_file *file_ = (struct abi_limit_file *)map;
    memcpy(map, data + 1, size - 1 < ABI_LIMIT_SIZE ? size - 1 : ABI_LIMIT_SIZE);
    if (data[0] & 1) {
        struct abi_limits *copy = &file_->copies[file_->generation & 1].limits;
        copy->generation = file_->generation;
        copy->checksum = checksum(copy);
    }
    bool ready = limits_ready();
    uint8_t uuid[16] = {0};
    for (int card = 0; card < ABI_CARDS; card++) {
        struct card_limit limit = limits_of(card);
        limits_uuid(card, uuid);
        int found = limits_find(uuid);
        if ((!ready && (limit.present || limit.memory_bytes != 0)) || found >= ABI_CARDS || (!ready && found != NO_CARD))
            abort();
    }
    if (data[0] & 2) { /* as a new process sees it */
        munmap(atomic_exchange(&file, NULL), ABI_LIMIT_SIZE);
        atomic_store(&seen, 0);
        atomic_store(&positions, 0);
    }
    return 0;
}
