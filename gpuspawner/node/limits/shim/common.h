/* What both shims share: the limits, the accounts, the way to the real driver. */
#ifndef GPUSPAWNER_COMMON_H
#define GPUSPAWNER_COMMON_H

#include <stdbool.h>
#include <stdint.h>

#include "abi.h"

#define EXPORT __attribute__((visibility("default")))
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define LIKELY(x) __builtin_expect(!!(x), 1)

/* Each shim's own: called in the child after a fork. */
void shim_after_fork(void);

/* Where a file lies. In a namespace that is fixed: whoever could name another file would set limits of their own. Only
 * the host flavour, which holds nobody who does not want to be held, is told by the environment. */
const char *path_of(const char *variable, const char *fixed);

/* Whether the descriptor is of a plain file of this size. */
bool is_file_of(int fd, uint64_t size);

/* One line on stderr, and only the first time for each `flag`. */
__attribute__((format(printf, 2, 3))) void say_once(atomic_flag *flag, const char *format, ...);

/* What is wrong with the header of one of the two files; NULL: nothing. */
const char *wrong_header(const char *magic, const char *expected, uint32_t version);

/* driver.c: the real driver, which is the one library that this one needs by an absolute path. NULL where it has no such
 * symbol. */
void *driver_symbol(const char *name);

/* limitfile.c. A card is named by its position in the limit file. */
enum { NO_CARD = -1 };
struct card_limit {
    uint64_t memory_bytes, context_bytes;
    bool present, frozen; /* frozen: no new memory, none shown as free */
};
struct compute_limit {
    uint32_t part, from; /* thousandths of the card's time; of the period, after which they begin */
    bool burst;          /* the node may take some of it back at any moment */
};
/* All fail closed: without a limit file that can be believed there are no cards and no memory, and one line says why. */
bool limits_ready(void);
int limits_find(const uint8_t uuid[16]);
struct card_limit limits_of(int card);
struct compute_limit limits_compute(int card);
/* What may be had of the card's memory by whoever asks now, in all. */
static inline uint64_t limits_room(int card)
{
    struct card_limit limit = limits_of(card);
    return limit.frozen ? 0 : limit.memory_bytes;
}
void limits_uuid(int card, uint8_t uuid[16]);
uint64_t limits_generation(void);
extern const _Atomic uint64_t *_Atomic limits_word; /* the generation in the file; NULL: not mapped yet */
int limits_count(void); /* positions: cards that are the session's or were */
void limits_after_fork(void);

/* accounts.c: the session's usage, over all its processes. */
bool accounts_ready(void);
/* Grants `bytes` to this process if the session then stays within the card's limit. */
bool accounts_reserve(int card, uint64_t bytes);
/* Counts what the driver has taken already, over the limit or not. */
void accounts_add(int card, uint64_t bytes);
void accounts_release(int card, uint64_t bytes);
/* Bytes that the session uses of the card, as counted; UINT64_MAX if that cannot be known. */
uint64_t accounts_used(int card);
/* What the session has spent of the card's time; NULL: no usage file. */
struct abi_compute *accounts_compute(int card);
/* Gives back what dead processes held. */
void accounts_reclaim(void);
struct account {
    uint32_t pid;
    uint64_t bytes;
};
/* Fills at most `most` rows with the processes that use the card; returns how many there are. */
unsigned accounts_list(int card, struct account *rows, unsigned most);

#endif
