// SPDX-License-Identifier: GPL-2.0
/* One request, from the caller's pieces to the last byte. */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "adma.h"
#include "trace.h"

/* Enough for a copy of 16 MiB. A request with more of them is not kept. */
#define ADMA_KEPT_USES	384

void adma_request_free(struct adma_request *req)
{
	if (req)
		kfree(req->leg);
	kvfree(req);
}

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	struct adma_file *file = req->file;
	unsigned int slot = req->slot;
	u64 bytes = req->bytes;
	u64 failed = 0;
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		if (req->leg[i].ch && req->leg[i].failed)
			failed |= req->leg[i].pieces;
	}
	/* Pieces that were not taken are known to the caller. */
	if (req->accepted < 64)
		failed &= BIT_ULL(req->accepted) - 1;
	for (i = 0; i < req->nr_uses; i++)
		adma_use_end(&req->use[i]);
	adma_span_put(req->own);
	if (req->lent)
		adma_lent_leave(req->lent);
	adma_lines_trim(file);
	trace_adma_complete(req->id, bytes, failed);
	if (req->most_uses > ADMA_KEPT_USES) {
		file->slot[slot].req = NULL;
		adma_request_free(req);
	}
	/* From here on it is somebody else's. */
	adma_slot_leave(file, slot, bytes, failed);
	atomic_dec(&file->ending);
	wake_up_all(&file->wait);
	adma_file_put(file);
}

/* Letting pages go may sleep, and the last leg may end in an interrupt. */
void adma_request_put(struct adma_request *req)
{
	if (!refcount_dec_and_test(&req->legs))
		return;
	atomic_inc(&req->file->ending);
	queue_work(adma_workqueue, &req->end);
}

static bool adma_is_ours(u64 addr, u64 len)
{
	return access_ok(u64_to_user_ptr(addr), len);
}

/* Whether it can be in a post at all; which one, is seen later. */
static bool adma_is_offset(u64 offset)
{
	return offset <= ADMA_MAX_LEN;
}

static int adma_pieces_check(const struct adma_piece *piece, unsigned int count,
			     u32 flags)
{
	bool across = flags & (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH);
	unsigned int src_align = adma_channels_align();
	unsigned int dst_align = across ? src_align : ADMA_ALIGN;
	unsigned int i;

	for (i = 0; i < count; i++, piece++) {
		if (piece->flags)
			return -EOPNOTSUPP;
		if (!piece->len || piece->len > ADMA_MAX_LEN ||
		    !IS_ALIGNED(piece->len, dst_align))
			return -EINVAL;
		if (flags & ADMA_SUBMIT_PUSH ? !adma_is_offset(piece->dst) :
		    !IS_ALIGNED(piece->dst, dst_align) ||
		    !adma_is_ours(piece->dst, piece->len))
			return -EINVAL;
		if (flags & ADMA_SUBMIT_PULL ? !adma_is_offset(piece->src) :
		    !IS_ALIGNED(piece->src, src_align) ||
		    !adma_is_ours(piece->src, piece->len))
			return -EINVAL;
		if (piece->channel != ADMA_CHANNEL_ANY &&
		    piece->channel >= adma_nr_channels)
			return -EINVAL;
	}
	return 0;
}

static int adma_pieces_read(const struct adma_submit *arg,
			    struct adma_piece *pieces)
{
	unsigned int i;

	if (copy_from_user(pieces, u64_to_user_ptr(arg->pieces),
			   arg->count * sizeof(*pieces)))
		return -EFAULT;
	/* What the processor does not look at is not part of the address. */
	for (i = 0; i < arg->count; i++) {
		if (!(arg->flags & ADMA_SUBMIT_PUSH))
			pieces[i].dst = untagged_addr(pieces[i].dst);
		if (!(arg->flags & ADMA_SUBMIT_PULL))
			pieces[i].src = untagged_addr(pieces[i].src);
	}
	return adma_pieces_check(pieces, arg->count, arg->flags);
}

/* A slot's request with room for so many lines. Its pieces stay as they are. */
static int adma_slot_fit(struct adma_slot *slot, unsigned int uses)
{
	struct adma_request *old = slot->req, *req;

	if (old && old->most_uses >= uses)
		return 0;
	req = kvzalloc(struct_size(req, use, uses), GFP_KERNEL_ACCOUNT);
	if (!req)
		return -ENOMEM;
	req->most_uses = uses;
	if (old) {
		memcpy(req->piece, old->piece, sizeof(req->piece));
		swap(req->leg, old->leg);
		adma_request_free(old);
	} else {
		req->leg = kcalloc(adma_nr_channels, sizeof(*req->leg),
				   GFP_KERNEL_ACCOUNT);
		if (!req->leg) {
			kvfree(req);
			return -ENOMEM;
		}
	}
	slot->req = req;
	return 0;
}

