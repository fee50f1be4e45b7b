// SPDX-License-Identifier: GPL-2.0
/*
 * Legs: what one channel does of a request, from its first transfer to the word
 * that tells user space of its end. health.c looks after those whose answer does
 * not come.
 */
#include <linux/dma-mapping.h>
#include <linux/jiffies.h>

#include "adma.h"

/*
 * ioatdma resets a channel that made no progress for 100 ms at the earliest.
 * It gives no answer to the transfer at the head, and may take new ones in
 * meanwhile. So while the channel has a leg older than this, a word proves
 * nothing: data before it may have been lost.
 */
#define ADMA_TRUSTED_MS		50

/* The channel's lock is held. The request may be gone afterwards. */
void adma_leg_over(struct adma_leg *leg, bool failed)
{
	lockdep_assert_held(&leg->ch->lock);
	list_del(&leg->list);
	if (failed)
		leg->failed = true;
	atomic_set(&leg->done, leg->pushed);
	adma_request_put(leg->req);
}

static void adma_data_answered(void *param, const struct dmaengine_result *res)
{
	struct adma_leg *leg = param;

	atomic_dec(&leg->unanswered);
	if (res->result == DMA_TRANS_NOERROR) {
		/* Transfers come in turn: those before it are over as well. */
		atomic_inc(&leg->done);
		return;
	}
	adma_count(ADMA_STAT_ERRORS, 1);
	WRITE_ONCE(leg->failed, true);
}

static void adma_last_answered(void *param, const struct dmaengine_result *res)
{
	struct adma_leg *leg = param;
	struct adma_channel *ch = leg->ch;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	if (res->result != DMA_TRANS_NOERROR) {
		adma_count(ADMA_STAT_ERRORS, 1);
		leg->aborted = true;
		adma_watch_now(ch);
	} else {
		bool failed = READ_ONCE(leg->failed) ||
			      atomic_read(&leg->unanswered);

		if (!failed)
			atomic_inc(&ch->good);
		adma_leg_over(leg, failed);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
}

void adma_leg_begin(struct adma_leg *leg, struct adma_request *req,
		    struct adma_channel *ch)
{
	unsigned long irq;

	leg->req = req;
	leg->ch = ch;
	leg->begun = jiffies;
	refcount_inc(&req->legs);
	spin_lock_irqsave(&ch->lock, irq);
	list_add_tail(&leg->list, &ch->legs);
	spin_unlock_irqrestore(&ch->lock, irq);
}

/* One stretch of memory. */
int adma_leg_push(struct adma_leg *leg, dma_addr_t dst, dma_addr_t src,
		  size_t len, bool last_of_piece)
{
	/*
	 * The word must not overtake the data, and which piece is the last is
	 * only known when the next one could not be had: a fence after each.
	 */
	unsigned long flags = last_of_piece ? DMA_PREP_FENCE : 0;
	int ret;

	atomic_inc(&leg->unanswered);
	ret = adma_transfer(leg->ch, dst, src, len, flags, adma_data_answered,
			    leg);
	if (ret) {
		atomic_dec(&leg->unanswered);
		return ret;
	}
	leg->pushed++;
	leg->fenced = last_of_piece;
	if (last_of_piece)
		dma_async_issue_pending(leg->ch->chan);
	return 0;
}

/*
 * Without its last transfer a leg would cost a probe, and whoever else is on
 * the channel with it. So that one waits for its place as long as for an
 * answer.
 */
static int adma_leg_last(struct adma_leg *leg, dma_addr_t word,
			 dma_addr_t value)
{
	unsigned long end = jiffies + adma_timeout();
	int ret;

	do {
		ret = adma_transfer(leg->ch, word, value, ADMA_WORD_STRIDE,
				    DMA_PREP_INTERRUPT, adma_last_answered,
				    leg);
	} while (ret == -EBUSY && time_before(jiffies, end));
	dma_async_issue_pending(leg->ch->chan);
	return ret;
}

/*
 * The last transfer of a leg copies the request's id into the word that user
 * space looks at. True: once that word has come, all data has. The leg may be
 * over, and with the submitter's hold gone, so may be the request.
 */
bool adma_leg_close(struct adma_leg *leg, dma_addr_t word, dma_addr_t value)
{
	struct adma_channel *ch = leg->ch;
	unsigned long irq, oldest;
	bool trusted;
	int ret;

	/* The channel had no room for any of it: there is nothing to end. */
	if (!leg->pushed) {
		spin_lock_irqsave(&ch->lock, irq);
		adma_leg_over(leg, true);
		spin_unlock_irqrestore(&ch->lock, irq);
		return false;
	}
	ret = adma_leg_last(leg, word, value);

	spin_lock_irqsave(&ch->lock, irq);
	leg->closed = true;
	leg->closed_at = jiffies;
	/* Without a last transfer only a probe tells when the data is over. */
	if (ret)
		leg->aborted = true;
	oldest = leg->begun;
	if (!list_empty(&ch->legs))
		oldest = list_first_entry(&ch->legs, struct adma_leg, list)->begun;
	if (time_after(oldest, leg->begun))
		oldest = leg->begun;
	/* What was begun of a piece that was then refused has no fence. */
	trusted = !ret && leg->fenced && !READ_ONCE(leg->failed) &&
		  time_before(jiffies,
			      oldest + msecs_to_jiffies(ADMA_TRUSTED_MS));
	spin_unlock_irqrestore(&ch->lock, irq);

	if (ret)
		adma_watch_now(ch);
	else
		adma_watch_later(ch);
	return trusted;
}
