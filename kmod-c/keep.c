// SPDX-License-Identifier: GPL-2.0
/*
 * Lines that stay from one copy to the next: how they are found again, and
 * which of them go to make room.
 *
 * They are found through the translation cache, which all files share and
 * which is read without a lock; behind it each file has a table of all its
 * kept lines. Eviction gives a line that was used since it last looked a second
 * chance, so that a hit need not take a lock to be remembered.
 */
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "adma.h"
#include "translate.h"

/* Lines of a file that are remembered when they are gone. */
#define ADMA_MARKS	65536

static struct adma_cache adma_cache;
static DEFINE_SPINLOCK(adma_cache_lock);	/* of changing it */

static LIST_HEAD(adma_files);
static DEFINE_MUTEX(adma_files_lock);
static u32 adma_last_space;

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
	line->file->kept -= line->counted;
	line->counted = 0;
}

/* Out of the table, by whoever comes first. Its users go on. */
bool adma_line_forget(struct adma_line *line)
{
	struct adma_file *file = line->file;
	void *mark = NULL;

	/* Beyond the limit it will be as if it had never been used. */
	if (atomic_read(&file->marks) < ADMA_MARKS)
		mark = xa_mk_value(1);
	if (xa_cmpxchg(&file->table, line->number, line, mark, 0) != line)
		return false;
	if (mark)
		atomic_inc(&file->marks);
	spin_lock(&file->lock);
	adma_line_unlist(line);
	spin_unlock(&file->lock);
	adma_line_put(line);
	return true;
}

/* Out of the cache, for good. */
void adma_line_leave(struct adma_line *line)
{
	spin_lock(&adma_cache_lock);
	adma_cache_drop(&adma_cache,
			adma_tag(line->file->space, line->number), line);
	spin_unlock(&adma_cache_lock);
}

/*
 * Finding a line
 */

/* A line that can serve, with a hold on it, or NULL. */
static struct adma_line *adma_line_hold(struct adma_line *line,
					struct adma_file *file, u64 number,
					bool write)
{
	if (!line || !kref_get_unless_zero(&line->kref))
		return NULL;
	if (line->file == file && line->number == number &&
	    (line->write || !write) && !READ_ONCE(line->dead))
		return line;
	adma_line_put(line);
	return NULL;
}

/* Those that fall out of the cache are the first to be let go. */
static void adma_line_enter(struct adma_line *line)
{
	u64 tag = adma_tag(line->file->space, line->number);
	struct adma_line *victim;

	rcu_read_lock();
	spin_lock(&adma_cache_lock);
	victim = adma_cache_put(&adma_cache, tag, line);
	spin_unlock(&adma_cache_lock);
	if (victim && kref_get_unless_zero(&victim->kref)) {
		spin_lock(&victim->file->lock);
		WRITE_ONCE(victim->used, false);
		if (!list_empty(&victim->young))
			list_move(&victim->young, &victim->file->lines);
		spin_unlock(&victim->file->lock);
		adma_line_put(victim);
	}
	rcu_read_unlock();
}

static struct adma_line *adma_line_from_table(struct adma_file *file,
					      u64 number, bool write)
{
	struct adma_line *line;
	void *entry;

	rcu_read_lock();
	entry = xa_load(&file->table, number);
	line = xa_is_value(entry) ? NULL :
	       adma_line_hold(entry, file, number, write);
	rcu_read_unlock();
	adma_count_for(file, entry ? ADMA_STAT_OTHER_MISSES :
				     ADMA_STAT_COLD_MISSES);
	if (line)
		return line;

	/* Another kind is wanted, or it is dead. */
	rcu_read_lock();
	entry = xa_load(&file->table, number);
	if (entry && !xa_is_value(entry)) {
		struct adma_line *old = entry;

		if (kref_get_unless_zero(&old->kref)) {
			adma_line_forget(old);
			adma_line_put(old);
		}
	}
	rcu_read_unlock();

	line = adma_line_new(file, number, write, ADMA_KEPT);
	if (IS_ERR(line))
		return line;
	kref_get(&line->kref);
	/* Listed first: who takes it out of the table also unlists it. */
	spin_lock(&file->lock);
	list_add_tail(&line->young, &file->lines);
	spin_unlock(&file->lock);
	entry = xa_store(&file->table, number, line, GFP_KERNEL_ACCOUNT);
	if (xa_is_err(entry)) {
		spin_lock(&file->lock);
		adma_line_unlist(line);
		spin_unlock(&file->lock);
		adma_line_put(line);
		adma_line_put(line);
		return ERR_PTR(xa_err(entry));
	}
	if (entry)
		atomic_dec(&file->marks);
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

	if (!adma_cache.way || !READ_ONCE(file->keep_pages))
		return adma_line_new(file, number, write, ADMA_PLAIN);
	rcu_read_lock();
	line = adma_line_hold(adma_cache_find(&adma_cache,
					      adma_tag(file->space, number)),
			      file, number, write);
	rcu_read_unlock();
	if (line) {
		adma_count_for(file, ADMA_STAT_HITS);
		if (!READ_ONCE(line->used))
			WRITE_ONCE(line->used, true);
		return line;
	}
	mutex_lock(&file->table_lock);
	line = adma_line_from_table(file, number, write);
	mutex_unlock(&file->table_lock);
	if (IS_ERR(line))
		return adma_line_new(file, number, write, ADMA_PLAIN);
	adma_line_enter(line);
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
 * others is in his way when the limit is the user's.
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
	/* Also for what is over, its pages just not let go. */
	flush_workqueue(adma_workqueue);
	adma_lines_reaped();
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
	flush_work(&file->reap);
}

