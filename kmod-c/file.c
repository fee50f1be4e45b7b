// SPDX-License-Identifier: GPL-2.0
/* Opening and closing /dev/adma. */
#include <linux/cred.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "file.h"

/*
 * How long a process that closes its file, or all of them as it ends, waits for
 * transfers in flight before it detaches from them.
 */
#define ADMA_DRAIN_MS	10000

static void adma_file_free(struct kref *kref)
{
	struct adma_mem *mem = container_of(kref, struct adma_mem, kref);
	struct adma_file *file = container_of(mem, struct adma_file, mem);
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
	adma_requests_free(&file->requests);
	xa_destroy(&file->exports.table);
	put_pid(file->owner);
	kfree(file);
	/* Works that put the last reference are flushed before the module goes. */
	module_put(THIS_MODULE);
}

/* A range of the file's memory has died. */
static void adma_file_void(struct adma_mem *mem, struct adma_range *range)
{
	adma_exports_void(&container_of(mem, struct adma_file, mem)->exports, range);
}

static bool adma_file_idle(struct adma_file *file, const struct adma_flight *what)
{
	return refcount_read(&file->mem.active) == 1 && !adma_flight_any(what);
}

/*
 * Waits for the end of what is in flight, but not for a channel that is known to be
 * silent. Where the memory map went first, as in exit, the time counts from there: it
 * is the same for all files of the process. Returns the jiffies left.
 */
static long adma_file_drain(struct adma_file *file)
{
	struct adma_mem *mem = &file->mem;
	const struct adma_flight what = { .owner = mem, .begun_by = jiffies };
	unsigned long end = READ_ONCE(mem->unmapped) ?: jiffies;

	end += msecs_to_jiffies(ADMA_DRAIN_MS);
	adma_channels_poll();
	while (!adma_file_idle(file, &what)) {
		if (time_after_eq(jiffies, end) || adma_flight_silent(&what)) {
			pr_warn_once("adma: a channel is silent, its pages stay pinned\n");
			break;
		}
		wait_event_timeout(mem->wait, adma_file_idle(file, &what),
				   msecs_to_jiffies(ADMA_WATCH_MS));
	}
	return max_t(long, end - jiffies, 0);
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
	long left;

	adma_exports_close(&file->exports, NULL);
	adma_ranges_retire(mem);
	if (task_tgid(current) == file->owner) {
		left = adma_file_drain(file);
		adma_mem_reap(mem);
		wait_event_timeout(mem->wait, !atomic_read(&mem->leaving), left);
	}
	adma_mem_leave(mem);
	adma_mem_put(mem);
	return 0;
}

int adma_file_open(struct inode *inode, struct file *filp)
{
	struct adma_file *file;
	struct adma_mem *mem;

	/* A kernel thread has no memory to copy. */
	if (!current->mm)
		return -EINVAL;
	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file)
		return -ENOMEM;
	mem = &file->mem;
	kref_init(&mem->kref);
	mem->release = adma_file_free;
	mem->died = adma_file_void;
	mem->mm = current->mm;
	mmgrab(mem->mm);
	mem->cred = get_current_cred();
	init_waitqueue_head(&mem->wait);
	mutex_init(&mem->maps);
	spin_lock_init(&mem->lock);
	INIT_LIST_HEAD(&mem->ranges);
	INIT_LIST_HEAD(&mem->unused);
	INIT_LIST_HEAD(&mem->all);
	INIT_DELAYED_WORK(&mem->reaper, adma_ranges_reap);
	xa_init_flags(&mem->table, XA_FLAGS_ACCOUNT);
	xa_init_flags(&mem->folios, XA_FLAGS_ACCOUNT);
	mem->keep_pages = READ_ONCE(adma_keep_pages);
	mem->words = file->words;
	spin_lock_init(&file->requests.lock);
	file->requests.mem = mem;
	adma_exports_init(&file->exports, mem);
	refcount_set(&mem->active, 1);
	file->owner = get_pid(task_tgid(current));
	mutex_lock(&adma_mems_lock);
	list_add_tail(&mem->all, &adma_mems);
	mutex_unlock(&adma_mems_lock);
	__module_get(THIS_MODULE);
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}
