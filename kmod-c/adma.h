/* SPDX-License-Identifier: GPL-2.0 */
/*
 * adma: copies user memory with DMA channels.
 *
 * The way of one copy: device.c takes the call, request.c checks the pieces and
 * sees the request to its end, file.c has the caller's slots and limits, xfer.c
 * cuts a piece into transfers, range.c pins and maps the pages, kept.c finds
 * those of earlier copies, chan_req.c has one channel's part of it carried out,
 * channel.c holds the channels, health.c decides when a transfer is dead and a
 * channel unfit. export.c lets processes reach each other's buffers. stats.c
 * counts.
 *
 * A request is over with the last of its parts on channels (chan_req), and only
 * then are its pages let go.
 */
#ifndef ADMA_H
#define ADMA_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/dmaengine.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/refcount.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "adma_ioctl.h"

struct adma_channel;
struct adma_file;
struct adma_request;

/* stats.c */

enum adma_stat {
	ADMA_STAT_COPIES,	/* pieces taken */
	ADMA_STAT_BYTES,	/* of them, whoever copied */
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

/* The last ones are also counted for each file. */
#define ADMA_FILE_STATS	(ADMA_STATS - ADMA_STAT_HITS)

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

enum adma_kind {
	ADMA_ONCE,		/* for one request, without a notifier */
	ADMA_WATCHED,		/* for one request, with one */
	ADMA_EXPORTED,		/* for an export */
	ADMA_KEPT,		/* in the table of its file */
};

/*
 * A pinned range: pages that lie side by side in one process, aligned, some or
 * all of them pinned and mapped. A kept one stays pinned from one copy to the
 * next, until the program changes the mapping or somebody needs the room.
 */
struct adma_range {
	struct kref kref;	/* the table, and requests that use it */
	struct adma_file *file;
	u64 index;		/* address / ADMA_RANGE_SIZE */
	enum adma_kind kind;
	bool write;		/* pinned for writing: serves readers too */
	bool used;		/* since eviction last looked */
	bool prefetched;
	bool no_longterm;	/* the kernel refuses to pin it for long */
	u8 age;			/* rounds without use; file->lock */

	struct mmu_interval_notifier notifier;	/* not of ADMA_ONCE */
	struct list_head list;	/* of file->ranges, or file->gone */
	unsigned int counted;	/* its pages in file->kept; file->lock */
	struct list_head lru;	/* of its control group, for the shrinker */
	struct list_head dispose;	/* while it is let go ... */
	bool isolated;		/* ... by one who has set this */
	struct rcu_head rcu;

	/* Against the notifier: of dead and uses, and of adding to pinned. */
	spinlock_t lock;
	bool dead;
	struct list_head uses;