static struct adma_request *adma_request_new(struct adma_file *file,
					     const struct adma_submit *arg)
{
	struct adma_request *req;
	struct adma_slot *slot;
	int nr, ret;

	nr = adma_slot_take(file);
	if (nr < 0) {
		adma_file_settle(file);
		nr = adma_slot_take(file);
	}
	if (nr < 0)
		return ERR_PTR(nr);
	/* Until it is left, nobody else touches the slot's request. */
	slot = &file->slot[nr];
	ret = adma_slot_fit(slot, 1);
	if (!ret)
		ret = adma_pieces_read(arg, slot->req->piece);
	if (!ret)
		ret = adma_slot_fit(slot, adma_cut_uses(slot->req->piece,
							arg->count));
	if (ret) {
		adma_slot_leave(file, nr, 0, 0);
		return ERR_PTR(ret);
	}
	req = slot->req;
	memset(req, 0, offsetof(struct adma_request, most_uses));
	memset(req->leg, 0, adma_nr_channels * sizeof(*req->leg));
	req->id = slot->id;
	req->slot = nr;
	req->file = file;
	refcount_set(&req->legs, 1);
	INIT_WORK(&req->end, adma_request_end);
	adma_file_get(file);
	return req;
}

static int adma_piece_charge(struct adma_request *req,
			     const struct adma_piece *piece)
{
	int ret = adma_charge_bytes(req, piece->len);

	if (ret == -EAGAIN) {
		adma_file_settle(req->file);
		ret = adma_charge_bytes(req, piece->len);
	}
	return ret;
}

/* The caller's side of the pieces; answers for how many it is ready. */
static unsigned int adma_request_own(struct adma_request *req,
				     const struct adma_submit *arg,
				     struct adma_course *course, int *ret)
{
	const struct adma_piece *pieces = req->piece;
	bool push = arg->flags & ADMA_SUBMIT_PUSH;
	unsigned int i, lines = 0;
	u64 good;

	for (i = 0; i < arg->count; i++)
		lines += adma_lines_of(push ? pieces[i].src : pieces[i].dst,
				       pieces[i].len);
	req->own = adma_span_new(lines);
	if (!req->own) {
		*ret = -ENOMEM;
		return 0;
	}
	course->own = req->own->line;
	for (i = 0; i < arg->count; i++) {
		*ret = adma_piece_charge(req, &pieces[i]);
		if (*ret)
			break;
		*ret = adma_span_fill(req->own, req->file,
				      push ? pieces[i].src : pieces[i].dst,
				      pieces[i].len, !push, &good,
				      &course->pinned);
		if (*ret)
			break;
	}
	return i;
}

/*
 * Before the first piece of a request between processes: all that may take as
 * long as the caller likes. Then the post, whose owner may wait for its end;
 * from there on only channels are waited for. Answers for how many pieces.
 */
static unsigned int adma_request_cross(struct adma_request *req,
				       const struct adma_submit *arg,
				       struct adma_course *course, int *ret)
{
	u32 wanted = arg->flags & ADMA_SUBMIT_PUSH ? ADMA_EXPORT_WRITE :
						     ADMA_EXPORT_READ;
	unsigned int ready = adma_request_own(req, arg, course, ret);
	struct adma_lent *lent;

	if (!ready)
		return 0;
	lent = adma_lent_enter(arg->port, arg->export, wanted);
	if (IS_ERR(lent)) {
		*ret = PTR_ERR(lent);
		return 0;
	}
	req->lent = lent;
	return ready;
}

/* Answers the channel that has taken it. */
static int adma_piece_start(struct adma_request *req, unsigned int nr,
			    const struct adma_piece *piece, bool push,
			    struct adma_course *course)
{
	u64 addr = push ? piece->src : piece->dst;
	u64 first = push ? req->piece->src : req->piece->dst;
	int ret, channel;

	channel = adma_channel_pick(piece->channel, addr,
				    adma_line_of(first) + nr);
	if (channel < 0)
		return channel;
	/* Between processes all pieces were charged before the first. */
	if (!req->lent) {
		ret = adma_piece_charge(req, piece);
		if (ret)
			return ret;
	}
	req->leg[channel].pieces |= BIT_ULL(nr);
	ret = adma_cut(req, piece, channel, push, course);
	if (ret)
		return ret;
	adma_count(ADMA_STAT_COPIES, 1);
	adma_count(ADMA_STAT_BYTES, piece->len);
	if (req->lent)
		adma_count(ADMA_STAT_EXPORT_BYTES, piece->len);
	return channel;
}

