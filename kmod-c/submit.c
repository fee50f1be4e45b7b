// SPDX-License-Identifier: GPL-2.0
/*
 * Submission of a request. First all its pages are pinned, which may take as long
 * as their providers like; then its pieces are cut into transfers and sent to
 * channels, where nothing faults any more. So no place of a channel is held, nor
 * is an export in use, while a page is waited for.
 */
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "request.h"

/* How often pages are pinned that have changed by the time that all are. */
#define ADMA_PIN_TRIES	8

/* How long a submission that finds no room waits for requests of its own file. */
#define ADMA_CATCH_UP_MS	20

unsigned long adma_max_bytes = 64UL << 20;
module_param_named(max_bytes, adma_max_bytes, ulong, 0644);
MODULE_PARM_DESC(max_bytes, "bytes in flight of one user at most (default 64 MiB)");

/*
 * Checking and pinning
 */

/* An address of the caller's, or an offset; into what, is seen later. */
static bool adma_place_ok(u64 *addr, u64 len, unsigned int align, bool offset)
{
	if (offset)
		return *addr <= ADMA_MAX_LEN;
	/* What the processor does not look at is not part of the address. */
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

static int adma_charge_bytes(struct adma_request *req, u64 len)
{
	atomic64_t *bytes = &req->file->user->bytes;
	int tries;

	for (tries = 0; tries < 2; tries++) {
		if (tries)
			adma_mem_settle(&req->file->mem, ADMA_CATCH_UP_MS);
		if (atomic64_add_return(len, bytes) <= READ_ONCE(adma_max_bytes)) {
			req->bytes += len;
			return 0;
		}
		atomic64_sub(len, bytes);
	}
	return -EAGAIN;
}

/* Makes room for that many ranges; it stays with the slot. */
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

/* Chooses a channel for a piece, and pins what is the caller's of it. */
static int adma_piece_pin(struct adma_request *req, unsigned int nr, u8 *channel)
{
	const struct adma_piece *piece = &req->piece[nr];
	bool push = req->flags & ADMA_SUBMIT_PUSH;
	struct adma_mem *mem = &req->file->mem;
	u64 first = push ? req->piece[0].src : req->piece[0].dst;
	unsigned int device;
	int ret;

	ret = adma_channel_pick(piece->channel, push ? piece->src : piece->dst,
				adma_range_of(first) + nr);
	if (ret < 0)
		return ret;
	*channel = ret;
	device = adma_channels[ret].device;
	ret = 0;
	if (!push)
		ret = adma_ranges_get(mem, piece->dst, piece->len, true, device,
				      req->range, &req->nr_ranges, &req->pinned);
	if (!ret && !(req->flags & ADMA_SUBMIT_PULL))
		ret = adma_ranges_get(mem, piece->src, piece->len, false, device,
				      req->range, &req->nr_ranges, &req->pinned);
	return ret;
}

/* Returns how many pieces are pinned, and none of them has changed since. */
static unsigned int adma_pieces_pin(struct adma_request *req, unsigned int count,
				    u8 *channels, int *ret)
{
	unsigned int i, nr, tries;
	int err = 0;

	for (tries = 0; tries < ADMA_PIN_TRIES; tries++) {
		bool dead = false;

		for (nr = 0; nr < count; nr++) {
			err = adma_piece_pin(req, nr, &channels[nr]);
			if (err)
				break;
		}
		for (i = 0; i < req->nr_ranges; i++)
			dead |= READ_ONCE(req->range[i]->dead);
		if (!dead) {
			*ret = err ?: *ret;
			return nr;
		}
		while (req->nr_ranges)
			adma_range_put(req->range[--req->nr_ranges]);
	}
	*ret = -EBUSY;
	return 0;
}

/*
 * All that may take as long as the caller likes; the export, whose owner may wait
 * for its end, comes last. Returns for how many pieces.
 */
static unsigned int adma_request_prepare(struct adma_request *req,
					 const struct adma_submit *arg,
					 const struct file_operations *port,
					 u8 *channels, int *ret)
{
	bool push = arg->flags & ADMA_SUBMIT_PUSH;
	const struct adma_piece *piece = req->piece;
	unsigned int nr, ranges = 0;
	struct adma_buf *buf;

	req->flags = arg->flags;
	*ret = adma_pieces_read(arg, req->piece);
	for (nr = 0; nr < arg->count && !*ret; nr++) {
		*ret = adma_charge_bytes(req, piece[nr].len);
		if (*ret)
			break;
		if (!push)
			ranges += adma_ranges_of(piece[nr].dst, piece[nr].len);
		if (!(arg->flags & ADMA_SUBMIT_PULL))
			ranges += adma_ranges_of(piece[nr].src, piece[nr].len);
	}
	if (!nr)
		return 0;
	if (adma_request_reserve(req, ranges)) {
		*ret = -ENOMEM;
		return 0;
	}
	nr = adma_pieces_pin(req, nr, channels, ret);
	if (!arg->flags || !nr)
		return nr;
	buf = adma_buf_enter(port, arg->port, arg->export,
			     push ? ADMA_EXPORT_WRITE : ADMA_EXPORT_READ);
	if (IS_ERR(buf)) {
		*ret = PTR_ERR(buf);
		return 0;
	}
	req->buf = buf;
	req->job.buf = buf;
	req->job.owner[1] = &buf->file->mem;
	return nr;
}

/*
 * Cutting a piece into transfers: stretches that lie together in physical memory,
 * on both sides. They are submitted in batches.
 */

/* Begins a side: an address of the caller's, or an offset into the export. */
static int adma_side_init(struct adma_request *req, struct adma_side *side,
			  u64 place, u64 len, bool exported)
{
	struct adma_buf *buf = req->buf;

	if (!exported) {
		*side = (struct adma_side) {
			.addr = place,
			.range = req->range + req->next_range,
			.first = adma_range_of(place),
		};
		req->next_range += adma_ranges_of(place, len);
		return 0;
	}
	if (place > buf->len || len > buf->len - place ||
	    !IS_ALIGNED(buf->addr + place, adma_align))
		return -EINVAL;
	*side = (struct adma_side) {
		.addr = buf->addr + place,
		.range = buf->range,
		.first = adma_range_of(buf->addr),
	};
	return 0;
}

/* Returns where the next byte is, for the device. */
static dma_addr_t adma_side_dma(const struct adma_side *side, unsigned int device)
{
	struct adma_range *range = side->range[adma_range_of(side->addr) - side->first];

	return range->mapping[device].addr[adma_page_of(side->addr)] +
	       offset_in_page(side->addr);
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

/* Adds bytes to the batch, which is sent first if it is full. */
static int adma_batch_add(struct adma_request *req, size_t len)
{
	struct adma_side *dst = &req->dst, *src = &req->src;
	unsigned int device = req->cr->ch->device;
	dma_addr_t to = adma_side_dma(dst, device), from = adma_side_dma(src, device);
	struct adma_xfer *xfer = req->xfer + req->nr_xfers - 1;
	int ret;

	if (!req->nr_xfers || to != xfer->dst + xfer->len ||
	    from != xfer->src + xfer->len || xfer->len + len > ADMA_MAX_XFER) {
		if (req->nr_xfers == ADMA_BATCH || req->xfer_bytes >= ADMA_MAX_XFER) {
			ret = adma_batch_send(req);
			if (ret)
				return ret;
			cond_resched();
		}
		if (!req->nr_xfers) {
			dst->batch = adma_range_of(dst->addr) - dst->first;
			src->batch = adma_range_of(src->addr) - src->first;
		}
		xfer = req->xfer + req->nr_xfers++;
		*xfer = (struct adma_xfer) { .dst = to, .src = from };
	}
	xfer->len += len;
	req->xfer_bytes += len;
	dst->addr += len;
	src->addr += len;
	return 0;
}

/*
 * Submits a piece; waits for nothing but the channel. What was submitted of one
 * that fails ends with the request.
 */
static int adma_piece_start(struct adma_request *req, unsigned int nr, u8 channel)
{
	const struct adma_piece *piece = &req->piece[nr];
	u64 len = piece->len;
	size_t part;
	int ret;

	ret = adma_side_init(req, &req->dst, piece->dst, len,
			     req->flags & ADMA_SUBMIT_PUSH);
	if (!ret)
		ret = adma_side_init(req, &req->src, piece->src, len,
				     req->flags & ADMA_SUBMIT_PULL);
	if (ret)
		return ret;
	if (!req->part[channel])
		req->part[channel] =
			adma_chan_req_begin(&adma_channels[channel], &req->job);
	req->cr = req->part[channel];
	if (!req->cr)
		return -EBUSY;
	req->cr->pieces |= BIT_ULL(nr);
	for (; len && !ret; len -= part) {
		part = min3(len, (u64)PAGE_SIZE - offset_in_page(req->dst.addr),
			    (u64)PAGE_SIZE - offset_in_page(req->src.addr));
		ret = adma_batch_add(req, part);
	}
	if (!ret)
		ret = adma_batch_send(req);
	/* To pin an export anew is the business of its owner. */
	if (ret == -ESTALE)
		return req->buf ? -EFAULT : -EBUSY;
	if (!ret)
		adma_channel_issue(req->cr->ch, false);
	return ret;
}

/* Returns the channels whose words tell its end; 0 if one's does not. */
static u32 adma_request_close(struct adma_request *req)
{
	bool proven = true;
	unsigned int i;
	u32 used = 0;

	for (i = 0; i < adma_nr_channels; i++) {
		if (!req->part[i])
			continue;
		if (req->part[i]->sent)
			used |= BIT(i);
		proven &= adma_chan_req_close(req->part[i]) || !(used & BIT(i));
	}
	return proven && !atomic64_read(&req->job.failed) ? used : 0;
}

int adma_submit(struct file *filp, const struct file_operations *port,
		struct adma_submit *arg)
{
	struct adma_file *file = filp->private_data;
	struct adma_piece __user *user = u64_to_user_ptr(arg->pieces);
	u8 channels[ADMA_MAX_PIECES];	/* where pieces went */
	struct adma_request *req;
	unsigned int i, ready;
	struct adma_wait wait;
	int ret, err;

	memset_startat(arg, 0, id);
	if (!arg->count || arg->count > ADMA_MAX_PIECES ||
	    arg->flags == (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH) ||
	    (!arg->flags && (arg->export || arg->port)))
		return -EINVAL;
	req = adma_request_take(file);
	if (req == ERR_PTR(-EAGAIN)) {
		adma_mem_settle(&file->mem, ADMA_CATCH_UP_MS);
		req = adma_request_take(file);
	}
	if (IS_ERR(req))
		return PTR_ERR(req);

	ready = adma_request_prepare(req, arg, port, channels, &ret);
	for (; req->accepted < ready; req->accepted++) {
		err = adma_piece_start(req, req->accepted, channels[req->accepted]);
		if (err) {
			ret = err;
			break;
		}
		adma_count(ADMA_STAT_COPIES, 1);
		adma_count(ADMA_STAT_BYTES, req->piece[req->accepted].len);
		if (req->buf)
			adma_count(ADMA_STAT_EXPORT_BYTES,
				   req->piece[req->accepted].len);
	}
	arg->channels = adma_request_close(req);
	arg->id = req->job.id;
	arg->slot = req->job.slot;
	arg->accepted = req->accepted;
	arg->pinned = req->pinned;
	adma_job_put(&req->job);
	/* Only for the caller's statistics: a failure is its loss. */
	for (i = 0; i < arg->accepted; i++) {
		if (put_user(channels[i], &user[i].channel))
			break;
	}
	/*
	 * Nothing was taken, so nothing will wait for what was begun of it. A
	 * killed caller leaves it to the close of the file.
	 */
	if (!arg->accepted) {
		wait.id = arg->id;
		wait_event_killable(file->mem.wait,
				    adma_ended(file, &wait) != -EAGAIN);
		arg->id = 0;
		arg->channels = 0;
	}
	return ret;
}
