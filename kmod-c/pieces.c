// SPDX-License-Identifier: GPL-2.0
/*
 * The pieces of a request: checked, pinned, cut into transfers, and sent.
 *
 * Pages that are not pinned yet are pinned in stretches, which grow, and each is cut
 * into transfers and sent before the next is pinned: so pinning overlaps with copying.
 *
 *	until all pieces are prepared
 *		for each piece in turn
 *			find all of it pinned, or pin a part of it
 *			if the stretch is long enough
 *				send the stretch, without a word
 *	send the rest, with a word for each channel
 *
 * Pinning may block without limit (FUSE, userfaultfd), sending does not. A stretch is
 * closed when it is sent, so no place of a channel is held while a page is waited
 * for. An export is in use from the first transfer on: there the whole request is one
 * stretch, as it is where it may be refused for want of room.
 */
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "request.h"

/* Attempts to pin all pages before one of them changes. */
#define ADMA_PIN_TRIES	8

/* Pages of the first stretch, on each side, how much later ones grow, and the limit. */
#define ADMA_FIRST_PAGES	16
#define ADMA_GROWTH		4
#define ADMA_MAX_STRETCH	1024

/*
 * Checking and pinning
 */

/* Checks an address, or an offset whose upper bound is checked later. */
static bool adma_place_ok(u64 *addr, u64 len, unsigned int align, bool offset)
{
	if (offset)
		return *addr <= ADMA_MAX_LEN;
	/* Tag bits, which the CPU ignores, are not part of the address. */
	*addr = untagged_addr(*addr);
	return IS_ALIGNED(*addr, align) && access_ok(u64_to_user_ptr(*addr), len);
}

static int adma_pieces_read(const struct adma_submit *arg,
			    struct adma_piece *piece)
{
	unsigned int src_align = adma_align;
	unsigned int dst_align = arg->flags ? src_align : ADMA_ALIGN;
	unsigned int i;

	if (copy_from_user(piece, u64_to_user_ptr(arg->pieces),
			   arg->count * sizeof(*piece)))
		return -EFAULT;
	for (i = 0; i < arg->count; i++, piece++) {
		if (piece->flags)
			return -EOPNOTSUPP;
		if (!piece->len || piece->len > ADMA_MAX_LEN ||
		    !IS_ALIGNED(piece->len, dst_align) ||
		    !adma_place_ok(&piece->dst, piece->len, dst_align,
				   arg->flags & ADMA_SUBMIT_PUSH) ||
		    !adma_place_ok(&piece->src, piece->len, src_align,
				   arg->flags & ADMA_SUBMIT_PULL))
			return -EINVAL;
		if (piece->channel == ADMA_CHANNEL_ANY)
			continue;
		if (piece->channel >= adma_nr_channels)
			return -EINVAL;
		piece->channel = array_index_nospec(piece->channel,
						    adma_nr_channels);
	}
	return 0;
}

/* Reserves room for @want ranges, which stays with the slot. */
static int adma_request_reserve(struct adma_request *req, unsigned int want)
{
	struct adma_range **range;

	want = roundup_pow_of_two(want);
	if (want <= req->max_ranges)
		return 0;
	range = krealloc_array(req->range, want, sizeof(*range),
			       GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!range)
		return -ENOMEM;
	req->range = range;
	req->max_ranges = want;
	return 0;
}

/* Chooses a channel for a piece. */
static int adma_piece_begin(struct adma_request *req, unsigned int nr)
{
	const struct adma_piece *piece = &req->piece[nr];
	bool push = req->flags & ADMA_SUBMIT_PUSH;
	u64 first = push ? req->piece[0].src : req->piece[0].dst;
	int ret;

	ret = adma_channel_pick(piece->channel, push ? piece->src : piece->dst,
				adma_range_of(first) + nr);
	if (ret < 0)
		return ret;
	req->channel[nr] = ret;
	return adma_words_get(req->mem, ret);
}

/* Puts the ranges of a part, whose place stays empty. */
static void adma_part_unpin(struct adma_request *req, struct adma_part *part)
{
	while (part->nr_ranges) {
		struct adma_range **range = &req->range[part->range + --part->nr_ranges];

		adma_range_put(*range);
		*range = NULL;
	}
}

/*
 * Pins the caller's memory in a part, into the part's place of req->range. Returns
 * an error, and holds nothing of it then.
 */
