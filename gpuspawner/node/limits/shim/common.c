#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
