/* A library for other victims: copies when it is loaded, when asked, and when it
 * is unloaded or the program ends, which is after adma's own destructor.
 */
#include "trap.h"

__attribute__((constructor)) static void copy_at_start(void)
{
    copy_once(4 * MIB, 1, "library constructor");
    copy_once(4 * KIB, 2, "library constructor");
    say("library constructor");
}

void copy_when_asked(void)
{
    copy_once(4 * MIB, 3, "library function");
    say("library function");
}

__attribute__((destructor)) static void copy_at_end(void)
{
    copy_once(4 * MIB, 4, "library destructor");
    copy_once(4 * KIB, 5, "library destructor");
    say("library destructor");
}
