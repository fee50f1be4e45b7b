/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * adma.h: copies that go on while the program does something else.
 *
 *	adma_cookie_t cookie = adma_icopy(src, dst, len);
 *	...				// compute
 *	adma_wait_copy(cookie);		// now dst holds the bytes
 *
 * Link with -ladma (pkg-config adma), or preload libadma.so; both is fine. The
 * order of arguments is source, destination, length.
 *
 * WHO COPIES. DMA channels where the kernel helper is loaded, a graphics card
 * where one is asked for (ADMA_BACKEND=gpu, ADMA_GOAL=cpu), worker threads
 * otherwise, and the calling thread itself where neither can be had: on a
 * single CPU, with ADMA_BACKEND=libc, when the system refuses threads, while
 * the process exits, or when the copy is too small to be worth handing on
 * (16 KiB; 64 KiB with the helper). Nothing in a program depends on which:
 * every copy is complete and right.
 *
 * RESULTS. 0 or a positive number is success, a negative number is an errno:
 * -EINVAL, -EAGAIN. The variable errno is left alone. adma_strerror() says in
 * words what a result means.
 *
 * BUFFERS. From the call that starts a copy until its end is told (see below),
 * the source must not be written, the destination neither read nor written,
 * and both must stay mapped. This is not checked. Nothing outside of the
 * destination is ever written. Between two copies that are under way at the
 * same time there is no order. Ranges that overlap within one copy have
 * memmove's meaning; such a copy is done at once.
 *
 * COOKIES. A cookie stands for one start. The first call that tells its end
 * (adma_check_copy() with result 1, adma_wait_copy() with result 0) retires
 * it; from then on, as with a number that never was a cookie, every call gives
 * -EINVAL. So each cookie must be asked for in the end: ADMA_COOKIES of them
 * can be outstanding, the next start gives -EAGAIN. Cookies are positive.
 *
 * ENDS. The end of a copy is told by adma_check_copy() or adma_wait_copy() in
 * any thread, or by the word of adma_icopy_notif(). Who has been told sees the
 * copied bytes, and may use and free the buffers.
 *
 * THREADS. All functions may be called by any number of threads at once, also
 * for the same cookie: then one of them is told of the end, the others get
 * -EINVAL. A thread may leave while copies that it has started are under way.
 *
 * SIGNALS. All functions may be called from a signal handler, whatever it has
 * interrupted. A handler must not leave an interrupted adma function by
 * siglongjmp() or the like: the cookie may be lost, and -EAGAIN come earlier;
 * and no thread may be cancelled inside one. adma_wait_copy() goes on after a
 * handler has returned. Worker threads have all signals blocked.
 *
 * FAULTS. Memory that is not there, or not to be read or written, is as fatal
 * as in memcpy(): SIGSEGV or SIGBUS, no error code. It comes in a call of this
 * interface: the one that starts the copy, or the one that tells its end, which
 * has then already retired the cookie. (Where the program ignores the signal,
 * which does not hold for a fault, it may come in a thread of ours.) A handler
 * may repair the page and return, or jump out of this one call: nothing of it
 * is under way then. (With the kernel helper other parts of the copy may be, if
 * less than 64 bytes at one of its edges lie alone on a bad page; and -EAGAIN
 * may come earlier, also after a jump out of a batch with more than 15 bad
 * copies.)
 * With adma_icopy_notif() in a program that handles the signal it is always the
 * call that starts the copy; memory that goes bad later ends the process, and so
 * does bad memory in a program that handles nothing, perhaps in a thread of ours.
 *
 * FORK. Cookies, and copies under way, belong to the process that made them.
 * In the child of fork() the parent's cookies give -EINVAL, destinations of
 * copies that were under way hold some of their bytes, and the child's own
 * first copy starts its own engine. In the child of a bare system call cookies
 * are refused alike, but its own copies are all done at once. After vfork()
 * nothing of adma may be called before exec.
 *
 * EXIT. A process that ends does not wait for copies under way: they are
 * abandoned. Of those whose end was not told, destinations that outlive the
 * process (shared memory, files) hold some of the bytes. Copies started by
 * exit handlers and destructors may be done at once.
 */
#ifndef ADMA_H
#define ADMA_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Something that was started, or a negative errno. */
typedef int64_t adma_cookie_t;

/* Most cookies outstanding at once; parts of large batches count as well. */
#define ADMA_COOKIES 4096

