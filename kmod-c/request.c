// SPDX-License-Identifier: GPL-2.0
/* One request, from the caller's pieces to the last byte. */
#include <linux/nospec.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "adma.h"
#include "trace.h"

void adma_request_free(struct adma_request *req)
{
	if (req)
		kfree(req->range);
	kvfree(req);
}

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	u64 failed = atomic64_read(&req->failed);
	struct adma_file *file = req->file;
	u64 bytes = req->bytes;
	unsigned int i;

	/* Pieces that were not taken are known to the caller. */
	if (req->accepted < 64)
		failed &= BIT_ULL(req->accepted) - 1;
	for (i = 0; i < req->nr_ranges; i++)
		adma_range_put(req->range[i]);
	if (req->buf)
		adma_buf_leave(req->buf);
	adma_ranges_trim(file);
	trace_adma_complete(req->id, bytes, failed);
	/* From here on it is somebody else's. */
	adma_slot_leave(file, req->slot, bytes, failed);
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

/* A slot's request, with its pieces. */
static struct adma_request *adma_request_new(struct adma_file *file,
					     const struct adma_submit *arg)
{
	struct adma_request *req;
	int nr, ret = -ENOMEM;

	nr = adma_slot_take(file);
	if (nr < 0) {
		adma_file_catch_up(file, 0);
		nr = adma_slot_take(file);
	}
	if (nr < 0)
		return ERR_PTR(nr);
	/* Until it is left, nobody else touches the slot's request. */
	req = file->slot[nr].req ?: kvzalloc(sizeof(*req), GFP_KERNEL_ACCOUNT);
	file->slot[nr].req = req;
	if (req)
		ret = adma_pieces_read(arg, req->piece);
	if (ret) {
		adma_slot_leave(file, nr, 0, 0);
		wake_up_all(&file->wait);
		return ERR_PTR(ret);
	}
	memset(req, 0, offsetof(struct adma_request, max_ranges));
	req->id = file->slot[nr].id;
	req->slot = nr;
	req->file = file;
	refcount_set(&req->parts, 1);
	INIT_WORK(&req->end, adma_request_end);
	kref_get(&file->kref);
	return req;
}

static u64 adma_own_addr(const struct adma_submission *sub, unsigned int nr)
{
	const struct adma_piece *piece = &sub->req->piece[nr];

	return sub->push ? piece->src : piece->dst;
}

/*
 * Before the first piece. Between processes that is all that may take as long as
 * the caller likes, and then the buffer, whose owner may wait for its end; from
 * there on only channels are waited for. Answers for how many pieces.
 */
static unsigned int adma_request_prepare(struct adma_submission *sub,
					 const struct adma_submit *arg, int *ret)
{
	u32 wanted = sub->push ? ADMA_EXPORT_WRITE : ADMA_EXPORT_READ;
	struct adma_request *req = sub->req;
	struct adma_buf *buf;
	unsigned int i;

	for (i = 0; i < arg->count; i++) {
		u64 addr = adma_own_addr(sub, i), len = req->piece[i].len;

		*ret = adma_charge_bytes(req, len);
		if (arg->flags && !*ret)
			*ret = adma_request_reserve(req, adma_ranges_of(addr, len));
		if (arg->flags && !*ret)
			*ret = adma_ranges_fill(req->file, addr, len, !sub->push,
						req->range, &req->nr_ranges,
						&sub->pinned);
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
static int adma_pieces_start(struct adma_submission *sub, unsigned int count)
{
	struct adma_request *req = sub->req;
	int ret, channel;

	for (; req->accepted < count; req->accepted++) {
		unsigned int nr = req->accepted;
		const struct adma_piece *piece = &req->piece[nr];
		struct adma_chan_req **cr;

		channel = adma_channel_pick(piece->channel,
					    adma_own_addr(sub, nr),
					    adma_range_of(adma_own_addr(sub, 0)) + nr);
		if (channel < 0)
			return channel;
		cr = &req->cr[channel];
		if (!*cr)
			*cr = adma_chan_req_begin(&adma_channels[channel], req);
		if (!*cr)
			return -EBUSY;
		(*cr)->pieces |= BIT_ULL(nr);
		ret = adma_piece_send(sub, piece, *cr);
		if (ret)
			return ret;
		sub->channel[nr] = channel;
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
		if (!req->cr[i])
			continue;
		channels |= BIT(i);
		told &= adma_chan_req_close(req->cr[i]);
	}
	return told ? channels : 0;
}

int adma_submit(struct adma_file *file, struct adma_submit *arg)
{
	struct adma_submission sub = {
		.push = arg->flags & ADMA_SUBMIT_PUSH,
		.chunk = 1,
	};
	struct adma_piece __user *user = u64_to_user_ptr(arg->pieces);
	unsigned int i, ready;
	struct adma_request *req;
	int ret = 0, refused;
	struct adma_wait wait;

	memset_startat(arg, 0, id);
	if (!arg->count || arg->count > ADMA_MAX_PIECES ||
	    arg->flags == (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH) ||
	    (!arg->flags && (arg->export || arg->port)))
		return -EINVAL;
	req = adma_request_new(file, arg);
	if (IS_ERR(req))
		return PTR_ERR(req);

	sub.req = req;
	ready = adma_request_prepare(&sub, arg, &ret);
	refused = adma_pieces_start(&sub, ready);
	if (refused)
		ret = refused;
	arg->channels = adma_request_close(req);
	arg->id = req->id;
	arg->slot = req->slot;
	arg->accepted = req->accepted;
	arg->pinned = sub.pinned;
	trace_adma_submit(req->id, arg->count, req->accepted, req->bytes,
			  sub.pinned, ret);
	adma_request_put(req);
	/* Only for the caller's statistics: a failure is his loss. */
	for (i = 0; i < arg->accepted; i++) {
		if (put_user(sub.channel[i], &user[i].channel))
			break;
	}
	/*
	 * Nothing was taken, so nobody will wait for what was begun of it. A
	 * killed caller leaves it to the close of the file.
	 */
	if (!arg->accepted) {
		wait.id = arg->id;
		wait_event_killable(file->wait,
				    adma_ended(file, &wait) != -EAGAIN);
		arg->id = 0;
		arg->channels = 0;
	}
	return ret;
}
