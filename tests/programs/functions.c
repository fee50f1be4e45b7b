/*
 * functions NAME COUNT SIZE: calls one copy function COUNT times with SIZE bytes.
 *
 * Shows that the function copies what it should and returns what it should; the test reads
 * from the statistics, or from callgrind, which way the calls went.
 */
#include "pattern.h"

int main(int argc, char **argv)
{
    if (argc != 4)
        fail("usage: functions NAME COUNT SIZE");
    const struct operation *operation = operation_named(argv[1]);
    long count = atol(argv[2]);
    size_t len = strtoul(argv[3], NULL, 0), margin = 64, size = len + 2 * margin;
    struct side dst = { pages_between_guards(size), size, margin, len };
    struct side src = { pages_between_guards(size), size, margin, len };
    lay_down(&dst, DESTINATION);
    lay_down(&src, SOURCE);
    for (long i = 0; i < count; i++)
        operation->call((void *)(dst.base + margin), (void *)(src.base + margin), len);
    expect_copied(&dst, &src, operation->name);
    return 0;
}
