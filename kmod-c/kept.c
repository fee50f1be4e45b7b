// SPDX-License-Identifier: GPL-2.0
/*
 * Ranges that stay pinned from one copy to the next: how they are found again,
 * and which of them are retired to make room, by one rule for all reasons. A hit
 * resets a range's age, time and eviction raise it: what was used since eviction
 * last looked has a second chance, and a hit takes no lock to be remembered. A file
 * that needs room walks its own table, as the hand of a clock does.
 */
#include <linux/pkeys.h>
#include <linux/rcupdate.h>
#include <linux/sched/signal.h>
#include <linux/shrinker.h>

#include "compat.h"
#include "range.h"

/* A range that is unused for ADMA_AGES rounds of ADMA_AGE_MS is retired. */
#define ADMA_AGE_MS	1000
#define ADMA_AGES	5

/*
 * Attempts to pin a range whose mapping changes meanwhile; unsharing a page
 * after a fork is such a change.
 */
#define ADMA_TRIES	8

/* How long a copy without room waits for its own file's work items. */
#define ADMA_ROOM_MS	20

/*
 * Set once adma_lru is initialised. list_lru_init_memcg() needs the number of a
 * registered shrinker, so the shrinker can be called before: until then it counts
 * nothing, and one that counts nothing is not asked to scan.
 */
static bool adma_lru_ready;

static void adma_age(struct work_struct *work);
static DECLARE_DELAYED_WORK(adma_ager, adma_age);

static void adma_age_later(void)
{
	queue_delayed_work(adma_workqueue, &adma_ager,
			   msecs_to_jiffies(ADMA_AGE_MS));
}

/*
 * A hit skips get_user_pages() and with it the check of the thread's protection
 * keys: where a process uses keys, nothing is kept.
 */
static bool adma_keeps(const struct adma_mem *mem)
{
#ifdef CONFIG_X86_INTEL_MEMORY_PROTECTION_KEYS
	if (READ_ONCE(mm_pkey_allocation_map(mem->mm)) & ~1)
		return false;
#endif
	return READ_ONCE(mem->keep_pages);
}

/* Returns a kept range with a reference, or NULL. */
static struct adma_range *adma_range_lookup(struct adma_mem *mem, u64 index,
					    bool write)
{
	struct adma_range *range;

	rcu_read_lock();
	range = xa_load(&mem->table, adma_key(index, write));
	if (range && (READ_ONCE(range->dead) ||
		      !kref_get_unless_zero(&range->kref)))
		range = NULL;
	rcu_read_unlock();
	if (range && READ_ONCE(range->age))
		WRITE_ONCE(range->age, 0);
	return range;
}

/* Returns the pinned and mapped range of these bytes, with a reference, or NULL. */
static struct adma_range *adma_range_find(struct adma_mem *mem, u64 addr, size_t len,
					  bool write, unsigned int device)
{
	struct adma_range *range;
	int for_write;

	if (!adma_keeps(mem))
		return NULL;
	/* A range pinned for writing also serves readers. */
	for (for_write = 1; for_write >= write; for_write--) {
		range = adma_range_lookup(mem, adma_range_of(addr), for_write);
		if (range && adma_range_ready(range, addr, len, device))
			return range;
		if (range)
			adma_range_put(range);
	}
	return NULL;
}

/* Returns a range of the table, or a new one, with a reference. */
static struct adma_range *adma_range_of_table(struct adma_mem *mem, u64 index,
					      bool write)
{
	struct adma_range *range;

	if (!adma_keeps(mem))
		return adma_range_new(mem, index, write);
	range = adma_range_lookup(mem, index, write);
	atomic64_inc(range ? &mem->hits : &mem->misses);
	if (range)
		return range;
	range = adma_range_new(mem, index, write);
	if (IS_ERR(range))
		return range;
	/* Complete before it is in the table, where it can be retired at once. */
	kref_get(&range->kref);
	list_lru_add_obj(&adma_lru, &range->lru);
	atomic_inc(&mem->kept);
	if (xa_insert(&mem->table, adma_key(index, write), range,
		      GFP_KERNEL_ACCOUNT)) {
		/* No memory, or another thread has added one: not kept. */
		list_lru_del_obj(&adma_lru, &range->lru);
		atomic_dec(&mem->kept);
		adma_range_put(range);
		return range;
	}
	adma_age_later();
	/* The file may have been closed before the range could be found. */
	if (!READ_ONCE(mem->keep_pages))
		adma_range_retire(range);
	return range;
}

