// SPDX-License-Identifier: GPL-2.0
/*
 * Pages of user memory, pinned and mapped, from one copy to the next.
 *
 * Lines are found through the translation cache, which all files share and
 * which is read without a lock; behind it each file has a table of all its
 * kept lines. What the program unmaps, remaps, discards, truncates or shares by
 * fork is forgotten at once: the notifier marks the line dead, so that no later
 * copy finds it. Copies under way keep theirs until they are over; its pages
 * are pinned, so what they write can become nobody else's.
 *
 * Pages are let go in a work of their own, never inside the notifier, which may
 * be called with their locks held.
 */
#include <linux/dma-mapping.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/shrinker.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "adma.h"
#include "translate.h"

static struct adma_cache adma_cache;
static DEFINE_SPINLOCK(adma_cache_lock);	/* of changing it */

static LIST_HEAD(adma_files);
static DEFINE_MUTEX(adma_files_lock);
static u32 adma_last_space;

static unsigned long adma_line_start(const struct adma_line *line)
{
	return line->number * adma_line_pages << PAGE_SHIFT;
}

/*
 * From a line's first page to its last
 */

static void adma_line_unpin(struct adma_line *line, unsigned int at,
			    unsigned int count)
{
	/* Whoever was pinned for writing may have been written. */
	unpin_user_pages_dirty_lock(line->pages + at, count, line->write);
	adma_count(ADMA_STAT_PINNED_PAGES, -(s64)count);
	adma_uncharge_pages(line->file, count);
}

/*
 * Pins @count pages from @at on; without @may_fault only those that are there.
 * Answers how many, or ESTALE when the mapping changes meanwhile.
 */
static int adma_line_pin(struct adma_line *line, unsigned int at,
			 unsigned int count, bool may_fault)
{
	unsigned long addr = adma_line_start(line) + at * PAGE_SIZE;
	unsigned int flags = line->write ? FOLL_WRITE : 0;
	unsigned long seq = 0;
	bool stale = false;
	int got, ret;

	if (line->kept)
		flags |= FOLL_LONGTERM;
	if (!may_fault)
		flags |= FOLL_NOFAULT;
	ret = adma_charge_pages(line->file, count);
	if (ret)
		return ret;
	if (line->kept)
		seq = mmu_interval_read_begin(&line->notifier);
	got = pin_user_pages_fast(addr, count, flags, line->pages + at);
	if (got <= 0) {
		adma_uncharge_pages(line->file, count);
		/* A killed caller must not see a number meant for restarts. */
		if (got == -ERESTARTSYS || got == -EINTR)
			return -EINTR;
		return got == -ENOMEM ? got : -EFAULT;
	}
	adma_uncharge_pages(line->file, count - got);
	adma_count(ADMA_STAT_PINS, got);
	adma_count(ADMA_STAT_PINNED_PAGES, got);

	if (line->kept) {
		spin_lock(&line->lock);
		stale = line->dead ||
			mmu_interval_read_retry(&line->notifier, seq);
		spin_unlock(&line->lock);
	}
	if (stale || (got < count && may_fault)) {
		adma_line_unpin(line, at, got);	/* a partial pin is still a pin */
		return stale ? -ESTALE : -EFAULT;
	}
	bitmap_set(line->pinned, at, got);
	return got;
}

/* Maps what lies together in one go, and what is pinned and not yet mapped. */
static int adma_line_map(struct adma_line *line, unsigned int first,
			 unsigned int end, unsigned int device)
{
	enum dma_data_direction dir =
		line->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
	struct adma_mapping *map = &line->mapping[device];
	struct device *dev = adma_devices[device];
	unsigned int most = max_t(size_t, 1, min_t(size_t, ADMA_LINE_MOST,
				  dma_max_mapping_size(dev) >> PAGE_SHIFT));
	unsigned int at, i;

	for (at = first; at < end; at++) {
		unsigned int run = 1;
		dma_addr_t addr;

		if (!test_bit(at, line->pinned) || test_bit(at, map->mapped))
			continue;
		while (run < most && at + run < end &&
		       test_bit(at + run, line->pinned) &&
		       !test_bit(at + run, map->mapped) &&
		       page_to_pfn(line->pages[at + run]) ==
		       page_to_pfn(line->pages[at]) + run)
			run++;
		/* No mapping here ever needs a sync, see below. */
		addr = dma_map_page_attrs(dev, line->pages[at], 0,
					  run * PAGE_SIZE, dir,
					  DMA_ATTR_SKIP_CPU_SYNC);
		if (dma_mapping_error(dev, addr))
			return -ENOMEM;
		/* A bounce buffer costs more than the engine saves. */
		if (dma_need_sync(dev, addr)) {
			dma_unmap_page_attrs(dev, addr, run * PAGE_SIZE, dir,
					     DMA_ATTR_SKIP_CPU_SYNC);
			return -EIO;
		}
		map->run[at] = run;
		for (i = 0; i < run; i++)
			map->addr[at + i] = addr + i * PAGE_SIZE;
		bitmap_set(map->mapped, at, run);
		at += run - 1;
	}
	return 0;
}

