// SPDX-License-Identifier: GPL-2.0
/* One request, from the caller's pieces to the last byte. */
#include <linux/dma-mapping.h>
#include <linux/ktime.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "adma.h"

/* A stretch below this costs a channel more than it costs the CPU. */
#define ADMA_TINY	64

/*
 * So often lines may die under a request, of a fork in another thread or of
 * the page faults of its own pins, before it takes lines of its own.
 */
#define ADMA_STALE_MOST	8

/*
 * The end of a request
 */

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	struct adma_file *file = req->file;
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
	adma_slot_leave(req, failed);
	wake_up_all(&file->wait);
	kfree(req->leg);
	kvfree(req);
	adma_file_put(file);
}

/* Letting pages go may sleep, and the last leg may end in an interrupt. */
void adma_request_put(struct adma_request *req)
{
	if (refcount_dec_and_test(&req->legs))
		queue_work(adma_workqueue, &req->end);
}

static struct adma_request *adma_request_new(struct adma_file *file,
					     const struct adma_piece *pieces,
					     unsigned int count)
{
	unsigned int i, uses = 4 * (ADMA_STALE_MOST + 1);
	struct adma_request *req;
	u64 bytes = 0;

	/* Twice: each line may turn out not to serve. */
	for (i = 0; i < count; i++) {
		bytes += pieces[i].len;
		if (bytes > adma_max_bytes)
			break;	/* will be refused */
		uses += 2 * (adma_lines_of(pieces[i].dst, pieces[i].len) +
			     adma_lines_of(pieces[i].src, pieces[i].len));
	}
	req = kvzalloc(struct_size(req, use, uses), GFP_KERNEL_ACCOUNT);
	if (!req)
		return ERR_PTR(-ENOMEM);
	req->leg = kcalloc(adma_nr_channels, sizeof(*req->leg),
			   GFP_KERNEL_ACCOUNT);
	if (!req->leg) {
		kvfree(req);
		return ERR_PTR(-ENOMEM);
	}
	req->file = file;
	req->most_uses = uses;
	refcount_set(&req->legs, 1);
	INIT_WORK(&req->end, adma_request_end);
	return req;
}

/*
 * Cutting a piece into transfers
 */

/* Where one side of a piece has got to. */
struct adma_side {
	u64 addr;
	bool write;
	struct adma_line *line;	/* of addr; held by the request */
	unsigned int use;	/* its number there */
	/* Between processes all lines are ready; otherwise NULL. */
	struct adma_line **ready;
	u64 first;		/* number of the first one of them */
};

/* A piece on its way to a channel. */
struct adma_flow {
	struct adma_request *req;
	struct adma_channel *ch;
	struct adma_leg *leg;	/* begun with the first transfer */
	struct adma_side dst;
	struct adma_side src;
	u64 left;		/* bytes */

	/* The transfer that is not handed over yet: it may grow. */
	dma_addr_t to;
	dma_addr_t from;
	size_t len;
	unsigned int first_use;	/* of those that it may touch */
	unsigned int old_uses;	/* there were when it began */
};

/* How a request goes: pages are pinned in chunks, and copied meanwhile. */
struct adma_course {
	unsigned int chunk;	/* pages; four times as many each time */
	unsigned int waiting;	/* of them, pinned and not handed over; fewer */
	bool begun;		/* something was */
	unsigned int stale;	/* times that lines died meanwhile */
	struct adma_costs costs;
	unsigned int pinned_first;
	u64 cpu_bytes;
	struct adma_line **own;	/* between processes: the next piece's lines */
};

#define ADMA_CHUNK_MOST	1024

static int adma_hold_line(struct adma_request *req, struct adma_side *side,
			  struct adma_line *line)
{
	if (IS_ERR(line))
		return PTR_ERR(line);
	if (req->nr_uses == req->most_uses) {
		adma_line_put(line);
		return -EBUSY;
	}
	side->line = line;
	side->use = req->nr_uses++;
	adma_use_begin(&req->use[side->use], line);
	return 0;
}

/* A line of the request's own. */
static int adma_side_enter_alone(struct adma_request *req,
				 struct adma_side *side, enum adma_kind kind)
{
	return adma_hold_line(req, side,
			      adma_line_new(req->file, adma_line_of(side->addr),
					    side->write, kind));
}

