/* SPDX-License-Identifier: GPL-2.0 */
/*
 * adma: copies user memory with DMA channels.
 *
 * The way of one copy: device.c takes the call, request.c checks the pieces and
 * sees the request to its end, file.c keeps the caller's slots and limits, cut.c
 * cuts a piece into transfers, pin.c pins and maps the pages, keep.c finds those
 * of earlier copies, leg.c has one channel's part of it carried out, channel.c
 * holds the channels, health.c decides when a transfer is dead and a channel
 * unfit. Between processes, span.c pins either side beforehand, and post.c lets
 * them reach each other's buffers. stats.c counts.
 *
 * A request consists of legs: what one channel does of it. Where channels work
 * in order a leg is over when its last transfer is, elsewhere when each of its
 * transfers is. The request is over with its last leg, and only then are its
 * pages let go.
 */
#ifndef ADMA_H
#define ADMA_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/dma-direction.h>
#include <linux/dmaengine.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/percpu.h>
#include <linux/refcount.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/wait.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "adma_ioctl.h"

struct adma_channel;
struct adma_file;
struct adma_leg;
struct adma_request;
struct attribute_group;
struct cred;
struct mm_struct;

/* stats.c */

enum adma_stat {
	ADMA_STAT_COPIES,	/* pieces taken */
	ADMA_STAT_BYTES,	/* of them, whoever copied */
	ADMA_STAT_DESCRIPTORS,	/* transfers handed to channels */
	ADMA_STAT_PINS,		/* pages pinned since loading */
	ADMA_STAT_PINNED_PAGES,	/* pages pinned now */
	ADMA_STAT_ERRORS,	/* transfers that did not go well */
	ADMA_STAT_TIMEOUTS,	/* legs that were silent for too long */
	ADMA_STAT_RING_FULL,	/* a channel had no room for a transfer */
	ADMA_STAT_QUARANTINED,	/* channels put aside after repeated errors */
	ADMA_STAT_EXPORTS,	/* buffers exported */
	ADMA_STAT_EXPORT_BYTES,	/* of ADMA_STAT_BYTES, between processes */
	ADMA_STAT_HITS,		/* lines found pinned */
	ADMA_STAT_MISSES,	/* ... or not */
	ADMA_STAT_EVICTIONS,	/* lines let go to make room */
	ADMA_STAT_INVALIDATIONS,	/* lines whose mapping has changed */
	ADMA_STATS,
};

/* The last ones are also counted for each file. */
#define ADMA_FILE_STATS	(ADMA_STATS - ADMA_STAT_HITS)

extern const struct attribute_group *adma_stat_groups[];

struct adma_counters {
	s64 count[ADMA_STATS];
};

DECLARE_PER_CPU(struct adma_counters, adma_counters);

static inline void adma_count(enum adma_stat what, s64 by)
{
	this_cpu_add(adma_counters.count[what], by);
}

void adma_stats_init(void);
void adma_stats_exit(void);

/* pin.c */

/* Pages of a line, a power of two: see bench/run pins. */
#define ADMA_LINE_PAGES	64

enum adma_kind {
	ADMA_PLAIN,		/* for one request, and nobody looks after it */
	ADMA_WATCHED,		/* for one request, with a notifier */
	ADMA_LASTING,		/* for a post, with a notifier */
	ADMA_KEPT,		/* in the table of its file, with a notifier */
};

/*
 * A line: pages that lie side by side in one process, aligned, some or all of
 * them pinned and mapped. A kept line stays pinned from one copy to the next,
 * until the program changes the mapping or somebody needs the room.
 */
struct adma_line {
	struct kref kref;	/* the table, and requests that use it */
	struct adma_file *file;
	u64 number;		/* address / (pages of a line) */
	enum adma_kind kind;
	bool write;		/* pinned for writing: serves readers too */
	bool used;		/* since eviction last looked */
	u8 age;			/* rounds since then; file->lock */
	bool prefetched;

	struct mmu_interval_notifier notifier;	/* not of a plain one */
	struct list_head young;	/* of file->lines, or file->gone */
	unsigned int counted;	/* its pages in file->kept; file->lock */
	struct list_head lru;	/* of its control group, for the shrinker */
	struct list_head doom;	/* while it is let go ... */
	bool doomed;		/* ... by one who has set this */
	struct rcu_head rcu;

	/* Against the notifier: of dead and uses, and of adding to pinned. */
	spinlock_t lock;
	bool dead;
	struct list_head uses;

