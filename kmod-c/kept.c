// SPDX-License-Identifier: GPL-2.0
/*
 * Ranges that stay pinned from one copy to the next: how they are found again,
 * and which of them go to make room.
 *
 * Each file has a table of them, which is read without a lock. A hit makes a
 * range young, time and eviction make it older: what was used since eviction
 * last looked has a second chance, and a hit takes no lock to be remembered.
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

static LIST_HEAD(adma_files);
static DEFINE_MUTEX(adma_files_lock);

static struct kmem_cache *adma_range_slab;
static struct list_lru adma_lru;	/* all kept ranges */

static void adma_age(struct work_struct *work);
static DECLARE_DELAYED_WORK(adma_ager, adma_age);

static void adma_age_later(void)
{
	queue_delayed_work(adma_workqueue, &adma_ager,
			   msecs_to_jiffies(ADMA_AGE_MS));
}

/*
 * In the table and out of it
 */

/*
 * Pages of it were pinned, or it is new. Without any it counts as one: its own
 * memory must not be had for nothing, again and again, where pins are refused.
 */
void adma_range_grown(struct adma_range *range)
{
	unsigned int pinned = bitmap_weight(range->pinned, ADMA_RANGE_PAGES);
	unsigned int pages = max(pinned, 1U);
	struct adma_file *file = range->file;

	spin_lock(&file->lock);
	if (!range->unlisted) {
		file->kept += pages - range->counted;
		range->counted = pages;
	}
	spin_unlock(&file->lock);
}

/* Out of all lists, by who has taken it out of the table; its users go on. */
static void adma_range_unlist(struct adma_range *range, enum adma_stat why)
{
	struct adma_file *file = range->file;

	list_lru_del_obj(&adma_lru, &range->lru);
	spin_lock(&file->lock);
	file->kept -= range->counted;
	range->unlisted = true;
	spin_unlock(&file->lock);
	if (why != ADMA_STATS)
		adma_count_for(file, why);
	adma_range_put(range);
}

static bool adma_range_take(struct adma_range *range)
{
	return xa_cmpxchg(&range->file->table, range->index, range, NULL, 0) ==
	       range;
}

/* Out of the table, by whoever comes first; it is counted. */
bool adma_range_forget(struct adma_range *range, enum adma_stat why)
{
	bool first = adma_range_take(range);

	if (first)
		adma_range_unlist(range, why);
	return first;
}

/* The file's range of that index, with a hold on it, or NULL. */
static struct adma_range *adma_range_find(struct adma_file *file, u64 index,
					  bool write)
{
	struct adma_range *range;

	rcu_read_lock();
	range = xa_load(&file->table, index);
	if (range && !kref_get_unless_zero(&range->kref))
		range = NULL;
	rcu_read_unlock();
	if (!range || ((range->write || !write) && !READ_ONCE(range->dead)))
		return range;
	/* Another kind is wanted, or it is dead. */
	adma_range_forget(range, ADMA_STATS);
	adma_range_put(range);
	return NULL;
}

/*
 * The range of that index, for reading or writing, with a hold on it. One of
 * another kind when keeping is switched off or cannot be had.
 */
struct adma_range *adma_range_get(struct adma_file *file, u64 index, bool write,
				  enum adma_kind otherwise)
{
	struct adma_range *range;

	if (!READ_ONCE(file->keep_pages))
		return adma_range_new(file, index, write, otherwise);
	range = adma_range_find(file, index, write);
	adma_count_for(file, range ? ADMA_STAT_HITS : ADMA_STAT_MISSES);
	if (range) {
		if (READ_ONCE(range->age))
			WRITE_ONCE(range->age, 0);
		return range;
	}
	range = adma_range_new(file, index, write, ADMA_KEPT);
	if (IS_ERR(range))
		return range;
	/* Before it is in the table: whoever takes it out there finds it here. */
	kref_get(&range->kref);
	adma_range_grown(range);
	list_lru_add_obj(&adma_lru, &range->lru);
	if (xa_insert(&file->table, index, range, GFP_KERNEL_ACCOUNT)) {
		/* No memory; or somebody was quicker, and this is for us alone. */
		adma_range_unlist(range, ADMA_STATS);
		range->kind = otherwise;
		return range;
	}
	adma_age_later();
	/* Before it was to be found it may have died, or the file been closed. */
	if (READ_ONCE(range->dead))
		adma_range_forget(range, ADMA_STAT_INVALIDATIONS);
	else if (!READ_ONCE(file->keep_pages))
		adma_range_forget(range, ADMA_STATS);
	return range;
}

/*
 * Making room
 */

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
 * rounds, from *@hand on, which stays where it has come to.
 */
