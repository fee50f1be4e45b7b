/* SPDX-License-Identifier: GPL-2.0 */
/*
 * DMA channels, the part of a request on each (chan_req), their health, and
 * counters. Nothing here knows of files or pages.
 *
 * Inside ch->lock (interrupts off) only the kernel's own locks are taken: those of
 * wait queues and workqueues. A driver is called inside a read side of adma_srcu,
 * after ch->chan was seen there: a channel is given back once it is NULL and all
 * read sides are over.
 */
#ifndef ADMA_CHANNEL_H
#define ADMA_CHANNEL_H

#include <linux/atomic.h>
#include <linux/dmaengine.h>
#include <linux/list.h>
#include <linux/percpu.h>
#include <linux/refcount.h>
#include <linux/sizes.h>
#include <linux/spinlock.h>
#include <linux/srcu.h>
#include <linux/wait.h>
#include <linux/workqueue.h>

#include "adma_ioctl.h"

#define ADMA_CHAN_REQS	256	/* of one channel in flight, and the probe */
#define ADMA_MAX_XFER	SZ_1M	/* longest transfer */
#define ADMA_UNIT	64	/* bytes; queues are counted in these */
#define ADMA_WATCH_MS	20	/* looks for completions without an interrupt */

/* In the order of adma_stat_names[]. */
enum adma_stat {
	ADMA_STAT_COPIES,	/* pieces taken */
	ADMA_STAT_BYTES,	/* of them */
	ADMA_STAT_DESCRIPTORS,	/* transfers handed to channels */
	ADMA_STAT_PINS,		/* pages pinned since loading */
	ADMA_STAT_OVERLAPPED,	/* of them, while their copy was in flight */
	ADMA_STAT_PINNED_PAGES,	/* pages pinned now */
	ADMA_STAT_ERRORS,	/* transfers that failed */
	ADMA_STAT_TIMEOUTS,	/* parts of requests silent for too long */
	ADMA_STAT_RING_FULL,	/* a channel refused a transfer */
	ADMA_STAT_QUARANTINED,	/* quarantined after repeated errors */
	ADMA_STAT_EXPORTS,	/* buffers exported */
	ADMA_STAT_EXPORT_BYTES,	/* of ADMA_STAT_BYTES, between processes */
	ADMA_STATS,
};

enum adma_health {
	ADMA_UP,
	ADMA_QUARANTINED,		/* being examined, or resting after errors */
	ADMA_DISABLED,		/* until the module is loaded again */
};

/* A channel of a dmaengine driver that we hold. */
struct adma_channel {
	struct dma_chan *chan;	/* NULL: was given back */
	struct device *dev;	/* for mapping; hold.c has a reference */
	unsigned int device;	/* its number */
	bool ordered;		/* see adma_order_of() */
	bool leaving;		/* nothing begins on it any more */
	bool stopped;		/* was given back and reset: nothing moves any more */
	wait_queue_head_t wait;	/* woken as transfers complete */
	unsigned long asked;	/* jiffies: driver last asked for completions */
	unsigned long moved;	/* jiffies: last completion, or end of a pause */
	atomic_long_t queued;	/* units in flight */
	/*
	 * Without order: transfers whose completion has not come, also those that
	 * were given up. While there are any, the driver may call us.
	 */
	atomic_t entries;
	atomic_t debt;		/* of errors: see health.c */
	struct adma_chan_req *req;	/* all of them, by number; 0 is the probe */

	spinlock_t lock;	/* protects what follows, and the end of chan_reqs */
	struct list_head reqs;	/* in flight, oldest first */
	struct list_head free;	/* the others */
	bool erred;		/* an error that the watch has not seen yet */

	/* Written by the watch alone; others read the health. */
	struct delayed_work watch;
	enum adma_health health;
	bool silent;		/* its last probe has not completed */
	bool held;		/* the module, for what a probe has in flight */
	void *probe_page;
	dma_addr_t probe_dma;
};

/* A page with a word and the value for it by slot; user space reads the words. */
struct adma_words {
	struct page *page;
	dma_addr_t dma;
	bool mapped;
};

/* A request, as far as channels know it. */
struct adma_job {
	u64 id;			/* value of its words */
	unsigned int slot;	/* number of its words */
	struct adma_words *words;	/* by channel */
	const void *user;	/* of the submitter; only compared */
	const void *owner[2];	/* whose memory it touches; the second may be NULL */
	const void *buf;	/* export that it reaches, or NULL */
	unsigned long begun;	/* jiffies, not 0: before its first transfer */
	unsigned long due;	/* mask of channels whose words we write at the end */
	atomic64_t failed;	/* mask of pieces */
	refcount_t parts;	/* chan_reqs that are not over, and the submitter */
	void (*end)(struct adma_job *job);	/* there are none; interrupts are off */
};

