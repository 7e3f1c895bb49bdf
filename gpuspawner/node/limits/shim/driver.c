#include "common.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>

/* Later versions of glibc moved these from libdl to libc, under a new version and otherwise unchanged. Asked for by the old
 * one, they are found in both, so that a library built on a new machine runs on an old one. */
#if defined __x86_64__
#define SINCE(symbol, version) __asm__(".symver " #symbol "," #symbol "@" version)
SINCE(dlopen, "GLIBC_2.2.5");
SINCE(dlsym, "GLIBC_2.2.5");
SINCE(dladdr1, "GLIBC_2.3.3");
#elif defined __aarch64__
#define SINCE(symbol, version) __asm__(".symver " #symbol "," #symbol "@" version)
SINCE(dlopen, "GLIBC_2.17");
SINCE(dlsym, "GLIBC_2.17");
SINCE(dladdr1, "GLIBC_2.17");
#endif

/* Our own dynamic section names the driver. Asking for it by that name, and not for "the next" definition, also works in a
 * program that loaded us by way of another library. */
static void *open_driver(void)
{
    Dl_info self;
    struct link_map *map = NULL;
    if (dladdr1((void *)(uintptr_t)open_driver, &self, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL)
        return NULL;
    const char *strings = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
    if (strings == NULL)
        return NULL;
    if ((uintptr_t)strings < map->l_addr) /* left as an offset where the section cannot be written */
        strings += map->l_addr;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_NEEDED && strings[entry->d_un.d_val] == '/')
            return dlopen(strings + entry->d_un.d_val, RTLD_NOW | RTLD_LOCAL);
    return NULL;
}

void *driver_symbol(const char *name)
{
    static void *_Atomic driver;
    void *found = atomic_load_explicit(&driver, memory_order_acquire);
    if (UNLIKELY(found == NULL)) { /* of several threads, all open the same */
        found = open_driver();
        atomic_store_explicit(&driver, found, memory_order_release);
    }
    return found != NULL ? dlsym(found, name) : NULL;
}
