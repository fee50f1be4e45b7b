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
 * first copy starts its own engine. The same in the child of a bare system
 * call, but its own copies are all done at once. After vfork() nothing of adma
 * may be called before exec.
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

/* So many cookies can be outstanding; parts of large batches count as well. */
#define ADMA_COOKIES 4096

/*
 * adma_copy - copy, and return when it is done
 *
 * The same as memmove(), carried by the same channels as a large memcpy() under
 * the preloaded library: with those that have measured better than libc.
 * Nothing is under way when it returns.
 *
 * Returns 0.
 */
int adma_copy(const void *src, void *dst, size_t len);

/*
 * adma_icopy - start a copy
 *
 * Returns a cookie, soon: the copy goes on by itself, whether or not anybody
 * asks for it. -EAGAIN: ADMA_COOKIES are outstanding; nothing is under way.
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
 * The caller does not sit idle: parts of the copy that nobody has begun it
 * copies itself. So it takes no longer than memcpy() would have, however busy
 * the machine is. Signals are held while it copies, and come after 16 MiB at
 * the latest; it sleeps with signals open.
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

/* ---- IPC ---------------------------------------------------------------------------- */
/*
 * Messages between two processes on one machine, in one copy: straight from the writer's
 * buffer into the reader's.
 *
 * A connection carries messages both ways. The k-th write of one side meets the k-th read of
 * the other; whichever was posted first waits for the second. Where the lengths differ the
 * shorter one is transferred, the rest of a longer write is dropped, and both sides learn the
 * count.
 *
 * Two kinds of messages, by size:
 *   - up to 32 KiB: copied into memory that both processes share; the
 *     buffer is free when the call returns. adma_write does not wait for the read while no
 *     more than 64 KiB and 256 messages of its direction are unread, so two processes may
 *     both write that much first and read then; beyond it, it may wait for reads. It returns
 *     the count if the other side is already inside adma_read, or has called adma_iread;
 *     otherwise its own length, and for a while also after the other process has died. Who
 *     has to know the count in any case uses adma_iwrite: its cookie is over when the
 *     message was read.
 *   - above: one copy, made by the kernel for whoever waits, piece by piece. When both
 *     processes wait, both copy: the reader from the front, the writer from the back. Where
 *     both have the kernel helper (/dev/adma), its channels copy the pieces for them. From
 *     3 MiB on worker threads of both processes copy, too, where there are more than two CPUs.
 * Where both buffers lie in memory of adma_alloc, large messages are copied without the kernel,
 * which is about twice as fast again; and by worker threads as well where a process has more
 * than two CPUs, or its reader copies alone, as adma_copy would.
 * Who waits spins for up to some 20 microseconds, then sleeps: it takes no CPU time while the
 * other side does something else, however long.
 *
 * Where the system lets neither process reach the other's memory (containers, Yama, seccomp,
 * another user) large messages go through shared memory in chunks, which is two copies.
 * adma_connection_info says which it is, and why; so does ADMA_LOG=info.
 *
 * Buffers: from the call until it returns, or until the cookie was waited for, the buffer
 *   belongs to the connection: do not change what is written, do not look at what is read.
 *   When a call returns, with success or without, nobody touches the buffer any more, and
 *   nothing outside of it ever is. The other process can only do to this memory what the
 *   system would let it do anyway, and with the kernel helper what a message is for: read
 *   what is written to it, write what is read from it, until the message is over.
 *   A COUNT IS EVIDENCE ONLY OF AN HONEST PEER, of the same user: where both processes copy,
 *   one that lies can say that it has copied its part and leave old bytes in the buffer. From
 *   any other process the reader copies everything itself, and what is counted is there, but for
 *   what is read into a block that was lent to it (adma_lend). A buffer
 *   that is not mapped is -EFAULT for large messages, on both sides. For eager ones, and for
 *   large ones that go through shared memory, it is SIGSEGV, as for memcpy, in a thread of
 *   its process that waits or checks.
 * Progress: no thread does more than help with a copy that somebody waits for, or makes for who
 *   waits with a limit what may take longer. A thread that waits or checks on any connection makes
 *   the messages of all connections of its process go on, those of other threads too, and
 *   sleeps until one of them needs it. One side that waits is enough for a message while it
 *   may reach the other's memory; through shared memory both processes have to wait or check,
 *   on whichever connection. So a ring of processes in which each one starts a write to the
 *   next and then reads from the one before does not come to a standstill. A process in
 *   which nobody waits or checks does nothing for a message through shared memory.
 * Rights: process_vm_readv(2) is used only between processes of the same user with the same
 *   capabilities, in the same user namespace, who keep no tracers out (PR_SET_DUMPABLE), and
 *   only while the other one is the program that made the connection: a process that executes
 *   another one, set-user-id or not, is not reached any more, also by root. One that changes its
 *   user, user namespace or capabilities loses such connections, as does the other side:
 *   -ECONNRESET, within milliseconds. Connect after that. Only such processes write into each
 *   other's adma_alloc.
 *   It needs the rights of ptrace(2), too: no Yama, and a /proc to look at. Where Yama is at 1,
 *   ADMA_IPC_PTRACER=1 on both sides lets the other process in, by PR_SET_PTRACER; it may then
 *   trace this one in every way, and only the latest connection's may. It is not done unasked.
 *   Rights of ptrace(2) that are lost later are noticed, and messages go through shared memory
 *   from then on. The kernel helper needs none of this, only access to /dev/adma on both sides, one
 *   user or a socket that was not accepted, and pages that may be locked (RLIMIT_MEMLOCK).
 * Threads: everything may be called by several threads at once, on one connection too; each
 *   message is whole. Two threads that write are matched in the order they come. One cookie
 *   is for one thread.
 * Signals: waiting is not interrupted; handlers run and the wait goes on. Only adma_accept is,
 *   as accept(2): -EINTR after a handler without SA_RESTART, and after any handler while clients
 *   are there that have not greeted. No function here may be called from a signal handler, nor left
 *   by longjmp or cancellation.
 * Fork: connections stay with the parent. In the child every call with them is -EPERM.
 * Exec: closes all connections.
 * errno is never changed. Errors are returned as negative values of errno.h:
 *   -EPIPE       the other side has closed (reads return 0)
 *   -ECONNRESET  the other process has ended without adma_close: killed, or by exit; or one of
 *                the two has changed its user, user namespace or capabilities, see Rights
 *   -EPROTO      the other process does not keep to the protocol; close the connection
 *   -EBADF       no such connection, or closed by another thread meanwhile
 *   -EPERM       a connection of the parent
 *   -EINVAL      a length beyond the address space; a cookie that is none (any more)
 *   -EAGAIN      the message 256 before this one, of the same direction, is under way, or its
 *                cookie was not waited for. So one cookie that is late holds up all threads
 *                that go on with the connection. adma_read and adma_write give it only for a
 *                cookie that nobody waits with; for another thread's call they wait.
 *   -EFAULT      a buffer, of either side, is not mapped
 *   -ETIMEDOUT   adma_wait_for, adma_close and those that connect: see there
 * A process that is stopped (SIGSTOP, a debugger) is not needed for large messages that it has
 *   posted, unless it was stopped in the middle of a piece. That piece cannot be taken back:
 *   its message is over when the process goes on or dies. adma_read, adma_write and adma_wait
 *   wait for that without limit; adma_wait_for and adma_check do not.
 */