/*
 * The first piece is under way while the next one is pinned. @channels: where
 * they went; @moved: those that had asked for another.
 */
static int adma_pieces_start(struct adma_request *req,
			     unsigned int count, bool push,
			     struct adma_course *course, u8 *channels,
			     u64 *moved)
{
	const struct adma_piece *pieces = req->piece;
	unsigned int i;

	for (i = 0; i < count; i++) {
		int channel = adma_piece_start(req, i, &pieces[i], push, course);

		if (channel < 0)
			return channel;
		req->accepted++;
		if (pieces[i].channel != channel)
			*moved |= BIT_ULL(i);
		channels[i] = channel;
	}
	return 0;
}

/*
 * A line is filled as a whole, as far as its pages are there: who copies one
 * page will most often copy its neighbours. The engine works meanwhile.
 */
static void adma_request_prefetch(struct adma_request *req)
{
	unsigned int i, pinned = 0;

	for (i = 0; i < req->nr_uses; i++) {
		struct adma_line *line = req->use[i].line;
		struct adma_leg *leg;

		if (line->kind != ADMA_KEPT || xchg(&line->prefetched, true))
			continue;
		/* Who has used it will use its neighbours. */
		leg = req->use[i].leg;
		adma_line_fill(line, 0, ADMA_LINE_PAGES,
			       leg ? leg->ch->device : 0, false, &pinned);
	}
}

static void adma_request_close(struct adma_request *req,
			       struct adma_submit *arg)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		if (!req->leg[i].ch)
			continue;
		if (adma_leg_close(&req->leg[i]))
			arg->channels |= BIT(i);
		else
			arg->silent |= BIT(i);
	}
}

/* Only for the caller's statistics: a failure is his loss. */
static void adma_pieces_tell(const struct adma_submit *arg,
			     const u8 *channels, u64 moved)
{
	struct adma_piece __user *user = u64_to_user_ptr(arg->pieces);
	unsigned int i;

	for (i = 0; i < arg->accepted; i++) {
		if (moved & BIT_ULL(i) &&
		    put_user(channels[i], &user[i].channel))
			break;
	}
}

static void adma_request_tell(const struct adma_request *req,
			      const struct adma_course *course,
			      struct adma_submit *arg)
{
	arg->id = req->id;
	arg->slot = req->slot;
	arg->accepted = req->accepted;
	arg->cpu_bytes = course->cpu_bytes;
	arg->pinned = course->pinned;
	arg->pinned_first = course->pinned_first;
}

int adma_submit(struct adma_file *file, struct adma_submit *arg)
{
	u32 across = arg->flags & (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH);
	struct adma_course course = { .chunk = 1 };
	unsigned int ready = arg->count;
	u8 channels[ADMA_MAX_PIECES];
	struct adma_request *req;
	u64 failed, moved = 0;
	int ret = 0, refused;

	if (!arg->count || arg->count > ADMA_MAX_PIECES)
		return -EINVAL;
	if (across == (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH) ||
	    (!across && (arg->export || arg->port)))
		return -EINVAL;

	req = adma_request_new(file, arg);
	if (IS_ERR(req))
		return PTR_ERR(req);

	if (across)
		ready = adma_request_cross(req, arg, &course, &ret);
	refused = adma_pieces_start(req, ready, arg->flags & ADMA_SUBMIT_PUSH,
				    &course, channels, &moved);
	if (refused)
		ret = refused;
	adma_request_close(req, arg);
	adma_request_tell(req, &course, arg);
	trace_adma_submit(req->id, arg->count, req->accepted, req->bytes,
			  course.pinned, ret);
	/* Not while the owner of a post may wait for us. */
	if (course.pinned && !across)
		adma_request_prefetch(req);
	adma_request_put(req);
	adma_pieces_tell(arg, channels, moved);

	/*
	 * Nothing was taken, so nobody will wait for what was begun of it. A
	 * killed caller leaves it to the close of the file.
	 */
	if (!arg->accepted) {
		wait_event_killable(file->wait,
				    adma_is_over(file, arg->id, &failed));
		arg->id = 0;
		arg->channels = 0;
		arg->silent = 0;
	}
	return ret;
}
