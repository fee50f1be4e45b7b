// SPDX-License-Identifier: GPL-2.0
/* The channels: holding them, choosing one, handing it a transfer. */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/topology.h>

#include "adma.h"

struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
unsigned int adma_nr_channels;
struct device *adma_devices[ADMA_MAX_CHANNELS];
unsigned int adma_nr_devices;

bool adma_several_nodes;	/* have channels */
unsigned int adma_align = 1;	/* that suits all channels */

/*
 * Each time it is asked, ioatdma sets its timer anew while the channel has
 * finished nothing since a reset. Asked all the time about a channel that fails
 * at once after each reset, it would never reset it again, and nothing there
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
void adma_channel_poll(struct adma_channel *ch)
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

/* For whoever was refused room: transfers may be over and not yet answered. */
void adma_channels_poll(void)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++)
		adma_channel_poll(&adma_channels[i]);
}

/* The channel has no room; EBUSY when it has had none for too long. */
int adma_channel_retry(struct adma_channel *ch, int tries)
{
	if (!tries)
		adma_count(ADMA_STAT_RING_FULL, 1);
	if (tries == ADMA_RING_TRIES)
		return -EBUSY;
	adma_channel_poll(ch);
	usleep_range(100, 200);
	return 0;
}

/*
 * Holding them
 */

/*
 * Drivers that are known to keep to what we rely on; others are refused (EINVAL).
 *
 * Ordered (1): transfers of a channel are carried out in turn, answered in turn,
 * and none is carried out after one that went wrong until all before are
 * answered or lost. So the word behind the data proves the data.
 * Otherwise (0): in any order, but each transfer is answered (with
 * DMA_PREP_INTERRUPT), and not before it is over. The word is ours to write.
 *
 * Not here: ptdma, whose callbacks take an error for success.
 */
static int adma_order_of(struct dma_device *device)
{
	const char *driver = dev_driver_string(device->dev);

	if (!strcmp(driver, "ioatdma") &&
	    !dma_has_cap(DMA_COMPLETION_NO_ORDER, device->cap_mask))
		return 1;
	return strcmp(driver, "idxd") ? -EINVAL : 0;
}

/* Says who is refused, and takes none. */
static bool adma_channel_refused(struct dma_chan *chan, void *last)
{
	struct dma_device *device = chan->device, **told = last;

	if (adma_order_of(device) < 0 && *told != device) {
		*told = device;
		dev_notice(device->dev,
			   "adma: %s is not known to keep order, not used\n",
			   dev_driver_string(device->dev));
	}
	return false;
}

struct adma_search {
	int node;
	unsigned int skip;	/* so many that cannot be had */
	unsigned int seen;	/* but for those that we hold */
};

static bool adma_channel_wanted(struct dma_chan *chan, void *param)
{
	struct dma_device *device = chan->device;
	struct adma_search *search = param;

	if (adma_order_of(device) < 0 || (search->node != NUMA_NO_NODE &&
					  search->node != dev_to_node(device->dev)))
		return false;
	return search->seen++ == search->skip;
}

/* Pages are mapped once for each device, not for each channel. */
static unsigned int adma_device_number(struct device *dev)
{
	unsigned int i;

	for (i = 0; i < adma_nr_devices; i++) {
		if (adma_devices[i] == dev)
			return i;
	}
	adma_devices[adma_nr_devices] = dev;
	return adma_nr_devices++;
}

