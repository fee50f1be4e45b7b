// SPDX-License-Identifier: GPL-2.0
/* Taking channels from their drivers, and giving them back. */
#include <linux/delay.h>
#include <linux/device.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/suspend.h>

#include "range.h"

/* How long transfers in flight may take to end before their driver goes away. */
#define ADMA_LEAVE_MS		3000

/* Delay after a device was bound before its channels are taken. */
#define ADMA_RETURN_MS		100

unsigned int adma_align = 1;

static char *adma_only[ADMA_MAX_CHANNELS];
static unsigned int adma_nr_only;
module_param_array_named(devices, adma_only, charp, &adma_nr_only, 0444);
MODULE_PARM_DESC(devices, "devices whose channels are taken, as 0000:00:04.0,... (default all)");

static bool adma_idxd;
module_param_named(idxd, adma_idxd, bool, 0444);
MODULE_PARM_DESC(idxd, "take the kernel queues of a DSA; never run on a real one (default no)");

/*
 * Serialises taking channels and giving them back. The notifiers take it with the
 * lock of their device held, so neither that nor a notifier's own is taken inside;
 * locks of devices, and then those of their queues, come before it.
 */
static DEFINE_MUTEX(adma_hold_lock);
/* Nothing is taken: the module goes, or the machine sleeps. */
static bool adma_ending, adma_suspended;

static void adma_return(struct work_struct *work);
static DECLARE_DELAYED_WORK(adma_returner, adma_return);

/* A device was bound: its channels may come one after the other. */
static void adma_return_later(void)
{
	mod_delayed_work(adma_workqueue, &adma_returner,
			 msecs_to_jiffies(ADMA_RETURN_MS));
}

/* A silent queue of idxd may still write there: leaks the page then. */
static void adma_probe_free(struct adma_channel *ch)
{
	if (ch->probe_page && (ch->ordered || !atomic_read(&ch->entries)))
		dma_free_coherent(ch->dev, PAGE_SIZE, ch->probe_page,
				  ch->probe_dma);
	ch->probe_page = NULL;
}

/* Returns a channel to its driver. What is in flight there may still complete. */
static void adma_channel_release(struct adma_channel *ch)
{
	struct dma_chan *chan = ch->chan;

	if (!chan)
		return;
	WRITE_ONCE(ch->chan, NULL);
	/* Afterwards neither a submitter nor the watch sends anything. */
	synchronize_srcu(&adma_srcu);
	cancel_delayed_work_sync(&ch->watch);
	dma_release_channel(chan);
}

/*
 * Gives a channel back to its driver. What is in flight has ADMA_LEAVE_MS to end.
 * ioatdma resets the channel as it takes it back, so what has not ended then never
 * will, and is over. On a channel without order such a transfer keeps its pages.
 */
static void adma_channel_leave(struct adma_channel *ch)
{
	const struct adma_flight any = { .ch = ch, .begun_by = jiffies };

	if (!ch->chan)
		return;
	adma_watch_soon(ch);
	adma_wait_for_flight(&any, msecs_to_jiffies(ADMA_LEAVE_MS), false);
	adma_channel_release(ch);
	if (ch->ordered)
		adma_channel_stopped(ch);
	adma_probe_free(ch);
	/* The watch that was cancelled may have been about to let go of the module. */
	adma_watch_soon(ch);
}

/* Gives all channels of a device back. Copies go on with other channels. */
static void adma_device_leave(struct adma_device *device)
{
	unsigned int i, number = device - adma_devices;

	mutex_lock(&adma_hold_lock);
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
	mutex_unlock(&adma_hold_lock);
}

/*
 * The driver of a device goes away: unbind, remove, or another one takes over.
 * Called before the driver's own remove. Or it comes back, perhaps as a new device of
 * the same name.
 */
