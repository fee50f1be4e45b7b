// SPDX-License-Identifier: GPL-2.0
/*
 * Legs: what one channel does of a request, from its first transfer to the word
 * that tells user space of its end. health.c looks after those whose answer does
 * not come.
 *
 * A channel that works in order writes the word itself: that is the leg's last
 * transfer, and when it is answered all is over. On any other the leg is over
 * when each of its transfers has been answered, and the word is written here.
 */
#include <linux/dma-mapping.h>
#include <linux/jiffies.h>

#include "adma.h"

static_assert(BITS_PER_LONG == 64);	/* see adma_param() */
static_assert(ADMA_TRANSFER_MOST / ADMA_PARAM_UNIT <
	      BIT(ADMA_PARAM_ID - ADMA_PARAM_LEN));

/*
 * ioatdma resets a channel that made no progress for 100 ms at the earliest.
 * It gives no answer to the transfer at the head, and may take new ones in
 * meanwhile. So a word proves nothing when the channel stood still as the leg
 * was begun, or the leg was begun long ago: data before it may have been lost.
 */
#define ADMA_TRUSTED_MS		50

static bool adma_is_recent(unsigned long when)
{
	return time_before(jiffies, when + msecs_to_jiffies(ADMA_TRUSTED_MS));
}

/* Whether all it has to do was answered, or something a moment ago. */
static bool adma_channel_moves(struct adma_channel *ch)
{
	return !READ_ONCE(ch->unanswered) ||
	       adma_is_recent(READ_ONCE(ch->moved));
}

/* Where user space looks for the end of the leg. */
static size_t adma_word_of(struct adma_leg *leg, struct adma_words **words)
{
	BUILD_BUG_ON(ADMA_SLOTS * ADMA_WORD_STRIDE > PAGE_SIZE / 2);
	*words = &leg->req->file->words[leg->ch - adma_channels];
	return leg->req->slot * ADMA_WORD_STRIDE;
}

/* The channel's lock is held. The request may be gone afterwards. */
void adma_leg_over(struct adma_leg *leg, bool failed)
{
	struct adma_channel *ch = leg->ch;

	lockdep_assert_held(&ch->lock);
	list_del(&leg->list);
	hlist_del(&leg->by_id);
	ch->unanswered -= leg->unanswered;
	ch->queued -= leg->queued;
	if (failed)
		leg->failed = true;
	else
		ch->good++;
	atomic_set(&leg->done, leg->pushed);
	adma_request_put(leg->req);
}

/* On a channel without order. */
static void adma_leg_over_if_answered(struct adma_leg *leg)
{
	struct adma_words *words;
	size_t at;

	if (leg->unanswered)
		return;
	atomic_set(&leg->done, leg->pushed);
	if (!leg->closed)
		return;
	at = adma_word_of(leg, &words);
	if (!leg->failed)
		/* After the data, which the answers were about. */
		smp_store_release((u64 *)(words->page + at), leg->req->id);
	adma_leg_over(leg, leg->failed);
}

/*
 * What the driver was given was a number: it may answer late, or again, when
 * the leg is long over.
 */
static struct adma_leg *adma_leg_find(struct adma_channel *ch, u32 id)
{
	struct adma_leg *leg;

	hlist_for_each_entry(leg, &ch->ids[id % ADMA_IDS], by_id) {
		if (leg->id == id)
			return leg;
	}
	return NULL;
}

static void adma_leg_answered(void *param, const struct dmaengine_result *res)
{
	struct adma_channel *ch = adma_param_channel(param);
	bool good = res->result == DMA_TRANS_NOERROR;
	size_t len = adma_param_len(param);
	struct adma_leg *leg;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	leg = adma_leg_find(ch, adma_param_id(param));
	if (!leg)
		goto out_unlock;	/* it was over long ago */
	WRITE_ONCE(ch->moved, jiffies);
	ch->unanswered--;
	ch->queued -= len;
	leg->unanswered--;
	leg->queued -= len;
	if (!good) {
		adma_count(ADMA_STAT_ERRORS, 1);
		leg->failed = true;
	}
	if (!ch->ordered) {
		ch->erred |= !good;
		if (!good)
			adma_watch_now(ch);
		adma_leg_over_if_answered(leg);
	} else if (len) {
		/* In turn: those before it are over as well. */
		if (good)
			atomic_inc(&leg->done);
	} else if (good) {
		/* What has no answer by now was lost. */
		adma_leg_over(leg, leg->failed || leg->unanswered);
	} else {
		leg->aborted = true;
		adma_watch_now(ch);
	}
out_unlock:
	spin_unlock_irqrestore(&ch->lock, irq);
}

void adma_leg_begin(struct adma_leg *leg, struct adma_request *req,
		    struct adma_channel *ch)
{
	unsigned long irq;

