/* The shim's accounts on a usage file into which another process of the session writes what it likes, while they run. Each
 * twelve bytes of the input: what is called, for which card, and a word that goes somewhere into the file first. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

void shim_after_fork(void) {}

static uint64_t *words(void)
{
    static uint64_t *map;
    if (map != NULL)
        return map;
    int fd = open(getenv("GPUSPAWNER_USAGE"), O_RDWR | O_CLOEXEC);
    map = mmap(NULL, ABI_USAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        abort();
    return map;
}

static void poke(uint16_t place, uint64_t value)
{
    struct abi_usage_file *file = (struct abi_usage_file *)words();
    int slot = place % 8, card = place / 8 % 4;
    switch (place / 32 % 5) {
    case 0: atomic_store(&file->owners[slot], value); break;
    case 1: atomic_store(&file->used[card][slot], value); break;
    case 2: atomic_store(&file->pending[card][slot], value); break;
    case 3: atomic_store(&file->high, (uint32_t)value); break;
    default: words()[(place * 97u) % (ABI_USAGE_SIZE / 8)] = value;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct account rows[8];
    ((struct abi_usage_file *)words())->high = 8;
    for (int calls = 0; calls < 16 && size >= 12; calls++, data += 12, size -= 12) {
        uint16_t place;
        uint64_t value;
        memcpy(&place, data + 2, sizeof place);
        memcpy(&value, data + 4, sizeof value);
        poke(place, value);
        int card = data[1] % (ABI_CARDS + 1) - 1; /* NO_CARD among them */
        switch (data[0] % 6) {
        case 0: (void)accounts_reserve(card, value); break;
        case 1: accounts_release(card, value); break;
        case 2: accounts_add(card, value); break;
        case 3: (void)accounts_used(card); break;
        case 4: accounts_reclaim(); break;
        default:
            if (accounts_list(card, rows, 8) > ABI_SLOTS)
                abort();
        }
    }
    return 0;
}