static void adma_line_unmap(struct adma_line *line, unsigned int device)
{
	enum dma_data_direction dir =
		line->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
	struct adma_mapping *map = &line->mapping[device];
	unsigned int at;

	for (at = 0; at < adma_line_pages; at++) {
		if (map->run[at])
			dma_unmap_page_attrs(adma_devices[device],
					     map->addr[at],
					     map->run[at] * PAGE_SIZE, dir,
					     DMA_ATTR_SKIP_CPU_SYNC);
	}
}

/* Whether pages of a line are pinned, and mapped for a device. */
bool adma_line_ready(struct adma_line *line, unsigned int first,
		     unsigned int count, unsigned int device)
{
	unsigned int end = first + count;
	bool ready;

	mutex_lock(&line->fill);
	ready = find_next_zero_bit(line->mapping[device].mapped, end, first) >=
		end;
	mutex_unlock(&line->fill);
	return ready;
}

/*
 * Sees to it that pages of a line are pinned, and mapped for a device. Without
 * @may_fault as many of them as are there.
 */
int adma_line_fill(struct adma_line *line, unsigned int first,
		   unsigned int count, unsigned int device, bool may_fault,
		   struct adma_costs *costs)
{
	unsigned int end = first + count, at = first;
	u64 begun, pinned;
	int ret = 0;

	mutex_lock(&line->fill);
	begun = ktime_get_ns();
	while ((at = find_next_zero_bit(line->pinned, end, at)) < end) {
		unsigned int stop = find_next_bit(line->pinned, end, at);

		ret = adma_line_pin(line, at, stop - at, may_fault);
		if (ret > 0)
			costs->pinned += ret;
		if (ret < 0 && may_fault)
			goto out_unlock;
		at = stop;
	}
	pinned = ktime_get_ns();
	costs->pin_ns += pinned - begun;
	ret = adma_line_map(line, first, end, device);
	costs->map_ns += ktime_get_ns() - pinned;
out_unlock:
	mutex_unlock(&line->fill);
	return ret;
}

/*
 * Life and end of a line
 */

static void adma_line_end(struct work_struct *work)
{
	struct adma_line *line = container_of(work, struct adma_line, end);
	struct adma_file *file = line->file;
	unsigned int i, at = 0;

	if (line->kept) {
		mmu_interval_notifier_remove(&line->notifier);
		spin_lock(&adma_cache_lock);
		adma_cache_drop(&adma_cache, adma_tag(file->space, line->number),
				line);
		spin_unlock(&adma_cache_lock);
	}
	for (i = 0; i < adma_nr_devices; i++)
		adma_line_unmap(line, i);
	while ((at = find_next_bit(line->pinned, adma_line_pages, at)) <
	       adma_line_pages) {
		unsigned int stop = find_next_zero_bit(line->pinned,
						       adma_line_pages, at);

		adma_line_unpin(line, at, stop - at);
		at = stop;
	}
	adma_file_put(file);
	kfree_rcu(line, rcu);	/* somebody may just look at it */
}

static void adma_line_release(struct kref *kref)
{
	struct adma_line *line = container_of(kref, struct adma_line, kref);

	queue_work(adma_workqueue, &line->end);
}

void adma_line_put(struct adma_line *line)
{
	kref_put(&line->kref, adma_line_release);
}

/* Out of the table, by whoever comes first. Its users go on. */
static bool adma_line_forget(struct adma_line *line)
{
	struct adma_file *file = line->file;
	void *seen = xa_mk_value(1);

	if (xa_cmpxchg(&file->table, line->number, line, seen, 0) != line)
		return false;
	spin_lock(&file->lock);
	list_del_init(&line->young);
	spin_unlock(&file->lock);
	adma_line_put(line);
	return true;
}

/* The mapping changes: unmap, remap, discard, truncate, fork, exit. */
static bool adma_line_invalidate(struct mmu_interval_notifier *notifier,
				 const struct mmu_notifier_range *range,
				 unsigned long seq)
{
	struct adma_line *line =
		container_of(notifier, struct adma_line, notifier);
	bool first;

	spin_lock(&line->lock);
	mmu_interval_set_seq(notifier, seq);
	first = !line->dead;
	line->dead = true;
	spin_unlock(&line->lock);
	if (first) {
		adma_count_for(line->file, ADMA_STAT_INVALIDATIONS);
		adma_line_forget(line);
	}
	return true;
}

static const struct mmu_interval_notifier_ops adma_line_ops = {
	.invalidate = adma_line_invalidate,
};