static unsigned long adma_shrink_count(struct shrinker *shrinker,
				       struct shrink_control *sc)
{
	unsigned long pages = 0;
	struct adma_file *file;

	if (!mutex_trylock(&adma_files_lock))
		return 0;
	list_for_each_entry(file, &adma_files, files)
		pages += READ_ONCE(file->kept);
	mutex_unlock(&adma_files_lock);
	return pages;
}

static unsigned long adma_shrink_scan(struct shrinker *shrinker,
				      struct shrink_control *sc)
{
	unsigned long freed = 0;
	struct adma_file *file;

	if (!mutex_trylock(&adma_files_lock))
		return SHRINK_STOP;
	list_for_each_entry(file, &adma_files, files) {
		if (freed >= sc->nr_to_scan)
			break;
		freed += adma_lines_evict(file, sc->nr_to_scan - freed);
	}
	/* Fair to them all: the next time another one comes first. */
	list_rotate_left(&adma_files);
	mutex_unlock(&adma_files_lock);
	return freed ?: SHRINK_STOP;
}

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 7, 0)
static struct shrinker adma_shrinker = {
	.count_objects = adma_shrink_count,
	.scan_objects = adma_shrink_scan,
	.seeks = DEFAULT_SEEKS,
};

static int adma_shrinker_add(void)
{
	return register_shrinker(&adma_shrinker, "adma");
}

static void adma_shrinker_remove(void)
{
	unregister_shrinker(&adma_shrinker);
}
#else
static struct shrinker *adma_shrinker;

static int adma_shrinker_add(void)
{
	adma_shrinker = shrinker_alloc(0, "adma");
	if (!adma_shrinker)
		return -ENOMEM;
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

void adma_keep_open(struct adma_file *file)
{
	INIT_LIST_HEAD(&file->lines);
	INIT_LIST_HEAD(&file->gone);
	INIT_WORK(&file->reap, adma_reap);
	xa_init(&file->table);
	mutex_init(&file->table_lock);
	file->keep_pages = adma_keep_pages;
	mutex_lock(&adma_files_lock);
	/* 24 bits, but for 0: far more than can be open at once. */
	adma_last_space = adma_last_space % 0xffffff + 1;
	file->space = adma_last_space;
	list_add_tail(&file->files, &adma_files);
	mutex_unlock(&adma_files_lock);
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
	u32 lines;
	int ret;

	if (!is_power_of_2(adma_line_pages) ||
	    adma_line_pages > ADMA_LINE_MOST)
		return -EINVAL;
	ret = adma_shrinker_add();
	if (ret)
		return ret;
	lines = adma_cache_entries / adma_line_pages;
	if (!lines)
		return 0;	/* nothing is kept */
	ret = -EINVAL;
	if (!adma_cache_ways || adma_cache_ways > lines ||
	    lines > 1 << 20)
		goto err_remove_shrinker;
	adma_cache.ways = adma_cache_ways;
	adma_cache.sets = rounddown_pow_of_two(lines / adma_cache_ways);
	ret = -ENOMEM;
	adma_cache.clock = kvcalloc(adma_cache.sets, sizeof(*adma_cache.clock),
				    GFP_KERNEL);
	if (!adma_cache.clock)
		goto err_remove_shrinker;
	adma_cache.way = kvcalloc((size_t)adma_cache.sets * adma_cache.ways,
				  sizeof(*adma_cache.way), GFP_KERNEL);
	if (!adma_cache.way)
		goto err_free_clock;
	return 0;

err_free_clock:
	kvfree(adma_cache.clock);
err_remove_shrinker:
	adma_shrinker_remove();
	return ret;
}

/* Nobody can ask for room any more. The lines are still there. */
void adma_keep_stop(void)
{
	adma_shrinker_remove();
}

void adma_keep_exit(void)
{
	kvfree(adma_cache.way);
	kvfree(adma_cache.clock);
}
