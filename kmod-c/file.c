// SPDX-License-Identifier: GPL-2.0
/* An open file: its pages and its user, waiting for its requests, the close. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>

#include "adma.h"

/* How long a close waits for requests under way before it leaves them alone. */
#define ADMA_DRAIN_MS	10000

/* For so long somebody who was refused room waits for works of his own file. */
#define ADMA_CATCH_UP_MS	20

/* ... and somebody who is about to fork, for requests and works of it. */
#define ADMA_LET_GO_MS	100

LIST_HEAD(adma_files);
DEFINE_MUTEX(adma_files_lock);	/* of the list, and of users' files */

static void adma_words_unmap(struct adma_file *file, unsigned int channel)
{
	struct adma_words *words = &file->words[channel];

	lockdep_assert_held(&adma_files_lock);
	if (words->mapped)
		dma_unmap_page(adma_channels[channel].dev, words->dma, PAGE_SIZE,
			       DMA_BIDIRECTIONAL);
	words->mapped = false;
}

/*
 * Pinned pages count against RLIMIT_MEMLOCK of the user, and show up in VmPin
 * of the process, as io_uring's do. At the limit, what is only kept goes first.
 */
int adma_charge_pages(struct adma_file *file, unsigned int pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	int tries, ret;
	long locked;

	for (tries = 0; tries < 2; tries++) {
		if (tries)
			adma_ranges_make_room(file, pages, ret == -ENOMEM);
		locked = atomic_long_add_return(pages,
						&file->cred->user->locked_vm);
		atomic64_add(pages, &file->mm->pinned_vm);
		if (atomic_long_add_return(pages, &file->pages) > adma_max_pages)
			ret = -EAGAIN;
		else if (locked > limit && !capable(CAP_IPC_LOCK))
			ret = -ENOMEM;
		else
			return 0;
		adma_uncharge_pages(file, pages);
	}
	return ret;
}

void adma_uncharge_pages(struct adma_file *file, unsigned int pages)
{
	atomic_long_sub(pages, &file->cred->user->locked_vm);
	atomic64_sub(pages, &file->mm->pinned_vm);
	atomic_long_sub(pages, &file->pages);
}

/*
 * Words of a channel. The lock of all files is held: a device that goes finds
 * them mapped, or they are not mapped for it.
 */
static void adma_words_map(struct adma_file *file, unsigned int channel)
{
	const struct adma_channel *ch = &adma_channels[channel];
	struct adma_words *words = &file->words[channel];

	lockdep_assert_held(&adma_files_lock);
	if (READ_ONCE(adma_devices[ch->device].gone))
		return;
	words->dma = dma_map_page(ch->dev, words->page, 0, PAGE_SIZE,
				  DMA_BIDIRECTIONAL);
	if (dma_mapping_error(ch->dev, words->dma))
		return;
	words->mapped = true;
	/* Without words the end is told by ADMA_IOC_WAIT only. */
	if (!adma_reaches(ch->dev, words->dma, words->page))
		adma_words_unmap(file, channel);
}

/* The device goes. No transfer from or to any of its mappings is in flight. */
void adma_files_unmap(unsigned int device)
{
	struct adma_file *file;
	unsigned int i;

	mutex_lock(&adma_files_lock);
	list_for_each_entry(file, &adma_files, files) {
		adma_ranges_unmap(file, device);
		for (i = 0; i < adma_nr_channels; i++) {
			if (adma_channels[i].device == device)
				adma_words_unmap(file, i);
		}
	}
	mutex_unlock(&adma_files_lock);
}

/* Adds it to the files of its user, who is known by his other files. */
static int adma_file_list(struct adma_file *file)
{
	/* Not with the lock, which is everybody's: it may take long. */
	struct adma_user *new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	struct adma_user *user = new;
	struct adma_file *other;
	unsigned int i;
	int ret = 0;

	if (!new)
		return -ENOMEM;
	mutex_lock(&adma_files_lock);
	list_for_each_entry(other, &adma_files, files) {
		if (other->user && other->cred->user == file->cred->user)
			user = other->user;
	}
	if (user->files && user->files >= adma_max_files) {
		ret = -EMFILE;
	} else {
		user->files++;
		file->user = user;
		list_move_tail(&file->files, &adma_files);
		for (i = 0; i < adma_nr_channels; i++)
			adma_words_map(file, i);
	}
	mutex_unlock(&adma_files_lock);
	if (user != new)
		kfree(new);
	return ret;
}

/* Whether one of the file's requests up to that one is not over. */
static bool adma_file_busy(struct adma_file *file, u64 sequence)
{
	bool busy = false;
	unsigned int i;

	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS; i++) {
		struct adma_request *req = READ_ONCE(file->slot[i]);

		busy |= req && req->state == ADMA_BUSY &&
			req->id / ADMA_SLOTS <= sequence;
	}
	spin_unlock(&file->lock);
	return busy;
}

/*
 * For whoever was refused room: requests of the file may be over and not know
 * it yet, for the word comes before the interrupt. And for whoever wants all to
 * be let go that requests up to @sequence have used.
 */
void adma_file_catch_up(struct adma_file *file, u64 sequence)
{
	long limit = msecs_to_jiffies(sequence ? ADMA_LET_GO_MS :
						 ADMA_CATCH_UP_MS);

	adma_channels_poll();
	wait_event_killable_timeout(file->wait,
				    sequence ? !adma_file_busy(file, sequence) :
					       !atomic_read(&file->ending),
				    limit);
	adma_ranges_reap(file);
	wait_event_killable_timeout(file->wait, !atomic_read(&file->leaving),
				    limit);
}

