// SPDX-License-Identifier: GPL-2.0
/*
 * Pinned ranges: pages of user memory that are pinned and mapped together.
 *
 * What the program unmaps, remaps, discards, truncates or shares by fork is
 * forgotten at once: the notifier marks the range dead, so that no later copy
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
#include <linux/sched.h>

#include "adma.h"
#include "trace.h"

/* Between buffers there often are guard pages. */
#define ADMA_MAX_HOLES	8

/* How often pages are pinned anew that have changed while they were pinned. */
#define ADMA_TRIES	8

static unsigned long adma_range_start(const struct adma_range *range)
{
	return range->index * ADMA_RANGE_SIZE;
}

/*
 * Pinning and mapping
 */

static void adma_range_unpin(struct adma_range *range, unsigned int at,
			     unsigned int count, bool dirty)
{
	unpin_user_pages_dirty_lock(range->pages + at, count, dirty);
	adma_count(ADMA_STAT_PINNED_PAGES, -(s64)count);
	adma_uncharge_pages(range->file, count);
}

/*
 * Pins @count pages from @at on; without @may_fault only those that are there.
 * Answers how many, or ESTALE when the mapping changes meanwhile.
 */
static int adma_range_pin(struct adma_range *range, unsigned int at,
			  unsigned int count, bool may_fault)
{
	unsigned long addr = adma_range_start(range) + at * PAGE_SIZE;
	unsigned int flags = range->write ? FOLL_WRITE : 0;
	unsigned long seq;
	int got, ret;
	bool stale;

	/* Whoever reaches a buffer of ours brings another memory map along. */
	if (WARN_ON_ONCE(current->mm != range->file->mm))
		return -EFAULT;
	if (range->kind >= ADMA_EXPORTED)
		flags |= FOLL_LONGTERM;
	if (!may_fault)
		flags |= FOLL_NOFAULT;
	/* For what nobody has asked for nobody else has to go. */
	ret = adma_charge_pages(range->file, count, may_fault);
	if (ret)
		return ret;
	seq = mmu_interval_read_begin(&range->notifier);
	got = pin_user_pages_fast(addr, count, flags, range->pages + at);
	if (got <= 0) {
		adma_uncharge_pages(range->file, count);
		/* A killed caller must not see a number meant for restarts. */
		if (got == -ERESTARTSYS || got == -EINTR)
			return -EINTR;
		return got == -ENOMEM ? got : -EFAULT;
	}
	adma_uncharge_pages(range->file, count - got);
	adma_count(ADMA_STAT_PINS, got);
	adma_count(ADMA_STAT_PINNED_PAGES, got);

	spin_lock(&range->lock);
	stale = range->dead || mmu_interval_read_retry(&range->notifier, seq);
	if (!stale && (got == count || !may_fault))
		bitmap_set(range->pinned, at, got);
	spin_unlock(&range->lock);
	if (stale || (got < count && may_fault)) {
		/* A partial pin is still a pin. */
		adma_range_unpin(range, at, got, false);
		return stale ? -ESTALE : -EFAULT;
	}
	if (range->kind == ADMA_KEPT)
		adma_range_grown(range);
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

static enum dma_data_direction adma_range_dir(const struct adma_range *range)
{
	return range->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE;
}

/* Maps what lies together in one go, and what is pinned and not yet mapped. */
static int adma_range_map(struct adma_range *range, unsigned int first,
			  unsigned int end, unsigned int device)
{
	struct adma_mapping *map = &range->mapping[device];
	struct device *dev = adma_devices[device];
	unsigned int most = max_t(size_t, 1, min_t(size_t, ADMA_RANGE_PAGES,
				  dma_max_mapping_size(dev) >> PAGE_SHIFT));
	unsigned int at, i, run;

	for (at = first; at < end; at += run) {
		struct page *page = range->pages[at];
		dma_addr_t addr;

		run = 1;
		if (!test_bit(at, range->pinned) || test_bit(at, map->mapped))
			continue;
		while (run < most && at + run < end &&
		       test_bit(at + run, range->pinned) &&
		       !test_bit(at + run, map->mapped) &&
		       page_to_pfn(range->pages[at + run]) ==
		       page_to_pfn(page) + run)
			run++;
		/* No mapping here ever needs a sync, see below. */
		addr = dma_map_page_attrs(dev, page, 0, run * PAGE_SIZE,
					  adma_range_dir(range),
					  DMA_ATTR_SKIP_CPU_SYNC);
		if (dma_mapping_error(dev, addr))
			return -ENOMEM;
		/* A bounce buffer costs more than the engine saves. */
		if (!adma_reaches(dev, addr, page)) {
			dma_unmap_page_attrs(dev, addr, run * PAGE_SIZE,
					     adma_range_dir(range),
					     DMA_ATTR_SKIP_CPU_SYNC);
			return -EIO;
		}
		map->run[at] = run;
		for (i = 0; i < run; i++)
			map->addr[at + i] = addr + i * PAGE_SIZE;
		/* Pairs with adma_range_ready(): the address comes first. */
		smp_wmb();
		for (i = 0; i < run; i++)
			set_bit(at + i, map->mapped);
	}
	return 0;
}

/* Whether pages are pinned, and mapped for a device. Takes no lock. */
bool adma_range_ready(struct adma_range *range, u64 addr, size_t len,
		      unsigned int device)
{
	unsigned int first = adma_page_of(addr);
	unsigned int end = first + adma_pages_of(addr, len);

	if (find_next_zero_bit(range->mapping[device].mapped, end, first) < end)
		return false;
	/* Pairs with adma_range_map(): then the addresses are there. */
	smp_rmb();
	return true;
}

/*
 * Sees to it that pages of a range are pinned, and mapped for a device. Without
 * @may_fault those that are there, until there are too many holes. EBUSY when
 * somebody else is at it: he may be waiting for a page that only the caller
 * can provide (userfaultfd).
 */
int adma_range_fill(struct adma_range *range, unsigned int first,
		    unsigned int count, unsigned int device, bool may_fault,
		    unsigned int *pinned)
{
	unsigned int end = first + count, at = first, holes = 0, tries = 0;
	int ret = 0;

	if (!mutex_trylock(&range->fill))
		return -EBUSY;
	while ((at = find_next_zero_bit(range->pinned, end, at)) < end) {
		unsigned int stop = find_next_bit(range->pinned, end, at);

		/* To unshare a page that the child of a fork has changes it. */
		do {
			ret = adma_range_pin(range, at, stop - at, may_fault);
		} while (ret == -ESTALE && may_fault &&
			 !READ_ONCE(range->dead) && tries++ < ADMA_TRIES);
		trace_adma_pin(adma_range_start(range) + at * PAGE_SIZE,
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
		    ++holes > ADMA_MAX_HOLES)
			break;
		at++;
	}
	range->device = device;
	ret = adma_range_map(range, first, end, device);
out_unlock:
	mutex_unlock(&range->fill);
	return ret;
}

/*
 * Pages are a destination. Neighbours that were only pinned along with them stay
 * as clean as they are.
 */
void adma_range_written(struct adma_range *range, u64 addr, size_t len)
{
	unsigned int at = adma_page_of(addr);
	unsigned int end = at + adma_pages_of(addr, len);

	while ((at = find_next_zero_bit(range->written, end, at)) < end)
		set_bit(at, range->written);
}

/*
 * The end of a range
 */

static void adma_range_end(struct adma_range *range)
{
	unsigned int i, at;

	mmu_interval_notifier_remove(&range->notifier);
	for (i = 0; i < adma_nr_devices; i++) {
		struct adma_mapping *map = &range->mapping[i];

		for (at = 0; at < ADMA_RANGE_PAGES; at += map->run[at] ?: 1) {
			if (map->run[at])
				dma_unmap_page_attrs(adma_devices[i],
						     map->addr[at],
						     map->run[at] * PAGE_SIZE,
						     adma_range_dir(range),
						     DMA_ATTR_SKIP_CPU_SYNC);
		}
	}
	at = 0;
	while ((at = find_next_bit(range->pinned, ADMA_RANGE_PAGES, at)) <
	       ADMA_RANGE_PAGES) {
		bool dirty = test_bit(at, range->written);
		unsigned int stop = at + 1;

		while (stop < ADMA_RANGE_PAGES && test_bit(stop, range->pinned) &&
		       test_bit(stop, range->written) == dirty)
			stop++;
		adma_range_unpin(range, at, stop - at, dirty);
		at = stop;
	}
	adma_file_put(range->file);
	adma_range_free(range);
}

/*
 * Lets go of the file's ranges that nobody holds any more. It may wait for the
 * locks of their pages, and for the end of munmap(): of no other process.
 */
void adma_ranges_reap(struct adma_file *file)
{
	struct adma_range *range, *next;
	unsigned int ended = 0;
	LIST_HEAD(gone);

	spin_lock(&file->lock);
	list_splice_init(&file->gone, &gone);
	spin_unlock(&file->lock);
	list_for_each_entry_safe(range, next, &gone, list) {
		adma_range_end(range);
		ended++;
	}
	spin_lock(&file->lock);
	file->leaving -= ended;
	spin_unlock(&file->lock);
	if (ended)
		wake_up_all(&file->wait);
}

/* One for each file and not for each range: munmap() gives up hundreds. */
void adma_reap_work(struct work_struct *work)
{
	struct adma_file *file = container_of(work, struct adma_file, reap);

	adma_ranges_reap(file);
	adma_file_put(file);
}

static void adma_range_release(struct kref *kref)
{
	struct adma_range *range = container_of(kref, struct adma_range, kref);
	struct adma_file *file = range->file;

	spin_lock(&file->lock);
	list_add_tail(&range->list, &file->gone);
	file->leaving++;
	/* The work's own hold; it cannot get past the lock before. */
	if (queue_work(adma_reaper, &file->reap))
		kref_get(&file->kref);
	spin_unlock(&file->lock);
}

void adma_range_put(struct adma_range *range)
{
	kref_put(&range->kref, adma_range_release);
}

/*
 * Changes of the mapping
 */

/*
 * Waits for the transfers of requests that have begun by now. It asks the
 * channels itself: whoever has submitted the transfers may not have issued them
 * yet, may not have asked for an interrupt, and may be waiting for the caller,
 * or be the caller.
 */
static void adma_range_drain(struct adma_range *range)
{
	unsigned long since;
	unsigned int i, us;

	/* Pairs with adma_chan_req_send(): it sees the range dead, or we that. */
	smp_mb();
	since = jiffies;	/* whoever begins later sees it in any case */
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_channel *ch = &adma_channels[i];

		for (us = 20; adma_channel_busy(ch, range->file, since);
		     us = min(2 * us, 2000U)) {
			adma_channel_poll(ch);
			if (!adma_channel_busy(ch, range->file, since))
				break;
			/* To ask is an access to the device: not too often. */
			usleep_range(us, 2 * us);
		}
	}
}

