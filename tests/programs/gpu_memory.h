/* For gpu.c: memory that goes, changes, or is not used any more, while the card may reach it. */
#ifndef GPU_MEMORY_H
#define GPU_MEMORY_H
#include "gpu_copies.h"
#include <dirent.h>
#include <malloc.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/syscall.h>

/* Memory goes and comes back at the same address: as source, and as destination. */
static void stale(const char *how)
{
	enum { ROUNDS = 4 };
	int came_back = 0;
	byte *other = map_at(NULL, LEN);
	bool (*pins)(void);

	mallopt(M_MMAP_THRESHOLD, LEN / 8); /* every block is a mapping, and none is kept */
	for (int round = 0; round < ROUNDS; round++) {
		for (int as_source = 0; as_source < 2; as_source++) {
			bool by_malloc = !strcmp(how, "free") || !strcmp(how, "realloc");
			bool by_break = !strcmp(how, "brk");
			byte *it = by_malloc ? malloc(LEN + 4096) : by_break ? sbrk(LEN) : map_at(NULL, LEN);
			byte *again = it;

			warm_up(as_source ? other : it, as_source ? it : other, LEN);
			pins = dlsym(driver(), "fake_cuda_pins");
			if (!pins || !pins())
				cannot_be_shown("no io_uring: memory cannot be pinned here");
			if (!strcmp(how, "munmap")) {
				munmap((void *)it, LEN);
				map_at((void *)it, LEN);
			} else if (!strcmp(how, "page")) { /* one in the middle */
				munmap((void *)(it + LEN / 2), 4096);
				map_at((void *)(it + LEN / 2), 4096);
			} else if (!strcmp(how, "raw")) {
				syscall(SYS_munmap, it, LEN);
				map_at((void *)it, LEN);
			} else if (!strcmp(how, "fixed")) {
				mmap((void *)it, LEN, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			} else if (!strcmp(how, "dontneed")) {
				madvise((void *)it, LEN, MADV_DONTNEED);
			} else if (!strcmp(how, "raw_dontneed")) {
				syscall(SYS_madvise, it + 4096, 4096, MADV_DONTNEED);
			} else if (!strcmp(how, "madv_free")) {
				madvise((void *)it, LEN, MADV_FREE);
			} else if (!strcmp(how, "mremap")) { /* away, and another to its place */
				void *away = (void *)map_at(NULL, LEN);
				byte *new = map_at(NULL, LEN);

				mremap((void *)it, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, away);
				mremap((void *)new, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, it);
			} else if (!strcmp(how, "brk")) {
				if (brk((void *)it) || sbrk(LEN) != (void *)it)
					cannot_be_shown("the break was moved by somebody else");
			} else if (!strcmp(how, "free")) {
				free((void *)it);
				again = malloc(LEN + 4096);
			} else if (!strcmp(how, "realloc")) {
				again = realloc((void *)it, LEN / 4);
				again = realloc((void *)again, LEN + 4096);
			} else {
				fail("no such way: %s", how);
			}
			came_back += again == it;
			for (int i = 0; i < 3; i++)
				copy(as_source ? other : again, as_source ? again : other, LEN, how);
			if (by_malloc)
				free((void *)again);
			else if (!by_break)
				munmap((void *)again, LEN);
		}
	}
	if (!came_back)
		cannot_be_shown("no memory came back at the same address");
	printf("%lu\n", carried());
}

static sigjmp_buf back;

static void on_fault(int signal)
{
	siglongjmp(back, signal);
}

/* Memory that may not be written any more faults, as without the card. */
static void protect(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	volatile int faults = 0;

	(void)how;
	signal(SIGSEGV, on_fault);
	for (volatile int round = 0; round < 3; round++) {
		warm_up(dst, src, LEN);
		mprotect((void *)(dst + LEN / 2), 4096, PROT_READ);
		if (sigsetjmp(back, 1) == 0)
			memcpy((void *)dst, (void *)src, LEN);
		else
			faults++;
		if (faults != round + 1)
			fail("a copy into memory that is read-only does not fault");
		mprotect((void *)(dst + LEN / 2), 4096, PROT_READ | PROT_WRITE);
		mprotect((void *)src, 4096, PROT_NONE);
		if (sigsetjmp(back, 1) == 0)
			memcpy((void *)dst, (void *)src, LEN);
		else
			faults++;
		mprotect((void *)src, 4096, PROT_READ | PROT_WRITE);
		if (faults != round + 2)
			fail("a copy out of memory that is not to be read does not fault");
		faults--;
		copy(dst, src, LEN, "after the faults");
	}
}

/* The descriptor that tells of changes is closed: nothing may be believed any more. */
static void closed(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	int found = 0;
	DIR *folder = opendir("/proc/self/fd");

	(void)how;
	warm_up(dst, src, LEN);
	for (struct dirent *entry; (entry = readdir(folder));) {
		char target[64] = "";

		if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) > 0 &&
		    strstr(target, "userfaultfd"))
			found += !close(atoi(entry->d_name));
	}
	if (found != 1)
		fail("%d descriptors of that kind", found);
	munmap((void *)src, LEN);
	src = map_at((void *)src, LEN);
	unsigned long before = carried();
	for (int i = 0; i < 5; i++)
		copy(dst, src, LEN, "without the descriptor");
	if (carried() != before)
		fail("the card goes on without knowing what changes");
}

/* No more than so much stays registered (ADMA_KEEP), and what is used least goes first. */
static void keep(const char *how)
{
	enum { PAIRS = 3 };
	unsigned long most = atol(how) + 4096; /* with the card's words */
	byte *dst[PAIRS], *src[PAIRS];

	for (int i = 0; i < PAIRS; i++) {
		dst[i] = map_at(NULL, LEN);
		src[i] = map_at(NULL, LEN);
	}
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < PAIRS; i++) {
			warm_up(dst[i], src[i], LEN);
			if (ask("fake_cuda_registered") > most)
				fail("%lu bytes are registered", ask("fake_cuda_registered"));
		}
}

/* Unused registrations are let go. */
static void idle(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	(void)how;
	warm_up(dst, src, LEN);
	if (ask("fake_cuda_registered") < 2 * LEN)
		fail("only %lu bytes are registered", ask("fake_cuda_registered"));
	for (time_t end = time(NULL) + 200; ask("fake_cuda_registered") > 4096; usleep(10000))
		if (time(NULL) > end)
			fail("%lu bytes are registered still", ask("fake_cuda_registered"));
	warm_up(dst, src, LEN);
}

#endif
