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

/**
 * struct adma_file - an open file, until the last of its requests is over
 * @owner: the process that opened it
 * @user: NULL once it was closed and drained
 * @ending: requests that are over, but for their work
 * @lock: protects @sequence, and ids and states of requests
 * @slot: requests; NULL: was never used
 * @sequence: of requests
 * @exports: by number; its lock protects what follows
 * @last_export: its number
 * @closed: nothing is exported any more
 */
struct adma_file {
	struct adma_mem mem;
	struct pid *owner;
	struct adma_user *user;
	atomic_t ending;

	spinlock_t lock;
	struct adma_request *slot[ADMA_SLOTS];
	u64 sequence;

	struct xarray exports;
	u64 last_export;
	unsigned int nr_exports;
	bool closed;

	struct work_struct drain;
	struct adma_words words[];
};

static inline struct adma_file *adma_file_of(struct adma_mem *mem)
{
	return container_of(mem, struct adma_file, mem);
}

extern unsigned long adma_max_files;

int adma_file_open(struct inode *inode, struct file *filp);
int adma_file_release(struct inode *inode, struct file *filp);

#endif /* ADMA_FILE_H */
