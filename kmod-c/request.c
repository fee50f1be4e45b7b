// SPDX-License-Identifier: GPL-2.0
/* Requests: their slots, submission, and waiting for their end. */
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "request.h"

/* How long a submission without a free slot waits for its file's requests. */
#define ADMA_CATCH_UP_MS	20

/*
 * Slots, and the end
 */

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	u64 failed = atomic64_read(&req->job.failed);
	struct adma_requests *all = req->all;
	struct adma_mem *mem = req->mem;
	unsigned int i;

	/* Pieces that were not taken are known to the caller. */
	if (req->accepted < 64)
		failed &= BIT_ULL(req->accepted) - 1;
	for (i = 0; i < req->nr_ranges; i++) {
		if (req->range[i])
			adma_range_put(req->range[i]);
	}
	if (req->buf)
		adma_buf_leave(req->buf);
	adma_ranges_trim(mem);
	spin_lock(&all->lock);
	/* From here on the slot is another request's, or kept until WAIT. */
	atomic64_set(&req->job.failed, failed);
	req->state = failed ? ADMA_FAILED : ADMA_FREE;
	spin_unlock(&all->lock);
	atomic_dec(&mem->ending);
	adma_mem_leave(mem);
	wake_up_all(&mem->wait);
	adma_mem_put(mem);
}

/* Unpinning may sleep, but the last chan_req may end in an interrupt. */
static void adma_job_end(struct adma_job *job)
{
	struct adma_request *req = container_of(job, struct adma_request, job);

	atomic_inc(&req->mem->ending);
	queue_work(adma_workqueue, &req->end);
}

/* Returns the request of a slot, allocated when first asked for. */
static struct adma_request *adma_request_of(struct adma_requests *all,
					    unsigned int slot)
{
	struct adma_request *first, *req = READ_ONCE(all->slot[slot]);

	if (req)
		return req;
	req = kvzalloc(sizeof(*req), GFP_KERNEL_ACCOUNT);
	if (!req)
		return NULL;
	req->mem = all->mem;
	req->all = all;
	req->job.slot = slot;
	req->job.words = all->mem->words;
	req->job.user = all->mem->cred->user;
	req->job.owner[0] = all->mem;
	req->job.end = adma_job_end;
	INIT_WORK(&req->end, adma_request_end);
	first = cmpxchg(&all->slot[slot], NULL, req);
	if (first)
		kvfree(req);
	return first ?: req;
}

/* Returns the request of a free slot, -EAGAIN if there is none, or -ENOMEM. */
static struct adma_request *adma_request_take(struct adma_requests *all)
{
	struct adma_request *req;
	unsigned int i;

	for (i = 0; i < ADMA_SLOTS; i++) {
		req = adma_request_of(all, i);
		if (!req)
			return ERR_PTR(-ENOMEM);
		spin_lock(&all->lock);
		if (req->state != ADMA_FREE) {
			spin_unlock(&all->lock);
			continue;
		}
		req->state = ADMA_BUSY;
		/* 0 is no number. */
		req->job.id = ++all->sequence * ADMA_SLOTS + i;
		spin_unlock(&all->lock);
		memset_startat(req, 0, buf);
		req->job.owner[1] = NULL;
		req->job.buf = NULL;
		req->job.begun = 0;
		req->job.due = 0;
		atomic64_set(&req->job.failed, 0);
		refcount_set(&req->job.parts, 1);
		refcount_inc(&all->mem->active);
		kref_get(&all->mem->kref);
		return req;
	}
	return ERR_PTR(-EAGAIN);
}

void adma_requests_free(struct adma_requests *all)
{
	unsigned int i;

	for (i = 0; i < ADMA_SLOTS; i++) {
		if (all->slot[i])
			kfree(all->slot[i]->range);
		kvfree(all->slot[i]);
	}
}

