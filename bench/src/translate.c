/* The papers' translation cache, for one thread. */
#include <stdint.h>
#include <stdlib.h>

typedef uint32_t u32;
typedef uint64_t u64;
#define READ_ONCE(x)		(x)
#define WRITE_ONCE(x, value)	((x) = (value))
#define smp_rmb()		do { } while (0)
#define smp_wmb()		do { } while (0)

#include "translate.h"

struct adma_cache *study_new(u32 sets, u32 ways)
{
	struct adma_cache *cache = calloc(1, sizeof(*cache));

	if (!cache)
		abort();
	cache->sets = sets;
	cache->ways = ways;
	cache->way = calloc((size_t)sets * ways, sizeof(*cache->way));
	cache->clock = calloc(sets, sizeof(*cache->clock));
	if (!cache->way || !cache->clock)
		abort();
	return cache;
}

void study_free(struct adma_cache *cache)
{
	free(cache->way);
	free(cache->clock);
	free(cache);
}

/* 1: a hit. 0: a miss, and the line is there from now on. */
int study_touch(struct adma_cache *cache, u32 space, u64 line)
{
	u64 tag = adma_tag(space, line);

	if (adma_cache_find(cache, tag))
		return 1;
	adma_cache_put(cache, tag, cache);
	return 0;
}

/* The line's mapping has changed. */
void study_drop(struct adma_cache *cache, u32 space, u64 line)
{
	adma_cache_drop(cache, adma_tag(space, line), cache);
}

u32 study_set_of(struct adma_cache *cache, u32 space, u64 line)
{
	return adma_set_of(cache, adma_tag(space, line));
}