	struct mutex fill;	/* of changing what follows */
	DECLARE_BITMAP(pinned, ADMA_RANGE_PAGES);
	DECLARE_BITMAP(written, ADMA_RANGE_PAGES);	/* or about to be */
	struct page *pages[ADMA_RANGE_PAGES];
	struct adma_mapping {
		DECLARE_BITMAP(mapped, ADMA_RANGE_PAGES);
		dma_addr_t addr[ADMA_RANGE_PAGES];
		u8 run[ADMA_RANGE_PAGES];	/* pages mapped together, at the first */
	} mapping[];		/* by device */
};

/* A range in a request, until that is over. */
struct adma_use {
	struct adma_range *range;	/* held */
	struct list_head list;	/* of range->uses; its lock, also of what follows */
	struct adma_chan_req *cr;	/* NULL: no transfer yet */
	u32 turn;		/* see struct adma_chan_req */
	u32 last;		/* cr's count when the last that touches it is over */
	unsigned long since;	/* jiffies: when that was submitted */
};

/* Ranges side by side, ready for every device. */
struct adma_ranges {
	unsigned int nr;
	struct adma_range *range[];	/* held */
};

int adma_range_init(void);
void adma_range_exit(void);
void adma_reap_work(struct work_struct *work);
void adma_ranges_reap(struct adma_file *file);
struct adma_range *adma_range_new(struct adma_file *file, u64 index, bool write,
				  enum adma_kind kind);
void adma_range_put(struct adma_range *range);
bool adma_range_ready(struct adma_range *range, u64 addr, size_t len,
		      unsigned int device);
int adma_range_fill(struct adma_range *range, unsigned int first,
		    unsigned int count, unsigned int device, bool may_fault,
		    unsigned int *pinned);
void adma_range_written(struct adma_range *range, u64 addr, size_t len);
void adma_use_begin(struct adma_use *use, struct adma_range *range);
void adma_use_end(struct adma_use *use);
bool adma_use_claim(struct adma_use *use, struct adma_chan_req *cr, u32 last);
void adma_use_shorten(struct adma_use *use, u32 last);
struct adma_ranges *adma_ranges_new(unsigned int most);
int adma_ranges_fill(struct adma_ranges *ranges, struct adma_file *file,
		     u64 addr, u64 len, bool write, u64 *good,
		     unsigned int *pinned);
void adma_ranges_put(struct adma_ranges *ranges);

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

int adma_kept_init(void);
void adma_kept_stop(void);
void adma_kept_exit(void);
void adma_kept_open(struct adma_file *file);
void adma_kept_close(struct adma_file *file);
struct adma_range *adma_range_alloc(void);
void adma_range_free(struct adma_range *range);
struct adma_range *adma_range_get(struct adma_file *file, u64 index, bool write);
void adma_range_grown(struct adma_range *range, unsigned int pages);
bool adma_range_forget(struct adma_range *range, enum adma_stat why);
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

/* Two transfers within a page of the channel's own: does it work? */
struct adma_probe {
	void *page;
	dma_addr_t dma;
	struct completion answered;
	bool pending;		/* the last one was never answered */
	/* The channel's lock; an answer to an earlier turn is not counted. */
	u32 turn;
	unsigned int came;
	bool bad;
};

extern unsigned int adma_timeout_ms;

unsigned long adma_timeout(void);
int adma_health_init(struct adma_channel *ch);
void adma_watch_later(struct adma_channel *ch);
void adma_watch_now(struct adma_channel *ch);

/* channel.c */

#define ADMA_CHAN_REQS	256	/* of one channel under way at most */

struct adma_channel {
	struct dma_chan *chan;
	struct device *dev;	/* for mapping */
	unsigned int device;	/* its number in adma_devices */
	int node;
	bool ordered;		/* see adma_providers[] */
	unsigned long asked;	/* jiffies: the driver was, what is over */
	unsigned long moved;	/* jiffies: the last answer, or end of a pause */
	atomic_long_t queued;	/* units of transfers that are not answered */

	spinlock_t lock;	/* of what follows, and of how its reqs end */
	struct list_head reqs;	/* under way, the oldest first */
	struct adma_chan_req *req;	/* all of them, by number */
	unsigned int last_req;	/* that was taken */
	unsigned int good;	/* reqs that ended well */
	bool erred;		/* an error that the watch has not seen yet */