static int adma_part_pin(struct adma_request *req, struct adma_part *part)
{
	const struct adma_piece *piece = &req->piece[part->piece];
	unsigned int device = adma_channels[part->channel].device;
	struct adma_range **range = req->range + part->range;
	struct adma_mem *mem = req->mem;
	int ret = 0;

	part->nr_ranges = 0;
	if (!(req->flags & ADMA_SUBMIT_PUSH))
		ret = adma_ranges_get(mem, piece->dst + part->at, part->len, true,
				      device, range, &part->nr_ranges, &req->pinned);
	if (!ret && !(req->flags & ADMA_SUBMIT_PULL))
		ret = adma_ranges_get(mem, piece->src + part->at, part->len, false,
				      device, range, &part->nr_ranges, &req->pinned);
	if (!ret)
		return 0;
	adma_ranges_refused(range, part->nr_ranges, ret);
	adma_part_unpin(req, part);
	return ret;
}

/* Finds all of a piece's memory pinned and mapped, or adds nothing. */
static bool adma_part_find(struct adma_request *req, struct adma_part *part)
{
	const struct adma_piece *piece = &req->piece[part->piece];
	unsigned int device = adma_channels[part->channel].device;
	struct adma_range **range = req->range + part->range;
	struct adma_mem *mem = req->mem;

	part->nr_ranges = 0;
	if (adma_ranges_find(mem, piece->dst, piece->len, true, device, range,
			     &part->nr_ranges) &&
	    adma_ranges_find(mem, piece->src, piece->len, false, device, range,
			     &part->nr_ranges))
		return true;
	adma_part_unpin(req, part);
	return false;
}

/* Whether something of the request is in flight now, as far as drivers know. */
static bool adma_request_in_flight(struct adma_request *req)
{
	const struct adma_flight what = { .job = &req->job, .begun_by = jiffies };
	unsigned int i;

	for_each_set_bit(i, &req->used, ADMA_MAX_CHANNELS)
		adma_channel_issue(&adma_channels[i], true);
	return adma_flight_any(&what);
}

/*
 * Adds the next part of a piece to the stretch: all of the piece where its pages are
 * found pinned, or there is one stretch; otherwise what one range of the destination has.
 * The first part that has to be pinned is short. Returns 1 if what was found is to be
 * sent before it.
 */
static int adma_part_add(struct adma_request *req, unsigned int nr)
{
	const struct adma_piece *piece = &req->piece[nr];
	struct adma_part *part = &req->parts[req->nr_parts];
	u64 at = req->progress[nr], len = piece->len - at;
	unsigned int pinned;
	int ret;

	if (!at) {
		ret = adma_piece_begin(req, nr);
		if (ret)
			return ret;
	}
	*part = (struct adma_part) {
		.piece = nr, .channel = req->channel[nr], .at = at, .len = len,
		.range = req->nr_ranges,
	};
	if (req->flags || at || !adma_part_find(req, part)) {
		if (!req->whole) {
			if (req->nr_parts && !req->stretches && !req->pinned)
				return 1;
			len = min_t(u64, len, adma_range_rest(piece->dst + at));
			if (!req->stretches && !req->pinned)
				len = min_t(u64, len, ADMA_FIRST_PAGES * PAGE_SIZE -
						      offset_in_page(piece->dst + at));
		}
		part->len = len;
		pinned = req->pinned;
		ret = adma_part_pin(req, part);
		if (ret)
			return ret;
		if (req->stretches && req->pinned > pinned &&
		    adma_request_in_flight(req))
			adma_count(ADMA_STAT_OVERLAPPED, req->pinned - pinned);
	}
	req->nr_ranges += part->nr_ranges;
	req->progress[nr] = at + len;
	req->nr_parts++;
	return 0;
}

/*
 * Pins those parts of a stretch anew whose ranges have died meanwhile. Returns how many
 * of @count pieces are ready.
 */
static unsigned int adma_stretch_refresh(struct adma_request *req, unsigned int count,
					 int *why)
{
	unsigned int i, j, tries;
	bool dead = true;
	int ret;

	for (tries = 0; dead && tries < ADMA_PIN_TRIES; tries++) {
		dead = false;
		for (i = 0; i < req->nr_parts; i++) {
			struct adma_part *part = &req->parts[i];
			bool died = false;

			if (part->piece >= count)
				continue;
			for (j = 0; j < part->nr_ranges; j++)
				died |= READ_ONCE(req->range[part->range + j]->dead);
			if (!died)
				continue;
			dead = true;
			adma_part_unpin(req, part);
			ret = adma_part_pin(req, part);
			if (ret) {
				*why = ret;
				count = part->piece;
			}
		}
	}
	return count;
}

