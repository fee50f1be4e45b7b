// SPDX-License-Identifier: GPL-2.0
/*
 * Posts: buffers that a process lets others reach, and the doors to them.
 *
 * The pages of a post are pinned and mapped by its owner, in the call that
 * posts it, so that whoever copies needs nothing of the owner: no lock that its
 * page faults could hold, no memory map. And whoever copies has pinned its own
 * side before it takes hold of a post, so that its owner, who waits for the
 * end of transfers, waits for channels only.
 *
 * A post holds its lines until it is taken back and its last transfer is over.
 * A line that dies (see pin.c) makes the post void: what goes on goes on, in
 * pages that are still pinned and can be nobody else's; nothing new begins, and
 * the lines are let go as soon as no transfer uses them.
 *
 * Locks, the outer ones first:
 *	file->gates_lock	the list of a file's doors. Never held while
 *				somebody waits for works: one of them takes it
 *	gate->lock		the posts of a door and who uses them
 *	line->lock, file->lock, and the one of an xarray
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "adma.h"

/*
 * Posts
 */

static void adma_gate_free(struct kref *kref)
{
	struct adma_gate *gate = container_of(kref, struct adma_gate, kref);
	struct adma_file *file = gate->file;

	xa_destroy(&gate->posts);
	kfree(gate);
	spin_lock(&file->lock);
	file->nr_gates--;
	spin_unlock(&file->lock);
	adma_file_put(file);
}

static void adma_gate_put(struct adma_gate *gate)
{
	kref_put(&gate->kref, adma_gate_free);
}

static void adma_lent_free(struct kref *kref)
{
	struct adma_lent *lent = container_of(kref, struct adma_lent, kref);
	struct adma_gate *gate = lent->gate;

	adma_span_put(lent->span);
	kfree(lent);
	spin_lock(&gate->file->lock);
	gate->file->nr_posts--;
	spin_unlock(&gate->file->lock);
	adma_gate_put(gate);
}

static void adma_lent_put(struct adma_lent *lent)
{
	kref_put(&lent->kref, adma_lent_free);
}

/* The lines of a void post, to be let go, or NULL. The gate's lock is held. */
static struct adma_span *adma_lent_strip(struct adma_lent *lent)
{
	struct adma_span *span = lent->span;

	lockdep_assert_held(&lent->gate->lock);
	if (!lent->dead || lent->transfers)
		return NULL;
	lent->span = NULL;
	return span;
}

/* Looks whether a post has become void. */
static void adma_lent_examine(struct adma_lent *lent)
{
	struct adma_gate *gate = lent->gate;
	struct adma_span *span;
	unsigned int i;

	spin_lock(&gate->lock);
	for (i = 0; lent->span && i < lent->span->nr; i++) {
		if (adma_line_is_dead(lent->span->line[i]))
			lent->dead = true;
	}
	span = adma_lent_strip(lent);
	spin_unlock(&gate->lock);
	adma_span_put(span);
}

/* The post of a number, with a hold on it. The gate's lock is held. */
static struct adma_lent *adma_lent_find(struct adma_gate *gate, u64 id)
{
	struct adma_lent *lent = NULL;

	lockdep_assert_held(&gate->lock);
	if (id && id <= gate->last)
		lent = xa_load(&gate->posts, id);
	if (lent)
		kref_get(&lent->kref);
	return lent;
}

/* The first post from a number on, with a hold on it. */
static struct adma_lent *adma_lent_next(struct adma_gate *gate,
					unsigned long *id)
{
	struct adma_lent *lent;

	spin_lock(&gate->lock);
	lent = xa_find(&gate->posts, id, ULONG_MAX, XA_PRESENT);
	if (lent)
		kref_get(&lent->kref);
	spin_unlock(&gate->lock);
	return lent;
}

/* Out of the table, by whoever comes first. Its transfers go on. */
static bool adma_lent_forget(struct adma_lent *lent)
{
	struct adma_gate *gate = lent->gate;
	bool first;

	spin_lock(&gate->lock);
	lent->closed = true;
	first = xa_erase(&gate->posts, lent->id) == lent;
	spin_unlock(&gate->lock);
	if (first)
		adma_lent_put(lent);
	return first;
}