/* Returns whether no request up to @sequence is in flight. */
bool adma_requests_over(struct adma_requests *all, u64 sequence)
{
	bool over = true;
	unsigned int i;

	spin_lock(&all->lock);
	for (i = 0; i < ADMA_SLOTS; i++) {
		struct adma_request *req = READ_ONCE(all->slot[i]);

		if (req && req->job.id / ADMA_SLOTS <= sequence)
			over &= req->state != ADMA_BUSY;
	}
	spin_unlock(&all->lock);
	return over;
}

/*
 * Returns whether a request is over: 0, -EAGAIN, or -EINVAL for an unknown
 * number. Its failed pieces are reported once.
 */
static int adma_ended(struct adma_requests *all, struct adma_wait *arg)
{
	struct adma_request *req = READ_ONCE(all->slot[arg->id % ADMA_SLOTS]);
	int ret = 0;

	spin_lock(&all->lock);
	if (!arg->id || !req || req->job.id < arg->id) {
		ret = -EINVAL;
	} else if (req->job.id == arg->id && req->state == ADMA_BUSY) {
		ret = -EAGAIN;
	} else if (req->job.id == arg->id && req->state == ADMA_FAILED) {
		arg->failed = atomic64_read(&req->job.failed);
		req->state = ADMA_FREE;
	}
	spin_unlock(&all->lock);
	return ret;
}

int adma_wait(struct adma_requests *all, struct adma_wait *arg)
{
	long left, limit = adma_timeout_of(arg);
	int ret;

	arg->failed = 0;
	left = wait_event_interruptible_timeout(all->mem->wait,
						(ret = adma_ended(all, arg)) != -EAGAIN,
						limit);
	if (left < 0)
		return -EINTR;
	return left || !limit ? ret : -ETIMEDOUT;
}

int adma_submit(struct adma_requests *all, const struct file_operations *port,
		struct adma_submit *arg)
{
	struct adma_piece __user *user = u64_to_user_ptr(arg->pieces);
	u8 channels[ADMA_MAX_PIECES];	/* where pieces went */
	struct adma_request *req;
	struct adma_wait wait;
	unsigned int i;
	int ret;

	memset_startat(arg, 0, id);
	if (!arg->count || arg->count > ADMA_MAX_PIECES ||
	    arg->flags == (ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH) ||
	    (!arg->flags && (arg->export || arg->port)))
		return -EINVAL;
	req = adma_request_take(all);
	if (req == ERR_PTR(-EAGAIN)) {
		adma_mem_settle(all->mem, ADMA_CATCH_UP_MS);
		req = adma_request_take(all);
	}
	if (IS_ERR(req))
		return PTR_ERR(req);

	i = adma_pieces_check(req, arg, &ret);
	if (i)
		req->accepted = adma_pieces_send(req, i, arg, port, &ret);
	for (i = 0; i < req->accepted; i++) {
		adma_count(ADMA_STAT_COPIES, 1);
		adma_count(ADMA_STAT_BYTES, req->piece[i].len);
		if (req->buf)
			adma_count(ADMA_STAT_EXPORT_BYTES, req->piece[i].len);
	}
	if (!req->unproven && !atomic64_read(&req->job.failed))
		arg->channels = req->used;
	arg->id = req->job.id;
	arg->slot = req->job.slot;
	arg->accepted = req->accepted;
	arg->pinned = req->pinned;
	memcpy(channels, req->channel, sizeof(channels));
	adma_job_put(&req->job);
	/* Only for the caller's statistics: a failure is its loss. */
	for (i = 0; i < arg->accepted; i++) {
		if (put_user(channels[i], &user[i].channel))
			break;
	}
	/*
	 * Nothing was accepted, so no caller will wait for what was begun of
	 * it. If this one is killed, closing the file waits.
	 */
	if (!arg->accepted) {
		wait.id = arg->id;
		wait_event_killable(all->mem->wait,
				    adma_ended(all, &wait) != -EAGAIN);
		arg->id = 0;
		arg->channels = 0;
	}
	return ret;
}
