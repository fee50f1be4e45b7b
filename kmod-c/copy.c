// SPDX-License-Identifier: GPL-2.0
/* One request, from the caller's pieces to the last byte. */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/dma-mapping.h>
#include <linux/highmem.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "adma.h"

/* A stretch below this costs a channel more than it costs the CPU. */
#define ADMA_TINY	64

/* Far more than anybody wants; keeps every count of pages an int. */
#define ADMA_MAX_LEN	SZ_1G

/* How long a close waits for requests under way before it leaves them alone. */
#define ADMA_DRAIN_MS	10000

/*
 * Slots and charges
 */

static int adma_slot_take(struct adma_file *file, struct adma_request *req)
{
	unsigned int i;
	int ret = -EAGAIN;

	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS; i++) {
		struct adma_slot *slot = &file->slot[i];

		if (slot->state != ADMA_FREE)
			continue;
		/* The slot is part of the number, and 0 is no number. */
		req->id = ++file->sequence * ADMA_SLOTS + i;
		req->slot = i;
		slot->id = req->id;
		slot->failed = 0;
		slot->state = ADMA_BUSY;
		file->busy++;
		ret = 0;
		break;
	}
	spin_unlock(&file->lock);
	return ret;
}

/* Failed pieces are kept until somebody has been told. */
static void adma_slot_leave(struct adma_request *req, u64 failed)
{
	struct adma_file *file = req->file;
	struct adma_slot *slot = &file->slot[req->slot];

	spin_lock(&file->lock);
	slot->failed = failed;
	slot->state = failed ? ADMA_FAILED : ADMA_FREE;
	file->busy--;
	file->bytes -= req->bytes;
	file->pages -= req->pages;
	spin_unlock(&file->lock);
}

/*
 * Pinned pages count against RLIMIT_MEMLOCK of the user, as io_uring's do: a
 * counter per process would take the mmap lock twice for every copy.
 */
static int adma_charge_user(struct adma_file *file, unsigned long pages)
{
	struct user_struct *user = file->cred->user;
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	long now = atomic_long_add_return(pages, &user->locked_vm);

	if (now <= limit || capable(CAP_IPC_LOCK))
		return 0;
	atomic_long_sub(pages, &user->locked_vm);
	return -ENOMEM;
}

static int adma_charge(struct adma_request *req, const struct adma_piece *piece)
{
	struct adma_file *file = req->file;
	unsigned long pages = adma_pages_of(piece->dst, piece->len) +
			      adma_pages_of(piece->src, piece->len);
	int ret = 0;

	spin_lock(&file->lock);
	if (file->bytes + piece->len > ADMA_MAX_LEN ||
	    file->pages + pages > adma_max_pages) {
		ret = -EAGAIN;
	} else {
		file->bytes += piece->len;
		file->pages += pages;
	}
	spin_unlock(&file->lock);
	if (ret)
		return ret;

	ret = adma_charge_user(file, pages);
	if (ret) {
		spin_lock(&file->lock);
		file->bytes -= piece->len;
		file->pages -= pages;
		spin_unlock(&file->lock);
		return ret;
	}
	req->bytes += piece->len;
	req->pages += pages;
	return 0;
}

/*
 * The end of a request
 */

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	struct adma_file *file = req->file;
	u64 failed = 0;
	unsigned int i;

	for (i = 0; i < adma_nr_channels; i++) {
		if (req->leg[i].ch && req->leg[i].failed)
			failed |= req->leg[i].pieces;
	}
	/* Pieces that were not taken are known to the caller. */
	if (req->accepted < 64)
		failed &= BIT_ULL(req->accepted) - 1;
	for (i = 0; i < req->nr_pieces; i++) {
		adma_side_release(&req->piece[i].dst);
		adma_side_release(&req->piece[i].src);
	}
	atomic_long_sub(req->pages, &file->cred->user->locked_vm);
	adma_slot_leave(req, failed);
	wake_up_all(&file->wait);
	kfree(req->leg);
	kvfree(req);
	adma_file_put(file);
}

