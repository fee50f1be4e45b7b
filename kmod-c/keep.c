// SPDX-License-Identifier: GPL-2.0
/*
 * Lines that stay from one copy to the next: how they are found again, and
 * which of them go to make room.
 *
 * Each file has a table of its kept lines, which is read without a lock.
 * Eviction gives a line that was used since it last looked a second chance, so
 * that a hit need not take a lock to be remembered.
 */
#include <linux/list_lru.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>
#include <linux/shrinker.h>
#include <linux/slab.h>

#include "adma.h"
#include "compat.h"

/* What was not used for so many rounds of so long is let go. */
#define ADMA_AGE_MS	1000
#define ADMA_AGES	5

static LIST_HEAD(adma_files);
static DEFINE_MUTEX(adma_files_lock);

static struct kmem_cache *adma_line_slab;
static struct list_lru adma_lru;	/* all kept lines */
static bool adma_lru_ready;

static void adma_age_later(void);

/*
 * In the table and out of it
 */

/* Pages of it were pinned. */
void adma_line_grown(struct adma_line *line, unsigned int pages)
{
	struct adma_file *file = line->file;

	spin_lock(&file->lock);
	if (!list_empty(&line->young)) {
		line->counted += pages;
		file->kept += pages;
	}
	spin_unlock(&file->lock);
}

/* The lock is held. */
static void adma_line_unlist(struct adma_line *line)
{
	lockdep_assert_held(&line->file->lock);
	list_del_init(&line->young);
	adma_lru_del(&adma_lru, &line->lru);
	line->file->kept -= line->counted;
	line->counted = 0;
}

/* Out of the table, by whoever comes first. Its users go on. */
bool adma_line_forget(struct adma_line *line)
{
	struct adma_file *file = line->file;

	if (xa_cmpxchg(&file->table, line->number, line, NULL, 0) != line)
		return false;
	spin_lock(&file->lock);
	adma_line_unlist(line);
	spin_unlock(&file->lock);
	adma_line_put(line);
	return true;
}

/*
 * Finding a line
 */

/* The file's line of that number, with a hold on it, or NULL. */
static struct adma_line *adma_line_find(struct adma_file *file, u64 number)
{
	struct adma_line *line;

	rcu_read_lock();
	line = xa_load(&file->table, number);
	if (line && !kref_get_unless_zero(&line->kref))
		line = NULL;
	rcu_read_unlock();
	return line;
}

static bool adma_line_serves(struct adma_line *line, bool write)
{
	return (line->write || !write) && !READ_ONCE(line->dead);
}

/* The table's lock is held. */
static struct adma_line *adma_line_add(struct adma_file *file, u64 number,
				       bool write)
{
	struct adma_line *line = adma_line_find(file, number);
	void *old;

	if (line && adma_line_serves(line, write))
		return line;
	if (line) {
		adma_line_forget(line);
		adma_line_put(line);
	}
	line = adma_line_new(file, number, write, ADMA_KEPT);
	if (IS_ERR(line))
		return line;
	kref_get(&line->kref);
	/* Listed first: who takes it out of the table also unlists it. */
	spin_lock(&file->lock);
	list_add_tail(&line->young, &file->lines);
	adma_lru_add(&adma_lru, &line->lru);
	spin_unlock(&file->lock);
	adma_age_later();
	old = xa_store(&file->table, number, line, GFP_KERNEL_ACCOUNT);
	if (xa_is_err(old)) {
		spin_lock(&file->lock);
		adma_line_unlist(line);
		spin_unlock(&file->lock);
		adma_line_put(line);
		adma_line_put(line);
		return ERR_PTR(xa_err(old));
	}
	/* It may have died before it was to be found. */
	if (READ_ONCE(line->dead) && adma_line_forget(line))
		adma_count_for(file, ADMA_STAT_INVALIDATIONS);
	return line;
}

/*
 * The line of that number, for reading or writing, with a hold on it. One that
 * is not kept when keeping is switched off or cannot be had.
 */
struct adma_line *adma_line_get(struct adma_file *file, u64 number, bool write)
{
	struct adma_line *line;

