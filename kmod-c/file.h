/* SPDX-License-Identifier: GPL-2.0 */
/* An open /dev/adma: its memory, requests and exports. */
#ifndef ADMA_FILE_H
#define ADMA_FILE_H

#include "export.h"
#include "request.h"

/* An open file, until the last of its requests is over. */
struct adma_file {
	struct adma_mem mem;
	struct adma_requests requests;
	struct adma_exports exports;
	struct pid *owner;	/* the process that opened it */
	struct adma_words words[];
};

/* file.c */
int adma_file_open(struct inode *inode, struct file *filp);
int adma_file_release(struct inode *inode, struct file *filp);

#endif /* ADMA_FILE_H */
