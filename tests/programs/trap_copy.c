/* Copies blocks of many sizes and checks them, for runs in unusual surroundings: linked statically,
 * with sanitizers, set-user-id ("secure"), in a debugger. "beyond": copies 8 bytes more than there
 * is room for, which a sanitizer sees.
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
    if (count > 1 && !strcmp(words[1], "beyond")) {
        char *block = malloc(MIB);
        memcpy(block, map(2 * MIB), MIB + 8);
        free(block);
    }
    return 0;
}
