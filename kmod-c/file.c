// SPDX-License-Identifier: GPL-2.0
/* An open file: its slots, its limits, and the end of its requests. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>

#include "adma.h"

/* How long a close waits for requests under way before it leaves them alone. */
#define ADMA_DRAIN_MS	10000

/* For so long somebody who was refused room waits for works of his own file. */
#define ADMA_SETTLE_MS	20

/*
 * Slots and charges
 */

/* Answers the slot's number, which is part of its request's. */
int adma_slot_take(struct adma_file *file)
{
	unsigned int i;
	int ret = -EAGAIN;

	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS; i++) {
		struct adma_slot *slot = &file->slot[i];

		if (slot->state != ADMA_FREE)
			continue;
		/* 0 is no number. */
		slot->id = ++file->sequence * ADMA_SLOTS + i;
		slot->failed = 0;
		slot->state = ADMA_BUSY;
		file->busy++;
		ret = i;
		break;
	}
	spin_unlock(&file->lock);
	return ret;
}

/* Failed pieces are kept until somebody has been told. */
void adma_slot_leave(struct adma_file *file, unsigned int nr, u64 bytes,
		     u64 failed)
{
	struct adma_slot *slot = &file->slot[nr];

	spin_lock(&file->lock);
	slot->failed = failed;
	slot->state = failed ? ADMA_FAILED : ADMA_FREE;
	file->busy--;
	file->bytes -= bytes;
	spin_unlock(&file->lock);
	adma_user_uncharge(file->user, bytes);
}

/*
 * Pinned pages count against RLIMIT_MEMLOCK of the user, and show up in VmPin
 * of the process, as io_uring's do.
 */
static int adma_charge_once(struct adma_file *file, unsigned int pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	struct user_struct *user = file->cred->user;
	bool fits;

	spin_lock(&file->lock);
	fits = file->pages + pages <= adma_max_pages;
	if (fits)
		file->pages += pages;
	spin_unlock(&file->lock);
	if (!fits)
		return -EAGAIN;
	atomic64_add(pages, &file->mm->pinned_vm);
	if (atomic_long_add_return(pages, &user->locked_vm) <= limit ||
	    capable(CAP_IPC_LOCK))
		return 0;
	adma_uncharge_pages(file, pages);
	return -ENOMEM;
}

/* At the limit, what is only kept goes first. */
int adma_charge_pages(struct adma_file *file, unsigned int pages,
		      bool make_room)
{
	int ret = adma_charge_once(file, pages);

	if (ret && make_room) {
		adma_lines_make_room(file, pages, ret == -ENOMEM);
		ret = adma_charge_once(file, pages);
	}
	return ret;
}

void adma_uncharge_pages(struct adma_file *file, unsigned int pages)
{
	atomic_long_sub(pages, &file->cred->user->locked_vm);
	atomic64_sub(pages, &file->mm->pinned_vm);
	spin_lock(&file->lock);
	file->pages -= pages;
	spin_unlock(&file->lock);
}

int adma_charge_bytes(struct adma_request *req, u64 len)
{
	struct adma_file *file = req->file;
	int ret = 0;

	spin_lock(&file->lock);
	if (file->bytes + len > adma_max_bytes ||
	    !adma_user_charge(file->user, len)) {
		ret = -EAGAIN;
	} else {
		file->bytes += len;
		req->bytes += len;
	}
	spin_unlock(&file->lock);
	return ret;
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
void adma_file_settle(struct adma_file *file)
{
	adma_channels_poke();
	wait_event_killable_timeout(file->wait, !atomic_read(&file->ending),
				    msecs_to_jiffies(ADMA_SETTLE_MS));
	adma_lines_reap(file);
	wait_event_killable_timeout(file->wait, !READ_ONCE(file->leaving),
				    msecs_to_jiffies(ADMA_SETTLE_MS));
}

/* Once told, failed pieces are forgotten. */
bool adma_is_over(struct adma_file *file, u64 id, u64 *failed)
{
	struct adma_slot *slot = &file->slot[id % ADMA_SLOTS];
	bool over = true;

	spin_lock(&file->lock);
	if (slot->id == id) {
		over = slot->state != ADMA_BUSY;
		if (slot->state == ADMA_FAILED) {
			*failed = slot->failed;
			slot->state = ADMA_FREE;
		}
	}
	spin_unlock(&file->lock);
	return over;
}

/* A time to wait, in jiffies. */
unsigned long adma_limit(u64 timeout_ns)
{
	return min_t(u64, nsecs_to_jiffies64(timeout_ns) + 1,
		     MAX_SCHEDULE_TIMEOUT - 1);
}

int adma_wait(struct adma_file *file, struct adma_wait *arg)
{
	u64 id = arg->id;
	u64 failed = 0;
	u64 last;
	long left;

	spin_lock(&file->lock);
	last = file->slot[id % ADMA_SLOTS].id;
	spin_unlock(&file->lock);
	if (!id || id > last)
		return -EINVAL;

	if (!arg->timeout_ns) {
		if (!adma_is_over(file, id, &failed))
			return -EAGAIN;
	} else {
		left = wait_event_interruptible_timeout(file->wait,
							adma_is_over(file, id, &failed),
							adma_limit(arg->timeout_ns));
		if (left < 0)
			return -EINTR;
		if (!left)
			return -ETIMEDOUT;
	}
	arg->failed = failed;
	return 0;
}

/*
 * Open files
 */

struct adma_file *adma_file_new(void)
{
	struct adma_file *file;
	unsigned int i;
	int ret;

	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file)
		return ERR_PTR(-ENOMEM);
	kref_init(&file->kref);
	spin_lock_init(&file->lock);
	init_waitqueue_head(&file->wait);
	file->mm = current->mm;
	mmgrab(file->mm);
	file->cred = get_current_cred();
	adma_post_open(file);
	ret = adma_keep_open(file);
	if (!ret) {
		file->user = adma_user_get(file->cred);
		if (!file->user)
			ret = -ENOMEM;
	}
	for (i = 0; i < adma_nr_channels && !ret; i++) {
		struct adma_words *words = &file->words[i];

		words->page = dma_alloc_coherent(adma_channels[i].dev,
						 PAGE_SIZE, &words->dma,
						 GFP_KERNEL_ACCOUNT);
		if (!words->page)
			ret = -ENOMEM;
	}
	if (ret) {
		adma_file_put(file);
		return ERR_PTR(ret);
	}
	return file;
}

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
	adma_keep_close(file);
	if (file->user)
		adma_user_put(file->user);
	put_cred(file->cred);
	mmdrop(file->mm);
	kfree(file);
}

void adma_file_get(struct adma_file *file)
{
	kref_get(&file->kref);
}

void adma_file_put(struct adma_file *file)
{
	kref_put(&file->kref, adma_file_free);
}

static bool adma_is_idle(struct adma_file *file)
{
	bool idle;

	spin_lock(&file->lock);
	idle = !file->busy && !file->lent;
	spin_unlock(&file->lock);
	return idle;
}

/*
 * Waits until no channel reads or writes memory for this file, nor for others
 * that reach its posts. One that is silent for ever keeps its pages, and the
 * module: a leak, not a stray write.
 */
void adma_file_drain(struct adma_file *file)
{
	bool idle;

	adma_gates_shut(file);
	idle = wait_event_timeout(file->wait, adma_is_idle(file),
				  msecs_to_jiffies(ADMA_DRAIN_MS));
	adma_lines_drop(file);
	if (idle)
		return;
	__module_get(THIS_MODULE);
	pr_warn_once("adma: a channel is silent, its pages stay pinned\n");
}
