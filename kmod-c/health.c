// SPDX-License-Identifier: GPL-2.0
/*
 * The health of channels, and knowing when a transfer is dead.
 *
 * A transfer that is late may still be carried out. It is dead when its own
 * completion (callback_result) reports success, or when a transfer that was
 * submitted to the same channel after it failed has completed, well or not:
 * channels work in order, and ioatdma takes no new transfer until it has reset
 * the channel. That later transfer is the probe. A completion that says
 * "aborted" proves nothing by itself, for ioatdma gives it before the reset.
 *
 * On a channel without order every completion proves the end of its own transfer,
 * good or not, and nothing else does: the probe only shows whether it works.
 *
 * A queue is no failure: a channel is silent when nothing on it has completed
 * for timeout_ms, however long something has waited for its turn.
 *
 * Completions may come late: after the probe, or the request, was given up. ioatdma
 * makes none once a channel is given back. idxd makes them whenever the device
 * answers, until the queue is disabled: so a probe holds the module until nothing
 * that was submitted is unanswered (ch->entries), as a request does until its own
 * end, and a channel's place in adma_channels is not used again before that.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>

#include "channel.h"

/*
 * An error is a debt that ADMA_ERROR good chan_reqs pay off, one by one. A channel
 * that fails with more than ADMA_REST_DEBT rests in quarantine for a while; with more
 * than ADMA_MAX_DEBT it is left out for good.
 */
#define ADMA_ERROR		64
#define ADMA_REST_DEBT		(2 * ADMA_ERROR)
#define ADMA_MAX_DEBT		(7 * ADMA_ERROR)
#define ADMA_REST_MS		1000

static bool adma_selftests;
module_param_named(selftest, adma_selftests, bool, 0444);
MODULE_PARM_DESC(selftest, "at load, see what channels do behind an error; may crash (default no)");

static unsigned int adma_timeout_ms = 1000;
module_param_named(timeout_ms, adma_timeout_ms, uint, 0644);
MODULE_PARM_DESC(timeout_ms, "how long a channel may be silent before it is quarantined (default 1000)");

/* Returns how long a channel may be silent. */
static unsigned long adma_timeout(void)
{
	return msecs_to_jiffies(clamp(adma_timeout_ms, 10U, 60000U));
}

/*
 * The probe: two transfers within a page of the channel's own. Two, because
 * ioatdma's own reset never completes the first one of a stuck chain.
 */

#define ADMA_PROBE_LEN		64
/* Repetitions of a probe that failed. */
#define ADMA_PROBES		3

/* By the watch, and before it runs. */
static void adma_hold(struct adma_channel *ch)
{
	if (ch->ordered || ch->held)
		return;
	__module_get(THIS_MODULE);
	WRITE_ONCE(ch->held, true);
}

/* Lets go of the module when no completion can come any more. */
static void adma_unhold(struct adma_channel *ch)
{
	if (!ch->held || (atomic_read(&ch->entries) && !READ_ONCE(ch->stopped)))
		return;
	WRITE_ONCE(ch->held, false);
	module_put(THIS_MODULE);
}

static struct adma_chan_req *adma_probe_begin(struct adma_channel *ch, s32 units)
{
	struct adma_chan_req *cr = adma_probe_of(ch);
	u8 *page = ch->probe_page;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	adma_chan_req_next_turn(cr);
	spin_unlock_irqrestore(&ch->lock, irq);
	adma_chan_req_charge(cr, units);
	memset(page, 0x40 + adma_chan_req_turn(cr) % 128, ADMA_PROBE_LEN);
	memset(page + ADMA_PROBE_LEN, 0, 3 * ADMA_PROBE_LEN);
	return cr;
}

/* Returns -EIO if it completed with an error, -ETIMEDOUT if nothing is known. */
static int adma_probe(struct adma_channel *ch)
{
	struct adma_chan_req *cr = adma_probe_begin(ch, 2);
	unsigned long end = jiffies + adma_timeout();
	u8 *page = ch->probe_page;
	unsigned int sent = 0;
	u32 came;

	adma_hold(ch);
	while (sent < 2) {
		dma_addr_t dst = ch->probe_dma + (sent + 1) * ADMA_PROBE_LEN;
		dma_cookie_t cookie;

		cookie = adma_chan_req_transfer(cr, dst, ch->probe_dma,
						ADMA_PROBE_LEN,
						DMA_PREP_INTERRUPT);
		if (cookie > 0) {
			/* Completion of either one proves the end of all before both. */
			if (!sent++)
				cr->cookie = cookie;
			continue;
		}
		/* While it resets a channel, ioatdma takes nothing. */
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		msleep(ADMA_WATCH_MS);
	}
	end = jiffies + adma_timeout();
	for (;;) {
		adma_channel_issue(ch, true);
		/* Orders the copied bytes and the result before the count. */
		came = atomic64_read_acquire(&cr->done);
		if (came == 2 || time_after(jiffies, end))
			break;
		usleep_range(1000, 2000);
	}
	if (!came)
		return -ETIMEDOUT;
	if (came < 2 || READ_ONCE(cr->failed) ||
	    memcmp(page, page + ADMA_PROBE_LEN, 2 * ADMA_PROBE_LEN))
		return -EIO;
	return 0;
}