/*
 * Returns whether a range may be retired: unused, for @ages rounds. Otherwise
 * ages it by a round. Caller keeps its memory alive.
 */
static bool adma_range_is_old(struct adma_range *range, unsigned int ages)
{
	u8 age = READ_ONCE(range->age);

	if (kref_read(&range->kref) != 1)
		return false;
	if (age < ADMA_AGES)
		WRITE_ONCE(range->age, age + 1);
	return age >= ages;
}

/* Returns whether too much is kept, in ranges: one may have few pages. */
static bool adma_keeps_too_much(const struct adma_mem *mem)
{
	return atomic_read(&mem->kept) * ADMA_RANGE_PAGES >
	       READ_ONCE(mem->keep_pages);
}

/* Retires a range to make room. Returns its pages, 0 if another thread was first. */
static unsigned int adma_range_evict(struct adma_range *range)
{
	unsigned int pages = bitmap_weight(range->pinned, ADMA_RANGE_PAGES) ?: 1;
	struct adma_mem *mem = range->mem;

	if (!adma_range_retire(range))
		return 0;
	atomic64_inc(&mem->evictions);
	return pages;
}

/*
 * Retires ranges of one file, of about that many pages or, with @excess, while it
 * keeps too many. Goes round its table from where the last call stopped, twice at
 * most: a range that was used since is passed over once. Returns the pages missing.
 */
static unsigned long adma_evict(struct adma_mem *mem, unsigned long pages, bool excess)
{
	unsigned long index = READ_ONCE(mem->hand);
	int visits = 2 * atomic_read(&mem->kept);
	struct adma_range *range;

	rcu_read_lock();
	while (pages && visits-- > 0 && (!excess || adma_keeps_too_much(mem))) {
		range = xa_find(&mem->table, &index, ULONG_MAX, XA_PRESENT);
		if (!range) {
			index = 0;
			range = xa_find(&mem->table, &index, ULONG_MAX, XA_PRESENT);
		}
		if (!range)
			break;
		index++;
		if (adma_range_is_old(range, 1))
			pages -= min_t(unsigned long, pages, adma_range_evict(range));
	}
	rcu_read_unlock();
	WRITE_ONCE(mem->hand, index);
	return pages;
}

/*
 * Waits up to @ms for finished requests, and as long for their ranges to be
 * unpinned. A word comes before the interrupt that ends its request.
 */
void adma_mem_settle(struct adma_mem *mem, unsigned int ms)
{
	adma_channels_poll();
	wait_event_killable_timeout(mem->wait, !atomic_read(&mem->ending),
				    msecs_to_jiffies(ms));
	adma_mem_reap(mem);
	wait_event_killable_timeout(mem->wait, !atomic_read(&mem->leaving),
				    msecs_to_jiffies(ms));
}

/*
 * Evicts ranges: of this file, and at the user's limit of the user's other files.
 * Those are reaped by work of their own, and until then the caller is refused.
 */
static void adma_make_room(struct adma_mem *mem, unsigned int pages, bool of_user)
{
	unsigned long before, left = adma_evict(mem, pages, false);
	struct adma_mem *other;

	if (of_user && left) {
		before = left;
		mutex_lock(&adma_mems_lock);
		list_for_each_entry(other, &adma_mems, all) {
			if (other != mem && other->cred->user == mem->cred->user)
				left = adma_evict(other, left, false);
		}
		mutex_unlock(&adma_mems_lock);
		/* Gives their work items a moment, and does not wait for them. */
		if (left < before)
			schedule_timeout_killable(1);
	}
	adma_mem_settle(mem, ADMA_ROOM_MS);
}

/*
 * Retires ranges of a call that has found no room: what else they hold may be what
 * exceeds the limit. An export's hold it anyway, and would be pinned a second time.
 */
void adma_ranges_refused(struct adma_range **range, unsigned int nr, int why)
{
	if (why != -ENOMEM && why != -EAGAIN)
		return;
	while (nr--) {
		if (range[nr] && !READ_ONCE(range[nr]->exports))
			adma_range_retire(range[nr]);
	}
}