static struct adma_lent *adma_lent_new(struct adma_gate *gate,
				       const struct adma_export *arg)
{
	struct adma_file *file = gate->file;
	struct adma_lent *lent;
	bool fits;

	lent = kzalloc(sizeof(*lent), GFP_KERNEL_ACCOUNT);
	if (!lent)
		return ERR_PTR(-ENOMEM);
	lent->span = adma_span_new(adma_lines_of(arg->addr, arg->len));
	if (!lent->span) {
		kfree(lent);
		return ERR_PTR(-ENOMEM);
	}
	spin_lock(&file->lock);
	fits = file->nr_posts < ADMA_MAX_EXPORTS;
	if (fits)
		file->nr_posts++;
	spin_unlock(&file->lock);
	if (!fits) {
		adma_span_put(lent->span);
		kfree(lent);
		return ERR_PTR(-EAGAIN);
	}
	kref_init(&lent->kref);
	kref_get(&gate->kref);
	lent->gate = gate;
	lent->addr = arg->addr;
	lent->len = arg->len;
	lent->flags = arg->flags;
	return lent;
}

static int adma_lent_publish(struct adma_lent *lent)
{
	struct adma_gate *gate = lent->gate;
	int ret;

	spin_lock(&gate->lock);
	lent->id = ++gate->last;
	spin_unlock(&gate->lock);
	ret = xa_reserve(&gate->posts, lent->id, GFP_KERNEL_ACCOUNT);
	if (ret)
		return ret;
	spin_lock(&gate->lock);
	if (gate->shut) {
		ret = -ESHUTDOWN;
		xa_release(&gate->posts, lent->id);
	} else {
		kref_get(&lent->kref);
		xa_store(&gate->posts, lent->id, lent, 0);	/* reserved */
	}
	spin_unlock(&gate->lock);
	/* A line may have died before the post was to be found. */
	if (!ret)
		adma_lent_examine(lent);
	return ret;
}

static bool adma_gate_is_shut(struct adma_gate *gate)
{
	bool shut;

	spin_lock(&gate->lock);
	shut = gate->shut;
	spin_unlock(&gate->lock);
	return shut;
}

static int adma_post(struct adma_gate *gate, struct adma_export *arg,
		     struct adma_lent **made)
{
	unsigned int pinned = 0;
	struct adma_lent *lent;
	int ret;

	arg->addr = untagged_addr(arg->addr);
	if (!arg->flags)
		return -EINVAL;
	if (!arg->len || arg->len > ADMA_MAX_LEN ||
	    !access_ok(u64_to_user_ptr(arg->addr), arg->len))
		return -EINVAL;
	if (adma_gate_is_shut(gate))
		return -ESHUTDOWN;
	lent = adma_lent_new(gate, arg);
	if (IS_ERR(lent))
		return PTR_ERR(lent);
	ret = adma_span_fill(lent->span, gate->file, lent->addr, lent->len,
			     lent->flags & ADMA_EXPORT_WRITE, &arg->good, &pinned);
	if (!ret)
		ret = adma_lent_publish(lent);
	if (ret) {
		adma_lent_put(lent);
		/* The file was closed meanwhile: nobody keeps lines for it. */
		if (adma_gate_is_shut(gate))
			adma_lines_drop(gate->file);
		return ret;
	}
	adma_count(ADMA_STAT_EXPORTS, 1);
	arg->id = lent->id;
	*made = lent;
	return 0;
}

static bool adma_lent_is_idle(struct adma_lent *lent)
{
	bool idle;

	spin_lock(&lent->gate->lock);
	idle = !lent->transfers;
	spin_unlock(&lent->gate->lock);
	return idle;
}

static int adma_lent_await(struct adma_lent *lent, u64 timeout_ns)
{
	long left;

	/* What is over may not have been told yet. */
	if (!adma_lent_is_idle(lent))
		adma_channels_poke();
	if (!timeout_ns)
		return adma_lent_is_idle(lent) ? 0 : -EAGAIN;
	left = wait_event_interruptible_timeout(lent->gate->file->wait,
						adma_lent_is_idle(lent),
						adma_limit(timeout_ns));
	if (left < 0)
		return -EINTR;
	return left ? 0 : -ETIMEDOUT;
}