/* Unmap, remap, discard, truncate, fork, exit. */
static bool adma_range_invalidate(struct mmu_interval_notifier *notifier,
				  const struct mmu_notifier_range *change,
				  unsigned long seq)
{
	struct adma_range *range =
		container_of(notifier, struct adma_range, notifier);
	unsigned long start = adma_range_start(range);
	unsigned int first = (max(change->start, start) - start) >> PAGE_SHIFT;
	unsigned int stop = DIV_ROUND_UP(min(change->end, start + ADMA_RANGE_SIZE) -
					 start, PAGE_SIZE);
	bool hit;

	spin_lock(&range->lock);
	/* Whoever is just pinning pages of it begins again. */
	mmu_interval_set_seq(notifier, seq);
	/* Pages that are pinned, and not only their neighbours? */
	hit = find_next_bit(range->pinned, stop, first) < stop;
	if (hit)
		WRITE_ONCE(range->dead, true);
	spin_unlock(&range->lock);
	if (!hit)
		return true;
	trace_adma_invalidate(change->start, change->end);
	adma_range_forget(range, ADMA_STAT_INVALIDATIONS);
	adma_exports_void(range);
	/*
	 * Whoever has transfers under way holds it. Reclaim cannot take a pinned
	 * page: nothing changes for the program.
	 */
	if (kref_read(&range->kref) && mmu_notifier_range_blockable(change) &&
	    !(current->flags & PF_MEMALLOC))
		adma_range_drain(range);
	return true;
}

