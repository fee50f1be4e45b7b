/* Lays bytes down at a known address, tells its process number, and says at its end whether they are
 * unchanged. ipc_deputy.c has a peer become this program.
 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "ipc_victim.h"

int main(void)
{
    char text[80];
    unsigned char *own = lay_down_secret();
    if (!own)
        return 2;
    snprintf(text, sizeof(text), "ready %d", (int)geteuid());
    if (write(1, text, strlen(text)) <= 0)
        return 2;
    while (read(0, text, sizeof(text)) > 0)
        ;
    return is_untouched(own) ? 0 : TOUCHED;
}
