/* Writes binary data to stdout in every usual way, with large copies between. */
#include "trap.h"

int main(void)
{
    struct blocks b = map_blocks(8 * MIB);
    for (int i = 0; i < 3; i++) {
        copy_checked(b, i, "copy");
        printf("round %d\n", i);
        fwrite(b.to, 1, 256 * KIB, stdout);
        fflush(stdout);
        if (write(1, b.to, 100) != 100)
            wrong("short write");
    }
    printf("no newline at the end");
    return 0;
}
