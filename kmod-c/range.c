// SPDX-License-Identifier: GPL-2.0
/*
 * Pinned ranges: pages of user memory that are pinned and mapped for DMA together,
 * and invalidated when the program changes their mapping (see README.md, "What
 * munmap waits for").
 */
#include <linux/backing-dev.h>
#include <linux/hugetlb.h>
#include <linux/magic.h>
#include <linux/shmem_fs.h>

#include "compat.h"
#include "range.h"

/*
 * How long after its submission a transfer delays a change of the mapping. ioatdma
 * resets a hung channel sooner; after that only the pins keep others safe.
 */
#define ADMA_LINGER_MS	3000

/* Delay before a page that was locked is tried again. */
#define ADMA_REAP_MS	10

struct adma_device adma_devices[ADMA_MAX_CHANNELS];
unsigned int adma_nr_devices;
struct kmem_cache *adma_range_slab;
struct list_lru adma_lru;	/* kept ranges, by memory control group */
struct workqueue_struct *adma_reapers;

static unsigned long adma_range_start(const struct adma_range *range)
{
	return range->index * ADMA_RANGE_SIZE;
}

/*
 * F_SEAL_WRITE fails while pages of a memory file are pinned: such ranges are not
 * kept, unless no seal can be added any more. The inode may be going away.
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
 * Returns whether a page may be pinned for long and written: not if its file is
 * written back, which needs to know when the page changes. Kernels since 6.5 refuse
 * such pins themselves.
 */
static bool adma_page_writable(struct page *page)
{
	struct address_space *mapping;
	bool ret;

	if (PageAnon(page))
		return true;
	rcu_read_lock();
	mapping = READ_ONCE(page_folio(page)->mapping);
	/* Truncated: nothing is written back any more. */
	ret = !mapping || !mapping->host || !mapping_can_writeback(mapping);
	rcu_read_unlock();
	return ret;
}

/* Returns -ESTALE if the mapping has changed meanwhile. */
static int adma_range_pin(struct adma_range *range, unsigned int at, int count)
{
	unsigned long addr = adma_range_start(range) + at * PAGE_SIZE;
	/* Always long-term: a silent channel may keep any pin for good. */
	unsigned int flags = FOLL_LONGTERM | (range->write ? FOLL_WRITE : 0);
	struct page **pages = range->pages + at;
	unsigned long seq;
	int i, got, ret;

	/* A copier that reaches an export has another memory map. */
	if (WARN_ON_ONCE(current->mm != range->mem->mm))
		return -EFAULT;
	seq = mmu_interval_read_begin(&range->notifier);
	got = pin_user_pages_fast(addr, count, flags, pages);
	if (got < count) {
		ret = got == -ENOMEM ? got : -EFAULT;
		goto err_unpin;	/* a partial pin is still a pin */
	}
	for (i = 0; range->write && i < count; i++) {
		if (!adma_page_writable(pages[i])) {
			ret = -EFAULT;
			goto err_unpin;
		}
	}
	ret = adma_charge(range->mem, pages, count);
	if (ret)
		goto err_unpin;
	spin_lock(&range->lock);
	if (range->dead || mmu_interval_read_retry(&range->notifier, seq))
		ret = -ESTALE;
	else
		bitmap_set(range->pinned, at, count);
	spin_unlock(&range->lock);
	if (ret)
		goto err_uncharge;
	for (i = 0; i < count; i++) {
		if (adma_page_sealable(pages[i])) {
			adma_range_retire(range);
			break;
		}
	}
	adma_count(ADMA_STAT_PINS, count);
	adma_count(ADMA_STAT_PINNED_PAGES, count);
	return 0;

err_uncharge:
	adma_uncharge(range->mem, pages, count);
err_unpin:
	if (got > 0)
		unpin_user_pages(pages, got);
	return ret;
}

/*
 * Mapping
 */

/* Caller guarantees that nothing in flight touches the mapping. */
static void adma_range_unmap(struct adma_range *range, unsigned int device)
{
	struct adma_mapping *map = &range->mapping[device];
	unsigned int at;

	lockdep_assert_held(&range->mem->maps);
	for_each_set_bit(at, map->mapped, ADMA_RANGE_PAGES) {
		if (map->run[at])
			adma_unmap(adma_devices[device].dev, map->addr[at],
				   map->run[at], range->write);
		map->run[at] = 0;
	}
	bitmap_zero(map->mapped, ADMA_RANGE_PAGES);
}

