/* A library of somebody else's that was preloaded before ours came. */
#include <stdlib.h>

__attribute__((constructor)) static void notice(void)
{
    setenv("NEIGHBOUR", "is here", 1);
}