/* Letting pages go may sleep, and the last leg may end in an interrupt. */
void adma_request_put(struct adma_request *req)
{
	if (refcount_dec_and_test(&req->legs))
		queue_work(adma_workqueue, &req->end);
}

static struct adma_request *adma_request_new(struct adma_file *file,
					     unsigned int nr_pieces)
{
	struct adma_request *req;

	req = kvzalloc(struct_size(req, piece, nr_pieces), GFP_KERNEL_ACCOUNT);
	if (!req)
		return ERR_PTR(-ENOMEM);
	req->leg = kcalloc(adma_nr_channels, sizeof(*req->leg),
			   GFP_KERNEL_ACCOUNT);
	if (!req->leg) {
		kvfree(req);
		return ERR_PTR(-ENOMEM);
	}
	req->file = file;
	req->nr_pieces = nr_pieces;
	refcount_set(&req->legs, 1);
	INIT_WORK(&req->end, adma_request_end);
	return req;
}

/*
 * Cutting a piece into transfers
 */

/* A stretch that lies together as the channel sees it. */
struct adma_run {
	struct scatterlist *sg;
	unsigned int left;	/* entries */
	dma_addr_t addr;
	size_t len;
};

static void adma_run_start(struct adma_run *run, struct sg_table *sgt)
{
	run->sg = sgt->sgl;
	run->left = sgt->nents;
	run->len = 0;
}

/* Neighbouring entries are one run: huge pages become few transfers. */
static void adma_run_fill(struct adma_run *run)
{
	while (run->left) {
		dma_addr_t addr = sg_dma_address(run->sg);

		if (!run->len)
			run->addr = addr;
		else if (addr != run->addr + run->len)
			break;
		run->len += sg_dma_len(run->sg);
		run->sg = sg_next(run->sg);
		run->left--;
	}
}

static void adma_run_advance(struct adma_run *run, size_t len)
{
	run->addr += len;
	run->len -= len;
}

static void adma_cpu_copy(struct adma_sides *sides, size_t at, size_t len)
{
	while (len) {
		size_t dst = sides->dst.offset + at;
		size_t src = sides->src.offset + at;
		size_t part = min3(len, PAGE_SIZE - offset_in_page(dst),
				   PAGE_SIZE - offset_in_page(src));

		memcpy_page(sides->dst.pages[dst >> PAGE_SHIFT],
			    offset_in_page(dst),
			    sides->src.pages[src >> PAGE_SHIFT],
			    offset_in_page(src), part);
		at += part;
		len -= part;
	}
}

static int adma_piece_push(struct adma_leg *leg, struct adma_sides *sides,
			   u64 len, u64 *cpu_bytes)
{
	struct adma_run dst, src;
	bool bounced;
	size_t at = 0;

	adma_run_start(&dst, &sides->dst.sgt);
	adma_run_start(&src, &sides->src.sgt);
	/*
	 * What lies in a bounce buffer reaches the caller's pages when they are
	 * unmapped: over what the CPU has copied, and after the word has come.
	 */
	bounced = dma_need_sync(leg->ch->dev, sg_dma_address(dst.sg));
	if (bounced)
		leg->bounced = true;

	while (at < len) {
		size_t part;
		int ret;

		if (!dst.len)
			adma_run_fill(&dst);
		if (!src.len)
			adma_run_fill(&src);
		part = min(dst.len, src.len);
		/* The last one carries the fence. */
		if (part < ADMA_TINY && !bounced && at + part < len) {
			adma_cpu_copy(sides, at, part);
			*cpu_bytes += part;
		} else {
			ret = adma_leg_push(leg, dst.addr, src.addr, part,
					    at + part == len);
			if (ret)
				return ret;
		}
		adma_run_advance(&dst, part);
		adma_run_advance(&src, part);
		at += part;
		cond_resched();
	}
	return 0;
}

static int adma_piece_start(struct adma_request *req, unsigned int nr,
			    struct adma_piece *piece, u64 *cpu_bytes)
{
	struct adma_sides *sides = &req->piece[nr];
	struct adma_channel *ch;
	struct adma_leg *leg;
	int ret, channel;