	leg->trusted = adma_channel_moves(ch);
	if (!leg->trusted) {
		/* Answers without an interrupt may be waiting to be fetched. */
		adma_channel_poke(ch);
		leg->trusted = adma_channel_moves(ch);
	}
	leg->req = req;
	leg->ch = ch;
	leg->begun = jiffies;
	refcount_inc(&req->legs);
	spin_lock_irqsave(&ch->lock, irq);
	leg->id = ch->next_id++;
	hlist_add_head(&leg->by_id, &ch->ids[leg->id % ADMA_IDS]);
	list_add_tail(&leg->list, &ch->legs);
	spin_unlock_irqrestore(&ch->lock, irq);
}

/* Hands over data, or with @len 0 the word; until then it is as good as there. */
static int adma_leg_transfer(struct adma_leg *leg, dma_addr_t dst,
			     dma_addr_t src, size_t len, unsigned long flags)
{
	struct adma_channel *ch = leg->ch;
	void *param = adma_param(ch, leg->id, len);
	size_t queued = adma_param_len(param);
	unsigned long irq;
	dma_cookie_t ret;

	spin_lock_irqsave(&ch->lock, irq);
	if (!ch->unanswered++)
		WRITE_ONCE(ch->moved, jiffies);
	ch->queued += queued;
	leg->unanswered++;
	leg->queued += queued;
	if (len)
		leg->pushed++;
	spin_unlock_irqrestore(&ch->lock, irq);

	ret = adma_transfer(ch, dst, src, len ?: ADMA_WORD_STRIDE, flags,
			    adma_leg_answered, param);
	if (ret >= 0) {
		if (!len)
			WRITE_ONCE(leg->cookie, ret);
		return 0;
	}

	spin_lock_irqsave(&ch->lock, irq);
	ch->unanswered--;
	ch->queued -= queued;
	leg->unanswered--;
	leg->queued -= queued;
	if (len)
		leg->pushed--;
	if (!ch->ordered)
		adma_leg_over_if_answered(leg);
	spin_unlock_irqrestore(&ch->lock, irq);
	return ret;
}

/* One stretch of memory. */
int adma_leg_push(struct adma_leg *leg, dma_addr_t dst, dma_addr_t src,
		  size_t len, bool last_of_piece)
{
	struct adma_channel *ch = leg->ch;
	unsigned long flags = 0;
	int ret;

	/*
	 * The word must not overtake the data, and which piece is the last is
	 * only known when the next one could not be had: a fence after each.
	 */
	if (!ch->ordered)
		flags = DMA_PREP_INTERRUPT;
	else if (last_of_piece)
		flags = DMA_PREP_FENCE;
	ret = adma_leg_transfer(leg, dst, src, len, flags);
	if (ret)
		return ret;
	leg->fenced = last_of_piece;
	if (last_of_piece)
		dma_async_issue_pending(ch->chan);
	return 0;
}

/*
 * Without its last transfer a leg would cost a probe, and whoever else is on
 * the channel with it. So that one waits for its place as long as for an
 * answer.
 */
static int adma_leg_push_word(struct adma_leg *leg)
{
	unsigned long end = jiffies + adma_timeout();
	struct adma_words *words;
	size_t at = adma_word_of(leg, &words);
	size_t value = PAGE_SIZE / 2 + at;
	int ret;

	WRITE_ONCE(*(u64 *)(words->page + value), leg->req->id);
	do {
		ret = adma_leg_transfer(leg, words->dma + at,
					words->dma + value, 0,
					DMA_PREP_INTERRUPT);
	} while (ret == -EBUSY && time_before(jiffies, end));
	dma_async_issue_pending(leg->ch->chan);
	return ret;
}

/*
 * True: once the word holds the request's id, all data has come. The leg may be
 * over, and with the submitter's hold gone, so may be the request.
 */
bool adma_leg_close(struct adma_leg *leg)
{
	struct adma_channel *ch = leg->ch;
	bool trusted;
	unsigned long irq;
	int ret = 0;

	if (ch->ordered && leg->pushed)
		ret = adma_leg_push_word(leg);

	spin_lock_irqsave(&ch->lock, irq);
	leg->closed = true;
	leg->closed_at = jiffies;
	/* Without a last transfer only a probe tells when the data is over. */
	if (ret)
		leg->aborted = true;
	/* What was begun of a piece that was then refused has no fence. */
	trusted = !ret && !leg->failed &&
		  (!ch->ordered || (leg->fenced && leg->trusted &&
				    adma_is_recent(leg->begun)));
	if (!leg->pushed) {
		/* There was no room for any of it: there is nothing to end. */
		trusted = false;
		adma_leg_over(leg, true);
	} else if (!ch->ordered) {
		adma_leg_over_if_answered(leg);
	}
	spin_unlock_irqrestore(&ch->lock, irq);

	if (ret)
		adma_watch_now(ch);
	else
		adma_watch_later(ch);
	return trusted;
}
