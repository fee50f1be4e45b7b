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
#include "compat.h"
#include "trace.h"

/* How often the watch looks for answers whose interrupt was lost. */
#define ADMA_WATCH_MS		20

/*
 * Errors without so many good chan_reqs between them are counted. A few are
 * passed over, after each of the next ones the channel rests for a while, and
 * then it is left out.
 */
#define ADMA_FORGIVEN		64
#define ADMA_PASSED_OVER	2
#define ADMA_MAX_ERRORS		5
#define ADMA_REST_MS		1000

/* For so long a channel may be silent. */
unsigned long adma_timeout(void)
{
	return msecs_to_jiffies(clamp(adma_timeout_ms, 10U, 60000U));
}

/*
 * The probe: two transfers within a page of the channel's own. Two, because
 * ioatdma's own reset leaves the first one of a stuck chain unanswered.
 */

#define ADMA_PROBE_LEN		64
/* So often one that went wrong is repeated. */
#define ADMA_PROBES		3

static void adma_probe_answered(void *ptr, const struct dmaengine_result *res)
{
	union adma_param param = { .ptr = ptr };
	struct adma_channel *ch = &adma_channels[param.channel];
	struct adma_probe *probe = &ch->probe;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	if (probe->turn == param.turn) {
		probe->bad |= res->result != DMA_TRANS_NOERROR;
		/* After what was copied. */
		smp_store_release(&probe->came, probe->came + 1);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
}

/* Answers how many transfers were handed over. */
static unsigned int adma_probe_send(struct adma_channel *ch, unsigned int at)
{
	unsigned long irq, end = jiffies + adma_timeout();
	struct adma_probe *probe = &ch->probe;
	dma_addr_t src = probe->dma + at;
	u8 *from = probe->page + at;
	unsigned int i;

	spin_lock_irqsave(&ch->lock, irq);
	probe->turn++;
	probe->came = 0;
	probe->bad = false;
	spin_unlock_irqrestore(&ch->lock, irq);
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

/* EIO: answered, but not well. ETIMEDOUT: nothing is known. */
static int adma_probe(struct adma_channel *ch)
{
	struct adma_probe *probe = &ch->probe;
	/* A straggler of the last turn may still write where that was. */
	unsigned int at = (probe->turn + !probe->pending) % 2 * 4 * ADMA_PROBE_LEN;
	u8 *from = probe->page + at;
	unsigned int sent = 2, came;
	unsigned long end;

	if (!probe->pending)
		sent = adma_probe_send(ch, at);
	if (!sent)
		return -ETIMEDOUT;
	end = jiffies + adma_timeout();
	for (;;) {
		adma_channel_poll(ch);
		/* Pairs with adma_probe_answered(). */
		came = smp_load_acquire(&probe->came);
		if (came == sent || time_after(jiffies, end))
			break;
		usleep_range(1000, 2000);
	}
	probe->pending = !came;
	if (probe->pending)
		return -ETIMEDOUT;
	if (came < 2 || READ_ONCE(probe->bad) ||
	    memcmp(from, from + ADMA_PROBE_LEN, ADMA_PROBE_LEN) ||
	    memcmp(from, from + 2 * ADMA_PROBE_LEN, ADMA_PROBE_LEN))
		return -EIO;
	return 0;
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

/*
 * Nothing moves; or the driver has done with the word and has not said so. Its
 * answer may just be on its way, so the second look counts.
 */
static bool adma_chan_req_silent(struct adma_chan_req *cr)
{
	struct adma_channel *ch = cr->ch;
	bool lost = cr->lost;

	if (time_before(jiffies, cr->sent_at + adma_timeout()))
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
	bool suspects, known, rests;
	unsigned int i;
	int ret;

	if (ch->health == ADMA_UP)
		adma_set_health(ch, ADMA_ASIDE);
	suspects = !ch->probe.pending && adma_mark_suspects(ch);
	ret = adma_probe(ch);
	known = ret != -ETIMEDOUT;
	/*
	 * While nothing is known pages stay pinned and callers wait: it may still
	 * write. With nobody waiting it is given up before long; after some
	 * errors ioatdma itself does not look at a channel any more.
	 */
	if (!known && !list_empty(&ch->reqs))
		return;
	if (known)
		adma_fail_suspects(ch);
	/*
	 * It may only have been caught by the reset that ended the others:
	 * ioatdma resets a channel every 200 ms until a transfer got through.
	 */
	for (i = 0; ret == -EIO && i < ADMA_PROBES; i++)
		ret = adma_probe(ch);
	if (READ_ONCE(ch->good) - ch->good_seen >= ADMA_FORGIVEN)
		ch->errors = 0;
	ch->good_seen = READ_ONCE(ch->good);
	if (ret)
		ch->errors = max_t(unsigned int, ch->errors, ADMA_PASSED_OVER) +
			     (known ? 2 : 1);
	else
		ch->errors += suspects;
	if (ch->health == ADMA_OUT)
		return;
	/* One that works after a rest is taken back. */
	rests = ret || (suspects && ch->errors > ADMA_PASSED_OVER);
	if (rests && known)
		adma_count(ADMA_STAT_QUARANTINED, 1);
	if (ch->errors > ADMA_MAX_ERRORS)
		adma_set_health(ch, ADMA_OUT);
	else if (!rests)
		adma_set_health(ch, ADMA_UP);
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
	if (!list_empty(&ch->reqs) || ch->health == ADMA_ASIDE)
		queue_delayed_work(system_dfl_wq, &ch->watch,
				   msecs_to_jiffies(pause));
}

/* Something went wrong; or it was submitted, and its answer may get lost. */
void adma_watch_soon(struct adma_channel *ch, bool now)
{
	if (now)
		mod_delayed_work(system_dfl_wq, &ch->watch, 0);
	else
		queue_delayed_work(system_dfl_wq, &ch->watch,
				   msecs_to_jiffies(ADMA_WATCH_MS));
}

/* A channel has to show that it works. */
int adma_health_init(struct adma_channel *ch)
{
	struct adma_probe *probe = &ch->probe;

	INIT_DELAYED_WORK(&ch->watch, adma_watch);
	probe->page = dma_alloc_coherent(ch->dev, PAGE_SIZE, &probe->dma,
					 GFP_KERNEL);
	if (!probe->page)
		return -ENOMEM;
	if (adma_probe(ch)) {
		dev_warn(ch->dev, "adma: %s fails its test, not used\n",
			 dma_chan_name(ch->chan));
		return -EIO;
	}
	return 0;
}