/*
 * adma_copy - copy, and return when it is done
 *
 * Copies as memmove() does, by the channels that carry a large memcpy() under
 * the preloaded library: with those that have measured better than libc.
 * Nothing is under way when it returns.
 *
 * Returns 0.
 */
int adma_copy(const void *src, void *dst, size_t len);

/*
 * adma_icopy - start a copy
 *
 * Returns a cookie, soon: the copy goes on by itself, whether or not the
 * program asks for it. -EAGAIN: ADMA_COOKIES are outstanding; nothing is under way.
 */
adma_cookie_t adma_icopy(const void *src, void *dst, size_t len);

/* One of several copies; the same order as everywhere. */
struct adma_op {
	const void *src;
	void *dst;
	size_t len;
};

/*
 * adma_icopy_batch - start several copies under one cookie
 * @ops:	the copies; the array itself is not needed after the return
 * @count:	how many; 0 gives a cookie that is over
 *
 * They go on at the same time, in no order, and must not overlap each other.
 * The cookie is over when all of them are.
 *
 * Returns a cookie; -EAGAIN as adma_icopy(); -EINVAL: @ops is NULL or not
 * aligned, and @count not 0.
 */
adma_cookie_t adma_icopy_batch(const struct adma_op *ops, size_t count);

/*
 * adma_icopy_notif - start a copy that tells its end by writing a word
 * @word:	8 bytes, aligned to 8
 * @value:	what they will hold
 *
 * There is no cookie and nothing to call: when the word holds the value, the
 * copy is over. Read it with acquire order (atomic_load_explicit(...,
 * memory_order_acquire) in C, __atomic_load_n() in GNU C): then all copied
 * bytes can be seen. The word is written once, and nothing of ours touches it,
 * the source or the destination after that. It must be there until then, and
 * outside of both buffers. Outstanding words count as cookies do.
 *
 * Returns 0; -EAGAIN as adma_icopy(); -EINVAL: @word is NULL or not aligned.
 * With an error nothing is under way, and the word will not be written.
 */
int adma_icopy_notif(const void *src, void *dst, size_t len, uint64_t *word,
		     uint64_t value);

/*
 * adma_check_copy - ask whether a copy is over, without waiting
 *
 * A look at one word of memory, no system call. (With the kernel helper: at one
 * word for each channel; a request that is far overdue is asked for in the
 * kernel, at most every millisecond.)
 *
 * Returns 1: it is over, and the cookie retired; 0: it is under way; -EINVAL:
 * not a cookie of this process, or retired.
 */
int adma_check_copy(adma_cookie_t cookie);

/*
 * adma_wait_copy - wait until a copy is over
 *
 * The caller does not sit idle: parts of the copy that no channel has begun
 * it copies itself. So it takes no longer than memcpy() would have, however busy
 * the machine is. Signals that have a handler wait while it copies, for some
 * milliseconds, as in memcpy(): see adma(7). It sleeps with signals open.
 *
 * Returns 0: it is over, and the cookie retired; -EINVAL as adma_check_copy().
 */
int adma_wait_copy(adma_cookie_t cookie);

/*
 * adma_poll_fd - a descriptor for poll(), select() and epoll
 *
 * It becomes readable when a copy of this process has ended that was started
 * after the first call; always the same descriptor. To drain it, read 8 bytes
 * (it does not block: EAGAIN means that nothing has ended since), and only then
 * ask for the cookies: whatever ends later makes it readable again. One reading
 * may stand for several ends, and for ends that have been told already. Messages
 * between processes (below) do not show there.
 *
 * It is an eventfd, close-on-exec. Do not close it and do not write to it; a
 * child of fork calls this function again and gets its own.
 *
 * Returns the descriptor, or a negative errno of eventfd(2).
 */
int adma_poll_fd(void);

/*
 * adma_strerror - a result in words
 *
 * Returns text that is never freed or changed, also for numbers that are no
 * results of adma.
 */
const char *adma_strerror(int result);

/*
 * adma_copied - how much of a copy is in place before it ends
 *
 * Bytes from the start of the destination that can be used already; it grows
 * while the copy is under way. The cookie stays good. Of a batch, and of a
 * message that both processes copy, it is 0 until the end; of a message that is
 * streamed, the bytes so far. At the end it is the length; it is never more.
 *
 * Returns the bytes, or -EINVAL as adma_check().
 */
ssize_t adma_copied(adma_cookie_t cookie);

/* Version of this header, 0xMMmmpp, and of the library that is loaded. */
#define ADMA_VERSION 0x000100u
unsigned adma_version(void);