	struct mutex fill;	/* of changing what follows */
	DECLARE_BITMAP(pinned, ADMA_LINE_PAGES);
	DECLARE_BITMAP(written, ADMA_LINE_PAGES);	/* or about to be */
	struct page **pages;
	struct adma_mapping {
		DECLARE_BITMAP(mapped, ADMA_LINE_PAGES);
		dma_addr_t *addr;
		u8 *run;	/* pages of a mapping, at its first one */
	} *mapping;		/* by device */
};

/* A line in a request, until that is over. */
struct adma_use {
	struct adma_line *line;	/* held */
	struct list_head list;	/* of line->uses; its lock, also of what follows */
	struct adma_leg *leg;	/* NULL: no transfer yet */
	unsigned int last;	/* number in the leg of the last that touches it */
	unsigned long since;	/* jiffies: when that was submitted */
};

int adma_pin_init(void);
void adma_pin_exit(void);
void adma_reap_work(struct work_struct *work);
void adma_lines_reap(struct adma_file *file);
size_t adma_line_size(void);
struct adma_line *adma_line_new(struct adma_file *file, u64 number, bool write,
				enum adma_kind kind);
void adma_line_put(struct adma_line *line);
bool adma_line_is_dead(struct adma_line *line);
bool adma_line_ready(struct adma_line *line, unsigned int first,
		     unsigned int count, unsigned int device);
int adma_line_fill(struct adma_line *line, unsigned int first,
		   unsigned int count, unsigned int device, bool may_fault,
		   unsigned int *pinned);
void adma_line_written(struct adma_line *line, unsigned int first,
		       unsigned int count);
void adma_use_begin(struct adma_use *use, struct adma_line *line);
void adma_use_end(struct adma_use *use);
bool adma_use_claim(struct adma_use *use, struct adma_leg *leg,
		    unsigned int last);
void adma_use_disclaim(struct adma_use *use, unsigned int last);

/* keep.c */

extern unsigned long adma_keep_pages;
extern unsigned long adma_max_files;

int adma_keep_init(void);
void adma_keep_stop(void);
void adma_keep_exit(void);
int adma_keep_open(struct adma_file *file);
void adma_keep_close(struct adma_file *file);
struct adma_line *adma_line_alloc(void);
void adma_line_free(struct adma_line *line);
struct adma_line *adma_line_get(struct adma_file *file, u64 number, bool write);
struct adma_line *adma_line_get_lasting(struct adma_file *file, u64 number,
					bool write);
void adma_line_grown(struct adma_line *line, unsigned int pages);
bool adma_line_forget(struct adma_line *line);
void adma_lines_drop(struct adma_file *file);
void adma_lines_trim(struct adma_file *file);
void adma_lines_make_room(struct adma_file *file, unsigned int pages,
			  bool of_user);

/* Where an address lies in its line. */

static inline u64 adma_line_of(u64 addr)
{
	return (addr >> PAGE_SHIFT) / ADMA_LINE_PAGES;
}

static inline unsigned int adma_lines_of(u64 addr, u64 len)
{
	return adma_line_of(addr + len - 1) - adma_line_of(addr) + 1;
}

static inline size_t adma_line_rest(u64 addr)
{
	size_t line = ADMA_LINE_PAGES * PAGE_SIZE;

	return line - (addr & (line - 1));
}

static inline unsigned int adma_page_in_line(u64 addr)
{
	return (addr >> PAGE_SHIFT) & (ADMA_LINE_PAGES - 1);
}

/* Pages of the next bytes, which are all in one line. */
static inline unsigned int adma_pages_until(u64 addr, size_t len)
{
	return adma_page_in_line(addr + len - 1) - adma_page_in_line(addr) + 1;
}

/* health.c */

enum adma_health {
	ADMA_UP,
	ADMA_ASIDE,		/* in doubt, or resting after errors */
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
void adma_health_stop(struct adma_channel *ch);
void adma_health_exit(struct adma_channel *ch);
void adma_watch_later(struct adma_channel *ch);
void adma_watch_now(struct adma_channel *ch);

/* channel.c */

#define ADMA_IDS	64	/* more legs than that are rarely under way */

struct adma_channel {
	struct dma_chan *chan;
	struct device *dev;	/* for mapping */
	unsigned int device;	/* its number in adma_devices */
	int node;
	bool ordered;		/* see adma_providers[] */
	unsigned long asked;	/* jiffies: the driver was, what is over */

