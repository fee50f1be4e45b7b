// SPDX-License-Identifier: GPL-2.0
/* The channels: holding them, choosing one, handing it a transfer. */
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

/*
 * Each time it is asked, ioatdma sets its timer anew while the channel has
 * finished nothing since a reset. Asked all the time about a channel that fails
 * at once after each reset, it would never reset it again, and no leg there
 * would ever be over. So a channel that is aside is asked about after so long:
 * more than the two times 200 ms after which ioatdma resets a hung one.
 */
#define ADMA_QUIET_MS		500

/*
 * A full ring is tried again so often, 100 us apart. The driver says no more
 * than "not now": it may also be resetting the channel.
 */
#define ADMA_RING_TRIES		50

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

/*
 * Hands over one transfer. The driver may keep a lock from prep to submit:
 * nothing may come between them.
 */
int adma_transfer(struct adma_channel *ch, dma_addr_t dst, dma_addr_t src,
		  size_t len, unsigned long flags,
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
	int ret;

	ch->chan = chan;
	ch->dev = dmaengine_get_dma_device(chan);
	spin_lock_init(&ch->lock);
	INIT_LIST_HEAD(&ch->legs);
	ret = adma_health_init(ch);
	if (ret)
		return ret;
	/* Last: lines are mapped for every device that has a number. */
	ret = adma_device_number(ch->dev);
	if (ret < 0)
		return ret;
	ch->device = ret;
	return 0;
}

static void adma_channel_exit(struct adma_channel *ch)
{
	adma_health_stop(ch);
	dma_release_channel(ch->chan);
	adma_health_exit(ch);
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
