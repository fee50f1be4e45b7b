// SPDX-License-Identifier: GPL-2.0
/* The memory of one file: its ranges as a whole, and its pages of words. */
#include <linux/cred.h>
#include <linux/module.h>
#include <linux/sched/mm.h>

#include "range.h"

LIST_HEAD(adma_mems);
DEFINE_MUTEX(adma_mems_lock);	/* of the list, of words, of users' files */

unsigned long adma_keep_pages = (64UL << 20) / PAGE_SIZE;
module_param_named(keep_pages, adma_keep_pages, ulong, 0644);
MODULE_PARM_DESC(keep_pages, "pages that stay pinned between copies, for each open file (default 64 MiB)");

/* Caller has a reference to the memory. */
static void adma_reaper_run(struct adma_reaper *reaper)
{
	struct adma_mem *mem = reaper->mem;
	struct adma_range *range, *next;
	LIST_HEAD(gone);

	spin_lock(&mem->lock);
	list_splice_init(&reaper->ranges, &gone);
	spin_unlock(&mem->lock);
	list_for_each_entry_safe(range, next, &gone, lru)
		adma_range_reap(range);
	wake_up_all(&mem->wait);
}

/* One for each file and not for each range: munmap() retires hundreds. */
static void adma_reaper_work(struct work_struct *work)
{
	struct adma_reaper *reaper = container_of(work, struct adma_reaper, work);

	adma_reaper_run(reaper);
	adma_mem_put(reaper->mem);
}

/**
 * adma_ranges_reap() - unpin ranges that nothing refers to any more
 * @mem: memory of the caller's own process, to which it has a reference
 *
 * Waits for the locks of their pages, and for munmap(): never called inside the
 * notifier, which may be called with these held.
 */
void adma_ranges_reap(struct adma_mem *mem)
{
	adma_reaper_run(&mem->reaper[false]);
	adma_reaper_run(&mem->reaper[true]);
}

/**
 * adma_ranges_reap_all() - like adma_ranges_reap(), and wait for the works
 * @mem: memory whose ranges nothing refers to any more
 */
void adma_ranges_reap_all(struct adma_mem *mem)
{
	unsigned int i;

	/* They may be queued behind those of others. */
	for (i = 0; i < 2; i++) {
		if (cancel_work_sync(&mem->reaper[i].work))
			adma_mem_put(mem);
	}
	adma_ranges_reap(mem);
}

void adma_mem_init(struct adma_mem *mem)
{
	unsigned int i;

	kref_init(&mem->kref);
	mem->mm = current->mm;
	mmgrab(mem->mm);
	mem->cred = get_current_cred();
	init_waitqueue_head(&mem->wait);
	spin_lock_init(&mem->lock);
	INIT_LIST_HEAD(&mem->ranges);
	INIT_LIST_HEAD(&mem->all);
	for (i = 0; i < 2; i++) {
		mem->reaper[i].mem = mem;
		INIT_LIST_HEAD(&mem->reaper[i].ranges);
		INIT_WORK(&mem->reaper[i].work, adma_reaper_work);
	}
	xa_init_flags(&mem->table, XA_FLAGS_ACCOUNT);
	xa_init_flags(&mem->folios, XA_FLAGS_ACCOUNT);
	mem->keep_pages = READ_ONCE(adma_keep_pages);
}

/* Nothing refers to it any more. */
void adma_mem_exit(struct adma_mem *mem)
{
	mutex_lock(&adma_mems_lock);
	list_del(&mem->all);
	mutex_unlock(&adma_mems_lock);
	xa_destroy(&mem->table);
	xa_destroy(&mem->folios);
	put_cred(mem->cred);
	mmdrop(mem->mm);
}

/**
 * adma_words_unmap() - unmap the words of a device's channels
 * @mem: memory whose words no transfer writes any more
 * @device: number, or ADMA_EVERY_DEVICE
 */
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
		dma_unmap_page(ch->dev, words->dma, PAGE_SIZE, DMA_BIDIRECTIONAL);
		words->mapped = false;
	}
}

/**
 * adma_mem_list() - map the words of a file
 * @mem: memory of the file; the caller holds adma_mems_lock
 *
 * A device that goes finds what is mapped for it.
 */
void adma_mem_list(struct adma_mem *mem)
{
	unsigned int i;

	lockdep_assert_held(&adma_mems_lock);
	list_add_tail(&mem->all, &adma_mems);
	for (i = 0; i < adma_nr_channels; i++) {
		const struct adma_channel *ch = &adma_channels[i];
		struct adma_words *words = &mem->words[i];

		if (READ_ONCE(adma_devices[ch->device].gone))
			continue;
		words->dma = dma_map_page(ch->dev, words->page, 0, PAGE_SIZE,
					  DMA_BIDIRECTIONAL);
		if (dma_mapping_error(ch->dev, words->dma))
			continue;
		words->mapped = adma_reaches(ch->dev, words->dma, words->page);
		/* Without words only ADMA_IOC_WAIT tells of the end. */
		if (!words->mapped)
			dma_unmap_page(ch->dev, words->dma, PAGE_SIZE,
				       DMA_BIDIRECTIONAL);
	}
}

/**
 * adma_mems_unmap() - unmap everything that is mapped for a device that goes
 * @device: number; nothing in flight touches any of its mappings
 */
void adma_mems_unmap(unsigned int device)
{
	struct adma_range *range;
	struct adma_mem *mem;

	mutex_lock(&adma_mems_lock);
	list_for_each_entry(mem, &adma_mems, all) {
		spin_lock(&mem->lock);
		list_for_each_entry(range, &mem->ranges, all) {
			spin_lock(&range->lock);
			adma_range_unmap(range, device);
			spin_unlock(&range->lock);
		}
		spin_unlock(&mem->lock);
		adma_words_unmap(mem, device);
	}
	mutex_unlock(&adma_mems_lock);
}