/*
 * adma_stats - the figures of the report, of this process so far
 * @stats:	its size field says how much of it is filled
 *
 * Returns 0; -EINVAL: the size is no multiple of 8, or less than 16; -ENODATA:
 * nothing is counted (see ADMA_STATS).
 */
struct adma_stats {
	size_t size;			/* set to sizeof(struct adma_stats) */
	uint64_t engine_calls;		/* large copies carried by the engine */
	uint64_t engine_bytes;
	uint64_t libc_calls;		/* large copies left to libc */
	uint64_t libc_bytes;
	uint64_t messages_sent;		/* between processes, see below */
	uint64_t bytes_sent;
	uint64_t messages_received;
	uint64_t bytes_received;
};
int adma_stats(struct adma_stats *stats);

/*
 * adma_off, adma_on - leave large copies to libc for a while
 *
 * From adma_off() until the adma_on() that undoes it, no engine gets a new copy of this process, of
 * any thread: memcpy() and its relatives, adma_copy() and adma_icopy() are libc's work, done by the
 * caller. What was started goes on. Calls nest; messages go on without engine.
 *
 * Return 0; -EINVAL: adma_on() without adma_off().
 */
int adma_off(void);
int adma_on(void);

/* ---- IPC ---------------------------------------------------------------------------- */
/*
 * Messages between two processes of one user on one machine, in one copy: straight from the
 * writer's buffer into the reader's.
 *
 * A connection carries messages both ways. The k-th write of one side meets the k-th read of
 * the other; the one that is posted first waits for the second. A message that is longer than
 * the buffer that reads it is -EMSGSIZE. If it was there before the read it stays, and can be
 * read with a larger buffer (adma_next tells its length). If the read was there first, the
 * buffer holds its beginning, the rest is dropped, and the writer is told how much was taken.
 *
 * Two kinds of messages, by size:
 *   - up to 32 KiB, or ADMA_IPC_EAGER: copied into memory that both processes share; the
 *     buffer is free when the call returns. adma_write does not wait for the read while no more than 64 KiB and 256
 *     messages of its direction are unread, so two processes may both write that much first
 *     and read then; beyond it, it may wait for reads. It returns the count if the other side
 *     is already inside adma_read, or has called adma_iread; otherwise its own length, and for
 *     a while also after the other process has died. A program that must know the count uses
 *     adma_iwrite: its cookie is over when the message was read.
 *   - above: one copy, made by the kernel for a side that waits, piece by piece. When both
 *     processes wait, both copy: the reader from the front, the writer from the back. Where
 *     both have the kernel helper (/dev/adma), its channels copy the pieces for them. From
 *     3 MiB on worker threads of both processes copy, too, where there are more than two CPUs.
 * Where both buffers lie in memory of adma_alloc, large messages are copied without the kernel,
 * which is about twice as fast again.
 * A thread that waits spins for up to some 20 microseconds, then sleeps.
 *
 * Rights: only processes of one user are connected. A process of another user is refused when
 *   it is accepted, before anything of it is read; its adma_connect is -EACCES. Socket files
 *   are made for their user only (mode 0600); an abstract name is guarded by the same rule.
 *   One user is not enough for memory. When a connection is made each side reads a secret of
 *   the other by process_vm_readv(2), by the system's own rule (that of ptrace(2): users and
 *   capabilities, PR_SET_DUMPABLE, Yama, Landlock, seccomp, namespaces), and says it. Where
 *   both can, they are PROVEN: each could do to the other whatever it likes anyway, so they are
 *   told addresses of buffers, get each other's adma_alloc memory and believe each other's
 *   counts. Otherwise large messages are STREAMED through shared memory, which is two copies,
 *   and nothing of the kind is told or believed. adma_peer() and adma_connection_info() say
 *   which it is; so does ADMA_LOG=info.
 *   The kernel checks the right again for every copy and every block. A process that becomes
 *   not dumpable, or changes its user, loses its proven connections: -ECONNRESET on both sides,
 *   within milliseconds. Connect after that. One that executes another program is not reached any
 *   more. Where Yama is at 1, ADMA_IPC_PTRACER=1 on both sides lets the other process in, by
 *   PR_SET_PTRACER; it may then trace this one in every way, and only the latest connection's
 *   may. It is not done unasked.
 * Buffers: from the call until it returns, or until the cookie was waited for or cancelled, the
 *   buffer belongs to the connection: do not change what is written, do not look at what is
 *   read. When a call returns, with success or without, no process touches the buffer any more,
 *   and nothing outside of it ever is. A buffer that is not mapped is -EFAULT for large
 *   messages between proven processes, on both sides; otherwise it is SIGSEGV, as for memcpy,
 *   in a thread of its process that waits or checks.
 * Progress: one thread of the library in each process serves all its connections. What was posted
 *   (adma_iwrite, adma_iread) arrives whether or not its program ever calls again; clients greet,
 *   and the end of the other process is noticed. Threads that wait copy their own messages
 *   themselves. The thread is made with the first connection and ends with the last, has all
 *   signals blocked, and steps aside for unshare(2) and setns(2). Calls that may block are made by
 *   further helper threads. Where the system gives no thread (RLIMIT_NPROC, a filter) calls that
 *   wait, check or accept do its work: nothing goes on between them, and adma_event_fd and adma_arm
 *   are -EAGAIN.
 * Both write first: messages up to 32 KiB are taken before they are read, larger ones are not. Two
 *   sides that both call adma_write first and adma_read then work with small messages and wait for
 *   each other for ever with large ones: call adma_iwrite, adma_read, adma_wait instead.
 * Event loops: adma_event_fd() is a descriptor to poll, and adma_arm() says whether to look
 *   first. See there, and example_server.c.
 * Threads: everything may be called by several threads at once, on one connection too; each
 *   message is whole. Two threads that write are matched in the order they come. One cookie
 *   is for one thread at a time.
 * Signals: waiting is not interrupted; handlers run and the wait goes on. Only adma_accept is,
 *   as accept(2): -EINTR. No function here may be called from a signal handler, nor left by
 *   longjmp or cancellation.
 * Fork: connections stay with the parent. In the child every call with them is -EPERM.
 * Exec: closes all connections.
 * errno is never changed. Errors are returned as negative values of errno.h:
 *   -EPIPE       the other side has closed; reads and writes. (0 is an empty message.)
 *   -ECONNRESET  the other process has ended without adma_close: killed, or by exit; or one of
 *                the two has changed its rights, see there
 *   -EPROTO      the other process does not keep to the protocol; close the connection
 *   -EMSGSIZE    the message is longer than the buffer, see above
 *   -ECANCELED   adma_cancel, by either side
 *   -ETIMEDOUT   a time limit
 *   -EBADF       no such connection, or closed by another thread meanwhile
 *   -EPERM       a connection of the parent
 *   -EINVAL      a length beyond the address space; a cookie that is none (any more)
 *   -EAGAIN      adma_next, adma_accept: nothing there yet. Otherwise: the message 256 before
 *                this one, of the same direction, is under way, or its cookie was not waited
 *                for. adma_read and adma_write give it only for a cookie that no thread waits
 *                with; for another thread's call they wait.
 *   -EFAULT      a buffer, of either side, is not mapped
 * A process that is stopped (SIGSTOP, a debugger) is not needed for large messages that it has
 *   posted, unless it was stopped in the middle of a piece. That piece cannot be taken back:
 *   its message is over when the process goes on or dies. Calls without a time limit wait for
 *   that; adma_wait_for and adma_check do not.
 */

