// SPDX-License-Identifier: GPL-2.0
/*
 * Exports: buffers that a process lets others reach, and the ports to them (see
 * README.md, "Between two processes").
 *
 * All exports of a file are in one table, whose lock is of all that follows. A
 * port is a descriptor and nothing else: a buffer knows which one it is for.
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "adma.h"

/* Lets go of what no request uses, nor can any more. */
static void adma_buf_settle(struct adma_buf *buf)
{
	if (buf->requests || !buf->refuse)
		return;
	while (buf->nr)
		adma_range_put(buf->range[--buf->nr]);
	if (!buf->listed)
		kvfree_rcu(buf, rcu);
}

static void adma_buf_unlist(struct adma_buf *buf)
{
	__xa_erase(&buf->file->exports, buf->id);
	buf->file->nr_exports--;
	buf->listed = false;
	buf->refuse = -ENOENT;
	adma_buf_settle(buf);
}

static struct adma_buf *adma_buf_find(struct file *port, u64 id)
{
	struct adma_file *file = port->private_data;
	struct adma_buf *buf = xa_load(&file->exports, id);

	return buf && buf->id == id && buf->port == port ? buf : NULL;
}

/* A range has died, and with it what is exported of it. */
void adma_exports_void(struct adma_range *range)
{
	struct adma_file *file = range->file;
	struct adma_buf *buf;
	unsigned long id;

	xa_lock(&file->exports);
	xa_for_each(&file->exports, id, buf) {
		u64 at = range->index - adma_range_of(buf->addr);

		if (at < buf->nr && buf->range[at] == range) {
			buf->refuse = buf->refuse ?: -EFAULT;
			adma_buf_settle(buf);
		}
	}
	xa_unlock(&file->exports);
}

/* Nothing is reached through @port any more; NULL: nor through any other. */
void adma_exports_close(struct adma_file *file, const struct file *port)
{
	struct adma_buf *buf;
	unsigned long id;

	xa_lock(&file->exports);
	if (!port)
		file->closed = true;
	xa_for_each(&file->exports, id, buf) {
		if (!port || buf->port == port)
			adma_buf_unlist(buf);
	}
	xa_unlock(&file->exports);
}

int adma_export(struct file *port, struct adma_export *arg)
{
	struct adma_file *file = port->private_data;
	u64 addr = untagged_addr(arg->addr);
	unsigned int i, pinned = 0;
	struct adma_buf *buf;
	int ret;

	arg->id = 0;
	if (!arg->flags || !arg->len || arg->len > ADMA_MAX_LEN ||
	    !access_ok(u64_to_user_ptr(addr), arg->len))
		return -EINVAL;
	if (READ_ONCE(file->closed))
		return -ESHUTDOWN;
	buf = kvzalloc(struct_size(buf, range, adma_ranges_of(addr, arg->len)),
		       GFP_KERNEL_ACCOUNT);
	if (!buf)
		return -ENOMEM;
	buf->file = file;
	buf->port = port;
	buf->addr = addr;
	buf->len = arg->len;
	buf->flags = arg->flags;
	ret = adma_ranges_fill(file, addr, buf->len,
			       buf->flags & ADMA_EXPORT_WRITE, buf->range,
			       &buf->nr, &pinned);
	xa_lock(&file->exports);
	buf->id = ++file->last_export;
	buf->listed = true;
	file->nr_exports++;
	if (!ret)
		ret = __xa_insert(&file->exports, buf->id, buf,
				  GFP_KERNEL_ACCOUNT);
	if (file->closed)
		ret = -ESHUTDOWN;
	else if (file->nr_exports > ADMA_MAX_EXPORTS)
		ret = -EAGAIN;
	/* Before it was to be found a range may have died. */
	for (i = 0; i < buf->nr; i++) {
		if (READ_ONCE(buf->range[i]->dead))
			buf->refuse = -EFAULT;
	}
	if (ret) {
		adma_buf_unlist(buf);
	} else {
		arg->id = buf->id;
		adma_count(ADMA_STAT_EXPORTS, 1);
		adma_buf_settle(buf);
	}
	xa_unlock(&file->exports);
	return ret;
}

/* Takes it back; EAGAIN while somebody uses it. */
static int adma_buf_drop(struct file *port, struct adma_wait *arg)
{
	struct adma_file *file = port->private_data;
	struct adma_buf *buf;
	int ret = -ENOENT;

	xa_lock(&file->exports);
	buf = adma_buf_find(port, arg->id);
	if (buf) {
		buf->refuse = -ENOENT;
		ret = buf->requests ? -EAGAIN : 0;
		if (!ret)
			adma_buf_unlist(buf);
	}
	xa_unlock(&file->exports);
	return ret;
}

int adma_unexport(struct file *port, struct adma_wait *arg)
{
	int ret = adma_buf_drop(port, arg);

	if (ret != -EAGAIN)
		return ret;
	/* What is over may not have been told yet. */
	adma_channels_poll();
	return adma_wait_until(port, arg, adma_buf_drop);
}

/* A buffer, for one request: until it is left, its ranges stay. */
struct adma_buf *adma_buf_enter(int fd, u64 id, u32 wanted)
{
	struct file *port = fget(fd);
	struct adma_file *file;
	struct adma_buf *buf;
	int ret = -EBADF;

	if (!port)
		return ERR_PTR(ret);
	if (port->f_op != &adma_port_fops)
		goto out_put_port;
	file = port->private_data;
	xa_lock(&file->exports);
	buf = adma_buf_find(port, id);
	if (!buf)
		ret = -ENOENT;
	else if (buf->refuse == -ENOENT || buf->flags & wanted)
		ret = buf->refuse;
	else
		ret = -EACCES;
	if (!ret) {
		buf->requests++;
		file->foreign++;
		kref_get(&file->kref);
	}
	xa_unlock(&file->exports);
out_put_port:
	fput(port);
	return ret ? ERR_PTR(ret) : buf;
}

void adma_buf_leave(struct adma_buf *buf)
{
	struct adma_file *file = buf->file;

	xa_lock(&file->exports);
	buf->requests--;
	adma_buf_settle(buf);
	/* Last: whoever closes the file goes on to see that all is let go. */
	WRITE_ONCE(file->foreign, file->foreign - 1);
	xa_unlock(&file->exports);
	wake_up_all(&file->wait);
	adma_file_put(file);
}

static int adma_port_release(struct inode *inode, struct file *port)
{
	adma_exports_close(port->private_data, port);
	adma_file_put(port->private_data);
	return 0;
}

const struct file_operations adma_port_fops = {
	.owner = THIS_MODULE,
	.release = adma_port_release,
	.unlocked_ioctl = adma_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/* Answers its descriptor. */
int adma_port(struct adma_file *file)
{
	int fd;

	kref_get(&file->kref);
	fd = anon_inode_getfd("[adma-port]", &adma_port_fops, file,
			      O_RDWR | O_CLOEXEC);
	if (fd < 0)
		adma_file_put(file);
	return fd;
}
