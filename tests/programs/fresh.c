/* Copies into memory that was never touched, and what becomes of its pages: prints what was found.
 *
 *   huge             KiB of huge pages afterwards
 *   asked_for_small  like huge, after MADV_NOHUGEPAGE for other memory
 *   told_small       like huge, after PR_SET_THP_DISABLE
 *   resident         KiB by which the program has grown
 *   mappings OWN     mappings that 600 copies add, in a program with OWN of its own
 */
#include "trap.h"

enum { SIZE = 32 << 20 };

/* A source of small pages, so that what is huge afterwards is a destination. */
static char *source(size_t size)
{
    char *at = map(size);
    for (size_t i = 0; i < size; i += 4096)
        at[i] = (char)(i / 4096 + 1);
    return at;
}

static long field(const char *file, const char *name)
{
    char line[256];
    long value = -1;
    FILE *in = fopen(file, "r");
    while (in && fgets(line, sizeof(line), in))
        if (strncmp(line, name, strlen(name)) == 0)
            value = atol(line + strlen(name));
    if (in)
        fclose(in);
    return value;
}

static long huge_kib(void)
{
    return field("/proc/self/smaps_rollup", "AnonHugePages:");
}

static long count_mappings(void)
{
    long lines = 0;
    FILE *in = fopen("/proc/self/maps", "r");
    for (int c; in && (c = getc(in)) != EOF;)
        lines += c == '\n';
    if (in)
        fclose(in);
    return lines;
}

/* Mappings of the program's own that cannot be merged, then fresh copies, kept mapped and empty. */
static void mappings(void)
{
    long own = atol(scene_argument(0, "0"));
    char *pages = map((size_t)own * 4096 + 4096), *from = source(4 * MIB + 4096);
    for (long i = 0; i < own; i += 2)
        mprotect(pages + i * 4096, 4096, PROT_READ);
    long before = count_mappings();
    for (int i = 0; i < 600; i++) {
        char *to = map(6 * MIB);
        mprotect(to, 4096, PROT_NONE); /* never merged with its neighbour */
        memcpy(to + 4096 + 100, from, 4 * MIB);
        madvise(to + 4096, 6 * MIB - 4096, MADV_DONTNEED);
    }
    printf("%ld\n", count_mappings() - before);
}

/* Returns the growth of the program, in KiB. */
static long copy_into_fresh(void)
{
    char *from = source(SIZE);
    if (huge_kib() != 0)
        cannot("the system makes huge pages without being asked");
    long before = field("/proc/self/status", "VmRSS:");
    char *to = map(SIZE + 4096);
    memcpy(to + 100, from, SIZE);
    if (memcmp(to + 100, from, SIZE) != 0)
        wrong("other bytes");
    return field("/proc/self/status", "VmRSS:") - before;
}

static void huge(void)
{
    copy_into_fresh();
    printf("%ld\n", huge_kib());
}

static void asked_for_small(void)
{
    madvise(map(4 * MIB), 4 * MIB, MADV_NOHUGEPAGE);
    huge();
}

static void told_small(void)
{
    prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    huge();
}

static void resident(void)
{
    printf("%ld\n", copy_into_fresh());
}

SCENES((void)0, {"huge", huge}, {"asked_for_small", asked_for_small}, {"told_small", told_small},
       {"resident", resident}, {"mappings", mappings})
