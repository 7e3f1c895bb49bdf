/* The limit file (the node writes) and the usage file (the session's processes write). abi.py says the same in Python and
 * explains both; sizes, offsets and meanings change only with ABI_VERSION. */
#ifndef GPUSPAWNER_ABI_H
#define GPUSPAWNER_ABI_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define ABI_VERSION 2u
#define ABI_CARDS 16
#define ABI_SLOTS 1024
#define ABI_LIMIT_MAGIC "GPUSLIMT"
#define ABI_USAGE_MAGIC "GPUSUSAG"
#define ABI_LIMIT_SIZE 4096
#define ABI_USAGE_SIZE 471040

#define ABI_ENTRY_PRESENT 1u
#define ABI_ENTRY_MIG 2u
#define ABI_ENTRY_BURST 4u  /* the node moves `compute` with what others leave idle */
#define ABI_ENTRY_FROZEN 8u /* no new memory, none shown as free; what runs goes on */

#define ABI_WHOLE 1000u /* parts of a card's time, and of a period, are in thousandths */

struct abi_entry { /* a card keeps its position for good: usage is counted by position */
    uint8_t uuid[16];
    uint32_t eighths;
    uint32_t flags;
    uint64_t memory_bytes;
    uint64_t context_bytes; /* what to charge for one context */
    uint32_t compute;      /* thousandths of the card's time that are allowed now */
    uint32_t compute_from; /* thousandths of the period after which they begin */
};

struct abi_limits {
    uint64_t generation;
    uint64_t checksum; /* FNV-1a 64 over the whole copy without this field */
    uint32_t count;
    uint32_t reserved[3];
    struct abi_entry entries[ABI_CARDS];
};

struct abi_limit_file {
    char magic[8];
    uint32_t version, size;
    _Atomic uint64_t generation; /* copies[generation & 1] is in force */
    uint8_t reserved[1024 - 24];
    union {
        struct abi_limits limits;
        uint8_t room[1024];
    } copies[2];
    uint8_t rest[1024];
};

/* Owner of a slot: pid in bits 0 to 21, bit 22 set while that process empties the slot of a dead one, start time (clock
 * ticks since boot) above. */
#define ABI_OWNER_PID_MASK ((UINT64_C(1) << 22) - 1)
#define ABI_OWNER_RECLAIMING (UINT64_C(1) << 22)
#define ABI_OWNER_START_SHIFT 23

/* pending: bytes << 1, and bit 0 set while the process waits for one in a lower slot. */
#define ABI_PENDING_WAITS UINT64_C(1)

struct abi_usage_file {
    char magic[8];
    uint32_t version, size;
    _Atomic uint32_t high; /* slots in use lie below; never falls */
    uint32_t reserved;
    uint8_t gap[40];
    uint8_t uuids[ABI_CARDS][16]; /* for readers that have no limit file */
    uint8_t more[4096 - 64 - ABI_CARDS * 16];
    _Atomic uint64_t owners[ABI_SLOTS];
    _Atomic uint64_t used[ABI_CARDS][ABI_SLOTS]; /* bytes granted */
    _Atomic uint64_t pending[ABI_CARDS][ABI_SLOTS];
    struct abi_compute {
        _Atomic uint64_t paid_until; /* CLOCK_MONOTONIC in ns: up to here the session's part of the card's time is spent */
        _Atomic uint64_t buyer;      /* pid of the process that spent last */
        _Atomic uint64_t many_until; /* same clock: until then several processes are taken to be computing */
        _Atomic uint64_t reserved[5];
    } compute[ABI_CARDS];
    uint8_t rest[ABI_CARDS * ABI_SLOTS * 12 - ABI_CARDS * 64];
};

_Static_assert(sizeof(struct abi_entry) == 48, "limit entry");
_Static_assert(offsetof(struct abi_limit_file, copies) == 1024, "limit copies");
_Static_assert(sizeof(struct abi_limit_file) == ABI_LIMIT_SIZE, "limit file");
_Static_assert(offsetof(struct abi_usage_file, owners) == 4096, "usage owners");
_Static_assert(offsetof(struct abi_usage_file, compute) == 274432, "usage compute");
_Static_assert(sizeof(struct abi_usage_file) == ABI_USAGE_SIZE, "usage file");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "atomic words as wide as plain ones");

#endif
