/* SPDX-License-Identifier: GPL-2.0 */
/* An open /dev/adma: its memory, requests and exports. */
#ifndef ADMA_FILE_H
#define ADMA_FILE_H

#include "range.h"

#define ADMA_MAX_LEN	SZ_1G	/* keeps every count of pages an int */
#define ADMA_MAX_BYTES	SZ_64M	/* of a request */

/* An open file, until the last of its requests is over. */
struct adma_file {
	struct adma_mem mem;
	struct pid *owner;	/* the process that opened it */

	spinlock_t lock;	/* protects sequence, ids and states of requests */
	struct adma_request *slot[ADMA_SLOTS];	/* NULL: was never used */
	u64 sequence;		/* of requests */

	struct xarray exports;	/* by number; its lock protects what follows */
	u64 last_export;	/* its number */
	unsigned int nr_exports;
	bool closed;		/* nothing is exported any more */

	struct adma_words words[];
};

/* An exported buffer; the lock of file->exports protects it. */
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
	struct adma_range *range[];	/* with a reference each */
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

/* file.c */
int adma_file_open(struct inode *inode, struct file *filp);
int adma_file_release(struct inode *inode, struct file *filp);

/* export.c */
struct adma_buf *adma_buf_enter(const struct file_operations *fops, int fd,
				u64 id, u32 wanted);
void adma_buf_leave(struct adma_buf *buf);
void adma_exports_void(struct adma_mem *mem, struct adma_range *range);
void adma_exports_close(struct adma_file *file, const struct file *port);
int adma_export(struct file *port, struct adma_export *arg);
int adma_unexport(struct file *port, struct adma_wait *arg);

/* request.c */
int adma_submit(struct file *filp, const struct file_operations *port,
		struct adma_submit *arg);
int adma_wait(struct adma_file *file, struct adma_wait *arg);
void adma_requests_free(struct adma_file *file);
bool adma_requests_over(struct adma_file *file, u64 sequence);

#endif /* ADMA_FILE_H */
