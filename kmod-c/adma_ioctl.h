/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The whole interface between user space and adma.ko: /dev/adma.
 *
 * An open file belongs to the process that opened it; every call from another
 * address space is refused with EPERM. Copies are made between pages of the
 * caller's own memory, and between those and what another process exports.
 *
 * Every structure begins with its size as the caller knows it. A larger one than
 * the module's whose tail is not zero is refused with E2BIG, a smaller one with
 * EINVAL, a reserved field that is not zero with EINVAL, an unknown flag with
 * EOPNOTSUPP.
 *
 * Completion costs no call: after the last byte of a request on one channel,
 * that channel itself writes the request's id into the request's word of the
 * channel's page (see ADMA_WORDS_OFFSET). A request is over when the word of
 * every channel in its mask holds its id. A channel that fails writes no word:
 * whoever has waited long enough asks with ADMA_IOC_WAIT.
 */
#ifndef _UAPI_ADMA_IOCTL_H
#define _UAPI_ADMA_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ADMA_ABI_VERSION	1

#define ADMA_ALIGN		64	/* of a piece's destination and length */
#define ADMA_MAX_PIECES		64	/* of a request; bits of adma_wait.failed */
#define ADMA_SLOTS		32	/* requests of an open file under way */
#define ADMA_MAX_CHANNELS	32	/* bits of adma_submit.channels */
#define ADMA_MAX_EXPORTS	512	/* of an open file */

/*
 * mmap(PROT_READ, MAP_SHARED) of one page at this offset gives the words of a
 * channel. Word number slot lies at byte slot * ADMA_WORD_STRIDE and is a
 * 64-bit number. The page is not inherited over fork.
 */
#define ADMA_WORDS_OFFSET(channel, page_size)	((channel) * (page_size))
#define ADMA_WORD_STRIDE	64

/* adma_info.flags: adma_info.keep_pages is set first, up to the module's limit */
#define ADMA_INFO_KEEP		0x1

/* adma_info.features */
#define ADMA_FEATURE_WORDS	0x1	/* completion by words */
#define ADMA_FEATURE_EXPORTS	0x2	/* ports and exports */
#define ADMA_FEATURE_NODES	0x4	/* channels on several NUMA nodes */

/*
 * struct adma_info - what the helper offers
 * @size:	in: sizeof(struct adma_info)
 * @flags:	in: ADMA_INFO_KEEP or 0
 * @abi:	ADMA_ABI_VERSION
 * @features:	ADMA_FEATURE_*
 * @channels:	channels held; they are numbered from 0
 * @usable:	those of them that are in use, the others are put aside
 * @src_align:	a piece's source address must be a multiple of this; 1: any
 * @reserved:	0
 * @max_bytes:	bytes of one user under way at most
 * @max_pages:	pages pinned for one open file at most, both sides together
 * @keep_pages:	pages that stay pinned from one copy to the next at most; 0: none
 * @pages:	pages of this file that are pinned now
 * @hits:	ranges of 64 pages that were found pinned, for this file
 * @misses:	ranges that were not
 * @evictions:	ranges let go to make room, or because nobody used them
 * @invalidations: ranges let go because the program changed the mapping
 */
struct adma_info {
	__u32 size;
	__u32 flags;
	__u32 abi;
	__u32 features;
	__u32 channels;
	__u32 usable;
	__u32 src_align;
	__u32 reserved;
	__aligned_u64 max_bytes;
	__aligned_u64 max_pages;
	__aligned_u64 keep_pages;
	__aligned_u64 pages;
	__aligned_u64 hits;
	__aligned_u64 misses;
	__aligned_u64 evictions;
	__aligned_u64 invalidations;
};

/*
 * adma_piece.channel: one that follows from the place of the piece in memory and
 * in the request, on several NUMA nodes of those near to that memory
 */
#define ADMA_CHANNEL_ANY	0xffffffffU

/*
 * struct adma_piece - one stretch of memory to copy
 * @dst:	destination address, a multiple of ADMA_ALIGN
 * @src:	source address, a multiple of adma_info.src_align
 * @len:	bytes, a multiple of ADMA_ALIGN, not 0
 * @channel:	in: a channel's number or ADMA_CHANNEL_ANY; out: the channel
 *		it was given to, which is another one when that is put aside
 * @flags:	0
 *
 * What happens when pieces of one request overlap is not defined, except that
 * nothing outside them is written.
 *
 * The side that is exported is not an address but an offset into the export.
 * Then both sides and the length must be multiples of adma_info.src_align, and
 * need not be of ADMA_ALIGN.
 */
struct adma_piece {
	__aligned_u64 dst;
	__aligned_u64 src;
	__aligned_u64 len;
	__u32 channel;
	__u32 flags;
};

/* adma_submit.flags: all sources, or all destinations, are in an export */
#define ADMA_SUBMIT_PULL	0x1
#define ADMA_SUBMIT_PUSH	0x2

