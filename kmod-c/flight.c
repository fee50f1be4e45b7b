// SPDX-License-Identifier: GPL-2.0
/* Looking for transfers in flight, and waiting for their end. */
#include "channel.h"

/* Returns whether the channel may still carry out such transfers; see ch->wait. */
static bool adma_in_flight(struct adma_channel *ch, const struct adma_flight *what)
{
	struct adma_chan_req *cr;
	unsigned long irq;
	bool found = false;

	if ((what->ch && what->ch != ch) || READ_ONCE(ch->stopped))
		return false;
	spin_lock_irqsave(&ch->lock, irq);
	list_for_each_entry(cr, &ch->reqs, list) {
		const struct adma_job *job = cr->job;

		found |= (!what->job || job == what->job) &&
			 (!what->owner || job->owner[0] == what->owner ||
			  job->owner[1] == what->owner) &&
			 (!what->buf || job->buf == what->buf) &&
			 !time_after(cr->begun, what->begun_by) &&
			 (!what->max_age ||
			  !time_after(jiffies, READ_ONCE(cr->sent_at) +
					       what->max_age)) &&
			 adma_chan_req_left(cr);
	}
	spin_unlock_irqrestore(&ch->lock, irq);
	return found;
}

/* Returns whether such a transfer is in flight on any channel. */
bool adma_flight_any(const struct adma_flight *what)
{
	unsigned int i;

	/* Pairs with adma_chan_req_send(), as in adma_wait_for_flight(). */
	smp_mb();
	for (i = 0; i < adma_nr_channels; i++) {
		if (adma_in_flight(&adma_channels[i], what))
			return true;
	}
	return false;
}

/* Returns whether such transfers are in flight, all on channels known to be silent. */
bool adma_flight_silent(const struct adma_flight *what)
{
	unsigned int i;
	bool found = false;

	for (i = 0; i < adma_nr_channels; i++) {
		if (!adma_in_flight(&adma_channels[i], what))
			continue;
		if (!READ_ONCE(adma_channels[i].silent))
			return false;
		found = true;
	}
	return found;
}

/*
 * Waits until no such transfer is in flight; the caller lets none begin; with a
 * @timeout of 0 only looks. Returns the jiffies left, 0 or -ERESTARTSYS.
 */
long adma_wait_for_flight(const struct adma_flight *what, long timeout,
			  bool interruptible)
{
	long left = max(timeout, 1L);
	unsigned int i;

	/* Pairs with adma_chan_req_send(): it sees our change, or we its charge. */
	smp_mb();
	for (i = 0; i < adma_nr_channels && left > 0; i++) {
		struct adma_channel *ch = &adma_channels[i];

		if (!adma_in_flight(ch, what))
			continue;
		/* The last one may have completed without an interrupt so far. */
		adma_channel_issue(ch, true);
		if (!timeout)
			left = !adma_in_flight(ch, what);
		else if (interruptible)
			left = wait_event_interruptible_timeout(ch->wait,
								!adma_in_flight(ch, what),
								left);
		else
			left = wait_event_timeout(ch->wait,
						  !adma_in_flight(ch, what),
						  left);
	}
	return left;
}
