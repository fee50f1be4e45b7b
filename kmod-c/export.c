// SPDX-License-Identifier: GPL-2.0
/*
 * Exports: buffers that a process lets others reach (see README.md, "Between two
 * processes"). All exports of a file are in one table, whose lock protects them. A
 * port is a descriptor and nothing else: a buffer knows which one it is for.
 *
 * Locks, outer first: that of a table of exports, then those of range.c.
 */
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "export.h"

void adma_exports_init(struct adma_exports *exports, struct adma_mem *mem)
{
	exports->mem = mem;
	xa_init_flags(&exports->table, XA_FLAGS_ACCOUNT);
}

/* Puts the ranges once no request uses the buffer, or can any more. */
static void adma_buf_put_ranges(struct adma_buf *buf)
{
	lockdep_assert_held(&buf->exports->table.xa_lock);
	if (buf->requests || !buf->refuse)
		return;
	while (buf->nr) {
		buf->range[--buf->nr]->exports--;
		adma_range_put(buf->range[buf->nr]);
	}
	if (!buf->listed)
		kvfree_rcu(buf, rcu);
}

static void adma_buf_unlist(struct adma_buf *buf)
{
	__xa_erase(&buf->exports->table, buf->id);
	buf->exports->nr--;
	buf->listed = false;
	WRITE_ONCE(buf->refuse, -ENOENT);
	adma_buf_put_ranges(buf);
}

static struct adma_buf *adma_buf_find(struct file *port, u64 id)
{
	struct adma_exports *exports = port->private_data;
	struct adma_buf *buf = xa_load(&exports->table, id);

	return buf && buf->id == id && buf->port == port ? buf : NULL;
}

/* Voids the exports of a range that has died. */
void adma_exports_void(struct adma_exports *exports, struct adma_range *range)
{
	struct adma_buf *buf;
	unsigned long id;

	xa_lock(&exports->table);
	xa_for_each(&exports->table, id, buf) {
		u64 at = range->index - adma_range_of(buf->addr);

		if (at < buf->nr && buf->range[at] == range) {
			WRITE_ONCE(buf->refuse, buf->refuse ?: -EFAULT);
			adma_buf_put_ranges(buf);
		}
	}
	xa_unlock(&exports->table);
}

/*
 * Takes back the exports of a port, without waiting; without a port, all of the
 * file's, and refuses new ones.
 */
void adma_exports_close(struct adma_exports *exports, const struct file *port)
{
	struct adma_buf *buf;
	unsigned long id;

	xa_lock(&exports->table);
	if (!port)
		exports->closed = true;
	xa_for_each(&exports->table, id, buf) {
		if (!port || buf->port == port)
			adma_buf_unlist(buf);
	}
	xa_unlock(&exports->table);
}

int adma_export(struct file *port, struct adma_export *arg)
{
	struct adma_exports *exports = port->private_data;
	u64 addr = untagged_addr(arg->addr);
	unsigned int i, pinned = 0;
	struct adma_buf *buf;
	int ret;

	arg->id = 0;
	if (!arg->flags || !arg->len || arg->len > ADMA_MAX_LEN ||
	    !access_ok(u64_to_user_ptr(addr), arg->len))
		return -EINVAL;
	if (READ_ONCE(exports->closed))
		return -ESHUTDOWN;
	buf = kvzalloc(struct_size(buf, range, adma_ranges_of(addr, arg->len)),
		       GFP_KERNEL_ACCOUNT);
	if (!buf)
		return -ENOMEM;
	buf->exports = exports;
	buf->port = port;
	buf->addr = addr;
	buf->len = arg->len;
	buf->flags = arg->flags;
	ret = adma_ranges_get(exports->mem, addr, arg->len,
			      arg->flags & ADMA_EXPORT_WRITE, ADMA_EVERY_DEVICE,
			      buf->range, &buf->nr, &pinned);
	adma_ranges_refused(buf->range, buf->nr, ret);
	if (ret == -EBUSY)
		ret = -EFAULT;
	xa_lock(&exports->table);
	buf->id = ++exports->last;
	buf->listed = true;
	exports->nr++;
	if (!ret)
		ret = __xa_insert(&exports->table, buf->id, buf,
				  GFP_KERNEL_ACCOUNT);
	if (exports->closed)
		ret = -ESHUTDOWN;
	else if (exports->nr > ADMA_MAX_EXPORTS)
		ret = -EAGAIN;
	/* A range may have died before the export could be found. */
	for (i = 0; i < buf->nr; i++) {
		buf->range[i]->exports++;
		if (READ_ONCE(buf->range[i]->dead))
			buf->refuse = -EFAULT;
	}
	if (ret) {
		adma_buf_unlist(buf);
	} else {
		arg->id = buf->id;
		adma_count(ADMA_STAT_EXPORTS, 1);
		adma_buf_put_ranges(buf);
	}
	xa_unlock(&exports->table);
	return ret;
}

/*
 * Waits for transfers but not for their submitter, which its cgroup may keep off
 * the CPU without limit: it sees @refuse before it submits more.
 */
int adma_unexport(struct file *port, struct adma_wait *arg)
{
	struct adma_exports *exports = port->private_data;
	struct adma_flight what = {};
	long limit = adma_timeout_of(arg);
	struct adma_buf *buf;
	long left;

	arg->failed = 0;
	xa_lock(&exports->table);
	buf = adma_buf_find(port, arg->id);
	if (buf) {
		WRITE_ONCE(buf->refuse, -ENOENT);
		buf->requests++;	/* ours: it stays meanwhile */
	}
	xa_unlock(&exports->table);
	if (!buf)
		return -ENOENT;
	what.buf = buf;
	what.begun_by = jiffies;
	left = adma_wait_for_flight(&what, limit, true);
	xa_lock(&exports->table);
	buf->requests--;
	if (left > 0 && buf->listed)
		adma_buf_unlist(buf);
	else
		adma_buf_put_ranges(buf);
	xa_unlock(&exports->table);
	if (left > 0)
		return 0;
	if (left < 0)
		return -EINTR;
	return limit ? -ETIMEDOUT : -EAGAIN;
}

/* Returns an export for one request; its ranges stay until adma_buf_leave(). */
struct adma_buf *adma_buf_enter(const struct file_operations *fops, int fd,
				u64 id, u32 wanted)
{
	struct file *port = fget(fd);
	struct adma_exports *exports;
	struct adma_buf *buf;
	int ret = -EBADF;

	if (!port)
		return ERR_PTR(ret);
	if (port->f_op != fops)
		goto out_put_port;
	exports = port->private_data;
	xa_lock(&exports->table);
	buf = adma_buf_find(port, id);
	if (!buf)
		ret = -ENOENT;
	else if (buf->refuse == -ENOENT || buf->flags & wanted)
		ret = buf->refuse;
	else
		ret = -EACCES;
	if (!ret) {
		buf->requests++;
		kref_get(&exports->mem->kref);
	}
	xa_unlock(&exports->table);
out_put_port:
	fput(port);
	return ret ? ERR_PTR(ret) : buf;
}

void adma_buf_leave(struct adma_buf *buf)
{
	struct adma_exports *exports = buf->exports;

	xa_lock(&exports->table);
	buf->requests--;
	adma_buf_put_ranges(buf);
	xa_unlock(&exports->table);
	adma_mem_put(exports->mem);
}
