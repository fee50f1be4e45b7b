/* SPDX-License-Identifier: GPL-2.0 */
/* An open /dev/adma: its memory, requests and exports. */
#ifndef ADMA_FILE_H
#define ADMA_FILE_H

#include "range.h"

#define ADMA_MAX_LEN	SZ_1G	/* keeps every count of pages an int */

struct adma_request;

/* What all open files of a user have. */
struct adma_user {
	unsigned int files;
	atomic_t requests;	/* in flight, */
	atomic64_t bytes;	/* and their bytes */
};

/* An open file, until the last of its requests is over. */
struct adma_file {
	struct adma_mem mem;
	struct pid *owner;	/* the process that opened it */
	struct adma_user *user;	/* NULL: nothing is active */
	refcount_t active;	/* the open file, and its requests */

	spinlock_t lock;	/* protects sequence, ids and states of requests */
	struct adma_request *slot[ADMA_SLOTS];	/* NULL: was never used */
	u64 sequence;		/* of requests */

	struct xarray exports;	/* by number; its lock protects what follows */
	u64 last_export;	/* its number */
	unsigned int nr_exports;
	bool closed;		/* nothing is exported any more */

	struct adma_words words[];
};

static inline struct adma_file *adma_file_of(struct adma_mem *mem)
{
	return container_of(mem, struct adma_file, mem);
}

/* Returns how long a call may wait, in jiffies; 0: not at all. */
static inline long adma_timeout_of(const struct adma_wait *arg)
{
	if (!arg->timeout_ns)
		return 0;
	return min_t(u64, nsecs_to_jiffies64(arg->timeout_ns) + 1, INT_MAX);
}

int adma_file_open(struct inode *inode, struct file *filp);
int adma_file_release(struct inode *inode, struct file *filp);

#endif /* ADMA_FILE_H */