static const struct mmu_interval_notifier_ops adma_range_ops = {
	.invalidate = adma_range_invalidate,
};

struct adma_range *adma_range_new(struct adma_file *file, u64 index, bool write,
				  enum adma_kind kind)
{
	struct adma_range *range = adma_range_alloc();
	int ret;

	if (!range)
		return ERR_PTR(-ENOMEM);
	kref_init(&range->kref);
	range->file = file;
	range->index = index;
	range->kind = kind;
	range->write = write;
	INIT_LIST_HEAD(&range->lru);
	mutex_init(&range->fill);
	spin_lock_init(&range->lock);
	ret = mmu_interval_notifier_insert(&range->notifier, file->mm,
					   adma_range_start(range),
					   ADMA_RANGE_SIZE, &adma_range_ops);
	if (ret) {
		adma_range_free(range);
		return ERR_PTR(ret);
	}
	kref_get(&file->kref);
	return range;
}

/*
 * Ranges side by side that are pinned, and mapped for every device, before
 * anything is copied. Each side of a copy between processes is such, made by
 * the process whose memory it is.
 */

static struct adma_range *adma_range_get_filled(struct adma_file *file,
						u64 addr, size_t len,
						bool write,
						unsigned int *pinned)
{
	unsigned int tries, device;
	struct adma_range *range;
	bool alone = false;
	int ret = 0;

	for (tries = 0; tries < ADMA_TRIES; tries++) {
		u64 index = adma_range_of(addr);

		range = alone ? adma_range_new(file, index, write, ADMA_EXPORTED) :
				adma_range_get(file, index, write, ADMA_EXPORTED);
		if (IS_ERR(range))
			return range;
		ret = 0;
		for (device = 0; device < adma_nr_devices && !ret; device++)
			ret = adma_range_fill(range, adma_page_of(addr),
					      adma_pages_of(addr, len), device,
					      true, pinned);
		if (!ret)
			return range;
		adma_range_put(range);
		if (ret == -ESTALE)
			continue;
		/*
		 * A range that others share may be busy, or be for writing where
		 * that is not allowed.
		 */
		if (alone || (ret != -EBUSY && ret != -EFAULT))
			break;
		alone = true;
	}
	return ERR_PTR(ret == -ESTALE ? -EFAULT : ret);
}

/*
 * Adds the ranges of a stretch of the caller's memory, pinned and mapped; also
 * with an error some of them.
 */
int adma_ranges_fill(struct adma_file *file, u64 addr, u64 len, bool write,
		     struct adma_range **range, unsigned int *nr,
		     unsigned int *pinned)
{
	u64 end = addr + len;

	while (addr < end) {
		size_t part = min_t(u64, adma_range_rest(addr), end - addr);

		range[*nr] = adma_range_get_filled(file, addr, part, write,
						   pinned);
		if (IS_ERR(range[*nr]))
			return PTR_ERR(range[*nr]);
		++*nr;
		addr += part;
	}
	return 0;
}
