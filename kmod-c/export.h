/* SPDX-License-Identifier: GPL-2.0 */
#ifndef ADMA_EXPORT_H
#define ADMA_EXPORT_H

#include "file.h"

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

struct adma_buf *adma_buf_enter(const struct file_operations *fops, int fd,
				u64 id, u32 wanted);
void adma_buf_leave(struct adma_buf *buf);
void adma_exports_void(struct adma_mem *mem, struct adma_range *range);
void adma_exports_close(struct adma_file *file, const struct file *port);
int adma_export(struct file *port, struct adma_export *arg);
int adma_unexport(struct file *port, struct adma_wait *arg);

#endif /* ADMA_EXPORT_H */