	spinlock_t lock;	/* of what follows, and of how its legs end */
	struct list_head legs;	/* the oldest first */
	unsigned int unanswered;	/* transfers of theirs */
	size_t queued;		/* bytes of those */
	unsigned long moved;	/* jiffies: the last answer, or end of a pause */
	unsigned int good;	/* legs that ended well */
	bool erred;		/* an error that the watch has not seen yet */
	struct hlist_head ids[ADMA_IDS];	/* its legs, by number */
	u32 next_id;

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

/*
 * What a driver gives back with an answer is a number and no pointer: ioatdma
 * never answers the transfer at the head of a chain that it aborts, and may do
 * so when its ring has come round, long after we have forgotten about it.
 *
 * Bits 0 to 4: the channel; 5 to 19: the length in units of 64 bytes, 0 for a
 * word; from 20 on: the leg's id, or the probe's turn.
 */
#define ADMA_PARAM_UNIT	64
#define ADMA_PARAM_LEN	5
#define ADMA_PARAM_ID	20

static inline void *adma_param(const struct adma_channel *ch, u32 id, size_t len)
{
	return (void *)((unsigned long)id << ADMA_PARAM_ID |
			DIV_ROUND_UP(len, ADMA_PARAM_UNIT) << ADMA_PARAM_LEN |
			(ch - adma_channels));
}

static inline struct adma_channel *adma_param_channel(const void *param)
{
	return &adma_channels[(unsigned long)param % ADMA_MAX_CHANNELS];
}

static inline size_t adma_param_len(const void *param)
{
	return ((unsigned long)param >> ADMA_PARAM_LEN) %
	       BIT(ADMA_PARAM_ID - ADMA_PARAM_LEN) * ADMA_PARAM_UNIT;
}

static inline u32 adma_param_id(const void *param)
{
	return (unsigned long)param >> ADMA_PARAM_ID;
}

/* One transfer at most: no more than engines take, and than fits the parameter. */
#define ADMA_TRANSFER_MOST	SZ_1M

int adma_channels_request(unsigned int most, int node);
void adma_channels_release(void);
int adma_channel_pick(u32 wanted, u64 addr, u64 first);
void adma_channel_poke(struct adma_channel *ch);
dma_cookie_t adma_transfer(struct adma_channel *ch, dma_addr_t dst,
			   dma_addr_t src, size_t len, unsigned long flags,
			   dma_async_tx_callback_result answered, void *param);
int adma_channel_wait_room(struct adma_channel *ch);
void adma_channels_poke(void);
unsigned int adma_channels_usable(void);
unsigned int adma_channels_align(void);

/* leg.c */

struct adma_leg {
	struct adma_request *req;
	struct adma_channel *ch;	/* NULL: has no part in the request */
	struct list_head list;		/* of ch->legs until it is over */
	struct hlist_node by_id;	/* of ch->ids, as long */
	u32 id;
	dma_cookie_t cookie;		/* of the word; 0: there is none yet */
	unsigned long begun;		/* jiffies: first transfer issued */
	unsigned long closed_at;	/* jiffies: last transfer issued */
	u64 pieces;
	unsigned int pushed;		/* data transfers submitted */
	atomic_t done;			/* so many of the first ones are over */
	unsigned int unanswered;	/* transfers, the word included */
	size_t queued;			/* bytes of those */
	bool trusted;			/* the channel moved when it began */
	bool fenced;			/* the data transfer submitted last */
	bool closed;			/* its last transfer is submitted */
	bool aborted;			/* ... and was answered by an error */
	bool lost;			/* ... it seems: it was done with */
	bool suspect;			/* a probe was submitted after it */
	bool failed;
};

void adma_leg_begin(struct adma_leg *leg, struct adma_request *req,
		    struct adma_channel *ch);
int adma_leg_push(struct adma_leg *leg, dma_addr_t dst, dma_addr_t src,
		  size_t len, bool last_of_piece);
bool adma_leg_close(struct adma_leg *leg);
void adma_leg_over(struct adma_leg *leg, bool failed);

/* user.c */

struct adma_user {
	struct list_head list;
	struct user_struct *of;	/* held by the files' credentials */
	unsigned int files;
	atomic64_t bytes;	/* under way */
};

struct adma_user *adma_user_get(const struct cred *cred);
void adma_user_put(struct adma_user *user);
bool adma_user_charge(struct adma_user *user, u64 len);
void adma_user_uncharge(struct adma_user *user, u64 len);

/* file.c */

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
	wait_queue_head_t wait;	/* for requests and lines to end */
	atomic_t ending;	/* requests that are over, but for their work */

	spinlock_t lock;	/* of what follows */
	u64 sequence;
	unsigned int busy;
	u64 bytes;
	unsigned long pages;	/* pinned, kept or not */
	unsigned long kept;	/* of them, in lines that are listed */
	struct adma_slot slot[ADMA_SLOTS];
	struct list_head lines;	/* kept ones; the oldest first */
	struct list_head gone;	/* ones that nobody holds any more */
	unsigned int leaving;	/* of them, whose pages are not let go yet */
	unsigned int nr_gates;
	unsigned int nr_posts;
	unsigned int lent;	/* transfers of others, to or from posts */