static int adma_device_event(struct notifier_block *notifier,
			     unsigned long event, void *dev)
{
	struct adma_device *device =
		container_of(notifier, struct adma_device, notifier);

	if (event == BUS_NOTIFY_UNBIND_DRIVER && dev == READ_ONCE(device->dev))
		adma_device_leave(device);
	else if (event == BUS_NOTIFY_BOUND_DRIVER && READ_ONCE(device->gone))
		adma_return_later();
	return NOTIFY_DONE;
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

	if (event == BUS_NOTIFY_BOUND_DRIVER)
		adma_return_later();
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

/* What is being unbound when our notifier is registered has been, afterwards. */
static int adma_settle_child(struct device *child, void *unused)
{
	device_lock(child);
	device_unlock(child);
	return 0;
}

/* A DSA is a child of its PCI function, on a bus of its own. */
static int adma_find_dsa(struct device *child, void *found)
{
	struct adma_device *device = found;

	if (!child->bus || strcmp(child->bus->name, "dsa"))
		return 0;
	device_lock(child);
	if (child->driver && !device->idxd) {
		device->idxd = child->driver;
		/* The bus must not go away before us. */
		__module_get(device->idxd->owner);
		bus_register_notifier(device->idxd->bus, &device->queues);
	}
	device->dsa = child;
	device_unlock(child);
	device_for_each_child(child, NULL, adma_settle_child);
	return 1;
}

/* Devices that have channels for us. */
struct adma_found {
	unsigned int nr;
	struct device *dev[ADMA_MAX_CHANNELS];
};

static bool adma_device_allowed(struct dma_chan *chan)
{
	struct device *dev = chan->device->dev;
	int order = adma_order_of(chan->device);
	unsigned int i;

	if (order < 0) {
		dev_notice_once(dev, "adma: %s is not known to keep order, not used\n",
				dev_driver_string(dev));
		return false;
	}
	if (!order && !adma_idxd) {
		dev_notice_once(dev, "adma: idxd is not used without the parameter idxd=1\n");
		return false;
	}
	for (i = 0; i < adma_nr_only; i++) {
		if (!strcmp(adma_only[i], dev_name(dev)))
			return true;
	}
	return !adma_nr_only;
}

/*
 * Takes no channel, but notes the devices, with a reference each. A queue of idxd may be
 * registered just now: its chan->dev is not used.
 */
static bool adma_note_device(struct dma_chan *chan, void *param)
{
	struct adma_found *found = param;
	struct device *dev = chan->device->dev;
	unsigned int i;

	if (!adma_device_allowed(chan))
		return false;
	for (i = 0; i < found->nr; i++) {
		if (found->dev[i] == dev)
			return false;
	}
	if (found->nr < ARRAY_SIZE(found->dev))
		found->dev[found->nr++] = get_device(dev);
	return false;
}

/*
 * Returns the entry of a device: that of its name, or while the module is loaded a
 * new one; NULL if there is none. Takes over the reference.
 */
static struct adma_device *adma_device_of(struct device *dev, bool loading)
{
	struct adma_device *device = NULL;
	struct device *old = NULL;
	unsigned int i;

	for (i = 0; i < adma_nr_devices; i++) {
		if (!strcmp(dev_name(adma_devices[i].dev), dev_name(dev)))
			device = &adma_devices[i];
	}
	if (device ? !device->gone : !loading) {
		put_device(dev);
		return device;
	}
	if (device)
		old = device->dev;
	else
		device = &adma_devices[adma_nr_devices++];
	if (!old) {
		*device = (struct adma_device) {
			.dev = dev,
			/* Before those that complain about what is still mapped. */
			.notifier = { .notifier_call = adma_device_event, .priority = 1 },
			.queues = { .notifier_call = adma_queue_event },
			.gone = true,
		};
		if (dev->bus)
			bus_register_notifier(dev->bus, &device->notifier);
	} else {
		WRITE_ONCE(device->dev, dev);
		for (i = 0; i < adma_nr_channels; i++) {
			if (adma_channels[i].device == device - adma_devices)
				WRITE_ONCE(adma_channels[i].dev, dev);
		}
		synchronize_srcu(&adma_srcu);
		put_device(old);
	}
	/* From here on an unbind calls our notifier, or is over. */
	adma_settle_child(dev, NULL);
	device_for_each_child(dev, device, adma_find_dsa);
	return device;
}

/* For a moment only: a DSA that is not freed keeps its number from the next one. */
static int adma_get_dsa(struct device *child, void *found)
{
	struct device **dsa = found;

	if (!child->bus || strcmp(child->bus->name, "dsa"))
		return 0;
	*dsa = get_device(child);
	return 1;
}

static int adma_queue_lock(struct device *queue, void *unused)
{
	device_lock(queue);
	return 0;
}

static int adma_queue_unlock(struct device *queue, void *unused)
{
	device_unlock(queue);
	return 0;
}

static int adma_channel_new(struct adma_channel *ch)
{
	unsigned int i;

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
	return 0;
}

/* Caller guarantees that no driver calls us for it any more. */
static void adma_channel_exit(struct adma_channel *ch)
{
	cancel_delayed_work_sync(&ch->watch);
	adma_probe_free(ch);
	kvfree(ch->req);
	memset(ch, 0, sizeof(*ch));
}

/* Returns a place for a channel of this device, or NULL. */
static struct adma_channel *adma_channel_place(unsigned int number, bool loading)
{
	unsigned int i;

	if (loading)
		return &adma_channels[adma_nr_channels];
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];

		/* Not while something of it may still complete. */
		if (ch->device == number && !ch->chan && list_empty(&ch->reqs) &&
		    (ch->ordered || ch->stopped || !atomic_read(&ch->entries)))
			return ch;
	}
	return NULL;
}

