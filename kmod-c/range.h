/* SPDX-License-Identifier: GPL-2.0 */
/* User memory: pinned ranges, what they are charged to, and which are kept. */
#ifndef ADMA_RANGE_H
#define ADMA_RANGE_H

#include <linux/dma-mapping.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "channel.h"
#include "stats.h"

/* Pages of a range, a power of two: see bench/run pins. */
#define ADMA_RANGE_PAGES	64
#define ADMA_RANGE_SIZE		(ADMA_RANGE_PAGES * PAGE_SIZE)

struct adma_range;

/* Instead of a device's number. */
#define ADMA_EVERY_DEVICE	UINT_MAX

/* What pages are mapped for; a reference is held until the module goes. */
struct adma_device {
	struct device *dev;
	struct notifier_block notifier;	/* of its bus: the driver goes */
	bool gone;		/* nothing is mapped, nor will be */
};

/**
 * struct adma_mem - what we hold of a process's memory, for one open file
 * @kref: the file, its requests, ports and ranges
 * @release: frees what embeds it
 * @died: a range of an export has died
 * @mm: only compared, but for the ranges' notifiers
 * @cred: of the opener, whose user is charged
 * @wait: woken when ranges are reaped and requests end
 * @pages: pages held by pins
 * @kept: ranges in @table
 * @leaving: ranges that nothing refers to, not yet reaped
 * @keep_pages: high-water mark of @table
 * @counts: of ranges
 * @lock: protects the lists
 * @ranges: all of them, to unmap a device's
 * @gone: to be reaped
 * @dirty: ... and to wait for page locks
 * @table: kept ranges, by index and whether for writing
 * @folios: pins of each large folio, by its frame number
 * @words: by channel; adma_mems_lock protects their mapping
 * @all: of adma_mems
 */
struct adma_mem {
	struct kref kref;
	void (*release)(struct kref *kref);
	void (*died)(struct adma_mem *mem, struct adma_range *range);
	struct mm_struct *mm;
	const struct cred *cred;
	wait_queue_head_t wait;
	atomic_long_t pages;
	atomic_t kept;
	atomic_t leaving;
	unsigned long keep_pages;
	atomic64_t counts[ADMA_STATS];

	spinlock_t lock;
	struct list_head ranges;
	struct list_head gone;
	struct list_head dirty;
	struct work_struct reap;
	struct work_struct reap_dirty;
	struct xarray table;
	struct xarray folios;
	struct adma_words *words;
	struct list_head all;
};

/**
 * struct adma_range - pages side by side in one process, some pinned and mapped
 *
 *	adma_range_get()              adma_range_retire()      last put
 *	----------------> kept in the ------------------> used ---------> reaped
 *	                  table       mapping changed,    only            (unmapped,
 *	                              room is needed,                     unpinned,
 *	                              file is closed                      freed)
 *
 * A range that is not to be kept begins as "used only". One whose mapping changes
 * is dead: nothing is submitted to it any more.
 *
 * @kref: the table, and whatever uses it
 * @write: pinned for writing, and mapped so
 * @age: rounds without use
 * @all: of mem->ranges
 * @lru: of its control group, then of mem->gone or mem->dirty
 * @lock: protects @dead, the mappings, and adding to @pinned
 * @fill: serialises pinning; never taken for another process's range
 * @mapping: by device
 */
struct adma_range {
	struct kref kref;
	struct adma_mem *mem;
	u64 index;		/* address / ADMA_RANGE_SIZE */
	bool write;
	u8 age;

	struct mmu_interval_notifier notifier;
	struct list_head all;
	struct list_head lru;
	struct rcu_head rcu;

	spinlock_t lock;
	bool dead;

	struct mutex fill;
	DECLARE_BITMAP(pinned, ADMA_RANGE_PAGES);
	struct page *pages[ADMA_RANGE_PAGES];
	struct adma_mapping {
		DECLARE_BITMAP(mapped, ADMA_RANGE_PAGES);
		dma_addr_t addr[ADMA_RANGE_PAGES];
		u8 run[ADMA_RANGE_PAGES];	/* pages mapped together, at the first */
	} mapping[];
};

extern struct adma_device adma_devices[ADMA_MAX_CHANNELS];
extern unsigned int adma_nr_devices;
extern unsigned long adma_keep_pages;
extern unsigned long adma_max_pages;
extern struct list_head adma_mems;
extern struct mutex adma_mems_lock;
extern struct kmem_cache *adma_range_slab;
extern struct list_lru adma_lru;
extern struct workqueue_struct *adma_reaper;
extern struct workqueue_struct *adma_dirty_reaper;

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

/* Ranges for reading and for writing are apart: pages beside a destination are not written. */
static inline unsigned long adma_key(u64 index, bool write)
{
	return index * 2 + write;
}

static inline void adma_mem_put(struct adma_mem *mem)
{
	kref_put(&mem->kref, mem->release);
}

static inline void adma_count_for(struct adma_mem *mem, enum adma_stat what)
{
	atomic64_inc(&mem->counts[what]);
	adma_count(what, 1);
}

/* charge.c */
int adma_charge(struct adma_mem *mem, struct page **pages, unsigned int nr);
void adma_uncharge(struct adma_mem *mem, struct page **pages, unsigned int nr);
unsigned long adma_page_limit(void);

/* range.c */
void adma_mem_init(struct adma_mem *mem);
void adma_mem_list(struct adma_mem *mem);
void adma_mem_exit(struct adma_mem *mem);
void adma_words_unmap(struct adma_mem *mem);
void adma_mems_unmap(unsigned int device);
void adma_ranges_reap(struct adma_mem *mem);
void adma_ranges_reap_all(struct adma_mem *mem);
struct adma_range *adma_range_new(struct adma_mem *mem, u64 index, bool write);
void adma_range_put(struct adma_range *range);
bool adma_range_retire(struct adma_range *range);
bool adma_range_ready(struct adma_range *range, u64 addr, size_t len,
		      unsigned int device);
int adma_range_fill(struct adma_range *range, u64 addr, size_t len,
		    unsigned int device, unsigned int *pinned);
int adma_wait_for_flight(const struct adma_flight *what, long timeout,
			 bool interruptible);

/* kept.c */
int adma_kept_init(void);
void adma_kept_exit(void);
struct adma_range *adma_range_find(struct adma_mem *mem, u64 addr, size_t len,
				   bool write, unsigned int device);
struct adma_range *adma_range_get(struct adma_mem *mem, u64 addr, size_t len,
				  bool write, unsigned int device,
				  unsigned int *pinned);
void adma_ranges_retire(struct adma_mem *mem);
void adma_ranges_trim(struct adma_mem *mem);

#endif /* ADMA_RANGE_H */