/* Checks the pieces. Returns how many of them fit into a request. */
unsigned int adma_pieces_check(struct adma_request *req, const struct adma_submit *arg,
			       int *ret)
{
	const struct adma_piece *piece = req->piece;
	unsigned int nr, ranges = 0;
	u64 bytes = 0;

	req->flags = arg->flags;
	*ret = adma_pieces_read(arg, req->piece);
	for (nr = 0; nr < arg->count && !*ret; nr++) {
		bytes += piece[nr].len;
		if (bytes > ADMA_MAX_BYTES) {
			*ret = -EAGAIN;
			break;
		}
		/* A part has one range of the destination, and of the source at most two. */
		ranges += 3 * (adma_ranges_of(arg->flags & ADMA_SUBMIT_PUSH ?
					      piece[nr].src : piece[nr].dst,
					      piece[nr].len) + 1);
	}
	if (nr && adma_request_reserve(req, ranges)) {
		*ret = -ENOMEM;
		return 0;
	}
	/* The caller copies what is refused: nothing of it should have been. */
	req->whole = arg->flags || !adma_has_room(req->mem, 2 * bytes / PAGE_SIZE);
	return nr;
}

/*
 * Takes hold of the export, whose owner may wait for the request's transfers. Nothing
 * blocks on the caller's memory from here on.
 */
static int adma_request_enter(struct adma_request *req, const struct adma_submit *arg,
			      const struct file_operations *port)
{
	struct adma_buf *buf;

	buf = adma_buf_enter(port, arg->port, arg->export,
			     arg->flags & ADMA_SUBMIT_PUSH ? ADMA_EXPORT_WRITE :
							     ADMA_EXPORT_READ);
	if (IS_ERR(buf))
		return PTR_ERR(buf);
	req->buf = buf;
	req->job.buf = buf;
	req->job.owner[1] = buf->exports->mem;
	return 0;
}

/*
 * Cutting a piece into transfers
 */

/* Begins a side: an address of the caller's, or an offset into the export. */
static int adma_side_init(struct adma_request *req, struct adma_side *side,
			  u64 place, u64 len, unsigned int *range, bool exported)
{
	struct adma_buf *buf = req->buf;

	if (!exported) {
		side->addr = place;
		side->range = req->range + *range;
		side->first = adma_range_of(place);
		*range += adma_ranges_of(place, len);
		return 0;
	}
	if (place > buf->len || len > buf->len - place ||
	    !IS_ALIGNED(buf->addr + place, adma_align))
		return -EINVAL;
	side->addr = buf->addr + place;
	side->range = buf->range;
	side->first = adma_range_of(buf->addr);
	return 0;
}

/* Returns the DMA address of the byte @behind the next one. */
static dma_addr_t adma_side_dma(const struct adma_side *side, size_t behind,
				unsigned int device)
{
	u64 addr = side->addr + behind;
	struct adma_range *range = side->range[adma_range_of(addr) - side->first];

	return range->mapping[device].addr[adma_page_of(addr)] +
	       offset_in_page(addr);
}

static bool adma_side_stale(const struct adma_side *side, size_t len)
{
	struct adma_range **range = side->range + adma_range_of(side->addr) - side->first;
	unsigned int nr = adma_ranges_of(side->addr, len);

	while (nr--) {
		if (READ_ONCE(range[nr]->dead))
			return true;
	}
	return false;
}

/* Whether a range of the transfer has died, or the export was taken back. */
static bool adma_xfer_stale(struct adma_job *job)
{
	struct adma_request *req = container_of(job, struct adma_request, job);

	return (req->buf && READ_ONCE(req->buf->refuse)) ||
	       adma_side_stale(&req->dst, req->xfer_len) ||
	       adma_side_stale(&req->src, req->xfer_len);
}

/* Submits what is physically contiguous on both sides; @flags are for the part's end. */
static int adma_xfer_send(struct adma_request *req, struct adma_chan_req *cr, u64 left,
			  unsigned long flags)
{
	struct adma_side *dst = &req->dst, *src = &req->src;
	unsigned int device = cr->ch->device;
	dma_addr_t to = adma_side_dma(dst, 0, device);
	dma_addr_t from = adma_side_dma(src, 0, device);
	size_t len = 0, most = min_t(u64, left, ADMA_MAX_XFER);

	do {
		len += min3(most - len, PAGE_SIZE - offset_in_page(dst->addr + len),
			    PAGE_SIZE - offset_in_page(src->addr + len));
	} while (len < most && adma_side_dma(dst, len, device) == to + len &&
		 adma_side_dma(src, len, device) == from + len);
	req->xfer_len = len;
	return adma_chan_req_send(cr, to, from, len, len == left ? flags : 0,
				  adma_xfer_stale);
}

/*
 * Submits a part of a piece; waits only for the channel. The submitted part of a piece
 * that fails ends with the request. @last: it is the channel's last one before a
 * stretch is closed without a word.
 */
