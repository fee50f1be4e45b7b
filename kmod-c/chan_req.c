// SPDX-License-Identifier: GPL-2.0
/*
 * What one channel does of a request, from its first transfer to the word that
 * tells user space of its end. health.c looks after those whose answer does not
 * come.
 *
 * A channel that works in order writes the word itself: that is the last
 * transfer, and when it is answered all is over. On any other all is over when
 * each transfer has been answered, and the word is written here.
 */
#include "adma.h"

static_assert(sizeof(union adma_param) == sizeof(void *));
static_assert(ADMA_MAX_XFER / ADMA_UNIT < BIT(15) && ADMA_CHAN_REQS <= BIT(8));

/*
 * ioatdma resets a channel that made no progress for 100 ms at the earliest.
 * It gives no answer to the transfer at the head, and may take new ones in
 * meanwhile. So a word proves nothing when the channel stood still as the first
 * transfer was submitted, or that was long ago: data may have been lost.
 */
#define ADMA_TRUSTED_MS		50

static bool adma_is_recent(unsigned long when)
{
	return time_before(jiffies, when + msecs_to_jiffies(ADMA_TRUSTED_MS));
}

/* Whether all it has to do was answered, or something a moment ago. */
static bool adma_channel_moves(struct adma_channel *ch)
{
	return !atomic_long_read(&ch->queued) ||
	       adma_is_recent(READ_ONCE(ch->moved));
}

/* Where user space looks for its end. */
static size_t adma_word_of(struct adma_chan_req *cr, struct adma_words **words)
{
	BUILD_BUG_ON(ADMA_SLOTS * ADMA_WORD_STRIDE > PAGE_SIZE / 2);
	*words = &cr->req->file->words[cr->ch - adma_channels];
	return cr->req->slot * ADMA_WORD_STRIDE;
}

/* The channel's lock is held. The request may be gone afterwards. */
void adma_chan_req_over(struct adma_chan_req *cr, bool failed)
{
	struct adma_request *req = cr->req;
	struct adma_channel *ch = cr->ch;
	u64 next = (u64)(adma_chan_req_turn(cr) + 1) << 32;
	u32 done = atomic64_xchg(&cr->done, next);

	lockdep_assert_held(&ch->lock);
	/* What was lost is not queued any more. */
	atomic_long_sub(cr->sent - (ch->ordered ? done : cr->answered),
			&ch->queued);
	list_del(&cr->list);
	cr->req = NULL;
	if (failed)
		atomic64_or(req->part[ch - adma_channels].pieces, &req->failed);
	else
		ch->good++;
	adma_request_put(req);
}

/* On a channel without order; its lock is held. */
static void adma_chan_req_over_if_answered(struct adma_chan_req *cr)
{
	struct adma_words *words;
	size_t at;

	if (cr->answered != READ_ONCE(cr->sent))
		return;
	atomic64_set(&cr->done, (u64)adma_chan_req_turn(cr) << 32 | cr->answered);
	if (!cr->closed)
		return;
	at = adma_word_of(cr, &words);
	if (!cr->failed)
		/* After the data, which the answers were about. */
		smp_store_release((u64 *)(words->page + at), cr->req->id);
	adma_chan_req_over(cr, cr->failed);
}

/* In turn and well, as nearly always: those before it are over as well. */
static void adma_chan_req_advance(struct adma_chan_req *cr, u32 turn, u32 units)
{
	s64 done = atomic64_read(&cr->done);

	do {
		if ((u64)done >> 32 != turn)
			return;	/* it was over long ago */
	} while (!atomic64_try_cmpxchg(&cr->done, &done, done + units));
	atomic_long_sub(units, &cr->ch->queued);
	WRITE_ONCE(cr->ch->moved, jiffies);
}

