// SPDX-License-Identifier: GPL-2.0
/*
 * Pinned ranges: pages of user memory that are pinned and mapped together, and
 * given up when the program changes their mapping (see README.md, "What munmap
 * waits for").
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/list_lru.h>
#include <linux/sched.h>

#include "adma.h"
#include "trace.h"

/* How often pages are pinned anew that have changed while they were pinned. */
#define ADMA_TRIES	8

static unsigned long adma_range_start(const struct adma_range *range)
{
	return range->index * ADMA_RANGE_SIZE;
}

/* ESTALE: the range has died, or its mapping changes all the time. */
static int adma_range_pin(struct adma_range *range, unsigned int at, int count)
{
	unsigned long addr = adma_range_start(range) + at * PAGE_SIZE;
	unsigned int flags = (range->write ? FOLL_WRITE : 0) |
			     (range->longterm ? FOLL_LONGTERM : 0);
	int got, ret, tries = ADMA_TRIES;
	unsigned long seq;

	/* Whoever reaches a buffer of ours brings another memory map along. */
	if (WARN_ON_ONCE(current->mm != range->file->mm))
		return -EFAULT;
	ret = adma_charge_pages(range->file, count);
	if (ret)
		return ret;
	/* To unshare a page that the child of a fork has changes the mapping. */
	do {
		seq = mmu_interval_read_begin(&range->notifier);
		got = pin_user_pages_fast(addr, count, flags, range->pages + at);
		spin_lock(&range->lock);
		ret = 0;
		if (got < count)
			ret = got == -ENOMEM ? got : -EFAULT;
		else if (range->dead ||
			 mmu_interval_read_retry(&range->notifier, seq))
			ret = -ESTALE;
		else
			bitmap_set(range->pinned, at, count);
		spin_unlock(&range->lock);
		/* A partial pin is still a pin. */
		if (ret && got > 0)
			unpin_user_pages(range->pages + at, got);
	} while (ret == -ESTALE && !READ_ONCE(range->dead) && --tries);
	trace_adma_pin(addr, count, ret);
	if (ret) {
		adma_uncharge_pages(range->file, count);
		return ret;
	}
	adma_count(ADMA_STAT_PINS, count);
	adma_count(ADMA_STAT_PINNED_PAGES, count);
	return 0;
}

/*
 * Whether the device reaches the page itself and not a bounce buffer, which
 * costs more than the engine saves. Before 6.10 dma_need_sync() says no to
 * everything behind an IOMMU.
 */
bool adma_reaches(struct device *dev, dma_addr_t addr, struct page *page)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	if (IS_ENABLED(CONFIG_X86) && domain)
		return iommu_iova_to_phys(domain, addr) == page_to_phys(page);
	return !dma_need_sync(dev, addr);
}

/* As no bounce buffer is ever used, no mapping needs a sync. */
static void adma_range_unmap(struct adma_range *range, unsigned int device,
			     dma_addr_t addr, unsigned int pages)
{
	dma_unmap_page_attrs(adma_devices[device].dev, addr, pages * PAGE_SIZE,
			     range->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE,
			     DMA_ATTR_SKIP_CPU_SYNC);
}

/* Nothing in flight touches what was mapped for the device. */
static void adma_range_unmap_all(struct adma_range *range, unsigned int device)
{
	struct adma_mapping *map = &range->mapping[device];
	unsigned int at;

	lockdep_assert_held(&range->lock);
	for_each_set_bit(at, map->mapped, ADMA_RANGE_PAGES) {
		if (map->run[at])
			adma_range_unmap(range, device, map->addr[at],
					 map->run[at]);
		map->run[at] = 0;
	}
	bitmap_zero(map->mapped, ADMA_RANGE_PAGES);
}

/* The device goes: nothing is mapped for it any more, see adma_range_map(). */
void adma_ranges_unmap(struct adma_file *file, unsigned int device)
{
	struct adma_range *range;

	spin_lock(&file->lock);
	list_for_each_entry(range, &file->ranges, all) {
		spin_lock(&range->lock);
		adma_range_unmap_all(range, device);
		spin_unlock(&range->lock);
	}
	spin_unlock(&file->lock);
}

