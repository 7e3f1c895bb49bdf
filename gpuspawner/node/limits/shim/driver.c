#include "common.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <string.h>

static void *driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Our own dynamic section names the driver. Asking for it by that name, and not for "the next" definition, also works in a
 * program that loaded us by way of another library. */
static void open_driver(void)
{
    Dl_info self;
    struct link_map *map = NULL;
    if (dladdr1((void *)(uintptr_t)open_driver, &self, (void **)&map, RTLD_DL_LINKMAP) == 0 || map == NULL)
        return;
    const char *strings = NULL;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++)
        if (entry->d_tag == DT_STRTAB)
            strings = (const char *)entry->d_un.d_ptr;
    if (strings == NULL)
        return;
    if ((uintptr_t)strings < map->l_addr) /* left as an offset where the section cannot be written */
        strings += map->l_addr;
    for (const ElfW(Dyn) *entry = map->l_ld; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_NEEDED && strings[entry->d_un.d_val] == '/') {
            driver = dlopen(strings + entry->d_un.d_val, RTLD_NOW | RTLD_LOCAL);
            return;
        }
    }
}

void *driver_symbol(const char *name)
{
    pthread_once(&once, open_driver);
    return driver != NULL ? dlsym(driver, name) : NULL;
}