/* Begins to use a channel, which is not up yet. Returns an error if it fails its test. */
static int adma_channel_take(struct adma_channel *ch, struct dma_chan *chan,
			     unsigned int number)
{
	int ret = ch->req ? 0 : adma_channel_new(ch);

	if (ret)
		return ret;
	ch->dev = adma_devices[number].dev;
	ch->device = number;
	ch->ordered = adma_order_of(chan->device);
	WRITE_ONCE(ch->leaving, true);
	atomic_set(&ch->entries, 0);
	ch->health = ADMA_UP;
	ch->silent = false;
	ch->erred = false;
	atomic_set(&ch->debt, 0);
	WRITE_ONCE(ch->stopped, false);
	WRITE_ONCE(ch->chan, chan);
	ret = adma_health_init(ch);
	if (!ret)
		adma_align = max_t(unsigned int, adma_align,
				   1U << chan->device->copy_align);
	return ret;
}

struct adma_search {
	unsigned int number;	/* of the device */
	unsigned int skip;	/* channels that cannot be had */
	unsigned int seen;	/* but for those that we hold */
};

static bool adma_channel_wanted(struct dma_chan *chan, void *param)
{
	struct adma_search *search = param;

	if (chan->device->dev != adma_devices[search->number].dev)
		return false;
	return search->seen++ == search->skip;
}

/* Takes all channels of a device that work. */
static void adma_device_take(struct adma_device *device, bool loading)
{
	struct adma_search search = { .number = device - adma_devices };
	unsigned int i, taken = 0;
	dma_cap_mask_t mask;

	lockdep_assert_held(&adma_hold_lock);
	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	while (!loading || adma_nr_channels < ADMA_MAX_CHANNELS) {
		struct adma_channel *ch;
		struct dma_chan *chan;

		ch = adma_channel_place(search.number, loading);
		if (!ch)
			break;
		search.seen = 0;
		chan = dma_request_channel(mask, adma_channel_wanted, &search);
		if (search.seen <= search.skip)
			break;
		/* Goes on after a channel that is taken, or fails. */
		if (chan && !adma_channel_take(ch, chan, search.number)) {
			adma_nr_channels += loading;
			taken++;
			continue;
		}
		search.skip++;
		if (!chan)
			continue;
		/* Without memory it was not even begun. */
		WRITE_ONCE(ch->chan, chan);
		adma_channel_release(ch);
		adma_probe_free(ch);
		if (!loading)
			continue;
		/* As in adma_callbacks_end(): a callback may not have returned yet. */
		synchronize_rcu_tasks();
		adma_channel_exit(ch);
	}
	if (!taken)
		return;
	WRITE_ONCE(device->gone, false);
	adma_mems_map(search.number);
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];

		if (ch->device != search.number || !ch->chan)
			continue;
		/* Pairs with adma_channel_is_up(): its device is there. */
		smp_store_release(&ch->leaving, false);
	}
	if (!loading)
		dev_info(device->dev, "adma: %u channels are taken again\n", taken);
}

/*
 * Takes the channels of a device, if it is bound; takes over the reference. Neither the
 * device nor a queue of idxd is bound or unbound meanwhile: a notifier that had come
 * first would have found nothing to give back, and idxd's channels can be found before
 * they are complete, and after they were freed.
 */
