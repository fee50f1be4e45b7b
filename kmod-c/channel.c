// SPDX-License-Identifier: GPL-2.0
/* The channels: holding them, choosing one, handing it a transfer. */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/topology.h>

#include "adma.h"

struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
unsigned int adma_nr_channels;
struct adma_device adma_devices[ADMA_MAX_CHANNELS];
unsigned int adma_nr_devices;

/*
 * Whoever calls the driver does so inside a read side of this, and has seen
 * there that ch->chan is not NULL. So a channel can be given back while others
 * are about to use it: see adma_channel_leave().
 */
DEFINE_SRCU(adma_srcu);

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

/* How long transfers in flight may take to end before their driver goes. */
#define ADMA_LEAVE_MS		3000

/*
 * Whoever has waited for something gets what the driver knows by now; of a
 * channel that is aside, what it knew a moment ago.
 */
void adma_channel_poll(struct adma_channel *ch)
{
	int idx = srcu_read_lock(&adma_srcu);
	struct dma_chan *chan = READ_ONCE(ch->chan);

	if (!chan)
		goto out_unlock;
	dma_async_issue_pending(chan);
	if (READ_ONCE(ch->health) != ADMA_UP &&
	    time_before(jiffies, READ_ONCE(ch->asked) +
			msecs_to_jiffies(ADMA_QUIET_MS)))
		goto out_unlock;
	WRITE_ONCE(ch->asked, jiffies);
	dma_async_is_tx_complete(chan, READ_ONCE(chan->cookie), NULL, NULL);
out_unlock:
	srcu_read_unlock(&adma_srcu, idx);
}

/* Hands over what was submitted. */
void adma_channel_issue(struct adma_channel *ch)
{
	int idx = srcu_read_lock(&adma_srcu);
	struct dma_chan *chan = READ_ONCE(ch->chan);

	if (chan)
		dma_async_issue_pending(chan);
	srcu_read_unlock(&adma_srcu, idx);
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
	if (tries == ADMA_RING_TRIES || READ_ONCE(ch->leaving))
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

/*
 * Gives a channel back to its driver: nothing begins on it any more, what is in
 * flight has ADMA_LEAVE_MS to end. ioatdma resets the channel as it takes it
 * back, so what has not ended then never will, and is over.
 */
static void adma_channel_leave(struct adma_channel *ch)
{
	struct dma_chan *chan = ch->chan;
	unsigned long now = jiffies;

	if (!chan)
		return;
	adma_watch_soon(ch);
	wait_event_timeout(ch->wait, !adma_channel_busy(ch, NULL, now),
			   msecs_to_jiffies(ADMA_LEAVE_MS));
	WRITE_ONCE(ch->chan, NULL);
	synchronize_srcu(&adma_srcu);
	cancel_delayed_work_sync(&ch->watch);
	dma_release_channel(chan);
	adma_chan_reqs_abandon(ch);
	dma_free_coherent(ch->dev, PAGE_SIZE, ch->probe_page, ch->probe_dma);
	ch->probe_page = NULL;
}

/*
 * The driver of a device goes: unbind, remove, another one takes it over. It is
 * called before the driver's own remove. Copies go on over other channels.
 */
static int adma_device_event(struct notifier_block *notifier,
			     unsigned long event, void *dev)
{
	struct adma_device *device =
		container_of(notifier, struct adma_device, notifier);
	unsigned int i, number = device - adma_devices;

	if (event != BUS_NOTIFY_UNBIND_DRIVER || dev != device->dev ||
	    device->gone)
		return NOTIFY_DONE;
	for (i = 0; i < adma_nr_channels; i++) {
		if (adma_channels[i].device == number)
			WRITE_ONCE(adma_channels[i].leaving, true);
	}
	/* Who has not seen that has charged what he submits after this. */
	synchronize_srcu(&adma_srcu);
	for (i = 0; i < adma_nr_channels; i++) {
		if (adma_channels[i].device == number)
			adma_channel_leave(&adma_channels[i]);
	}
	WRITE_ONCE(device->gone, true);
	adma_files_unmap(number);
	dev_info(device->dev, "adma: its channels are given back\n");
	return NOTIFY_OK;
}

/* Pages are mapped once for each device, not for each channel. */
static unsigned int adma_device_number(struct device *dev)
{
	struct adma_device *device;
	unsigned int i;

	for (i = 0; i < adma_nr_devices; i++) {
		if (adma_devices[i].dev == dev)
			return i;
	}
	device = &adma_devices[adma_nr_devices];
	*device = (struct adma_device) {
		.dev = get_device(dev),
		/* Before those that complain about what is still mapped. */
		.notifier = { .notifier_call = adma_device_event, .priority = 1 },
	};
	if (dev->bus)
		bus_register_notifier(dev->bus, &device->notifier);
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
	init_waitqueue_head(&ch->wait);
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
	if (ch->chan)
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
	struct adma_device *device;
	unsigned int i;

	/* First: from here on nothing is given back behind our back. */
	for (i = 0; i < adma_nr_devices; i++) {
		device = &adma_devices[i];
		if (device->dev->bus)
			bus_unregister_notifier(device->dev->bus,
						&device->notifier);
	}
	while (adma_nr_channels)
		adma_channel_exit(&adma_channels[--adma_nr_channels]);
	while (adma_nr_devices)
		put_device(adma_devices[--adma_nr_devices].dev);
}

unsigned int adma_channels_usable(void)
{
	unsigned int i, usable = 0;

	for (i = 0; i < adma_nr_channels; i++)
		usable += adma_channel_is_up(&adma_channels[i]);
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
	    adma_channel_is_up(&adma_channels[wanted]))
		return wanted;
	if (adma_several_nodes)
		node = adma_node_of(addr);
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];

		if (READ_ONCE(ch->health) == ADMA_ASIDE && !READ_ONCE(ch->leaving))
			ret = -EBUSY;	/* it may come back */
		if (!adma_channel_is_up(ch))
			continue;
		any[nr_any++] = i;
		if (dev_to_node(adma_channels[i].dev) == node)
			near[nr_near++] = i;
	}
	if (nr_near)
		return near[first % nr_near];
	return nr_any ? any[first % nr_any] : ret;
}
