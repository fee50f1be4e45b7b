/* A fortified read of more than the buffer holds: reads_chk read|pread|fread */
#include "trap.h"

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);

int main(int count, char **arguments)
{
    char *to = map(MIB);
    int fd = open("/dev/zero", O_RDONLY);
    if (count < 2 || fd < 0)
        wrong("usage: reads_chk WHAT");
    switch (arguments[1][0]) {
    case 'r': __read_chk(fd, to, MIB, MIB - 1); break;
    case 'p': __pread_chk(fd, to, MIB, 0, MIB - 1); break;
    default: __fread_chk(to, MIB - 1, KIB, KIB, fdopen(fd, "r"));
    }
    wrong("has read more than there is room for");
}