	channel = adma_channel_pick(piece->channel);
	if (channel < 0)
		return channel;
	ch = &adma_channels[channel];
	leg = &req->leg[channel];

	ret = adma_charge(req, piece);
	if (ret == -EAGAIN) {
		flush_workqueue(adma_workqueue);
		ret = adma_charge(req, piece);
	}
	if (ret)
		return ret;
	/* What fails from here on is let go with the request. */
	ret = adma_side_pin(&sides->src, piece->src, piece->len, DMA_TO_DEVICE);
	if (ret)
		return ret;
	ret = adma_side_pin(&sides->dst, piece->dst, piece->len,
			    DMA_FROM_DEVICE);
	if (ret)
		return ret;
	ret = adma_side_map(&sides->src, piece->len, ch->dev);
	if (ret)
		return ret;
	ret = adma_side_map(&sides->dst, piece->len, ch->dev);
	if (ret)
		return ret;

	if (!leg->ch)
		adma_leg_begin(leg, req, ch);
	leg->pieces |= BIT_ULL(nr);
	ret = adma_piece_push(leg, sides, piece->len, cpu_bytes);
	if (ret)
		return ret;
	piece->channel = channel;
	adma_count(ADMA_STAT_COPIES, 1);
	adma_count(ADMA_STAT_BYTES, piece->len);
	return 0;
}

/* The words: each channel that has a part writes the id after its data. */
static void adma_request_close(struct adma_request *req,
			       struct adma_submit *arg)
{
	size_t word = req->slot * ADMA_WORD_STRIDE;
	size_t value = PAGE_SIZE / 2 + word;
	unsigned int i;

	BUILD_BUG_ON(ADMA_SLOTS * ADMA_WORD_STRIDE > PAGE_SIZE / 2);
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_words *words = &req->file->words[i];

		if (!req->leg[i].ch)
			continue;
		WRITE_ONCE(*(u64 *)(words->page + value), req->id);
		if (adma_leg_close(&req->leg[i], words->dma + word,
				   words->dma + value))
			arg->channels |= BIT(i);
		else
			arg->silent |= BIT(i);
	}
}

static u32 adma_handlers(void)
{
	/* Our own: it stays as long as we run. */
	struct sighand_struct *sighand = rcu_dereference_raw(current->sighand);
	u32 handlers = 0;
	int signal;

	for (signal = 1; signal <= _NSIG; signal++) {
		struct sigaction *action = &sighand->action[signal - 1].sa;
		__sighandler_t handler = READ_ONCE(action->sa_handler);

		if (handler == SIG_DFL || handler == SIG_IGN)
			continue;
		if (signal == SIGSEGV || signal == SIGBUS)
			handlers |= ADMA_HANDLES_FAULTS;
		else
			handlers |= ADMA_HANDLES_OTHERS;
	}
	return handlers;
}

static int adma_pieces_check(const struct adma_piece *piece, unsigned int count)
{
	unsigned int src_align = adma_channels_align();
	unsigned int i;

	for (i = 0; i < count; i++, piece++) {
		if (piece->flags)
			return -EOPNOTSUPP;
		if (!piece->len || piece->len > ADMA_MAX_LEN ||
		    !IS_ALIGNED(piece->len, ADMA_ALIGN) ||
		    !IS_ALIGNED(piece->dst, ADMA_ALIGN) ||
		    !IS_ALIGNED(piece->src, src_align))
			return -EINVAL;
		if (!access_ok(u64_to_user_ptr(piece->dst), piece->len) ||
		    !access_ok(u64_to_user_ptr(piece->src), piece->len))
			return -EINVAL;
		if (piece->channel != ADMA_CHANNEL_ANY &&
		    piece->channel >= adma_nr_channels)
			return -EINVAL;
	}
	return 0;
}

static bool adma_is_over(struct adma_file *file, u64 id, u64 *failed)
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

