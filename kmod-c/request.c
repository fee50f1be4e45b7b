// SPDX-License-Identifier: GPL-2.0
/* Requests: their slots, their end, and waiting for it. */
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "request.h"

/* Requests of one user: leaves places of every channel to others. */
#define ADMA_USER_REQUESTS	(ADMA_CHAN_REQS / 2)

/**
 * adma_file_leave() - drop one count of what is active
 * @file: file; its memory stays, to which ports may refer
 *
 * Called for the open file and for each request. With the last one the file counts
 * for its user no more, and holds the module no more.
 */
void adma_file_leave(struct adma_file *file)
{
	if (!refcount_dec_and_test(&file->active))
		return;
	mutex_lock(&adma_mems_lock);
	adma_words_unmap(&file->mem, ADMA_EVERY_DEVICE);
	if (!--file->user->files)
		kfree(file->user);
	file->user = NULL;
	mutex_unlock(&adma_mems_lock);
	module_put(THIS_MODULE);
}

static void adma_request_end(struct work_struct *work)
{
	struct adma_request *req = container_of(work, struct adma_request, end);
	u64 failed = atomic64_read(&req->job.failed);
	struct adma_file *file = req->file;
	unsigned int i;

	/* Pieces that were not taken are known to the caller. */
	if (req->accepted < 64)
		failed &= BIT_ULL(req->accepted) - 1;
	for (i = 0; i < req->nr_ranges; i++)
		adma_range_put(req->range[i]);
	if (req->buf)
		adma_buf_leave(req->buf);
	adma_ranges_trim(&file->mem);
	atomic64_sub(req->bytes, &file->user->bytes);
	atomic_dec(&file->user->requests);
	spin_lock(&file->lock);
	/* From here on the slot is another request's, or kept until WAIT. */
	atomic64_set(&req->job.failed, failed);
	req->state = failed ? ADMA_FAILED : ADMA_FREE;
	spin_unlock(&file->lock);
	atomic_dec(&file->mem.ending);
	adma_file_leave(file);
	wake_up_all(&file->mem.wait);
	adma_mem_put(&file->mem);
}

/* Unpinning may sleep, and the last part may end in an interrupt. */
static void adma_job_end(struct adma_job *job)
{
	struct adma_request *req = container_of(job, struct adma_request, job);

	atomic_inc(&req->file->mem.ending);
	queue_work(adma_workqueue, &req->end);
}

/* Returns the request of a slot, made when it is first asked for. */
static struct adma_request *adma_request_of(struct adma_file *file,
					    unsigned int slot)
{
	struct adma_request *first, *req = READ_ONCE(file->slot[slot]);

	if (req)
		return req;
	req = kvzalloc(sizeof(*req), GFP_KERNEL_ACCOUNT);
	if (!req)
		return NULL;
	req->file = file;
	req->job.slot = slot;
	req->job.words = file->words;
	req->job.owner[0] = &file->mem;
	req->job.end = adma_job_end;
	INIT_WORK(&req->end, adma_request_end);
	first = cmpxchg(&file->slot[slot], NULL, req);
	if (first)
		kvfree(req);
	return first ?: req;
}

/**
 * adma_request_take() - take a free slot
 * @file: file of the caller
 *
 * Returns its request, -EAGAIN if there is none, or -ENOMEM.
 */
struct adma_request *adma_request_take(struct adma_file *file)
{
	struct adma_request *req;
	int i, ret = -EAGAIN;

	if (atomic_inc_return(&file->user->requests) > ADMA_USER_REQUESTS)
		goto err_uncount;
	for (i = 0; i < ADMA_SLOTS; i++) {
		req = adma_request_of(file, i);
		if (!req) {
			ret = -ENOMEM;
			break;
		}
		spin_lock(&file->lock);
		if (req->state != ADMA_FREE) {
			spin_unlock(&file->lock);
			continue;
		}
		req->state = ADMA_BUSY;
		/* 0 is no number. */
		req->job.id = ++file->sequence * ADMA_SLOTS + i;
		spin_unlock(&file->lock);
		memset_startat(req, 0, buf);
		req->job.owner[1] = NULL;
		req->job.buf = NULL;
		atomic64_set(&req->job.failed, 0);
		refcount_set(&req->job.parts, 1);
		refcount_inc(&file->active);
		kref_get(&file->mem.kref);
		return req;
	}
err_uncount:
	atomic_dec(&file->user->requests);
	return ERR_PTR(ret);
}

void adma_requests_free(struct adma_file *file)
{
	unsigned int i;

	for (i = 0; i < ADMA_SLOTS; i++) {
		if (file->slot[i])
			kfree(file->slot[i]->range);
		kvfree(file->slot[i]);
	}
}

/**
 * adma_requests_poll() - look at the requests of a file
 * @file: the file
 * @sequence: of the youngest one to be looked at
 *
 * Returns EPOLLIN if none is in flight, and EPOLLERR if one has failed that was
 * not asked for.
 */
__poll_t adma_requests_poll(struct adma_file *file, u64 sequence)
{
	__poll_t mask = EPOLLIN | EPOLLRDNORM;
	unsigned int i;

	spin_lock(&file->lock);
	for (i = 0; i < ADMA_SLOTS; i++) {
		struct adma_request *req = READ_ONCE(file->slot[i]);

		if (!req || req->job.id / ADMA_SLOTS > sequence)
			continue;
		if (req->state == ADMA_BUSY)
			mask &= ~(EPOLLIN | EPOLLRDNORM);
		if (req->state == ADMA_FAILED)
			mask |= EPOLLERR;
	}
	spin_unlock(&file->lock);
	return mask;
}

/**
 * adma_ended() - whether a request is over
 * @file: file of the caller
 * @arg: its number; its failed pieces are told once
 *
 * Returns 0, -EAGAIN if it is not, or -EINVAL for an unknown number.
 */
int adma_ended(struct adma_file *file, struct adma_wait *arg)
{
	struct adma_request *req = READ_ONCE(file->slot[arg->id % ADMA_SLOTS]);
	int ret = 0;

	spin_lock(&file->lock);
	if (!arg->id || !req || req->job.id < arg->id) {
		ret = -EINVAL;
	} else if (req->job.id == arg->id && req->state == ADMA_BUSY) {
		ret = -EAGAIN;
	} else if (req->job.id == arg->id && req->state == ADMA_FAILED) {
		arg->failed = atomic64_read(&req->job.failed);
		req->state = ADMA_FREE;
	}
	spin_unlock(&file->lock);
	return ret;
}

/**
 * adma_wait() - wait for the end of a request
 * @file: file of the caller
 * @arg: the request and the timeout; 0: only looks
 *
 * Returns 0 with @arg->failed, -EAGAIN, -ETIMEDOUT, -EINTR or -EINVAL.
 */
int adma_wait(struct adma_file *file, struct adma_wait *arg)
{
	long left, limit = adma_timeout_of(arg);
	int ret;

	arg->failed = 0;
	left = wait_event_interruptible_timeout(file->mem.wait,
						(ret = adma_ended(file, arg)) != -EAGAIN,
						limit);
	if (left < 0)
		return -EINTR;
	return left || !limit ? ret : -ETIMEDOUT;
}
