/* SPDX-License-Identifier: GPL-2.0 */
/*
 * adma: copies user memory with DMA channels.
 *
 * A request is over with the last of its parts on channels (chan_req), and only
 * then are its pages let go.
 */
#ifndef ADMA_H
#define ADMA_H

#include <linux/atomic.h>
#include <linux/dmaengine.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/percpu.h>
#include <linux/refcount.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "adma_ioctl.h"

struct adma_channel;
struct adma_file;
struct adma_request;

/* stats.c */

/* In the order of adma_stat_names[]. */
enum adma_stat {
	ADMA_STAT_COPIES,	/* pieces taken */
	ADMA_STAT_BYTES,	/* of them */
	ADMA_STAT_DESCRIPTORS,	/* transfers handed to channels */
	ADMA_STAT_PINS,		/* pages pinned since loading */
	ADMA_STAT_PINNED_PAGES,	/* pages pinned now */
	ADMA_STAT_ERRORS,	/* transfers that did not go well */
	ADMA_STAT_TIMEOUTS,	/* parts of requests silent for too long */
	ADMA_STAT_RING_FULL,	/* a channel had no room for a transfer */
	ADMA_STAT_QUARANTINED,	/* channels put aside after repeated errors */
	ADMA_STAT_EXPORTS,	/* buffers exported */
	ADMA_STAT_EXPORT_BYTES,	/* of ADMA_STAT_BYTES, between processes */
	ADMA_STAT_HITS,		/* ranges found pinned */
	ADMA_STAT_MISSES,	/* ... or not */
	ADMA_STAT_EVICTIONS,	/* ranges let go to make room */
	ADMA_STAT_INVALIDATIONS,	/* ranges whose mapping has changed */
	ADMA_STATS,
};

extern const struct attribute_group *adma_stat_groups[];

DECLARE_PER_CPU(s64[ADMA_STATS], adma_counters);

static inline void adma_count(enum adma_stat what, s64 by)
{
	this_cpu_add(adma_counters[what], by);
}

void adma_stats_init(void);
void adma_stats_exit(void);

/* range.c */

/* Pages of a range, a power of two: see bench/run pins. */
#define ADMA_RANGE_PAGES	64
#define ADMA_RANGE_SIZE		(ADMA_RANGE_PAGES * PAGE_SIZE)

/*
 * A pinned range: pages that lie side by side in one process, aligned, some or
 * all of them pinned and mapped. A kept one stays pinned from one copy to the
 * next, until the program changes the mapping or somebody needs the room.
 */
struct adma_range {
	struct kref kref;	/* the table, and requests that use it */
	struct adma_file *file;
	u64 index;		/* address / ADMA_RANGE_SIZE */
	bool write;		/* pinned for writing: serves readers too */
	bool longterm;		/* pinned for more than one request ... */
	bool no_longterm;	/* ... which the kernel refuses */
	u8 age;			/* rounds without use */

	struct mmu_interval_notifier notifier;
	struct list_head all;	/* of file->ranges */
	struct list_head lru;	/* of its control group, then of file->gone */
	struct rcu_head rcu;

	spinlock_t lock;	/* of dead, of mappings and of adding to pinned */
	bool dead;

	struct mutex fill;	/* of changing what follows */
	DECLARE_BITMAP(pinned, ADMA_RANGE_PAGES);
	struct page *pages[ADMA_RANGE_PAGES];
	struct adma_mapping {
		DECLARE_BITMAP(mapped, ADMA_RANGE_PAGES);
		dma_addr_t addr[ADMA_RANGE_PAGES];
		u8 run[ADMA_RANGE_PAGES];	/* pages mapped together, at the first */
	} mapping[];		/* by device */
};

/* Instead of a device's number. */
#define ADMA_EVERY_DEVICE	UINT_MAX

void adma_reap_work(struct work_struct *work);
void adma_ranges_reap(struct adma_file *file);
void adma_ranges_unmap(struct adma_file *file, unsigned int device);
bool adma_reaches(struct device *dev, dma_addr_t addr, struct page *page);
struct adma_range *adma_range_new(struct adma_file *file, u64 index, bool write,
				  bool longterm);
void adma_range_put(struct adma_range *range);
bool adma_range_ready(struct adma_range *range, u64 addr, size_t len,
		      unsigned int device);