	/* Of the watch alone; others look at the health. */
	struct delayed_work watch;
	enum adma_health health;
	unsigned int strikes;	/* errors without enough good copies between */
	unsigned int rests;	/* times put aside after repeated errors */
	unsigned int good_seen;	/* when it was last examined */
	struct adma_probe probe;
};

extern struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
extern struct device *adma_devices[ADMA_MAX_CHANNELS];
extern unsigned int adma_nr_devices;
extern unsigned int adma_nr_channels;
extern unsigned long adma_depth;
extern bool adma_several_nodes;

/* Transfers are counted in these; a word counts as one. */
#define ADMA_UNIT	64

static inline u32 adma_units(size_t len)
{
	return DIV_ROUND_UP(len, ADMA_UNIT);
}

/*
 * What a driver gives back with an answer is a number and no pointer: ioatdma
 * never answers the transfer at the head of a chain that it aborts, and may do
 * so when its ring has come round, long after we have forgotten about it.
 */
union adma_param {
	void *ptr;
	struct {
		u64 channel : 5;
		u64 req : 8;		/* number of the chan_req, and its turn */
		u64 units : 15;		/* 0: the word */
		u64 turn : 32;
	};
};

static inline struct adma_channel *adma_param_channel(union adma_param param)
{
	return &adma_channels[param.channel];
}

/* One transfer at most: no more than engines take, and than fits the above. */
#define ADMA_MAX_XFER	SZ_1M

int adma_channels_request(unsigned int most, int node);
void adma_channels_release(void);
int adma_channel_pick(u32 wanted, u64 addr, u64 first);
void adma_channel_poll(struct adma_channel *ch);
void adma_channels_poll(void);
int adma_channel_retry(struct adma_channel *ch, int tries);
dma_cookie_t adma_transfer(struct adma_channel *ch, dma_addr_t dst,
			   dma_addr_t src, size_t len, unsigned long flags,
			   dma_async_tx_callback_result answered,
			   union adma_param param);
unsigned int adma_channels_usable(void);
unsigned int adma_channels_align(void);

/* chan_req.c */

struct adma_xfer {
	dma_addr_t dst;
	dma_addr_t src;
	size_t len;
	/* Of xfer.c: where it begins, and the request's uses then. */
	u64 addr;
	unsigned int first_use;
	unsigned int nr_uses;
};

/* What one channel does of a request; it is the channel's own, for the next. */
struct adma_chan_req {
	struct adma_channel *ch;
	struct adma_request *req;	/* NULL: free */
	struct list_head list;		/* of ch->reqs */
	/*
	 * Upper half: the turn, how often it was used. Lower half: so many units
	 * of the first ones are over. Changed together, without the lock.
	 */
	atomic64_t done;
	u32 sent;			/* units submitted, by who submits */
	u32 answered;			/* without order: in any */
	dma_cookie_t cookie;		/* of the word; 0: there is none yet */
	unsigned long begun;		/* jiffies: first transfer issued */
	unsigned long closed_at;	/* jiffies: last transfer issued */
	bool trusted;			/* the channel moved when it began */
	bool fenced;			/* the data transfer submitted last */
	bool closed;			/* its last transfer is submitted */
	bool aborted;			/* ... and was answered by an error */
	bool lost;			/* ... it seems: it was done with */
	bool suspect;			/* a probe was submitted after it */
	bool failed;
};

static inline u32 adma_chan_req_turn(const struct adma_chan_req *cr)
{
	return (u64)atomic64_read(&cr->done) >> 32;
}

struct adma_chan_req *adma_chan_req_begin(struct adma_channel *ch,
					  struct adma_request *req);
int adma_chan_req_send(struct adma_chan_req *cr, const struct adma_xfer *xfer,
		       unsigned int nr, u32 units, bool fence);
bool adma_chan_req_close(struct adma_chan_req *cr);
void adma_chan_req_over(struct adma_chan_req *cr, bool failed);

/* file.c */

/* What is under way for all open files of a user. */
struct adma_user {
	struct list_head list;
	struct user_struct *of;	/* held by the files' credentials */
	unsigned int files;
	atomic64_t bytes;
};

struct adma_slot {
	u64 id;			/* the last request that had it */
	u64 failed;
	enum { ADMA_FREE, ADMA_BUSY, ADMA_FAILED } state;
	struct adma_request *req;	/* of whoever has it; for the next one */
};

/* An open file, and as long as requests of it are under way. */
struct adma_file {
	struct kref kref;
	struct mm_struct *mm;	/* only compared */
	const struct cred *cred;	/* of the opener, whose user is charged */
	struct adma_user *user;
	wait_queue_head_t wait;	/* for requests and ranges to end */
	atomic_t ending;	/* requests that are over, but for their work */

	spinlock_t lock;	/* of what follows */
	u64 sequence;
	unsigned int busy;
	unsigned long pages;	/* pinned, kept or not */
	unsigned long kept;	/* of them, in ranges that are listed */
	struct adma_slot slot[ADMA_SLOTS];
	struct list_head ranges;	/* kept ones; the oldest first */
	struct list_head gone;	/* ones that nobody holds any more */
	unsigned int leaving;	/* of them, whose pages are not let go yet */
	unsigned int nr_ports;
	unsigned int nr_exports;
	unsigned int foreign;	/* requests of others, to or from exports */

	struct mutex exports_lock;	/* of them, and of all their buffers */
	struct list_head ports;
	struct work_struct recheck;	/* of exports, when a range has died */

	unsigned long keep_pages;	/* high-water mark of kept ones */
	struct work_struct reap;	/* of the ranges that are gone */
	struct xarray table;	/* kept ranges by index */
	struct mutex table_lock;	/* of adding to it, and of emptying it */
	struct list_head files;	/* all of them */
	atomic64_t counts[ADMA_FILE_STATS];