static struct adma_line *adma_line_new(struct adma_file *file, u64 number,
				       bool kept, bool write)
{
	size_t nr = adma_line_pages;
	struct adma_line *line;
	unsigned int i;
	void *room;

	line = kzalloc(sizeof(*line) + nr * sizeof(*line->pages) +
		       adma_nr_devices * nr * (sizeof(dma_addr_t) + 1),
		       GFP_KERNEL_ACCOUNT);
	if (!line)
		return ERR_PTR(-ENOMEM);
	room = line + 1;
	line->pages = room;
	room += nr * sizeof(*line->pages);
	for (i = 0; i < adma_nr_devices; i++) {
		line->mapping[i].addr = room;
		room += nr * sizeof(dma_addr_t);
	}
	for (i = 0; i < adma_nr_devices; i++) {
		line->mapping[i].run = room;
		room += nr;
	}
	kref_init(&line->kref);
	line->number = number;
	line->kept = kept;
	line->write = write;
	INIT_LIST_HEAD(&line->young);
	INIT_WORK(&line->end, adma_line_end);
	mutex_init(&line->fill);
	spin_lock_init(&line->lock);
	line->file = file;
	if (kept) {
		int ret = mmu_interval_notifier_insert(&line->notifier, file->mm,
						       adma_line_start(line),
						       nr * PAGE_SIZE,
						       &adma_line_ops);

		if (ret) {
			kfree(line);
			return ERR_PTR(ret);
		}
	}
	adma_file_get(file);
	return line;
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

	line = adma_line_new(file, number, true, write);
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
		list_del_init(&line->young);
		spin_unlock(&file->lock);
		adma_line_put(line);
		adma_line_put(line);
		return ERR_PTR(xa_err(entry));
	}
	/* It may have died before it was to be found. */
	if (READ_ONCE(line->dead))
		adma_line_forget(line);
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
		return adma_line_new(file, number, false, write);
	rcu_read_lock();
	line = adma_line_hold(adma_cache_find(&adma_cache,
					      adma_tag(file->space, number)),
			      file, number, write);
	rcu_read_unlock();
	if (line) {
		adma_count_for(file, ADMA_STAT_HITS);
	} else {
		mutex_lock(&file->table_lock);
		line = adma_line_from_table(file, number, write);
		mutex_unlock(&file->table_lock);
		if (IS_ERR(line))
			return adma_line_new(file, number, false, write);
		adma_line_enter(line);
	}
	spin_lock(&file->lock);
	if (!list_empty(&line->young))
		list_move_tail(&line->young, &file->lines);
	spin_unlock(&file->lock);
	return line;
}

/* One that turned out not to serve, but for a request of its own. */
struct adma_line *adma_line_private(struct adma_line *line)
{
	adma_line_forget(line);
	return adma_line_new(line->file, line->number, false, line->write);
}

/*
 * Making room
 */

/* Lets go of about @pages pages that nobody uses, the oldest first. */
static unsigned long adma_lines_evict(struct adma_file *file,
				      unsigned long pages)
{
	unsigned long freed = 0;

	while (freed < pages) {
		struct adma_line *line, *idle = NULL;
		bool forgotten;

		spin_lock(&file->lock);
		list_for_each_entry(line, &file->lines, young) {
			if (kref_read(&line->kref) != 1)
				continue;
			/* The table's hold cannot go while it is listed. */
			kref_get(&line->kref);
			idle = line;
			break;
		}
		spin_unlock(&file->lock);
		if (!idle)
			break;
		forgotten = adma_line_forget(idle);
		if (forgotten) {
			freed += bitmap_weight(idle->pinned, adma_line_pages);
			adma_count_for(file, ADMA_STAT_EVICTIONS);
		}
		adma_line_put(idle);
		if (!forgotten)
			break;	/* somebody else is about to */
	}
	return freed;
}

/* For somebody who was refused pages, before he asks again. */
void adma_lines_make_room(struct adma_file *file, unsigned int pages)
{
	adma_lines_evict(file, pages);
	/* Also for what is over, its pages just not let go. */
	flush_workqueue(adma_workqueue);
}

/* Down to the high-water mark. */
void adma_lines_trim(struct adma_file *file)
{
	unsigned long pages, keep = READ_ONCE(file->keep_pages);

	spin_lock(&file->lock);
	pages = file->pages;
	spin_unlock(&file->lock);
	if (pages > keep)
		adma_lines_evict(file, pages - keep);
}

/* The file is closed. */
void adma_lines_drop(struct adma_file *file)
{
	unsigned long number;
	void *line;

	xa_for_each(&file->table, number, line) {
		if (!xa_is_value(line))
			adma_line_forget(line);
	}
	flush_workqueue(adma_workqueue);
}

static unsigned long adma_shrink_count(struct shrinker *shrinker,
				       struct shrink_control *sc)
{
	unsigned long pages = 0;
	struct adma_file *file;

	if (!mutex_trylock(&adma_files_lock))
		return 0;
	list_for_each_entry(file, &adma_files, files)
		pages += READ_ONCE(file->pages);
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

void adma_pin_open(struct adma_file *file)
{
	INIT_LIST_HEAD(&file->lines);
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

void adma_pin_close(struct adma_file *file)
{
	mutex_lock(&adma_files_lock);
	list_del(&file->files);
	mutex_unlock(&adma_files_lock);
	xa_destroy(&file->table);
}

int adma_pin_init(void)
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

void adma_pin_exit(void)
{
	adma_shrinker_remove();
	kvfree(adma_cache.way);
	kvfree(adma_cache.clock);
}
