// SPDX-License-Identifier: GPL-2.0
/*
 * /sys/class/misc/adma/stats: channels, copies and errors for every user. The rest
 * would show users how much others copy: "all" is for root.
 */
#include <linux/device.h>
#include <linux/sysfs.h>

#include "channel.h"

static const char *const adma_stat_names[] = {
	"copies", "bytes", "descriptors", "pins", "overlapped", "pinned_pages", "errors",
	"timeouts", "ring_full", "quarantined", "exports", "export_bytes",
};

static_assert(ARRAY_SIZE(adma_stat_names) == ADMA_STATS);

static s64 adma_sum(enum adma_stat what)
{
	s64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(adma_counters, cpu)[what]);
	return sum;
}

static ssize_t all_show(struct device *dev, struct device_attribute *attr,
			char *buf)
{
	unsigned int i;
	int len = 0;

	for (i = 0; i < ADMA_STATS; i++)
		len += sysfs_emit_at(buf, len, "%s %lld\n", adma_stat_names[i],
				     adma_sum(i));
	return len;
}
static DEVICE_ATTR_ADMIN_RO(all);

static ssize_t copies_show(struct device *dev, struct device_attribute *attr,
			   char *buf)
{
	return sysfs_emit(buf, "%lld\n", adma_sum(ADMA_STAT_COPIES));
}
static DEVICE_ATTR_RO(copies);

static ssize_t errors_show(struct device *dev, struct device_attribute *attr,
			   char *buf)
{
	return sysfs_emit(buf, "%lld\n", adma_sum(ADMA_STAT_ERRORS) +
					 adma_sum(ADMA_STAT_TIMEOUTS));
}
static DEVICE_ATTR_RO(errors);

/* A line for each channel: its name, driver and device, and whether it is used. */
static ssize_t channels_show(struct device *dev, struct device_attribute *attr,
			     char *buf)
{
	static const char *const health[] = {
		[ADMA_UP] = "up", [ADMA_QUARANTINED] = "aside", [ADMA_DISABLED] = "out",
	};
	int len = 0, idx = srcu_read_lock(&adma_srcu);
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];
		struct dma_chan *chan = READ_ONCE(ch->chan);

		len += sysfs_emit_at(buf, len, "%s %s %s %s\n",
				     chan ? dma_chan_name(chan) : "-",
				     ch->ordered ? "ioatdma" : "idxd",
				     dev_name(ch->dev),
				     chan ? health[READ_ONCE(ch->health)] : "gone");
	}
	srcu_read_unlock(&adma_srcu, idx);
	return len;
}
static DEVICE_ATTR_RO(channels);

static struct attribute *adma_stat_attrs[] = {
	&dev_attr_all.attr,
	&dev_attr_channels.attr,
	&dev_attr_copies.attr,
	&dev_attr_errors.attr,
	NULL
};

static const struct attribute_group adma_stat_group = {
	.name = "stats",
	.attrs = adma_stat_attrs,
};

const struct attribute_group *adma_stat_groups[] = {
	&adma_stat_group,
	NULL
};
