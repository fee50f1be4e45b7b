// SPDX-License-Identifier: GPL-2.0
/*
 * Exports: buffers that a process lets others reach, and the ports to them.
 *
 * The pages of a buffer are pinned and mapped by its owner, in the call that
 * exports it, so that whoever copies needs nothing of the owner: no lock that
 * its page faults could hold, no memory map. And whoever copies has pinned its
 * own side before it takes hold of a buffer, so that its owner, who waits for
 * the end of transfers, waits for channels only.
 *
 * A buffer holds its ranges until it is taken back and its last transfer is
 * over. A range that dies (see range.c) makes it void: what goes on goes on, in
 * pages that are still pinned and can be nobody else's; nothing new begins, and
 * the ranges are let go as soon as no transfer uses them.
 *
 * The file's exports_lock is of its ports, their buffers and who uses them. It is
 * never held while memory is asked for, or somebody waits for works: one of them
 * takes it.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "adma.h"

static const struct file_operations adma_port_fops;

/* One more of what a file may have so many of; false if that is too many. */
static bool adma_count_up(struct adma_file *file, unsigned int *nr,
			  unsigned int most)
{
	bool fits;

	spin_lock(&file->lock);
	fits = *nr < most;
	*nr += fits;
	spin_unlock(&file->lock);
	return fits;
}

static void adma_count_down(struct adma_file *file, unsigned int *nr)
{
	spin_lock(&file->lock);
	--*nr;
	spin_unlock(&file->lock);
}

static void adma_port_free(struct kref *kref)
{
	struct adma_exporter *port =
		container_of(kref, struct adma_exporter, kref);
	struct adma_file *file = port->file;

	xa_destroy(&port->bufs);
	kfree(port);
	adma_count_down(file, &file->nr_ports);
	adma_file_put(file);
}

static void adma_port_put(struct adma_exporter *port)
{
	kref_put(&port->kref, adma_port_free);
}

/*
 * Buffers
 */

static void adma_buf_free(struct kref *kref)
{
	struct adma_buf *buf = container_of(kref, struct adma_buf, kref);
	struct adma_exporter *port = buf->port;

	adma_ranges_put(buf->ranges);
	kfree(buf);
	adma_count_down(port->file, &port->file->nr_exports);
	adma_port_put(port);
}

static void adma_buf_put(struct adma_buf *buf)
{
	kref_put(&buf->kref, adma_buf_free);
}

/* Lets go of the ranges of a void buffer that nobody uses. The lock is held. */
static void adma_buf_strip(struct adma_buf *buf)
{
	if (!buf->dead || buf->requests)
		return;
	adma_ranges_put(buf->ranges);
	buf->ranges = NULL;
}

/* Looks whether a buffer has become void. The lock is held. */
static void adma_buf_recheck(struct adma_buf *buf)
{
	unsigned int i;

	for (i = 0; buf->ranges && i < buf->ranges->nr; i++)
		buf->dead |= READ_ONCE(buf->ranges->range[i]->dead);
	adma_buf_strip(buf);
}

/* The buffer of a number, with a hold on it. The lock is held. */
static struct adma_buf *adma_buf_find(struct adma_exporter *port, u64 id)
{
	struct adma_buf *buf = NULL;

	if (id && id <= atomic64_read(&port->last))
		buf = xa_load(&port->bufs, id);
	if (buf)
		kref_get(&buf->kref);
	return buf;
}

/* Out of the table, by whoever comes first. Its transfers go on. */
static bool adma_buf_forget(struct adma_buf *buf)
{
	bool first;

	buf->closed = true;
	first = xa_erase(&buf->port->bufs, buf->id) == buf;
	if (first)
		adma_buf_put(buf);
	return first;
}

static struct adma_buf *adma_buf_new(struct adma_exporter *port,
				     const struct adma_export *arg)
{
	struct adma_file *file = port->file;
	struct adma_buf *buf;

	buf = kzalloc(sizeof(*buf), GFP_KERNEL_ACCOUNT);
	if (!buf)
		return ERR_PTR(-ENOMEM);
	if (!adma_count_up(file, &file->nr_exports, ADMA_MAX_EXPORTS)) {
		kfree(buf);
		return ERR_PTR(-EAGAIN);
	}
	kref_init(&buf->kref);
	kref_get(&port->kref);
	buf->port = port;
	buf->addr = arg->addr;
	buf->len = arg->len;
	buf->flags = arg->flags;
	buf->ranges = adma_ranges_new(adma_ranges_of(arg->addr, arg->len));
	if (!buf->ranges) {
		adma_buf_put(buf);
		return ERR_PTR(-ENOMEM);
	}
	return buf;
}

