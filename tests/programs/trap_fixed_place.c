/* A program that is not position independent and takes the address of a function of the C library in its
 * code: for every library that function lies in the program then. Calls that are passed on go on.
 *
 *   FILE   is read
 */
#include "trap.h"

static int *(*volatile place)(void);

static void *return_at_once(void *argument)
{
    return argument;
}

int main(int count, char **words)
{
    char first[4] = "";
    place = __errno_location;
    if (place() != &errno)
        wrong("errno is somewhere else");
    FILE *file = count > 1 ? fopen(words[1], "r") : NULL;
    if (!file || fread(first, 1, 4, file) != 4 || memcmp(first, "\177ELF", 4))
        wrong("fread read something else");
    fclose(file);
    pthread_join(start_thread(return_at_once, NULL), NULL);
    if (setuid(getuid()))
        wrong("setuid: %s", strerror(errno));
    copy_once(8 * MIB, 1, "copy");
    return 0;
}