	/* Per channel: a page with a word and the value for it by slot. */
	struct adma_words {
		void *page;
		dma_addr_t dma;
	} words[];
};

extern unsigned long adma_max_bytes;
extern unsigned long adma_max_pages;
extern unsigned long adma_max_files;

static inline void adma_count_for(struct adma_file *file, enum adma_stat what)
{
	atomic64_inc(&file->counts[what - ADMA_STAT_HITS]);
	adma_count(what, 1);
}

int adma_slot_take(struct adma_file *file);
void adma_slot_leave(struct adma_file *file, unsigned int nr, u64 bytes,
		     u64 failed);
int adma_charge_bytes(struct adma_request *req, u64 len);
int adma_charge_pages(struct adma_file *file, unsigned int pages,
		      bool make_room);
void adma_uncharge_pages(struct adma_file *file, unsigned int pages);
struct adma_file *adma_file_new(void);
void adma_file_get(struct adma_file *file);
void adma_file_drain(struct adma_file *file);
void adma_file_catch_up(struct adma_file *file);
void adma_file_put(struct adma_file *file);
bool adma_is_over(struct adma_file *file, u64 id, u64 *failed);
int adma_wait(struct adma_file *file, struct adma_wait *arg);
unsigned long adma_wait_limit(u64 timeout_ns);

/* export.c */

/* What the descriptor of a port stands for. */
struct adma_exporter {
	struct kref kref;	/* the descriptor, and its buffers */
	struct adma_file *file;
	struct list_head list;	/* of file->ports */
	bool closed;
	atomic64_t last;	/* number of the last buffer */
	struct xarray bufs;	/* by number */
};

/* A buffer that is exported. */
struct adma_buf {
	struct kref kref;	/* the table of the port, and who uses it */
	struct adma_exporter *port;
	u64 id;
	u64 addr;
	u64 len;
	u32 flags;
	/* Changed with the file's exports_lock. */
	unsigned int requests;	/* that use it; they need the ranges */
	bool closed;		/* nothing new begins */
	bool dead;		/* ... because a range has died */
	struct adma_ranges *ranges;	/* NULL: let go */
};

struct adma_buf *adma_buf_enter(int port, u64 id, u32 wanted);
void adma_buf_leave(struct adma_buf *buf);
void adma_ports_open(struct adma_file *file);
void adma_ports_close(struct adma_file *file);
void adma_exports_recheck(struct adma_file *file);
int adma_ioctl_port(struct adma_file *file, void __user *user);

/* request.c */

/* Far more than anybody wants; keeps every count of pages an int. */
#define ADMA_MAX_LEN	SZ_1G

#define ADMA_BATCH	64

struct adma_request {
	struct adma_file *file;
	/* Between processes: the buffer, and the caller's side of all pieces. */
	struct adma_buf *buf;
	struct adma_ranges *own;
	u64 id;
	unsigned int slot;
	unsigned int accepted;
	u64 bytes;		/* charged */
	atomic64_t failed;	/* pieces */
	refcount_t parts;	/* not over, and one while it is submitted */
	struct work_struct end;
	struct {
		struct adma_chan_req *cr;	/* NULL: has no part in it */
		u64 pieces;
	} part[ADMA_MAX_CHANNELS];
	unsigned int nr_uses;

	/* What follows stays when the slot is given to somebody else. */
	unsigned int max_uses;
	struct adma_use *use;
	struct adma_piece piece[ADMA_MAX_PIECES];
	struct adma_xfer xfer[ADMA_BATCH];	/* not yet handed over */
};

extern struct workqueue_struct *adma_workqueue;

void adma_request_free(struct adma_request *req);
void adma_request_put(struct adma_request *req);
int adma_submit(struct adma_file *file, struct adma_submit *arg);

/* xfer.c */

/* One side of a piece, as far as it has got. */
struct adma_side {
	u64 addr;
	bool write;
	struct adma_range *range;	/* of addr; held by the request */
	unsigned int use;		/* its number there */
	/* Between processes all ranges are ready; otherwise NULL. */
	struct adma_range **ready;
	u64 first;			/* index of the first one of them */
};

/* A submission: pages are pinned in chunks, and copied meanwhile. */
struct adma_submission {
	struct adma_request *req;
	bool push;		/* between processes: from the caller */
	struct adma_range **own;	/* ... and the next piece's ranges */
	unsigned int chunk;	/* pages; four times as many each time */
	unsigned int waiting;	/* of them, pinned and not handed over; fewer */
	unsigned int stale;	/* times that ranges died meanwhile */
	unsigned int pinned;	/* pages */
	unsigned int pinned_first;	/* before the first transfer ... */
	bool begun;		/* ... which was handed over */
	u64 cpu_bytes;
	u8 channel[ADMA_MAX_PIECES];	/* where pieces went ... */
	u64 moved;		/* ... who had asked for another */

	/* The piece that is on its way to a channel. */
	struct adma_channel *ch;
	struct adma_side dst;
	struct adma_side src;
	u64 left;
	unsigned int nr;	/* transfers in req->xfer; the last may grow */
	size_t bytes;		/* of them */
};

unsigned int adma_max_uses(const struct adma_piece *pieces, unsigned int count);
int adma_piece_send(struct adma_submission *sub, const struct adma_piece *piece,
		    struct adma_channel *ch);

/* device.c */

int adma_read(void *arg, size_t known, u32 flags, void __user *user);
int adma_write(void __user *user, const void *arg, size_t known);

#endif /* ADMA_H */