struct adma_range *adma_range_fill(struct adma_range *range, u64 addr,
				   size_t len, bool write, unsigned int device,
				   unsigned int *pinned);
int adma_ranges_fill(struct adma_file *file, u64 addr, u64 len, bool write,
		     struct adma_range **range, unsigned int *nr,
		     unsigned int *pinned);

/* Where an address lies in its range. */

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

/* Pages of the next bytes, which are all in one range. */
static inline unsigned int adma_pages_of(u64 addr, size_t len)
{
	return adma_page_of(addr + len - 1) - adma_page_of(addr) + 1;
}

/* kept.c */

extern unsigned long adma_keep_pages;

extern struct kmem_cache *adma_range_slab;
extern struct list_lru adma_lru;

int adma_kept_init(void);
void adma_kept_exit(void);
struct adma_range *adma_range_get(struct adma_file *file, u64 index, bool write,
				  bool longterm);
bool adma_range_forget(struct adma_range *range);
void adma_ranges_drop(struct adma_file *file);
void adma_ranges_trim(struct adma_file *file);
void adma_ranges_make_room(struct adma_file *file, unsigned int pages,
			   bool of_user);

/* health.c */

enum adma_health {
	ADMA_UP,
	ADMA_ASIDE,		/* being examined, or resting after errors */
	ADMA_OUT,		/* for good */
};

extern unsigned int adma_timeout_ms;

int adma_health_init(struct adma_channel *ch);
void adma_watch(struct work_struct *work);
void adma_watch_soon(struct adma_channel *ch);

/* channel.c */

#define ADMA_CHAN_REQS	256	/* of one channel under way at most, and the probe */

/* What pages are mapped for; a reference is held until the module goes. */
struct adma_device {
	struct device *dev;
	struct notifier_block notifier;	/* of its bus: the driver goes */
	bool gone;		/* nothing is mapped, nor will be */
};

struct adma_channel {
	struct dma_chan *chan;	/* NULL: given back; see adma_srcu */
	struct device *dev;	/* for mapping */
	unsigned int device;	/* its number in adma_devices */
	bool ordered;		/* see adma_order_of() */
	bool leaving;		/* nothing begins on it any more */
	wait_queue_head_t wait;	/* for transfers to end */
	unsigned long refused;	/* jiffies: takes nothing since; 0: it does */
	unsigned long asked;	/* jiffies: the driver was, what is over */
	unsigned long moved;	/* jiffies: the last answer, or end of a pause */
	atomic_long_t queued;	/* units of transfers that are not answered */
	struct adma_chan_req *req;	/* all of them, by number */

	spinlock_t lock;	/* of what follows, and of how its reqs end */
	struct list_head reqs;	/* under way, the oldest first */
	struct list_head free;	/* the others */
	unsigned int good;	/* reqs that ended well */
	bool erred;		/* an error that the watch has not seen yet */

	/* Of the watch alone; others look at the health. */
	struct delayed_work watch;
	enum adma_health health;
	unsigned int errors;	/* without enough good copies between */
	unsigned int good_seen;	/* when it was last examined */
	void *probe_page;
	dma_addr_t probe_dma;
};

extern struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
extern struct adma_device adma_devices[ADMA_MAX_CHANNELS];
extern struct srcu_struct adma_srcu;
extern unsigned int adma_nr_devices;
extern unsigned int adma_nr_channels;
extern unsigned long adma_depth;
extern bool adma_several_nodes;
extern unsigned int adma_align;

int adma_channels_request(unsigned int most, int node);
void adma_channels_release(void);
int adma_channel_pick(u32 wanted, u64 addr, u64 first);
void adma_channel_poll(struct adma_channel *ch);
void adma_channel_issue(struct adma_channel *ch);
void adma_channels_poll(void);
int adma_channel_retry(struct adma_channel *ch, int tries);
unsigned int adma_channels_usable(void);

/* Whether transfers may begin on it. */
static inline bool adma_channel_is_up(const struct adma_channel *ch)
{
	return READ_ONCE(ch->health) == ADMA_UP && !READ_ONCE(ch->leaving);
}

/* chan_req.c */

/* One transfer at most: no more than engines take. */
#define ADMA_MAX_XFER	SZ_1M

/* Transfers are counted in these. */
#define ADMA_UNIT	64

