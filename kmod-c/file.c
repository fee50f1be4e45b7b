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

static LIST_HEAD(adma_users);
static DEFINE_SPINLOCK(adma_users_lock);	/* of the list, and of files */

/*
 * Slots and charges
 */

/* Answers the slot's number, which is part of its request's. */
int adma_slot_take(struct adma_file *file)
{
	int i, ret = -EAGAIN;

	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS && ret < 0; i++) {
		struct adma_slot *slot = &file->slot[i];

		if (slot->state != ADMA_FREE)
			continue;
		/* 0 is no number. */
		slot->id = ++file->sequence * ADMA_SLOTS + i;
		slot->failed = 0;
		slot->state = ADMA_BUSY;
		file->busy++;
		ret = i;
	}
	spin_unlock(&file->lock);
	return ret;
}

/* Failed pieces are kept until somebody has been told. */
void adma_slot_leave(struct adma_file *file, unsigned int nr, u64 bytes,
		     u64 failed)
{
	struct adma_slot *slot = &file->slot[nr];

	atomic64_sub(bytes, &file->user->bytes);
	spin_lock(&file->lock);
	slot->failed = failed;
	slot->state = failed ? ADMA_FAILED : ADMA_FREE;
	file->busy--;
	spin_unlock(&file->lock);
}

/*
 * Pinned pages count against RLIMIT_MEMLOCK of the user, and show up in VmPin
 * of the process, as io_uring's do.
 */
static int adma_charge_once(struct adma_file *file, unsigned int pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	long locked = atomic_long_add_return(pages, &file->cred->user->locked_vm);
	int ret = 0;

	atomic64_add(pages, &file->mm->pinned_vm);
	if (atomic_long_add_return(pages, &file->pages) > adma_max_pages)
		ret = -EAGAIN;
	else if (locked > limit && !capable(CAP_IPC_LOCK))
		ret = -ENOMEM;
	if (ret)
		adma_uncharge_pages(file, pages);
	return ret;
}

/* At the limit, what is only kept goes first. */
int adma_charge_pages(struct adma_file *file, unsigned int pages,
		      bool make_room)
{
	int ret = adma_charge_once(file, pages);

	if (ret && make_room) {
		adma_ranges_make_room(file, pages, ret == -ENOMEM);
		ret = adma_charge_once(file, pages);
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
		if (atomic64_add_return(len, bytes) <= READ_ONCE(adma_max_bytes)) {
			req->bytes += len;
			return 0;
		}
		atomic64_sub(len, bytes);
		if (!tries)
			adma_file_catch_up(req->file);
	}
	return -EAGAIN;
}

/* For a file that holds @cred. */
static struct adma_user *adma_user_get(const struct cred *cred)
{
	struct adma_user *new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	struct adma_user *user;

	if (!new)
		return ERR_PTR(-ENOMEM);
	new->of = cred->user;
	spin_lock(&adma_users_lock);
	list_for_each_entry(user, &adma_users, list) {
		if (user->of == cred->user)
			break;
	}
	if (list_entry_is_head(user, &adma_users, list)) {
		list_add(&new->list, &adma_users);
		user = new;
		new = NULL;
	}
	if (user->files < adma_max_files || user->files == 0)
		user->files++;
	else
		user = ERR_PTR(-EMFILE);
	spin_unlock(&adma_users_lock);
	kfree(new);
	return user;
}

static void adma_user_put(struct adma_user *user)
{
	spin_lock(&adma_users_lock);
	if (--user->files)
		user = NULL;
	else
		list_del(&user->list);
	spin_unlock(&adma_users_lock);
	kfree(user);
}

/*
 * Waiting
 */

/*
 * For whoever was refused room. Requests of the file may be over: the word comes
 * before the interrupt, so a caller of small copies can be a whole ring of slots
 * ahead of the answers. Nobody waits for requests of others, whose pages may be
 * locked for as long as their owner likes.
 */
