// SPDX-License-Identifier: GPL-2.0
/* One request, from the caller's pieces to the last byte. */
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "adma.h"
#include "trace.h"

/*
 * Each holds a chan_req of every channel it has pieces for, also while it waits
 * for a page: one user leaves enough of them to others.
 */
#define ADMA_USER_REQUESTS	(ADMA_CHAN_REQS / 2)

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	u64 failed = atomic64_read(&req->failed);
	struct adma_file *file = req->file;
	unsigned int i;

	/* Pieces that were not taken are known to the caller. */
	if (req->accepted < 64)
		failed &= BIT_ULL(req->accepted) - 1;
	for (i = 0; i < req->nr_ranges; i++)
		adma_range_put(req->range[i]);
	if (req->buf)
		adma_buf_leave(req->buf);
	adma_ranges_trim(file);
	trace_adma_complete(req->id, req->bytes, failed);
	atomic64_sub(req->bytes, &file->user->bytes);
	atomic_dec(&file->user->requests);
	spin_lock(&file->lock);
	/* From here on it is somebody else's, or kept until he has been told. */
	atomic64_set(&req->failed, failed);
	req->state = failed ? ADMA_FAILED : ADMA_FREE;
	spin_unlock(&file->lock);
	atomic_dec(&file->ending);
	wake_up_all(&file->wait);
	adma_file_put(file);
}

/* Letting pages go may sleep, and the last part may end in an interrupt. */
void adma_request_put(struct adma_request *req)
{
	if (!refcount_dec_and_test(&req->parts))
		return;
	atomic_inc(&req->file->ending);
	queue_work(adma_workqueue, &req->end);
}

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

/* Room for so many ranges more; it stays with the slot. */
int adma_request_reserve(struct adma_request *req, unsigned int more)
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

/* The request of a slot, made when it is first asked for. */
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
	req->slot = slot;
	INIT_WORK(&req->end, adma_request_end);
	first = cmpxchg(&file->slot[slot], NULL, req);
	if (first)
		kvfree(req);
	return first ?: req;
}

/* One that is free: until it is over, nobody else touches it. */
static struct adma_request *adma_request_take(struct adma_file *file)
{
	struct adma_request *req;
	int i, ret = -EAGAIN;

	if (atomic_inc_return(&file->user->requests) > ADMA_USER_REQUESTS)
		goto err_uncount;
	for (i = 0; i < ADMA_SLOTS; i++) {
		req = adma_request_of(file, i);
		if (!req) {
			ret = -ENOMEM;
			break;
		}
		spin_lock(&file->lock);
		if (req->state != ADMA_FREE) {
			spin_unlock(&file->lock);
			continue;
		}
		req->state = ADMA_BUSY;
		/* 0 is no number. */
		req->id = ++file->sequence * ADMA_SLOTS + i;
		spin_unlock(&file->lock);
		memset_startat(req, 0, failed);
		req->chunk = 1;
		refcount_set(&req->parts, 1);
		kref_get(&file->kref);
		return req;
	}
err_uncount:
	atomic_dec(&file->user->requests);
	return ERR_PTR(ret);
}

static u64 adma_own_addr(const struct adma_request *req, unsigned int nr)
{
	return req->push ? req->piece[nr].src : req->piece[nr].dst;
}

static int adma_charge_bytes(struct adma_request *req, u64 len)
{
	atomic64_t *bytes = &req->file->user->bytes;
	int tries;

	for (tries = 0; tries < 2; tries++) {
		if (tries)
			adma_file_catch_up(req->file, 0);
		if (atomic64_add_return(len, bytes) <= READ_ONCE(adma_max_bytes)) {
			req->bytes += len;
			return 0;
		}
		atomic64_sub(len, bytes);
	}
	return -EAGAIN;
}

/*
 * Before the first piece. Between processes that is all that may take as long as
 * the caller likes, and then the buffer, whose owner may wait for its end; from
 * there on only channels are waited for. Answers for how many pieces.
 */
