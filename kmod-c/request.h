/* SPDX-License-Identifier: GPL-2.0 */
#ifndef ADMA_REQUEST_H
#define ADMA_REQUEST_H

#include "export.h"

#define ADMA_BATCH	64

/**
 * struct adma_side - one side of a piece, as far as it has got
 * @addr: of the next byte
 * @range: of all its bytes, pinned and mapped, in order
 * @first: index of the first one
 * @batch: number of the first one that the batch touches
 */
struct adma_side {
	u64 addr;
	struct adma_range **range;
	u64 first;
	unsigned int batch;
};

/**
 * struct adma_request - what one slot of a file has in flight; then the next one
 * @range: references, until it is over
 * @xfer: not yet submitted; the last one may grow
 * @buf: between processes: the other side
 * @push: ... is written
 * @own: ... number of the caller's next range
 * @begun: jiffies of the first part
 * @used: mask of channels
 * @doubt: a word would not prove that all data has come
 * @part: open, by channel
 * @pinned: pages
 */
struct adma_request {
	struct adma_job job;
	struct adma_file *file;
	enum { ADMA_FREE, ADMA_BUSY, ADMA_FAILED } state;
	struct work_struct end;
	unsigned int max_ranges;
	struct adma_range **range;
	struct adma_piece piece[ADMA_MAX_PIECES];
	struct adma_xfer xfer[ADMA_BATCH];

	/* 0 at its beginning: */
	struct adma_buf *buf;
	bool push;
	unsigned int own;
	unsigned int accepted;
	u64 bytes;		/* charged */
	unsigned long begun;
	u32 used;
	bool doubt;
	struct adma_chan_req *part[ADMA_MAX_CHANNELS];
	unsigned int nr_ranges;
	unsigned int pinned;

	/* The piece that is being submitted. */
	struct adma_chan_req *cr;
	struct adma_side dst;
	struct adma_side src;
	unsigned int nr_xfers;
	size_t xfer_bytes;
};

extern unsigned long adma_max_bytes;

int adma_submit(struct file *filp, const struct file_operations *port,
		struct adma_submit *arg);
int adma_ended(struct adma_file *file, struct adma_wait *arg);
int adma_wait(struct adma_file *file, struct adma_wait *arg);
bool adma_requests_busy(struct adma_file *file, u64 sequence);
void adma_requests_catch_up(struct adma_file *file, u64 sequence);
void adma_requests_free(struct adma_file *file);
__poll_t adma_requests_poll(struct adma_file *file);

/* xfer.c */
int adma_piece_send(struct adma_request *req, u64 len);

#endif /* ADMA_REQUEST_H */
