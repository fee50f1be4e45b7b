// SPDX-License-Identifier: GPL-2.0
/*
 * The channels: holding them, handing them transfers, and knowing when a
 * transfer is dead.
 *
 * A transfer that is late may still be carried out. It is dead when its own
 * answer (callback_result) says that it went well, or when a transfer that was
 * submitted to the same channel after it went wrong has been answered, well or
 * not: channels work in order, and ioatdma takes no new transfer until it has
 * reset the channel. That later transfer is the probe. An answer that says
 * "aborted" proves nothing by itself, for ioatdma gives it before the reset.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/jiffies.h>
#include <linux/module.h>

#include "adma.h"

struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
unsigned int adma_nr_channels;
struct device *adma_devices[ADMA_MAX_DEVICES];
unsigned int adma_nr_devices;

static atomic_t adma_turn = ATOMIC_INIT(0);

/* How often the watch looks for answers whose interrupt was lost. */
#define ADMA_WATCH_MS		20

/*
 * ioatdma resets a channel that made no progress for 100 ms at the earliest.
 * It gives no answer to the transfer at the head, and may take new ones in
 * meanwhile. So while the channel has a leg older than this, a word proves
 * nothing: data before it may have been lost.
 */
#define ADMA_TRUSTED_MS		50

/*
 * Each time it is asked, ioatdma sets its timer anew while the channel has
 * finished nothing since a reset. Asked all the time about a channel that fails
 * at once after each reset, it would never reset it again, and no leg there
 * would ever be over. So a channel that is aside is asked about after so long:
 * more than the two times 200 ms after which ioatdma resets a hung one.
 */
#define ADMA_QUIET_MS		500

/* Errors that put a channel aside, good legs that make up for one ... */
#define ADMA_STRIKES		3
#define ADMA_FORGIVEN		64
/* ... how long it rests, and how many times it is taken back. */
#define ADMA_REST_MS		1000
#define ADMA_RESTS		3

/*
 * A full ring is tried again so often, 100 us apart. The driver says no more
 * than "not now": it may also be resetting the channel.
 */
#define ADMA_RING_TRIES		50

static unsigned long adma_timeout(void)
{
	return msecs_to_jiffies(clamp(adma_timeout_ms, 10U, 60000U));
}

/*
 * Transfers
 */

static void adma_watch_soon(struct adma_channel *ch)
{
	mod_delayed_work(system_unbound_wq, &ch->watch, 0);
}

/*
 * Whoever has waited for something gets what the driver knows by now; of a
 * channel that is aside, what it knew a moment ago.
 */
void adma_channel_poke(struct adma_channel *ch)
{
	dma_async_issue_pending(ch->chan);
	if (READ_ONCE(ch->health) != ADMA_UP &&
	    time_before(jiffies, READ_ONCE(ch->asked) +
			msecs_to_jiffies(ADMA_QUIET_MS)))
		return;
	WRITE_ONCE(ch->asked, jiffies);
	dma_async_is_tx_complete(ch->chan, READ_ONCE(ch->chan->cookie), NULL,
				 NULL);
}

/* The lock is held. The request may be gone afterwards. */
static void adma_leg_over(struct adma_leg *leg, bool failed)
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
		adma_watch_soon(ch);
	} else {
		bool failed = READ_ONCE(leg->failed) ||
			      atomic_read(&leg->unanswered);

		if (!failed)
			atomic_inc(&ch->good);
		adma_leg_over(leg, failed);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
}

/*
 * Hands over one transfer. The driver may keep a lock from prep to submit:
 * nothing may come between them.
 */