static int adma_buf_publish(struct adma_buf *buf)
{
	struct adma_exporter *port = buf->port;
	int ret;

	buf->id = atomic64_inc_return(&port->last);
	ret = xa_reserve(&port->bufs, buf->id, GFP_KERNEL_ACCOUNT);
	if (ret)
		return ret;
	mutex_lock(&port->file->exports_lock);
	if (port->closed) {
		ret = -ESHUTDOWN;
		xa_release(&port->bufs, buf->id);
	} else {
		kref_get(&buf->kref);
		xa_store(&port->bufs, buf->id, buf, 0);	/* reserved */
		/* A range may have died before the buffer was to be found. */
		adma_buf_recheck(buf);
	}
	mutex_unlock(&port->file->exports_lock);
	return ret;
}

static struct adma_buf *adma_export(struct adma_exporter *port,
				    struct adma_export *arg)
{
	unsigned int pinned = 0;
	struct adma_buf *buf;
	int ret;

	arg->addr = untagged_addr(arg->addr);
	if (!arg->flags || !arg->len || arg->len > ADMA_MAX_LEN ||
	    !access_ok(u64_to_user_ptr(arg->addr), arg->len))
		return ERR_PTR(-EINVAL);
	if (READ_ONCE(port->closed))
		return ERR_PTR(-ESHUTDOWN);
	buf = adma_buf_new(port, arg);
	if (IS_ERR(buf))
		return buf;
	ret = adma_ranges_fill(buf->ranges, port->file, buf->addr, buf->len,
			       buf->flags & ADMA_EXPORT_WRITE, &arg->good,
			       &pinned);
	if (!ret)
		ret = adma_buf_publish(buf);
	if (ret) {
		adma_buf_put(buf);
		/* The file was closed meanwhile: nobody keeps ranges for it. */
		if (READ_ONCE(port->closed))
			adma_ranges_drop(port->file);
		return ERR_PTR(ret);
	}
	adma_count(ADMA_STAT_EXPORTS, 1);
	arg->id = buf->id;
	return buf;
}

static int adma_buf_await(struct adma_buf *buf, u64 timeout_ns)
{
	long left;

	/* What is over may not have been told yet. */
	if (READ_ONCE(buf->requests))
		adma_channels_poll();
	if (!timeout_ns)
		return READ_ONCE(buf->requests) ? -EAGAIN : 0;
	left = wait_event_interruptible_timeout(buf->port->file->wait,
						!READ_ONCE(buf->requests),
						adma_wait_limit(timeout_ns));
	if (left < 0)
		return -EINTR;
	return left ? 0 : -ETIMEDOUT;
}

static int adma_unexport(struct adma_exporter *port,
			 const struct adma_unexport *arg)
{
	struct adma_buf *buf;
	int ret;

	mutex_lock(&port->file->exports_lock);
	buf = adma_buf_find(port, arg->id);
	if (buf)
		buf->closed = true;
	mutex_unlock(&port->file->exports_lock);
	if (!buf)
		return -ENOENT;
	ret = adma_buf_await(buf, arg->timeout_ns);
	mutex_lock(&port->file->exports_lock);
	if (!ret && !adma_buf_forget(buf))
		ret = -ENOENT;	/* another thread was first */
	mutex_unlock(&port->file->exports_lock);
	adma_buf_put(buf);
	return ret;
}

/*
 * Requests, of whoever has the port
 */

/* A buffer, for one request: until it is left, its ranges stay. */
struct adma_buf *adma_buf_enter(int fd, u64 id, u32 wanted)
{
	struct file *filp = fget(fd);
	struct adma_exporter *port;
	struct adma_buf *buf;
	int ret = 0;

	if (!filp || filp->f_op != &adma_port_fops) {
		if (filp)
			fput(filp);
		return ERR_PTR(-EBADF);
	}
	port = filp->private_data;
	mutex_lock(&port->file->exports_lock);
	buf = adma_buf_find(port, id);
	if (!buf || buf->closed) {
		ret = -ENOENT;
	} else if (!(buf->flags & wanted)) {
		ret = -EACCES;
	} else if (buf->dead) {
		ret = -EFAULT;
	} else {
		buf->requests++;
		adma_count_up(port->file, &port->file->foreign, UINT_MAX);
	}
	mutex_unlock(&port->file->exports_lock);
	if (ret && buf)
		adma_buf_put(buf);
	fput(filp);
	return ret ? ERR_PTR(ret) : buf;
}

void adma_buf_leave(struct adma_buf *buf)
{
	struct adma_file *file = buf->port->file;

	adma_file_get(file);
	mutex_lock(&file->exports_lock);
	WRITE_ONCE(buf->requests, buf->requests - 1);
	adma_buf_strip(buf);
	mutex_unlock(&file->exports_lock);
	adma_buf_put(buf);
	/* Last: whoever closes the file goes on to see that all is let go. */
	adma_count_down(file, &file->foreign);
	wake_up_all(&file->wait);
	adma_file_put(file);
}

/*
 * Ports
 */

/* Nothing is exported or reached through it any more. The lock is held. */
static void adma_port_close(struct adma_exporter *port)
{
	struct adma_buf *buf;
	unsigned long id;

	WRITE_ONCE(port->closed, true);
	xa_for_each(&port->bufs, id, buf)
		adma_buf_forget(buf);
}

