// SPDX-License-Identifier: GPL-2.0
/*
 * A line: pages of user memory that are pinned and mapped together.
 *
 * What the program unmaps, remaps, discards, truncates or shares by fork is
 * forgotten at once: the notifier marks the line dead, so that no later copy
 * finds it and no transfer is begun on it, and waits for the transfers that
 * are under way. It waits for transfers only, which end by themselves, never
 * for a request, whose caller may need the very lock that munmap() holds.
 *
 * Pages are let go in a work of the file, never inside the notifier, which may
 * be called with their locks held.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "adma.h"
#include "trace.h"

/*
 * For so long a change of the mapping waits for transfers at most. ioatdma
 * ends a hung channel sooner; after that the pins alone keep others safe.
 */
#define ADMA_LINGER_MS	3000

/* Between buffers there often are guard pages. */
#define ADMA_HOLES	8

static struct workqueue_struct *adma_reaper;

static unsigned long adma_line_start(const struct adma_line *line)
{
	return line->number * ADMA_LINE_PAGES << PAGE_SHIFT;
}

/*
 * From a line's first page to its last
 */

static void adma_line_unpin(struct adma_line *line, unsigned int at,
			    unsigned int count, bool dirty)
{
	unpin_user_pages_dirty_lock(line->pages + at, count, dirty);
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

	/* Whoever reaches a post of ours brings another memory map along. */
	if (WARN_ON_ONCE(current->mm != line->file->mm))
		return -EFAULT;
	if (line->kind >= ADMA_LASTING)
		flags |= FOLL_LONGTERM;
	if (!may_fault)
		flags |= FOLL_NOFAULT;
	/* For what nobody has asked for nobody else has to go. */
	ret = adma_charge_pages(line->file, count, may_fault);
	if (ret)
		return ret;
	if (line->kind != ADMA_PLAIN)
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

	spin_lock(&line->lock);
	if (line->kind != ADMA_PLAIN)
		stale = line->dead ||
			mmu_interval_read_retry(&line->notifier, seq);
	if (!stale && (got == count || !may_fault))
		bitmap_set(line->pinned, at, got);
	spin_unlock(&line->lock);
	if (stale || (got < count && may_fault)) {
		/* A partial pin is still a pin. */
		adma_line_unpin(line, at, got, false);
		return stale ? -ESTALE : -EFAULT;
	}
	if (line->kind == ADMA_KEPT)
		adma_line_grown(line, got);
	return got;
}

/*
 * Whether the device reaches the page itself and not a bounce buffer. Before
 * 6.10 dma_need_sync() says no to everything behind an IOMMU.
 */
static bool adma_reaches(struct device *dev, dma_addr_t addr, struct page *page)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	if (IS_ENABLED(CONFIG_X86) && domain)
		return iommu_iova_to_phys(domain, addr) == page_to_phys(page);
	return !dma_need_sync(dev, addr);
}

