// SPDX-License-Identifier: GPL-2.0
/* Taking channels from their drivers, and giving them back. */
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/slab.h>

#include "range.h"

/* How long transfers in flight may take to end before their driver goes away. */
#define ADMA_LEAVE_MS		3000

unsigned int adma_align = 1;

/* For adma_device_leave(): queues of a DSA may be disabled concurrently. */
static DEFINE_MUTEX(adma_leave_lock);

/*
 * Gives a channel back to its driver. What is in flight has ADMA_LEAVE_MS to end.
 * ioatdma resets the channel as it takes it back, so what has not ended then never
 * will, and is over. On a channel without order such a transfer keeps its pages.
 */
static void adma_channel_leave(struct adma_channel *ch)
{
	const struct adma_flight any = { .ch = ch, .begun_by = jiffies };
	struct dma_chan *chan = ch->chan;

	if (!chan)
		return;
	adma_watch_soon(ch);
	adma_wait_for_flight(&any, msecs_to_jiffies(ADMA_LEAVE_MS), false);
	WRITE_ONCE(ch->chan, NULL);
	synchronize_srcu(&adma_srcu);
	cancel_delayed_work_sync(&ch->watch);
	dma_release_channel(chan);
	if (ch->ordered)
		adma_channel_stopped(ch);
	/* A silent queue of idxd may still write there: leak the page instead. */
	if (ch->ordered || !atomic_read(&ch->entries))
		dma_free_coherent(ch->dev, PAGE_SIZE, ch->probe_page,
				  ch->probe_dma);
	ch->probe_page = NULL;
}

/* Gives all channels of a device back. Copies go on with other channels. */
static void adma_device_leave(struct adma_device *device)
{
	unsigned int i, number = device - adma_devices;

	mutex_lock(&adma_leave_lock);
	if (device->gone)
		goto out_unlock;
	for (i = 0; i < adma_nr_channels; i++) {
		if (adma_channels[i].device == number)
			WRITE_ONCE(adma_channels[i].leaving, true);
	}
	/* Afterwards submitters have seen @leaving, or have submitted. */
	synchronize_srcu(&adma_srcu);
	for (i = 0; i < adma_nr_channels; i++) {
		if (adma_channels[i].device == number)
			adma_channel_leave(&adma_channels[i]);
	}
	WRITE_ONCE(device->gone, true);
	adma_mems_unmap(number);
	dev_info(device->dev, "adma: its channels are given back\n");
out_unlock:
	mutex_unlock(&adma_leave_lock);
}

/*
 * The driver of a device goes away: unbind, remove, or another one takes over.
 * Called before the driver's own remove.
 */
static int adma_device_event(struct notifier_block *notifier,
			     unsigned long event, void *dev)
{
	struct adma_device *device =
		container_of(notifier, struct adma_device, notifier);

	if (event != BUS_NOTIFY_UNBIND_DRIVER || dev != device->dev)
		return NOTIFY_DONE;
	adma_device_leave(device);
	return NOTIFY_OK;
}

/*
 * A queue of idxd is disabled, or all of them with their DSA. idxd does not tell
 * which channel is which queue: all channels of the DSA are given back. Transfers
 * that have not completed are over when the DSA has been reset, and not before.
 */
static int adma_queue_event(struct notifier_block *notifier,
			    unsigned long event, void *data)
{
	struct adma_device *device =
		container_of(notifier, struct adma_device, queues);
	struct device *dev = data;
	unsigned int i;

	if (dev != device->dsa && dev->parent != device->dsa)
		return NOTIFY_DONE;
	if (event == BUS_NOTIFY_UNBIND_DRIVER &&
	    (dev == device->dsa || !strcmp(dev->driver->name, "dmaengine")))
		adma_device_leave(device);
	if (dev != device->dsa)
		return NOTIFY_DONE;
	if (event == BUS_NOTIFY_REMOVED_DEVICE)
		device->dsa = NULL;
	if (event != BUS_NOTIFY_UNBOUND_DRIVER)
		return NOTIFY_DONE;
	for (i = 0; i < adma_nr_channels; i++) {
		if (adma_channels[i].device == device - adma_devices)
			adma_channel_stopped(&adma_channels[i]);
	}
	return NOTIFY_OK;
}

/* A DSA is a child of its PCI function, on a bus of its own. */
static int adma_find_dsa(struct device *child, void *found)
{
	struct adma_device *device = found;

	if (!child->bus || strcmp(child->bus->name, "dsa") || !child->driver)
		return 0;
	device->dsa = child;
	device->idxd = child->driver;
	/* The bus must not go away before us; our channels hold the module now. */
	__module_get(device->idxd->owner);
	bus_register_notifier(device->idxd->bus, &device->queues);
	return 1;
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
		.queues = { .notifier_call = adma_queue_event },
	};
	if (dev->bus)
		bus_register_notifier(dev->bus, &device->notifier);
	device_for_each_child(dev, device, adma_find_dsa);
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
	return 0;
}

static void adma_channel_exit(struct adma_channel *ch)
{
	cancel_delayed_work_sync(&ch->watch);
	if (ch->chan)
		dma_release_channel(ch->chan);
	/* Nothing is in flight any more, not even a silent probe. */
	if (ch->probe_page)
		dma_free_coherent(ch->dev, PAGE_SIZE, ch->probe_page,
				  ch->probe_dma);
	kvfree(ch->req);
	memset(ch, 0, sizeof(*ch));
}

struct adma_search {
	unsigned int skip;	/* channels that cannot be had */
	unsigned int seen;	/* but for those that we hold */
};

static bool adma_channel_wanted(struct dma_chan *chan, void *param)
{
	struct adma_search *search = param;

	if (adma_order_of(chan->device) < 0) {
		dev_notice_once(chan->device->dev,
				"adma: %s is not known to keep order, not used\n",
				dev_driver_string(chan->device->dev));
		return false;
	}
	return search->seen++ == search->skip;
}

/* Holds all channels of known drivers that work. Returns -ENODEV without any. */
int adma_channels_request(void)
{
	struct adma_search search = {};
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	while (adma_nr_channels < ADMA_MAX_CHANNELS) {
		struct adma_channel *ch = &adma_channels[adma_nr_channels];
		struct dma_chan *chan;

		search.seen = 0;
		chan = dma_request_channel(mask, adma_channel_wanted, &search);
		if (search.seen <= search.skip)
			break;
		/* Goes on after a channel that is taken, or fails. */
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

/*
 * Waits until no driver calls us any more. Outside of init the module is held until
 * nothing is in flight, and the callbacks have said so; but one may not have
 * returned yet: idxd's run in a thread, which can lose the CPU in them.
 */
static void adma_callbacks_end(void)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];

		while (atomic_read(&ch->entries) && !READ_ONCE(ch->stopped))
			msleep(ADMA_WATCH_MS);
	}
	synchronize_rcu_tasks();
}

void adma_channels_release(void)
{
	struct adma_device *device;
	unsigned int i;

	adma_callbacks_end();
	/* First: no notifier may give back channels that we release here. */
	for (i = 0; i < adma_nr_devices; i++) {
		device = &adma_devices[i];
		if (device->dev->bus)
			bus_unregister_notifier(device->dev->bus,
						&device->notifier);
		if (device->idxd) {
			bus_unregister_notifier(device->idxd->bus,
						&device->queues);
			module_put(device->idxd->owner);
		}
	}
	while (adma_nr_channels)
		adma_channel_exit(&adma_channels[--adma_nr_channels]);
	while (adma_nr_devices)
		put_device(adma_devices[--adma_nr_devices].dev);
}