struct iovec; /* <sys/uio.h> */

/*
 * adma_listen - listen at a path, or at the abstract name "@name"
 *
 * Returns a listening socket, which can be polled, or a negative error of socket(2), bind(2)
 * or listen(2). A socket file without a listener is replaced; any other file there is
 * -EADDRINUSE. Close it with adma_close or close(2); the file stays.
 */
int adma_listen(const char *path);

/*
 * adma_accept - wait for a client, and return a connection
 *
 * A connection is a number from 2^30 up, not a descriptor. Clients that do not greet hold up no
 * others, and are dropped after ADMA_IPC_TIMEOUT seconds (10); so are those of other users, at
 * once, and those that fail: all errors are the listener's.
 *   -EAGAIN      the listener is O_NONBLOCK, and no client has greeted. Greetings go on by
 *                themselves, and the listener becomes readable when one has ended
 *   -EINTR       a signal handler has run
 *   -EMFILE, -ENFILE, -ENOMEM  no descriptor or memory for a client, which waits; told after 10 ms
 *   -EBADF, -ENOTSOCK, -EINVAL not a listener, or closed meanwhile
 * A listener that several threads or processes accept from should be O_NONBLOCK if it is polled;
 * several processes poll adma_event_fd() of it, not the listener itself.
 */
int adma_accept(int listener);

