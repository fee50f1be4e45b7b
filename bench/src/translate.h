/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/*
 * A set-associative cache of lines of pages: the tag of a line (whose it is,
 * and where) leads to what is known of it.
 *
 * Only arithmetic and an array. Lookups take no lock; whoever changes a set holds the
 * set's lock, which is the caller's business. A reader may meet a way while it
 * is changed: it compares the tag after it has read the line, and what the line
 * itself says about whose it is decides.
 *
 * Outside of the kernel the includer defines u32, u64, READ_ONCE, WRITE_ONCE,
 * smp_rmb and smp_wmb.
 */
#ifndef ADMA_TRANSLATE_H
#define ADMA_TRANSLATE_H

#ifdef __KERNEL__
#include <linux/compiler.h>
#include <linux/types.h>
#include <asm/barrier.h>
#endif

/* One place in a set. Tag 0: empty. */
struct adma_way {
	u64 tag;
	void *line;
	u32 used;	/* the set's clock when it was last looked up */
	u32 reserved;
};

struct adma_cache {
	struct adma_way *way;	/* sets * ways of them */
	u32 *clock;		/* one for each set */
	u32 sets;		/* a power of two */
	u32 ways;
};

/* The space's number is not 0; 24 bits of it, and 40 of the line's, count. */
static inline u64 adma_tag(u32 space, u64 line)
{
	return (u64)space << 40 | (line & ((1ULL << 40) - 1));
}

/*
 * Neighbouring lines go to neighbouring sets, so that one buffer spreads evenly;
 * equal addresses of different spaces do not meet.
 */
static inline u32 adma_set_of(const struct adma_cache *cache, u64 tag)
{
	u32 space = tag >> 40;

	return ((u32)tag + space * 0x9e3779b1U) & (cache->sets - 1);
}

static inline struct adma_way *adma_set(const struct adma_cache *cache, u32 set)
{
	return &cache->way[(u64)set * cache->ways];
}

/* What the tag leads to, or NULL. A hit makes it the youngest of its set. */
static inline void *adma_cache_find(const struct adma_cache *cache, u64 tag)
{
	u32 set = adma_set_of(cache, tag);
	struct adma_way *way = adma_set(cache, set);
	u32 i, now;

	for (i = 0; i < cache->ways; i++, way++) {
		void *line;

		if (READ_ONCE(way->tag) != tag)
			continue;
		/* Pairs with adma_way_fill(): tag, line, tag again. */
		smp_rmb();
		line = READ_ONCE(way->line);
		/* As above. */
		smp_rmb();
		if (READ_ONCE(way->tag) != tag)
			continue;
		/*
		 * The youngest stays the youngest, and nothing is written. Two
		 * at once may get the same time: they are as young.
		 */
		now = READ_ONCE(cache->clock[set]);
		if (READ_ONCE(way->used) != now) {
			WRITE_ONCE(way->used, now + 1);
			WRITE_ONCE(cache->clock[set], now + 1);
		}
		return line;
	}
	return NULL;
}

static inline void adma_way_fill(struct adma_way *way, u64 tag, void *line)
{
	WRITE_ONCE(way->tag, 0);
	/* Pairs with adma_cache_find(): no tag while the line changes. */
	smp_wmb();
	WRITE_ONCE(way->line, line);
	/* As above. */
	smp_wmb();
	WRITE_ONCE(way->tag, tag);
}

/*
 * Takes the tag in, in place of the same tag, of an empty way, or of the one
 * that was not looked up for longest. Answers what that one led to, or NULL.
 * The set is locked.
 */
static inline void *adma_cache_put(struct adma_cache *cache, u64 tag, void *line)
{
	u32 set = adma_set_of(cache, tag);
	struct adma_way *way = adma_set(cache, set);
	struct adma_way *victim = way;
	u32 now = READ_ONCE(cache->clock[set]) + 1;
	void *before;
	u32 i;

	for (i = 0; i < cache->ways; i++, way++) {
		if (way->tag == tag) {
			victim = way;
			break;
		}
		if (!victim->tag)
			continue;
		if (!way->tag || now - way->used > now - victim->used)
			victim = way;
	}
	before = victim->tag && victim->tag != tag ? victim->line : NULL;
	adma_way_fill(victim, tag, line);
	WRITE_ONCE(cache->clock[set], now);
	WRITE_ONCE(victim->used, now);
	return before;
}

/* Forgets the tag if it leads to this line. The set is locked. */
static inline void adma_cache_drop(struct adma_cache *cache, u64 tag, void *line)
{
	struct adma_way *way = adma_set(cache, adma_set_of(cache, tag));
	u32 i;

	for (i = 0; i < cache->ways; i++, way++) {
		if (way->tag == tag && way->line == line) {
			WRITE_ONCE(way->tag, 0);
			/* Pairs with adma_cache_find(). */
			smp_wmb();
			WRITE_ONCE(way->line, NULL);
		}
	}
}

#endif /* ADMA_TRANSLATE_H */