static int adma_channel_init(struct adma_channel *ch, struct dma_chan *chan)
{
	unsigned int i;
	int ret;

	ch->chan = chan;
	ch->dev = dmaengine_get_dma_device(chan);
	ch->ordered = adma_order_of(chan->device);
	spin_lock_init(&ch->lock);
	INIT_LIST_HEAD(&ch->reqs);
	INIT_LIST_HEAD(&ch->free);
	INIT_DELAYED_WORK(&ch->watch, adma_watch);
	ch->req = kvcalloc(ADMA_CHAN_REQS, sizeof(*ch->req), GFP_KERNEL);
	if (!ch->req)
		return -ENOMEM;
	for (i = 0; i < ADMA_CHAN_REQS; i++) {
		ch->req[i].ch = ch;
		if (&ch->req[i] != adma_probe_of(ch))
			list_add_tail(&ch->req[i].list, &ch->free);
	}
	ret = adma_health_init(ch);
	if (ret)
		return ret;
	/* Last: ranges are mapped for every device that has a number. */
	ch->device = adma_device_number(ch->dev);
	adma_align = max_t(unsigned int, adma_align,
			   1U << chan->device->copy_align);
	if (dev_to_node(ch->dev) != dev_to_node(adma_channels[0].dev))
		adma_several_nodes = true;
	return 0;
}

static void adma_channel_exit(struct adma_channel *ch)
{
	cancel_delayed_work_sync(&ch->watch);
	dma_release_channel(ch->chan);
	/* Nothing moves any more, a silent probe included. */
	if (ch->probe_page)
		dma_free_coherent(ch->dev, PAGE_SIZE, ch->probe_page,
				  ch->probe_dma);
	kvfree(ch->req);
	memset(ch, 0, sizeof(*ch));
}

int adma_channels_request(unsigned int most, int node)
{
	struct adma_search search = { .node = node };
	struct dma_device *refused = NULL;
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	most = min_t(unsigned int, most ?: ADMA_MAX_CHANNELS,
		     ADMA_MAX_CHANNELS);
	dma_request_channel(mask, adma_channel_refused, &refused);
	while (adma_nr_channels < most) {
		struct adma_channel *ch = &adma_channels[adma_nr_channels];
		struct dma_chan *chan;

		search.seen = 0;
		chan = dma_request_channel(mask, adma_channel_wanted, &search);
		if (search.seen <= search.skip)
			break;
		/* One that cannot be had is not the end of the search. */
		if (chan && !adma_channel_init(ch, chan)) {
			adma_nr_channels++;
			continue;
		}
		if (chan)
			adma_channel_exit(ch);
		search.skip++;
	}
	return adma_nr_channels ? 0 : -ENODEV;
}

void adma_channels_release(void)
{
	while (adma_nr_channels)
		adma_channel_exit(&adma_channels[--adma_nr_channels]);
	adma_nr_devices = 0;
}

unsigned int adma_channels_usable(void)
{
	unsigned int i, usable = 0;

	for (i = 0; i < adma_nr_channels; i++)
		usable += READ_ONCE(adma_channels[i].health) == ADMA_UP;
	return usable;
}

/*
 * Choosing one
 */

/* The node of a page of the caller's; of the caller, if it is not there yet. */
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
 * The channel that was asked for; otherwise one that is near to the page at
 * @addr, or any; which one of them follows from @first.
 */
int adma_channel_pick(u32 wanted, u64 addr, u64 first)
{
	u8 near[ADMA_MAX_CHANNELS], any[ADMA_MAX_CHANNELS];
	unsigned int i, nr_near = 0, nr_any = 0;
	int node = NUMA_NO_NODE, ret = -ENODEV;

	if (wanted != ADMA_CHANNEL_ANY &&
	    READ_ONCE(adma_channels[wanted].health) == ADMA_UP)
		return wanted;
	if (adma_several_nodes)
		node = adma_node_of(addr);
	for (i = 0; i < adma_nr_channels; i++) {
		enum adma_health health = READ_ONCE(adma_channels[i].health);

		if (health == ADMA_ASIDE)
			ret = -EBUSY;	/* it may come back */
		if (health != ADMA_UP)
			continue;
		any[nr_any++] = i;
		if (dev_to_node(adma_channels[i].dev) == node)
			near[nr_near++] = i;
	}
	if (nr_near)
		return near[first % nr_near];
	return nr_any ? any[first % nr_any] : ret;
}
