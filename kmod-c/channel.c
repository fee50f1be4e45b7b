// SPDX-License-Identifier: GPL-2.0
/*
 * Channels, and the part of a request on one of them (chan_req): from its first
 * transfer to the word that tells user space of its end. A chan_req is over
 * when it is closed and each of its transfers has completed; health.c looks
 * after completions that do not come.
 *
 * A channel that works in order writes the word itself: that is the last
 * transfer, and what has not completed by then was lost. An error proves nothing
 * there (see health.c). On any other channel an error is a completion too, and
 * the word is written here.
 */
#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/topology.h>

#include "channel.h"

DEFINE_PER_CPU(s64[ADMA_STATS], adma_counters);	/* stats.c shows them */
struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
unsigned int adma_nr_channels;
bool adma_awaited;	/* channels were given back for a suspend only */
struct workqueue_struct *adma_workqueue;	/* ends of requests, watches, reaping */
DEFINE_SRCU(adma_srcu);

/*
 * ioatdma restarts its timer each time it is asked while the channel has finished
 * nothing since a reset. Asked all the time about a channel that fails at once
 * after each reset, it would never reset it again. So a channel in quarantine is
 * asked only after this: more than the two times 200 ms after which ioatdma
 * resets a hung one.
 */
#define ADMA_QUIET_MS		500

/* Starts what was submitted. With @poll the driver reports completions. */
void adma_channel_issue(struct adma_channel *ch, bool poll)
{
	int idx = srcu_read_lock(&adma_srcu);
	struct dma_chan *chan = READ_ONCE(ch->chan);

	if (!chan)
		goto out_unlock;
	dma_async_issue_pending(chan);
	if (!poll || (READ_ONCE(ch->health) != ADMA_UP &&
		      time_before(jiffies, READ_ONCE(ch->asked) +
				  msecs_to_jiffies(ADMA_QUIET_MS))))
		goto out_unlock;
	WRITE_ONCE(ch->asked, jiffies);
	dma_async_is_tx_complete(chan, READ_ONCE(chan->cookie), NULL, NULL);
out_unlock:
	srcu_read_unlock(&adma_srcu, idx);
}

void adma_channels_poll(void)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++)
		adma_channel_issue(&adma_channels[i], true);
}

/*
 * Returns the order of completions that a driver guarantees.
 * 1, ordered: transfers of a channel are carried out in order, complete in order,
 * and none is carried out after one that failed until all before it have completed
 * or are lost. So the word behind the data proves the data.
 * 0: in any order, but each transfer completes (with DMA_PREP_INTERRUPT), and not
 * before it is over. We write the word.
 * -EINVAL: not known; ptdma's callbacks report errors as success.
 */
int adma_order_of(struct dma_device *device)
{
	const char *driver = dev_driver_string(device->dev);

	if (!strcmp(driver, "ioatdma") &&
	    !dma_has_cap(DMA_COMPLETION_NO_ORDER, device->cap_mask))
		return 1;
	return strcmp(driver, "idxd") ? -EINVAL : 0;
}

/* Returns the node of the caller's page, or the caller's if it is not present. */
static int adma_node_of(u64 addr)
{
	struct page *page;
	int node;

	if (get_user_pages_fast_only(addr & PAGE_MASK, 1, 0, &page) != 1)
		return numa_node_id();
	node = page_to_nid(page);
	put_page(page);
	return node;
}

/*
 * Returns @wanted if it is up, or a channel near the caller's page at @addr; @first
 * decides among equals. -EBUSY: one may come back; -ENODEV: none will.
 */
int adma_channel_pick(u32 wanted, u64 addr, u64 first)
{
	u8 near[ADMA_MAX_CHANNELS], any[ADMA_MAX_CHANNELS];
	unsigned int i, nr_near = 0, nr_any = 0;
	int node = NUMA_NO_NODE, ret = READ_ONCE(adma_awaited) ? -EBUSY : -ENODEV;

	if (wanted != ADMA_CHANNEL_ANY &&
	    adma_channel_is_up(&adma_channels[wanted]))
		return wanted;
	if (num_online_nodes() > 1)
		node = adma_node_of(addr);
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];

		if (READ_ONCE(ch->health) == ADMA_QUARANTINED && !READ_ONCE(ch->leaving))
			ret = -EBUSY;
		if (!adma_channel_is_up(ch))
			continue;
		any[nr_any++] = i;
		if (dev_to_node(ch->dev) == node)
			near[nr_near++] = i;
	}
	if (nr_near)
		return near[first % nr_near];
	return nr_any ? any[first % nr_any] : ret;
}

