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
 *
 * On a channel without order every answer proves the end of its own transfer,
 * good or not, and nothing else does: the probe only shows whether it works.
 *
 * A queue is no failure: a channel is silent when nothing on it was answered
 * for timeout_ms, however long something has waited for its turn.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>

#include "adma.h"
#include "trace.h"

/* How often the watch looks for answers whose interrupt was lost. */
#define ADMA_WATCH_MS		20

/* Errors that put a channel aside, good chan_reqs that make up for one ... */
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
/* So often one that went wrong is repeated. */
#define ADMA_PROBES		3

static void adma_probe_answered(void *ptr, const struct dmaengine_result *res)
{
	union adma_param param = { .ptr = ptr };
	struct adma_channel *ch = adma_param_channel(param);
	struct adma_probe *probe = &ch->probe;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	if (probe->turn == param.turn) {
		probe->came++;
		probe->bad |= res->result != DMA_TRANS_NOERROR;
		complete(&probe->answered);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
}

/* A straggler of the last turn may still write where that was. */
static unsigned int adma_probe_at(const struct adma_probe *probe)
{
	return probe->turn % 2 * 4 * ADMA_PROBE_LEN;
}

/* Answers how many transfers were handed over. */
static unsigned int adma_probe_send(struct adma_channel *ch)
{
	struct adma_probe *probe = &ch->probe;
	unsigned long irq, end = jiffies + adma_timeout();
	dma_addr_t src;
	unsigned int i;
	u8 *from;

	spin_lock_irqsave(&ch->lock, irq);
	probe->turn++;
	probe->came = 0;
	probe->bad = false;
	reinit_completion(&probe->answered);
	spin_unlock_irqrestore(&ch->lock, irq);
	from = probe->page + adma_probe_at(probe);
	src = probe->dma + adma_probe_at(probe);
	memset(from, 0x40 + probe->turn % 128, ADMA_PROBE_LEN);
	memset(from + ADMA_PROBE_LEN, 0, 2 * ADMA_PROBE_LEN);
	for (i = 0; i < 2; i++) {
		/* While it resets a channel, ioatdma takes nothing. */
		while (adma_transfer(ch, src + (i + 1) * ADMA_PROBE_LEN, src,
				     ADMA_PROBE_LEN, DMA_PREP_INTERRUPT,
				     adma_probe_answered,
				     (union adma_param) { .turn = probe->turn }) < 0) {
			if (time_after(jiffies, end))
				return i;
			msleep(ADMA_WATCH_MS);
		}
	}
	return i;
}

/* With the lock: what was copied comes before its answer. */
static unsigned int adma_probe_came(struct adma_channel *ch)
{
	unsigned long irq;
	unsigned int came;

	spin_lock_irqsave(&ch->lock, irq);
	came = ch->probe.came;
	spin_unlock_irqrestore(&ch->lock, irq);
	return came;
}

static enum adma_verdict adma_probe(struct adma_channel *ch)
{
	struct adma_probe *probe = &ch->probe;
	unsigned int sent = 2, came;
	unsigned long end;
	u8 *from;

	if (!probe->pending)
		sent = adma_probe_send(ch);
	if (!sent)
		return ADMA_SILENT;
	end = jiffies + adma_timeout();
	for (;;) {
		adma_channel_poll(ch);
		came = adma_probe_came(ch);
		if (came == sent || time_after(jiffies, end))
			break;
		wait_for_completion_timeout(&probe->answered,
					    msecs_to_jiffies(ADMA_WATCH_MS));
	}
	probe->pending = !came;
	if (probe->pending)
		return ADMA_SILENT;
	from = probe->page + adma_probe_at(probe);
	if (came < 2 || READ_ONCE(probe->bad) ||
	    memcmp(from, from + ADMA_PROBE_LEN, ADMA_PROBE_LEN) ||
	    memcmp(from, from + 2 * ADMA_PROBE_LEN, ADMA_PROBE_LEN))
		return ADMA_BAD;
	return ADMA_WELL;
}

/*
 * The watch: looks after chan_reqs whose answer does not come, and after
 * channels that are put aside. It alone changes a channel's health.
 */

/* Marks what a probe submitted now will tell about. */
static bool adma_mark_suspects(struct adma_channel *ch)
{
	struct adma_chan_req *cr;
	unsigned long irq;
	bool any;

	spin_lock_irqsave(&ch->lock, irq);
	any = ch->erred;
	ch->erred = false;
	list_for_each_entry(cr, &ch->reqs, list) {
		/* One that is still being submitted may have lost a transfer. */
		if (ch->ordered && !cr->closed)
			cr->failed = true;
		cr->suspect = cr->closed;
		any |= cr->closed;
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	return any;
}

static void adma_fail_suspects(struct adma_channel *ch)
{
	struct adma_chan_req *cr, *next;
	unsigned long irq;

	if (!ch->ordered)
		return;
	spin_lock_irqsave(&ch->lock, irq);
	list_for_each_entry_safe(cr, next, &ch->reqs, list) {
		if (cr->suspect)
			adma_chan_req_over(cr, true);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
}

static bool adma_channel_idle(struct adma_channel *ch)
{
	unsigned long irq;
	bool idle;

	spin_lock_irqsave(&ch->lock, irq);
	idle = list_empty(&ch->reqs);
	spin_unlock_irqrestore(&ch->lock, irq);
	return idle;
}

/*
 * Nothing moves; or the driver has done with the word and has not said so. Its
 * answer may just be on its way, so the second look counts.
 */
static bool adma_chan_req_silent(struct adma_chan_req *cr)
{
	struct adma_channel *ch = cr->ch;
	bool lost = cr->lost;

	if (time_before(jiffies, cr->closed_at + adma_timeout()))
		return false;
	cr->lost = ch->ordered &&
		   dma_async_is_complete(cr->cookie,
					 READ_ONCE(ch->chan->completed_cookie),
					 READ_ONCE(ch->chan->cookie)) == DMA_COMPLETE;
	return (lost && cr->lost) ||
	       time_after(jiffies, READ_ONCE(ch->moved) + adma_timeout());
}

static bool adma_in_trouble(struct adma_channel *ch)
{
	struct adma_chan_req *cr;
	unsigned long irq;
	bool trouble;

	spin_lock_irqsave(&ch->lock, irq);
	trouble = ch->erred;
	list_for_each_entry(cr, &ch->reqs, list) {
		if (!cr->closed)
			continue;
		if (cr->aborted) {
			trouble = true;
		} else if (adma_chan_req_silent(cr)) {
			if (!cr->suspect)
				adma_count(ADMA_STAT_TIMEOUTS, 1);
			trouble = true;
		}
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	return trouble;
}

static void adma_set_health(struct adma_channel *ch, enum adma_health health)
{
	trace_adma_channel(dma_chan_name(ch->chan), health);
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
	unsigned int i;
	bool suspects;

	if (ch->health == ADMA_UP)
		adma_set_health(ch, ADMA_ASIDE);
	suspects = !ch->probe.pending && adma_mark_suspects(ch);
	verdict = adma_probe(ch);
	if (verdict == ADMA_SILENT) {
		/*
		 * Pages stay pinned and callers wait: it may still write. With
		 * nobody waiting it is given up before long; after some errors
		 * ioatdma itself does not look at a channel any more.
		 */
		if (adma_channel_idle(ch) && ch->health == ADMA_ASIDE &&
		    ++ch->rests > ADMA_RESTS)
			adma_set_health(ch, ADMA_OUT);
		return;
	}
	adma_fail_suspects(ch);
	/*
	 * It may only have been caught by the reset that ended the others:
	 * ioatdma resets a channel every 200 ms until a transfer got through.
	 */
	for (i = 0; verdict == ADMA_BAD && i < ADMA_PROBES; i++)
		verdict = adma_probe(ch);
	if (verdict != ADMA_WELL) {
		ch->strikes = ADMA_STRIKES;
		ch->rests++;	/* counts twice */
	} else {
		if (READ_ONCE(ch->good) - ch->good_seen >= ADMA_FORGIVEN)
			ch->strikes = 0;
		ch->good_seen = READ_ONCE(ch->good);
		if (suspects)
			ch->strikes++;
		else if (ch->strikes >= ADMA_STRIKES)
			ch->strikes = ADMA_STRIKES - 1;	/* has rested */
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

	adma_channel_poll(ch);
	if (adma_in_trouble(ch) || ch->health == ADMA_ASIDE) {
		adma_examine(ch);
		/* Without order what was lost stays, and the probe is good. */
		if (!ch->probe.pending &&
		    (ch->health == ADMA_ASIDE ||
		     (ch->health == ADMA_OUT && !ch->ordered)))
			pause = ADMA_REST_MS;
	}
	if (!adma_channel_idle(ch) || ch->health == ADMA_ASIDE)
		queue_delayed_work(system_unbound_wq, &ch->watch,
				   msecs_to_jiffies(pause));
}

/* Something has been submitted: its answer may get lost. */
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
	struct adma_probe *probe = &ch->probe;

	INIT_DELAYED_WORK(&ch->watch, adma_watch);
	init_completion(&probe->answered);
	probe->page = dma_alloc_coherent(ch->dev, PAGE_SIZE, &probe->dma,
					 GFP_KERNEL);
	if (!probe->page)
		return -ENOMEM;
	if (adma_probe(ch) != ADMA_WELL) {
		dev_warn(ch->dev, "adma: %s fails its test, not used\n",
			 dma_chan_name(ch->chan));
		return -EIO;
	}
	return 0;
}