static void adma_device_use(struct device *dev, bool loading)
{
	struct adma_device *device = adma_device_of(dev, loading);
	struct device *dsa = NULL;

	if (!device)
		return;
	dev = device->dev;
	device_lock(dev);
	device_for_each_child(dev, &dsa, adma_get_dsa);
	if (dsa)
		device_for_each_child(dsa, NULL, adma_queue_lock);
	mutex_lock(&adma_hold_lock);
	/* A DSA that was bound only now: its queues could go unheard. */
	if (!adma_ending && !adma_suspended && dev->driver && (!dsa || device->idxd))
		adma_device_take(device, loading);
	mutex_unlock(&adma_hold_lock);
	if (dsa)
		device_for_each_child(dsa, NULL, adma_queue_unlock);
	device_unlock(dev);
	put_device(dsa);
}

/* A device came back, or the machine did from suspend. */
static void adma_return(struct work_struct *work)
{
	struct device *dev;
	unsigned int i;

	for (i = 0; i < adma_nr_devices; i++) {
		dev = adma_devices[i].dev;
		if (dev->bus)
			dev = bus_find_device_by_name(dev->bus, NULL, dev_name(dev));
		else
			get_device(dev);
		if (dev)
			adma_device_use(dev, false);
	}
	mutex_lock(&adma_hold_lock);
	WRITE_ONCE(adma_awaited, adma_suspended);
	mutex_unlock(&adma_hold_lock);
}

/*
 * Before a suspend all channels are given back: ioatdma loses its registers there and
 * has no suspend of its own. None is taken before the machine is awake again.
 */
static int adma_pm_event(struct notifier_block *notifier, unsigned long event,
			 void *unused)
{
	unsigned int i;

	switch (event) {
	case PM_SUSPEND_PREPARE:
	case PM_HIBERNATION_PREPARE:
	case PM_RESTORE_PREPARE:
		mutex_lock(&adma_hold_lock);
		adma_suspended = true;
		WRITE_ONCE(adma_awaited, true);
		mutex_unlock(&adma_hold_lock);
		for (i = 0; i < adma_nr_devices; i++)
			adma_device_leave(&adma_devices[i]);
		break;
	case PM_POST_SUSPEND:
	case PM_POST_HIBERNATION:
	case PM_POST_RESTORE:
		mutex_lock(&adma_hold_lock);
		adma_suspended = false;
		mutex_unlock(&adma_hold_lock);
		adma_return_later();
		break;
	}
	return NOTIFY_DONE;
}

static struct notifier_block adma_pm_notifier = { .notifier_call = adma_pm_event };

/* Holds all channels of known drivers that work. Returns -ENODEV without any. */
int adma_channels_request(void)
{
	struct adma_found found = {};
	dma_cap_mask_t mask;
	unsigned int i;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	dma_request_channel(mask, adma_note_device, &found);
	for (i = 0; i < found.nr; i++)
		adma_device_use(found.dev[i], true);
	if (!adma_nr_channels) {
		adma_channels_release();
		return -ENODEV;
	}
	register_pm_notifier(&adma_pm_notifier);
	return 0;
}

/*
 * Waits until no driver calls us any more. Outside of init nothing was in flight when
 * the module was found unused; but the watch may have probed a resting channel since,
 * and a callback may not have returned yet: idxd's run in a thread, which can lose the
 * CPU in them.
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

	unregister_pm_notifier(&adma_pm_notifier);
	/* First: nothing is submitted, and a driver that goes finds its channels given back. */
	mutex_lock(&adma_hold_lock);
	adma_ending = true;
	for (i = 0; i < adma_nr_channels; i++) {
		adma_channel_release(&adma_channels[i]);
		if (!atomic_read(&adma_channels[i].entries))
			adma_probe_free(&adma_channels[i]);
	}
	for (i = 0; i < adma_nr_devices; i++)
		adma_devices[i].gone = true;
	mutex_unlock(&adma_hold_lock);
	adma_callbacks_end();
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
	cancel_delayed_work_sync(&adma_returner);
	while (adma_nr_channels)
		adma_channel_exit(&adma_channels[--adma_nr_channels]);
	while (adma_nr_devices)
		put_device(adma_devices[--adma_nr_devices].dev);
}
