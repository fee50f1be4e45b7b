// SPDX-License-Identifier: GPL-2.0
/*
 * Requests: submission, completion, and waiting for it.
 *
 * First all pages of a request are pinned, which may block without limit (FUSE,
 * userfaultfd); then its pieces are cut into transfers and sent to channels,
 * where nothing faults any more. So no place of a channel is held, nor is an
 * export in use, while a page is waited for.
 */
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "file.h"

/* Attempts to pin all pages before one of them changes. */
#define ADMA_PIN_TRIES	8

/* How long a submission without a free slot waits for its file's requests. */
#define ADMA_CATCH_UP_MS	20

/* Progress on one side of a piece. */
struct adma_side {
	u64 addr;			/* of the next byte */
	struct adma_range **range;	/* of all its bytes, in order */
	u64 first;			/* index of the first one */
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
	struct adma_file *file;
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
	unsigned int next_range;	/* of the piece that is submitted next */
	unsigned int pinned;	/* pages */
	struct adma_chan_req *part[ADMA_MAX_CHANNELS];	/* NULL: not used */

	/* The piece that is being submitted. */
	struct adma_side dst;
	struct adma_side src;
	size_t xfer_len;	/* of the transfer that begins there */
};

/*
 * Slots, and the end
 */

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	u64 failed = atomic64_read(&req->job.failed);
	struct adma_file *file = req->file;
	unsigned int i;

	/* Pieces that were not taken are known to the caller. */
	if (req->accepted < 64)
		failed &= BIT_ULL(req->accepted) - 1;
	for (i = 0; i < req->nr_ranges; i++)
		adma_range_put(req->range[i]);
	if (req->buf)
		adma_buf_leave(req->buf);
	adma_ranges_trim(&file->mem);
	spin_lock(&file->lock);
	/* From here on the slot is another request's, or kept until WAIT. */
	atomic64_set(&req->job.failed, failed);
	req->state = failed ? ADMA_FAILED : ADMA_FREE;
	spin_unlock(&file->lock);
	atomic_dec(&file->mem.ending);
	adma_file_leave(file);
	wake_up_all(&file->mem.wait);
	adma_mem_put(&file->mem);
}

/* Unpinning may sleep, but the last chan_req may end in an interrupt. */
static void adma_job_end(struct adma_job *job)
{
	struct adma_request *req = container_of(job, struct adma_request, job);

	atomic_inc(&req->file->mem.ending);
	queue_work(adma_workqueue, &req->end);
}

/* Returns the request of a slot, allocated when first asked for. */
static struct adma_request *adma_request_of(struct adma_file *file,
					    unsigned int slot)
{
	struct adma_request *first, *req = READ_ONCE(file->slot[slot]);

	if (req)
		return req;
	req = kvzalloc(sizeof(*req), GFP_KERNEL_ACCOUNT);
	if (!req)
		return NULL;
	req->file = file;
	req->job.slot = slot;
	req->job.words = file->words;
	req->job.user = file->mem.cred->user;
	req->job.owner[0] = &file->mem;
	req->job.end = adma_job_end;
	INIT_WORK(&req->end, adma_request_end);
	first = cmpxchg(&file->slot[slot], NULL, req);
	if (first)
		kvfree(req);
	return first ?: req;
}

/* Returns the request of a free slot, -EAGAIN if there is none, or -ENOMEM. */
static struct adma_request *adma_request_take(struct adma_file *file)
{
	struct adma_request *req;
	unsigned int i;

	for (i = 0; i < ADMA_SLOTS; i++) {
		req = adma_request_of(file, i);
		if (!req)
			return ERR_PTR(-ENOMEM);
		spin_lock(&file->lock);
		if (req->state != ADMA_FREE) {
			spin_unlock(&file->lock);
			continue;
		}
		req->state = ADMA_BUSY;
		/* 0 is no number. */
		req->job.id = ++file->sequence * ADMA_SLOTS + i;
		spin_unlock(&file->lock);
		memset_startat(req, 0, buf);
		req->job.owner[1] = NULL;
		req->job.buf = NULL;
		atomic64_set(&req->job.failed, 0);
		refcount_set(&req->job.parts, 1);
		refcount_inc(&file->active);
		kref_get(&file->mem.kref);
		return req;
	}
	return ERR_PTR(-EAGAIN);
}

void adma_requests_free(struct adma_file *file)
{
	unsigned int i;

	for (i = 0; i < ADMA_SLOTS; i++) {
		if (file->slot[i])
			kfree(file->slot[i]->range);
		kvfree(file->slot[i]);
	}
}

/*
 * Looks at the requests up to @sequence. Returns EPOLLIN if none is in flight, and
 * EPOLLERR if one has failed that was not asked for.
 */
