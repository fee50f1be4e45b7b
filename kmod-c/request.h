/* SPDX-License-Identifier: GPL-2.0 */
/* A request: its slot in the file, and its pieces on their way to channels. */
#ifndef ADMA_REQUEST_H
#define ADMA_REQUEST_H

#include "export.h"

#define ADMA_MAX_BYTES	SZ_64M	/* of a request */

/* Progress on one side of a piece. */
struct adma_side {
	u64 addr;			/* of the next byte */
	struct adma_range **range;	/* of all its bytes, in order */
	u64 first;			/* index of the first one */
};

/* Part of a piece, prepared but not yet sent. */
struct adma_part {
	u8 piece;
	u8 channel;
	unsigned int range;	/* first of its places in adma_request.range */
	unsigned int nr_ranges;
	u64 at;			/* offset in the piece */
	u64 len;
};

/* The requests of an open file. */
struct adma_requests {
	struct adma_mem *mem;	/* of the file */
	spinlock_t lock;	/* protects sequence, ids and states of requests */
	struct adma_request *slot[ADMA_SLOTS];	/* NULL: was never used */
	u64 sequence;
};

/*
 * One slot of a file: the request it has in flight, then the next one.
 *
 *	adma_request_take()      last chan_req ends       adma_ended()
 *	-------------------> busy -----------------> failed ----------> free
 *	                          -------------------------------------->
 *	                          all pieces were copied
 */
struct adma_request {
	struct adma_job job;
	struct adma_mem *mem;
	struct adma_requests *all;	/* of the file */
	enum { ADMA_FREE, ADMA_BUSY, ADMA_FAILED } state;
	struct work_struct end;
	unsigned int max_ranges;
	struct adma_range **range;	/* references, until it is over */
	struct adma_piece piece[ADMA_MAX_PIECES];

	/* 0 at its beginning: */
	struct adma_buf *buf;	/* with PULL or PUSH: the other side */
	u32 flags;		/* of struct adma_submit */
	unsigned int accepted;
	unsigned int nr_ranges;
	unsigned int pinned;	/* pages */
	unsigned long used;	/* mask of channels */
	bool whole;		/* one stretch has all of it */
	bool unproven;		/* words do not prove that all data has come */
	u8 channel[ADMA_MAX_PIECES];
	u64 progress[ADMA_MAX_PIECES];	/* bytes prepared */

	/* The stretch that is being prepared. */
	unsigned int stretches;	/* sent before it */
	unsigned int sent_pinned;	/* pages pinned for those */
	unsigned int nr_parts;
	struct adma_part parts[ADMA_MAX_PIECES];
	struct adma_chan_req *part[ADMA_MAX_CHANNELS];	/* NULL: not used */

	/* The part that is being submitted. */
	struct adma_side dst;
	struct adma_side src;
	size_t xfer_len;	/* of the transfer that begins there */
};

/* request.c */
int adma_submit(struct adma_requests *all, const struct file_operations *port,
		struct adma_submit *arg);
int adma_wait(struct adma_requests *all, struct adma_wait *arg);
void adma_requests_free(struct adma_requests *all);
bool adma_requests_over(struct adma_requests *all, u64 sequence);

/* pieces.c */
unsigned int adma_pieces_check(struct adma_request *req, const struct adma_submit *arg,
			       int *ret);
unsigned int adma_pieces_send(struct adma_request *req, unsigned int count,
			      const struct adma_submit *arg,
			      const struct file_operations *port, int *why);

#endif /* ADMA_REQUEST_H */