static void adma_chan_req_answered(void *ptr, const struct dmaengine_result *res)
{
	union adma_param param = { .ptr = ptr };
	struct adma_channel *ch = adma_param_channel(param);
	struct adma_chan_req *cr = &ch->req[param.req];
	bool good = res->result == DMA_TRANS_NOERROR;
	unsigned long irq;

	if (good && param.units && ch->ordered) {
		adma_chan_req_advance(cr, param.turn, param.units);
		return;
	}
	spin_lock_irqsave(&ch->lock, irq);
	if (adma_chan_req_turn(cr) != param.turn)
		goto out_unlock;
	WRITE_ONCE(ch->moved, jiffies);
	if (!good) {
		adma_count(ADMA_STAT_ERRORS, 1);
		cr->failed = true;
	}
	if (!ch->ordered) {
		atomic_long_sub(param.units, &ch->queued);
		cr->answered += param.units;
		ch->erred |= !good;
		if (!good)
			adma_watch_now(ch);
		adma_chan_req_over_if_answered(cr);
	} else if (!param.units && good) {
		/* What has no answer by now, but for the word, was lost. */
		adma_chan_req_over(cr, cr->failed ||
				   cr->sent - (u32)atomic64_read(&cr->done) != 1);
	} else if (!param.units) {
		cr->aborted = true;
		adma_watch_now(ch);
	}
out_unlock:
	spin_unlock_irqrestore(&ch->lock, irq);
}

static struct adma_chan_req *adma_chan_req_take(struct adma_channel *ch,
						struct adma_request *req)
{
	struct adma_chan_req *cr;
	unsigned long irq;
	unsigned int i;

	spin_lock_irqsave(&ch->lock, irq);
	for (i = 0; i < ADMA_CHAN_REQS; i++) {
		ch->last_req = (ch->last_req + 1) % ADMA_CHAN_REQS;
		cr = &ch->req[ch->last_req];
		if (!cr->req)
			break;
	}
	if (i == ADMA_CHAN_REQS) {
		cr = NULL;
	} else {
		memset_after(cr, 0, done);
		cr->req = req;
		cr->begun = jiffies;
		list_add_tail(&cr->list, &ch->reqs);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	return cr;
}

struct adma_chan_req *adma_chan_req_begin(struct adma_channel *ch,
					  struct adma_request *req)
{
	bool trusted = adma_channel_moves(ch);
	struct adma_chan_req *cr;
	int ret, tries = 0;

