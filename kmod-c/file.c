// SPDX-License-Identifier: GPL-2.0
/* An open file: its slots, its limits, and the end of its requests. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/dma-mapping.h>
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

/*
 * Each holds a chan_req of every channel it has pieces for, also while it waits
 * for a page: one user leaves enough of them to others.
 */
#define ADMA_USER_REQUESTS	(ADMA_CHAN_REQS / 2)

/* What all open files of a user have. */
struct adma_user {
	unsigned int files;
	atomic_t requests;	/* under way, */
	atomic64_t bytes;	/* and their bytes */
};

/* By number; the lock is of their files, too. */
static DEFINE_XARRAY_FLAGS(adma_users, XA_FLAGS_ACCOUNT);

/* Answers the slot's number, which is part of its request's. */
int adma_slot_take(struct adma_file *file)
{
	int i, ret = -EAGAIN;

	if (atomic_inc_return(&file->user->requests) > ADMA_USER_REQUESTS) {
		atomic_dec(&file->user->requests);
		return ret;
	}
	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS && ret < 0; i++) {
		struct adma_slot *slot = &file->slot[i];

		if (slot->state != ADMA_FREE)
			continue;
		/* 0 is no number. */
		slot->id = ++file->sequence * ADMA_SLOTS + i;
		slot->failed = 0;
		slot->state = ADMA_BUSY;
		ret = i;
	}
	spin_unlock(&file->lock);
	if (ret < 0)
		atomic_dec(&file->user->requests);
	return ret;
}

/* Failed pieces are kept until somebody has been told. */
void adma_slot_leave(struct adma_file *file, unsigned int nr, u64 bytes,
		     u64 failed)
{
	struct adma_slot *slot = &file->slot[nr];

	atomic64_sub(bytes, &file->user->bytes);
	atomic_dec(&file->user->requests);
	spin_lock(&file->lock);
	slot->failed = failed;
	slot->state = failed ? ADMA_FAILED : ADMA_FREE;
	spin_unlock(&file->lock);
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

int adma_charge_bytes(struct adma_request *req, u64 len)
{
	atomic64_t *bytes = &req->file->user->bytes;
	int tries;

	for (tries = 0; tries < 2; tries++) {
		if (tries)
			adma_file_catch_up(req->file, 0);
		if (atomic64_add_return(len, bytes) <= READ_ONCE(adma_max_bytes)) {
			req->bytes += len;
			return 0;
		}
		atomic64_sub(len, bytes);
	}
	return -EAGAIN;
}

static struct adma_user *adma_user_get(kuid_t uid)
{
	struct adma_user *new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	struct adma_user *user;

	if (!new)
		return ERR_PTR(-ENOMEM);
	xa_lock(&adma_users);
	user = __xa_cmpxchg(&adma_users, __kuid_val(uid), NULL, new,
			    GFP_KERNEL_ACCOUNT);
	if (!user)
		swap(user, new);
	if (xa_is_err(user))
		user = ERR_PTR(xa_err(user));
	else if (user->files && user->files >= adma_max_files)
		user = ERR_PTR(-EMFILE);
	else
		user->files++;
	xa_unlock(&adma_users);
	kfree(new);
	return user;
}

static void adma_user_put(struct adma_user *user, kuid_t uid)
{
	xa_lock(&adma_users);
	if (!--user->files)
		kfree(__xa_erase(&adma_users, __kuid_val(uid)));
	xa_unlock(&adma_users);
}

/* Whether one of the file's requests up to that one is not over. */
static bool adma_file_busy(struct adma_file *file, u64 sequence)
{
	bool busy = false;
	unsigned int i;

	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS; i++)
		busy |= file->slot[i].state == ADMA_BUSY &&
			file->slot[i].id / ADMA_SLOTS <= sequence;
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
int adma_wait_until(struct adma_file *file, struct adma_wait *arg,
		    int (*ended)(void *of, struct adma_wait *arg), void *of)
{
	u64 limit = 0;
	long left;
	int ret;

	arg->failed = 0;
	if (arg->timeout_ns)
		limit = min_t(u64, nsecs_to_jiffies64(arg->timeout_ns) + 1,
			      MAX_SCHEDULE_TIMEOUT - 1);
	left = wait_event_interruptible_timeout(file->wait,
						(ret = ended(of, arg)) != -EAGAIN,
						limit);
	if (left < 0)
		return -EINTR;
	return left || !limit ? ret : -ETIMEDOUT;
}

/*
 * Whether a request is over; EINVAL when nobody has had such a number yet. Once
 * told, failed pieces are forgotten.
 */
int adma_ended(void *of, struct adma_wait *arg)
{
	struct adma_file *file = of;
	struct adma_slot *slot = &file->slot[arg->id % ADMA_SLOTS];
	int ret = 0;

	spin_lock(&file->lock);
	if (!arg->id || slot->id < arg->id) {
		ret = -EINVAL;
	} else if (slot->id == arg->id && slot->state == ADMA_BUSY) {
		ret = -EAGAIN;
	} else if (slot->id == arg->id && slot->state == ADMA_FAILED) {
		arg->failed = slot->failed;
		slot->state = ADMA_FREE;
	}
	spin_unlock(&file->lock);
	return ret;
}

/* Nothing of its own is under way, nor will be. Ports may still hold it. */
static void adma_file_shut(struct adma_file *file)
{
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		if (file->words[i].page)
			dma_free_coherent(adma_channels[i].dev, PAGE_SIZE,
					  file->words[i].page,
					  file->words[i].dma);
	}
	adma_kept_open(file, false);
	adma_user_put(file->user, file->cred->user->uid);
	file->user = NULL;
}

static void adma_file_free(struct kref *kref)
{
	struct adma_file *file = container_of(kref, struct adma_file, kref);
	unsigned int i;

	if (file->user)
		adma_file_shut(file);
	for (i = 0; i < ADMA_SLOTS; i++)
		adma_request_free(file->slot[i].req);
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
void adma_file_close(struct adma_file *file)
{
	adma_exports_close(file, NULL);
	__module_get(THIS_MODULE);
	if (task_tgid(current) == file->owner)
		adma_file_drain(&file->drain);
	else
		queue_work(adma_reaper, &file->drain);
}

struct adma_file *adma_file_new(void)
{
	const struct cred *cred = current_cred();
	struct adma_user *user = adma_user_get(cred->user->uid);
	struct adma_file *file;
	unsigned int i;

	if (IS_ERR(user))
		return ERR_CAST(user);
	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file) {
		adma_user_put(user, cred->user->uid);
		return ERR_PTR(-ENOMEM);
	}
	kref_init(&file->kref);
	spin_lock_init(&file->lock);
	init_waitqueue_head(&file->wait);
	file->mm = current->mm;
	mmgrab(file->mm);
	file->owner = get_pid(task_tgid(current));
	file->cred = get_cred(cred);
	file->user = user;
	xa_init_flags(&file->exports, XA_FLAGS_ACCOUNT);
	xa_init_flags(&file->table, XA_FLAGS_ACCOUNT);
	INIT_LIST_HEAD(&file->gone);
	INIT_WORK(&file->reap, adma_reap_work);
	INIT_WORK(&file->drain, adma_file_drain);
	file->keep_pages = adma_keep_pages;
	adma_kept_open(file, true);
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_words *words = &file->words[i];

		words->page = dma_alloc_coherent(adma_channels[i].dev,
						 PAGE_SIZE, &words->dma,
						 GFP_KERNEL_ACCOUNT);
		if (!words->page) {
			adma_file_put(file);
			return ERR_PTR(-ENOMEM);
		}
	}
	return file;
}
