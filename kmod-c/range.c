// SPDX-License-Identifier: GPL-2.0
/*
 * Pinned ranges: pages of user memory that are pinned and mapped together, and
 * given up when the program changes their mapping (see README.md, "What munmap
 * waits for").
 *
 * Locks, outer first: adma_mems_lock (mutex), mem->lock, range->lock. The MMU
 * notifier takes mem->lock and range->lock one after the other; both are never
 * held where memory is allocated.
 */
#include <linux/cred.h>
#include <linux/hugetlb.h>
#include <linux/iommu.h>
#include <linux/list_lru.h>
#include <linux/magic.h>
#include <linux/sched/mm.h>
#include <linux/shmem_fs.h>

#include "compat.h"
#include "range.h"

/* How often pages are pinned anew that have changed while they were pinned. */
#define ADMA_TRIES	8

/*
 * How long after its submission a change of the mapping waits for a transfer.
 * ioatdma ends a hung channel sooner; after that the pins alone keep others safe.
 */
#define ADMA_LINGER_MS	3000

struct adma_device adma_devices[ADMA_MAX_CHANNELS];
unsigned int adma_nr_devices;
struct kmem_cache *adma_range_slab;
struct list_lru adma_lru;	/* kept ranges, by memory control group */
struct workqueue_struct *adma_reapers[2];	/* see struct adma_reaper */

static unsigned long adma_range_start(const struct adma_range *range)
{
	return range->index * ADMA_RANGE_SIZE;
}

/*
 * F_SEAL_WRITE fails while pages of a memory file are pinned: such ranges are not
 * kept, unless no seal can be added any more. The inode may be on its way out.
 */
static bool adma_page_sealable(struct page *page)
{
	struct address_space *mapping;
	unsigned int seals = F_SEAL_SEAL;
	struct inode *inode;

	if (PageAnon(page))
		return false;
	rcu_read_lock();
	mapping = READ_ONCE(page_folio(page)->mapping);
	inode = mapping ? READ_ONCE(mapping->host) : NULL;
	if (inode && inode->i_sb->s_magic == TMPFS_MAGIC)
		seals = READ_ONCE(SHMEM_I(inode)->seals);
#ifdef CONFIG_HUGETLBFS
	if (inode && inode->i_sb->s_magic == HUGETLBFS_MAGIC)
		seals = READ_ONCE(HUGETLBFS_I(inode)->seals);
#endif
	rcu_read_unlock();
	return !(seals & F_SEAL_SEAL);
}

/*
 * Pins pages, or where @gfp does not allow to wait those that are there: neither a
 * page nor mmap_lock is waited for then.
 */
static long adma_pin(unsigned long addr, int count, unsigned int flags,
		     struct page **pages, gfp_t gfp)
{
	long got;

	if (gfpflags_allow_blocking(gfp))
		return pin_user_pages_fast(addr, count, flags, pages);
	if (!mmap_read_trylock(current->mm))
		return -EAGAIN;
	got = adma_pin_user_pages(addr, count, flags | FOLL_NOFAULT, pages);
	mmap_read_unlock(current->mm);
	return got;
}

