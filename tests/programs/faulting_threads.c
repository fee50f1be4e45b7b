/* Several threads copy at once, and every second copy of each meets a forbidden page.
 *
 * Each must get its own faults and no other thread's, and the sound copies in between must be
 * right, also while another thread's copy is being given up.
 */
#include "pattern.h"

enum { THREADS = 4, ROUNDS = 24, LEN = 1 << 20, ROOM = LEN + 2 * PAGE };

static _Thread_local sigjmp_buf before_copy;
static _Thread_local byte *forbidden;

static void on_fault(int signo, siginfo_t *info, void *context)
{
    size_t beyond = (byte *)info->si_addr - forbidden;
    if (!forbidden || beyond >= PAGE)
        wrong("signal %d at %p, which is not this thread's affair", signo, info->si_addr);
    siglongjmp(before_copy, 1);
}

static void *work(void *number)
{
    struct side dst = { pages_between_guards(ROOM), ROOM, 100, LEN };
    struct side src = { pages_between_guards(ROOM), ROOM, 300, LEN };
    lay_down(&src, SOURCE);
    for (volatile unsigned round = 0; round < ROUNDS; round++) {
        struct side *side = round % 2 ? &src : &dst;
        forbidden = side->base + (round * 37 + (uintptr_t)number) % (LEN / PAGE) * PAGE;
        mprotect((void *)forbidden, PAGE, PROT_NONE);
        if (!sigsetjmp(before_copy, 1)) {
            memcpy((void *)(dst.base + 100), (void *)(src.base + 300), LEN);
            wrong("a copy over a forbidden page came back");
        }
        mprotect((void *)forbidden, PAGE, PROT_READ | PROT_WRITE);
        forbidden = NULL;
        lay_down(&dst, DESTINATION);
        expect_untouched(&dst, DESTINATION, "after the jump");
        memcpy((void *)(dst.base + 100), (void *)(src.base + 300), LEN);
        expect_copied(&dst, &src, "a sound copy");
    }
    return NULL;
}

int main(void)
{
    handle_info(SIGSEGV, on_fault);
    in_threads(THREADS, work);
    return 0;
}