void adma_file_catch_up(struct adma_file *file)
{
	adma_channels_poll();
	wait_event_killable_timeout(file->wait, !atomic_read(&file->ending),
				    msecs_to_jiffies(ADMA_CATCH_UP_MS));
	adma_ranges_reap(file);
	wait_event_killable_timeout(file->wait, !READ_ONCE(file->leaving),
				    msecs_to_jiffies(ADMA_CATCH_UP_MS));
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
 * Nothing is kept, and what requests have used that had begun by now is let go
 * with them: the word that the caller has seen comes before the end of its
 * request. One that waits for a page is not waited for long.
 */
void adma_file_let_go(struct adma_file *file)
{
	u64 sequence = READ_ONCE(file->sequence);

	adma_ranges_drop(file);
	adma_channels_poll();
	wait_event_killable_timeout(file->wait, !adma_file_busy(file, sequence),
				    msecs_to_jiffies(ADMA_LET_GO_MS));
	adma_ranges_reap(file);
	wait_event_killable_timeout(file->wait, !READ_ONCE(file->leaving),
				    msecs_to_jiffies(ADMA_LET_GO_MS));
}

/*
 * Whether it is over; EINVAL when nobody has had such a number yet. Once told,
 * failed pieces are forgotten.
 */
int adma_ended(struct adma_file *file, u64 id, u64 *failed)
{
	struct adma_slot *slot = &file->slot[id % ADMA_SLOTS];
	int ret = 0;

	spin_lock(&file->lock);
	if (!id || slot->id < id) {
		ret = -EINVAL;
	} else if (slot->id == id && slot->state == ADMA_BUSY) {
		ret = -EAGAIN;
	} else if (slot->id == id && slot->state == ADMA_FAILED) {
		*failed = slot->failed;
		slot->state = ADMA_FREE;
	}
	spin_unlock(&file->lock);
	return ret;
}

/* A time to wait, in jiffies; 0: only to look. */
unsigned long adma_wait_limit(u64 timeout_ns)
{
	return timeout_ns ? min_t(u64, nsecs_to_jiffies64(timeout_ns) + 1,
				  MAX_SCHEDULE_TIMEOUT - 1) : 0;
}

/* Of a wait that was in vain. */
int adma_wait_error(long left, u64 timeout_ns)
{
	if (left < 0)
		return -EINTR;
	return timeout_ns ? -ETIMEDOUT : -EAGAIN;
}

int adma_wait(struct adma_file *file, struct adma_wait *arg)
{
	unsigned long limit = adma_wait_limit(arg->timeout_ns);
	u64 id = arg->id, *failed = &arg->failed;
	long left;
	int ret;

	*failed = 0;
	left = wait_event_interruptible_timeout(file->wait,
						(ret = adma_ended(file, id, failed)) != -EAGAIN,
						limit);
	return left > 0 ? ret : adma_wait_error(left, arg->timeout_ns);
}

/*
 * Open files
 */

static void adma_file_free(struct kref *kref)
{
	struct adma_file *file = container_of(kref, struct adma_file, kref);
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		if (file->words[i].page)
			dma_free_coherent(adma_channels[i].dev, PAGE_SIZE,
					  file->words[i].page,
					  file->words[i].dma);
	}
	for (i = 0; i < ADMA_SLOTS; i++)
		adma_request_free(file->slot[i].req);
	xa_destroy(&file->exports);
	adma_kept_open(file, false);
	xa_destroy(&file->table);
	adma_user_put(file->user);
	put_cred(file->cred);
	put_pid(file->owner);
	mmdrop(file->mm);
	kfree(file);
}

void adma_file_put(struct adma_file *file)
{
	kref_put(&file->kref, adma_file_free);
}

struct adma_file *adma_file_new(void)
{
	struct adma_user *user = adma_user_get(current_cred());
	struct adma_file *file;
	unsigned int i;

	if (IS_ERR(user))
		return ERR_CAST(user);
	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file) {
		adma_user_put(user);
		return ERR_PTR(-ENOMEM);
	}
	kref_init(&file->kref);
	spin_lock_init(&file->lock);
	init_waitqueue_head(&file->wait);
	file->mm = current->mm;
	mmgrab(file->mm);
	file->owner = get_pid(task_tgid(current));
	file->cred = get_current_cred();
	file->user = user;
	xa_init_flags(&file->exports, XA_FLAGS_ACCOUNT);
	xa_init_flags(&file->table, XA_FLAGS_ACCOUNT);
	INIT_LIST_HEAD(&file->gone);
	INIT_WORK(&file->reap, adma_reap_work);
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

/*
 * Waits until no channel reads or writes memory for this file, nor for others
 * that reach its exports. One that is silent for ever keeps its pages, and the
 * module: a leak, not a stray write.
 */
void adma_file_drain(struct adma_file *file)
{
	bool idle;

	adma_exports_close(file, NULL);
	idle = wait_event_timeout(file->wait, !READ_ONCE(file->busy) &&
				  !READ_ONCE(file->foreign),
				  msecs_to_jiffies(ADMA_DRAIN_MS));
	adma_ranges_drop(file);
	/*
	 * Here and not in its work, which may be queued behind those of others.
	 * But somebody to whom the file was passed on waits for no page of its
	 * owner's, who may have it locked for as long as he likes.
	 */
	if (task_tgid(current) == file->owner) {
		if (cancel_work_sync(&file->reap))
			adma_file_put(file);	/* not the last: the caller has one */
		adma_ranges_reap(file);
	}
	if (idle)
		return;
	__module_get(THIS_MODULE);
	pr_warn_once("adma: a channel is silent, its pages stay pinned\n");
}