/* Returns -ESTALE if the range has died, or its mapping changes all the time. */
static int adma_range_pin(struct adma_range *range, unsigned int at, int count,
			  gfp_t gfp)
{
	unsigned long addr = adma_range_start(range) + at * PAGE_SIZE;
	/* For long, always: a silent channel may keep any pin for good. */
	unsigned int flags = FOLL_LONGTERM | (range->write ? FOLL_WRITE : 0);
	struct page **pages = range->pages + at;
	int i, got, ret, tries = ADMA_TRIES;
	unsigned long seq;

	/* A copier that reaches an export has another memory map. */
	if (WARN_ON_ONCE(current->mm != range->mem->mm))
		return -EFAULT;
	/* To unshare a page that the child of a fork has changes the mapping. */
	do {
		seq = mmu_interval_read_begin(&range->notifier);
		got = adma_pin(addr, count, flags, pages, gfp);
		if (got < count) {
			/* A partial pin is still a pin. */
			if (got > 0)
				unpin_user_pages(pages, got);
			return got == -ENOMEM ? got : -EFAULT;
		}
		ret = adma_charge(range->mem, pages, count);
		if (ret) {
			unpin_user_pages(pages, count);
			return ret;
		}
		spin_lock(&range->lock);
		if (range->dead || mmu_interval_read_retry(&range->notifier, seq))
			ret = -ESTALE;
		else
			bitmap_set(range->pinned, at, count);
		spin_unlock(&range->lock);
		if (ret) {
			adma_uncharge(range->mem, pages, count);
			unpin_user_pages(pages, count);
		}
	} while (ret && !READ_ONCE(range->dead) && --tries);
	if (ret)
		return ret;
	for (i = 0; i < count; i++) {
		if (adma_page_sealable(pages[i])) {
			adma_range_retire(range);
			break;
		}
	}
	adma_count(ADMA_STAT_PINS, count);
	adma_count(ADMA_STAT_PINNED_PAGES, count);
	return 0;
}

/*
 * Mapping
 */

/**
 * adma_reaches() - whether a device reaches a page itself
 * @dev: device
 * @addr: what the page is mapped to
 * @page: the page
 *
 * A bounce buffer costs more than the engine saves. Before 6.10 dma_need_sync()
 * says no to everything behind an IOMMU.
 */
bool adma_reaches(struct device *dev, dma_addr_t addr, struct page *page)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);

	if (IS_ENABLED(CONFIG_X86) && domain)
		return iommu_iova_to_phys(domain, addr) == page_to_phys(page);
	return !dma_need_sync(dev, addr);
}

/* As no bounce buffer is ever used, no mapping needs a sync. */
static void adma_unmap(struct adma_range *range, unsigned int device,
		       dma_addr_t addr, unsigned int pages)
{
	dma_unmap_page_attrs(adma_devices[device].dev, addr, pages * PAGE_SIZE,
			     range->write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE,
			     DMA_ATTR_SKIP_CPU_SYNC);
}

/**
 * adma_range_unmap() - unmap a range for one device
 * @range: range; the caller holds its lock
 * @device: number; nothing in flight touches what is mapped for it
 */
void adma_range_unmap(struct adma_range *range, unsigned int device)
{
	struct adma_mapping *map = &range->mapping[device];
	unsigned int at;

	lockdep_assert_held(&range->lock);
	for_each_set_bit(at, map->mapped, ADMA_RANGE_PAGES) {
		if (map->run[at])
			adma_unmap(range, device, map->addr[at], map->run[at]);
		map->run[at] = 0;
	}
	bitmap_zero(map->mapped, ADMA_RANGE_PAGES);
}

/* Maps what is pinned, what lies together in one go. */
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
			adma_unmap(range, device, addr, run);
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

/**
 * adma_range_ready() - whether bytes of a range are pinned and mapped
 * @range: range
 * @addr: address of the first byte
 * @len: bytes
 * @device: number of the device, or ADMA_EVERY_DEVICE
 *
 * Takes no lock.
 */
bool adma_range_ready(struct adma_range *range, u64 addr, size_t len,
		      unsigned int device)
{
	unsigned int i, first = adma_page_of(addr), end = adma_page_of(addr + len - 1) + 1;

	for (i = 0; i < adma_nr_devices; i++) {
		if ((i == device || (device == ADMA_EVERY_DEVICE &&
				     !READ_ONCE(adma_devices[i].gone))) &&
		    find_next_zero_bit(range->mapping[i].mapped, end, first) < end)
			return false;
	}
	/* Pairs with adma_range_map(): then the addresses are there. */
	smp_rmb();
	return true;
}

