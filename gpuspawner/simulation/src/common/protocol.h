/* What the device daemon and its two client libraries say to each other.
 *
 * One SOCK_SEQPACKET unix socket per process and library carries requests and replies, each one message
 * of a fixed size (a control request is a header followed by a line of text). Everything that is only
 * read is not asked for: the daemon publishes it in one page of shared memory whose file descriptor
 * comes with the reply to the greeting. Clients can map that page for reading only. */
#ifndef GPUSPAWNER_SIM_PROTOCOL_H
#define GPUSPAWNER_SIM_PROTOCOL_H

#include <stdint.h>

#define SIM_MAGIC 0x4d495347u /* "GSIM" */
#define SIM_VERSION 2u
#define SIM_DEFAULT_SOCKET "/run/gpuspawner/simulation.sock"

#define SIM_MAX_CARDS 16
/* MIG slices stand behind the cards, in places of their own, and are used as cards are. */
#define SIM_MAX_SLICES 48
#define SIM_MAX_PLACES (SIM_MAX_CARDS + SIM_MAX_SLICES)
#define SIM_NO_LIMIT UINT64_MAX
#define SIM_MAX_PROCESSES 2048
#define SIM_MAX_LINKS 18
#define SIM_XID_RING 256
#define SIM_CONTROL_MAX 4096
#define SIM_CONTROL_SUFFIX ".control" /* of the socket that takes commands; the other one takes none */
#define SIM_REPLY_TEXT_MAX 65536

/* What one context takes on a card, as a real driver takes some memory for its own. */
#define SIM_CONTEXT_BYTES (64ull << 20)
/* Plain, pitched, managed and array allocations are accounted in whole multiples of this. */
#define SIM_ALLOC_GRANULE 512ull
/* Pools and the virtual memory functions take memory from the card in multiples of this. */
#define SIM_LARGE_GRANULE (2ull << 20)

enum sim_op {
    SIM_HELLO = 1,        /* value: SIM_VERSION; reply carries the page's descriptor */
    SIM_CONTEXT_OPEN = 2, /* card; takes SIM_CONTEXT_BYTES */
    SIM_CONTEXT_CLOSE = 3,
    SIM_ALLOC = 4, /* card, bytes */
    SIM_FREE = 5,  /* card, bytes */
    SIM_CHANNEL = 6, /* card; reply carries the descriptor of a struct sim_channel (timed mode only) */
    SIM_DOORBELL = 7, /* card; no reply */
    SIM_CONTROL = 8,  /* followed by text; reply: header followed by text */
    SIM_SET_LIMITS = 9,  /* card, bytes: soft, value: hard; followed by a cgroup's path */
    SIM_GET_LIMITS = 10, /* card; followed by a cgroup's path; reply followed by a struct sim_limits */
    SIM_OWN_LIMITS = 11, /* card; the same for the caller's own cgroup */
    SIM_MIG_MODE = 12,   /* card, bytes: 0 or 1 */
    SIM_MIG_CREATE = 13, /* card, bytes: profile id, start in the upper half or SIM_ANY_START; value: the slice's place */
    SIM_MIG_DESTROY = 14, /* card: the slice's place */
    SIM_MIG_COMPUTE = 15, /* card: the slice's place, bytes: 0 or 1, whether it is to have its compute instance */
};

enum sim_status {
    SIM_OK = 0,
    SIM_NO_MEMORY = 1,
    SIM_INVALID = 2,
    SIM_CARD_LOST = 3,
    SIM_DENIED = 4,
    SIM_FULL = 5,
    SIM_NOT_TIMED = 6,
    SIM_NOT_SUPPORTED = 8,
    SIM_NOT_FOUND = 9,
    SIM_IN_USE = 10,
    SIM_NO_ROOM = 11,
    SIM_GONE = 7, /* made up by the client: no daemon answers */
};

struct sim_request {
    uint32_t magic, op, card, reserved;
    uint64_t bytes, value;
};

struct sim_reply {
    uint32_t magic;
    int32_t status;
    uint64_t value;
};

#define SIM_ANY_START 0xffffu

struct sim_limits {
    uint64_t soft, hard, used; /* hard: SIM_NO_LIMIT where none is set */
};

/* Metrics that a card may lack, as bits of sim_card.unsupported. Names: see metric_names in control.c. */
enum sim_metric {
    SIM_METRIC_UTILIZATION,
    SIM_METRIC_POWER,
    SIM_METRIC_ENERGY,
    SIM_METRIC_TEMPERATURE,
    SIM_METRIC_CLOCKS,
    SIM_METRIC_FAN,
    SIM_METRIC_ECC,
    SIM_METRIC_PCIE,
    SIM_METRIC_NVLINK,
    SIM_METRIC_PROCESSES,
    SIM_METRIC_MEMORY,
    SIM_METRIC_XID,
    SIM_METRIC_LIMITS,
    SIM_METRIC_COUNT
};