/*
 * Listens at a path, or at the abstract name "@name". Returns a listening socket, which can
 * be polled, or a negative error of socket(2), bind(2) or listen(2). A socket file that
 * nobody listens at any more is replaced; any other file there is -EADDRINUSE. Close it with
 * adma_close or close(2); the file stays.
 */
int adma_listen(const char *path);

/*
 * Waits for somebody and returns a connection: a number from 2^30 up, not a descriptor.
 * Errors of accept(2), and those of adma_attach: one client's, and the next call is for another.
 * Clients that do not greet hold up nobody else; where there are more than 128, those of the user
 * who has most of them are dropped. It returns with the first who is ready. Others that have come
 * meanwhile come to the listener again, if nobody goes on accepting them within a quarter of a
 * second: so it can be polled, and several threads or processes can accept from it. (Not those
 * that have called connect(2) and adma_attach.)
 */
int adma_accept(int listener);

/*
 * Connects to a listener. Returns a connection. Errors of connect(2), and of adma_attach; so
 * -ETIMEDOUT also where nobody accepts. The limit is one for both.
 */
int adma_connect(const char *path);

/*
 * Makes a connection over any connected unix socket; the other side must call it as well.
 * The socket is used for greetings only and can be closed, or used for other things, when
 * both calls have returned. -ETIMEDOUT when the other side does not answer within
 * ADMA_IPC_TIMEOUT seconds (10), -EPROTO when it is somebody else, or several, -EAFNOSUPPORT for
 * other sockets, -ENOMEM without memory, -EMFILE when there are 4096 connections or no descriptors
 * left, or while 256 that the other's user has sent wait to be closed. Whoever else has the socket,
 * or a copy of it, can look at the greetings: over one that a process of another user (and not
 * root) has made, two processes are taken for strangers. Who accepts with accept(2) and has
 * accepted a client of adma_connect is to call this at once: after a quarter of a second without an
 * answer that client comes again. The library keeps up to four descriptors for each connection, two
 * more with the kernel helper, and in a program with threads two for each one that waits long. They
 * are not to be closed while the connection
 * lasts: another file might get the number.
 */