	if (!trusted) {
		/* Answers without an interrupt may be waiting to be fetched. */
		adma_channel_poll(ch);
		trusted = adma_channel_moves(ch);
	}
	while (!(cr = adma_chan_req_take(ch, req))) {
		ret = adma_channel_retry(ch, tries++);
		if (ret)
			return ERR_PTR(ret);
	}
	cr->trusted = trusted;
	refcount_inc(&req->parts);
	return cr;
}

/* Until they are handed over, they are as good as there. */
static void adma_chan_req_charge(struct adma_chan_req *cr, u32 units)
{
	struct adma_channel *ch = cr->ch;

	WRITE_ONCE(cr->sent, cr->sent + units);
	if (atomic_long_add_return(units, &ch->queued) == units)
		WRITE_ONCE(ch->moved, jiffies);
}

/* They were not handed over after all. */
static void adma_chan_req_uncharge(struct adma_chan_req *cr, u32 units)
{
	struct adma_channel *ch = cr->ch;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	WRITE_ONCE(cr->sent, cr->sent - units);
	atomic_long_sub(units, &ch->queued);
	if (!ch->ordered)
		adma_chan_req_over_if_answered(cr);
	spin_unlock_irqrestore(&ch->lock, irq);
}

static union adma_param adma_chan_req_param(struct adma_chan_req *cr, u32 units)
{
	return (union adma_param) {
		.req = cr - cr->ch->req,
		.turn = adma_chan_req_turn(cr),
		.units = units,
	};
}

/*
 * So that nobody waits for all that somebody else has to copy, no more than
 * adma_depth bytes are queued, and one batch.
 */
static int adma_channel_wait_room(struct adma_channel *ch)
{
	int ret = 0, tries;

	for (tries = 0; !ret && atomic_long_read(&ch->queued) * ADMA_UNIT >=
				READ_ONCE(adma_depth); tries++)
		ret = adma_channel_retry(ch, tries);
	return ret;
}

/*
 * Hands over some transfers of @units together. The word must not overtake the data, and which
 * piece is the last is only known when the next one could not be had: @fence
 * says that the last one of a piece is among them.
 */
int adma_chan_req_send(struct adma_chan_req *cr, const struct adma_xfer *xfer,
		       unsigned int nr, u32 units, bool fence)
{
	struct adma_channel *ch = cr->ch;
	unsigned int i;
	int ret;

	ret = adma_channel_wait_room(ch);
	if (ret)
		return ret;
	adma_chan_req_charge(cr, units);
	for (i = 0; i < nr; i++) {
		u32 own = adma_units(xfer[i].len);
		unsigned long flags = 0;

		if (!ch->ordered)
			flags = DMA_PREP_INTERRUPT;
		else if (fence && i == nr - 1)
			flags = DMA_PREP_FENCE;
		ret = adma_transfer(ch, xfer[i].dst, xfer[i].src, xfer[i].len,
				    flags, adma_chan_req_answered,
				    adma_chan_req_param(cr, own));
		if (ret < 0) {
			adma_chan_req_uncharge(cr, units);
			return ret;
		}
		cr->fenced = flags & DMA_PREP_FENCE;
		units -= own;
	}
	return 0;
}

/*
 * Without its last transfer it would cost a probe, and whoever else is on the
 * channel with it. So that one waits for its place as long as for an answer.
 */
static dma_cookie_t adma_chan_req_send_word(struct adma_chan_req *cr)
{
	unsigned long end = jiffies + adma_timeout();
	struct adma_channel *ch = cr->ch;
	struct adma_words *words;
	size_t at = adma_word_of(cr, &words);
	size_t value = PAGE_SIZE / 2 + at;
	dma_cookie_t ret;

	WRITE_ONCE(*(u64 *)(words->page + value), cr->req->id);
	adma_chan_req_charge(cr, 1);
	do {
		ret = adma_transfer(ch, words->dma + at, words->dma + value,
				    ADMA_WORD_STRIDE, DMA_PREP_INTERRUPT,
				    adma_chan_req_answered,
				    adma_chan_req_param(cr, 0));
	} while (ret == -EBUSY && time_before(jiffies, end));
	if (ret < 0)
		adma_chan_req_uncharge(cr, 1);
	dma_async_issue_pending(ch->chan);
	return ret;
}

/*
 * True: once the word holds the request's id, all data has come. With the
 * submitter's hold gone, the request may be over.
 */
bool adma_chan_req_close(struct adma_chan_req *cr)
{
	struct adma_channel *ch = cr->ch;
	struct adma_request *req = cr->req;
	u64 pieces = req->part[ch - adma_channels].pieces;
	u32 turn = adma_chan_req_turn(cr);
	bool trusted = cr->sent;
	dma_cookie_t word = 0;
	unsigned long irq;

	/* What was begun of a piece that was then refused has no fence. */
	if (ch->ordered && (!cr->fenced || !cr->trusted ||
			    !adma_is_recent(cr->begun)))
		trusted = false;
	if (ch->ordered && cr->sent)
		word = adma_chan_req_send_word(cr);

	spin_lock_irqsave(&ch->lock, irq);
	/* Otherwise it was answered already, and is somebody else's. */
	if (adma_chan_req_turn(cr) == turn) {
		cr->closed = true;
		cr->closed_at = jiffies;
		cr->cookie = word;
		/* Without the word only a probe tells when the data is over. */
		cr->aborted |= word < 0;
		if (cr->failed || cr->aborted)
			trusted = false;
		if (!cr->sent)
			/* There was no room for any of it. */
			adma_chan_req_over(cr, true);
		else if (!ch->ordered)
			adma_chan_req_over_if_answered(cr);
	}
	spin_unlock_irqrestore(&ch->lock, irq);

	if (word < 0)
		adma_watch_now(ch);
	else
		adma_watch_later(ch);
	return trusted && !(atomic64_read(&req->failed) & pieces);
}