static inline u32 adma_units(size_t len)
{
	return DIV_ROUND_UP(len, ADMA_UNIT);
}

struct adma_xfer {
	dma_addr_t dst;
	dma_addr_t src;
	size_t len;
};

/* What one channel does of a request; it is the channel's own, for the next. */
struct adma_chan_req {
	struct adma_channel *ch;
	struct adma_request *req;
	struct list_head list;		/* of ch->reqs or ch->free */
	/*
	 * Upper half: the turn, how often it was used. Lower half: so many units
	 * are over, the first ones if in order. Changed together, without the lock.
	 */
	atomic64_t done;
	/* 0 at the beginning of a turn: */
	u64 pieces;			/* of the request */
	u32 sent;			/* units submitted, by who submits */
	dma_cookie_t cookie;		/* of the last transfer */
	unsigned long begun;		/* jiffies: before the first transfer */
	unsigned long sent_at;		/* jiffies: before the last one */
	bool trusted;			/* no transfer was lost, or we would know */
	bool closed;			/* its last transfer is submitted */
	bool word_came;			/* what has no answer by now was lost */
	bool failed;
};

static inline u32 adma_chan_req_turn(const struct adma_chan_req *cr)
{
	return (u64)atomic64_read(&cr->done) >> 32;
}

/* Transfers of no request, to see whether the channel works: see health.c. */
static inline struct adma_chan_req *adma_probe_of(struct adma_channel *ch)
{
	return &ch->req[0];
}

struct adma_chan_req *adma_chan_req_begin(struct adma_channel *ch,
					  struct adma_request *req);
void adma_chan_req_charge(struct adma_chan_req *cr, s32 units);
dma_cookie_t adma_chan_req_transfer(struct adma_chan_req *cr, dma_addr_t dst,
				    dma_addr_t src, size_t len,
				    unsigned long flags);
int adma_chan_req_send(struct adma_chan_req *cr);
bool adma_chan_req_close(struct adma_chan_req *cr);
void adma_chan_req_next_turn(struct adma_chan_req *cr);
void adma_chan_req_over(struct adma_chan_req *cr);
void adma_chan_req_over_if_answered(struct adma_chan_req *cr);
void adma_chan_reqs_abandon(struct adma_channel *ch);
bool adma_channel_busy(struct adma_channel *ch, const struct adma_file *file,
		       unsigned long since);

/* file.c */

/* What all open files of a user have. */
struct adma_user {
	unsigned int files;
	atomic_t requests;	/* under way, */
	atomic64_t bytes;	/* and their bytes */
};

/* An open file, and as long as requests of it are under way. */
struct adma_file {
	struct kref kref;
	struct mm_struct *mm;	/* only compared */
	struct pid *owner;	/* of the process that opened it, too */
	const struct cred *cred;	/* of the opener, whose user is charged */
	struct adma_user *user;
	wait_queue_head_t wait;	/* for requests and ranges to end */
	atomic_t ending;	/* requests that are over, but for their work */
	atomic_t leaving;	/* ranges that are gone, but for their pages */
	atomic_t kept;		/* ranges of the table */
	atomic_long_t pages;	/* pinned, kept or not */

	struct adma_request *slot[ADMA_SLOTS];	/* NULL: was never used */
	spinlock_t lock;	/* of their ids and states, and of what follows */
	u64 sequence;		/* of requests */
	struct list_head ranges;	/* all of them, to unmap a device's */
	struct list_head gone;	/* ranges that nobody holds any more */

	struct xarray exports;	/* by number; its lock is of what follows */
	u64 last_export;	/* its number */
	unsigned int nr_exports;
	unsigned int foreign;	/* requests of others that use them */
	bool closed;

	unsigned long keep_pages;	/* high-water mark of the table */
	unsigned long hand;	/* index of the next one that may go */
	struct work_struct reap;	/* of the ranges that are gone */
	struct work_struct drain;
	struct xarray table;	/* kept ranges by index */
	struct list_head files;	/* all of them */
	atomic64_t counts[ADMA_STATS];	/* of ranges only */

	/*
	 * Per channel: a page with a word and the value for it by slot. The page
	 * stays when the channel is given back, for user space looks at it.
	 */
	struct adma_words {
		struct page *page;
		dma_addr_t dma;
		bool mapped;
	} words[];
};