/* Maps what lies together in one go, and what is pinned and not yet mapped. */
static int adma_line_map(struct adma_line *line, unsigned int first,
			 unsigned int end, unsigned int device)
{
	enum dma_data_direction dir =
		line->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
	struct adma_mapping *map = &line->mapping[device];
	struct device *dev = adma_devices[device];
	unsigned int most = max_t(size_t, 1, min_t(size_t, ADMA_LINE_PAGES,
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
		if (!adma_reaches(dev, addr, line->pages[at])) {
			dma_unmap_page_attrs(dev, addr, run * PAGE_SIZE, dir,
					     DMA_ATTR_SKIP_CPU_SYNC);
			return -EIO;
		}
		map->run[at] = run;
		for (i = 0; i < run; i++)
			map->addr[at + i] = addr + i * PAGE_SIZE;
		/* Pairs with adma_line_ready(): the address comes first. */
		smp_wmb();
		for (i = 0; i < run; i++)
			set_bit(at + i, map->mapped);
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

	for (at = 0; at < ADMA_LINE_PAGES; at++) {
		if (map->run[at])
			dma_unmap_page_attrs(adma_devices[device],
					     map->addr[at],
					     map->run[at] * PAGE_SIZE, dir,
					     DMA_ATTR_SKIP_CPU_SYNC);
	}
}

/* Whether pages of a line are pinned, and mapped for a device. Takes no lock. */
bool adma_line_ready(struct adma_line *line, unsigned int first,
		     unsigned int count, unsigned int device)
{
	unsigned int end = first + count;

	if (find_next_zero_bit(line->mapping[device].mapped, end, first) < end)
		return false;
	/* Pairs with adma_line_map(): then the addresses are there. */
	smp_rmb();
	return true;
}

/*
 * Sees to it that pages of a line are pinned, and mapped for a device. Without
 * @may_fault those that are there, until there are too many holes. EBUSY when
 * somebody else is at it: he may be waiting for a page that only the caller
 * can provide (userfaultfd).
 */
int adma_line_fill(struct adma_line *line, unsigned int first,
		   unsigned int count, unsigned int device, bool may_fault,
		   unsigned int *pinned)
{
	unsigned int end = first + count, at = first, holes = 0;
	int ret = 0;

	if (!mutex_trylock(&line->fill))
		return -EBUSY;
	while ((at = find_next_zero_bit(line->pinned, end, at)) < end) {
		unsigned int stop = find_next_bit(line->pinned, end, at);

		ret = adma_line_pin(line, at, stop - at, may_fault);
		trace_adma_pin(adma_line_start(line) + at * PAGE_SIZE,
			       stop - at, ret);
		if (ret < 0 && may_fault)
			goto out_unlock;
		if (ret > 0) {
			*pinned += ret;
			at += ret;
		}
		if (at == stop)
			continue;
		if (ret == -ENOMEM || ret == -EAGAIN || ret == -ESTALE ||
		    ++holes > ADMA_HOLES)
			break;
		at++;
	}
	ret = adma_line_map(line, first, end, device);
out_unlock:
	mutex_unlock(&line->fill);
	return ret;
}

/*
 * Pages of a line are a destination. Neighbours that were only pinned along with
 * them stay as clean as they are.
 */
void adma_line_written(struct adma_line *line, unsigned int first,
		       unsigned int count)
{
	unsigned int end = first + count;

	while ((first = find_next_zero_bit(line->written, end, first)) < end)
		set_bit(first, line->written);
}

/*
 * Life and end of a line
 */

static void adma_line_end(struct adma_line *line)
{
	unsigned int i, at = 0;

	if (line->kind != ADMA_PLAIN)
		mmu_interval_notifier_remove(&line->notifier);
	for (i = 0; i < adma_nr_devices; i++)
		adma_line_unmap(line, i);
	while ((at = find_next_bit(line->pinned, ADMA_LINE_PAGES, at)) <
	       ADMA_LINE_PAGES) {
		bool dirty = test_bit(at, line->written);
		unsigned int stop = at + 1;

		while (stop < ADMA_LINE_PAGES && test_bit(stop, line->pinned) &&
		       test_bit(stop, line->written) == dirty)
			stop++;
		adma_line_unpin(line, at, stop - at, dirty);
		at = stop;
	}
	adma_file_put(line->file);
	adma_line_free(line);
}

/*
 * Lets go of the file's lines that nobody holds any more. It may wait for the
 * locks of their pages, and for the end of munmap(): of no other process.
 */
void adma_lines_reap(struct adma_file *file)
{
	struct adma_line *line, *next;
	unsigned int ended = 0;
	LIST_HEAD(gone);

	spin_lock(&file->lock);
	list_splice_init(&file->gone, &gone);
	spin_unlock(&file->lock);
	list_for_each_entry_safe(line, next, &gone, young) {
		adma_line_end(line);
		ended++;
	}
	spin_lock(&file->lock);
	file->leaving -= ended;
	spin_unlock(&file->lock);
	if (ended)
		wake_up_all(&file->wait);
}

/* One for each file and not for each line: munmap() gives up hundreds. */
void adma_reap_work(struct work_struct *work)
{
	struct adma_file *file = container_of(work, struct adma_file, reap);

	adma_lines_reap(file);
	adma_file_put(file);
}

static void adma_line_release(struct kref *kref)
{
	struct adma_line *line = container_of(kref, struct adma_line, kref);
	struct adma_file *file = line->file;

	spin_lock(&file->lock);
	list_add_tail(&line->young, &file->gone);
	file->leaving++;
	/* The work's own hold; it cannot get past the lock before. */
	if (queue_work(adma_reaper, &file->reap))
		adma_file_get(file);
	spin_unlock(&file->lock);
}

void adma_line_put(struct adma_line *line)
{
	kref_put(&line->kref, adma_line_release);
}

/* A channel that may still touch pages of the line, or NULL. */
static struct adma_channel *adma_line_busy(struct adma_line *line)
{
	unsigned long limit = msecs_to_jiffies(ADMA_LINGER_MS);
	struct adma_channel *ch = NULL;
	struct adma_use *use;

	spin_lock(&line->lock);
	list_for_each_entry(use, &line->uses, list) {
		if (use->leg &&
		    (int)(use->last - atomic_read(&use->leg->done)) > 0 &&
		    time_before(jiffies, use->since + limit)) {
			ch = use->leg->ch;
			break;
		}
	}
	spin_unlock(&line->lock);
	return ch;
}

/*
 * Asks the channels itself: whoever has submitted the transfers may not have
 * issued them yet, may not have asked for an interrupt, and may be waiting for
 * the caller, or be the caller.
 */
static void adma_line_drain(struct adma_line *line)
{
	struct adma_channel *ch;
	unsigned int us = 20;

	while ((ch = adma_line_busy(line))) {
		adma_channel_poke(ch);
		if (!adma_line_busy(line))
			break;
		/* To ask is an access to the device: not too often. */
		usleep_range(us, 2 * us);
		us = min(2 * us, 2000U);
	}
}

bool adma_line_is_dead(struct adma_line *line)
{
	bool dead;

	spin_lock(&line->lock);
	dead = line->dead;
	spin_unlock(&line->lock);
	return dead;
}

/* Whether pages that are pinned are changed, and not only their neighbours. */
static bool adma_line_is_hit(struct adma_line *line,
			     const struct mmu_notifier_range *range)
{
	unsigned long start = adma_line_start(line);
	unsigned long end = start + ADMA_LINE_PAGES * PAGE_SIZE;
	unsigned int first, stop;

	lockdep_assert_held(&line->lock);
	first = (max(range->start, start) - start) >> PAGE_SHIFT;
	stop = DIV_ROUND_UP(min(range->end, end) - start, PAGE_SIZE);
	return find_next_bit(line->pinned, stop, first) < stop;
}

/* The mapping changes: unmap, remap, discard, truncate, fork, exit. */
static bool adma_line_invalidate(struct mmu_interval_notifier *notifier,
				 const struct mmu_notifier_range *range,
				 unsigned long seq)
{
	struct adma_line *line =
		container_of(notifier, struct adma_line, notifier);
	bool hit;

	spin_lock(&line->lock);
	/* Whoever is just pinning pages of it begins again. */
	mmu_interval_set_seq(notifier, seq);
	hit = adma_line_is_hit(line, range);
	if (hit)
		WRITE_ONCE(line->dead, true);
	spin_unlock(&line->lock);
	if (!hit)
		return true;
	trace_adma_invalidate(range->start, range->end);
	if (adma_line_forget(line))
		adma_count_for(line->file, ADMA_STAT_INVALIDATIONS);
	adma_posts_doubt(line->file);
	/* Reclaim cannot take a pinned page: nothing changes for the program. */
	if (mmu_notifier_range_blockable(range) &&
	    !(current->flags & PF_MEMALLOC))
		adma_line_drain(line);
	return true;
}

static const struct mmu_interval_notifier_ops adma_line_ops = {
	.invalidate = adma_line_invalidate,
};

/* With what adma_line_new() puts behind it. */
size_t adma_line_size(void)
{
	return sizeof(struct adma_line) +
	       ADMA_LINE_PAGES * sizeof(struct page *) +
	       adma_nr_devices * (sizeof(struct adma_mapping) +
				  ADMA_LINE_PAGES * (sizeof(dma_addr_t) + 1));
}

struct adma_line *adma_line_new(struct adma_file *file, u64 number, bool write,
				enum adma_kind kind)
{
	size_t nr = ADMA_LINE_PAGES;
	struct adma_line *line;
	unsigned int i;
	void *room;

	line = adma_line_alloc();
	if (!line)
		return ERR_PTR(-ENOMEM);
	room = line + 1;
	line->mapping = room;
	room += adma_nr_devices * sizeof(*line->mapping);
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
	line->kind = kind;
	line->write = write;
	INIT_LIST_HEAD(&line->young);
	INIT_LIST_HEAD(&line->lru);
	INIT_LIST_HEAD(&line->uses);
	mutex_init(&line->fill);
	spin_lock_init(&line->lock);
	line->file = file;
	if (kind != ADMA_PLAIN) {
		int ret = mmu_interval_notifier_insert(&line->notifier, file->mm,
						       adma_line_start(line),
						       nr * PAGE_SIZE,
						       &adma_line_ops);

		if (ret) {
			adma_line_free(line);
			return ERR_PTR(ret);
		}
	}
	adma_file_get(file);
	return line;
}

/*
 * Lines in requests
 */

void adma_use_begin(struct adma_use *use, struct adma_line *line)
{
	use->line = line;
	use->leg = NULL;
	use->last = 0;
	spin_lock(&line->lock);
	list_add_tail(&use->list, &line->uses);
	spin_unlock(&line->lock);
}

void adma_use_end(struct adma_use *use)
{
	struct adma_line *line = use->line;

	spin_lock(&line->lock);
	list_del(&use->list);
	spin_unlock(&line->lock);
	adma_line_put(line);
}

/*
 * Transfer number @last of the leg, soon to be submitted, touches the line.
 * False: the line has died, and with it what the transfer is made of.
 */
bool adma_use_claim(struct adma_use *use, struct adma_leg *leg,
		    unsigned int last)
{
	struct adma_line *line = use->line;
	bool alive;

	spin_lock(&line->lock);
	alive = !line->dead;
	if (alive) {
		use->leg = leg;
		use->last = last;
		use->since = jiffies;
	}
	spin_unlock(&line->lock);
	return alive;
}

/* It was not submitted after all; number @last is the last one that was. */
void adma_use_disclaim(struct adma_use *use, unsigned int last)
{
	spin_lock(&use->line->lock);
	use->last = last;
	spin_unlock(&use->line->lock);
}

int adma_pin_init(void)
{
	/* Memory may be short because of the pages that it lets go. */
	adma_reaper = alloc_workqueue("adma_reaper",
				      WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	return adma_reaper ? 0 : -ENOMEM;
}

void adma_pin_exit(void)
{
	destroy_workqueue(adma_reaper);
}
