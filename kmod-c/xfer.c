// SPDX-License-Identifier: GPL-2.0
/*
 * Cutting a piece into transfers: stretches that lie together in physical
 * memory, on both sides. They are handed over in batches.
 *
 * Pages are pinned on the way. When a range dies before a transfer that touches
 * it is handed over, the piece is begun anew, with what is there now.
 */
#include <linux/sched.h>

#include "adma.h"

/* So often a piece is begun at most, before it is refused. */
#define ADMA_PIECE_TRIES	8

/*
 * The sides
 */

static int adma_side_hold(struct adma_request *req, struct adma_side *side,
			  struct adma_range *range)
{
	int ret;

	if (IS_ERR(range))
		return PTR_ERR(range);
	ret = adma_request_reserve(req, 1);
	if (ret) {
		adma_range_put(range);
		return ret;
	}
	side->range = range;
	side->nr = req->nr_ranges++;
	req->range[side->nr] = range;
	return 0;
}

/* Finds the range of the next byte. */
static int adma_side_enter(struct adma_request *req, struct adma_side *side)
{
	u64 index = adma_range_of(side->addr);
	struct adma_range *range;

	if (side->range && side->range->index == index)
		return 0;
	if (!req->buf) {
		range = adma_range_get(req->file, index, side->write, false);
	} else {
		/* All are pinned: the buffer's, and the caller's own in turn. */
		range = side->write == req->push ?
			req->buf->range[index - adma_range_of(req->buf->addr)] :
			req->range[req->own++];
		kref_get(&range->kref);
	}
	return adma_side_hold(req, side, range);
}

/* The next @len bytes of a side, in its range, pinned and mapped. */
static int adma_side_fill(struct adma_request *req, struct adma_side *side,
			  size_t len)
{
	struct adma_range *range = adma_range_fill(side->range, side->addr, len,
						   side->write,
						   req->cr->ch->device,
						   &req->pinned);

	if (range == side->range)
		return 0;
	return adma_side_hold(req, side, range);
}

/*
 * The batch
 */

static int adma_batch_send(struct adma_request *req)
{
	int ret = adma_chan_req_send(req->cr);

	if (ret)
		return ret;
	/* The engine copies while more is pinned. */
	if (req->pinned)
		adma_channel_issue(req->cr->ch);
	req->nr_xfers = 0;
	req->xfer_bytes = 0;
	cond_resched();
	return 0;
}

/* Adds stretches that cross no page to a transfer while they lie together. */
static int adma_batch_add(struct adma_request *req, size_t len)
{
	dma_addr_t *dst = req->dst.range->mapping[req->cr->ch->device].addr;
	dma_addr_t *src = req->src.range->mapping[req->cr->ch->device].addr;
	int ret;

	while (len) {
		size_t part = min3(len,
				   PAGE_SIZE - offset_in_page(req->dst.addr),
				   PAGE_SIZE - offset_in_page(req->src.addr));
		dma_addr_t to = dst[adma_page_of(req->dst.addr)] +
				offset_in_page(req->dst.addr);
		dma_addr_t from = src[adma_page_of(req->src.addr)] +
				  offset_in_page(req->src.addr);
		struct adma_xfer *xfer = NULL;

		if (req->nr_xfers)
			xfer = &req->xfer[req->nr_xfers - 1];
		if (!xfer || to != xfer->dst + xfer->len ||
		    from != xfer->src + xfer->len ||
		    xfer->len + part > ADMA_MAX_XFER) {
			if (req->nr_xfers == ADMA_BATCH ||
			    req->xfer_bytes >= ADMA_MAX_XFER) {
				ret = adma_batch_send(req);
				if (ret)
					return ret;
			}
			if (!req->nr_xfers)
				req->first_range = min(req->dst.nr, req->src.nr);
			xfer = &req->xfer[req->nr_xfers++];
			*xfer = (struct adma_xfer) { .dst = to, .src = from };
		}
		xfer->len += part;
		req->xfer_bytes += part;
		req->dst.addr += part;
		req->src.addr += part;
		req->left -= part;
		len -= part;
	}
	return 0;
}

/*
 * The next stretch that crosses no range. The first page is under way before
 * the second one is pinned, then 4 and 16; after that a batch at a time.
 */
static int adma_step(struct adma_request *req)
{
	size_t room = req->chunk * PAGE_SIZE;
	struct adma_side *dst = &req->dst, *src = &req->src;
	unsigned int device = req->cr->ch->device;
	bool ready;
	size_t len;
	int ret;

	/* In this order: what was pinned for writing also serves readers. */
	ret = adma_side_enter(req, dst);
	if (!ret)
		ret = adma_side_enter(req, src);
	if (ret)
		return ret;
	len = min3(req->left, (u64)adma_range_rest(dst->addr),
		   (u64)adma_range_rest(src->addr));
	ready = adma_range_ready(src->range, src->addr, len, device) &&
		adma_range_ready(dst->range, dst->addr, len, device);
	if (!ready) {
		len = min3(len, room - offset_in_page(dst->addr),
			   room - offset_in_page(src->addr));
		ret = adma_side_fill(req, src, len);
		if (!ret)
			ret = adma_side_fill(req, dst, len);
		if (ret)
			return ret;
	}
	ret = adma_batch_add(req, len);
	if (ret || ready || req->chunk == ADMA_RANGE_PAGES)
		return ret;
	req->chunk *= 4;
	return adma_batch_send(req);
}

static int adma_piece_try(struct adma_request *req,
			  const struct adma_piece *piece)
{
	const struct adma_buf *buf = req->buf;
	int ret = 0;

	req->dst = (struct adma_side) { .addr = piece->dst, .write = true };
	req->src = (struct adma_side) { .addr = piece->src };
	req->left = piece->len;
	req->nr_xfers = 0;
	req->xfer_bytes = 0;
	if (buf) {
		u64 *offset = req->push ? &req->dst.addr : &req->src.addr;

		if (*offset > buf->len || req->left > buf->len - *offset ||
		    !IS_ALIGNED(buf->addr + *offset, adma_align))
			return -EINVAL;
		*offset += buf->addr;
	}
	while (!ret && req->left)
		ret = adma_step(req);
	if (!ret && req->nr_xfers)
		ret = adma_batch_send(req);
	return ret;
}

/*
 * Hands a piece to a channel. What has been begun of one that fails ends with
 * the request; when it is begun anew, that copies the same bytes.
 */
int adma_piece_send(struct adma_request *req, const struct adma_piece *piece)
{
	int ret, tries = 0;

	do {
		ret = adma_piece_try(req, piece);
		/* To look it up anew is the business of a buffer's owner. */
		if (ret == -ESTALE && req->buf)
			return -EFAULT;
	} while (ret == -ESTALE && ++tries < ADMA_PIECE_TRIES);
	if (!ret)
		adma_channel_issue(req->cr->ch);
	return ret == -ESTALE ? -EBUSY : ret;
}
