// SPDX-License-Identifier: GPL-2.0
/*
 * Ranges that stay pinned from one copy to the next: how they are found again,
 * and which of them go to make room. A hit makes a range young, time and eviction
 * make it older: what was used since eviction last looked has a second chance,
 * and a hit takes no lock to be remembered.
 */
#include <linux/list_lru.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/shrinker.h>

#include "adma.h"
#include "compat.h"

/* What was not used for so many rounds of so long is let go. */
#define ADMA_AGE_MS	1000
#define ADMA_AGES	5

struct kmem_cache *adma_range_slab;
struct list_lru adma_lru;	/* all kept ranges, by memory control group */

static void adma_age(struct work_struct *work);
static DECLARE_DELAYED_WORK(adma_ager, adma_age);

static void adma_age_later(void)
{
	queue_delayed_work(adma_workqueue, &adma_ager,
			   msecs_to_jiffies(ADMA_AGE_MS));
}

/* Out of the table, by whoever comes first. */
static bool adma_range_take(struct adma_range *range)
{
	return xa_cmpxchg(&range->file->table, range->index, range, NULL, 0) ==
	       range;
}

static void adma_range_drop(struct adma_range *range)
{
	list_lru_del_obj(&adma_lru, &range->lru);
	atomic_dec(&range->file->kept);
	adma_range_put(range);
}

/* Nobody finds it any more; its users go on. */
bool adma_range_forget(struct adma_range *range)
{
	bool first = adma_range_take(range);

	if (first)
		adma_range_drop(range);
	return first;
}

/*
 * The range of that index, for reading or writing, with a hold on it. Where
 * nothing is kept, one that is pinned for long only if that is asked for.
 */
struct adma_range *adma_range_get(struct adma_file *file, u64 index, bool write,
				  bool longterm)
{
	struct adma_range *range;

	if (!READ_ONCE(file->keep_pages))
		return adma_range_new(file, index, write, longterm);
	rcu_read_lock();
	range = xa_load(&file->table, index);
	if (range && (READ_ONCE(range->dead) ||
		      !kref_get_unless_zero(&range->kref)))
		range = NULL;
	rcu_read_unlock();
	if (range && write && !range->write) {
		adma_range_forget(range);
		adma_range_put(range);
		range = NULL;
	}
	adma_count_for(file, range ? ADMA_STAT_HITS : ADMA_STAT_MISSES);
	if (range) {
		if (READ_ONCE(range->age))
			WRITE_ONCE(range->age, 0);
		return range;
	}
	range = adma_range_new(file, index, write, true);
	if (IS_ERR(range))
		return range;
	/* All before it is in the table: whoever takes it out undoes it. */
	kref_get(&range->kref);
	list_lru_add_obj(&adma_lru, &range->lru);
	atomic_inc(&file->kept);
	if (xa_insert(&file->table, index, range, GFP_KERNEL_ACCOUNT)) {
		/* No memory; or somebody was quicker, and this is for us alone. */
		adma_range_drop(range);
		return range;
	}
	adma_age_later();
	/* Before it was to be found the file may have been closed. */
	if (!READ_ONCE(file->keep_pages))
		adma_range_forget(range);
	return range;
}

/*
 * Whether it may go: nobody uses it, and nobody has for @ages rounds. Otherwise
 * it is a round older. The caller sees to it that its memory stays.
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

/*
 * Lets go of about @pages pages that nobody uses and nobody has used for @ages
 * rounds: the coldest first, as far as the hand of a clock tells.
 */
static unsigned long adma_ranges_evict(struct adma_file *file,
				       unsigned long pages, unsigned int ages)
{
	bool ages_only = ages == ADMA_AGES;
	/* To the end, all round, and once more for those that were young. */
	int passes = ages_only ? 1 : 3;
	unsigned long freed = 0, index;
	struct adma_range *range;

	while (freed < pages && passes--) {
		rcu_read_lock();
		xa_for_each_start(&file->table, index, range,
				  ages_only ? 0 : READ_ONCE(file->hand)) {
			if (freed >= pages)
				break;
			if (!adma_range_is_old(range, ages) ||
			    !adma_range_forget(range))
				continue;
			adma_count_for(file, ADMA_STAT_EVICTIONS);
			freed += bitmap_weight(range->pinned,
					       ADMA_RANGE_PAGES) ?: 1;
		}
		rcu_read_unlock();
		if (!ages_only)
			WRITE_ONCE(file->hand, freed < pages ? 0 : index);
	}
	return freed;
}

