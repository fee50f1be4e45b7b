// SPDX-License-Identifier: GPL-2.0
/*
 * The memory of one file: what its pins are charged to (RLIMIT_MEMLOCK of the user
 * and VmPin of the process, as io_uring's are, and the file's own limit), and its
 * pages of words.
 *
 * A pinned page of a large folio keeps all of the folio in memory, so all of it is
 * charged, once for each file. Pages of hugetlbfs cannot be swapped in any case.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hugetlb.h>
#include <linux/iommu.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>

#include "range.h"

LIST_HEAD(adma_mems);
DEFINE_MUTEX(adma_mems_lock);	/* of the list, and of words */

unsigned long adma_keep_pages = (64UL << 20) / PAGE_SIZE;
module_param_named(keep_pages, adma_keep_pages, ulong, 0644);
MODULE_PARM_DESC(keep_pages, "pages that stay pinned between copies, for each open file (default 64 MiB)");

static unsigned long adma_max_pages = 2 * ((64UL << 20) / PAGE_SIZE + ADMA_MAX_PIECES);
module_param_named(max_pages, adma_max_pages, ulong, 0644);
MODULE_PARM_DESC(max_pages, "pages pinned for one open file at most (default: enough for 64 MiB)");

/* Part of a control group's memory that one file may pin. */
#define ADMA_MEMCG_PART	8

/*
 * Returns the pages that one file may pin for the caller. Pages in flight cannot be
 * swapped: where they are most of a control group's memory, the next page fault
 * gets the process killed.
 */
unsigned long adma_page_limit(void)
{
	unsigned long limit = READ_ONCE(adma_max_pages);
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg;

	rcu_read_lock();
	for (memcg = mem_cgroup_from_task(current); memcg;
	     memcg = parent_mem_cgroup(memcg))
		limit = min(limit, READ_ONCE(memcg->memory.max) / ADMA_MEMCG_PART);
	rcu_read_unlock();
#endif
	return limit;
}

/*
 * Adds @pins of a folio, or removes them. Returns the change in pages that are
 * held, or -ENOMEM.
 */
static long adma_folio_pins(struct adma_mem *mem, struct folio *folio, long pins)
{
	unsigned long pfn = folio_pfn(folio);
	void *old, *new = NULL;
	long before, ret;

	if (!folio_test_large(folio) || folio_test_hugetlb(folio))
		return abs(pins);
	xa_lock(&mem->folios);
	old = xa_load(&mem->folios, pfn);
	before = old ? xa_to_value(old) : 0;
	if (before + pins)
		new = xa_mk_value(before + pins);
	ret = xa_err(__xa_store(&mem->folios, pfn, new,
				GFP_NOWAIT | __GFP_ACCOUNT | __GFP_NOWARN));
	xa_unlock(&mem->folios);
	if (ret)
		return ret;
	return !before || !new ? folio_nr_pages(folio) : 0;
}

/* Charges pages (@sign 1) or uncharges them (-1). Returns how many. */
static unsigned int adma_add_pages(struct adma_mem *mem, struct page **pages,
				   unsigned int nr, int sign)
{
	unsigned int at, same;
	long held = 0, more;

	for (at = 0; at < nr; at += same) {
		struct folio *folio = page_folio(pages[at]);

		same = 1;
		while (at + same < nr && page_folio(pages[at + same]) == folio)
			same++;
		more = adma_folio_pins(mem, folio, sign * (long)same);
		if (more < 0)
			break;
		held += more;
	}
	atomic_long_add(sign * held, &mem->cred->user->locked_vm);
	atomic64_add(sign * held, &mem->mm->pinned_vm);
	atomic_long_add(sign * held, &mem->pages);
	return at;
}

void adma_uncharge(struct adma_mem *mem, struct page **pages, unsigned int nr)
{
	adma_add_pages(mem, pages, nr, -1);
}

/* Charges pinned pages. Returns -EAGAIN at the file's limit, -ENOMEM at the user's. */
int adma_charge(struct adma_mem *mem, struct page **pages, unsigned int nr)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned int done = adma_add_pages(mem, pages, nr, 1);
	int ret = 0;

	if (done < nr)
		ret = -ENOMEM;
	else if (atomic_long_read(&mem->pages) > adma_page_limit())
		ret = -EAGAIN;
	/* Without an audit record for each refusal. */
	else if (atomic_long_read(&mem->cred->user->locked_vm) > limit &&
		 !ns_capable_noaudit(&init_user_ns, CAP_IPC_LOCK))
		ret = -ENOMEM;
	if (ret)
		adma_uncharge(mem, pages, done);
	return ret;
}