/*
 * struct adma_submit - start a request
 * @size:	in: sizeof(struct adma_submit)
 * @flags:	in: ADMA_SUBMIT_PULL, ADMA_SUBMIT_PUSH or 0
 * @pieces:	in: address of struct adma_piece[count]
 * @count:	in: 1 to ADMA_MAX_PIECES
 * @port:	in: with PULL or PUSH the port's descriptor; otherwise 0
 * @export:	in: with PULL or PUSH the export's number; otherwise 0
 * @id:		out: the request's number, never 0, never used twice
 * @cpu_bytes:	out: bytes among them that were too small for a channel and
 *		have been copied by this call
 * @accepted:	out: pieces that are under way; the first ones
 * @slot:	out: number of the request's word
 * @channels:	out: bit n: the word of channel n will hold @id
 * @silent:	out: bit n: channel n has a part in it but writes no word; the
 *		end of the request is only told by ADMA_IOC_WAIT
 * @pinned:	out: pages this call has pinned, both sides together
 * @pinned_first: out: those of them before the first transfer was handed over
 *
 * 0: all pieces are under way. Otherwise the errno says why the first piece
 * from @accepted on was not taken; when @accepted is not 0 the ones before it
 * are under way as request @id all the same, when it is 0 nothing is and @id
 * is 0. A piece that was not taken may have been copied in part, and its copy
 * may still be going on until the request is over.
 *
 * EINVAL	a bad address, length, alignment or channel number; not inside
 *		the export
 * EFAULT	memory that is not there or must not be written; an export whose
 *		owner has changed its mapping
 * EBADF	not a port
 * ENOENT	the port has no such export, or not any more
 * EACCES	the export does not allow this direction
 * EAGAIN	too many requests or pages of this file, or bytes of this user,
 *		under way
 * ENOMEM	no memory, or RLIMIT_MEMLOCK is reached
 * EBUSY	the channels are full, or being tested
 * EIO		a page that the device cannot reach
 * ENODEV	no channel is usable
 */
struct adma_submit {
	__u32 size;
	__u32 flags;
	__aligned_u64 pieces;
	__u32 count;
	__s32 port;
	__aligned_u64 export;
	__aligned_u64 id;
	__aligned_u64 cpu_bytes;
	__u32 accepted;
	__u32 slot;
	__u32 channels;
	__u32 silent;
	__u32 pinned;
	__u32 pinned_first;
};

/*
 * struct adma_wait - the end of a request
 * @size:	in: sizeof(struct adma_wait)
 * @flags:	in: 0
 * @id:		in: the request
 * @timeout_ns:	in: how long to wait; 0: only look
 * @failed:	out: bit n: piece n has not been copied, or not all of it
 *
 * 0: the request is over, no channel reads or writes any of its memory. A
 * request with failed pieces stays known, and keeps its slot, until it is
 * asked for here once; after that, and for requests that went well, @failed
 * is 0.
 *
 * EAGAIN	it is not over (timeout_ns 0)
 * ETIMEDOUT	it was not over in time
 * EINTR	a signal came first
 * EINVAL	no request of this slot has had such a number yet
 */
struct adma_wait {
	__u32 size;
	__u32 flags;
	__aligned_u64 id;
	__aligned_u64 timeout_ns;
	__aligned_u64 failed;
};

/* adma_export.flags: what others may do, one or both */
#define ADMA_EXPORT_READ	0x1
#define ADMA_EXPORT_WRITE	0x2

/*
 * struct adma_export - let others reach a buffer
 * @size:	in: sizeof(struct adma_export)
 * @flags:	in: ADMA_EXPORT_*
 * @addr:	in: where it begins
 * @len:	in: bytes, not 0
 * @id:		out: the export's number, never 0, never used twice by a file
 *
 * The pages are pinned, and count for the owner, until ADMA_IOC_UNEXPORT. Once
 * the owner unmaps, remaps, discards or forks any of them, or their neighbours,
 * the export is void: transfers that go on end as they would, into pages that
 * are still pinned; later ones are refused with EFAULT; and when there are none
 * the pages are let go. Its number stays.
 *
 * EINVAL	a bad address or length
 * EFAULT	memory that is not there or must not be written
 * EAGAIN	too many exports, or pages pinned for this file
 * ENOMEM	no memory, or RLIMIT_MEMLOCK is reached
 * EIO		a page that a device cannot reach
 * EPERM	the port of another process
 * ESHUTDOWN	the file that the port was made of is closed
 */
struct adma_export {
	__u32 size;
	__u32 flags;
	__aligned_u64 addr;
	__aligned_u64 len;
	__aligned_u64 id;
};

/*
 * ADMA_IOC_PORT makes a port: it has no argument (0) and answers a descriptor,
 * closed by exec, that its maker sends to whom it likes. ADMA_IOC_EXPORT and
 * ADMA_IOC_UNEXPORT are calls of it, for its maker. Others can name it in a
 * submission, and reach what is exported through it, in the direction that its
 * maker allows. With the file it was made of, or with its own last descriptor,
 * the port is closed for good and its exports are let go.
 *
 * ADMA_IOC_UNEXPORT takes a buffer back: @id of struct adma_wait is the export,
 * @failed is 0. From the call on no transfer begins. 0: none goes on either;
 * nobody reads or writes the buffer, and the number is forgotten. With EAGAIN,
 * ETIMEDOUT and EINTR, as of ADMA_IOC_WAIT, the call has to be made again.
 * ENOENT	no such export
 * EPERM	the port of another process
 */

#define ADMA_IOC_TYPE	0xAD

/* Without the size in the number: the structures may grow. */
#define ADMA_IOC_INFO	_IO(ADMA_IOC_TYPE, 0)	/* struct adma_info */
#define ADMA_IOC_SUBMIT	_IO(ADMA_IOC_TYPE, 1)	/* struct adma_submit */
#define ADMA_IOC_WAIT	_IO(ADMA_IOC_TYPE, 2)	/* struct adma_wait */
#define ADMA_IOC_PORT	_IO(ADMA_IOC_TYPE, 3)	/* 0 */

/* Of a port. */
#define ADMA_IOC_EXPORT	_IO(ADMA_IOC_TYPE, 4)	/* struct adma_export */
#define ADMA_IOC_UNEXPORT	_IO(ADMA_IOC_TYPE, 5)	/* struct adma_wait */

#endif /* _UAPI_ADMA_IOCTL_H */
