// SPDX-License-Identifier: GPL-2.0
/* Opening and closing /dev/adma. */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "file.h"

/* How long a close waits for transfers in flight before it detaches from them. */
#define ADMA_DRAIN_MS	10000

static void adma_file_free(struct kref *kref)
{
	struct adma_mem *mem = container_of(kref, struct adma_mem, kref);
	struct adma_file *file = adma_file_of(mem);
	unsigned int i;

	mutex_lock(&adma_mems_lock);
	list_del(&mem->all);
	mutex_unlock(&adma_mems_lock);
	xa_destroy(&mem->table);
	xa_destroy(&mem->folios);
	put_cred(mem->cred);
	mmdrop(mem->mm);
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
 * Drops one count of what is active: the open file, and each request. The last one
 * releases the module; the memory stays, because ports may refer to it.
 */
void adma_file_leave(struct adma_file *file)
{
	if (!refcount_dec_and_test(&file->active))
		return;
	mutex_lock(&adma_mems_lock);
	adma_words_unmap(&file->mem, ADMA_EVERY_DEVICE);
	mutex_unlock(&adma_mems_lock);
	module_put(THIS_MODULE);
}

/*
 * The owner waits until no channel reads or writes memory for this file, nor for
 * others that reach its exports. Another process that holds the file does not wait
 * for the owner, which may keep requests in flight and pages locked without limit:
 * what is left ends by itself. A channel that never answers keeps its pages and the
 * module: a leak, not a stray write.
 */
int adma_file_release(struct inode *inode, struct file *filp)
{
	struct adma_file *file = filp->private_data;
	struct adma_mem *mem = &file->mem;
	struct adma_flight what = { .owner = mem, .begun_by = jiffies };
	long left = msecs_to_jiffies(ADMA_DRAIN_MS);

	adma_exports_close(file, NULL);
	adma_ranges_retire(mem);
	if (task_tgid(current) == file->owner) {
		left = wait_event_timeout(mem->wait,
					  refcount_read(&file->active) == 1, left);
		if (left)
			left = adma_wait_for_flight(&what, left, false);
		if (!left)
			pr_warn_once("adma: a channel is silent, its pages stay pinned\n");
		adma_mem_reap(mem);
		wait_event_timeout(mem->wait, !atomic_read(&mem->leaving), left);
	}
	adma_file_leave(file);
	adma_mem_put(mem);
	return 0;
}

int adma_file_open(struct inode *inode, struct file *filp)
{
	struct adma_file *file;
	struct adma_mem *mem;
	unsigned int i;

	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file)
		return -ENOMEM;
	mem = &file->mem;
	kref_init(&mem->kref);
	mem->release = adma_file_free;
	mem->died = adma_exports_void;
	mem->mm = current->mm;
	mmgrab(mem->mm);
	mem->cred = get_current_cred();
	init_waitqueue_head(&mem->wait);
	spin_lock_init(&mem->lock);
	INIT_LIST_HEAD(&mem->ranges);
	INIT_LIST_HEAD(&mem->unused);
	INIT_LIST_HEAD(&mem->all);
	INIT_DELAYED_WORK(&mem->reaper, adma_ranges_reap);
	xa_init_flags(&mem->table, XA_FLAGS_ACCOUNT);
	xa_init_flags(&mem->folios, XA_FLAGS_ACCOUNT);
	mem->keep_pages = READ_ONCE(adma_keep_pages);
	mem->words = file->words;
	spin_lock_init(&file->lock);
	refcount_set(&file->active, 1);
	file->owner = get_pid(task_tgid(current));
	xa_init_flags(&file->exports, XA_FLAGS_ACCOUNT);
	for (i = 0; i < adma_nr_channels; i++) {
		file->words[i].page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!file->words[i].page) {
			adma_mem_put(mem);
			return -ENOMEM;
		}
	}
	mutex_lock(&adma_mems_lock);
	list_add_tail(&mem->all, &adma_mems);
	adma_words_map(mem);
	mutex_unlock(&adma_mems_lock);
	__module_get(THIS_MODULE);
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}