static int adma_part_start(struct adma_request *req, const struct adma_part *part,
			   bool last)
{
	const struct adma_piece *piece = &req->piece[part->piece];
	struct adma_chan_req *cr = req->part[part->channel];
	unsigned long flags = last ? DMA_PREP_FENCE | DMA_PREP_INTERRUPT : 0;
	unsigned int range = part->range;
	u64 left = part->len;
	int idx, ret;

	/* The word must not overtake a whole piece. */
	if (part->at + part->len == piece->len)
		flags |= DMA_PREP_FENCE;
	ret = adma_side_init(req, &req->dst, piece->dst + part->at, left, &range,
			     req->flags & ADMA_SUBMIT_PUSH);
	if (!ret)
		ret = adma_side_init(req, &req->src, piece->src + part->at, left,
				     &range, req->flags & ADMA_SUBMIT_PULL);
	if (ret)
		return ret;
	if (!cr)
		cr = adma_chan_req_begin(&adma_channels[part->channel], &req->job);
	req->part[part->channel] = cr;
	if (!cr)
		return -EBUSY;
	cr->pieces |= BIT_ULL(part->piece);
	idx = srcu_read_lock(&adma_srcu);
	while (left && !ret) {
		ret = adma_xfer_send(req, cr, left, flags);
		left -= req->xfer_len;
		req->dst.addr += req->xfer_len;
		req->src.addr += req->xfer_len;
		cond_resched();
	}
	srcu_read_unlock(&adma_srcu, idx);
	/* Only its owner can pin an export anew. */
	if (ret == -ESTALE)
		return req->buf ? -EFAULT : -EBUSY;
	if (!ret)
		adma_channel_issue(cr->ch, false);
	return ret;
}

/* Closes the stretch; @final: and the request, with a word on each channel it used. */
static void adma_stretch_close(struct adma_request *req, bool final)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_chan_req *cr = req->part[i];
		bool sent = cr && cr->sent;

		if (sent)
			req->used |= BIT(i);
		if (final && !cr && req->used & BIT(i) && adma_channels[i].ordered) {
			cr = adma_chan_req_begin(&adma_channels[i], &req->job);
			req->unproven |= !cr;
		}
		req->part[i] = NULL;
		if (!cr)
			continue;
		sent |= final && req->used & BIT(i);
		if (!adma_chan_req_close(cr, final && sent))
			req->unproven |= sent;
	}
}

/*
 * Sends the stretch. Returns how many of @count pieces were taken so far, and why not
 * the next one.
 */
static unsigned int adma_stretch_send(struct adma_request *req, unsigned int count,
				      bool final, int *why)
{
	u8 last[ADMA_MAX_CHANNELS] = {};
	unsigned int i;
	int ret;

	count = adma_stretch_refresh(req, count, why);
	for (i = 0; i < req->nr_parts; i++) {
		if (req->parts[i].piece < count)
			last[req->parts[i].channel] = i;
	}
	for (i = 0; i < req->nr_parts; i++) {
		const struct adma_part *part = &req->parts[i];

		if (part->piece >= count)
			continue;
		ret = adma_part_start(req, part, !final && last[part->channel] == i);
		if (ret) {
			*why = ret;
			count = part->piece;
		}
	}
	adma_stretch_close(req, final);
	req->nr_parts = 0;
	req->stretches++;
	req->sent_pinned = req->pinned;
	return count;
}

/* Returns whether enough is prepared to be sent while more is pinned. */
static bool adma_stretch_full(const struct adma_request *req)
{
	unsigned int pages = ADMA_FIRST_PAGES, i;

	for (i = 0; i < req->stretches && pages < ADMA_MAX_STRETCH; i++)
		pages *= ADMA_GROWTH;
	/* Pages of both sides. */
	return req->nr_parts == ADMA_MAX_PIECES ||
	       req->pinned - req->sent_pinned >= 2 * pages;
}

/* Prepares @count pieces and sends them. Returns how many were taken. */
unsigned int adma_pieces_send(struct adma_request *req, unsigned int count,
			      const struct adma_submit *arg,
			      const struct file_operations *port, int *why)
{
	bool more = true;
	unsigned int nr;
	int ret;

	while (more) {
		more = false;
		for (nr = 0; nr < count; nr++) {
			if (req->progress[nr] == req->piece[nr].len)
				continue;
			more = true;
			ret = adma_part_add(req, nr);
			if (ret > 0) {
				count = adma_stretch_send(req, count, false, why);
				ret = nr < count ? adma_part_add(req, nr) : 0;
			}
			if (ret) {
				*why = ret;
				count = nr;
			} else if (!req->whole && adma_stretch_full(req)) {
				count = adma_stretch_send(req, count, false, why);
			}
		}
	}
	if (!count)
		adma_ranges_refused(req->range, req->nr_ranges, *why);
	if (count && req->flags) {
		ret = adma_request_enter(req, arg, port);
		if (ret) {
			*why = ret;
			count = 0;
		}
	}
	return adma_stretch_send(req, count, true, why);
}
