// SPDX-License-Identifier: GPL-2.0
/* The channels: asking their drivers, choosing one. */
#include <linux/mm.h>
#include <linux/topology.h>

#include "channel.h"
#include "stats.h"

DEFINE_PER_CPU(s64[ADMA_STATS], adma_counters);	/* stats.c shows them */
struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
unsigned int adma_nr_channels;
struct workqueue_struct *adma_workqueue;	/* ends of requests, watches, reaping */
DEFINE_SRCU(adma_srcu);

/*
 * ioatdma restarts its timer each time it is asked while the channel has finished
 * nothing since a reset. Asked all the time about a channel that fails at once
 * after each reset, it would never reset it again. So a channel that is aside is
 * asked only after this: more than the two times 200 ms after which ioatdma
 * resets a hung one.
 */
#define ADMA_QUIET_MS		500

/**
 * adma_channel_issue() - start what was submitted to a channel
 * @ch: channel
 * @poll: also make the driver tell what has completed; a channel that is aside is
 * asked every ADMA_QUIET_MS at most
 */
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

/**
 * adma_order_of() - what may be relied on with a driver
 * @device: of the driver
 *
 * Ordered (1): transfers of a channel are carried out in order, complete in
 * order, and none is carried out after one that failed until all before it have
 * completed or are lost. So the word behind the data proves the data.
 * Otherwise (0): in any order, but each transfer completes (with
 * DMA_PREP_INTERRUPT), and not before it is over. We write the word.
 *
 * Not here: ptdma, whose callbacks report errors as success.
 *
 * Returns -EINVAL for drivers that are not known.
 */
int adma_order_of(struct dma_device *device)
{
	const char *driver = dev_driver_string(device->dev);

	if (!strcmp(driver, "ioatdma") &&
	    !dma_has_cap(DMA_COMPLETION_NO_ORDER, device->cap_mask))
		return 1;
	return strcmp(driver, "idxd") ? -EINVAL : 0;
}

bool adma_several_nodes(void)
{
	unsigned int i;

	for (i = 1; i < adma_nr_channels; i++) {
		if (dev_to_node(adma_channels[i].dev) !=
		    dev_to_node(adma_channels[0].dev))
			return true;
	}
	return false;
}

/* Returns the node of the caller's page, or of the caller if it is not there. */
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

/**
 * adma_channel_pick() - choose a channel for a piece
 * @wanted: the one that was asked for, or ADMA_CHANNEL_ANY
 * @addr: a page of the caller's, to which it should be near
 * @first: decides among equals
 *
 * Returns its number, -EBUSY if one may come back, or -ENODEV.
 */
int adma_channel_pick(u32 wanted, u64 addr, u64 first)
{
	u8 near[ADMA_MAX_CHANNELS], any[ADMA_MAX_CHANNELS];
	unsigned int i, nr_near = 0, nr_any = 0;
	int node = NUMA_NO_NODE, ret = -ENODEV;

	if (wanted != ADMA_CHANNEL_ANY &&
	    adma_channel_is_up(&adma_channels[wanted]))
		return wanted;
	if (adma_several_nodes())
		node = adma_node_of(addr);
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];

		if (READ_ONCE(ch->health) == ADMA_ASIDE && !READ_ONCE(ch->leaving))
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
