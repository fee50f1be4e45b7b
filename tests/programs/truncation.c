/* Another process truncates and restores a mapped file while this one copies from and to it.
 *
 * The handler of SIGBUS leaves by siglongjmp. The program must neither die nor hang, must be
 * interrupted in the calling thread only, and what it copied must have been in the file.
 */
#include "pattern.h"

enum { LEN = 4 << 20, RUN_MS = 1500, AT_MOST_MS = 20000, ENOUGH_FAULTS = 10 };

static sigjmp_buf before_copy;
static volatile sig_atomic_t faults;
static pid_t caller;

static void on_fault(int signo, siginfo_t *info, void *context)
{
    if (gettid() != caller)
        wrong("signal %d at %p in another thread", signo, info->si_addr);
    faults++;
    siglongjmp(before_copy, 1);
}

/* Runs until the parent kills it; dies with the parent. */
static void truncate_and_restore(int file)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (unsigned round = 0;; round++) {
        if (ftruncate(file, round % 7 * (LEN / 7)))
            _exit(1);
        usleep(round % 4 * 200); /* long enough for a copy on a busy machine to meet it */
        if (ftruncate(file, LEN))
            _exit(1);
        usleep(round % 8 * 700);
    }
}

int main(void)
{
    int file = memfd_create("truncated", MFD_CLOEXEC);
    byte *plain = pages_between_guards(LEN);
    volatile long copies = 0, begun = clock_ms();
    MUST(file >= 0 && !ftruncate(file, LEN));
    byte *mapped = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(mapped != MAP_FAILED);
    caller = gettid();
    handle_info(SIGBUS, on_fault);
    pid_t truncating = fork();
    if (!truncating)
        truncate_and_restore(file);
    while (clock_ms() - begun < (faults < ENOUGH_FAULTS ? AT_MOST_MS : RUN_MS)) {
        for (size_t i = 0; i < LEN; i += 64)
            plain[i] = 'P';
        if (sigsetjmp(before_copy, 1))
            continue;
        memcpy((void *)mapped, (void *)plain, LEN);
        memcpy((void *)plain, (void *)mapped, LEN);
        copies++;
        for (size_t i = 0; i < LEN; i += 64)
            if (plain[i] != 'P' && plain[i] != 0)
                wrong("byte %zu is %#x, which never was in the file", i, plain[i]);
    }
    kill(truncating, SIGKILL);
    waitpid(truncating, NULL, 0);
    fprintf(stderr, "%ld copies, %d faults\n", copies, faults);
    if (!faults)
        cannot("no copy met a truncated file");
    return 0;
}