static unsigned int adma_request_prepare(struct adma_request *req,
					 const struct adma_submit *arg, int *ret)
{
	u32 wanted = req->push ? ADMA_EXPORT_WRITE : ADMA_EXPORT_READ;
	struct adma_buf *buf;
	unsigned int i;

	*ret = adma_pieces_read(arg, req->piece);
	if (*ret)
		return 0;
	for (i = 0; i < arg->count; i++) {
		u64 addr = adma_own_addr(req, i), len = req->piece[i].len;

		*ret = adma_charge_bytes(req, len);
		if (arg->flags && !*ret)
			*ret = adma_request_reserve(req, adma_ranges_of(addr, len));
		if (arg->flags && !*ret)
			*ret = adma_ranges_fill(req->file, addr, len, !req->push,
						req->range, &req->nr_ranges,
						&req->pinned);
		if (*ret)
			break;
	}
	if (!arg->flags || !i)
		return i;
	buf = adma_buf_enter(arg->port, arg->export, wanted);
	if (IS_ERR(buf)) {
		*ret = PTR_ERR(buf);
		return 0;
	}
	req->buf = buf;
	return i;
}

/* The first piece is under way while the next one is pinned. */
static int adma_pieces_start(struct adma_request *req, unsigned int count,
			     u8 *channels)
{
	int ret, channel;

	for (; req->accepted < count; req->accepted++) {
		unsigned int nr = req->accepted;
		const struct adma_piece *piece = &req->piece[nr];

		channel = adma_channel_pick(piece->channel,
					    adma_own_addr(req, nr),
					    adma_range_of(adma_own_addr(req, 0)) + nr);
		if (channel < 0)
			return channel;
		if (!req->part[channel])
			req->part[channel] =
				adma_chan_req_begin(&adma_channels[channel], req);
		req->cr = req->part[channel];
		if (!req->cr)
			return -EBUSY;
		req->cr->pieces |= BIT_ULL(nr);
		ret = adma_piece_send(req, piece);
		if (ret)
			return ret;
		channels[nr] = channel;
		adma_count(ADMA_STAT_COPIES, 1);
		adma_count(ADMA_STAT_BYTES, piece->len);
		if (req->buf)
			adma_count(ADMA_STAT_EXPORT_BYTES, piece->len);
	}
	return 0;
}

/* Answers the channels whose words tell its end; 0 if one's does not. */
static u32 adma_request_close(struct adma_request *req)
{
	bool told = true;
	u32 channels = 0;
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		if (!req->part[i])
			continue;
		channels |= BIT(i);
		told &= adma_chan_req_close(req->part[i]);
	}
	return told ? channels : 0;
}

int adma_submit(struct file *filp, struct adma_submit *arg)
{
	struct adma_file *file = filp->private_data;
	struct adma_piece __user *user = u64_to_user_ptr(arg->pieces);
	u8 channels[ADMA_MAX_PIECES];	/* where pieces went */
	struct adma_request *req;
	unsigned int i, ready;
	struct adma_wait wait;
	int ret, refused;

	memset_startat(arg, 0, id);
	if (!arg->count || arg->count > ADMA_MAX_PIECES ||
	    arg->flags == (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH) ||
	    (!arg->flags && (arg->export || arg->port)))
		return -EINVAL;
	req = adma_request_take(file);
	if (req == ERR_PTR(-EAGAIN)) {
		adma_file_catch_up(file, 0);
		req = adma_request_take(file);
	}
	if (IS_ERR(req))
		return PTR_ERR(req);

	req->push = arg->flags & ADMA_SUBMIT_PUSH;
	ready = adma_request_prepare(req, arg, &ret);
	refused = adma_pieces_start(req, ready, channels);
	if (refused)
		ret = refused;
	arg->channels = adma_request_close(req);
	arg->id = req->id;
	arg->slot = req->slot;
	arg->accepted = req->accepted;
	arg->pinned = req->pinned;
	trace_adma_submit(req->id, arg->count, req->accepted, req->bytes,
			  req->pinned, ret);
	adma_request_put(req);
	/* Only for the caller's statistics: a failure is his loss. */
	for (i = 0; i < arg->accepted; i++) {
		if (put_user(channels[i], &user[i].channel))
			break;
	}
	/*
	 * Nothing was taken, so nobody will wait for what was begun of it. A
	 * killed caller leaves it to the close of the file.
	 */
	if (!arg->accepted) {
		wait.id = arg->id;
		wait_event_killable(file->wait,
				    adma_ended(filp, &wait) != -EAGAIN);
		arg->id = 0;
		arg->channels = 0;
	}
	return ret;
}
