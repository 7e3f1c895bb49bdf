#ifndef GPUSPAWNER_SIM_ENTRIES_H
#define GPUSPAWNER_SIM_ENTRIES_H

#include <stddef.h>

/* One form of a driver function; see entries.inc. */
struct entry {
    const char *name;
    int version, per_thread;
    int (*symbol)(void);
};
extern const struct entry sim_entries[];
extern const size_t sim_entry_count;

#endif
