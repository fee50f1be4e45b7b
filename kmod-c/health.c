// SPDX-License-Identifier: GPL-2.0
/*
 * The health of channels, and knowing when a transfer is dead.
 *
 * A transfer that is late may still be carried out. It is dead when its own
 * answer (callback_result) says that it went well, or when a transfer that was
 * submitted to the same channel after it went wrong has been answered, well or
 * not: channels work in order, and ioatdma takes no new transfer until it has
 * reset the channel. That later transfer is the probe. An answer that says
 * "aborted" proves nothing by itself, for ioatdma gives it before the reset.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/jiffies.h>

#include "adma.h"

/* How often the watch looks for answers whose interrupt was lost. */
#define ADMA_WATCH_MS		20

/* Errors that put a channel aside, good legs that make up for one ... */
#define ADMA_STRIKES		3
#define ADMA_FORGIVEN		64
/* ... how long it rests, and how many times it is taken back. */
#define ADMA_REST_MS		1000
#define ADMA_RESTS		3

/* For so long a channel may be silent. */
unsigned long adma_timeout(void)
{
	return msecs_to_jiffies(clamp(adma_timeout_ms, 10U, 60000U));
}

/*
 * The probe: two transfers within a page of the channel's own. Two, because
 * ioatdma's own reset leaves the first one of a stuck chain unanswered.
 */

enum adma_verdict {
	ADMA_SILENT,		/* nothing is known */
	ADMA_BAD,		/* answered, but not well */
	ADMA_WELL,
};

#define ADMA_PROBE_LEN		64

static void adma_probe_answered(void *param, const struct dmaengine_result *res)
{
	struct adma_answer *answer = param;

	answer->result = res->result;
	/* Pairs with adma_probe(): the result comes first. */
	smp_store_release(&answer->came, true);
	complete(&answer->probe->answered);
}

static enum adma_verdict adma_probe(struct adma_channel *ch)
{
	struct adma_probe *probe = &ch->probe[ch->probe_turn % 2];
	size_t base = (ch->probe_turn % 2) * 4 * ADMA_PROBE_LEN;
	u8 *from = ch->probe_page + base;
	unsigned long end = jiffies + adma_timeout();
	unsigned int i, sent = 0, came;

	if (!ch->probe_pending) {
		init_completion(&probe->answered);
		memset(from, 0x40 + ch->probe_turn % 128, ADMA_PROBE_LEN);
		memset(from + ADMA_PROBE_LEN, 0, 2 * ADMA_PROBE_LEN);
		for (i = 0; i < 2; i++) {
			struct adma_answer *answer = &probe->answer[i];
			dma_addr_t src = ch->probe_dma + base;
			dma_addr_t dst = src + (i + 1) * ADMA_PROBE_LEN;

			answer->probe = probe;
			answer->came = false;
			/* While it resets a channel, ioatdma takes nothing. */
			while (adma_transfer(ch, dst, src, ADMA_PROBE_LEN,
					     DMA_PREP_INTERRUPT,
					     adma_probe_answered, answer)) {
				if (time_after(jiffies, end))
					goto wait;
				msleep(ADMA_WATCH_MS);
			}
			sent++;
		}
	} else {
		sent = 2;
	}
wait:
	if (!sent)
		return ADMA_SILENT;
	end = jiffies + adma_timeout();
	for (;;) {
		adma_channel_poke(ch);
		came = 0;
		for (i = 0; i < sent; i++) {
			/* Pairs with adma_probe_answered(). */
			came += smp_load_acquire(&probe->answer[i].came);
		}
		if (came == sent || time_after(jiffies, end))
			break;
		wait_for_completion_timeout(&probe->answered,
					    msecs_to_jiffies(ADMA_WATCH_MS));
	}
	ch->probe_pending = !came;
	if (!came)
		return ADMA_SILENT;
	/* A straggler of this one finds its place untouched by the next. */
	ch->probe_turn++;
	if (came < 2 || probe->answer[0].result != DMA_TRANS_NOERROR ||
	    probe->answer[1].result != DMA_TRANS_NOERROR ||
	    memcmp(from, from + ADMA_PROBE_LEN, ADMA_PROBE_LEN) ||
	    memcmp(from, from + 2 * ADMA_PROBE_LEN, ADMA_PROBE_LEN))
		return ADMA_BAD;
	return ADMA_WELL;
}

/*
 * The watch: looks after legs whose answer does not come, and after channels
 * that are put aside. It alone changes a channel's health.
 */