static int adma_side_enter(struct adma_request *req, struct adma_side *side,
			   bool alone)
{
	u64 number = adma_line_of(side->addr);

	if (side->line && side->line->number == number)
		return 0;
	if (side->ready) {
		struct adma_line *line = side->ready[number - side->first];

		kref_get(&line->kref);
		return adma_hold_line(req, side, line);
	}
	if (alone)
		return adma_side_enter_alone(req, side, ADMA_PLAIN);
	return adma_hold_line(req, side,
			      adma_line_get(req->file, number, side->write));
}

/* Whether the next @len bytes of a side, in its line, need no work. */
static bool adma_side_ready(struct adma_side *side, size_t len,
			    unsigned int device)
{
	unsigned int first = adma_page_in_line(side->addr);

	return adma_line_ready(side->line, first,
			       adma_pages_until(side->addr, len), device);
}

/* The next @len bytes of a side, in its line, pinned and mapped. */
static int adma_side_fill(struct adma_request *req, struct adma_side *side,
			  size_t len, unsigned int device,
			  struct adma_costs *costs)
{
	unsigned int first = adma_page_in_line(side->addr);
	unsigned int count = adma_pages_until(side->addr, len);
	int ret;

	ret = adma_line_fill(side->line, first, count, device, true, costs);
	if (!ret || side->line->kind != ADMA_KEPT || ret == -EINTR ||
	    ret == -ESTALE)
		return ret;
	/*
	 * Pages that cannot be kept can be had for one copy all the same. The
	 * line's other pages may still serve, unless they are in the way.
	 */
	if (ret != -EFAULT && ret != -EBUSY)
		adma_line_forget(side->line);
	ret = adma_side_enter_alone(req, side, ADMA_WATCHED);
	if (ret)
		return ret;
	return adma_line_fill(side->line, first, count, device, true, costs);
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

/*
 * Says of all lines that the transfer may touch that it does; ESTALE when one
 * of them is dead. Lines that it does not reach yet are none the worse for it.
 */
static int adma_flow_claim(struct adma_flow *flow)
{
	struct adma_request *req = flow->req;
	unsigned int i;

	for (i = flow->first_use; i < req->nr_uses; i++) {
		if (!adma_use_claim(&req->use[i], flow->leg,
				    flow->leg->pushed + 1))
			return -ESTALE;
	}
	return 0;
}

static void adma_flow_disclaim(struct adma_flow *flow)
{
	struct adma_request *req = flow->req;
	unsigned int i;

	for (i = flow->first_use; i < req->nr_uses; i++)
		adma_use_disclaim(&req->use[i], flow->leg->pushed);
}

/*
 * A line has died: back to where the transfer begins that was not handed over,
 * to look up anew what the addresses lead to.
 */
static void adma_flow_back(struct adma_flow *flow, struct adma_course *course)
{
	struct adma_request *req = flow->req;

	if (flow->len) {
		/* No transfer has touched those that came since. */
		while (req->nr_uses > flow->old_uses)
			adma_use_end(&req->use[--req->nr_uses]);
		flow->dst.addr -= flow->len;
		flow->src.addr -= flow->len;
		flow->left += flow->len;
		flow->len = 0;
	}
	flow->dst.line = NULL;
	flow->src.line = NULL;
	course->waiting = 0;
	course->stale++;
}

/* Hands over what has come together. The last of a piece carries the fence. */
static int adma_flow_push(struct adma_flow *flow, struct adma_course *course,
			  bool last)
{
	size_t len = flow->len;
	int ret;

	if (!len)
		return 0;
	/* Somebody else's memory has no address here. */
	if (len < ADMA_TINY && !last && !flow->req->lent) {
		flow->len = 0;
		course->cpu_bytes += len;
		return adma_cpu_copy(flow->dst.addr - len, flow->src.addr - len,
				     len);
	}
	if (!course->begun) {
		course->begun = true;
		course->pinned_first = course->costs.pinned;
	}
	if (!flow->leg->ch)
		adma_leg_begin(flow->leg, flow->req, flow->ch);
	ret = adma_flow_claim(flow);
	if (!ret) {
		ret = adma_leg_push(flow->leg, flow->to, flow->from, len, last);
		flow->len = 0;
	}
	if (ret)
		adma_flow_disclaim(flow);
	cond_resched();
	return ret;
}

/* Adds stretches that cross no page to the transfer while they lie together. */
static int adma_flow_add(struct adma_flow *flow, struct adma_course *course,
			 size_t len)
{
	unsigned int device = flow->ch->device;
	struct adma_request *req = flow->req;
	dma_addr_t *dst = flow->dst.line->mapping[device].addr;
	dma_addr_t *src = flow->src.line->mapping[device].addr;

	while (len) {
		size_t part = min3(len,
				   PAGE_SIZE - offset_in_page(flow->dst.addr),
				   PAGE_SIZE - offset_in_page(flow->src.addr));
		dma_addr_t to = dst[adma_page_in_line(flow->dst.addr)] +
				offset_in_page(flow->dst.addr);
		dma_addr_t from = src[adma_page_in_line(flow->src.addr)] +
				  offset_in_page(flow->src.addr);

		if (to != flow->to + flow->len ||
		    from != flow->from + flow->len) {
			int ret = adma_flow_push(flow, course, false);

			if (ret)
				return ret;
		}
		if (!flow->len) {
			flow->to = to;
			flow->from = from;
			flow->first_use = min(flow->dst.use, flow->src.use);
			flow->old_uses = req->nr_uses;
		}
		flow->len += part;
		flow->dst.addr += part;
		flow->src.addr += part;
		flow->left -= part;
		len -= part;
	}
	return 0;
}

/*
 * The next stretch that crosses no line. The first page is under way before
 * the second one is pinned, then 4, 16 and so on: pinning is much quicker than
 * copying, and each chunk may cut a stretch that lies together in two.
 */
static int adma_flow_step(struct adma_flow *flow, struct adma_course *course)
{
	bool alone = course->stale >= ADMA_STALE_MOST;
	size_t room = (course->chunk - course->waiting) * PAGE_SIZE;
	unsigned int device = flow->ch->device;
	struct adma_request *req = flow->req;
	bool ready;
	size_t len;
	int ret;

	/* In this order: what was pinned for writing also serves readers. */
	ret = adma_side_enter(req, &flow->dst, alone);
	if (ret)
		return ret;
	ret = adma_side_enter(req, &flow->src, alone);
	if (ret)
		return ret;
	len = min3(flow->left, (u64)adma_line_rest(flow->dst.addr),
		   (u64)adma_line_rest(flow->src.addr));
	ready = adma_side_ready(&flow->src, len, device) &&
		adma_side_ready(&flow->dst, len, device);
	if (!ready) {
		len = min3(len, room - offset_in_page(flow->dst.addr),
			   room - offset_in_page(flow->src.addr));
		ret = adma_side_fill(req, &flow->src, len, device,
				     &course->costs);
		if (ret)
			return ret;
		ret = adma_side_fill(req, &flow->dst, len, device,
				     &course->costs);
		if (ret)
			return ret;
	}
	ret = adma_flow_add(flow, course, len);
	if (ret || ready)
		return ret;
	course->waiting += DIV_ROUND_UP(len, PAGE_SIZE);
	if (course->waiting < course->chunk)
		return 0;
	course->waiting = 0;
	course->chunk = min(4 * course->chunk, ADMA_CHUNK_MOST);
	if (!flow->left)
		return 0;	/* handed over with the fence */
	ret = adma_flow_push(flow, course, false);
	if (!ret)
		dma_async_issue_pending(flow->ch->chan);
	return ret;
}

static int adma_piece_flow(struct adma_flow *flow, struct adma_course *course)
{
	int ret = 0;

	while (!ret && (flow->left || flow->len)) {
		if (flow->left)
			ret = adma_flow_step(flow, course);
		else
			ret = adma_flow_push(flow, course, true);
		if (ret == -ESTALE && flow->req->lent) {
			/* To look it up anew is its owner's business. */
			ret = -EFAULT;
		} else if (ret == -ESTALE) {
			adma_flow_back(flow, course);
			ret = 0;
		}
	}
	return ret;
}

static int adma_piece_charge(struct adma_request *req,
			     const struct adma_piece *piece)
{
	int ret = adma_charge_bytes(req, piece->len);

	if (ret == -EAGAIN) {
		adma_channels_settle();
		ret = adma_charge_bytes(req, piece->len);
	}
	return ret;
}

/* Both sides of a piece between processes. */
static int adma_flow_across(struct adma_flow *flow, struct adma_course *course,
			    bool push)
{
	struct adma_side *own = push ? &flow->src : &flow->dst;
	struct adma_side *other = push ? &flow->dst : &flow->src;
	struct adma_lent *lent = flow->req->lent;

	if (other->addr > lent->len || flow->left > lent->len - other->addr)
		return -EINVAL;
	other->addr += lent->addr;
	if (!IS_ALIGNED(other->addr, adma_channels_align()))
		return -EINVAL;
	other->ready = lent->span->line;
	other->first = adma_line_of(lent->addr);
	own->ready = course->own;
	own->first = adma_line_of(own->addr);
	course->own += adma_lines_of(own->addr, flow->left);
	return 0;
}

static int adma_piece_start(struct adma_request *req, unsigned int nr,
			    struct adma_piece *piece,
			    struct adma_course *course, u32 flags)
{
	struct adma_flow flow = {
		.req = req,
		.dst = { .addr = piece->dst, .write = true },
		.src = { .addr = piece->src },
		.left = piece->len,
	};
	int ret, channel;

