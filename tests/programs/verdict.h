/* How a program of these ends: with 0 (passed), 1 (failed, reason on stderr) or 77 (cannot be shown here);
 * and a few words that all of them need.
 */
#pragma once
#include "usual.h"

#define KIB ((size_t)1024)
#define MIB ((size_t)1024 * 1024)
#define COUNT(array) (sizeof(array) / sizeof *(array))

#define wrong(...) end_with(1, __VA_ARGS__)
#define cannot(...) end_with(77, __VA_ARGS__)
#define MUST(condition) ((condition) ? (void)0 : wrong("%s: %s", #condition, strerror(errno)))

/* Not by exit: handlers and children call this, too. */
static inline __attribute__((noreturn, format(printf, 2, 3))) void end_with(int status,
                                                                            const char *format, ...)
{
    char line[1000];
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(line, sizeof line - 1, format, rest);
    va_end(rest);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length] = '\n';
    if (write(2, line, length + 1) < 0) {
        /* stderr may be closed: the status tells enough */
    }
    _exit(status);
}

static inline void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) < 0)
        ;
}
