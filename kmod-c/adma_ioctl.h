/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * The whole interface between user space and adma.ko: /dev/adma.
 *
 * An open file belongs to the process that opened it; every call from another
 * address space is refused with EPERM. Copies are made between pages of the
 * caller's own memory, and between those and what another process exports.
 *
 * Every structure begins with its size as the caller knows it. A larger one than
 * the module's whose tail is not zero is refused with E2BIG. In a smaller one the
 * fields that are missing are taken for 0; one that is smaller than in version 3 of
 * the interface is refused with EINVAL. So is a reserved field that is not zero, and
 * with EOPNOTSUPP an unknown flag.
 *
 * Completion costs no call: after the last byte of a request on one channel,
 * that channel itself writes the request's id into the request's word of the
 * channel's page (see ADMA_WORDS_OFFSET). A request is over when the word of
 * every channel in its mask holds its id. A channel that fails writes no word:
 * after a reasonable time ask with ADMA_IOC_WAIT.
 */
#ifndef _UAPI_ADMA_IOCTL_H
#define _UAPI_ADMA_IOCTL_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ADMA_ABI_VERSION	3

#define ADMA_ALIGN		64	/* of a piece's destination and length */
#define ADMA_MAX_PIECES		64	/* of a request; bits of adma_wait.failed */
#define ADMA_SLOTS		32	/* requests of an open file in flight */
#define ADMA_MAX_CHANNELS	32	/* bits of adma_submit.channels */
#define ADMA_MAX_EXPORTS	512	/* of an open file */

/*
 * mmap(PROT_READ, MAP_SHARED) of one page at this offset gives the words of a
 * channel. Word number slot lies at byte slot * ADMA_WORD_STRIDE and is a
 * 64-bit number. The page is not inherited over fork.
 */
#define ADMA_WORDS_OFFSET(channel, page_size)	((channel) * (page_size))
#define ADMA_WORD_STRIDE	64

/*
 * adma_info.flags: adma_info.keep_pages is set first, up to the module's limit. With
 * 0 the call returns when nothing is kept, nor pinned for requests that had begun,
 * for which it waits 0.1 s at most.
 */
#define ADMA_INFO_KEEP		0x1

/* adma_info.features */
#define ADMA_FEATURE_WORDS	0x1	/* completion by words */
#define ADMA_FEATURE_EXPORTS	0x2	/* ports and exports */
#define ADMA_FEATURE_NODES	0x4	/* several NUMA nodes */

/* What the helper offers; it reads the fields that say so (in:). */
struct adma_info {
	__u32 size;		/* in: sizeof(struct adma_info) */
	__u32 flags;		/* in: ADMA_INFO_KEEP or 0 */
	__u32 abi;		/* ADMA_ABI_VERSION */
	__u32 features;		/* ADMA_FEATURE_* */
	__u32 channels;		/* held; they are numbered from 0 */
	__u32 usable;		/* those of them that are not in quarantine */
	__u32 src_align;	/* a piece's source is a multiple of this; 1: any */
	__u32 reserved;		/* in: 0 */
	__aligned_u64 max_bytes;	/* of a request at most */
	__aligned_u64 max_pages;	/* pinned for one open file at most */
	__aligned_u64 keep_pages;	/* that stay pinned after a copy at most */
	__aligned_u64 pages;		/* of this file that are pinned now */
	__aligned_u64 hits;		/* ranges of 64 pages found pinned */
	__aligned_u64 misses;		/* ... or not */
	__aligned_u64 evictions;	/* ... retired for room, or for their age */
	__aligned_u64 invalidations;	/* ... because their mapping changed */
};

/*
 * adma_piece.channel: one that follows from the place of the piece in memory and
 * in the request, on several NUMA nodes of those near to that memory
 */
#define ADMA_CHANNEL_ANY	0xffffffffU

/*
 * One stretch of memory to copy.
 *
 * What happens when pieces of one request overlap is not defined, except that
 * nothing outside them is written.
 *
 * The side that is exported is not an address but an offset into the export.
 * Then both sides and the length must be multiples of adma_info.src_align, and
 * need not be of ADMA_ALIGN.
 */
struct adma_piece {
	__aligned_u64 dst;	/* address, a multiple of ADMA_ALIGN */
	__aligned_u64 src;	/* address, a multiple of adma_info.src_align */
	__aligned_u64 len;	/* bytes, a multiple of ADMA_ALIGN, not 0 */
	/* A number or ADMA_CHANNEL_ANY; out: the channel that took it. */
	__u32 channel;
	__u32 flags;		/* 0 */
};

/* adma_submit.flags: all sources, or all destinations, are in an export */
#define ADMA_SUBMIT_PULL	0x1
#define ADMA_SUBMIT_PUSH	0x2

