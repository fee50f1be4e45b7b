/* errno survives a copy of every kind and size, also one that faults in the middle and goes on
 * after the program's SIGSEGV handler.
 */
#include "trap.h"

static char *closed_page;
static volatile sig_atomic_t faults;

static void open_page(int number)
{
    (void)number;
    int saved = errno;
    mprotect(closed_page, 4096, PROT_READ | PROT_WRITE);
    errno = saved;
    faults++;
}

static void expect(const char *what)
{
    if (errno != 4711)
        wrong("%s changed errno to %d", what, errno);
}

int main(void)
{
    struct blocks b = map_blocks(32 * MIB);
    size_t sizes[] = {8, 4 * KIB, 64 * KIB, 1 * MIB, 30 * MIB};
    errno = 4711;
    for (int i = 0; i < 100; i++) {
        size_t size = sizes[i % 5];
        memcpy(b.to, b.from, size);
        expect("memcpy");
        memmove(b.to, b.from, size);
        expect("memmove");
        mempcpy(b.to, b.from, size);
        expect("mempcpy");
        memmove(b.to, (char *)b.to + 8, size);
        expect("memmove downwards in one block");
        memmove((char *)b.to + 8, b.to, size);
        expect("memmove upwards in one block");
    }
    handle(SIGSEGV, open_page, 0);
    for (int round = 0; round < 20; round++) {
        closed_page = (char *)(round % 2 ? b.to : b.from) + (round * 300 + 5) * 4 * KIB;
        fill(b.from, b.size, round);
        mprotect(closed_page, 4096, PROT_NONE);
        errno = 4711;
        memcpy(b.to, b.from, b.size);
        expect("memcpy with a fault");
        check(b.to, b.size, round, "memcpy with a fault");
        if (faults != round + 1)
            wrong("%d faults were handled in copy %d", (int)faults, round + 1);
    }
    return 0;
}