/* Like adma_accept, with a limit, whatever O_NONBLOCK says: -ETIMEDOUT. */
int adma_accept_for(int listener, int milliseconds);

/*
 * adma_connect - connect to a listener, and return a connection
 *
 * -EACCES: a process of another user listens there. Errors of connect(2) and of adma_attach.
 * adma_connect_for has a limit for all of it, otherwise it is ADMA_IPC_TIMEOUT seconds (10).
 */
int adma_connect(const char *path);
int adma_connect_for(const char *path, int milliseconds);

/*
 * adma_attach - make a connection over any connected unix socket
 *
 * The other side must call it as well, or adma_connect, or adma_accept. The socket is used for
 * greetings only and can be closed, or used for other things, when both calls have returned.
 *   -ETIMEDOUT   no answer within ADMA_IPC_TIMEOUT seconds (10)
 *   -EACCES      the other end is another user's
 *   -EPROTO      the other end is not adma, or of another version
 *   -ENOBUFS     the other process has no descriptor or memory left for a connection
 *   -EAFNOSUPPORT not a unix socket
 *   -EMFILE      4096 connections are open, or no descriptor is left
 * A socket that a third process has, too, can be read and written by that process. The library
 * keeps up to two descriptors for each connection, two more with the kernel helper and one with
 * adma_event_fd; and five for all. They are not to be closed while the connection lasts.
 */
int adma_attach(int socket);

/*
 * adma_close - close a connection, or a listener
 *
 * Small messages that were written can still be read by the other side; other messages that
 * were not waited for are dropped. Calls of other threads return -EBADF. Cookies are -EINVAL at
 * once, but their buffers are free only when adma_close has returned: pieces that the other
 * process has begun are waited for, at most ADMA_IPC_TIMEOUT seconds (10). -ETIMEDOUT: that
 * process was stopped in the middle of one. The buffers must stay mapped; call it again, or
 * leave it to the end of either process.
 */
int adma_close(int connection);

/* What the system says of the other process, and whether it is proven (see Rights). */
struct adma_peer {
	pid_t pid;	/* 0: it cannot be seen from this pid namespace */
	uid_t uid;
	gid_t gid;
	int proven;	/* 1; 0: streamed */
};
int adma_peer(int connection, struct adma_peer *peer);

/*
 * Writes one line about the engine of a connection, as it was found when that was made:
 * "helper, ...", "process_vm, ..." or "shared memory, ...", and why. At most size bytes, with
 * the terminating zero; returns the length it wants.
 */
int adma_connection_info(int connection, char *text, size_t size);

/*
 * adma_event_fd - a descriptor to poll, of a connection or a listener
 *
 * It becomes readable with the next change after adma_arm has said 0. It is the library's, the
 * same on every call until adma_close, and close-on-exec: do not read, write or close it. One that
 * was never armed is readable. -EAGAIN: the system gives no thread to serve it.
 */
int adma_event_fd(int connection);

/*
 * adma_arm - look, and ask to be told of the next change
 *
 * Returns 1: look first: there is a message to read, a cookie that is over (adma_check), room
 * that was missing, a client to accept, or the end of the other side. It says so as long as that
 * is the case. 0: there is nothing, and the next change makes
 * adma_event_fd() readable. So:
 *
 *	while (adma_arm(c) == 1)
 *		look(c);	// adma_next, adma_read, adma_check, adma_accept
 *	epoll_wait(...);
 *
 * The rules: arm after every look and before every wait; look when it says 1, and arm again. Then
 * level and edge triggered loops (EPOLLET) lose nothing. No call here waits, nor do adma_next,
 * adma_iread, adma_iwrite and adma_check: an event loop calls only these; adma_read of a message that
 * is there waits until it is copied.
 * A negative result is an error of the connection or listener. Where several threads or tasks wait
 * for one connection, adma_arm takes the news of all from the descriptor: when it says 1 to one of
 * them, all look.
 */
int adma_arm(int connection);