/*
 * Starts a request.
 *
 * 0: all pieces are in flight. Otherwise the errno says why the first piece
 * from @accepted on was not taken; when @accepted is not 0 the ones before it
 * are in flight as request @id all the same, when it is 0 nothing is and @id
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
 * EAGAIN	too many bytes in one request; too many requests or pages of this
 *		file in flight
 * ENOMEM	no memory, or RLIMIT_MEMLOCK is reached
 * EBUSY	the channels are full, or have too many requests of this user, or
 *		are being tested; the mapping has changed
 * EIO		a page that the device cannot reach
 * ENODEV	no channel is usable
 */
struct adma_submit {
	__u32 size;		/* in: sizeof(struct adma_submit) */
	__u32 flags;		/* in: ADMA_SUBMIT_PULL, ADMA_SUBMIT_PUSH or 0 */
	__aligned_u64 pieces;	/* in: address of struct adma_piece[count] */
	__u32 count;		/* in: 1 to ADMA_MAX_PIECES */
	__s32 port;		/* in: with PULL or PUSH its descriptor, or 0 */
	__aligned_u64 export;	/* in: ... and the export's number, or 0 */
	__aligned_u64 id;	/* the request's number, never used twice */
	__u32 accepted;		/* pieces that are in flight; the first ones */
	__u32 slot;		/* number of the request's word */
	/* Bit n: the word of channel n will hold @id; 0: only ADMA_IOC_WAIT tells. */
	__u32 channels;
	__u32 pinned;		/* pages this call has pinned, of both sides */
};

/*
 * Waits for the end of a request.
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
	__u32 size;		/* in: sizeof(struct adma_wait) */
	__u32 flags;		/* in: 0 */
	__aligned_u64 id;	/* in: the request */
	__aligned_u64 timeout_ns;	/* in: how long; 0: only look */
	__aligned_u64 failed;	/* bit n: piece n was not copied, or in part */
};

/* adma_export.flags: what others may do, one or both */
#define ADMA_EXPORT_READ	0x1
#define ADMA_EXPORT_WRITE	0x2

/*
 * Lets others reach a buffer.
 *
 * The pages are pinned, and count for the owner, until ADMA_IOC_UNEXPORT. Once
 * the owner unmaps, remaps, discards or forks any of them, or their neighbours,
 * the export is void: transfers that go on end as they would, into pages that
 * are still pinned; later ones are refused with EFAULT; and when there are none
 * the pages are unpinned. Its number stays.
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
	__u32 size;		/* in: sizeof(struct adma_export) */
	__u32 flags;		/* in: ADMA_EXPORT_* */
	__aligned_u64 addr;	/* in: where it begins */
	__aligned_u64 len;	/* in: bytes, not 0 */
	__aligned_u64 id;	/* its number, never used twice by a file */
};

/*
 * ADMA_IOC_PORT makes a port: it has no argument (0) and returns a descriptor,
 * closed by exec, that its maker sends to whom it likes. ADMA_IOC_EXPORT and
 * ADMA_IOC_UNEXPORT are calls of it, for its maker. Others can name it in a
 * submission, and reach what is exported through it, in the direction that its
 * maker allows. With the file it was made of, or with its own last descriptor,
 * the port is closed for good and its exports are taken back.
 *
 * ADMA_IOC_UNEXPORT takes a buffer back: @id of struct adma_wait is the export,
 * @failed is 0. From the call on no transfer begins. 0: none goes on either;
 * no channel reads or writes the buffer, and the number is forgotten. With EAGAIN,
 * ETIMEDOUT and EINTR, as of ADMA_IOC_WAIT, the call has to be made again.
 * ENOENT	no such export
 * EPERM	the port of another process
 */

/* 0xDA is free in Documentation/userspace-api/ioctl/ioctl-number.rst. */
#define ADMA_IOC_TYPE	0xDA

/* The size in the number may be a newer structure's: @size says how long it is. */
#define ADMA_IOC_INFO	_IOWR(ADMA_IOC_TYPE, 0, struct adma_info)
#define ADMA_IOC_SUBMIT	_IOWR(ADMA_IOC_TYPE, 1, struct adma_submit)
#define ADMA_IOC_WAIT	_IOWR(ADMA_IOC_TYPE, 2, struct adma_wait)
#define ADMA_IOC_PORT	_IO(ADMA_IOC_TYPE, 3)

/* Calls for the file of a port. */
#define ADMA_IOC_EXPORT	_IOWR(ADMA_IOC_TYPE, 4, struct adma_export)
#define ADMA_IOC_UNEXPORT	_IOWR(ADMA_IOC_TYPE, 5, struct adma_wait)

#endif /* _UAPI_ADMA_IOCTL_H */