int adma_submit(struct adma_file *file, struct adma_submit *arg)
{
	struct adma_piece __user *user = u64_to_user_ptr(arg->pieces);
	struct adma_piece *pieces;
	struct adma_request *req;
	unsigned int i;
	u64 id, failed;
	int ret;

	arg->handlers = adma_handlers();
	if (arg->flags & ADMA_SUBMIT_UNHANDLED && arg->handlers)
		return -EDEADLK;
	if (!arg->count || arg->count > ADMA_MAX_PIECES)
		return -EINVAL;

	pieces = memdup_user(user, arg->count * sizeof(*pieces));
	if (IS_ERR(pieces))
		return PTR_ERR(pieces);
	ret = adma_pieces_check(pieces, arg->count);
	if (ret)
		goto out_free_pieces;
	req = adma_request_new(file, arg->count);
	if (IS_ERR(req)) {
		ret = PTR_ERR(req);
		goto out_free_pieces;
	}
	ret = adma_slot_take(file, req);
	if (ret == -EAGAIN) {
		/* Some may be over, their pages just not let go. */
		flush_workqueue(adma_workqueue);
		ret = adma_slot_take(file, req);
	}
	if (ret) {
		kfree(req->leg);
		kvfree(req);
		goto out_free_pieces;
	}
	kref_get(&file->kref);

	/* The first piece is under way while the next one is pinned. */
	for (i = 0; i < arg->count; i++) {
		u32 wanted = pieces[i].channel;

		ret = adma_piece_start(req, i, &pieces[i], &arg->cpu_bytes);
		if (ret)
			break;
		req->accepted++;
		/* Only for the caller's statistics: a failure is his loss. */
		if (pieces[i].channel != wanted &&
		    put_user(pieces[i].channel, &user[i].channel))
			continue;
	}
	adma_request_close(req, arg);
	adma_count(ADMA_STAT_CPU_BYTES, arg->cpu_bytes);
	arg->accepted = req->accepted;
	arg->slot = req->slot;
	arg->id = req->id;
	id = req->id;
	adma_request_put(req);

	/*
	 * Nothing was taken, so nobody will wait for what was begun of it. A
	 * killed caller leaves it to the close of the file.
	 */
	if (!arg->accepted) {
		wait_event_killable(file->wait, adma_is_over(file, id, &failed));
		arg->id = 0;
		arg->channels = 0;
		arg->silent = 0;
	}

out_free_pieces:
	kfree(pieces);
	return ret;
}

int adma_wait(struct adma_file *file, struct adma_wait *arg)
{
	unsigned long limit;
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
		limit = min_t(u64, nsecs_to_jiffies64(arg->timeout_ns) + 1,
			      MAX_SCHEDULE_TIMEOUT - 1);
		left = wait_event_interruptible_timeout(file->wait,
							adma_is_over(file, id, &failed),
							limit);
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

	file = kzalloc(struct_size(file, words, adma_nr_channels),
		       GFP_KERNEL_ACCOUNT);
	if (!file)
		return NULL;
	kref_init(&file->kref);
	spin_lock_init(&file->lock);
	init_waitqueue_head(&file->wait);
	file->mm = current->mm;
	mmgrab(file->mm);
	file->cred = get_current_cred();
	for (i = 0; i < adma_nr_channels; i++) {
		struct adma_words *words = &file->words[i];

		words->page = dma_alloc_coherent(adma_channels[i].dev,
						 PAGE_SIZE, &words->dma,
						 GFP_KERNEL);
		if (!words->page) {
			adma_file_put(file);
			return NULL;
		}
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
	put_cred(file->cred);
	mmdrop(file->mm);
	kfree(file);
}

void adma_file_put(struct adma_file *file)
{
	kref_put(&file->kref, adma_file_free);
}

static bool adma_is_idle(struct adma_file *file)
{
	bool idle;

	spin_lock(&file->lock);
	idle = !file->busy;
	spin_unlock(&file->lock);
	return idle;
}

/*
 * Waits until no channel reads or writes memory for this file. One that is
 * silent for ever keeps its pages, and the module: a leak, not a stray write.
 */
void adma_file_drain(struct adma_file *file)
{
	if (wait_event_timeout(file->wait, adma_is_idle(file),
			       msecs_to_jiffies(ADMA_DRAIN_MS)))
		return;
	__module_get(THIS_MODULE);
	pr_warn_once("adma: a channel is silent, its pages stay pinned\n");
}
