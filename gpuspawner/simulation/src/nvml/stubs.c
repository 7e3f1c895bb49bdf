/* Every function that no other file defines: tools find it and are told that it is not supported. The
 * definitions are weak; a real one elsewhere in the library takes their place. */
int sim_not_supported(void);
int sim_not_supported(void) { return 3; /* NVML_ERROR_NOT_SUPPORTED */ }

#define ENTRY(name) int name(void) __attribute__((weak, visibility("default"), alias("sim_not_supported")));
#include "entries.inc"