extern struct list_head adma_files;
extern struct mutex adma_files_lock;
extern unsigned long adma_max_bytes;
extern unsigned long adma_max_pages;
extern unsigned long adma_max_files;

static inline void adma_count_for(struct adma_file *file, enum adma_stat what)
{
	atomic64_inc(&file->counts[what]);
	adma_count(what, 1);
}

int adma_charge_pages(struct adma_file *file, unsigned int pages);
void adma_files_unmap(unsigned int device);
void adma_uncharge_pages(struct adma_file *file, unsigned int pages);
int adma_file_open(struct inode *inode, struct file *filp);
int adma_file_release(struct inode *inode, struct file *filp);
void adma_file_catch_up(struct adma_file *file, u64 sequence);
void adma_file_put(struct adma_file *file);
int adma_ended(struct file *filp, struct adma_wait *arg);
int adma_wait_until(struct file *filp, struct adma_wait *arg,
		    int (*ended)(struct file *filp, struct adma_wait *arg));

/* export.c */

/* A buffer that is exported; what changes, with the lock of the file's table. */
struct adma_buf {
	struct adma_file *file;
	const struct file *port;	/* only compared */
	u64 id;
	u64 addr;
	u64 len;
	u32 flags;
	bool listed;		/* in the table */
	int refuse;		/* why nothing new begins, or 0 */
	unsigned int requests;	/* that use it; they need the ranges */
	struct rcu_head rcu;
	unsigned int nr;
	struct adma_range *range[];	/* held */
};

extern const struct file_operations adma_port_fops;

struct adma_buf *adma_buf_enter(int port, u64 id, u32 wanted);
void adma_buf_leave(struct adma_buf *buf);
void adma_exports_void(struct adma_range *range);
void adma_exports_close(struct adma_file *file, const struct file *port);
int adma_export(struct file *port, struct adma_export *arg);
int adma_unexport(struct file *port, struct adma_wait *arg);
int adma_port(struct adma_file *file);

/* request.c */

/* Far more than anybody wants; keeps every count of pages an int. */
#define ADMA_MAX_LEN	SZ_1G

#define ADMA_BATCH	64

/* One side of a piece, as far as it has got. */
struct adma_side {
	u64 addr;
	bool write;
	struct adma_range *range;	/* of addr; held by the request */
	unsigned int nr;		/* its number there */
};

/* What one slot of a file has under way; it stays with the slot, for the next. */
struct adma_request {
	struct adma_file *file;
	unsigned int slot;
	u64 id;			/* the last one's */
	enum { ADMA_FREE, ADMA_BUSY, ADMA_FAILED } state;
	struct work_struct end;
	unsigned int max_ranges;
	struct adma_range **range;	/* held until it is over */
	struct adma_piece piece[ADMA_MAX_PIECES];
	struct adma_xfer xfer[ADMA_BATCH];	/* not yet handed over */

	/* 0 at its beginning, but for parts and chunk: */
	atomic64_t failed;	/* pieces; until somebody was told */
	struct adma_buf *buf;	/* between processes: the other side */
	bool push;		/* ... is written */
	unsigned int own;	/* ... number of the caller's next range */
	unsigned int accepted;
	u64 bytes;		/* charged */
	refcount_t parts;	/* not over, and one while it is submitted */
	struct adma_chan_req *part[ADMA_MAX_CHANNELS];	/* NULL: has none */
	unsigned int nr_ranges;
	unsigned int chunk;	/* pages pinned at once; then four times as many */
	unsigned int pinned;	/* pages */

	/* The piece that is on its way to a channel. */
	struct adma_chan_req *cr;
	struct adma_side dst;
	struct adma_side src;
	u64 left;
	unsigned int nr_xfers;	/* the last one may grow */
	size_t xfer_bytes;	/* of them */
	unsigned int first_range;	/* that they touch */
};

void adma_request_put(struct adma_request *req);
int adma_request_reserve(struct adma_request *req, unsigned int more);
int adma_submit(struct file *filp, struct adma_submit *arg);

/* xfer.c */

int adma_piece_send(struct adma_request *req, const struct adma_piece *piece);

/* device.c */

extern struct workqueue_struct *adma_workqueue;
extern struct workqueue_struct *adma_reaper;

long adma_ioctl(struct file *filp, unsigned int cmd, unsigned long user);

#endif /* ADMA_H */