/* Returns whether so many more pages can surely be charged. */
bool adma_has_room(const struct adma_mem *mem, unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;

	return atomic_long_read(&mem->pages) + pages <= adma_page_limit() &&
	       (atomic_long_read(&mem->cred->user->locked_vm) + pages <= limit ||
		ns_capable_noaudit(&init_user_ns, CAP_IPC_LOCK));
}

/* As no bounce buffer is ever used, no mapping needs a sync. */
void adma_unmap(struct device *dev, dma_addr_t addr, unsigned int pages, bool write)
{
	dma_unmap_page_attrs(dev, addr, pages * PAGE_SIZE,
			     write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE,
			     DMA_ATTR_SKIP_CPU_SYNC);
}

/*
 * Maps contiguous pages. Returns false if the device cannot reach them directly: a
 * bounce buffer costs more than the engine saves. Before 6.10 dma_need_sync() says
 * no to everything behind an IOMMU.
 */
bool adma_map(struct device *dev, struct page *page, unsigned int pages, bool write,
	      dma_addr_t *addr)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);
	bool reached;

	*addr = dma_map_page_attrs(dev, page, 0, pages * PAGE_SIZE,
				   write ? DMA_BIDIRECTIONAL : DMA_TO_DEVICE,
				   DMA_ATTR_SKIP_CPU_SYNC);
	if (dma_mapping_error(dev, *addr))
		return false;
	if (IS_ENABLED(CONFIG_X86) && domain)
		reached = iommu_iova_to_phys(domain, *addr) == page_to_phys(page);
	else
		reached = !dma_need_sync(dev, *addr);
	if (!reached)
		adma_unmap(dev, *addr, pages, write);
	return reached;
}

/* Unmaps the words of a device's channels, which no transfer writes any more. */
void adma_words_unmap(struct adma_mem *mem, unsigned int device)
{
	unsigned int i;

	lockdep_assert_held(&adma_mems_lock);
	for (i = 0; i < adma_nr_channels; i++) {
		const struct adma_channel *ch = &adma_channels[i];
		struct adma_words *words = &mem->words[i];

		if (!words->mapped ||
		    (device != ADMA_EVERY_DEVICE && device != ch->device))
			continue;
		adma_unmap(ch->dev, words->dma, 1, true);
		words->mapped = false;
	}
}

/*
 * Drops one count of what is active: the open file, and each request. The memory
 * stays, because ports may refer to it and pages may have to be unpinned yet.
 */
void adma_mem_leave(struct adma_mem *mem)
{
	if (!refcount_dec_and_test(&mem->active))
		return;
	mutex_lock(&adma_mems_lock);
	mem->over = true;
	adma_words_unmap(mem, ADMA_EVERY_DEVICE);
	mutex_unlock(&adma_mems_lock);
}

/* Maps the words of a device that came back, for all files that may use it. */
void adma_mems_map(unsigned int device)
{
	struct adma_mem *mem;
	unsigned int i;

	mutex_lock(&adma_mems_lock);
	list_for_each_entry(mem, &adma_mems, all) {
		for (i = 0; i < adma_nr_channels && !mem->over; i++) {
			struct adma_words *words = &mem->words[i];

			if (words->page && !words->mapped &&
			    adma_channels[i].device == device)
				words->mapped = adma_map(adma_channels[i].dev,
							 words->page, 1, true,
							 &words->dma);
		}
	}
	mutex_unlock(&adma_mems_lock);
}

/*
 * Allocates a channel's page of words, at its first use: an open file alone takes
 * none. Where it cannot be mapped only ADMA_IOC_WAIT tells of the end.
 */
int adma_words_get(struct adma_mem *mem, unsigned int channel)
{
	const struct adma_channel *ch = &adma_channels[channel];
	struct adma_words *words = &mem->words[channel];
	struct page *page;

	/* Pairs with the release below: it is mapped by then. */
	if (smp_load_acquire(&words->page))
		return 0;
	page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
	if (!page)
		return -ENOMEM;
	mutex_lock(&adma_mems_lock);
	if (!words->page) {
		words->mapped = !READ_ONCE(adma_devices[ch->device].gone) &&
				adma_map(ch->dev, page, 1, true, &words->dma);
		/* Pairs with the acquire above. */
		smp_store_release(&words->page, page);
		page = NULL;
	}
	mutex_unlock(&adma_mems_lock);
	if (page)
		put_page(page);
	return 0;
}