/* Maps what is pinned, what lies together in one go. The caller holds the lock. */
static int adma_range_map(struct adma_range *range, unsigned int at,
			  unsigned int end, unsigned int device)
{
	struct adma_mapping *map = &range->mapping[device];
	struct device *dev = adma_devices[device].dev;
	unsigned int i, run;

	lockdep_assert_held(&range->lock);
	if (READ_ONCE(adma_devices[device].gone))
		return -EBUSY;
	for (; at < end; at += run) {
		struct page **page = range->pages + at;
		dma_addr_t addr;

		run = 1;
		if (test_bit(at, map->mapped))
			continue;
		while (at + run < end && !test_bit(at + run, map->mapped) &&
		       page_to_pfn(page[run]) == page_to_pfn(page[0]) + run)
			run++;
		addr = dma_map_page_attrs(dev, page[0], 0, run * PAGE_SIZE,
					  range->write ? DMA_BIDIRECTIONAL :
							 DMA_TO_DEVICE,
					  DMA_ATTR_SKIP_CPU_SYNC);
		if (dma_mapping_error(dev, addr))
			return -EIO;
		if (!adma_reaches(dev, addr, page[0])) {
			adma_range_unmap(range, device, addr, run);
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
 * Pins and maps what is not. EBUSY when somebody else is at it: he may be
 * waiting for a page that only the caller can provide (userfaultfd).
 */
static int adma_range_add(struct adma_range *range, u64 addr, size_t len,
			  unsigned int device, unsigned int *pinned)
{
	unsigned int at = adma_page_of(addr), stop, i;
	unsigned int end = at + adma_pages_of(addr, len);
	int ret = 0;

	if (!mutex_trylock(&range->fill))
		return -EBUSY;
	for_each_clear_bitrange_from(at, stop, range->pinned, end) {
		ret = adma_range_pin(range, at, stop - at);
		if (ret)
			break;
		*pinned += stop - at;
	}
	at = adma_page_of(addr);
	spin_lock(&range->lock);
	for (i = 0; i < adma_nr_devices && !ret; i++) {
		if (i == device || (device == ADMA_EVERY_DEVICE &&
				    !READ_ONCE(adma_devices[i].gone)))
			ret = adma_range_map(range, at, end, i);
	}
	spin_unlock(&range->lock);
	mutex_unlock(&range->fill);
	return ret;
}

/*
 * The next bytes, pinned and mapped. Answers their range, or another one for
 * them alone: pages that cannot be kept can be had for one copy all the same,
 * and a range may be busy, or be for writing where that is not allowed.
 */
struct adma_range *adma_range_fill(struct adma_range *range, u64 addr,
				   size_t len, bool write, unsigned int device,
				   unsigned int *pinned)
{
	struct adma_range *alone;
	int ret = -EFAULT, again;

	if (!range->no_longterm)
		ret = adma_range_add(range, addr, len, device, pinned);
	if (!ret)
		return range;
	if (!range->longterm || ret == -ESTALE)
		return ERR_PTR(ret);
	/* Its other pages may still serve, unless they are in the way. */
	if (ret != -EFAULT && ret != -EBUSY)
		adma_range_forget(range);
	alone = adma_range_new(range->file, range->index, write,
			       device == ADMA_EVERY_DEVICE);
	if (IS_ERR(alone))
		return alone;
	again = adma_range_add(alone, addr, len, device, pinned);
	if (again) {
		adma_range_put(alone);
		return ERR_PTR(again);
	}
	/* A page of a file, perhaps: it need not be asked for in vain again. */
	if (ret == -EFAULT && range->write == write && !alone->longterm)
		range->no_longterm = true;
	return alone;
}

/*
 * Adds the ranges of one side of a copy between processes, pinned and mapped
 * for every device by its owner; also with an error some of them.
 */
int adma_ranges_fill(struct adma_file *file, u64 addr, u64 len, bool write,
		     struct adma_range **range, unsigned int *nr,
		     unsigned int *pinned)
{
	struct adma_range *held, *filled;
	unsigned int tries = 0;
	u64 end = addr + len;

	while (addr < end) {
		size_t part = min_t(u64, adma_range_rest(addr), end - addr);

		held = adma_range_get(file, adma_range_of(addr), write, true);
		if (IS_ERR(held))
			return PTR_ERR(held);
		filled = adma_range_fill(held, addr, part, write,
					 ADMA_EVERY_DEVICE, pinned);
		if (filled != held)
			adma_range_put(held);
		if (filled == ERR_PTR(-ESTALE)) {
			if (tries++ == ADMA_TRIES)
				return -EFAULT;
			continue;
		}
		if (IS_ERR(filled))
			return PTR_ERR(filled);
		range[(*nr)++] = filled;
		addr += part;
	}
	return 0;
}

/* Nobody looks at it any more. */
static void adma_range_free(struct rcu_head *rcu)
{
	kmem_cache_free(adma_range_slab,
			container_of(rcu, struct adma_range, rcu));
}

static void adma_range_end(struct adma_range *range)
{
	unsigned int pages = bitmap_weight(range->pinned, ADMA_RANGE_PAGES);
	unsigned int i, at, stop;

	mmu_interval_notifier_remove(&range->notifier);
	spin_lock(&range->file->lock);
	spin_lock(&range->lock);
	for (i = 0; i < adma_nr_devices; i++)
		adma_range_unmap_all(range, i);
	spin_unlock(&range->lock);
	list_del(&range->all);
	spin_unlock(&range->file->lock);
	for_each_set_bitrange(at, stop, range->pinned, ADMA_RANGE_PAGES)
		unpin_user_pages_dirty_lock(range->pages + at, stop - at,
					    range->write);
	adma_count(ADMA_STAT_PINNED_PAGES, -(s64)pages);
	adma_uncharge_pages(range->file, pages);
	atomic_dec(&range->file->leaving);
	adma_file_put(range->file);
	call_rcu(&range->rcu, adma_range_free);
}

/*
 * Lets go of the file's ranges that nobody holds any more. It waits for the
 * locks of their pages, and for munmap(): never inside the notifier, which may
 * be called with these held.
 */
void adma_ranges_reap(struct adma_file *file)
{
	struct adma_range *range, *next;
	LIST_HEAD(gone);

	spin_lock(&file->lock);
	list_splice_init(&file->gone, &gone);
	spin_unlock(&file->lock);
	list_for_each_entry_safe(range, next, &gone, lru)
		adma_range_end(range);
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
	list_add_tail(&range->lru, &file->gone);
	atomic_inc(&file->leaving);
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
 * Waits for the transfers of requests that have begun by now. It asks the
 * channels itself: their submitter may not have issued them yet, nor asked for
 * an interrupt, and may be waiting for the caller, or be the caller.
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
			/* To ask is an access to the device: not too often. */
			if (adma_channel_busy(ch, range->file, since))
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
	if (adma_range_forget(range))
		adma_count_for(range->file, ADMA_STAT_INVALIDATIONS);
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
				  bool longterm)
{
	struct adma_range *range;
	int ret;

	range = kmem_cache_alloc_lru(adma_range_slab, &adma_lru,
				     GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!range)
		return ERR_PTR(-ENOMEM);
	kref_init(&range->kref);
	range->file = file;
	range->index = index;
	range->write = write;
	range->longterm = longterm;
	INIT_LIST_HEAD(&range->lru);
	mutex_init(&range->fill);
	spin_lock_init(&range->lock);
	ret = mmu_interval_notifier_insert(&range->notifier, file->mm,
					   adma_range_start(range),
					   ADMA_RANGE_SIZE, &adma_range_ops);
	if (ret) {
		kmem_cache_free(adma_range_slab, range);
		return ERR_PTR(ret);
	}
	kref_get(&file->kref);
	spin_lock(&file->lock);
	list_add(&range->all, &file->ranges);
	spin_unlock(&file->lock);
	return range;
}
