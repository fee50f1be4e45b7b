// SPDX-License-Identifier: GPL-2.0
/*
 * Cutting a piece into transfers: stretches that lie together in physical memory,
 * on both sides. All of it is pinned and mapped. They are submitted in batches.
 */
#include <linux/sched.h>

#include "request.h"

static struct adma_range *adma_side_range(const struct adma_side *side)
{
	return side->range[adma_range_of(side->addr) - side->first];
}

static bool adma_side_stale(const struct adma_side *side)
{
	unsigned int nr = side->batch, last = adma_range_of(side->addr - 1) - side->first;

	for (; nr <= last; nr++) {
		if (READ_ONCE(side->range[nr]->dead))
			return true;
	}
	return false;
}

/* A range that the batch touches has died, or the export was taken back. */
static bool adma_batch_stale(struct adma_job *job)
{
	struct adma_request *req = container_of(job, struct adma_request, job);

	return (req->buf && READ_ONCE(req->buf->refuse)) ||
	       adma_side_stale(&req->dst) || adma_side_stale(&req->src);
}

static int adma_batch_send(struct adma_request *req)
{
	int ret = adma_chan_req_send(req->cr, req->xfer, req->nr_xfers,
				     adma_batch_stale);

	req->nr_xfers = 0;
	req->xfer_bytes = 0;
	return ret;
}

static struct adma_xfer *adma_batch_new_xfer(struct adma_request *req)
{
	if (!req->nr_xfers) {
		req->dst.batch = adma_range_of(req->dst.addr) - req->dst.first;
		req->src.batch = adma_range_of(req->src.addr) - req->src.first;
	}
	return &req->xfer[req->nr_xfers++];
}

/**
 * adma_piece_send() - submit the next bytes of both sides
 * @req: request, with its sides and its part on the channel
 * @len: bytes
 *
 * Neither faults nor waits for anything but the channel. What was submitted of a
 * piece that fails ends with the request.
 *
 * Returns -ESTALE if the mapping has changed.
 */
int adma_piece_send(struct adma_request *req, u64 len)
{
	struct adma_side *dst = &req->dst, *src = &req->src;
	unsigned int device = req->cr->ch->device;
	int ret;

	req->nr_xfers = 0;
	req->xfer_bytes = 0;
	while (len) {
		size_t part = min3(len, (u64)PAGE_SIZE - offset_in_page(dst->addr),
				   (u64)PAGE_SIZE - offset_in_page(src->addr));
		struct adma_mapping *to = &adma_side_range(dst)->mapping[device];
		struct adma_mapping *from = &adma_side_range(src)->mapping[device];
		dma_addr_t dst_dma = to->addr[adma_page_of(dst->addr)] +
				     offset_in_page(dst->addr);
		dma_addr_t src_dma = from->addr[adma_page_of(src->addr)] +
				     offset_in_page(src->addr);
		struct adma_xfer *xfer = NULL;

		if (req->nr_xfers)
			xfer = &req->xfer[req->nr_xfers - 1];
		if (!xfer || dst_dma != xfer->dst + xfer->len ||
		    src_dma != xfer->src + xfer->len ||
		    xfer->len + part > ADMA_MAX_XFER) {
			if (req->nr_xfers == ADMA_BATCH ||
			    req->xfer_bytes >= ADMA_MAX_XFER) {
				ret = adma_batch_send(req);
				if (ret)
					return ret;
				cond_resched();
			}
			xfer = adma_batch_new_xfer(req);
			*xfer = (struct adma_xfer) { .dst = dst_dma, .src = src_dma };
		}
		xfer->len += part;
		req->xfer_bytes += part;
		dst->addr += part;
		src->addr += part;
		len -= part;
	}
	ret = adma_batch_send(req);
	if (!ret)
		adma_channel_issue(req->cr->ch, false);
	return ret;
}