/*
 * Callback parameter: a number, not a pointer. ioatdma does not complete the
 * transfer at the head of a chain that it aborts, but may do so when its ring
 * wraps around, long after the chan_req is gone.
 */
union adma_param {
	void *ptr;
	struct {
		u64 channel : 5;
		u64 req : 8;		/* number of the chan_req, and its turn */
		u64 units : 15;
		u64 last : 1;		/* asks for an interrupt */
		u64 turn : 32;
	};
};

static_assert(sizeof(union adma_param) == sizeof(void *));
static_assert(ADMA_MAX_CHANNELS <= BIT(5) && ADMA_CHAN_REQS <= BIT(8) &&
	      ADMA_MAX_XFER / ADMA_UNIT < BIT(15));
static_assert(ADMA_SLOTS * ADMA_WORD_STRIDE <= PAGE_SIZE / 2);

/*
 * ioatdma resets a channel that made no progress for 100 ms at the earliest.
 * It never completes the transfer at the head, and may take new ones in
 * meanwhile. So a word proves nothing when the channel stood still as the first
 * transfer was submitted, or that was long ago: data may have been lost.
 */
#define ADMA_TRUSTED_MS		50

/*
 * Attempts to find room in a full ring, 100 us apart. The driver does not tell
 * a full ring from a reset in progress.
 */
#define ADMA_RING_TRIES		50

/*
 * idxd sleeps in prep while its queue is full, for ever if the queue hangs. So
 * it is never full: it has ADMA_QUEUE_SIZE entries at least, and two of them are
 * the probe's.
 */
#define ADMA_QUEUE_SIZE		16
#define ADMA_QUEUE_ROOM		(ADMA_QUEUE_SIZE - 2)
#define ADMA_QUEUE_WAIT_MS	200

unsigned long adma_depth = 16UL << 20;
module_param_named(depth, adma_depth, ulong, 0644);
MODULE_PARM_DESC(depth, "bytes queued on one channel at most (default 16 MiB)");

static bool adma_is_recent(unsigned long when)
{
	return time_before(jiffies, when + msecs_to_jiffies(ADMA_TRUSTED_MS));
}

/* Whether everything has completed, or something did a moment ago. */
static bool adma_channel_moves(struct adma_channel *ch)
{
	return !atomic_long_read(&ch->queued) ||
	       adma_is_recent(READ_ONCE(ch->moved));
}

/*
 * Completion
 */

static u64 *adma_word_of(const struct adma_job *job, unsigned int channel)
{
	return page_address(job->words[channel].page) +
	       job->slot * ADMA_WORD_STRIDE;
}

/* The last part writes the words of channels that cannot: after all data. */
void adma_job_put(struct adma_job *job)
{
	unsigned int i;

	if (!refcount_dec_and_test(&job->parts))
		return;
	if (!atomic64_read(&job->failed)) {
		for_each_set_bit(i, &job->due, ADMA_MAX_CHANNELS)
			/* Orders the word after the data that has completed. */
			smp_store_release(adma_word_of(job, i), job->id);
	}
	job->end(job);
}

static void adma_dequeue(struct adma_channel *ch, u32 units)
{
	/* Below zero: a completion was counted for another channel or turn. */
	WARN_ON_ONCE(atomic_long_sub_return(units, &ch->queued) < 0);
}

/* Forgets what is in flight: dequeues it and ignores late completions. */
void adma_chan_req_next_turn(struct adma_chan_req *cr)
{
	u64 next = (u64)(adma_chan_req_turn(cr) + 1) << 32;
	u32 done = atomic64_xchg(&cr->done, next);

	lockdep_assert_held(&cr->ch->lock);
	adma_dequeue(cr->ch, cr->sent - done);
	memset_after(cr, 0, done);
}

/*
 * Ends a chan_req with nothing in flight; @dead: what has not completed is
 * lost. The request may be gone afterwards.
 */
