/* SPDX-License-Identifier: GPL-2.0 */
#ifndef ADMA_STATS_H
#define ADMA_STATS_H

#include <linux/percpu.h>
#include <linux/types.h>

/* In the order of adma_stat_names[]. */
enum adma_stat {
	ADMA_STAT_COPIES,	/* pieces taken */
	ADMA_STAT_BYTES,	/* of them */
	ADMA_STAT_DESCRIPTORS,	/* transfers handed to channels */
	ADMA_STAT_PINS,		/* pages pinned since loading */
	ADMA_STAT_PINNED_PAGES,	/* pages pinned now */
	ADMA_STAT_ERRORS,	/* transfers that failed */
	ADMA_STAT_TIMEOUTS,	/* parts of requests silent for too long */
	ADMA_STAT_RING_FULL,	/* a channel refused a transfer */
	ADMA_STAT_QUARANTINED,	/* channels put aside after repeated errors */
	ADMA_STAT_EXPORTS,	/* buffers exported */
	ADMA_STAT_EXPORT_BYTES,	/* of ADMA_STAT_BYTES, between processes */
	ADMA_STAT_HITS,		/* ranges found pinned */
	ADMA_STAT_MISSES,	/* ranges not found pinned */
	ADMA_STAT_EVICTIONS,	/* ranges retired to make room */
	ADMA_STAT_INVALIDATIONS,	/* ranges whose mapping has changed */
	ADMA_STATS,
};

extern const struct attribute_group *adma_stat_groups[];

DECLARE_PER_CPU(s64[ADMA_STATS], adma_counters);

static inline void adma_count(enum adma_stat what, s64 by)
{
	this_cpu_add(adma_counters[what], by);
}

#endif /* ADMA_STATS_H */