	if (!READ_ONCE(file->keep_pages))
		return adma_line_new(file, number, write, ADMA_PLAIN);
	line = adma_line_find(file, number);
	if (line && adma_line_serves(line, write)) {
		adma_count_for(file, ADMA_STAT_HITS);
		if (!READ_ONCE(line->used))
			WRITE_ONCE(line->used, true);
		return line;
	}
	if (line)
		adma_line_put(line);
	adma_count_for(file, ADMA_STAT_MISSES);
	mutex_lock(&file->table_lock);
	line = adma_line_add(file, number, write);
	mutex_unlock(&file->table_lock);
	if (IS_ERR(line))
		return adma_line_new(file, number, write, ADMA_PLAIN);
	return line;
}

/* One that may stay pinned for as long as its user likes. */
struct adma_line *adma_line_get_lasting(struct adma_file *file, u64 number,
					bool write)
{
	struct adma_line *line = adma_line_get(file, number, write);

	if (IS_ERR(line) || line->kind == ADMA_KEPT)
		return line;
	adma_line_put(line);
	return adma_line_new(file, number, write, ADMA_LASTING);
}

/*
 * Making room
 */

/* The one that was not used for longest and is not in use, with a hold on it. */
static struct adma_line *adma_line_coldest(struct adma_file *file,
					   unsigned int *pages)
{
	struct adma_line *line, *next;
	int pass;

	spin_lock(&file->lock);
	for (pass = 0; pass < 2; pass++) {
		list_for_each_entry_safe(line, next, &file->lines, young) {
			if (kref_read(&line->kref) != 1)
				continue;
			if (READ_ONCE(line->used)) {
				WRITE_ONCE(line->used, false);
				list_move_tail(&line->young, &file->lines);
				continue;
			}
			/* The table's hold cannot go while it is listed. */
			kref_get(&line->kref);
			*pages = line->counted;
			spin_unlock(&file->lock);
			return line;
		}
	}
	spin_unlock(&file->lock);
	return NULL;
}

/* Lets go of about @pages pages that nobody uses, the coldest first. */
static unsigned long adma_lines_evict(struct adma_file *file,
				      unsigned long pages)
{
	unsigned long freed = 0;

	while (freed < pages) {
		unsigned int more;
		struct adma_line *line = adma_line_coldest(file, &more);
		bool forgotten;

		if (!line)
			break;
		forgotten = adma_line_forget(line);
		if (forgotten) {
			freed += more;
			adma_count_for(file, ADMA_STAT_EVICTIONS);
		}
		adma_line_put(line);
		if (!forgotten)
			break;	/* somebody else is about to */
	}
	return freed;
}

/*
 * For somebody who was refused pages, before he asks again. What is kept for
 * other files is in his way when the limit is the user's; they let go of it in
 * their own time, and until then he is refused.
 */
void adma_lines_make_room(struct adma_file *file, unsigned int pages,
			  bool of_user)
{
	unsigned long freed = adma_lines_evict(file, pages);
	struct adma_file *other;

	if (of_user && freed < pages) {
		mutex_lock(&adma_files_lock);
		list_for_each_entry(other, &adma_files, files) {
			if (other->cred->user != file->cred->user)
				continue;
			freed += adma_lines_evict(other, pages - freed);
			if (freed >= pages)
				break;
		}
		mutex_unlock(&adma_files_lock);
	}
	adma_file_settle(file);
}

/* Down to the high-water mark. */
void adma_lines_trim(struct adma_file *file)
{
	unsigned long kept, keep = READ_ONCE(file->keep_pages);

	spin_lock(&file->lock);
	kept = file->kept;
	spin_unlock(&file->lock);
	if (kept > keep)
		adma_lines_evict(file, kept - keep);
}

/*
 * The file is closed. Somebody may still post through a door: a line that is
 * being added is listed before it is in the table, where it would be left.
 */
void adma_lines_drop(struct adma_file *file)
{
	struct adma_line *line;

	mutex_lock(&file->table_lock);
	spin_lock(&file->lock);
	while ((line = list_first_entry_or_null(&file->lines, struct adma_line,
						young))) {
		/* The table's hold cannot go while it is listed. */
		kref_get(&line->kref);
		adma_line_unlist(line);
		spin_unlock(&file->lock);
		adma_line_forget(line);
		adma_line_put(line);
		spin_lock(&file->lock);
	}
	spin_unlock(&file->lock);
	mutex_unlock(&file->table_lock);
	/* Here and not in its work, which may be queued behind those of others. */
	if (cancel_work_sync(&file->reap))
		adma_file_put(file);	/* not the last: the caller has one */
	adma_lines_reap(file);
}