/*
 * The part of a request on one channel; reused for the next one.
 *
 *	adma_chan_req_begin()       adma_chan_req_close()      adma_chan_req_end()
 *	---------------------> open --------------------> closed -----------------> free
 *	                       _send() submits          all completed, or known dead
 */
struct adma_chan_req {
	struct adma_channel *ch;
	struct adma_job *job;
	struct list_head list;		/* of ch->reqs or ch->free */
	/*
	 * Upper half: the turn, how often it was used. Lower half: units completed,
	 * the first ones if in order. Changed together, without the lock.
	 */
	atomic64_t done;
	/* 0 at the beginning of a turn: */
	u64 pieces;			/* mask, of the request */
	u32 sent;			/* units submitted; by the submitter */
	dma_cookie_t cookie;		/* of the last transfer */
	unsigned long begun;		/* jiffies before the first transfer */
	unsigned long sent_at;		/* jiffies before the last transfer */
	bool trusted;			/* no transfer was lost, or we would know */
	bool closed;			/* its last transfer is submitted */
	bool word_came;			/* what has not completed is lost */
	bool failed;
};

/* Which transfers in flight to look for; a NULL field matches any. */
struct adma_flight {
	const struct adma_job *job;
	const struct adma_channel *ch;
	const void *owner;
	const void *buf;
	unsigned long begun_by;	/* jiffies */
	unsigned long max_age;	/* jiffies since sent; 0: any */
};

DECLARE_PER_CPU(s64[ADMA_STATS], adma_counters);
extern struct adma_channel adma_channels[ADMA_MAX_CHANNELS];
extern unsigned int adma_nr_channels;
extern bool adma_awaited;
extern unsigned long adma_depth;
extern struct workqueue_struct *adma_workqueue;
extern struct srcu_struct adma_srcu;

static inline void adma_count(enum adma_stat what, s64 by)
{
	this_cpu_add(adma_counters[what], by);
}

static inline u32 adma_units(size_t len)
{
	return DIV_ROUND_UP(len, ADMA_UNIT);
}

/* Returns whether transfers may begin on it. */
static inline bool adma_channel_is_up(const struct adma_channel *ch)
{
	/* Pairs with adma_device_take(). */
	return !smp_load_acquire(&ch->leaving) && READ_ONCE(ch->health) == ADMA_UP;
}

static inline u32 adma_chan_req_turn(const struct adma_chan_req *cr)
{
	return (u64)atomic64_read(&cr->done) >> 32;
}

/* Returns the units in flight, or about to be. */
static inline u32 adma_chan_req_left(const struct adma_chan_req *cr)
{
	return READ_ONCE(cr->sent) - (u32)atomic64_read(&cr->done);
}

/* Returns the chan_req of the probe, which belongs to no request: see health.c. */
static inline struct adma_chan_req *adma_probe_of(struct adma_channel *ch)
{
	return &ch->req[0];
}

static inline void adma_watch_soon(struct adma_channel *ch)
{
	queue_delayed_work(adma_workqueue, &ch->watch,
			   msecs_to_jiffies(ADMA_WATCH_MS));
}

/* channel.c */
int adma_order_of(struct dma_device *device);
void adma_channel_issue(struct adma_channel *ch, bool poll);
void adma_channels_poll(void);
int adma_channel_pick(u32 wanted, u64 addr, u64 first);
bool adma_channel_full(struct adma_channel *ch);
struct adma_chan_req *adma_chan_req_begin(struct adma_channel *ch,
					  struct adma_job *job);
void adma_chan_req_charge(struct adma_chan_req *cr, s32 units);
dma_cookie_t adma_chan_req_transfer(struct adma_chan_req *cr, dma_addr_t dst,
				    dma_addr_t src, size_t len,
				    unsigned long flags);
int adma_chan_req_send(struct adma_chan_req *cr, dma_addr_t dst, dma_addr_t src,
		       size_t len, unsigned long flags,
		       bool (*stale)(struct adma_job *job));
bool adma_chan_req_close(struct adma_chan_req *cr, bool word);
void adma_chan_req_next_turn(struct adma_chan_req *cr);
void adma_chan_req_end(struct adma_chan_req *cr, bool dead);
void adma_channel_stopped(struct adma_channel *ch);
void adma_job_put(struct adma_job *job);

/* Returns how long a call may wait, in jiffies; 0: not at all. */
static inline long adma_timeout_of(const struct adma_wait *arg)
{
	if (!arg->timeout_ns)
		return 0;
	return min_t(u64, nsecs_to_jiffies64(arg->timeout_ns) + 1, INT_MAX);
}

/* flight.c */
bool adma_flight_any(const struct adma_flight *what);
bool adma_flight_silent(const struct adma_flight *what);
long adma_wait_for_flight(const struct adma_flight *what, long timeout,
			  bool interruptible);

/* health.c */
int adma_health_init(struct adma_channel *ch);
void adma_watch(struct work_struct *work);

/* stats.c */
extern const struct attribute_group *adma_stat_groups[];

#endif /* ADMA_CHANNEL_H */
