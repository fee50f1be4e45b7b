/* SPDX-License-Identifier: GPL-2.0 */
/*
 * User memory: pinned ranges, what they are charged to, and which are kept.
 *
 * Locks, outer first: range->fill and adma_mems_lock (mutexes, never both),
 * mem->maps (mutex), and then spinlocks: the lock of a list of adma_lru, which the
 * shrinker holds while it retires ranges; those of tables; mem->lock; range->lock;
 * those of channels. Of the spinlocks, only that of a list and that of a table of
 * exports are held while others are taken. The MMU notifier takes spinlocks and
 * allocates nothing.
 */
#ifndef ADMA_RANGE_H
#define ADMA_RANGE_H

#include <linux/dma-mapping.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/list_lru.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "channel.h"

/* Pages of a range, a power of two: see bench/run pins. */
#define ADMA_RANGE_PAGES	64
#define ADMA_RANGE_SIZE		(ADMA_RANGE_PAGES * PAGE_SIZE)

struct adma_range;

/* Device number that stands for all devices. */
#define ADMA_EVERY_DEVICE	UINT_MAX

/* Device that pages are mapped for; a reference is held, also while it is gone. */
struct adma_device {
	struct device *dev;
	struct notifier_block notifier;	/* of its bus: its driver goes */
	struct device *dsa;	/* idxd's, or NULL; only compared */
	struct device_driver *idxd;	/* its driver, or NULL; the module is held */
	struct notifier_block queues;	/* of the driver's bus: a queue goes */
	bool gone;		/* it has no channel of ours, and nothing is mapped */
};

/* Pins of a process's memory, for one open file. */
struct adma_mem {
	struct kref kref;	/* the file, its requests, ports and ranges */
	void (*release)(struct kref *kref);
	void (*died)(struct adma_mem *mem, struct adma_range *range);
	struct mm_struct *mm;	/* only compared, but for notifiers */
	const struct cred *cred;	/* of the opener, whose user is charged */
	wait_queue_head_t wait;	/* for ranges to be reaped and requests to end */
	atomic_long_t pages;	/* held by pins */
	atomic_t kept;		/* ranges in the table */
	atomic_t ending;	/* finished requests whose work is pending */
	atomic_t leaving;	/* ranges to be reaped */
	refcount_t active;	/* the open file, and its requests */
	unsigned long keep_pages;	/* high-water mark of the table */
	unsigned long unmapped;	/* jiffies, not 0: the memory map is gone */
	atomic64_t hits;	/* ranges found pinned */
	atomic64_t misses;	/* ranges not found pinned */
	atomic64_t evictions;	/* ranges retired to make room */
	atomic64_t invalidations;	/* ranges whose mapping has changed */

	unsigned long hand;	/* where eviction goes on in the table */

	/* Protects what follows; not a spinlock: behind an IOMMU unmapping is slow. */
	struct mutex maps;
	struct list_head ranges;	/* all of them, with their mappings */

	spinlock_t lock;	/* protects what follows */
	struct list_head unused;	/* to be reaped */
	struct delayed_work reaper;
	struct xarray table;	/* kept ranges, by adma_key() */
	struct xarray folios;	/* pins of each large folio, by frame number */
	struct adma_words *words;	/* adma_mems_lock protects their mapping */
	bool over;		/* ... and this: the words are not used any more */
	struct list_head all;	/* of adma_mems */
};

/*
 * Contiguous pages of one process, aligned; some of them pinned and mapped.
 *
 *	adma_ranges_get()             adma_range_retire()      last put
 *	----------------> kept in the ------------------> used ---------> reaped
 *	                  table       mapping changed,    only            (unmapped,
 *	                              room is needed,                     unpinned,
 *	                              file is closed                      freed)
 *
 * A range that is not to be kept begins as "used only". One whose mapping changes
 * is dead: nothing is submitted to it any more.
 */
struct adma_range {
	struct kref kref;	/* the table, and whatever uses it */
	struct adma_mem *mem;
	u64 index;		/* address / ADMA_RANGE_SIZE */
	bool write;		/* pinned and mapped for writing */
	u8 age;			/* rounds without use */
	unsigned int exports;	/* that use it; the lock of the file's protects it */