/**
 * adma_range_fill() - pin and map what is not
 * @range: range of the caller's process
 * @addr: address of the first byte
 * @len: bytes
 * @device: number of the device, or ADMA_EVERY_DEVICE
 * @gfp: whether to wait for pages
 * @pinned: increased by the pages that this has pinned
 *
 * Returns -EBUSY if another thread is at it: it may be waiting for a page that
 * only the caller can provide (userfaultfd).
 */
int adma_range_fill(struct adma_range *range, u64 addr, size_t len,
		    unsigned int device, gfp_t gfp, unsigned int *pinned)
{
	unsigned int first = adma_page_of(addr), end = adma_page_of(addr + len - 1) + 1;
	unsigned int i, at = first, stop;
	int ret = 0;

	if (!mutex_trylock(&range->fill))
		return -EBUSY;
	for_each_clear_bitrange_from(at, stop, range->pinned, end) {
		ret = adma_range_pin(range, at, stop - at, gfp);
		if (ret)
			break;
		*pinned += stop - at;
	}
	spin_lock(&range->lock);
	for (i = 0; i < adma_nr_devices && !ret; i++) {
		if (i == device || (device == ADMA_EVERY_DEVICE &&
				    !READ_ONCE(adma_devices[i].gone)))
			ret = adma_range_map(range, first, end, i);
	}
	spin_unlock(&range->lock);
	mutex_unlock(&range->fill);
	return ret;
}

/*
 * The end of a range
 */

static void adma_range_free(struct rcu_head *rcu)
{
	kmem_cache_free(adma_range_slab,
			container_of(rcu, struct adma_range, rcu));
}

/* Anonymous pages need no lock to be marked dirty; pages of files do. */
static bool adma_range_needs_lock(const struct adma_range *range)
{
	unsigned int at;

	for_each_set_bit(at, range->pinned, ADMA_RANGE_PAGES) {
		if (range->write && !PageAnon(range->pages[at]))
			return true;
	}
	return false;
}

void adma_range_reap(struct adma_range *range)
{
	bool locks = adma_range_needs_lock(range);
	struct adma_mem *mem = range->mem;
	unsigned int i, at, stop;

	mmu_interval_notifier_remove(&range->notifier);
	spin_lock(&mem->lock);
	spin_lock(&range->lock);
	for (i = 0; i < adma_nr_devices; i++)
		adma_range_unmap(range, i);
	spin_unlock(&range->lock);
	list_del(&range->all);
	spin_unlock(&mem->lock);
	for_each_set_bitrange(at, stop, range->pinned, ADMA_RANGE_PAGES) {
		adma_uncharge(mem, range->pages + at, stop - at);
		adma_count(ADMA_STAT_PINNED_PAGES, -(s64)(stop - at));
		for (i = at; range->write && !locks && i < stop; i++)
			set_page_dirty(range->pages[i]);
		unpin_user_pages_dirty_lock(range->pages + at, stop - at, locks);
	}
	atomic_dec(&mem->leaving);
	call_rcu(&range->rcu, adma_range_free);
	adma_mem_put(mem);
}

static void adma_range_release(struct kref *kref)
{
	struct adma_range *range = container_of(kref, struct adma_range, kref);
	bool locks = adma_range_needs_lock(range);
	struct adma_mem *mem = range->mem;

	spin_lock(&mem->lock);
	list_add_tail(&range->lru, &mem->reaper[locks].ranges);
	atomic_inc(&mem->leaving);
	/* The work's own reference; it cannot get past the lock before. */
	if (queue_work(adma_reapers[locks], &mem->reaper[locks].work))
		kref_get(&mem->kref);
	spin_unlock(&mem->lock);
}

void adma_range_put(struct adma_range *range)
{
	kref_put(&range->kref, adma_range_release);
}

/**
 * adma_range_retire() - take a range out of the table
 * @range: range, which stays while it is used
 *
 * Returns whether it was there.
 */