static int adma_transfer(struct adma_channel *ch, dma_addr_t dst,
			 dma_addr_t src, size_t len, unsigned long flags,
			 dma_async_tx_callback_result answered, void *param)
{
	struct dma_async_tx_descriptor *tx;
	int tries;

	for (tries = 0;; tries++) {
		tx = dmaengine_prep_dma_memcpy(ch->chan, dst, src, len, flags);
		if (tx)
			break;
		if (!tries)
			adma_count(ADMA_STAT_RING_FULL, 1);
		if (tries == ADMA_RING_TRIES)
			return -EBUSY;
		adma_channel_poke(ch);
		usleep_range(100, 200);
	}
	tx->callback_result = answered;
	tx->callback_param = param;
	if (dma_submit_error(dmaengine_submit(tx)))
		return -EIO;
	adma_count(ADMA_STAT_DESCRIPTORS, 1);
	return 0;
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
		adma_watch_soon(ch);
	else
		queue_delayed_work(system_unbound_wq, &ch->watch,
				   msecs_to_jiffies(ADMA_WATCH_MS));
	return trusted;
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
	WRITE_ONCE(answer->came, true);
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
		for (i = 0; i < sent; i++)
			came += READ_ONCE(probe->answer[i].came);
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

/*
 * Holding them
 */

static bool adma_on_node(struct dma_chan *chan, void *param)
{
	return dev_to_node(chan->device->dev) == *(int *)param;
}

/* Pages are mapped once for each device, not for each channel. */
static int adma_device_number(struct device *dev)
{
	unsigned int i;

	for (i = 0; i < adma_nr_devices; i++) {
		if (adma_devices[i] == dev)
			return i;
	}
	if (adma_nr_devices == ADMA_MAX_DEVICES)
		return -ENOSPC;
	adma_devices[adma_nr_devices] = dev;
	return adma_nr_devices++;
}

static int adma_channel_init(struct adma_channel *ch, struct dma_chan *chan)
{
	int device;

	ch->chan = chan;
	ch->dev = dmaengine_get_dma_device(chan);
	spin_lock_init(&ch->lock);
	INIT_LIST_HEAD(&ch->legs);
	INIT_DELAYED_WORK(&ch->watch, adma_watch);
	ch->probe_page = dma_alloc_coherent(ch->dev, PAGE_SIZE, &ch->probe_dma,
					    GFP_KERNEL);
	if (!ch->probe_page)
		return -ENOMEM;
	if (adma_probe(ch) != ADMA_WELL) {
		dev_warn(ch->dev, "adma: %s fails its test, not used\n",
			 dma_chan_name(chan));
		return -EIO;
	}
	/* Last: lines are mapped for every device that has a number. */
	device = adma_device_number(ch->dev);
	if (device < 0)
		return device;
	ch->device = device;
	return 0;
}

/* After dma_release_channel() nothing moves any more, a silent probe included. */
static void adma_channel_exit(struct adma_channel *ch)
{
	cancel_delayed_work_sync(&ch->watch);
	dma_release_channel(ch->chan);
	if (ch->probe_page)
		dma_free_coherent(ch->dev, PAGE_SIZE, ch->probe_page,
				  ch->probe_dma);
	memset(ch, 0, sizeof(*ch));
}

int adma_channels_request(unsigned int most, int node)
{
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	most = min_t(unsigned int, most ?: ADMA_MAX_CHANNELS,
		     ADMA_MAX_CHANNELS);
	while (adma_nr_channels < most) {
		struct adma_channel *ch = &adma_channels[adma_nr_channels];
		struct dma_chan *chan;
		int ret;

		if (node == NUMA_NO_NODE)
			chan = dma_request_chan_by_mask(&mask);
		else
			chan = dma_request_channel(mask, adma_on_node, &node);
		if (IS_ERR_OR_NULL(chan))
			break;
		ret = adma_channel_init(ch, chan);
		if (ret) {
			adma_channel_exit(ch);
			/* The next request would give the same one again. */
			break;
		}
		adma_nr_channels++;
	}
	return adma_nr_channels ? 0 : -ENODEV;
}

void adma_channels_release(void)
{
	while (adma_nr_channels)
		adma_channel_exit(&adma_channels[--adma_nr_channels]);
	adma_nr_devices = 0;
}

/*
 * For whoever was refused room. Some requests may be over: the word comes before
 * the interrupt, so a caller of small copies can be a whole ring of slots ahead
 * of the answers. Others may just not have let their pages go.
 */
void adma_channels_settle(void)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++)
		adma_channel_poke(&adma_channels[i]);
	flush_workqueue(adma_workqueue);
}

unsigned int adma_channels_usable(void)
{
	unsigned int i, usable = 0;

	for (i = 0; i < adma_nr_channels; i++)
		usable += READ_ONCE(adma_channels[i].health) == ADMA_UP;
	return usable;
}

unsigned int adma_channels_align(void)
{
	unsigned int i, shift = 0;

	for (i = 0; i < adma_nr_channels; i++)
		shift = max_t(unsigned int, shift,
			      adma_channels[i].chan->device->copy_align);
	return 1U << shift;
}

/* The channel that was asked for, or the next one in turn. */
int adma_channel_pick(u32 wanted)
{
	bool hope = false;
	unsigned int i;

	if (wanted != ADMA_CHANNEL_ANY &&
	    READ_ONCE(adma_channels[wanted].health) == ADMA_UP)
		return wanted;
	for (i = 0; i < adma_nr_channels; i++) {
		unsigned int turn = atomic_inc_return(&adma_turn);
		unsigned int nr = turn % adma_nr_channels;

		switch (READ_ONCE(adma_channels[nr].health)) {
		case ADMA_UP:
			return nr;
		case ADMA_ASIDE:
			hope = true;
			break;
		case ADMA_OUT:
			break;
		}
	}
	return hope ? -EBUSY : -ENODEV;
}
