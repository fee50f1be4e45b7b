/* SPDX-License-Identifier: GPL-2.0 */
/* Exports: buffers that a process lets others reach. */
#ifndef ADMA_EXPORT_H
#define ADMA_EXPORT_H

#include "range.h"

#define ADMA_MAX_LEN	SZ_1G	/* keeps every count of pages an int */

/* All exports of an open file; private_data of its ports. */
struct adma_exports {
	struct adma_mem *mem;	/* of the file */
	struct xarray table;	/* by number; its lock protects what follows */
	u64 last;		/* number of the last one */
	unsigned int nr;
	bool closed;		/* nothing is exported any more */
};

/* An exported buffer; the lock of the table protects it. */
struct adma_buf {
	struct adma_exports *exports;
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

/* export.c */
void adma_exports_init(struct adma_exports *exports, struct adma_mem *mem);
void adma_exports_void(struct adma_exports *exports, struct adma_range *range);
void adma_exports_close(struct adma_exports *exports, const struct file *port);
struct adma_buf *adma_buf_enter(const struct file_operations *fops, int fd,
				u64 id, u32 wanted);
void adma_buf_leave(struct adma_buf *buf);
int adma_export(struct file *port, struct adma_export *arg);
int adma_unexport(struct file *port, struct adma_wait *arg);

#endif /* ADMA_EXPORT_H */