__poll_t adma_requests_poll(struct adma_file *file, u64 sequence)
{
	__poll_t mask = EPOLLIN | EPOLLRDNORM;
	unsigned int i;

	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS; i++) {
		struct adma_request *req = READ_ONCE(file->slot[i]);

		if (!req || req->job.id / ADMA_SLOTS > sequence)
			continue;
		if (req->state == ADMA_BUSY)
			mask &= ~(EPOLLIN | EPOLLRDNORM);
		if (req->state == ADMA_FAILED)
			mask |= EPOLLERR;
	}
	spin_unlock(&file->lock);
	return mask;
}

/*
 * Returns whether a request is over: 0, -EAGAIN, or -EINVAL for an unknown
 * number. Its failed pieces are reported once.
 */
static int adma_ended(struct adma_file *file, struct adma_wait *arg)
{
	struct adma_request *req = READ_ONCE(file->slot[arg->id % ADMA_SLOTS]);
	int ret = 0;

	spin_lock(&file->lock);
	if (!arg->id || !req || req->job.id < arg->id) {
		ret = -EINVAL;
	} else if (req->job.id == arg->id && req->state == ADMA_BUSY) {
		ret = -EAGAIN;
	} else if (req->job.id == arg->id && req->state == ADMA_FAILED) {
		arg->failed = atomic64_read(&req->job.failed);
		req->state = ADMA_FREE;
	}
	spin_unlock(&file->lock);
	return ret;
}

int adma_wait(struct adma_file *file, struct adma_wait *arg)
{
	long left, limit = adma_timeout_of(arg);
	int ret;

	arg->failed = 0;
	left = wait_event_interruptible_timeout(file->mem.wait,
						(ret = adma_ended(file, arg)) != -EAGAIN,
						limit);
	if (left < 0)
		return -EINTR;
	return left || !limit ? ret : -ETIMEDOUT;
}

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

/* Chooses a channel for a piece, and pins the caller's memory in it. */
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
	ret = adma_words_get(mem, *channel);
	if (!ret && !push)
		ret = adma_ranges_get(mem, piece->dst, piece->len, true, device,
				      req->range, &req->nr_ranges, &req->pinned);
	if (!ret && !(req->flags & ADMA_SUBMIT_PULL))
		ret = adma_ranges_get(mem, piece->src, piece->len, false, device,
				      req->range, &req->nr_ranges, &req->pinned);
	return ret;
}

/* Returns how many pieces are pinned and unchanged since. */
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
			if (!nr)
				adma_ranges_refused(req->range, req->nr_ranges, err);
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
 * Does all that may block on the caller's memory; the export, whose owner may wait
 * for its end, comes last. Returns the number of pieces that are ready.
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
	u64 bytes = 0;

	req->flags = arg->flags;
	*ret = adma_pieces_read(arg, req->piece);
	for (nr = 0; nr < arg->count && !*ret; nr++) {
		bytes += piece[nr].len;
		if (bytes > ADMA_MAX_BYTES) {
			*ret = -EAGAIN;
			break;
		}
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
 * Cutting a piece into transfers
 */

/* Begins a side: an address of the caller's, or an offset into the export. */
static int adma_side_init(struct adma_request *req, struct adma_side *side,
			  u64 place, u64 len, bool exported)
{
	struct adma_buf *buf = req->buf;

	if (!exported) {
		side->addr = place;
		side->range = req->range + req->next_range;
		side->first = adma_range_of(place);
		req->next_range += adma_ranges_of(place, len);
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

/* Submits what is physically contiguous on both sides. */
static int adma_xfer_send(struct adma_request *req, struct adma_chan_req *cr, u64 left)
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
	return adma_chan_req_send(cr, to, from, len, len == left, adma_xfer_stale);
}

/*
 * Submits a piece; waits only for the channel. The submitted part of a piece
 * that fails ends with the request.
 */
static int adma_piece_start(struct adma_request *req, unsigned int nr, u8 channel)
{
	const struct adma_piece *piece = &req->piece[nr];
	struct adma_chan_req *cr = req->part[channel];
	u64 left = piece->len;
	int idx, ret;

	ret = adma_side_init(req, &req->dst, piece->dst, left,
			     req->flags & ADMA_SUBMIT_PUSH);
	if (!ret)
		ret = adma_side_init(req, &req->src, piece->src, left,
				     req->flags & ADMA_SUBMIT_PULL);
	if (ret)
		return ret;
	if (!cr)
		cr = adma_chan_req_begin(&adma_channels[channel], &req->job);
	req->part[channel] = cr;
	if (!cr)
		return -EBUSY;
	cr->pieces |= BIT_ULL(nr);
	idx = srcu_read_lock(&adma_srcu);
	while (left && !ret) {
		ret = adma_xfer_send(req, cr, left);
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

/* Returns the channels whose words tell its end; 0 if one has no such word. */
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
	 * Nothing was accepted, so no caller will wait for what was begun of
	 * it. If this one is killed, closing the file waits.
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
