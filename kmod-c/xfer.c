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
static int adma_side_enter(struct adma_submission *sub, struct adma_side *side)
{
	u64 index = adma_range_of(side->addr);
	struct adma_request *req = sub->req;
	struct adma_range *range;

	if (side->range && side->range->index == index)
		return 0;
	if (!req->buf) {
		range = adma_range_get(req->file, index, side->write, false);
	} else {
		/* All are pinned: the buffer's, and the caller's own in turn. */
		range = side->write == sub->push ?
			req->buf->range[index - adma_range_of(req->buf->addr)] :
			req->range[sub->own++];
		kref_get(&range->kref);
	}
	return adma_side_hold(req, side, range);
}

/* The next @len bytes of a side, in its range, pinned and mapped. */
static int adma_side_fill(struct adma_submission *sub, struct adma_side *side,
			  size_t len)
{
	struct adma_range *range = adma_range_fill(side->range, side->addr, len,
						   side->write,
						   sub->cr->ch->device,
						   &sub->pinned);

	if (range == side->range)
		return 0;
	return adma_side_hold(sub->req, side, range);
}

/*
 * The batch
 */

static int adma_batch_send(struct adma_submission *sub)
{
	int ret = adma_chan_req_send(sub->cr, sub->req->xfer, sub->nr,
				     sub->first_range);

	if (ret)
		return ret;
	/* The engine copies while more is pinned. */
	if (sub->pinned)
		dma_async_issue_pending(sub->cr->ch->chan);
	sub->nr = 0;
	sub->bytes = 0;
	cond_resched();
	return 0;
}

/* Adds stretches that cross no page to a transfer while they lie together. */
static int adma_batch_add(struct adma_submission *sub, size_t len)
{
	dma_addr_t *dst = sub->dst.range->mapping[sub->cr->ch->device].addr;
	dma_addr_t *src = sub->src.range->mapping[sub->cr->ch->device].addr;
	struct adma_request *req = sub->req;
	int ret;

	while (len) {
		size_t part = min3(len,
				   PAGE_SIZE - offset_in_page(sub->dst.addr),
				   PAGE_SIZE - offset_in_page(sub->src.addr));
		dma_addr_t to = dst[adma_page_of(sub->dst.addr)] +
				offset_in_page(sub->dst.addr);
		dma_addr_t from = src[adma_page_of(sub->src.addr)] +
				  offset_in_page(sub->src.addr);
		struct adma_xfer *xfer = NULL;

		if (sub->nr)
			xfer = &req->xfer[sub->nr - 1];
		if (!xfer || to != xfer->dst + xfer->len ||
		    from != xfer->src + xfer->len ||
		    xfer->len + part > ADMA_MAX_XFER) {
			if (sub->nr == ADMA_BATCH || sub->bytes >= ADMA_MAX_XFER) {
				ret = adma_batch_send(sub);
				if (ret)
					return ret;
			}
			if (!sub->nr)
				sub->first_range = min(sub->dst.nr, sub->src.nr);
			xfer = &req->xfer[sub->nr++];
			*xfer = (struct adma_xfer) { .dst = to, .src = from };
		}
		xfer->len += part;
		sub->bytes += part;
		sub->dst.addr += part;
		sub->src.addr += part;
		sub->left -= part;
		len -= part;
	}
	return 0;
}

/*
 * The next stretch that crosses no range. The first page is under way before
 * the second one is pinned, then 4 and 16; after that a batch at a time.
 */
static int adma_step(struct adma_submission *sub)
{
	size_t room = sub->chunk * PAGE_SIZE;
	struct adma_side *dst = &sub->dst, *src = &sub->src;
	unsigned int device = sub->cr->ch->device;
	bool ready;
	size_t len;
	int ret;

	/* In this order: what was pinned for writing also serves readers. */
	ret = adma_side_enter(sub, dst);
	if (!ret)
		ret = adma_side_enter(sub, src);
	if (ret)
		return ret;
	len = min3(sub->left, (u64)adma_range_rest(dst->addr),
		   (u64)adma_range_rest(src->addr));
	ready = adma_range_ready(src->range, src->addr, len, device) &&
		adma_range_ready(dst->range, dst->addr, len, device);
	if (!ready) {
		len = min3(len, room - offset_in_page(dst->addr),
			   room - offset_in_page(src->addr));
		ret = adma_side_fill(sub, src, len);
		if (!ret)
			ret = adma_side_fill(sub, dst, len);
		if (ret)
			return ret;
	}
	ret = adma_batch_add(sub, len);
	if (ret || ready || sub->chunk == ADMA_RANGE_PAGES)
		return ret;
	sub->chunk *= 4;
	return adma_batch_send(sub);
}

static int adma_piece_try(struct adma_submission *sub,
			  const struct adma_piece *piece)
{
	const struct adma_buf *buf = sub->req->buf;
	int ret = 0;

	sub->dst = (struct adma_side) { .addr = piece->dst, .write = true };
	sub->src = (struct adma_side) { .addr = piece->src };
	sub->left = piece->len;
	sub->nr = 0;
	sub->bytes = 0;
	if (buf) {
		u64 *offset = sub->push ? &sub->dst.addr : &sub->src.addr;

		if (*offset > buf->len || sub->left > buf->len - *offset ||
		    !IS_ALIGNED(buf->addr + *offset, adma_align))
			return -EINVAL;
		*offset += buf->addr;
	}
	while (!ret && sub->left)
		ret = adma_step(sub);
	if (!ret && sub->nr)
		ret = adma_batch_send(sub);
	return ret;
}

/*
 * Hands a piece to a channel. What has been begun of one that fails ends with
 * the request; when it is begun anew, that copies the same bytes.
 */
int adma_piece_send(struct adma_submission *sub, const struct adma_piece *piece,
		    struct adma_chan_req *cr)
{
	int ret, tries = 0;

	sub->cr = cr;
	do {
		ret = adma_piece_try(sub, piece);
		/* To look it up anew is the business of a buffer's owner. */
		if (ret == -ESTALE && sub->req->buf)
			return -EFAULT;
	} while (ret == -ESTALE && ++tries < ADMA_PIECE_TRIES);
	if (!ret)
		dma_async_issue_pending(cr->ch->chan);
	return ret == -ESTALE ? -EBUSY : ret;
}