/* Marks the legs that a probe submitted now will tell about. */
static bool adma_doubt(struct adma_channel *ch)
{
	struct adma_leg *leg;
	unsigned long irq;
	bool any = false;

	spin_lock_irqsave(&ch->lock, irq);
	list_for_each_entry(leg, &ch->legs, list) {
		/* One that is still being submitted may have lost a transfer. */
		if (!leg->closed)
			WRITE_ONCE(leg->failed, true);
		leg->doubted = leg->closed;
		any |= leg->closed;
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	return any;
}

static void adma_bury(struct adma_channel *ch)
{
	struct adma_leg *leg, *next;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	list_for_each_entry_safe(leg, next, &ch->legs, list) {
		if (leg->doubted)
			adma_leg_over(leg, true);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
}

static bool adma_in_trouble(struct adma_channel *ch, bool *idle)
{
	struct adma_leg *leg;
	bool trouble = false;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	*idle = list_empty(&ch->legs);
	list_for_each_entry(leg, &ch->legs, list) {
		if (!leg->closed)
			continue;
		if (leg->aborted) {
			trouble = true;
		} else if (time_after(jiffies,
				      leg->closed_at + adma_timeout())) {
			if (!leg->doubted)
				adma_count(ADMA_STAT_TIMEOUTS, 1);
			trouble = true;
		}
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	return trouble;
}

static void adma_set_health(struct adma_channel *ch, enum adma_health health)
{
	/* At most a few times for each channel and load of the module. */
	if (health == ADMA_OUT)
		dev_warn(ch->dev, "adma: %s is left out\n",
			 dma_chan_name(ch->chan));
	WRITE_ONCE(ch->health, health);
}

/* Asks the channel itself, and draws the conclusions. */
static void adma_examine(struct adma_channel *ch)
{
	enum adma_verdict verdict;
	bool doubts, idle;

	if (ch->health == ADMA_UP)
		adma_set_health(ch, ADMA_ASIDE);
	doubts = !ch->probe_pending && adma_doubt(ch);
	verdict = adma_probe(ch);
	if (verdict == ADMA_SILENT) {
		/*
		 * Pages stay pinned and callers wait: it may still write. With
		 * nobody waiting it is given up before long; after some errors
		 * ioatdma itself does not look at a channel any more.
		 */
		adma_in_trouble(ch, &idle);
		if (idle && ch->health == ADMA_ASIDE &&
		    ++ch->rests > ADMA_RESTS)
			adma_set_health(ch, ADMA_OUT);
		return;
	}
	adma_bury(ch);
	/* It may only have been caught by the reset that ended the others. */
	if (verdict == ADMA_BAD)
		verdict = adma_probe(ch);
	switch (verdict) {
	case ADMA_SILENT:
	case ADMA_BAD:
		ch->strikes = ADMA_STRIKES;
		ch->rests++;	/* counts twice */
		break;
	case ADMA_WELL:
		if (atomic_xchg(&ch->good, 0) >= ADMA_FORGIVEN)
			ch->strikes = 0;
		if (doubts)
			ch->strikes++;
		else if (ch->strikes >= ADMA_STRIKES)
			ch->strikes = ADMA_STRIKES - 1;	/* has rested */
		break;
	}
	if (ch->health == ADMA_OUT)
		return;
	if (ch->strikes < ADMA_STRIKES) {
		adma_set_health(ch, ADMA_UP);
		return;
	}
	adma_count(ADMA_STAT_QUARANTINED, 1);
	if (++ch->rests > ADMA_RESTS)
		adma_set_health(ch, ADMA_OUT);
}

static void adma_watch(struct work_struct *work)
{
	struct adma_channel *ch =
		container_of(to_delayed_work(work), struct adma_channel, watch);
	unsigned int pause = ADMA_WATCH_MS;
	bool idle;

	adma_channel_poke(ch);
	if (adma_in_trouble(ch, &idle) || ch->health == ADMA_ASIDE) {
		adma_examine(ch);
		if (ch->health == ADMA_ASIDE && !ch->probe_pending)
			pause = ADMA_REST_MS;
		else
			adma_in_trouble(ch, &idle);
	}
	if (!idle || ch->health == ADMA_ASIDE)
		queue_delayed_work(system_unbound_wq, &ch->watch,
				   msecs_to_jiffies(pause));
}

/* A leg has been closed: its answer may get lost. */
void adma_watch_later(struct adma_channel *ch)
{
	queue_delayed_work(system_unbound_wq, &ch->watch,
			   msecs_to_jiffies(ADMA_WATCH_MS));
}

/* Something went wrong. */
void adma_watch_now(struct adma_channel *ch)
{
	mod_delayed_work(system_unbound_wq, &ch->watch, 0);
}

/* A channel has to show that it works. */
int adma_health_init(struct adma_channel *ch)
{
	INIT_DELAYED_WORK(&ch->watch, adma_watch);
	ch->probe_page = dma_alloc_coherent(ch->dev, PAGE_SIZE, &ch->probe_dma,
					    GFP_KERNEL);
	if (!ch->probe_page)
		return -ENOMEM;
	if (adma_probe(ch) != ADMA_WELL) {
		dev_warn(ch->dev, "adma: %s fails its test, not used\n",
			 dma_chan_name(ch->chan));
		return -EIO;
	}
	return 0;
}

void adma_health_stop(struct adma_channel *ch)
{
	cancel_delayed_work_sync(&ch->watch);
}

/* The channel is released: nothing moves any more, a silent probe included. */
void adma_health_exit(struct adma_channel *ch)
{
	if (ch->probe_page)
		dma_free_coherent(ch->dev, PAGE_SIZE, ch->probe_page,
				  ch->probe_dma);
}