static int adma_unpost(struct adma_gate *gate, const struct adma_unexport *arg)
{
	struct adma_lent *lent;
	int ret;

	spin_lock(&gate->lock);
	lent = adma_lent_find(gate, arg->id);
	if (lent)
		lent->closed = true;
	spin_unlock(&gate->lock);
	if (!lent)
		return -ENOENT;
	ret = adma_lent_await(lent, arg->timeout_ns);
	if (!ret && !adma_lent_forget(lent))
		ret = -ENOENT;	/* another thread was first */
	adma_lent_put(lent);
	return ret;
}

/*
 * Transfers, of whoever holds the door
 */

static const struct file_operations adma_door_fops;

/* A post, for one request: until it is left, its lines stay. */
struct adma_lent *adma_lent_enter(int door, u64 id, u32 wanted)
{
	struct adma_lent *lent = ERR_PTR(-ENOENT);
	struct file *filp = fget(door);
	struct adma_lent *found;
	struct adma_gate *gate;

	if (!filp)
		return ERR_PTR(-EBADF);
	if (filp->f_op != &adma_door_fops) {
		fput(filp);
		return ERR_PTR(-EBADF);
	}
	gate = filp->private_data;
	spin_lock(&gate->lock);
	found = adma_lent_find(gate, id);
	if (found && !found->closed) {
		if (!(found->flags & wanted))
			lent = ERR_PTR(-EACCES);
		else if (found->dead)
			lent = ERR_PTR(-EFAULT);
		else
			lent = found;
	}
	if (!IS_ERR(lent)) {
		lent->transfers++;
		spin_lock(&gate->file->lock);
		gate->file->lent++;
		spin_unlock(&gate->file->lock);
	}
	spin_unlock(&gate->lock);
	if (found && IS_ERR(lent))
		adma_lent_put(found);
	fput(filp);
	return lent;
}

void adma_lent_leave(struct adma_lent *lent)
{
	struct adma_gate *gate = lent->gate;
	struct adma_file *file = gate->file;
	struct adma_span *span;

	adma_file_get(file);
	spin_lock(&gate->lock);
	lent->transfers--;
	span = adma_lent_strip(lent);
	spin_unlock(&gate->lock);
	adma_span_put(span);
	adma_lent_put(lent);
	/* Last: whoever closes the file goes on to see that all is let go. */
	spin_lock(&file->lock);
	file->lent--;
	spin_unlock(&file->lock);
	wake_up_all(&file->wait);
	adma_file_put(file);
}

/*
 * Doors
 */

/* Nothing is posted or reached through it any more. */
static void adma_gate_shut(struct adma_gate *gate)
{
	struct adma_lent *lent;
	unsigned long id = 0;

	spin_lock(&gate->lock);
	gate->shut = true;
	spin_unlock(&gate->lock);
	for (;; id++) {
		lent = adma_lent_next(gate, &id);
		if (!lent)
			break;
		adma_lent_forget(lent);
		adma_lent_put(lent);
	}
}

/* The file is closed. */
void adma_gates_shut(struct adma_file *file)
{
	struct adma_gate *gate;

	mutex_lock(&file->gates_lock);
	list_for_each_entry(gate, &file->gates, gates)
		adma_gate_shut(gate);
	mutex_unlock(&file->gates_lock);
}

static void adma_posts_examine(struct work_struct *work)
{
	struct adma_file *file =
		container_of(work, struct adma_file, examine);
	struct adma_gate *gate;

	mutex_lock(&file->gates_lock);
	list_for_each_entry(gate, &file->gates, gates) {
		struct adma_lent *lent;
		unsigned long id = 0;

		for (;; id++) {
			lent = adma_lent_next(gate, &id);
			if (!lent)
				break;
			adma_lent_examine(lent);
			adma_lent_put(lent);
		}
	}
	mutex_unlock(&file->gates_lock);
	adma_file_put(file);
}

/* A line of the file has died; called where nothing may be waited for. */
void adma_posts_doubt(struct adma_file *file)
{
	if (!READ_ONCE(file->nr_posts))
		return;
	adma_file_get(file);
	if (!queue_work(adma_workqueue, &file->examine))
		adma_file_put(file);	/* not the last: the line has one */
}

void adma_post_open(struct adma_file *file)
{
	INIT_LIST_HEAD(&file->gates);
	mutex_init(&file->gates_lock);
	INIT_WORK(&file->examine, adma_posts_examine);
}

