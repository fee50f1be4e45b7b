/* A library that copies when it is loaded, when asked, and when it is unloaded or the program ends,
 * which is after adma's own destructor.
 *
 *   WITH_IFUNC  it copies in an IFUNC resolver instead, while it is being relocated: before a preloaded
 *               library, which ld.so relocates later, has been
 *   EMPTY       shows what any preloaded library costs
 *   NEIGHBOUR   is noticed in the environment
 */
#include "trap.h"
#if defined(EMPTY)

int empty;

#elif defined(NEIGHBOUR)

__attribute__((constructor)) static void notice(void)
{
    setenv("NEIGHBOUR", "is here", 1);
}

#elif defined(WITH_IFUNC)

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

#else

static void copy_and_say(const char *where)
{
    copy_once(4 * MIB, 1, where);
    copy_once(4 * KIB, 2, where);
    say(where);
}

__attribute__((constructor)) static void copy_at_start(void)
{
    copy_and_say("library constructor");
}

void copy_when_asked(void)
{
    copy_and_say("library function");
}

__attribute__((destructor)) static void copy_at_end(void)
{
    copy_and_say("library destructor");
}

#endif
