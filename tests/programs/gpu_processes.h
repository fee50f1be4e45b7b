/* For gpu.c: children, exits, and a program that uses the driver itself. */
#ifndef GPU_PROCESSES_H
#define GPU_PROCESSES_H
#include "gpu_copies.h"
#include "seccomp.h"
#include <dirent.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* A child never calls the driver, whichever way it was made. */
static void children(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	warm_up(dst, src, LEN);
	for (int round = 0; round < 3; round++) {
		fflush(stdout);
		pid_t child = !strcmp(how, "raw")     ? syscall(SYS_fork)
			      : !strcmp(how, "vfork") ? vfork()
						      : fork();
		if (child == 0) {
			if (!strcmp(how, "vfork")) {
				execlp("true", "true", (char *)NULL);
				_exit(1);
			}
			unsigned long calls = ask("fake_cuda_calls");
			for (int i = 0; i < 5; i++)
				copy(dst, src, LEN, "in the child");
			munmap((void *)src, LEN);
			src = map_at((void *)src, LEN);
			copy(dst, src, LEN, "in the child, new memory");
			if (ask("fake_cuda_calls") != calls)
				fail("the child calls the driver");
			if (!strcmp(how, "raw"))
				_exit(0);
			exit(0);
		}
		copy(dst, src, LEN, "beside the child");
		int status;
		if (waitpid(child, &status, 0) != child || status)
			fail("the child ended with %#x", status);
		warm_up(dst, src, LEN); /* the card goes on */
	}
}

static byte *exit_dst, *exit_src;
static _Atomic bool copying;
static pthread_t copier;

/* For ever, or for a limited time. */
static void *copy_on(void *times)
{
	for (uintptr_t i = 0; i < (uintptr_t)times; i++) {
		memcpy((void *)exit_dst, (void *)exit_src, LEN);
		copying = true;
	}
	return NULL;
}

static void copy_at_exit(void)
{
	for (int i = 0; i < 3; i++)
		copy(exit_dst, exit_src, LEN, "at exit");
}

static void join_at_exit(void)
{
	pthread_join(copier, NULL);
}

__attribute__((destructor))
static void copy_at_end(void)
{
	if (exit_dst && getenv("AT_END"))
		copy_at_exit();
}

static void leave(const char *how)
{
	exit_dst = map_at(NULL, LEN);
	exit_src = map_at(NULL, LEN);
	if (!strcmp(how, "early")) /* before the driver is up */ {
		copy(exit_dst, exit_src, LEN, "once");
		exit(0);
	}
	if (!strcmp(how, "handler_before"))
		atexit(copy_at_exit);
	if (!strcmp(how, "joined"))
		atexit(join_at_exit);
	warm_up(exit_dst, exit_src, LEN);
	if (!strcmp(how, "handler_after"))
		atexit(copy_at_exit);
	if (!strcmp(how, "threads") || !strcmp(how, "joined") || !strcmp(how, "at_once")) {
		pthread_create(&copier, NULL, copy_on, (void *)(strcmp(how, "joined") ? UINTPTR_MAX : 300));
		while (!copying)
			usleep(100);
	}
	if (!strcmp(how, "at_once"))
		_exit(0);
	if (!strcmp(how, "quick"))
		quick_exit(0);
	exit(0);
}

static int threads(void)
{
	DIR *tasks = opendir("/proc/self/task");
	int count = -2; /* this folder and the one above */

	while (tasks && readdir(tasks))
		count++;
	closedir(tasks);
	return count;
}

/* A filter for all threads, which comes before the first large copy, kills for userfaultfd. */
static void filtered(const char *how)
{
	const int calls[] = { SYS_userfaultfd, -1 };
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	(void)how;
	if (answer_calls(calls, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC)) {
		fprintf(stderr, "no seccomp filter here\n");
		exit(77);
	}
	copy(dst, src, LEN, "under the filter");
	for (int ms = 0; threads() > 1; ms += 10) { /* the one that would call the driver ends */
		if (ms > 100000)
			fail("%d threads", threads());
		usleep(10000);
	}
	copy(dst, src, LEN, "without the card");
}

/* The program uses the driver itself. */
static void own(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *current;
	int device;

	(void)how;
	int (*init)(unsigned) = dlsym(library, "cuInit");
	int (*get)(int *, int) = dlsym(library, "cuDeviceGet");
	int (*retain)(void **, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
	int (*release)(int) = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
	int (*push)(void *) = dlsym(library, "cuCtxPushCurrent_v2");
	int (*pop)(void **) = dlsym(library, "cuCtxPopCurrent_v2");
	int (*get_current)(void **) = dlsym(library, "cuCtxGetCurrent");
	/* As a program that is linked with the driver finds them. */
	int (*reg)(void *, size_t, unsigned) = dlsym(RTLD_DEFAULT, "cuMemHostRegister_v2");
	int (*unreg)(void *) = dlsym(RTLD_DEFAULT, "cuMemHostUnregister");

	if (init(0) || get(&device, 0))
		fail("no driver");
	warm_up(dst, src, LEN);
	if (get_current(&current) || current)
		fail("a context is current in a thread of the program's");
	if (retain(&context, device) || push(context))
		fail("no context");
	for (int round = 0; round < 3; round++) {
		int code = reg((void *)(dst + 4096), LEN / 2, 0);
		if (code)
			fail("memory that the library had registered cannot be: error %d", code);
		copy(dst, src, LEN, "registered by the program");
		copy(dst, src, LEN, "registered by the program");
		if ((code = unreg((void *)(dst + 4096))))
			fail("memory that the program had registered is not: error %d", code);
		if (unreg((void *)(dst + 4096)) != 713)
			fail("memory can be unregistered twice");
		for (int i = 0; i < 10; i++)
			copy(dst, src, LEN, "afterwards");
	}
	if (get_current(&current) || current != context)
		fail("the program's context is not current any more");
	pop(&current);
	release(device);
	copy(dst, src, LEN, "without a context");
}

#endif