	channel = adma_channel_pick(piece->channel);
	if (channel < 0)
		return channel;
	if (req->lent)
		ret = adma_flow_across(&flow, course, flags & ADMA_SUBMIT_PUSH);
	else
		ret = adma_piece_charge(req, piece);
	if (ret)
		return ret;
	/* What has been begun of a piece that fails ends with the request. */
	flow.ch = &adma_channels[channel];
	flow.leg = &req->leg[channel];
	flow.leg->pieces |= BIT_ULL(nr);
	ret = adma_piece_flow(&flow, course);
	if (ret)
		return ret;
	piece->channel = channel;
	adma_count(ADMA_STAT_COPIES, 1);
	adma_count(ADMA_STAT_BYTES, piece->len);
	if (req->lent)
		adma_count(ADMA_STAT_POST_BYTES, piece->len);
	return 0;
}

/* The caller's side of the pieces; answers for how many it is ready. */
static unsigned int adma_request_own(struct adma_request *req,
				     const struct adma_submit *arg,
				     const struct adma_piece *pieces,
				     struct adma_course *course, int *ret)
{
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
				      &course->costs);
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
				       const struct adma_piece *pieces,
				       struct adma_course *course, int *ret)
{
	u32 wanted = arg->flags & ADMA_SUBMIT_PUSH ? ADMA_POST_WRITE :
						     ADMA_POST_READ;
	unsigned int ready = adma_request_own(req, arg, pieces, course, ret);
	struct adma_lent *lent;