/* The file is closed. */
void adma_ports_close(struct adma_file *file)
{
	struct adma_exporter *port;

	mutex_lock(&file->exports_lock);
	list_for_each_entry(port, &file->ports, list)
		adma_port_close(port);
	mutex_unlock(&file->exports_lock);
}

static void adma_recheck_work(struct work_struct *work)
{
	struct adma_file *file = container_of(work, struct adma_file, recheck);
	struct adma_exporter *port;
	struct adma_buf *buf;
	unsigned long id;

	mutex_lock(&file->exports_lock);
	list_for_each_entry(port, &file->ports, list) {
		xa_for_each(&port->bufs, id, buf)
			adma_buf_recheck(buf);
	}
	mutex_unlock(&file->exports_lock);
	adma_file_put(file);
}

/* A range of the file has died; called where nothing may be waited for. */
void adma_exports_recheck(struct adma_file *file)
{
	if (!READ_ONCE(file->nr_exports))
		return;
	adma_file_get(file);
	if (!queue_work(adma_workqueue, &file->recheck))
		adma_file_put(file);	/* not the last: the range has one */
}

void adma_ports_open(struct adma_file *file)
{
	INIT_LIST_HEAD(&file->ports);
	mutex_init(&file->exports_lock);
	INIT_WORK(&file->recheck, adma_recheck_work);
}

static int adma_port_release(struct inode *inode, struct file *filp)
{
	struct adma_exporter *port = filp->private_data;

	mutex_lock(&port->file->exports_lock);
	adma_port_close(port);
	list_del(&port->list);
	mutex_unlock(&port->file->exports_lock);
	adma_port_put(port);
	return 0;
}

static int adma_ioctl_export(struct adma_exporter *port, void __user *user)
{
	struct adma_export arg;
	struct adma_buf *buf;
	u64 addr;
	int ret;

	ret = adma_read(&arg, sizeof(arg), ADMA_EXPORT_READ | ADMA_EXPORT_WRITE,
			user);
	if (ret)
		return ret;
	arg.id = 0;
	arg.good = 0;
	addr = arg.addr;
	buf = adma_export(port, &arg);
	arg.addr = addr;	/* with its tag, as it was given */
	/* Also with an error: it names how far it got. */
	ret = adma_write(user, &arg, sizeof(arg));
	if (IS_ERR(buf))
		return ret ?: PTR_ERR(buf);
	if (ret) {
		/* Nobody would know its number. */
		mutex_lock(&port->file->exports_lock);
		adma_buf_forget(buf);
		mutex_unlock(&port->file->exports_lock);
	}
	adma_buf_put(buf);
	return ret;
}

static int adma_ioctl_unexport(struct adma_exporter *port, void __user *user)
{
	struct adma_unexport arg;
	int ret;

	ret = adma_read(&arg, sizeof(arg), 0, user);
	if (ret)
		return ret;
	return adma_unexport(port, &arg);
}

static long adma_port_ioctl(struct file *filp, unsigned int cmd,
			    unsigned long user)
{
	struct adma_exporter *port = filp->private_data;

	if (current->mm != port->file->mm)
		return -EPERM;
	switch (cmd) {
	case ADMA_IOC_EXPORT:
		return adma_ioctl_export(port, (void __user *)user);
	case ADMA_IOC_UNEXPORT:
		return adma_ioctl_unexport(port, (void __user *)user);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations adma_port_fops = {
	.owner = THIS_MODULE,
	.release = adma_port_release,
	.unlocked_ioctl = adma_port_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/* A port's file, which nobody has a descriptor of yet. */
static struct file *adma_port_new(struct adma_file *file)
{
	struct adma_exporter *port;
	struct file *filp;

	port = kzalloc(sizeof(*port), GFP_KERNEL_ACCOUNT);
	if (!port)
		return ERR_PTR(-ENOMEM);
	if (!adma_count_up(file, &file->nr_ports, ADMA_MAX_PORTS)) {
		kfree(port);
		return ERR_PTR(-EMFILE);
	}
	kref_init(&port->kref);
	xa_init(&port->bufs);
	adma_file_get(file);
	port->file = file;
	filp = anon_inode_getfile("[adma-port]", &adma_port_fops, port, O_RDWR);
	if (IS_ERR(filp)) {
		adma_port_put(port);
		return filp;
	}
	mutex_lock(&file->exports_lock);
	list_add_tail(&port->list, &file->ports);
	mutex_unlock(&file->exports_lock);
	return filp;
}

int adma_ioctl_port(struct adma_file *file, void __user *user)
{
	struct adma_port arg;
	struct file *filp;
	int ret;

	ret = adma_read(&arg, sizeof(arg), 0, user);
	if (ret)
		return ret;
	if (arg.reserved)
		return -EINVAL;
	filp = adma_port_new(file);
	if (IS_ERR(filp))
		return PTR_ERR(filp);
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
