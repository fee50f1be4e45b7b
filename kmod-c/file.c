// SPDX-License-Identifier: GPL-2.0
/* Opening and closing /dev/adma. */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "request.h"

/* How long a close waits for transfers in flight before it leaves them alone. */
#define ADMA_DRAIN_MS	10000

static unsigned long adma_max_files = 1024;
module_param_named(files, adma_max_files, ulong, 0644);
MODULE_PARM_DESC(files, "open files of one user at most (default 1024)");

/* Adds it to the files of its user, found through the other files. */
static int adma_file_list(struct adma_file *file)
{
	/* Not with the lock, which is everybody's: it may take long. */
	struct adma_user *new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	struct adma_user *user = new;
	struct adma_mem *mem;
	int ret = 0;

	if (!new)
		return -ENOMEM;
	mutex_lock(&adma_mems_lock);
	list_for_each_entry(mem, &adma_mems, all) {
		if (adma_file_of(mem)->user &&
		    mem->cred->user == file->mem.cred->user)
			user = adma_file_of(mem)->user;
	}
	if (user->files && user->files >= adma_max_files) {
		ret = -EMFILE;
	} else {
		user->files++;
		file->user = user;
		adma_mem_list(&file->mem);
	}
	mutex_unlock(&adma_mems_lock);
	if (user != new || ret)
		kfree(new);
	return ret;
}

/* No request of its own is in flight, nor will be. Ports may still refer to it. */
static void adma_file_shut(struct adma_file *file)
{
	mutex_lock(&adma_mems_lock);
	adma_words_unmap(&file->mem, ADMA_EVERY_DEVICE);
	if (!--file->user->files)
		kfree(file->user);
	file->user = NULL;
	mutex_unlock(&adma_mems_lock);
}

static void adma_file_free(struct kref *kref)
{
	struct adma_file *file = container_of(kref, struct adma_file, mem.kref);
	unsigned int i;

	if (file->user)
		adma_file_shut(file);
	adma_mem_exit(&file->mem);
	for (i = 0; i < adma_nr_channels; i++) {
		if (file->words[i].page)
			put_page(file->words[i].page);
	}
	adma_requests_free(file);
	xa_destroy(&file->exports);
	put_pid(file->owner);
	kfree(file);
}

/*
 * Waits until no channel reads or writes memory for this file, nor for others
 * that reach its exports. One that is silent for ever keeps its pages, and the
 * module: a leak, not a stray write.
 */
static void adma_file_drain(struct work_struct *work)
{
	struct adma_file *file = container_of(work, struct adma_file, drain);
	struct adma_flight what = { .owner = &file->mem, .begun_by = jiffies };
	long left;

	left = wait_event_timeout(file->mem.wait,
				  !adma_requests_busy(file, U64_MAX),
				  msecs_to_jiffies(ADMA_DRAIN_MS));
	if (left)
		left = adma_wait_for_flight(&what, left, false);
	adma_ranges_retire(&file->mem);
	adma_ranges_reap_all(&file->mem);
	if (left > 0) {
		adma_file_shut(file);
		module_put(THIS_MODULE);
	} else {
		pr_warn_once("adma: a channel is silent, its pages stay pinned\n");
	}
	adma_mem_put(&file->mem);
}

/*
 * A process to which the file was passed on waits for nothing of its owner's, who
 * may have requests in flight and pages locked for as long as it likes.
 */
int adma_file_release(struct inode *inode, struct file *filp)
{
	struct adma_file *file = filp->private_data;

	adma_exports_close(file, NULL);
	__module_get(THIS_MODULE);
	if (task_tgid(current) == file->owner)
		adma_file_drain(&file->drain);
	else
		queue_work(adma_reapers[true], &file->drain);
	return 0;
}

int adma_file_open(struct inode *inode, struct file *filp)
{
	struct adma_file *file;
	unsigned int i;
	int ret = 0;

	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file)
		return -ENOMEM;
	adma_mem_init(&file->mem);
	file->mem.release = adma_file_free;
	file->mem.died = adma_exports_void;
	file->mem.words = file->words;
	spin_lock_init(&file->lock);
	file->owner = get_pid(task_tgid(current));
	xa_init_flags(&file->exports, XA_FLAGS_ACCOUNT);
	INIT_WORK(&file->drain, adma_file_drain);
	for (i = 0; i < adma_nr_channels && !ret; i++) {
		file->words[i].page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!file->words[i].page)
			ret = -ENOMEM;
	}
	if (!ret)
		ret = adma_file_list(file);
	if (ret) {
		adma_mem_put(&file->mem);
		return ret;
	}
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}
