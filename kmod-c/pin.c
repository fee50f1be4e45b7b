// SPDX-License-Identifier: GPL-2.0
/* Pages of the caller, pinned for a copy and mapped for a channel. */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "adma.h"

/* How many pages a range lies on. */
unsigned int adma_pages_of(u64 addr, u64 len)
{
	return DIV_ROUND_UP(offset_in_page(addr) + len, PAGE_SIZE);
}

/*
 * Pins what @addr points to in the caller's memory. For a copy only, never
 * longer: no FOLL_LONGTERM, so pages of any kind will do.
 */
int adma_side_pin(struct adma_side *side, u64 addr, u64 len,
		  enum dma_data_direction dir)
{
	unsigned int nr = adma_pages_of(addr, len);
	unsigned int gup = dir == DMA_FROM_DEVICE ? FOLL_WRITE : 0;
	struct page **pages;
	int got, ret;

	pages = kvmalloc_array(nr, sizeof(*pages), GFP_KERNEL_ACCOUNT);
	if (!pages)
		return -ENOMEM;
	got = pin_user_pages_fast(addr & PAGE_MASK, nr, gup, pages);
	if (got < 0) {
		/* A killed caller must not see a number meant for restarts. */
		ret = got == -ENOMEM || got == -EFAULT ? got : -EINTR;
		goto err_free_pages;
	}
	if (got < nr) {
		ret = -EFAULT;
		goto err_unpin;	/* a partial pin is still a pin */
	}
	side->pages = pages;
	side->nr_pages = nr;
	side->offset = offset_in_page(addr);
	side->dir = dir;
	adma_count(ADMA_STAT_PINS, nr);
	adma_count(ADMA_STAT_PINNED_PAGES, nr);
	return 0;

err_unpin:
	unpin_user_pages(pages, got);
err_free_pages:
	kvfree(pages);
	return ret;
}

/*
 * Exactly the bytes of the piece are mapped: where the mapping is a bounce
 * buffer, unmapping writes no byte beside them.
 */
int adma_side_map(struct adma_side *side, u64 len, struct device *dev)
{
	size_t most = min_t(size_t, dma_get_max_seg_size(dev),
			    dma_max_mapping_size(dev));
	int ret;

	most = max_t(size_t, ALIGN_DOWN(most, PAGE_SIZE), PAGE_SIZE);
	ret = sg_alloc_table_from_pages_segment(&side->sgt, side->pages,
						side->nr_pages, side->offset,
						len, most, GFP_KERNEL_ACCOUNT);
	if (ret)
		return ret;
	ret = dma_map_sgtable(dev, &side->sgt, side->dir, 0);
	if (ret) {
		sg_free_table(&side->sgt);
		return ret == -EINVAL ? -EIO : ret;
	}
	side->dev = dev;
	return 0;
}

/* Undoes whatever of the two has been done. No channel may be at work. */
void adma_side_release(struct adma_side *side)
{
	if (side->dev) {
		dma_unmap_sgtable(side->dev, &side->sgt, side->dir, 0);
		sg_free_table(&side->sgt);
		side->dev = NULL;
	}
	if (side->pages) {
		unpin_user_pages_dirty_lock(side->pages, side->nr_pages,
					    side->dir == DMA_FROM_DEVICE);
		adma_count(ADMA_STAT_PINNED_PAGES, -(s64)side->nr_pages);
		kvfree(side->pages);
		side->pages = NULL;
	}
}