int adma_attach(int socket);

/*
 * Closes a connection, or a listener. What was written eagerly can still be read by the other
 * side; other messages that were not waited for are dropped. Calls of other threads return
 * -EBADF; only who is in adma_accept stays there, as after close(2). Cookies that nobody waits
 * with are -EINVAL at once, but their buffers are free only when adma_close has returned.
 * Afterwards nobody touches the buffers: pieces that the other process has begun are waited
 * for, at most ADMA_IPC_TIMEOUT seconds (10). -ETIMEDOUT: that process was stopped in the
 * middle of one. The buffers of messages under way must stay mapped; call it again, or leave it
 * to the end of either process. All other calls give -EBADF from then on.
 */
int adma_close(int connection);

/*
 * Writes one line about the engine of a connection, as it was found when that was made:
 * "helper, ...", "process_vm, ..." or "shared memory, ...", and why. At most size bytes, with
 * the terminating zero; returns the length it wants.
 */
int adma_connection_info(int connection, char *text, size_t size);

/*
 * Memory for messages: zeros, and aligned to a page. Large messages from such memory into such
 * memory are copied by the processes themselves, with ordinary instructions: the descriptor of
 * a block is sent over the connection before the first large message that lies in it, and the
 * other process maps it. No right of ptrace(2) is needed for that: it works where Yama keeps
 * processes apart, between containers, and between users who talk to each other.
 *
 * SO WHOEVER A LARGE MESSAGE IS EXCHANGED WITH CAN SEE THE WHOLE BLOCK, not only the message, and
 * whatever is put there later. WHAT IS WRITTEN TO ONE PROCESS FROM A BLOCK ALL OTHERS SEE THAT
 * ANYTHING OF THAT BLOCK WAS EVER WRITTEN TO: take a block for each of those who may not all see
 * the same. A process of the same user with the same rights can write it, too. Any other process
 * can only read it, and gets only blocks that something is written to it from and that no process
 * of the first kind has got; those keep their pages until it closes the connection, also if they
 * are freed. See adma_lend for more.
 *
 * It is memory like any other, but for this: a process that has got it can keep it mapped,
 * and use it, until it is freed; a child of fork shares it with the parent, what one of them
 * writes the other sees, and when the parent frees it the child finds zeros; all its pages are
 * there from the beginning, none can be put aside for later; and each block takes a descriptor.
 * So it is for buffers, not for objects. Do not unmap or protect parts of it. Closing the
 * descriptor only makes messages slower. Blocks that a process has not freed when it ends are
 * given back when the other side closes the connection, or ends as well.
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
 * Lends a block of adma_alloc to the process at the other end of a connection, whoever that is,
 * so that large messages which are read into it are copied by both processes. It is worth it
 * between processes that have not the same user, rights and user namespace; for all others there
 * is nothing to do.
 *
 * WHOEVER IT IS LENT TO CAN READ AND WRITE THE WHOLE BLOCK AT ANY TIME, also after a message has
 * arrived in it, after this connection and after adma_free. A count says nothing of what was read
 * into it: bytes that the other process has not copied are the old ones. So keep nothing else in
 * it, read nothing from others into it, and copy what must not change between being checked and
 * being used.
 *
 * Both processes call it, each with a block of its own or with NULL, and each waits until the
 * other has mapped what it got, at most ADMA_IPC_TIMEOUT seconds (10); between processes of the
 * same user nobody waits. Lend a block before anything else is done with it; nobody should touch
 * it meanwhile. Afterwards its pages stay, whatever the other process does.
 * Returns 0, or an error, and messages go on as before:
 *   -EINVAL      addr is not what adma_alloc has returned to this process
 *   -EBUSY       somebody has got the block already, or it was lent before
 *   -ETIMEDOUT   the other process has not lent anything; it may still see the block, and write it.
 *                The next call, with another block or NULL, meets the other's next one, but not
 *                before that process has heard of it: until then it is -ETIMEDOUT again
 *   -EPROTO      the other process can still take its pages away: free it
 *   -ENOMEM      that process has taken pages away, and there are no others: free it
 *   -EOPNOTSUPP  ADMA_IPC_ENGINE, of either process, does without such memory
 * and those of adma_write where the other process is gone, or -EAGAIN: it has too much to read.
 */