static int adma_door_release(struct inode *inode, struct file *filp)
{
	struct adma_gate *gate = filp->private_data;

	adma_gate_shut(gate);
	mutex_lock(&gate->file->gates_lock);
	list_del(&gate->gates);
	mutex_unlock(&gate->file->gates_lock);
	adma_gate_put(gate);
	return 0;
}

static int adma_ioctl_post(struct adma_gate *gate, void __user *user)
{
	struct adma_lent *lent = NULL;
	struct adma_export arg;
	u64 addr;
	int ret;

	ret = adma_read(&arg, sizeof(arg), user);
	if (ret)
		return ret;
	if (arg.flags & ~(ADMA_EXPORT_READ | ADMA_EXPORT_WRITE))
		return -EOPNOTSUPP;
	arg.id = 0;
	arg.good = 0;
	addr = arg.addr;
	ret = adma_post(gate, &arg, &lent);
	arg.addr = addr;	/* with its tag, as it was given */
	/* Also with an error: it names how far it got. */
	if (adma_write(user, &arg, sizeof(arg))) {
		ret = -EFAULT;
		/* Nobody would know its number. */
		if (lent)
			adma_lent_forget(lent);
	}
	if (lent)
		adma_lent_put(lent);
	return ret;
}

static int adma_ioctl_unpost(struct adma_gate *gate, void __user *user)
{
	struct adma_unexport arg;
	int ret;

	ret = adma_read(&arg, sizeof(arg), user);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	return adma_unpost(gate, &arg);
}

static long adma_door_ioctl(struct file *filp, unsigned int cmd,
			    unsigned long user)
{
	struct adma_gate *gate = filp->private_data;

	if (current->mm != gate->file->mm)
		return -EPERM;
	switch (cmd) {
	case ADMA_IOC_EXPORT:
		return adma_ioctl_post(gate, (void __user *)user);
	case ADMA_IOC_UNEXPORT:
		return adma_ioctl_unpost(gate, (void __user *)user);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations adma_door_fops = {
	.owner = THIS_MODULE,
	.release = adma_door_release,
	.unlocked_ioctl = adma_door_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct adma_gate *adma_gate_new(struct adma_file *file)
{
	struct adma_gate *gate;
	bool fits;

	gate = kzalloc(sizeof(*gate), GFP_KERNEL_ACCOUNT);
	if (!gate)
		return ERR_PTR(-ENOMEM);
	spin_lock(&file->lock);
	fits = file->nr_gates < ADMA_MAX_PORTS;
	if (fits)
		file->nr_gates++;
	spin_unlock(&file->lock);
	if (!fits) {
		kfree(gate);
		return ERR_PTR(-EMFILE);
	}
	kref_init(&gate->kref);
	spin_lock_init(&gate->lock);
	xa_init(&gate->posts);
	adma_file_get(file);
	gate->file = file;
	mutex_lock(&file->gates_lock);
	list_add_tail(&gate->gates, &file->gates);
	mutex_unlock(&file->gates_lock);
	return gate;
}

int adma_ioctl_door(struct adma_file *file, void __user *user)
{
	struct adma_gate *gate;
	struct adma_port arg;
	struct file *filp;
	int ret;

	ret = adma_read(&arg, sizeof(arg), user);
	if (ret)
		return ret;
	if (arg.flags)
		return -EOPNOTSUPP;
	if (arg.reserved)
		return -EINVAL;
	gate = adma_gate_new(file);
	if (IS_ERR(gate))
		return PTR_ERR(gate);
	filp = anon_inode_getfile("[adma-port]", &adma_door_fops, gate, O_RDWR);
	if (IS_ERR(filp)) {
		mutex_lock(&file->gates_lock);
		list_del(&gate->gates);
		mutex_unlock(&file->gates_lock);
		adma_gate_put(gate);
		return PTR_ERR(filp);
	}
	arg.fd = get_unused_fd_flags(O_CLOEXEC);
	if (arg.fd < 0) {
		ret = arg.fd;
		goto err_fput;
	}
	ret = adma_write(user, &arg, sizeof(arg));
	if (ret)
		goto err_put_fd;
	fd_install(arg.fd, filp);
	return 0;

err_put_fd:
	put_unused_fd(arg.fd);
err_fput:
	fput(filp);
	return ret;
}