/* Facts of a card model; figures and their sources stand in models.c. */
struct sim_model {
    char slug[32];
    char name[80];
    uint64_t memory_bytes;
    uint32_t cc_major, cc_minor;
    uint32_t sm_count, cores_per_sm;
    uint32_t sm_clock_mhz, sm_clock_idle_mhz, memory_clock_mhz;
    uint32_t bus_width_bits;
    uint64_t l2_bytes;
    uint32_t power_limit_mw, power_min_mw, power_idle_mw;
    uint32_t pcie_gen, pcie_width;
    uint32_t nvlinks, nvlink_version, nvlink_mbps;
    uint32_t pci_device_id;
    uint32_t shared_per_sm, shared_per_block_optin;
    uint32_t nvml_architecture, nvml_brand;
    uint32_t temperature_slowdown, temperature_shutdown, temperature_memory_max;
    uint32_t fp64_ratio;
};

struct sim_card {
    struct sim_model model;
    char uuid[48];
    char serial[24];
    uint32_t pci_domain, pci_bus, pci_slot;
    uint32_t mig_mode;
    /* Of a slice: whether it is there, its card, what it was made from. */
    uint32_t slice, parent, profile, gpu_instance, has_compute, start, size;
    /* Changes below are published under sim_page.sequence, but `used` may also be read alone. */
    uint64_t used;
    uint32_t lost;
    uint32_t contexts;
    uint64_t unsupported;
    uint32_t utilization, memory_utilization; /* percent */
    uint32_t power_mw, power_limit_mw;
    uint64_t energy_nj, energy_at_ns; /* energy counted up to that moment; power_mw runs on since */
    int32_t temperature, memory_temperature;
    uint32_t sm_clock_mhz, memory_clock_mhz;
    uint32_t fan_percent;
    uint64_t throttle_reasons;
    uint64_t ecc_corrected, ecc_uncorrected;                     /* since the driver was loaded */
    uint64_t ecc_corrected_lifetime, ecc_uncorrected_lifetime;   /* aggregate */
    uint32_t remapped_corrected, remapped_uncorrected, remap_pending, remap_failed;
    uint32_t retired_pages, retired_pending;
    uint32_t pcie_gen, pcie_width, pcie_tx_kbps, pcie_rx_kbps;
    uint64_t pcie_replays;
    uint32_t link_up[SIM_MAX_LINKS];
    uint64_t link_tx_kib[SIM_MAX_LINKS], link_rx_kib[SIM_MAX_LINKS];
    uint64_t link_replays[SIM_MAX_LINKS], link_recoveries[SIM_MAX_LINKS], link_crc[SIM_MAX_LINKS];
};

struct sim_process {
    uint32_t pid; /* 0: the slot is free */
    uint32_t uid;
    uint32_t contexts[SIM_MAX_PLACES];
    uint32_t utilization[SIM_MAX_PLACES];
    uint64_t used[SIM_MAX_PLACES];
    uint64_t stamp_us[SIM_MAX_PLACES]; /* wall clock of the utilisation reading */
};

struct sim_xid {
    uint64_t number; /* 1, 2, 3, ... of the event; 0: none here yet */
    uint64_t at_ns;
    uint32_t card, code;
};

struct sim_page {
    uint32_t magic, version, size, card_count;
    uint32_t timed;
    uint32_t alive;    /* 0 once the daemon has left in order */
    uint32_t sequence; /* odd while the daemon writes */
    uint32_t xid_count; /* number of events so far; waiters sleep on it */
    uint64_t started_ns;
    uint64_t kernel_wave_ns;
    uint32_t limited; /* how many limits of cgroups are set */
    struct sim_card cards[SIM_MAX_PLACES];
    struct sim_xid xids[SIM_XID_RING];
    uint32_t process_high; /* slots in use lie below */
    struct sim_process processes[SIM_MAX_PROCESSES];
};

/* Timed mode: the queue of one process on one card. The client writes `head` and the items, the daemon
 * works through them and writes `tail` and the event times. The daemon trusts nothing that it reads. */
#define SIM_RING 4096u
#define SIM_EVENTS 65536u
#define SIM_NO_EVENT 0xffffffffu

struct sim_work {
    uint64_t duration_ns;  /* 0 for an event record */
    uint64_t submitted_ns; /* CLOCK_MONOTONIC */
    uint32_t event;        /* slot that gets the completion time, or SIM_NO_EVENT */
    uint32_t reserved;
};

struct sim_channel {
    uint32_t magic, version;
    uint64_t head;
    uint64_t tail;     /* items completed; its low half is what waiters sleep on */
    uint32_t sleeping; /* the daemon is not looking: ring the doorbell */
    uint32_t waiters;
    struct sim_work ring[SIM_RING];
    uint64_t event_ns[SIM_EVENTS];
};

#endif
