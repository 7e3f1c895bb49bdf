/* The table of entries. The symbols are only looked up, so their types do not matter here. */
#include "entries.h"

#define ENTRY(name, version, per_thread, symbol) extern int symbol(void);
#include "entries.inc"
#undef ENTRY

const struct entry sim_entries[] = {
#define ENTRY(name, version, per_thread, symbol) {#name, version, per_thread, symbol},
#include "entries.inc"
#undef ENTRY
};
const size_t sim_entry_count = sizeof sim_entries / sizeof *sim_entries;