	if (!ready)
		return 0;
	lent = adma_lent_enter(arg->door, arg->post, wanted);
	if (IS_ERR(lent)) {
		*ret = PTR_ERR(lent);
		return 0;
	}
	req->lent = lent;
	return ready;
}

/*
 * A line is filled as a whole, as far as its pages are there: who copies one
 * page will most often copy its neighbours. The engine works meanwhile.
 */
static void adma_request_prefetch(struct adma_request *req)
{
	struct adma_costs costs = {};
	unsigned int i;

	for (i = 0; i < req->nr_uses; i++) {
		struct adma_line *line = req->use[i].line;

		if (line->kind != ADMA_KEPT || xchg(&line->prefetched, true))
			continue;
		adma_line_fill(line, 0, adma_line_pages, 0, false, &costs);
	}
}

/* The words: each channel that has a part writes the id after its data. */
static void adma_request_close(struct adma_request *req,
			       struct adma_submit *arg)
{
	size_t word = req->slot * ADMA_WORD_STRIDE;
	size_t value = PAGE_SIZE / 2 + word;
	unsigned int i;

	BUILD_BUG_ON(ADMA_SLOTS * ADMA_WORD_STRIDE > PAGE_SIZE / 2);
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_words *words = &req->file->words[i];

		if (!req->leg[i].ch)
			continue;
		WRITE_ONCE(*(u64 *)(words->page + value), req->id);
		if (adma_leg_close(&req->leg[i], words->dma + word,
				   words->dma + value))
			arg->channels |= BIT(i);
		else
			arg->silent |= BIT(i);
	}
}