/*
 * Memory for messages: zeros, and aligned to a page. Large messages from such memory into such
 * memory, between proven processes, are copied by the processes themselves, with ordinary
 * instructions: the other process opens the block in /proc and maps it when a large message first
 * needs that.
 *
 * SO A PROVEN PROCESS THAT A LARGE MESSAGE IS EXCHANGED WITH CAN SEE AND WRITE THE WHOLE BLOCK,
 * not only the message, and whatever is put there later. By its rights it could do so anyway,
 * but it keeps the block when it loses them, until it is freed.
 *
 * It is memory like any other, but for this: a child of fork shares it with the parent, what one
 * of them writes the other sees, and when the parent frees it the child finds zeros; all its
 * pages are there from the beginning; and each block takes a descriptor. So it is for buffers,
 * not for objects. Do not unmap or protect parts of it. Closing the descriptor only makes
 * messages slower. Blocks that a process has not freed when it ends are given back when the
 * other side closes the connection, or ends as well.
 *
 * adma_alloc returns NULL where there is no memory or no descriptor left, and beyond what
 * RLIMIT_FSIZE allows. What a control group allows is not looked at: beyond it the system
 * kills, as for all memory.
 * adma_free wants what adma_alloc has returned, or NULL; no message may be under way in the
 * block. It returns 0, or -EINVAL: no block of this process, freed before, or the parent's.
 */
void *adma_alloc(size_t len);
int adma_free(void *addr);

/*
 * Read and write one message. Return the bytes transferred (adma_write of a small message
 * whose read is not there yet: the bytes taken).
 */
ssize_t adma_read(int connection, void *addr, size_t len);
ssize_t adma_write(int connection, const void *addr, size_t len);

/*
 * Like adma_read and adma_write, with a limit; negative: without.
 * -ETIMEDOUT: the message was withdrawn as by adma_cancel.
 */
ssize_t adma_read_for(int connection, void *addr, size_t len, int milliseconds);
ssize_t adma_write_for(int connection, const void *addr, size_t len, int milliseconds);

/*
 * Like those, with a limit for the beginning only: a message whose other part is posted is
 * transferred to its end, by the caller. After -ETIMEDOUT nothing was withdrawn from the other
 * side, so the call can be repeated: for programs that look for signals now and then.
 */
ssize_t adma_read_within(int connection, void *addr, size_t len, int milliseconds);
ssize_t adma_write_within(int connection, const void *addr, size_t len, int milliseconds);

/*
 * One message from, or into, several buffers in order, at most 1024 of them. More than one are
 * gathered in memory of the library, which is one copy more; -ENOMEM where there is none.
 */
ssize_t adma_readv(int connection, const struct iovec *parts, int count);
ssize_t adma_writev(int connection, const struct iovec *parts, int count);

/*
 * adma_next - length of the next message that no read was posted for
 *
 * -EAGAIN: there is none yet. -EPIPE, -ECONNRESET, -EPROTO: there will be none.
 */
ssize_t adma_next(int connection);

/*
 * Read and write without waiting: return a cookie, which is positive, or a negative error.
 * Every cookie must be waited for, checked to its end or cancelled; closing the connection ends
 * all of them.
 */
adma_cookie_t adma_iread(int connection, void *addr, size_t len);
adma_cookie_t adma_iwrite(int connection, const void *addr, size_t len);

/*
 * adma_check - ask whether a message, or a copy, is over, without waiting
 *
 * -EINPROGRESS while it is under way; otherwise as adma_read and adma_write, 0 for a copy, and
 * the cookie is used up. Of a message it may copy one piece (at most 512 KiB, or 16 MiB with
 * workers, or a 64th of it) if both buffers are memory of adma_alloc; what has to be fetched from
 * the other process's memory is left to a helper thread. (adma_check_copy and adma_wait_copy are
 * the same with other results, for both kinds of cookies.)
 */
ssize_t adma_check(adma_cookie_t cookie);

/*
 * Sleep until a message, or a copy, is over; results as of adma_check. The cookie is used up.
 * adma_wait_for: at most @milliseconds, and the rest of a piece that it copies itself;
 * negative: without limit. -ETIMEDOUT: it is still under way, and the cookie as good as before.
 */
ssize_t adma_wait(adma_cookie_t cookie);
ssize_t adma_wait_for(adma_cookie_t cookie, int milliseconds);

/*
 * adma_cancel - end a message; afterwards no process touches its buffer
 *
 * The cookie is used up. Pieces that either process has begun are waited for. A copy cannot be
 * withdrawn and is waited for.
 *
 * Returns -ECANCELED; or the result as adma_wait, if the message was over by then, or small and
 * written already. A read or write that has met nothing and has none of its kind posted after
 * it is as if it had never been: no message is lost. Otherwise the message of the other side
 * that it meets is -ECANCELED there, or 0, or, if it was small, dropped.
 */
ssize_t adma_cancel(adma_cookie_t cookie);
/* ---- end of IPC --------------------------------------------------------------------- */

#ifdef __cplusplus
}
#endif

#endif /* ADMA_H */
