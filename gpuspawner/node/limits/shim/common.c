#include "common.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const char *path_of(const char *variable, const char *fixed)
{
#ifdef HOST_FLAVOUR
    const char *given = secure_getenv(variable);
    return given != NULL && given[0] != '\0' ? given : fixed;
#else
    (void)variable;
    return fixed;
#endif
}

/* By statx, since fstat is a symbol only from glibc 2.33 on. */
bool is_file_of(int fd, uint64_t size)
{
    struct statx status;
    return statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE, &status) == 0 && S_ISREG(status.stx_mode) &&
           status.stx_size == size;
}

void say_once(atomic_flag *flag, const char *format, ...)
{
    if (atomic_flag_test_and_set(flag))
        return;
    char line[512] = "gpuspawner: ";
    size_t start = strlen(line);
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + start, sizeof line - start - 1, format, arguments);
    va_end(arguments);
    if (length < 0)
        return;
    size_t end = start + (size_t)length;
    if (end > sizeof line - 2)
        end = sizeof line - 2;
    line[end++] = '\n';
    if (write(STDERR_FILENO, line, end) < 0)
        return; /* a program without stderr is none of our business */
}

const char *wrong_header(const char *magic, const char *expected, uint32_t version)
{
    static _Thread_local char line[64];
    if (memcmp(magic, expected, 8) != 0)
        return "not such a file";
    if (version == ABI_VERSION)
        return NULL;
    snprintf(line, sizeof line, "of version %u, and this library is for %u", version, ABI_VERSION);
    return line;
}