/* Of the files of one user, or of all. */
static unsigned long adma_files_evict(const struct user_struct *user,
				      unsigned long pages, unsigned int ages)
{
	unsigned long freed = 0;
	struct adma_file *file;

	mutex_lock(&adma_files_lock);
	list_for_each_entry(file, &adma_files, files) {
		if (!user || file->cred->user == user)
			freed += adma_ranges_evict(file, pages - freed, ages);
		if (freed >= pages)
			break;
		cond_resched();
	}
	mutex_unlock(&adma_files_lock);
	return freed;
}

/*
 * For somebody who was refused pages, before he asks again. What is kept for
 * other files is in his way when the limit is the user's; they let go of it in
 * their own time, and until then he is refused.
 */
void adma_ranges_make_room(struct adma_file *file, unsigned int pages,
			   bool of_user)
{
	unsigned long freed = adma_ranges_evict(file, pages, 1);

	/* A moment for their workers; it is not waited for what they do. */
	if (of_user && freed < pages &&
	    adma_files_evict(file->cred->user, pages - freed, 1))
		schedule_timeout_killable(1);
	adma_file_catch_up(file, 0);
}

/* Down to the mark, in ranges: one may have few pages, or none yet. */
void adma_ranges_trim(struct adma_file *file)
{
	while (atomic_read(&file->kept) * ADMA_RANGE_PAGES >
	       READ_ONCE(file->keep_pages) && adma_ranges_evict(file, 1, 1))
		;
}

/* Nothing is kept from now on. What somebody uses goes when he is done. */
void adma_ranges_drop(struct adma_file *file)
{
	struct adma_range *range;
	unsigned long index;

	/* With the lock: who adds one after that sees it, see adma_range_get(). */
	xa_lock(&file->table);
	WRITE_ONCE(file->keep_pages, 0);
	xa_unlock(&file->table);
	rcu_read_lock();
	xa_for_each(&file->table, index, range)
		adma_range_forget(range);
	rcu_read_unlock();
}

/*
 * What was not used for some seconds goes by itself: memory that is pinned
 * cannot be moved, swapped or given to somebody else.
 */
static void adma_age(struct work_struct *work)
{
	adma_files_evict(NULL, ULONG_MAX, ADMA_AGES);
	if (list_lru_count(&adma_lru))
		adma_age_later();
}

/*
 * When memory is short. The lists are those of memory control groups: what a
 * container keeps goes when the container has no memory left. Kernels count
 * and scan pages, of which a range has about so many.
 */

static unsigned long adma_shrink_count(struct shrinker *shrinker,
				       struct shrink_control *sc)
{
	if (list_empty(&adma_files))
		return 0;	/* at first the lists are not there yet */
	return list_lru_shrink_count(&adma_lru, sc) * ADMA_RANGE_PAGES;
}

/* The lock of the list is held. */
static enum lru_status adma_shrink_one(struct list_head *item,
				       struct list_lru_one *list,
#ifndef ADMA_HAS_ISOLATE_WITHOUT_LOCK
				       spinlock_t *lock,
#endif
				       void *arg)
{
	struct adma_range *range = container_of(item, struct adma_range, lru);

	if (!adma_range_is_old(range, 1) || !adma_range_take(range))
		return LRU_ROTATE;
	list_lru_isolate(list, item);
	adma_count_for(range->file, ADMA_STAT_EVICTIONS);
	atomic_dec(&range->file->kept);
	adma_range_put(range);
	return LRU_REMOVED;
}

static unsigned long adma_shrink_scan(struct shrinker *shrinker,
				      struct shrink_control *sc)
{
	sc->nr_to_scan = DIV_ROUND_UP(sc->nr_to_scan, ADMA_RANGE_PAGES);
	return list_lru_shrink_walk(&adma_lru, sc, adma_shrink_one, NULL) *
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
	/* It has a number from now on, which the lists need. */
	ret = list_lru_init_memcg(&adma_lru, adma_shrinker);
	if (ret)
		goto err_free_shrinker;
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
