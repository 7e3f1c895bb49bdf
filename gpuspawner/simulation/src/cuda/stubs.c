/* Every entry point that no other file defines: clients find it and are told that it is not supported.
 * The definitions are weak; a real one elsewhere in the library takes their place. */
int sim_not_supported(void);
int sim_not_supported(void) { return 801; /* CUDA_ERROR_NOT_SUPPORTED */ }

#define ENTRY(name, version, per_thread, symbol) \
    int symbol(void) __attribute__((weak, visibility("default"), alias("sim_not_supported")));
#include "entries.inc"