	struct mmu_interval_notifier notifier;
	struct list_head all;	/* of mem->ranges */
	struct list_head lru;	/* of its control group, then of mem->unused */
	struct rcu_head rcu;

	spinlock_t lock;	/* protects dead, and adding to pinned */
	bool dead;

	struct mutex fill;	/* serialises pinning; only by its own process */
	DECLARE_BITMAP(pinned, ADMA_RANGE_PAGES);
	struct page *pages[ADMA_RANGE_PAGES];
	struct adma_mapping {
		DECLARE_BITMAP(mapped, ADMA_RANGE_PAGES);
		dma_addr_t addr[ADMA_RANGE_PAGES];
		u8 run[ADMA_RANGE_PAGES];	/* pages mapped together, at the first */
	} mapping[];		/* by device */
};

extern struct adma_device adma_devices[ADMA_MAX_CHANNELS];
extern unsigned int adma_nr_devices;
extern unsigned long adma_keep_pages;
extern struct list_head adma_mems;
extern struct mutex adma_mems_lock;
extern struct kmem_cache *adma_range_slab;
extern struct list_lru adma_lru;
extern struct workqueue_struct *adma_reapers;

static inline u64 adma_range_of(u64 addr)
{
	return addr / ADMA_RANGE_SIZE;
}

static inline unsigned int adma_ranges_of(u64 addr, u64 len)
{
	return adma_range_of(addr + len - 1) - adma_range_of(addr) + 1;
}

static inline size_t adma_range_rest(u64 addr)
{
	return ADMA_RANGE_SIZE - addr % ADMA_RANGE_SIZE;
}

static inline unsigned int adma_page_of(u64 addr)
{
	return (addr >> PAGE_SHIFT) % ADMA_RANGE_PAGES;
}

/* Ranges for reading are separate: pages next to a destination stay read-only. */
static inline unsigned long adma_key(u64 index, bool write)
{
	return index * 2 + write;
}

static inline void adma_mem_put(struct adma_mem *mem)
{
	kref_put(&mem->kref, mem->release);
}

/* hold.c */
extern unsigned int adma_align;	/* of transfers, for all channels */
int adma_channels_request(void);
void adma_channels_release(void);

/* mem.c */
int adma_charge(struct adma_mem *mem, struct page **pages, unsigned int nr);
void adma_uncharge(struct adma_mem *mem, struct page **pages, unsigned int nr);
unsigned long adma_page_limit(void);
bool adma_has_room(const struct adma_mem *mem, unsigned long pages);
int adma_words_get(struct adma_mem *mem, unsigned int channel);
void adma_mems_map(unsigned int device);
void adma_mem_leave(struct adma_mem *mem);
void adma_words_unmap(struct adma_mem *mem, unsigned int device);
bool adma_map(struct device *dev, struct page *page, unsigned int pages, bool write,
	      dma_addr_t *addr);
void adma_unmap(struct device *dev, dma_addr_t addr, unsigned int pages, bool write);

/* range.c */
struct adma_range *adma_range_new(struct adma_mem *mem, u64 index, bool write);
int adma_range_fill(struct adma_range *range, u64 addr, size_t len,
		    unsigned int device, unsigned int *pinned);
bool adma_range_ready(struct adma_range *range, u64 addr, size_t len,
		      unsigned int device);
bool adma_range_retire(struct adma_range *range);
void adma_range_put(struct adma_range *range);
void adma_mem_reap(struct adma_mem *mem);
void adma_ranges_reap(struct work_struct *work);
void adma_mems_unmap(unsigned int device);

/* kept.c */
int adma_kept_init(void);
void adma_kept_exit(void);
bool adma_ranges_find(struct adma_mem *mem, u64 addr, u64 len, bool write,
		      unsigned int device, struct adma_range **range,
		      unsigned int *nr);
int adma_ranges_get(struct adma_mem *mem, u64 addr, u64 len, bool write,
		    unsigned int device, struct adma_range **range,
		    unsigned int *nr, unsigned int *pinned);
void adma_ranges_refused(struct adma_range **range, unsigned int nr, int why);
void adma_mem_settle(struct adma_mem *mem, unsigned int ms);
void adma_ranges_retire(struct adma_mem *mem);
void adma_ranges_trim(struct adma_mem *mem);

#endif /* ADMA_RANGE_H */