/* Returns the range of bytes that lie within one, with a reference. */
static struct adma_range *adma_range_get(struct adma_mem *mem, u64 addr,
					 size_t len, bool write,
					 unsigned int device,
					 unsigned int *pinned)
{
	unsigned int pages = adma_page_of(addr + len - 1) - adma_page_of(addr) + 1;
	struct adma_range *range;
	bool alone = false;
	int ret, tries;

	range = adma_range_find(mem, addr, len, write, device);
	if (range) {
		atomic64_inc(&mem->hits);
		return range;
	}
	for (tries = 0; tries < ADMA_TRIES; tries++) {
		range = alone ? adma_range_new(mem, adma_range_of(addr), write) :
				adma_range_of_table(mem, adma_range_of(addr), write);
		if (IS_ERR(range))
			return range;
		ret = adma_range_fill(range, addr, len, device, pinned);
		if (!ret)
			return range;
		if ((ret == -ENOMEM || ret == -EAGAIN) && tries < 2) {
			adma_ranges_refused(&range, 1, ret);
			adma_range_put(range);
			adma_make_room(mem, pages, ret == -ENOMEM);
			continue;
		}
		adma_range_put(range);
		if (ret == -EBUSY && !alone)
			alone = true;
		else if (ret != -ESTALE)
			return ERR_PTR(ret);
	}
	return ERR_PTR(-EBUSY);
}

/*
 * Adds the ranges of bytes that are pinned and mapped to @range, with a reference
 * each. Returns false, and adds none, if some are not.
 */
bool adma_ranges_find(struct adma_mem *mem, u64 addr, u64 len, bool write,
		      unsigned int device, struct adma_range **range,
		      unsigned int *nr)
{
	unsigned int found = *nr;
	u64 end = addr + len;
	size_t part;

	for (; addr < end; addr += part) {
		part = min_t(u64, adma_range_rest(addr), end - addr);
		range[found] = adma_range_find(mem, addr, part, write, device);
		if (!range[found]) {
			while (found > *nr)
				adma_range_put(range[--found]);
			return false;
		}
		found++;
	}
	atomic64_add(found - *nr, &mem->hits);
	*nr = found;
	return true;
}

/*
 * Pins and maps bytes of the caller's process. Their ranges, those that are
 * kept or others for the caller alone, are added to @range with a reference
 * each, the pages that are pinned for it to @pinned. May wait for a page
 * without limit. Returns -EBUSY if the mapping keeps changing, or another
 * error; ranges that were added stay.
 */
int adma_ranges_get(struct adma_mem *mem, u64 addr, u64 len, bool write,
		    unsigned int device, struct adma_range **range,
		    unsigned int *nr, unsigned int *pinned)
{
	u64 end = addr + len;
	size_t part;

	for (; addr < end; addr += part) {
		struct adma_range *next;

		part = min_t(u64, adma_range_rest(addr), end - addr);
		next = adma_range_get(mem, addr, part, write, device, pinned);
		if (IS_ERR(next))
			return PTR_ERR(next);
		range[(*nr)++] = next;
	}
	return 0;
}

/* Evicts ranges down to what may be kept. */
void adma_ranges_trim(struct adma_mem *mem)
{
	if (adma_keeps_too_much(mem))
		adma_evict(mem, ULONG_MAX, true);
}

/* Keeps nothing from now on. */
void adma_ranges_retire(struct adma_mem *mem)
{
	struct adma_range *range;
	unsigned long index;

	/* With the lock: a later adma_range_of_table() sees keep_pages 0. */
	xa_lock(&mem->table);
	WRITE_ONCE(mem->keep_pages, 0);
	xa_unlock(&mem->table);
	rcu_read_lock();
	xa_for_each(&mem->table, index, range)
		adma_range_retire(range);
	rcu_read_unlock();
}

/* Pinned memory cannot be moved or swapped: unused ranges are retired by age. */
static void adma_age(struct work_struct *work)
{
	struct adma_range *range;
	struct adma_mem *mem;
	unsigned long index;
	bool kept = false;

	mutex_lock(&adma_mems_lock);
	list_for_each_entry(mem, &adma_mems, all) {
		rcu_read_lock();
		xa_for_each(&mem->table, index, range) {
			if (adma_range_is_old(range, ADMA_AGES))
				adma_range_evict(range);
			else
				kept = true;
		}
		rcu_read_unlock();
		cond_resched();
	}
	mutex_unlock(&adma_mems_lock);
	if (kept)
		adma_age_later();
}