/*
 * Waits until @ended does not answer EAGAIN, for so long as the caller likes; 0:
 * only looks.
 */
int adma_wait_until(struct file *filp, struct adma_wait *arg,
		    int (*ended)(struct file *filp, struct adma_wait *arg))
{
	struct adma_file *file = filp->private_data;
	u64 limit = 0;
	long left;
	int ret;

	arg->failed = 0;
	if (arg->timeout_ns)
		limit = min_t(u64, nsecs_to_jiffies64(arg->timeout_ns) + 1,
			      MAX_SCHEDULE_TIMEOUT - 1);
	left = wait_event_interruptible_timeout(file->wait,
						(ret = ended(filp, arg)) != -EAGAIN,
						limit);
	if (left < 0)
		return -EINTR;
	return left || !limit ? ret : -ETIMEDOUT;
}

/*
 * Whether a request is over; EINVAL when nobody has had such a number yet. Once
 * told, failed pieces are forgotten.
 */
int adma_ended(struct file *filp, struct adma_wait *arg)
{
	struct adma_file *file = filp->private_data;
	struct adma_request *req = READ_ONCE(file->slot[arg->id % ADMA_SLOTS]);
	int ret = 0;

	spin_lock(&file->lock);
	if (!arg->id || !req || req->id < arg->id) {
		ret = -EINVAL;
	} else if (req->id == arg->id && req->state == ADMA_BUSY) {
		ret = -EAGAIN;
	} else if (req->id == arg->id && req->state == ADMA_FAILED) {
		arg->failed = atomic64_read(&req->failed);
		req->state = ADMA_FREE;
	}
	spin_unlock(&file->lock);
	return ret;
}

/* Nothing of its own is under way, nor will be. Ports may still hold it. */
static void adma_file_shut(struct adma_file *file)
{
	unsigned int i;

	mutex_lock(&adma_files_lock);
	for (i = 0; i < adma_nr_channels; i++)
		adma_words_unmap(file, i);
	if (!--file->user->files)
		kfree(file->user);
	file->user = NULL;
	mutex_unlock(&adma_files_lock);
}

static void adma_file_free(struct kref *kref)
{
	struct adma_file *file = container_of(kref, struct adma_file, kref);
	unsigned int i;

	if (file->user)
		adma_file_shut(file);
	mutex_lock(&adma_files_lock);
	list_del(&file->files);
	mutex_unlock(&adma_files_lock);
	for (i = 0; i < adma_nr_channels; i++) {
		if (file->words[i].page)
			put_page(file->words[i].page);
	}
	for (i = 0; i < ADMA_SLOTS; i++) {
		if (file->slot[i])
			kfree(file->slot[i]->range);
		kvfree(file->slot[i]);
	}
	xa_destroy(&file->exports);
	xa_destroy(&file->table);
	put_cred(file->cred);
	put_pid(file->owner);
	mmdrop(file->mm);
	kfree(file);
}

void adma_file_put(struct adma_file *file)
{
	kref_put(&file->kref, adma_file_free);
}

/*
 * Waits until no channel reads or writes memory for this file, nor for others
 * that reach its exports. One that is silent for ever keeps its pages, and the
 * module: a leak, not a stray write.
 */
static void adma_file_drain(struct work_struct *work)
{
	struct adma_file *file = container_of(work, struct adma_file, drain);
	bool idle;

	idle = wait_event_timeout(file->wait, !adma_file_busy(file, U64_MAX) &&
				  !READ_ONCE(file->foreign),
				  msecs_to_jiffies(ADMA_DRAIN_MS));
	adma_ranges_drop(file);
	/* Not in that work, which may be queued behind those of others. */
	if (cancel_work_sync(&file->reap))
		adma_file_put(file);	/* not the last: the caller has one */
	adma_ranges_reap(file);
	if (idle) {
		adma_file_shut(file);
		module_put(THIS_MODULE);
	} else {
		pr_warn_once("adma: a channel is silent, its pages stay pinned\n");
	}
	adma_file_put(file);
}

/*
 * Somebody to whom the file was passed on waits for nothing of its owner's, who
 * may have requests under way and pages locked for as long as he likes.
 */
int adma_file_release(struct inode *inode, struct file *filp)
{
	struct adma_file *file = filp->private_data;

	adma_exports_close(file, NULL);
	__module_get(THIS_MODULE);
	if (task_tgid(current) == file->owner)
		adma_file_drain(&file->drain);
	else
		queue_work(adma_reaper, &file->drain);
	return 0;
}

int adma_file_open(struct inode *inode, struct file *filp)
{
	struct adma_file *file;
	unsigned int i;
	int ret;

	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file)
		return -ENOMEM;
	kref_init(&file->kref);
	spin_lock_init(&file->lock);
	init_waitqueue_head(&file->wait);
	file->mm = current->mm;
	mmgrab(file->mm);
	file->owner = get_pid(task_tgid(current));
	file->cred = get_current_cred();
	xa_init_flags(&file->exports, XA_FLAGS_ACCOUNT);
	xa_init_flags(&file->table, XA_FLAGS_ACCOUNT);
	INIT_LIST_HEAD(&file->files);
	INIT_LIST_HEAD(&file->ranges);
	INIT_LIST_HEAD(&file->gone);
	INIT_WORK(&file->reap, adma_reap_work);
	INIT_WORK(&file->drain, adma_file_drain);
	file->keep_pages = adma_keep_pages;
	ret = 0;
	for (i = 0; i < adma_nr_channels && !ret; i++) {
		file->words[i].page = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!file->words[i].page)
			ret = -ENOMEM;
	}
	if (!ret)
		ret = adma_file_list(file);
	if (ret) {
		adma_file_put(file);
		return ret;
	}
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}
