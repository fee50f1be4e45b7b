/* SPDX-License-Identifier: GPL-2.0 */
#ifndef ADMA_REQUEST_H
#define ADMA_REQUEST_H

#include <linux/poll.h>

#include "export.h"

#define ADMA_BATCH	64

/* One side of a piece, as far as it has got. */
struct adma_side {
	u64 addr;			/* of the next byte */
	struct adma_range **range;	/* of all its bytes, in order */
	u64 first;			/* index of the first one */
	unsigned int batch;		/* number of the first one of the batch */
};

/* What one slot of a file has in flight; then the next one. */
struct adma_request {
	struct adma_job job;
	struct adma_file *file;
	enum { ADMA_FREE, ADMA_BUSY, ADMA_FAILED } state;
	struct work_struct end;
	unsigned int max_ranges;
	struct adma_range **range;	/* references, until it is over */
	struct adma_piece piece[ADMA_MAX_PIECES];
	struct adma_xfer xfer[ADMA_BATCH];	/* not yet submitted */

	/* 0 at its beginning: */
	struct adma_buf *buf;	/* with PULL or PUSH: the other side */
	u32 flags;		/* of struct adma_submit */
	unsigned int accepted;
	u64 bytes;		/* charged */
	unsigned int nr_ranges;
	unsigned int next_range;	/* of the piece that is submitted next */
	unsigned int pinned;	/* pages */
	struct adma_chan_req *part[ADMA_MAX_CHANNELS];	/* NULL: not used */

	/* The piece that is being submitted. */
	struct adma_chan_req *cr;
	struct adma_side dst;
	struct adma_side src;
	unsigned int nr_xfers;	/* the last one may grow */
	size_t xfer_bytes;
};

extern unsigned long adma_max_bytes;

/* request.c */
void adma_file_leave(struct adma_file *file);
struct adma_request *adma_request_take(struct adma_file *file);
int adma_ended(struct adma_file *file, struct adma_wait *arg);
int adma_wait(struct adma_file *file, struct adma_wait *arg);
void adma_requests_free(struct adma_file *file);
__poll_t adma_requests_poll(struct adma_file *file, u64 sequence);

/* submit.c */
int adma_submit(struct file *filp, const struct file_operations *port,
		struct adma_submit *arg);

#endif /* ADMA_REQUEST_H */