/*
 * The shrinker. Its lists are those of memory control groups: what a container
 * keeps goes when the container has no memory left. It counts pages. This alone
 * walks these lists.
 */

/* Caller holds the lock of the list, which keeps the range alive. */
static enum lru_status adma_shrink_one(struct list_head *item,
				       struct list_lru_one *list,
#ifndef ADMA_HAS_ISOLATE_WITHOUT_LOCK
				       spinlock_t *lock,
#endif
				       void *arg)
{
	struct adma_range *range = container_of(item, struct adma_range, lru);
	struct adma_mem *mem = range->mem;
	unsigned long *pages = arg;

	if (!*pages || !adma_range_is_old(range, 1) ||
	    xa_cmpxchg(&mem->table, adma_key(range->index, range->write), range,
		       NULL, 0) != range)
		return LRU_SKIP;
	/* Like adma_range_evict(), with that lock held. */
	list_lru_isolate(list, item);
	*pages -= min_t(unsigned long, *pages,
			bitmap_weight(range->pinned, ADMA_RANGE_PAGES) ?: 1);
	atomic64_inc(&mem->evictions);
	atomic_dec(&mem->kept);
	adma_range_put(range);
	return LRU_REMOVED;
}

static unsigned long adma_shrink_count(struct shrinker *shrinker,
				       struct shrink_control *sc)
{
	/* Pairs with adma_kept_init(). */
	if (!smp_load_acquire(&adma_lru_ready))
		return 0;
	return list_lru_shrink_count(&adma_lru, sc) * ADMA_RANGE_PAGES;
}

static unsigned long adma_shrink_scan(struct shrinker *shrinker,
				      struct shrink_control *sc)
{
	unsigned long pages = sc->nr_to_scan;

	/* All of the list: ranges that are in use stay where they are. */
	sc->nr_to_scan = ULONG_MAX;
	return list_lru_shrink_walk(&adma_lru, sc, adma_shrink_one, &pages) *
	       ADMA_RANGE_PAGES ?: SHRINK_STOP;
}

static struct shrinker *adma_shrinker;

#ifdef ADMA_HAS_SHRINKER_ALLOC
static int adma_shrinker_register(void)
{
	adma_shrinker = shrinker_alloc(SHRINKER_MEMCG_AWARE |
				       SHRINKER_NUMA_AWARE, "adma");
	if (!adma_shrinker)
		return -ENOMEM;
	adma_shrinker->count_objects = adma_shrink_count;
	adma_shrinker->scan_objects = adma_shrink_scan;
	shrinker_register(adma_shrinker);
	return 0;
}
#else
#define shrinker_free	unregister_shrinker

static int adma_shrinker_register(void)
{
	static struct shrinker only = {
		.count_objects = adma_shrink_count,
		.scan_objects = adma_shrink_scan,
		.seeks = DEFAULT_SEEKS,
		.flags = SHRINKER_MEMCG_AWARE | SHRINKER_NUMA_AWARE,
	};

	adma_shrinker = &only;
	return register_shrinker(adma_shrinker, "adma");
}
#endif

int adma_kept_init(void)
{
	struct adma_range *range;
	int ret;

	adma_range_slab = kmem_cache_create("adma_range",
					    struct_size(range, mapping,
							adma_nr_devices),
					    0, SLAB_ACCOUNT, NULL);
	if (!adma_range_slab)
		return -ENOMEM;
	ret = adma_shrinker_register();
	if (ret)
		goto err_destroy_slab;
	/* The shrinker has its number now. */
	ret = list_lru_init_memcg(&adma_lru, adma_shrinker);
	if (ret)
		goto err_free_shrinker;
	/* Pairs with adma_shrink_count(). */
	smp_store_release(&adma_lru_ready, true);
	return 0;

err_free_shrinker:
	shrinker_free(adma_shrinker);
err_destroy_slab:
	kmem_cache_destroy(adma_range_slab);
	return ret;
}

/* No file is open, and no range is left but for those just being freed. */
void adma_kept_exit(void)
{
	shrinker_free(adma_shrinker);
	cancel_delayed_work_sync(&adma_ager);
	rcu_barrier();
	kmem_cache_destroy(adma_range_slab);
	list_lru_destroy(&adma_lru);
}
