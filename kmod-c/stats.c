// SPDX-License-Identifier: GPL-2.0
/* /sys/class/misc/adma/stats: one number per file. */
#include <linux/device.h>
#include <linux/sysfs.h>

#include "adma.h"

static atomic64_t adma_counters[ADMA_STATS];

void adma_count(enum adma_stat what, s64 by)
{
	atomic64_add(by, &adma_counters[what]);
}

void adma_count_for(struct adma_file *file, enum adma_stat what)
{
	atomic64_inc(&file->counts[what - ADMA_STAT_HITS]);
	adma_count(what, 1);
}

struct adma_stat_attribute {
	struct device_attribute attr;
	enum adma_stat what;
};

static ssize_t adma_stat_show(struct device *dev, struct device_attribute *attr,
			      char *buf)
{
	struct adma_stat_attribute *stat =
		container_of(attr, struct adma_stat_attribute, attr);

	return sysfs_emit(buf, "%lld\n",
			  atomic64_read(&adma_counters[stat->what]));
}

#define ADMA_STAT_ATTR(_name, _what)					\
	static struct adma_stat_attribute adma_stat_##_name = {		\
		.attr = __ATTR(_name, 0444, adma_stat_show, NULL),	\
		.what = _what,						\
	}

ADMA_STAT_ATTR(copies, ADMA_STAT_COPIES);
ADMA_STAT_ATTR(bytes, ADMA_STAT_BYTES);
ADMA_STAT_ATTR(cpu_bytes, ADMA_STAT_CPU_BYTES);
ADMA_STAT_ATTR(descriptors, ADMA_STAT_DESCRIPTORS);
ADMA_STAT_ATTR(pins, ADMA_STAT_PINS);
ADMA_STAT_ATTR(pinned_pages, ADMA_STAT_PINNED_PAGES);
ADMA_STAT_ATTR(errors, ADMA_STAT_ERRORS);
ADMA_STAT_ATTR(timeouts, ADMA_STAT_TIMEOUTS);
ADMA_STAT_ATTR(ring_full, ADMA_STAT_RING_FULL);
ADMA_STAT_ATTR(quarantined, ADMA_STAT_QUARANTINED);
ADMA_STAT_ATTR(posts, ADMA_STAT_POSTS);
ADMA_STAT_ATTR(post_bytes, ADMA_STAT_POST_BYTES);
ADMA_STAT_ATTR(hits, ADMA_STAT_HITS);
ADMA_STAT_ATTR(cold_misses, ADMA_STAT_COLD_MISSES);
ADMA_STAT_ATTR(other_misses, ADMA_STAT_OTHER_MISSES);
ADMA_STAT_ATTR(evictions, ADMA_STAT_EVICTIONS);
ADMA_STAT_ATTR(invalidations, ADMA_STAT_INVALIDATIONS);

static struct attribute *adma_stat_attrs[] = {
	&adma_stat_copies.attr.attr,
	&adma_stat_bytes.attr.attr,
	&adma_stat_cpu_bytes.attr.attr,
	&adma_stat_descriptors.attr.attr,
	&adma_stat_pins.attr.attr,
	&adma_stat_pinned_pages.attr.attr,
	&adma_stat_errors.attr.attr,
	&adma_stat_timeouts.attr.attr,
	&adma_stat_ring_full.attr.attr,
	&adma_stat_quarantined.attr.attr,
	&adma_stat_posts.attr.attr,
	&adma_stat_post_bytes.attr.attr,
	&adma_stat_hits.attr.attr,
	&adma_stat_cold_misses.attr.attr,
	&adma_stat_other_misses.attr.attr,
	&adma_stat_evictions.attr.attr,
	&adma_stat_invalidations.attr.attr,
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
