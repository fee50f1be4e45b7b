/* Copies blocks of many sizes, checks them, and nothing else; for runs in unusual
 * surroundings: linked statically, with sanitizers, set-user-id, in a debugger.
 */
#include "trap.h"
#include <sys/auxv.h>

int main(int count, char **words)
{
    if (count > 1 && !strcmp(words[1], "secure") && !getauxval(AT_SECURE))
        cannot("the program is not set-user-id here");
    for (size_t size = 8; size <= 32 * MIB; size *= 4)
        for (int i = 0; i < 3; i++)
            copy_once(size + 8 * i, i, "copy");
    return 0;
}
