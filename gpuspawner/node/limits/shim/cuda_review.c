/* Says so, once, where a program asks for an entry point that could take card memory and that nobody has looked at: one
 * that a driver newer than this library has. It is let through, since most such are harmless; the node sees what it takes. */
#include "cuda.h"

#include <stdlib.h>
#include <string.h>

static const char *const words[] = {
#define WORD(word) #word,
#define REASON(name, text)
#define PASSED(name, reason)
#include "passed.h"
#undef WORD
#undef REASON
#undef PASSED
};

/* A reason that is not one of those given does not compile. */
enum reason {
#define WORD(word)
#define REASON(name, text) REASON_##name,
#define PASSED(name, reason)
#include "passed.h"
#undef REASON
#undef PASSED
};

static const struct {
    const char *name;
    enum reason reason;
} passed[] = {
#define REASON(name, text)
#define PASSED(name, reason) {#name, REASON_##reason},
#include "passed.h"
};

static int compare(const void *name, const void *row) { return strcmp(name, *(const char *const *)row); }

void review(const char *name)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strstr(name, words[i]) == NULL)
            continue;
        if (bsearch(name, passed, sizeof passed / sizeof *passed, sizeof *passed, compare) == NULL)
            say_once(&said, "%.100s is newer than this library: memory that it takes is not counted here", name);
        return;
    }
}