int adma_lend(int connection, void *addr);

/*
 * Read and write one message. Return the bytes transferred (adma_write of a small message
 * that nobody waits for: the bytes taken). A read returns 0 when the other side has closed
 * the connection, and for an empty message.
 */
ssize_t adma_read(int connection, void *addr, size_t len);
ssize_t adma_write(int connection, const void *addr, size_t len);

/*
 * The same without waiting: return a cookie, which is positive, or a negative error. Every
 * cookie must be waited for or checked to its end; closing the connection ends all of them.
 */
adma_cookie_t adma_iread(int connection, void *addr, size_t len);
adma_cookie_t adma_iwrite(int connection, const void *addr, size_t len);

/*
 * -EINPROGRESS while the message is under way; otherwise as adma_read and adma_write, and
 * the cookie is used up. May copy one piece (at most 512 KiB, or 16 MiB with workers, or a
 * 64th of the message) if both buffers are memory of adma_alloc; what has to be fetched from
 * the other process's memory is left to a thread, one piece at a time, for its pages may be long
 * in coming.
 */
ssize_t adma_check(adma_cookie_t cookie);

/* Sleeps until the message is over; as adma_read and adma_write. The cookie is used up. */
ssize_t adma_wait(adma_cookie_t cookie);

/*
 * The same, but at most so many milliseconds, and the rest of a piece that it copies itself (see
 * adma_check); negative: without limit. -ETIMEDOUT: the message is still under way, and the cookie as good
 * as before.
 */
ssize_t adma_wait_for(adma_cookie_t cookie, int milliseconds);
/* ---- end of IPC --------------------------------------------------------------------- */

#ifdef __cplusplus
}
#endif

#endif /* ADMA_H */
