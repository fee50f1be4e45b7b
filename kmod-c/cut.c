// SPDX-License-Identifier: GPL-2.0
/*
 * Cutting a piece into transfers: stretches that lie together in physical
 * memory, on both sides.
 *
 * Pages are pinned on the way. A line may die before a transfer that touches it
 * is handed over; then its addresses are looked up anew.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include "adma.h"

/* A stretch below this costs a channel more than it costs the CPU. */
#define ADMA_TINY	64

/* Pages that are pinned in one go at most, see adma_flow_step(). */
#define ADMA_CHUNK_MOST	1024

/*
 * So often lines may die under a request, of a fork in another thread or of
 * the page faults of its own pins, before it takes lines of its own.
 */
#define ADMA_STALE_MOST	8

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

	/* Lines are told once of all transfers of a step, see adma_flow_step(). */
	unsigned int more;	/* that may come after the next one */
	bool claimed;		/* they have been told ... */
	unsigned int claimed_from;	/* ... from this one on */
};

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
			  unsigned int *pinned)
{
	unsigned int first = adma_page_in_line(side->addr);
	unsigned int count = adma_pages_until(side->addr, len);
	int ret;

	ret = adma_line_fill(side->line, first, count, device, true, pinned);
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
	return adma_line_fill(side->line, first, count, device, true, pinned);
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
 * Says of all lines that the transfer, and those after it, may touch that they
 * do; ESTALE when one of them is dead. Lines that they do not reach are none the
 * worse for it.
 */
static int adma_flow_claim(struct adma_flow *flow)
{
	struct adma_request *req = flow->req;
	unsigned int i;

	if (flow->claimed)
		return 0;
	flow->claimed = true;
	flow->claimed_from = flow->first_use;
	for (i = flow->first_use; i < req->nr_uses; i++) {
		if (!adma_use_claim(&req->use[i], flow->leg,
				    flow->leg->pushed + 1 + flow->more))
			return -ESTALE;
	}
	return 0;
}

/* Only those that were handed over do, after all. */
static void adma_flow_disclaim(struct adma_flow *flow)
{
	struct adma_request *req = flow->req;
	unsigned int i;

	for (i = flow->claimed_from; flow->claimed && i < req->nr_uses; i++)
		adma_use_disclaim(&req->use[i], flow->leg->pushed);
	flow->claimed = false;
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
		course->pinned_first = course->pinned;
	}
	if (!flow->leg->ch)
		adma_leg_begin(flow->leg, flow->req, flow->ch);
	ret = adma_channel_wait_room(flow->ch);
	if (ret)
		return ret;
	ret = adma_flow_claim(flow);
	if (!ret) {
		ret = adma_leg_push(flow->leg, flow->to, flow->from, len, last);
		flow->len = 0;
	}
	if (ret)
		adma_flow_disclaim(flow);
	else if (!flow->more)
		flow->claimed = false;	/* it was handed over */
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
		    from != flow->from + flow->len ||
		    flow->len + part > ADMA_TRANSFER_MOST) {
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
				     &course->pinned);
		if (ret)
			return ret;
		ret = adma_side_fill(req, &flow->dst, len, device,
				     &course->pinned);
		if (ret)
			return ret;
	}
	adma_line_written(flow->dst.line, adma_page_in_line(flow->dst.addr),
			  adma_pages_until(flow->dst.addr, len));
	/* Nothing is pinned until all of them are handed over. */
	flow->more = 2 * (len / PAGE_SIZE + 2);
	ret = adma_flow_add(flow, course, len);
	flow->more = 0;
	adma_flow_disclaim(flow);
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

/*
 * Hands a piece to a channel. What has been begun of one that fails ends with
 * the request. @push: between processes, from the caller to the post.
 */
int adma_cut(struct adma_request *req, const struct adma_piece *piece,
	     unsigned int channel, bool push, struct adma_course *course)
{
	struct adma_flow flow = {
		.req = req,
		.ch = &adma_channels[channel],
		.leg = &req->leg[channel],
		.dst = { .addr = piece->dst, .write = true },
		.src = { .addr = piece->src },
		.left = piece->len,
	};

	if (req->lent) {
		int ret = adma_flow_across(&flow, course, push);

		if (ret)
			return ret;
	}
	return adma_piece_flow(&flow, course);
}

/* Lines that a request holds at most, each as often as it may hold it. */
unsigned int adma_cut_uses(const struct adma_piece *pieces, unsigned int count)
{
	unsigned int i, uses = 4 * (ADMA_STALE_MOST + 1);
	u64 bytes = 0;

	/* Twice: each line may turn out not to serve. */
	for (i = 0; i < count; i++) {
		bytes += pieces[i].len;
		if (bytes > adma_max_bytes)
			break;	/* will be refused */
		uses += 2 * (adma_lines_of(pieces[i].dst, pieces[i].len) +
			     adma_lines_of(pieces[i].src, pieces[i].len));
	}
	return uses;
}
