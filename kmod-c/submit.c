// SPDX-License-Identifier: GPL-2.0
/*
 * Submission of a request: its pieces are checked, pinned and sent to channels.
 *
 * A place of a channel (chan_req) is held only while nothing can fault: a page
 * that is not there is waited for after all open parts were closed. So no user
 * keeps others out by pages that never come.
 */
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "hold.h"
#include "request.h"

/* How often a piece is begun whose mapping changes, before it is refused. */
#define ADMA_PIECE_TRIES	8

unsigned long adma_max_bytes = 64UL << 20;
module_param_named(max_bytes, adma_max_bytes, ulong, 0644);
MODULE_PARM_DESC(max_bytes, "bytes in flight of one user at most (default 64 MiB)");

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
			adma_requests_catch_up(req->file, 0);
		if (atomic64_add_return(len, bytes) <= READ_ONCE(adma_max_bytes)) {
			req->bytes += len;
			return 0;
		}
		atomic64_sub(len, bytes);
	}
	return -EAGAIN;
}

/* Makes room for @more ranges; it stays with the slot. */
static int adma_request_reserve(struct adma_request *req, unsigned int more)
{
	unsigned int want = roundup_pow_of_two(req->nr_ranges + more);
	struct adma_range **range;

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

/* Gives the places on all channels back: something may fault now. */
static void adma_request_yield(struct adma_request *req)
{
	unsigned long open = req->open;
	unsigned int i;
	bool sent;

	for_each_set_bit(i, &open, ADMA_MAX_CHANNELS) {
		sent = req->part[i]->sent;
		/* Without order a later part's end proves nothing about this one. */
		if (!adma_chan_req_close(req->part[i], false) ||
		    !adma_channels[i].ordered)
			req->doubt |= sent;
	}
	req->open = 0;
}

#define ADMA_GFP_NOWAIT	(GFP_NOWAIT | __GFP_ACCOUNT | __GFP_NOWARN)

/* Adds the ranges of one side; there is room for them. */
static int adma_side_pin(struct adma_request *req, u64 addr, u64 len, bool write,
			 unsigned int device)
{
	struct adma_mem *mem = &req->file->mem;
	struct adma_range *range;
	u64 end = addr + len;
	size_t part;

	for (; addr < end; addr += part) {
		part = min_t(u64, adma_range_rest(addr), end - addr);
		range = adma_range_get(mem, addr, part, write, device,
				       req->open ? ADMA_GFP_NOWAIT : GFP_KERNEL_ACCOUNT,
				       &req->pinned);
		if (IS_ERR(range) && req->open) {
			adma_request_yield(req);
			range = adma_range_get(mem, addr, part, write, device,
					       GFP_KERNEL_ACCOUNT, &req->pinned);
		}
		if (IS_ERR(range))
			return PTR_ERR(range);
		req->range[req->nr_ranges++] = range;
	}
	return 0;
}

static struct adma_side adma_side(u64 addr, struct adma_range **range)
{
	return (struct adma_side) {
		.addr = addr, .range = range, .first = adma_range_of(addr),
	};
}

/* Pins both sides of a piece within the caller's memory. */
static int adma_piece_pin(struct adma_request *req,
			  const struct adma_piece *piece, unsigned int device)
{
	unsigned int nr_dst = adma_ranges_of(piece->dst, piece->len);
	unsigned int nr_src = adma_ranges_of(piece->src, piece->len);
	unsigned int first = req->nr_ranges;
	int ret;

	if (req->nr_ranges + nr_dst + nr_src > req->max_ranges)
		adma_request_yield(req);
	ret = adma_request_reserve(req, nr_dst + nr_src);
	if (!ret)
		ret = adma_side_pin(req, piece->dst, piece->len, true, device);
	if (!ret)
		ret = adma_side_pin(req, piece->src, piece->len, false, device);
	if (ret)
		return ret;
	req->dst = adma_side(piece->dst, req->range + first);
	req->src = adma_side(piece->src, req->range + first + nr_dst);
	return 0;
}

/* Both sides of a piece between processes, which are pinned. */
static int adma_piece_across(struct adma_request *req,
			     const struct adma_piece *piece)
{
	u64 offset = req->push ? piece->dst : piece->src;
	u64 own = req->push ? piece->src : piece->dst;
	struct adma_buf *buf = req->buf;
	struct adma_side theirs, ours;

	if (offset > buf->len || piece->len > buf->len - offset ||
	    !IS_ALIGNED(buf->addr + offset, adma_align))
		return -EINVAL;
	theirs = adma_side(buf->addr + offset, buf->range);
	theirs.first = adma_range_of(buf->addr);
	ours = adma_side(own, req->range + req->own);
	req->own += adma_ranges_of(own, piece->len);
	req->dst = req->push ? theirs : ours;
	req->src = req->push ? ours : theirs;
	return 0;
}

/* Opens a part of the request on a channel; -EBUSY if it has no place. */
static int adma_part_open(struct adma_request *req, unsigned int channel)
{
	if (!(req->open & BIT(channel))) {
		req->part[channel] =
			adma_chan_req_begin(&adma_channels[channel], &req->job);
		if (!req->part[channel])
			return -EBUSY;
		req->open |= BIT(channel);
	}
	req->cr = req->part[channel];
	if (!req->used)
		req->begun = jiffies;
	return 0;
}

/* Returns the channel that took the piece, or an error. */
static int adma_piece_start(struct adma_request *req, unsigned int nr)
{
	const struct adma_piece *piece = &req->piece[nr];
	u64 near = req->push ? piece->src : piece->dst;
	u64 first = req->push ? req->piece[0].src : req->piece[0].dst;
	int channel, ret, tries;

	for (tries = 0; tries < ADMA_PIECE_TRIES; tries++) {
		channel = adma_channel_pick(piece->channel, near,
					    adma_range_of(first) + nr);
		if (channel < 0)
			return channel;
		if (req->buf)
			ret = adma_piece_across(req, piece);
		else
			ret = adma_piece_pin(req, piece,
					     adma_channels[channel].device);
		if (!ret)
			ret = adma_part_open(req, channel);
		if (ret)
			return ret;
		req->cr->pieces |= BIT_ULL(nr);
		ret = adma_piece_send(req, piece->len);
		if (req->cr->sent)
			req->used |= BIT(channel);
		if (!ret)
			return channel;
		/* To pin it anew is the business of a buffer's owner. */
		if (ret == -ESTALE && req->buf)
			return -EFAULT;
		if (ret != -ESTALE)
			return ret;
	}
	return -EBUSY;
}

/*
 * Before the first piece. Between processes that is all that may take as long as
 * the caller likes, and then the buffer, whose owner may wait for its end; from
 * there on only channels are waited for. Returns for how many pieces.
 */
static unsigned int adma_request_prepare(struct adma_request *req,
					 const struct adma_submit *arg,
					 const struct file_operations *port,
					 int *ret)
{
	u32 wanted = req->push ? ADMA_EXPORT_WRITE : ADMA_EXPORT_READ;
	const struct adma_piece *piece = req->piece;
	unsigned int i, charged, ranges = 0;
	struct adma_buf *buf;

	*ret = adma_pieces_read(arg, req->piece);
	for (i = 0; i < arg->count && !*ret; i++) {
		*ret = adma_charge_bytes(req, piece[i].len);
		if (*ret)
			break;
		if (!req->push)
			ranges += adma_ranges_of(piece[i].dst, piece[i].len);
		if (!(arg->flags & ADMA_SUBMIT_PULL))
			ranges += adma_ranges_of(piece[i].src, piece[i].len);
	}
	charged = i;
	if (charged && adma_request_reserve(req, ranges)) {
		*ret = -ENOMEM;
		return 0;
	}
	if (!arg->flags || !charged)
		return charged;
	for (i = 0; i < charged; i++) {
		int err = adma_side_pin(req, req->push ? piece[i].src : piece[i].dst,
					piece[i].len, !req->push, ADMA_EVERY_DEVICE);

		if (err) {
			*ret = err;
			break;
		}
	}
	if (!i)
		return 0;
	buf = adma_buf_enter(port, arg->port, arg->export, wanted);
	if (IS_ERR(buf)) {
		*ret = PTR_ERR(buf);
		return 0;
	}
	req->buf = buf;
	req->job.buf = buf;
	req->job.owner[1] = &buf->file->mem;
	return i;
}

/* Returns the channels whose words tell its end; 0 if one's does not. */
static u32 adma_request_close(struct adma_request *req)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		if (!(req->used & BIT(i))) {
			if (req->open & BIT(i))
				adma_chan_req_close(req->part[i], false);
		} else if (adma_part_open(req, i)) {
			req->doubt = true;
		} else {
			/* Also of parts that were closed before: they had no word. */
			req->doubt |= !adma_chan_req_close(req->cr, true);
		}
	}
	if (req->doubt || !adma_is_recent(req->begun))
		return 0;
	return atomic64_read(&req->job.failed) ? 0 : req->used;
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
	int ret, channel;

	memset_startat(arg, 0, id);
	if (!arg->count || arg->count > ADMA_MAX_PIECES ||
	    arg->flags == (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH) ||
	    (!arg->flags && (arg->export || arg->port)))
		return -EINVAL;
	req = adma_request_take(file);
	if (req == ERR_PTR(-EAGAIN)) {
		adma_requests_catch_up(file, 0);
		req = adma_request_take(file);
	}
	if (IS_ERR(req))
		return PTR_ERR(req);

	req->push = arg->flags & ADMA_SUBMIT_PUSH;
	ready = adma_request_prepare(req, arg, port, &ret);
	for (; req->accepted < ready; req->accepted++) {
		channel = adma_piece_start(req, req->accepted);
		if (channel < 0) {
			ret = channel;
			break;
		}
		channels[req->accepted] = channel;
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
