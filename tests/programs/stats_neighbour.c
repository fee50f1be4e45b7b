/* Another library that was preloaded before ours. */
#include <stdlib.h>

__attribute__((constructor)) static void notice(void)
{
    setenv("NEIGHBOUR", "is here", 1);
}
