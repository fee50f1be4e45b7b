/* A SIGSEGV is sent to a thread in the middle of a large copy, and right after it a page of that
 * copy goes bad. The program handles both: it counts what was sent and mends the page.
 *
 * The first page of the source is one that a userfaultfd has to fill, so the copy stands still
 * while its second page is spoiled. A second thread does all of that; it knows that the signal
 * has arrived when the copy asks for the first page once more.
 */
#include "pattern.h"
#include "uffd.h"

enum { LEN = 1 << 20, ROUNDS = 8 };

static struct side dst, src;
static unsigned char sound[PAGE];
static volatile sig_atomic_t sent, faults;
static volatile int sent_value;
static pthread_t copier;

static void protect_second_page(int protection)
{
    MUST(!mprotect((void *)(src.base + PAGE), PAGE, protection));
}

static void on_signal(int signo, siginfo_t *info, void *context)
{
    if (info->si_code == SI_QUEUE) {
        sent++;
        sent_value = info->si_value.sival_int;
        return;
    }
    if (info->si_code <= 0 || (byte *)info->si_addr < src.base + PAGE ||
        (byte *)info->si_addr >= src.base + 2 * PAGE)
        wrong("signal %d, code %d, at %p", signo, info->si_code, info->si_addr);
    faults++;
    protect_second_page(PROT_READ | PROT_WRITE);
}

static void *send_and_spoil(void *unused)
{
    for (int round = 1; round <= ROUNDS; round++) {
        union sigval value = {.sival_int = round};
        if (!page_asked_for(20000))
            wrong("no thread copies");
        errno = pthread_sigqueue(copier, SIGSEGV, value);
        if (errno)
            wrong("pthread_sigqueue: %m");
        page_asked_for(200); /* not again where another thread copies this page */
        protect_second_page(PROT_NONE);
        MUST(!supply_page((uintptr_t)src.base, sound));
    }
    return unused;
}

int main(void)
{
    dst = (struct side){pages_between_guards(LEN), LEN, 0, LEN};
    src = (struct side){pages_between_guards(LEN), LEN, 0, LEN};
    lay_down(&src, SOURCE);
    for (size_t at = 0; at < PAGE; at++)
        sound[at] = src.base[at];
    handle_info(SIGSEGV, on_signal);
    open_userfault(0, 0);
    memcpy((void *)dst.base, (void *)src.base, LEN); /* brings the workers up */
    copier = pthread_self();
    pthread_t other = start_thread(send_and_spoil, NULL);
    for (int round = 1; round <= ROUNDS; round++) {
        struct uffdio_range first = {(uintptr_t)src.base, PAGE};
        lay_down(&dst, DESTINATION);
        lose_pages((void *)src.base, PAGE);
        memcpy((void *)dst.base, (void *)src.base, LEN);
        expect_copied(&dst, &src, "after a signal and a bad page");
        MUST(!ioctl(userfault, UFFDIO_UNREGISTER, &first));
        printf("round %d: %d sent, the last was %d, %d faults\n", round, sent, sent_value, faults);
    }
    pthread_join(other, NULL);
    return 0;
}