/*
 * The watch: looks after chan_reqs that do not complete, and after
 * channels in quarantine. It alone changes a channel's health.
 */

/* Returns whether its last transfer was submitted before that cookie. */
static bool adma_is_before(struct adma_chan_req *cr, dma_cookie_t cookie)
{
	return dma_async_is_complete(cr->cookie, cookie,
				     READ_ONCE(cr->ch->chan->cookie)) ==
	       DMA_COMPLETE;
}

/* Returns whether the channel is silent, or has lost its callbacks. */
static bool adma_chan_req_silent(struct adma_chan_req *cr)
{
	struct adma_channel *ch = cr->ch;

	if (!cr->closed || time_before(jiffies, cr->sent_at + adma_timeout()))
		return false;
	return time_after(jiffies, READ_ONCE(ch->moved) + adma_timeout()) ||
	       (ch->ordered &&
		adma_is_before(cr, READ_ONCE(ch->chan->completed_cookie)));
}

static bool adma_in_trouble(struct adma_channel *ch)
{
	struct adma_chan_req *cr, *next;
	unsigned long irq;
	bool trouble;

	spin_lock_irqsave(&ch->lock, irq);
	trouble = ch->erred;
	atomic_add(ch->erred ? ADMA_ERROR : 0, &ch->debt);
	ch->erred = false;
	list_for_each_entry_safe(cr, next, &ch->reqs, list) {
		/* Without a word only this ends it. */
		adma_chan_req_end(cr, false);
		trouble |= adma_chan_req_silent(cr);
	}
	/* Whatever fills it: requests are refused, and none of them may be listed. */
	trouble |= adma_channel_full(ch) &&
		   time_after(jiffies, READ_ONCE(ch->moved) + adma_timeout());
	/* One that is still being submitted may have lost a transfer. */
	list_for_each_entry(cr, &ch->reqs, list)
		cr->failed |= trouble && ch->ordered && !cr->closed;
	spin_unlock_irqrestore(&ch->lock, irq);
	return trouble;
}

/* The probe has completed: what was submitted before it is over. */
static void adma_end_suspects(struct adma_channel *ch)
{
	struct adma_chan_req *cr, *next;
	unsigned long irq;

	if (!ch->ordered)
		return;
	spin_lock_irqsave(&ch->lock, irq);
	list_for_each_entry_safe(cr, next, &ch->reqs, list) {
		if (!cr->closed || !adma_is_before(cr, adma_probe_of(ch)->cookie))
			continue;
		if (!cr->failed)
			adma_count(ADMA_STAT_TIMEOUTS, 1);
		adma_chan_req_end(cr, true);
	}
	/* The errors were those of the chan_reqs that just ended. */
	ch->erred = false;
	spin_unlock_irqrestore(&ch->lock, irq);
}

/* Probes the channel and sets its health. Returns the pause, in ms. */
static unsigned int adma_examine(struct adma_channel *ch, bool trouble)
{
	unsigned int i;
	int ret, debt;
	bool rests;

	if (ch->health == ADMA_UP)
		WRITE_ONCE(ch->health, ADMA_QUARANTINED);
	ret = adma_probe(ch);
	/*
	 * The probe may have been aborted by the reset that ended the others:
	 * ioatdma takes the next one after that. It resets a channel every 200 ms
	 * until a transfer has completed.
	 */
	for (i = 0; ret == -EIO && i < ADMA_PROBES; i++)
		ret = adma_probe(ch);
	/* ioatdma ends what is silent by a reset, which is worth waiting for. */
	WRITE_ONCE(ch->silent, ret == -ETIMEDOUT && !ch->ordered);
	/*
	 * While nothing is known, pages stay pinned and callers wait: it may still
	 * write. With no request waiting it is given up soon; after some errors
	 * ioatdma itself does not look at a channel any more.
	 */
	if (ret != -ETIMEDOUT)
		adma_end_suspects(ch);
	else if (!list_empty(&ch->reqs))
		return ADMA_WATCH_MS;
	if (ret)
		atomic_add((ret == -EIO ? 4 : 2) * ADMA_ERROR, &ch->debt);
	debt = atomic_read(&ch->debt);
	if (ch->health == ADMA_DISABLED)
		return ADMA_REST_MS;
	/* A channel that works after its quarantine is used again. */
	rests = ret || (trouble && debt > ADMA_REST_DEBT);
	if (rests)
		adma_count(ADMA_STAT_QUARANTINED, 1);
	if (debt > ADMA_MAX_DEBT) {
		dev_warn(ch->dev, "adma: %s is left out\n",
			 dma_chan_name(ch->chan));
		WRITE_ONCE(ch->health, ADMA_DISABLED);
	} else if (!rests) {
		WRITE_ONCE(ch->health, ADMA_UP);
	}
	return rests ? ADMA_REST_MS : ADMA_WATCH_MS;
}

