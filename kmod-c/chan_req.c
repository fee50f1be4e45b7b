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

/*
 * For so long a change of the mapping waits for transfers at most. ioatdma
 * ends a hung channel sooner; after that the pins alone keep others safe.
 */
#define ADMA_LINGER_MS	3000

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

/*
 * Whether it may still carry out transfers from or to memory of @file, of
 * requests that had begun by then.
 */
bool adma_channel_busy(struct adma_channel *ch, const struct adma_file *file,
		       unsigned long since)
{
	unsigned long irq, limit = msecs_to_jiffies(ADMA_LINGER_MS);
	struct adma_chan_req *cr;
	bool busy = false;

	spin_lock_irqsave(&ch->lock, irq);
	list_for_each_entry(cr, &ch->reqs, list) {
		struct adma_buf *buf = cr->req->buf;

		if ((cr->req->file == file || (buf && buf->file == file)) &&
		    !time_after(cr->begun, since) &&
		    !time_after(jiffies, READ_ONCE(cr->sent_at) + limit) &&
		    (s32)(READ_ONCE(cr->data) - atomic64_read(&cr->done)) > 0)
			busy = true;
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	return busy;
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
	atomic_long_sub(cr->sent - done, &ch->queued);
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

	if (!cr->closed || cr->sent != (u32)atomic64_read(&cr->done))
		return;
	at = adma_word_of(cr, &words);
	if (!cr->failed)
		/* After the data, which the answers were about. */
		smp_store_release((u64 *)(words->page + at), cr->req->id);
	adma_chan_req_over(cr, cr->failed);
}

/* In turn and well, as nearly always; or without order, well or not. */
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
	struct adma_channel *ch = &adma_channels[param.channel];
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
		adma_chan_req_advance(cr, param.turn, param.units);
		ch->erred |= !good;
		if (!good)
			adma_watch_soon(ch, true);
		adma_chan_req_over_if_answered(cr);
	} else if (!param.units && good) {
		/* What has no answer by now, but for the word, was lost. */
		adma_chan_req_over(cr, cr->failed ||
				   cr->sent - (u32)atomic64_read(&cr->done) != 1);
	} else if (!param.units) {
		cr->aborted = true;
		adma_watch_soon(ch, true);
	}
out_unlock:
	spin_unlock_irqrestore(&ch->lock, irq);
}

/* One that is free, or NULL. The channel's lock is held. */
static struct adma_chan_req *adma_chan_req_take(struct adma_channel *ch)
{
	unsigned int i;

	for (i = 0; i < ADMA_CHAN_REQS; i++) {
		ch->last_req = (ch->last_req + 1) % ADMA_CHAN_REQS;
		if (!ch->req[ch->last_req].req)
			return &ch->req[ch->last_req];
	}
	return NULL;
}

struct adma_chan_req *adma_chan_req_begin(struct adma_channel *ch,
					  struct adma_request *req)
{
	bool trusted = adma_channel_moves(ch);
	struct adma_chan_req *cr;
	int ret = 0, tries = 0;
	unsigned long irq;

	if (!trusted) {
		/* Answers without an interrupt may be waiting to be fetched. */
		adma_channel_poll(ch);
		trusted = adma_channel_moves(ch);
	}
	do {
		spin_lock_irqsave(&ch->lock, irq);
		cr = adma_chan_req_take(ch);
		if (cr) {
			memset_after(cr, 0, done);
			cr->req = req;
			cr->begun = jiffies;
			cr->trusted = trusted;
			list_add_tail(&cr->list, &ch->reqs);
			refcount_inc(&req->parts);
		}
		spin_unlock_irqrestore(&ch->lock, irq);
		if (!cr)
			ret = adma_channel_retry(ch, tries++);
	} while (!cr && !ret);
	return cr ?: ERR_PTR(ret);
}

/* Until they are handed over, they are as good as there. */
static void adma_chan_req_charge(struct adma_chan_req *cr, u32 units)
{
	struct adma_channel *ch = cr->ch;

	WRITE_ONCE(cr->sent_at, jiffies);
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
	WRITE_ONCE(cr->data, min(cr->data, cr->sent));
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
 * Hands over some transfers, which touch the request's ranges from @first_range
 * on. ESTALE: one of those has died, and with it what the transfers are made of.
 *
 * The word must not overtake the data, and which piece is the last is only known
 * when the next one could not be had: @fence says that the last one of a piece
 * is among them.
 */
int adma_chan_req_send(struct adma_chan_req *cr, const struct adma_xfer *xfer,
		       unsigned int nr, unsigned int first_range, bool fence)
{
	struct adma_request *req = cr->req;
	struct adma_channel *ch = cr->ch;
	u32 units = 0;
	unsigned int i;
	int ret;

	ret = adma_channel_wait_room(ch);
	if (ret)
		return ret;
	for (i = 0; i < nr; i++)
		units += adma_units(xfer[i].len);
	adma_chan_req_charge(cr, units);
	WRITE_ONCE(cr->data, cr->sent);
	/*
	 * A range that is dead by now is seen here; whoever makes one dead from
	 * now on sees the charge, and waits: see adma_range_drain().
	 */
	smp_mb();
	for (i = first_range; i < req->nr_ranges; i++) {
		if (READ_ONCE(req->range[i]->dead)) {
			adma_chan_req_uncharge(cr, units);
			return -ESTALE;
		}
	}
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

	adma_watch_soon(ch, word < 0);
	return trusted && !(atomic64_read(&req->failed) & pieces);
}