void adma_chan_req_end(struct adma_chan_req *cr, bool dead)
{
	struct adma_channel *ch = cr->ch;
	struct adma_job *job = cr->job;
	u32 left = adma_chan_req_left(cr);

	lockdep_assert_held(&ch->lock);
	if (!cr->closed || (left && !dead && !cr->word_came && !ch->stopped))
		return;
	if (cr->failed || left)
		atomic64_or(cr->pieces, &job->failed);
	else if (cr->sent)
		atomic_dec_if_positive(&ch->debt);
	adma_chan_req_next_turn(cr);
	list_move(&cr->list, &ch->free);
	adma_job_put(job);
	wake_up_all(&ch->wait);
}

/* Ends what never completes: the channel was given back and reset. */
void adma_channel_stopped(struct adma_channel *ch)
{
	struct adma_chan_req *cr, *next;
	unsigned long irq;

	spin_lock_irqsave(&ch->lock, irq);
	WRITE_ONCE(ch->stopped, true);
	list_for_each_entry_safe(cr, next, &ch->reqs, list) {
		cr->failed = true;
		adma_chan_req_end(cr, true);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	wake_up_all(&ch->wait);
	adma_watch_soon(ch);
}

static void adma_chan_req_advance(struct adma_chan_req *cr, u32 turn, u32 units)
{
	s64 done = atomic64_read(&cr->done);

	do {
		if ((u64)done >> 32 != turn)
			return;	/* it was over long ago */
	} while (!atomic64_try_cmpxchg(&cr->done, &done, done + units));
	adma_dequeue(cr->ch, units);
	/* The cmpxchg is a full barrier; pairs with prepare_to_wait_event(). */
	if (waitqueue_active(&cr->ch->wait))
		wake_up_all(&cr->ch->wait);
}

/*
 * A transfer on a channel without order has completed, in whatever turn. The watch
 * may let go of the module when it was the last one: see adma_channels_release().
 */
static void adma_queue_leave(struct adma_channel *ch)
{
	int left = atomic_dec_return(&ch->entries);

	WARN_ON_ONCE(left < 0);
	if (!left && READ_ONCE(ch->held))
		adma_watch_soon(ch);
	wake_up_all(&ch->wait);
}

static void adma_chan_req_complete(void *ptr, const struct dmaengine_result *res)
{
	union adma_param param = { .ptr = ptr };
	struct adma_channel *ch = &adma_channels[param.channel];
	struct adma_chan_req *cr = &ch->req[param.req];
	bool good = res->result == DMA_TRANS_NOERROR;
	unsigned long irq;

	WRITE_ONCE(ch->moved, jiffies);
	if (good && ch->ordered && !param.last) {
		/* In order and without an error: the usual case. */
		adma_chan_req_advance(cr, param.turn, param.units);
		return;
	}
	spin_lock_irqsave(&ch->lock, irq);
	if (adma_chan_req_turn(cr) != param.turn)
		goto out_unlock;
	if (!good)
		cr->failed = true;
	if (good || !ch->ordered || cr == adma_probe_of(ch))
		adma_chan_req_advance(cr, param.turn, param.units);
	if (cr == adma_probe_of(ch))
		goto out_unlock;
	if (!good) {
		adma_count(ADMA_STAT_ERRORS, 1);
		/* At once: then the submitter trusts no word. */
		atomic64_or(cr->pieces, &cr->job->failed);
		ch->erred |= param.last;
		adma_watch_soon(ch);
	}
	cr->word_came |= good && ch->ordered;
	adma_chan_req_end(cr, false);
out_unlock:
	spin_unlock_irqrestore(&ch->lock, irq);
	if (!ch->ordered)
		adma_queue_leave(ch);
}

/*
 * Submission
 */

/* Waits for room on a channel. Returns -EBUSY when there was none for too long. */
static int adma_channel_retry(struct adma_channel *ch, int tries)
{
	if (!tries)
		adma_count(ADMA_STAT_RING_FULL, 1);
	if (tries == ADMA_RING_TRIES || READ_ONCE(ch->leaving))
		return -EBUSY;
	adma_channel_issue(ch, true);
	usleep_range(100, 200);
	return 0;
}

/* Takes an entry of the queue unless it has that many. */
static bool adma_queue_try_enter(struct adma_channel *ch, int most)
{
	int entries = atomic_read(&ch->entries);

	do {
		if (entries >= most)
			return false;
	} while (!atomic_try_cmpxchg(&ch->entries, &entries, entries + 1));
	return true;
}

/* Takes an entry of the queue. Returns false if there was none for too long. */
static bool adma_queue_enter(struct adma_chan_req *cr)
{
	struct adma_channel *ch = cr->ch;
	int most = cr == adma_probe_of(ch) ? ADMA_QUEUE_SIZE : ADMA_QUEUE_ROOM;

	return wait_event_timeout(ch->wait, adma_queue_try_enter(ch, most),
				  msecs_to_jiffies(ADMA_QUEUE_WAIT_MS));
}

/* Returns whether a channel has no room for requests. */
bool adma_channel_full(struct adma_channel *ch)
{
	return atomic_long_read(&ch->queued) * ADMA_UNIT >= (long)READ_ONCE(adma_depth) ||
	       (!ch->ordered && atomic_read(&ch->entries) >= ADMA_QUEUE_ROOM);
}

/*
 * Submits one transfer, which has been charged; DMA_PREP_INTERRUPT marks the last
 * one. Caller is inside adma_srcu and has seen ch->chan. Returns its cookie.
 */
dma_cookie_t adma_chan_req_transfer(struct adma_chan_req *cr, dma_addr_t dst,
				    dma_addr_t src, size_t len,
				    unsigned long flags)
{
	struct adma_channel *ch = cr->ch;
	union adma_param param = {
		.channel = ch - adma_channels,
		.req = cr - ch->req,
		.units = adma_units(len),
		.last = !!(flags & DMA_PREP_INTERRUPT),
		.turn = adma_chan_req_turn(cr),
	};
	struct dma_async_tx_descriptor *tx;
	dma_cookie_t cookie;
	int ret, tries = 0;

	if (!ch->ordered && !adma_queue_enter(cr)) {
		adma_count(ADMA_STAT_RING_FULL, 1);
		return -EBUSY;
	}
	/* The driver may keep a lock from prep to submit: nothing between. */
	while (!(tx = dmaengine_prep_dma_memcpy(ch->chan, dst, src, len,
						flags | DMA_CTRL_ACK))) {
		ret = adma_channel_retry(ch, tries++);
		if (ret)
			goto err_leave_queue;
	}
	tx->callback_result = adma_chan_req_complete;
	tx->callback_param = param.ptr;
	cookie = dmaengine_submit(tx);
	if (dma_submit_error(cookie)) {
		ret = -EIO;
		goto err_leave_queue;
	}
	adma_count(ADMA_STAT_DESCRIPTORS, 1);
	return cookie;

err_leave_queue:
	if (!ch->ordered)
		adma_queue_leave(ch);
	return ret;
}

/*
 * Takes a place on a channel, and a reference to @job until the chan_req is
 * over. Returns NULL if none is free, or the user has half of them.
 */
struct adma_chan_req *adma_chan_req_begin(struct adma_channel *ch,
					  struct adma_job *job)
{
	struct adma_chan_req *cr;
	unsigned int of_user = 0;
	unsigned long irq;

	/* Completions without an interrupt may be waiting to be fetched. */
	if (ch->ordered && !adma_channel_moves(ch))
		adma_channel_issue(ch, true);
	spin_lock_irqsave(&ch->lock, irq);
	list_for_each_entry(cr, &ch->reqs, list)
		of_user += cr->job->user == job->user;
	cr = list_first_entry_or_null(&ch->free, struct adma_chan_req, list);
	if (of_user >= ADMA_CHAN_REQS / 2)
		cr = NULL;
	if (cr) {
		cr->job = job;
		cr->begun = jiffies;
		if (!job->begun)
			job->begun = jiffies ?: 1;
		cr->trusted = !ch->ordered || adma_channel_moves(ch);
		list_move_tail(&cr->list, &ch->reqs);
		refcount_inc(&job->parts);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	adma_watch_soon(ch);
	return cr;
}

/*
 * Counts units that are about to be submitted as in flight; less than 0: takes that
 * back. A full barrier.
 */
void adma_chan_req_charge(struct adma_chan_req *cr, s32 units)
{
	struct adma_channel *ch = cr->ch;

	WRITE_ONCE(cr->sent_at, jiffies);
	WRITE_ONCE(cr->sent, cr->sent + units);
	if (atomic_long_add_return(units, &ch->queued) == units)
		WRITE_ONCE(ch->moved, jiffies);
	if (units < 0)
		wake_up_all(&ch->wait);
}

/*
 * Submits a transfer. Caller is inside adma_srcu. DMA_PREP_FENCE: the word must not
 * overtake what was sent so far; DMA_PREP_INTERRUPT: there will be no word. Returns
 * -ESTALE if @stale says so, -EBUSY if the channel has no room or goes away.
 */
int adma_chan_req_send(struct adma_chan_req *cr, dma_addr_t dst, dma_addr_t src,
		       size_t len, unsigned long flags,
		       bool (*stale)(struct adma_job *job))
{
	struct adma_channel *ch = cr->ch;
	unsigned long irq;
	s32 units = adma_units(len);
	int ret, tries = 0;

	/* Bounds how long others wait for what is queued ahead of them. */
	while (atomic_long_read(&ch->queued) * ADMA_UNIT >= (long)READ_ONCE(adma_depth)) {
		ret = adma_channel_retry(ch, tries++);
		if (ret)
			goto err_distrust;
	}
	ret = -EBUSY;
	if (!READ_ONCE(ch->chan) || READ_ONCE(ch->leaving))
		goto err_distrust;
	adma_chan_req_charge(cr, units);
	/* Pairs with adma_wait_for_flight(): we see it stale, or it sees the charge. */
	if (stale(cr->job))
		ret = -ESTALE;
	else
		ret = adma_chan_req_transfer(cr, dst, src, len,
					     ch->ordered ? flags :
							   DMA_PREP_INTERRUPT);
	if (ret >= 0) {
		cr->cookie = ret;
		return 0;
	}
	adma_chan_req_charge(cr, -units);
	/*
	 * A channel that takes nothing though nothing is in flight is not full: its
	 * device is down (AER), or its driver gone. It is examined, as one that fails.
	 */
	if (ret == -EBUSY && !atomic_long_read(&ch->queued)) {
		spin_lock_irqsave(&ch->lock, irq);
		ch->erred = true;
		spin_unlock_irqrestore(&ch->lock, irq);
		adma_watch_soon(ch);
	}
err_distrust:
	cr->trusted = false;	/* what was sent before has no fence */
	return ret;
}

/*
 * The last transfer on a channel that works in order. The page has the words in
 * its first half, and in the second what they will hold.
 */
static bool adma_chan_req_send_word(struct adma_chan_req *cr)
{
	struct adma_words *words = &cr->job->words[cr->ch - adma_channels];
	size_t at = cr->job->slot * ADMA_WORD_STRIDE, value = PAGE_SIZE / 2 + at;
	dma_cookie_t cookie = -ENODEV;
	int idx;

	adma_chan_req_charge(cr, 1);
	WRITE_ONCE(*(u64 *)(page_address(words->page) + value), cr->job->id);
	idx = srcu_read_lock(&adma_srcu);
	if (READ_ONCE(cr->ch->chan) && words->mapped)
		cookie = adma_chan_req_transfer(cr, words->dma + at,
						words->dma + value,
						ADMA_WORD_STRIDE,
						DMA_PREP_INTERRUPT);
	srcu_read_unlock(&adma_srcu, idx);
	adma_channel_issue(cr->ch, false);
	if (cookie < 0) {
		adma_chan_req_charge(cr, -1);
		return false;
	}
	cr->cookie = cookie;
	return true;
}

/*
 * Lets a chan_req end with what was submitted; it is not to be used afterwards. With
 * @word the channel's word is written in the end. Returns whether the request's id in
 * that, or in a later word of this channel, proves that all data has come.
 */
bool adma_chan_req_close(struct adma_chan_req *cr, bool word)
{
	struct adma_channel *ch = cr->ch;
	bool trusted = true;
	unsigned long irq;

	if (!ch->ordered)
		cr->job->due |= BIT(ch - adma_channels);
	else if (word)
		trusted = adma_chan_req_send_word(cr);
	spin_lock_irqsave(&ch->lock, irq);
	cr->closed = true;
	trusted &= cr->trusted && !cr->failed && adma_is_recent(cr->job->begun);
	/* From here on it may be another request's. */
	adma_chan_req_end(cr, false);
	spin_unlock_irqrestore(&ch->lock, irq);
	return trusted;
}