/*
 * Lines that are to go are marked, for two may find the same one at once, and
 * collected; with a hold on each.
 */
static bool adma_line_doom(struct adma_line *line, struct list_head *doomed)
{
	if (xchg(&line->doomed, true))
		return false;
	/* The table's hold cannot go while it is listed. */
	kref_get(&line->kref);
	list_add_tail(&line->doom, doomed);
	return true;
}

static unsigned long adma_lines_execute(struct list_head *doomed)
{
	struct adma_line *line, *next;
	unsigned long freed = 0;

	list_for_each_entry_safe(line, next, doomed, doom) {
		unsigned int pages = READ_ONCE(line->counted);

		if (adma_line_forget(line)) {
			freed += pages;
			adma_count_for(line->file, ADMA_STAT_EVICTIONS);
		}
		adma_line_put(line);
	}
	return freed;
}

/*
 * Age: what was not used for some seconds goes by itself. Memory that is pinned
 * cannot be moved, swapped or given to somebody else.
 */

static void adma_age(struct work_struct *work);
static DECLARE_DELAYED_WORK(adma_ager, adma_age);

static void adma_age_later(void)
{
	queue_delayed_work(system_unbound_wq, &adma_ager,
			   msecs_to_jiffies(ADMA_AGE_MS));
}

/* Answers whether any lines are left. */
static bool adma_lines_age(struct adma_file *file)
{
	struct adma_line *line;
	LIST_HEAD(doomed);
	bool any;

	spin_lock(&file->lock);
	list_for_each_entry(line, &file->lines, young) {
		if (READ_ONCE(line->used) || kref_read(&line->kref) != 1) {
			WRITE_ONCE(line->used, false);
			line->age = 0;
		} else if (++line->age >= ADMA_AGES) {
			adma_line_doom(line, &doomed);
		}
	}
	any = !list_empty(&file->lines);
	spin_unlock(&file->lock);
	adma_lines_execute(&doomed);
	return any;
}

static void adma_age(struct work_struct *work)
{
	struct adma_file *file;
	bool any = false;

	mutex_lock(&adma_files_lock);
	list_for_each_entry(file, &adma_files, files)
		any |= adma_lines_age(file);
	mutex_unlock(&adma_files_lock);
	if (any)
		adma_age_later();
}

/*
 * When memory is short. The lists are those of memory control groups: what a
 * container keeps goes when the container has no memory left.
 */

/* Who frees a line counts about so many pages for it. */
static unsigned long adma_shrink_count(struct shrinker *shrinker,
				       struct shrink_control *sc)
{
	if (!READ_ONCE(adma_lru_ready))
		return 0;
	return list_lru_shrink_count(&adma_lru, sc) * ADMA_LINE_PAGES;
}

/* The lock of the list is held. */
static enum lru_status adma_isolate(struct list_head *item,
				    struct list_lru_one *list,
#ifndef ADMA_HAS_ISOLATE_WITHOUT_LOCK
				    spinlock_t *lock,
#endif
				    void *doomed)
{
	struct adma_line *line = container_of(item, struct adma_line, lru);

	if (kref_read(&line->kref) != 1)
		return LRU_ROTATE;
	if (READ_ONCE(line->used)) {
		WRITE_ONCE(line->used, false);
		return LRU_ROTATE;
	}
	if (!adma_line_doom(line, doomed))
		return LRU_SKIP;
	list_lru_isolate(list, item);
	return LRU_REMOVED;
}

static unsigned long adma_shrink_scan(struct shrinker *shrinker,
				      struct shrink_control *sc)
{
	unsigned long freed;
	LIST_HEAD(doomed);

	if (!READ_ONCE(adma_lru_ready))
		return SHRINK_STOP;
	sc->nr_to_scan = DIV_ROUND_UP(sc->nr_to_scan, ADMA_LINE_PAGES);
	list_lru_shrink_walk(&adma_lru, sc, adma_isolate, &doomed);
	freed = adma_lines_execute(&doomed);
	return freed ?: SHRINK_STOP;
}