bool adma_range_retire(struct adma_range *range)
{
	struct adma_mem *mem = range->mem;

	if (xa_cmpxchg(&mem->table, adma_key(range->index, range->write), range,
		       NULL, 0) != range)
		return false;
	list_lru_del_obj(&adma_lru, &range->lru);
	atomic_dec(&mem->kept);
	adma_range_put(range);
	return true;
}

/*
 * A change of the mapping
 */

/**
 * adma_wait_for_flight() - wait until no such transfer is in flight
 * @what: which transfers; none begins any more
 * @timeout: jiffies; 0: only looks
 * @interruptible: whether signals end the wait
 *
 * Returns what is left of @timeout, 0 if it has passed, or -ERESTARTSYS.
 */
int adma_wait_for_flight(const struct adma_flight *what, long timeout,
			 bool interruptible)
{
	long left = max(timeout, 1L);
	unsigned int i;

	/* Pairs with adma_chan_req_send(): it sees what we have set, or we that. */
	smp_mb();
	for (i = 0; i < adma_nr_channels && left > 0; i++) {
		struct adma_channel *ch = &adma_channels[i];

		if (!adma_in_flight(ch, what))
			continue;
		/* The last one may have completed without an interrupt so far. */
		adma_channel_poll(ch);
		if (!timeout)
			left = !adma_in_flight(ch, what);
		else if (interruptible)
			left = wait_event_interruptible_timeout(ch->wait,
								!adma_in_flight(ch, what),
								left);
		else
			left = wait_event_timeout(ch->wait,
						  !adma_in_flight(ch, what),
						  left);
	}
	return left;
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
	struct adma_flight what = {
		.owner = range->mem,
		.max_age = msecs_to_jiffies(ADMA_LINGER_MS),
	};
	bool hit;

	spin_lock(&range->lock);
	/* A thread that is just pinning pages of it begins again. */
	mmu_interval_set_seq(notifier, seq);
	/* Pages that are pinned, and not only their neighbours? */
	hit = find_next_bit(range->pinned, stop, first) < stop;
	if (hit)
		WRITE_ONCE(range->dead, true);
	spin_unlock(&range->lock);
	if (!hit)
		return true;
	if (adma_range_retire(range))
		adma_count_for(range->mem, ADMA_STAT_INVALIDATIONS);
	range->mem->died(range->mem, range);
	/*
	 * Whatever has transfers in flight refers to it. Reclaim cannot take a
	 * pinned page: nothing changes for the program.
	 */
	if (kref_read(&range->kref) && mmu_notifier_range_blockable(change) &&
	    !(current->flags & PF_MEMALLOC)) {
		/* What begins later sees that it is dead. */
		what.begun_by = jiffies;
		adma_wait_for_flight(&what, what.max_age, false);
	}
	return true;
}

static const struct mmu_interval_notifier_ops adma_range_ops = {
	.invalidate = adma_range_invalidate,
};

struct adma_range *adma_range_new(struct adma_mem *mem, u64 index, bool write,
				  gfp_t gfp)
{
	struct adma_range *range;
	int ret;

	range = kmem_cache_alloc_lru(adma_range_slab, &adma_lru,
				     gfp | __GFP_ZERO);
	if (!range)
		return ERR_PTR(-ENOMEM);
	kref_init(&range->kref);
	range->mem = mem;
	range->index = index;
	range->write = write;
	INIT_LIST_HEAD(&range->lru);
	mutex_init(&range->fill);
	spin_lock_init(&range->lock);
	ret = mmu_interval_notifier_insert(&range->notifier, mem->mm,
					   adma_range_start(range),
					   ADMA_RANGE_SIZE, &adma_range_ops);
	if (ret) {
		kmem_cache_free(adma_range_slab, range);
		return ERR_PTR(ret);
	}
	kref_get(&mem->kref);
	spin_lock(&mem->lock);
	list_add(&range->all, &mem->ranges);
	spin_unlock(&mem->lock);
	return range;
}
