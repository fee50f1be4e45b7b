/*
 * A SIGSEGV is sent to a thread in the middle of a large copy, and right after it a page of the
 * same copy goes bad. The program handles both: it counts what was sent and mends the page.
 *
 * The first page of the source is one that a userfaultfd has to fill, so the copy stands still
 * while its second page is spoiled. A second thread does all of that; it knows that the signal
 * has arrived when the copy asks for the first page once more.
 */
#include "pattern.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

enum { LEN = 1 << 20, ROUNDS = 8 };

static struct side dst, src;
static unsigned char sound[PAGE];
static volatile sig_atomic_t sent, faults;
static volatile int sent_value;
static int userfault;
static pthread_t copier;

static void must(int right, const char *what)
{
	if (!right)
		fail("%s: %m", what);
}

static byte *second_page(void)
{
	return src.base + PAGE;
}

static void on_signal(int signo, siginfo_t *info, void *context)
{
	(void)context;
	if (info->si_code == SI_QUEUE) {
		sent++;
		sent_value = info->si_value.sival_int;
		return;
	}
	if (info->si_code <= 0 || (byte *)info->si_addr < second_page() ||
	    (byte *)info->si_addr >= second_page() + PAGE)
		fail("signal %d, code %d, at %p", signo, info->si_code, info->si_addr);
	faults++;
	must(!mprotect((void *)second_page(), PAGE, PROT_READ | PROT_WRITE), "mprotect");
}

/* Whether a thread asks for the missing page within that many milliseconds. */
static int is_asked_for(int ms)
{
	struct pollfd poll_for = { .fd = userfault, .events = POLLIN };
	struct uffd_msg message;

	return poll(&poll_for, 1, ms) == 1 &&
	       read(userfault, &message, sizeof(message)) == sizeof(message);
}

static void *send_and_spoil(void *unused)
{
	for (int round = 1; round <= ROUNDS; round++) {
		struct uffdio_copy copy = { .dst = (uintptr_t)src.base, .src = (uintptr_t)sound,
					    .len = PAGE };
		union sigval value = { .sival_int = round };

		if (!is_asked_for(20000))
			fail("nobody copies");
		errno = pthread_sigqueue(copier, SIGSEGV, value);
		must(!errno, "pthread_sigqueue");
		is_asked_for(200); /* not again where another thread copies this page */
		must(!mprotect((void *)second_page(), PAGE, PROT_NONE), "mprotect");
		must(!ioctl(userfault, UFFDIO_COPY, &copy), "UFFDIO_COPY");
	}
	return unused;
}

int main(void)
{
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
	struct uffdio_api api = { .api = UFFD_API };
	pthread_t other;

	dst = (struct side){ pages_between_guards(LEN), LEN, 0, LEN };
	src = (struct side){ pages_between_guards(LEN), LEN, 0, LEN };
	lay_down(&src, SOURCE);
	for (size_t at = 0; at < PAGE; at++)
		sound[at] = src.base[at];
	must(!sigaction(SIGSEGV, &action, NULL), "sigaction");
	userfault = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api))
		cannot_be_shown("userfaultfd is forbidden here");
	memcpy((void *)dst.base, (void *)src.base, LEN); /* brings the workers up */
	copier = pthread_self();
	must(!pthread_create(&other, NULL, send_and_spoil, NULL), "pthread_create");
	for (int round = 1; round <= ROUNDS; round++) {
		struct uffdio_register range = { .range = { (uintptr_t)src.base, PAGE },
						 .mode = UFFDIO_REGISTER_MODE_MISSING };

		lay_down(&dst, DESTINATION);
		must(!madvise((void *)src.base, PAGE, MADV_DONTNEED), "madvise");
		must(!ioctl(userfault, UFFDIO_REGISTER, &range), "UFFDIO_REGISTER");
		memcpy((void *)dst.base, (void *)src.base, LEN);
		expect_copied(&dst, &src, "after a signal and a bad page");
		must(!ioctl(userfault, UFFDIO_UNREGISTER, &range.range), "UFFDIO_UNREGISTER");
		printf("round %d: %d sent, the last was %d, %d faults\n", round, sent, sent_value,
		       faults);
	}
	pthread_join(other, NULL);
	return 0;
}