static unsigned long adma_ranges_evict(struct adma_file *file,
				       unsigned long pages, unsigned int ages,
				       unsigned long *hand)
{
	unsigned long freed = 0, index;
	struct adma_range *range;

	rcu_read_lock();
	xa_for_each_start(&file->table, index, range, READ_ONCE(*hand)) {
		unsigned int counted = READ_ONCE(range->counted);

		if (freed >= pages)
			break;
		if (adma_range_is_old(range, ages) &&
		    adma_range_forget(range, ADMA_STAT_EVICTIONS))
			freed += counted;
	}
	rcu_read_unlock();
	WRITE_ONCE(*hand, freed < pages ? 0 : index);
	return freed;
}

/* The coldest first, as far as the hand of a clock tells. */
static unsigned long adma_ranges_free(struct adma_file *file,
				      unsigned long pages)
{
	unsigned long freed = 0;
	int pass;

	/* To the end, all round, and once more for those that were young. */
	for (pass = 0; pass < 3 && freed < pages; pass++)
		freed += adma_ranges_evict(file, pages - freed, 1, &file->hand);
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
	unsigned long own = adma_ranges_free(file, pages), freed = own;
	struct adma_file *other;

	if (of_user && freed < pages) {
		mutex_lock(&adma_files_lock);
		list_for_each_entry(other, &adma_files, files) {
			if (freed >= pages)
				break;
			if (other->user == file->user)
				freed += adma_ranges_free(other, pages - freed);
		}
		mutex_unlock(&adma_files_lock);
		/* A moment for their workers; it is not waited for what they do. */
		if (freed > own)
			schedule_timeout_killable(1);
	}
	adma_file_catch_up(file);
}

/* Down to the high-water mark. */
void adma_ranges_trim(struct adma_file *file)
{
	unsigned long kept = READ_ONCE(file->kept);
	unsigned long keep = READ_ONCE(file->keep_pages);

	if (kept > keep)
		adma_ranges_free(file, kept - keep);
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
		adma_range_forget(range, ADMA_STATS);
	rcu_read_unlock();
}

/*
 * Age: what was not used for some seconds goes by itself. Memory that is pinned
 * cannot be moved, swapped or given to somebody else.
 */
static void adma_age(struct work_struct *work)
{
	struct adma_file *file;
	bool any = false;

	mutex_lock(&adma_files_lock);
	list_for_each_entry(file, &adma_files, files) {
		unsigned long hand = 0;

		adma_ranges_evict(file, ULONG_MAX, ADMA_AGES, &hand);
		any |= !xa_empty(&file->table);
		cond_resched();
	}
	mutex_unlock(&adma_files_lock);
	if (any)
		adma_age_later();
}

/*
 * When memory is short. The lists are those of memory control groups: what a
 * container keeps goes when the container has no memory left.
 */

/* Who frees a range counts about so many pages for it. */
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
				       void *dispose)
{
	struct adma_range *range = container_of(item, struct adma_range, lru);

	if (!adma_range_is_old(range, 1) || !adma_range_take(range))
		return LRU_ROTATE;
	list_lru_isolate_move(list, item, dispose);
	return LRU_REMOVED;
}

static unsigned long adma_shrink_scan(struct shrinker *shrinker,
				      struct shrink_control *sc)
{
	struct adma_range *range, *next;
	unsigned long freed = 0;
	LIST_HEAD(dispose);

	if (list_empty(&adma_files))
		return SHRINK_STOP;
	sc->nr_to_scan = DIV_ROUND_UP(sc->nr_to_scan, ADMA_RANGE_PAGES);
	list_lru_shrink_walk(&adma_lru, sc, adma_shrink_one, &dispose);
	list_for_each_entry_safe(range, next, &dispose, lru) {
		list_del_init(&range->lru);
		freed += READ_ONCE(range->counted);
		adma_range_unlist(range, ADMA_STAT_EVICTIONS);
	}
	return freed ?: SHRINK_STOP;
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

/*
 * Beginning and end
 */

/* Memory for a range; its list is that of the caller's control group. */
struct adma_range *adma_range_alloc(void)
{
	return kmem_cache_alloc_lru(adma_range_slab, &adma_lru,
				    GFP_KERNEL_ACCOUNT | __GFP_ZERO);
}

static void adma_range_free_rcu(struct rcu_head *rcu)
{
	kmem_cache_free(adma_range_slab,
			container_of(rcu, struct adma_range, rcu));
}

/* Somebody may just look at it. */
void adma_range_free(struct adma_range *range)
{
	call_rcu(&range->rcu, adma_range_free_rcu);
}

/* All open files; before their other parts are used, and after. */
void adma_kept_open(struct adma_file *file, bool open)
{
	mutex_lock(&adma_files_lock);
	if (open)
		list_add_tail(&file->files, &adma_files);
	else
		list_del(&file->files);
	mutex_unlock(&adma_files_lock);
}

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

/* Nobody can ask for room any more. The ranges are still there. */
void adma_kept_stop(void)
{
	shrinker_free(adma_shrinker);
	cancel_delayed_work_sync(&adma_ager);
}

/* No range is left, but for those that are just being freed. */
void adma_kept_exit(void)
{
	rcu_barrier();
	kmem_cache_destroy(adma_range_slab);
	list_lru_destroy(&adma_lru);
}