void adma_watch(struct work_struct *work)
{
	struct adma_channel *ch =
		container_of(to_delayed_work(work), struct adma_channel, watch);
	unsigned int pause = ADMA_WATCH_MS;
	int idx = srcu_read_lock(&adma_srcu);
	bool trouble;

	if (!READ_ONCE(ch->chan))
		goto out_unlock;
	adma_channel_issue(ch, true);
	trouble = adma_in_trouble(ch);
	if (trouble || ch->health == ADMA_QUARANTINED)
		pause = adma_examine(ch, trouble);
	if (!list_empty(&ch->reqs) || ch->health == ADMA_QUARANTINED)
		queue_delayed_work(adma_workqueue, &ch->watch,
				   msecs_to_jiffies(pause));
out_unlock:
	srcu_read_unlock(&adma_srcu, idx);
	adma_unhold(ch);
}

/*
 * The self-test of README.md, "The first thing to test on hardware": a good
 * transfer, one from an address that no memory has, and a good one behind it.
 * ioatdma resets the channel within 2.2 s.
 */
static void adma_selftest(struct adma_channel *ch)
{
	struct adma_chan_req *cr = adma_probe_begin(ch, 3);
	unsigned long end = jiffies + 4 * HZ;
	u8 *page = ch->probe_page;
	bool before, after;
	unsigned int i;

	for (i = 0; i < 3; i++)
		adma_chan_req_transfer(cr, ch->probe_dma + (i + 1) * ADMA_PROBE_LEN,
				       i == 1 ? BIT_ULL(45) : ch->probe_dma,
				       ADMA_PROBE_LEN, DMA_PREP_INTERRUPT);
	dma_async_issue_pending(ch->chan);
	/* Without polling, which would restart the driver's timer. */
	while (!READ_ONCE(cr->failed) && time_before(jiffies, end))
		msleep(ADMA_WATCH_MS);
	before = !memcmp(page, page + ADMA_PROBE_LEN, ADMA_PROBE_LEN);
	after = !memcmp(page, page + 3 * ADMA_PROBE_LEN, ADMA_PROBE_LEN);
	dev_info(ch->dev, "adma: selftest of %s: before the error: %s, error: %s, carried out after the error: %s\n",
		 dma_chan_name(ch->chan), before ? "good" : "lost",
		 READ_ONCE(cr->failed) ? "came" : "none", after ? "YES" : "no");
}

/* Allocates the probe's page and tests the channel. */
int adma_health_init(struct adma_channel *ch)
{
	unsigned int tries = 0;
	int ret;

	ch->probe_page = dma_alloc_coherent(ch->dev, PAGE_SIZE, &ch->probe_dma,
					    GFP_KERNEL);
	if (!ch->probe_page)
		return -ENOMEM;
	if (adma_selftests && ch->ordered)
		adma_selftest(ch);
	do {
		ret = adma_probe(ch);
	} while (ret && adma_selftests && tries++ < ADMA_PROBES);
	if (ret && !ch->ordered && atomic_read(&ch->entries)) {
		dev_warn(ch->dev, "adma: %s does not answer its test, aside until it does\n",
			 dma_chan_name(ch->chan));
		ch->health = ADMA_QUARANTINED;
		ch->silent = true;
		adma_watch_soon(ch);
		return 0;
	}
	adma_unhold(ch);
	if (ret) {
		dev_warn(ch->dev, "adma: %s fails its test, not used\n",
			 dma_chan_name(ch->chan));
		return -EIO;
	}
	return 0;
}
