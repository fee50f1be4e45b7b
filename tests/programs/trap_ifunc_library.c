/* A library whose IFUNC resolver copies while the library is being relocated:
 * before a preloaded library, which ld.so relocates later, has been.
 */
#include "trap.h"

static char from[256 * KIB] = "pattern", to[256 * KIB];

static int chosen_body(void)
{
    return 7;
}

static int (*choose(void))(void)
{
    memcpy(to, from, sizeof to);
    memcpy(to + 100, from, 8);
    return chosen_body;
}

static int chosen(void) __attribute__((ifunc("choose")));

int (*volatile chosen_pointer)(void) = chosen;

void copy_when_asked(void)
{
    if (chosen_pointer() != 7 || to[0] != 'p' || to[6] != 'n' || to[106] != 'n')
        wrong("the IFUNC resolver copied wrong");
    copy_once(4 * MIB, 1, "library function");
}