	struct mutex gates_lock;	/* of the doors' list */
	struct list_head gates;
	struct work_struct examine;	/* posts, when a line has died */

	unsigned long keep_pages;	/* high-water mark of kept ones */
	struct work_struct reap;	/* of the lines that are gone */
	struct xarray table;	/* kept lines by number */
	struct mutex table_lock;	/* of adding to it, and of emptying it */
	struct list_head files;	/* all of them, for the shrinker */
	atomic64_t counts[ADMA_FILE_STATS];

	/* Per channel: a page with a word and the value for it by slot. */
	struct adma_words {
		void *page;
		dma_addr_t dma;
	} words[];
};

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
void adma_file_settle(struct adma_file *file);
void adma_file_put(struct adma_file *file);
bool adma_is_over(struct adma_file *file, u64 id, u64 *failed);
int adma_wait(struct adma_file *file, struct adma_wait *arg);
unsigned long adma_limit(u64 timeout_ns);

/* span.c */

/* Lines that lie side by side, ready for every device. */
struct adma_span {
	unsigned int nr;
	struct adma_line *line[];	/* held */
};

struct adma_span *adma_span_new(unsigned int lines);
int adma_span_fill(struct adma_span *span, struct adma_file *file, u64 addr,
		   u64 len, bool write, u64 *good, unsigned int *pinned);
void adma_span_put(struct adma_span *span);

/* post.c */

/* What the descriptor of a door stands for. */
struct adma_gate {
	struct kref kref;	/* the descriptor, and posts */
	struct adma_file *file;
	struct list_head gates;	/* of file->gates */

	spinlock_t lock;	/* of what follows */
	bool shut;
	u64 last;		/* number of the last post */
	struct xarray posts;	/* by number */
};

/* A buffer that is posted. */
struct adma_lent {
	struct kref kref;	/* the table of the door, and who uses it */
	struct adma_gate *gate;
	u64 id;
	u64 addr;
	u64 len;
	u32 flags;
	/* Changed with the gate's lock. */
	unsigned int transfers;	/* requests that use it; they need the lines */
	bool closed;		/* nothing new begins */
	bool dead;		/* ... because a line has died */
	struct adma_span *span;	/* NULL: let go */
};

struct adma_lent *adma_lent_enter(int door, u64 id, u32 wanted);
void adma_lent_leave(struct adma_lent *lent);
void adma_post_open(struct adma_file *file);
void adma_posts_doubt(struct adma_file *file);
void adma_gates_shut(struct adma_file *file);
int adma_ioctl_door(struct adma_file *file, void __user *user);

/* request.c */

/* Far more than anybody wants; keeps every count of pages an int. */
#define ADMA_MAX_LEN	SZ_1G

struct adma_request {
	struct adma_file *file;
	/* Between processes: the post, and the caller's side of all pieces. */
	struct adma_lent *lent;
	struct adma_span *own;
	u64 id;
	unsigned int slot;
	unsigned int accepted;
	u64 bytes;		/* charged */
	refcount_t legs;	/* not over, and one while it is submitted */
	struct work_struct end;
	unsigned int nr_uses;

	/* What follows stays when the slot is given to somebody else. */
	unsigned int most_uses;
	struct adma_leg *leg;	/* by channel */
	struct adma_piece piece[ADMA_MAX_PIECES];
	struct adma_use use[];
};

extern unsigned long adma_max_bytes;
extern unsigned long adma_max_pages;
extern struct workqueue_struct *adma_workqueue;

void adma_request_free(struct adma_request *req);
void adma_request_put(struct adma_request *req);
int adma_submit(struct adma_file *file, struct adma_submit *arg);

/* cut.c */

/* How a request goes: pages are pinned in chunks, and copied meanwhile. */
struct adma_course {
	unsigned int chunk;	/* pages; four times as many each time */
	unsigned int waiting;	/* of them, pinned and not handed over; fewer */
	bool begun;		/* something was */
	unsigned int stale;	/* times that lines died meanwhile */
	unsigned int pinned;	/* pages */
	unsigned int pinned_first;
	u64 cpu_bytes;
	struct adma_line **own;	/* between processes: the next piece's lines */
};

unsigned int adma_cut_uses(const struct adma_piece *pieces, unsigned int count);
int adma_cut(struct adma_request *req, const struct adma_piece *piece,
	     unsigned int channel, bool push, struct adma_course *course);

/* device.c */

int adma_read(void *arg, size_t known, void __user *user);
int adma_write(void __user *user, const void *arg, size_t known);

#endif /* ADMA_H */