#define ADMA_SHRINKER_FLAGS	(SHRINKER_MEMCG_AWARE | SHRINKER_NUMA_AWARE)

#ifndef ADMA_HAS_SHRINKER_ALLOC
static struct shrinker adma_shrinker = {
	.count_objects = adma_shrink_count,
	.scan_objects = adma_shrink_scan,
	.seeks = DEFAULT_SEEKS,
	.flags = ADMA_SHRINKER_FLAGS,
};

static int adma_shrinker_add(void)
{
	int ret = register_shrinker(&adma_shrinker, "adma");

	if (ret)
		return ret;
	/* It has a number from now on, which the lists need. */
	ret = list_lru_init_memcg(&adma_lru, &adma_shrinker);
	if (ret)
		unregister_shrinker(&adma_shrinker);
	else
		WRITE_ONCE(adma_lru_ready, true);
	return ret;
}

static void adma_shrinker_remove(void)
{
	unregister_shrinker(&adma_shrinker);
}
#else
static struct shrinker *adma_shrinker;

static int adma_shrinker_add(void)
{
	int ret;

	adma_shrinker = shrinker_alloc(ADMA_SHRINKER_FLAGS, "adma");
	if (!adma_shrinker)
		return -ENOMEM;
	ret = list_lru_init_memcg(&adma_lru, adma_shrinker);
	if (ret) {
		shrinker_free(adma_shrinker);
		return ret;
	}
	adma_lru_ready = true;
	adma_shrinker->count_objects = adma_shrink_count;
	adma_shrinker->scan_objects = adma_shrink_scan;
	shrinker_register(adma_shrinker);
	return 0;
}

static void adma_shrinker_remove(void)
{
	shrinker_free(adma_shrinker);
}
#endif

/*
 * Beginning and end
 */

/* Memory for a line; its list is that of the caller's control group. */
struct adma_line *adma_line_alloc(void)
{
	return kmem_cache_alloc_lru(adma_line_slab, &adma_lru,
				    GFP_KERNEL_ACCOUNT | __GFP_ZERO);
}

static void adma_line_free_rcu(struct rcu_head *rcu)
{
	kmem_cache_free(adma_line_slab,
			container_of(rcu, struct adma_line, rcu));
}

/* Somebody may just look at it. */
void adma_line_free(struct adma_line *line)
{
	call_rcu(&line->rcu, adma_line_free_rcu);
}

int adma_keep_open(struct adma_file *file)
{
	struct adma_file *other;
	unsigned long of_user = 0;

	INIT_LIST_HEAD(&file->lines);
	INIT_LIST_HEAD(&file->gone);
	INIT_LIST_HEAD(&file->files);
	INIT_WORK(&file->reap, adma_reap_work);
	xa_init(&file->table);
	mutex_init(&file->table_lock);
	file->keep_pages = adma_keep_pages;
	mutex_lock(&adma_files_lock);
	list_for_each_entry(other, &adma_files, files)
		of_user += other->cred->user == file->cred->user;
	if (of_user >= adma_max_files) {
		mutex_unlock(&adma_files_lock);
		return -EMFILE;
	}
	list_add_tail(&file->files, &adma_files);
	mutex_unlock(&adma_files_lock);
	return 0;
}

void adma_keep_close(struct adma_file *file)
{
	mutex_lock(&adma_files_lock);
	list_del(&file->files);
	mutex_unlock(&adma_files_lock);
	xa_destroy(&file->table);
}

int adma_keep_init(void)
{
	int ret;

	adma_line_slab = kmem_cache_create("adma_line", adma_line_size(), 0,
					   SLAB_ACCOUNT, NULL);
	if (!adma_line_slab)
		return -ENOMEM;
	ret = adma_shrinker_add();
	if (ret)
		kmem_cache_destroy(adma_line_slab);
	return ret;
}

/* Nobody can ask for room any more. The lines are still there. */
void adma_keep_stop(void)
{
	adma_shrinker_remove();
	cancel_delayed_work_sync(&adma_ager);
}

/* No line is left, but for those that are just being freed. */
void adma_keep_exit(void)
{
	rcu_barrier();
	kmem_cache_destroy(adma_line_slab);
	list_lru_destroy(&adma_lru);
}