static u32 adma_handlers(void)
{
	/* Our own: it stays as long as we run. */
	struct sighand_struct *sighand = rcu_dereference_raw(current->sighand);
	u32 handlers = 0;
	int signal;

	for (signal = 1; signal <= _NSIG; signal++) {
		struct sigaction *action = &sighand->action[signal - 1].sa;
		__sighandler_t handler = READ_ONCE(action->sa_handler);

		if (handler == SIG_DFL || handler == SIG_IGN)
			continue;
		if (signal == SIGSEGV || signal == SIGBUS)
			handlers |= ADMA_HANDLES_FAULTS;
		else
			handlers |= ADMA_HANDLES_OTHERS;
	}
	return handlers;
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

int adma_submit(struct adma_file *file, struct adma_submit *arg)
{
	struct adma_piece __user *user = u64_to_user_ptr(arg->pieces);
	struct adma_piece *pieces;
	u32 across = arg->flags & (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH);
	struct adma_course course = { .chunk = 1 };
	u64 begun = ktime_get_ns();
	unsigned int i, ready = arg->count;
	struct adma_request *req;
	u64 id, failed, moved = 0;
	int ret;

	arg->handlers = adma_handlers();
	if (arg->flags & ADMA_SUBMIT_UNHANDLED && arg->handlers)
		return -EDEADLK;
	if (!arg->count || arg->count > ADMA_MAX_PIECES)
		return -EINVAL;
	if (across == (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH) ||
	    (!across && (arg->post || arg->door)))
		return -EINVAL;

	pieces = memdup_user(user, arg->count * sizeof(*pieces));
	if (IS_ERR(pieces))
		return PTR_ERR(pieces);
	ret = adma_pieces_check(pieces, arg->count, arg->flags);
	if (ret)
		goto out_free_pieces;
	req = adma_request_new(file, pieces, arg->count);
	if (IS_ERR(req)) {
		ret = PTR_ERR(req);
		goto out_free_pieces;
	}
	ret = adma_slot_take(file, req);
	if (ret == -EAGAIN) {
		adma_channels_settle();
		ret = adma_slot_take(file, req);
	}
	if (ret) {
		kfree(req->leg);
		kvfree(req);
		goto out_free_pieces;
	}
	adma_file_get(file);

	if (across)
		ready = adma_request_cross(req, arg, pieces, &course, &ret);
	/* The first piece is under way while the next one is pinned. */
	for (i = 0; i < ready; i++) {
		u32 wanted = pieces[i].channel;
		int refused;

		refused = adma_piece_start(req, i, &pieces[i], &course,
					   arg->flags);
		if (refused) {
			ret = refused;
			break;
		}
		req->accepted++;
		if (pieces[i].channel != wanted)
			moved |= BIT_ULL(i);
	}
	adma_request_close(req, arg);
	adma_count(ADMA_STAT_CPU_BYTES, course.cpu_bytes);
	arg->cpu_bytes = course.cpu_bytes;
	arg->pinned = course.costs.pinned;
	arg->pinned_first = course.pinned_first;
	arg->pin_ns = course.costs.pin_ns;
	arg->map_ns = course.costs.map_ns;
	arg->accepted = req->accepted;
	arg->slot = req->slot;
	arg->id = req->id;
	id = req->id;
	/* Not while the owner of a post may wait for us. */
	if (course.costs.pinned && !across)
		adma_request_prefetch(req);
	adma_request_put(req);
	/* Only for the caller's statistics: a failure is his loss. */
	for (i = 0; i < arg->accepted; i++) {
		if (moved & BIT_ULL(i) &&
		    put_user(pieces[i].channel, &user[i].channel))
			break;
	}

	/*
	 * Nothing was taken, so nobody will wait for what was begun of it. A
	 * killed caller leaves it to the close of the file.
	 */
	if (!arg->accepted) {
		wait_event_killable(file->wait, adma_is_over(file, id, &failed));
		arg->id = 0;
		arg->channels = 0;
		arg->silent = 0;
	}

	arg->kernel_ns = ktime_get_ns() - begun;
out_free_pieces:
	kfree(pieces);
	return ret;
}