/* Unmaps everything for a device that goes away. */
void adma_mems_unmap(unsigned int device)
{
	struct adma_range *range;
	struct adma_mem *mem;

	mutex_lock(&adma_mems_lock);
	list_for_each_entry(mem, &adma_mems, all) {
		mutex_lock(&mem->maps);
		list_for_each_entry(range, &mem->ranges, all)
			adma_range_unmap(range, device);
		mutex_unlock(&mem->maps);
		adma_words_unmap(mem, device);
	}
	mutex_unlock(&adma_mems_lock);
}

/* Maps what is pinned, contiguous pages in one go. */
static int adma_range_map(struct adma_range *range, unsigned int at,
			  unsigned int end, unsigned int device)
{
	struct adma_mapping *map = &range->mapping[device];
	unsigned int i, run;

	lockdep_assert_held(&range->mem->maps);
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
		if (!adma_map(adma_devices[device].dev, page[0], run,
			      range->write, &addr))
			return -EIO;
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

/* Returns whether ranges that are mapped for @device are mapped for it too. */
static bool adma_device_wanted(unsigned int number, unsigned int device)
{
	return number == device || (device == ADMA_EVERY_DEVICE &&
				    !READ_ONCE(adma_devices[number].gone));
}

/* Returns whether bytes of a range are pinned and mapped. Takes no lock. */
bool adma_range_ready(struct adma_range *range, u64 addr, size_t len,
		      unsigned int device)
{
	unsigned int i, first = adma_page_of(addr), end = adma_page_of(addr + len - 1) + 1;

	for (i = 0; i < adma_nr_devices; i++) {
		if (adma_device_wanted(i, device) &&
		    find_next_zero_bit(range->mapping[i].mapped, end, first) < end)
			return false;
	}
	/* Pairs with adma_range_map(): then the addresses are there. */
	smp_rmb();
	return true;
}

/*
 * Pins and maps what is not, and adds the pages to @pinned. Returns -EBUSY if
 * another thread does so: it may be waiting for a page that only the caller can
 * provide (userfaultfd); -ESTALE if the mapping changes.
 */
int adma_range_fill(struct adma_range *range, u64 addr, size_t len,
		    unsigned int device, unsigned int *pinned)
{
	unsigned int first = adma_page_of(addr), end = adma_page_of(addr + len - 1) + 1;
	unsigned int i, at = first, stop;
	int ret = 0;

	if (!mutex_trylock(&range->fill))
		return -EBUSY;
	for_each_clear_bitrange_from(at, stop, range->pinned, end) {
		ret = adma_range_pin(range, at, stop - at);
		if (ret)
			break;
		*pinned += stop - at;
	}
	mutex_lock(&range->mem->maps);
	for (i = 0; i < adma_nr_devices && !ret; i++) {
		if (adma_device_wanted(i, device))
			ret = adma_range_map(range, first, end, i);
	}
	mutex_unlock(&range->mem->maps);
	mutex_unlock(&range->fill);
	return ret;
}

/*
 * Retirement, invalidation and reaping of a range
 */

static void adma_range_free(struct rcu_head *rcu)
{
	kmem_cache_free(adma_range_slab,
			container_of(rcu, struct adma_range, rcu));
}

/*
 * Unmaps, unpins and frees it. Returns false if a dirtied page of a file, or of the
 * swap cache, is locked: a network or FUSE file system may keep it so without limit.
 * Other pages need no lock to be marked dirty: reclaim adds no pinned page to the swap
 * cache, so one that is not in it stays out until it is unpinned.
 */
static bool adma_range_reap(struct adma_range *range)
{
	struct adma_mem *mem = range->mem;
	unsigned int i;

	if (!list_empty(&range->all)) {
		mmu_interval_notifier_remove(&range->notifier);
		mutex_lock(&mem->maps);
		for (i = 0; i < adma_nr_devices; i++)
			adma_range_unmap(range, i);
		list_del_init(&range->all);
		mutex_unlock(&mem->maps);
	}
	for_each_set_bit(i, range->pinned, ADMA_RANGE_PAGES) {
		struct page *page = range->pages[i];
		bool locked = range->write && (!PageAnon(page) ||
					       folio_test_swapcache(page_folio(page)));

		if (locked && !trylock_page(page))
			return false;
		if (range->write)
			set_page_dirty(page);
		if (locked)
			unlock_page(page);
		adma_uncharge(mem, &page, 1);
		unpin_user_page(page);
		__clear_bit(i, range->pinned);
		adma_count(ADMA_STAT_PINNED_PAGES, -1);
	}
	atomic_dec(&mem->leaving);
	call_rcu(&range->rcu, adma_range_free);
	return true;
}

/* Takes a reference for the work. */
static void adma_reap_later(struct adma_mem *mem, unsigned int ms)
{
	lockdep_assert_held(&mem->lock);
	if (queue_delayed_work(adma_reapers, &mem->reaper, msecs_to_jiffies(ms)))
		kref_get(&mem->kref);
}

/*
 * Unpins ranges without references. Waits for munmap(), so it is never called
 * inside the notifier.
 */
void adma_mem_reap(struct adma_mem *mem)
{
	struct adma_range *range, *next;
	LIST_HEAD(ranges);

	spin_lock(&mem->lock);
	list_splice_init(&mem->unused, &ranges);
	spin_unlock(&mem->lock);
	list_for_each_entry_safe(range, next, &ranges, lru) {
		list_del_init(&range->lru);
		if (adma_range_reap(range)) {
			adma_mem_put(mem);
			continue;
		}
		spin_lock(&mem->lock);
		list_add_tail(&range->lru, &mem->unused);
		adma_reap_later(mem, ADMA_REAP_MS);
		spin_unlock(&mem->lock);
	}
	wake_up_all(&mem->wait);
}

/* One work item for each file, not for each range: munmap() retires hundreds. */
void adma_ranges_reap(struct work_struct *work)
{
	struct adma_mem *mem =
		container_of(to_delayed_work(work), struct adma_mem, reaper);

	adma_mem_reap(mem);
	adma_mem_put(mem);
}

static void adma_range_release(struct kref *kref)
{
	struct adma_range *range = container_of(kref, struct adma_range, kref);
	struct adma_mem *mem = range->mem;

	spin_lock(&mem->lock);
	list_add_tail(&range->lru, &mem->unused);
	atomic_inc(&mem->leaving);
	adma_reap_later(mem, 0);
	spin_unlock(&mem->lock);
}

void adma_range_put(struct adma_range *range)
{
	kref_put(&range->kref, adma_range_release);
}

/* Takes a range out of the table. Returns whether it was there. */
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

/* Called for unmap, remap, discard, truncate, fork and exit. */
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

	if (change->event == MMU_NOTIFY_RELEASE && !READ_ONCE(range->mem->unmapped))
		WRITE_ONCE(range->mem->unmapped, jiffies ?: 1);
	spin_lock(&range->lock);
	/* A thread that is pinning its pages starts over. */
	mmu_interval_set_seq(notifier, seq);
	/* Skip changes that only touch neighbours of pinned pages. */
	hit = find_next_bit(range->pinned, stop, first) < stop;
	if (hit)
		WRITE_ONCE(range->dead, true);
	spin_unlock(&range->lock);
	if (!hit)
		return true;
	if (adma_range_retire(range))
		atomic64_inc(&range->mem->invalidations);
	range->mem->died(range->mem, range);
	/*
	 * Transfers in flight hold a reference. Reclaim cannot take a pinned page,
	 * so nothing changes for the program then.
	 */
	if (kref_read(&range->kref) && mmu_notifier_range_blockable(change) &&
	    !(current->flags & PF_MEMALLOC)) {
		/* Transfers that begin later see that the range is dead. */
		what.begun_by = jiffies;
		adma_wait_for_flight(&what, what.max_age, false);
	}
	return true;
}

static const struct mmu_interval_notifier_ops adma_range_ops = {
	.invalidate = adma_range_invalidate,
};

struct adma_range *adma_range_new(struct adma_mem *mem, u64 index, bool write)
{
	struct adma_range *range;
	int ret;

	range = kmem_cache_alloc_lru(adma_range_slab, &adma_lru,
				     GFP_KERNEL_ACCOUNT | __GFP_ZERO);
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
	mutex_lock(&mem->maps);
	list_add(&range->all, &mem->ranges);
	mutex_unlock(&mem->maps);
	return range;
}
