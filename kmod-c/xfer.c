// SPDX-License-Identifier: GPL-2.0
/*
 * Cutting a piece into transfers: stretches that lie together in physical
 * memory, on both sides. They are handed over in batches.
 *
 * Pages are pinned on the way. When a range dies before a transfer that touches
 * it is handed over, the piece is begun anew, with what is there now.
 */
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "adma.h"

/* A stretch below this costs a channel more than it costs the CPU. */
#define ADMA_TINY	64

/* So often a piece is begun at most, before it is refused. */
#define ADMA_PIECE_TRIES	8

/* Ranges that a request holds at most. */
unsigned int adma_max_ranges(const struct adma_piece *pieces, unsigned int count)
{
	unsigned int i, ranges = 4 * ADMA_PIECE_TRIES;
	u64 bytes = 0;

	/* Twice: each range may turn out not to serve. */
	for (i = 0; i < count; i++) {
		bytes += pieces[i].len;
		if (bytes > adma_max_bytes)
			break;	/* will be refused */
		ranges += 2 * (adma_ranges_of(pieces[i].dst, pieces[i].len) +
			       adma_ranges_of(pieces[i].src, pieces[i].len));
	}
	return ranges;
}

/*
 * The sides
 */

static int adma_side_hold(struct adma_request *req, struct adma_side *side,
			  struct adma_range *range)
{
	if (IS_ERR(range))
		return PTR_ERR(range);
	if (req->nr_ranges == req->max_ranges) {
		adma_range_put(range);
		return -EBUSY;
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
	if (side->ready) {
		range = side->ready[index - side->first];
		kref_get(&range->kref);
	} else {
		range = adma_range_get(req->file, index, side->write, false);
	}
	return adma_side_hold(req, side, range);
}

/* The next @len bytes of a side, in its range, pinned and mapped. */
static int adma_side_fill(struct adma_submission *sub, struct adma_side *side,
			  size_t len)
{
	struct adma_range *range = adma_range_fill(side->range, side->addr, len,
						   side->write, sub->ch->device,
						   &sub->pinned);

	if (range == side->range)
		return 0;
	return adma_side_hold(sub->req, side, range);
}

/*
 * The batch
 */

/* Hands it over; with @fence the piece ends with it. */
static int adma_batch_send(struct adma_submission *sub, bool fence)
{
	unsigned int channel = sub->ch - adma_channels;
	struct adma_request *req = sub->req;
	struct adma_chan_req *cr;
	int ret;

	if (!sub->nr)
		return 0;
	if (!sub->begun) {
		sub->begun = true;
		sub->pinned_first = sub->pinned;
	}
	cr = req->part[channel].cr;
	if (!cr) {
		cr = adma_chan_req_begin(sub->ch, req);
		if (IS_ERR(cr))
			return PTR_ERR(cr);
		req->part[channel].cr = cr;
	}
	ret = adma_chan_req_send(cr, req->xfer, sub->nr, sub->first_range,
				 fence);
	if (ret)
		return ret;
	/* The engine copies while more is pinned. */
	if (sub->pinned && !fence)
		dma_async_issue_pending(sub->ch->chan);
	sub->nr = 0;
	sub->bytes = 0;
	cond_resched();
	return 0;
}

/* The pages are pinned, so this cannot fault but for a change of mapping. */
static int adma_cpu_copy(u64 dst, u64 src, size_t len)
{
	u8 buffer[ADMA_TINY];

	if (copy_from_user(buffer, u64_to_user_ptr(src), len) ||
	    copy_to_user(u64_to_user_ptr(dst), buffer, len))
		return -EFAULT;
	return 0;
}

/* The last transfer does not grow any more; is there room for another? */
static int adma_batch_next(struct adma_submission *sub)
{
	size_t len;

	if (!sub->nr)
		return 0;
	len = sub->req->xfer[sub->nr - 1].len;
	/* Somebody else's memory has no address here. */
	if (len < ADMA_TINY && !sub->req->buf) {
		sub->nr--;
		sub->bytes -= len;
		sub->cpu_bytes += len;
		return adma_cpu_copy(sub->dst.addr - len, sub->src.addr - len,
				     len);
	}
	if (sub->nr == ADMA_BATCH || sub->bytes >= ADMA_MAX_XFER)
		return adma_batch_send(sub, false);
	return 0;
}

/* Adds stretches that cross no page to a transfer while they lie together. */
static int adma_batch_add(struct adma_submission *sub, size_t len)
{
	dma_addr_t *dst = sub->dst.range->mapping[sub->ch->device].addr;
	dma_addr_t *src = sub->src.range->mapping[sub->ch->device].addr;
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
			ret = adma_batch_next(sub);
			if (ret)
				return ret;
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
	unsigned int device = sub->ch->device;
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
	if (ret || ready || !sub->left || sub->chunk == ADMA_RANGE_PAGES)
		return ret;
	sub->chunk *= 4;
	ret = adma_batch_next(sub);
	return ret ?: adma_batch_send(sub, false);
}

/* Both sides of a piece between processes. */
static int adma_piece_across(struct adma_submission *sub)
{
	struct adma_side *own = sub->push ? &sub->src : &sub->dst;
	struct adma_side *other = sub->push ? &sub->dst : &sub->src;
	struct adma_buf *buf = sub->req->buf;

	if (other->addr > buf->len || sub->left > buf->len - other->addr)
		return -EINVAL;
	other->addr += buf->addr;
	if (!IS_ALIGNED(other->addr, adma_align))
		return -EINVAL;
	other->ready = buf->range;
	other->first = adma_range_of(buf->addr);
	own->ready = sub->req->range + sub->own;
	own->first = adma_range_of(own->addr);
	sub->own += adma_ranges_of(own->addr, sub->left);
	return 0;
}

static int adma_piece_try(struct adma_submission *sub,
			  const struct adma_piece *piece)
{
	int ret = 0;

	sub->dst = (struct adma_side) { .addr = piece->dst, .write = true };
	sub->src = (struct adma_side) { .addr = piece->src };
	sub->left = piece->len;
	sub->nr = 0;
	sub->bytes = 0;
	if (sub->req->buf)
		ret = adma_piece_across(sub);
	while (!ret && (sub->left || sub->nr)) {
		if (sub->left)
			ret = adma_step(sub);
		else
			ret = adma_batch_send(sub, true);
	}
	return ret;
}

/*
 * Hands a piece to a channel. What has been begun of one that fails ends with
 * the request; when it is begun anew, that copies the same bytes.
 */
int adma_piece_send(struct adma_submission *sub, const struct adma_piece *piece,
		    struct adma_channel *ch)
{
	u64 cpu_bytes = sub->cpu_bytes;
	int ret, tries = 0;

	sub->ch = ch;
	do {
		sub->cpu_bytes = cpu_bytes;
		ret = adma_piece_try(sub, piece);
		/* To look it up anew is the business of a buffer's owner. */
		if (ret == -ESTALE && sub->req->buf)
			return -EFAULT;
	} while (ret == -ESTALE && ++tries < ADMA_PIECE_TRIES);
	if (!ret)
		dma_async_issue_pending(ch->chan);
	return ret == -ESTALE ? -EBUSY : ret;
}
