// SPDX-License-Identifier: GPL-2.0
/* /dev/adma: the module, and the calls of a file and of its ports. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/anon_inodes.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "compat.h"
#include "file.h"

/* How long a caller that is about to fork waits for requests and pages. */
#define ADMA_FORK_MS	100

static int adma_info(struct adma_file *file, struct adma_info *arg)
{
	u64 sequence = READ_ONCE(file->requests.sequence);
	struct adma_mem *mem = &file->mem;
	unsigned int i, usable = 0;

	if (arg->reserved)
		return -EINVAL;
	if (arg->flags & ADMA_INFO_KEEP) {
		WRITE_ONCE(mem->keep_pages,
			   min_t(u64, arg->keep_pages, adma_keep_pages));
		/* Nothing: before a fork, which copies pinned pages apart. */
		if (!arg->keep_pages) {
			adma_ranges_retire(mem);
			adma_channels_poll();
			wait_event_killable_timeout(mem->wait,
						    adma_requests_over(&file->requests,
								       sequence),
						    msecs_to_jiffies(ADMA_FORK_MS));
			adma_mem_settle(mem, ADMA_FORK_MS);
		}
		adma_ranges_trim(mem);
	}
	for (i = 0; i < adma_nr_channels; i++)
		usable += adma_channel_is_up(&adma_channels[i]);
	*arg = (struct adma_info) {
		.size = arg->size,
		.flags = arg->flags,
		.abi = ADMA_ABI_VERSION,
		.features = ADMA_FEATURE_WORDS | ADMA_FEATURE_EXPORTS |
			    (num_online_nodes() > 1 ? ADMA_FEATURE_NODES : 0),
		.channels = adma_nr_channels,
		.usable = usable,
		.src_align = adma_align,
		.max_bytes = ADMA_MAX_BYTES,
		.max_pages = adma_page_limit(),
		.keep_pages = READ_ONCE(mem->keep_pages),
		.pages = atomic_long_read(&mem->pages),
		.hits = atomic64_read(&mem->hits),
		.misses = atomic64_read(&mem->misses),
		.evictions = atomic64_read(&mem->evictions),
		.invalidations = atomic64_read(&mem->invalidations),
	};
	return 0;
}

static const struct file_operations adma_port_fops;

/*
 * The size of each call's structure in the first version, its known flags, and
 * whether it belongs to a port. Structures may grow at their end; these sizes stay.
 */
static const struct {
	unsigned int cmd;
	u32 least;
	u32 flags;
	bool port;
} adma_calls[] = {
	{ ADMA_IOC_INFO, 96, ADMA_INFO_KEEP },
	{ ADMA_IOC_SUBMIT, 56, ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH },
	{ ADMA_IOC_WAIT, 32 },
	{ ADMA_IOC_PORT },
	{ ADMA_IOC_EXPORT, 32, ADMA_EXPORT_READ | ADMA_EXPORT_WRITE, true },
	{ ADMA_IOC_UNEXPORT, 32, 0, true },
};

static_assert(sizeof(struct adma_info) >= 96 && sizeof(struct adma_submit) >= 56 &&
	      sizeof(struct adma_wait) >= 32 && sizeof(struct adma_export) >= 32);

union adma_arg {
	struct {
		u32 size;
		u32 flags;
	};
	struct adma_info info;
	struct adma_submit submit;
	struct adma_wait wait;
	struct adma_export export;
};

/*
 * Reads a structure of any version since the first: fields that an older caller does
 * not know are 0, and unknown requests of a newer one are refused, not ignored.
 */
static int adma_arg_read(union adma_arg *arg, u32 *size, unsigned int nr,
			 void __user *user)
{
	u32 known = _IOC_SIZE(adma_calls[nr].cmd);
	int ret;

	if (get_user(*size, (u32 __user *)user))
		return -EFAULT;
	if (*size < adma_calls[nr].least)
		return -EINVAL;
	if (*size > PAGE_SIZE)
		return -E2BIG;
	ret = copy_struct_from_user(arg, known, user, *size);
	if (ret)
		return ret;
	return arg->flags & ~adma_calls[nr].flags ? -EOPNOTSUPP : 0;
}

/* Returns a new port's descriptor. */
static int adma_port(struct adma_file *file)
{
	int fd;

	kref_get(&file->mem.kref);
	fd = anon_inode_getfd("[adma-port]", &adma_port_fops, &file->exports,
			      O_RDWR | O_CLOEXEC);
	if (fd < 0)
		adma_mem_put(&file->mem);
	return fd;
}

static struct adma_file *adma_file_of(const struct file *port)
{
	return container_of(port->private_data, struct adma_file, exports);
}

/* The calls of /dev/adma and of ports. */
static long adma_ioctl(struct file *filp, unsigned int cmd, unsigned long user)
{
	bool port = filp->f_op == &adma_port_fops;
	struct adma_file *file = port ? adma_file_of(filp) : filp->private_data;
	unsigned int nr = _IOC_NR(cmd);
	union adma_arg arg;
	u32 size;
	int ret;

	if (current->mm != file->mem.mm)
		return -EPERM;
	if (nr >= ARRAY_SIZE(adma_calls))
		return -ENOTTY;
	nr = array_index_nospec(nr, ARRAY_SIZE(adma_calls));
	/* Structures may grow: ignores the size in the number. */
	cmd = (cmd & ~IOCSIZE_MASK) | (adma_calls[nr].cmd & IOCSIZE_MASK);
	if (cmd != adma_calls[nr].cmd || adma_calls[nr].port != port)
		return -ENOTTY;
	if (cmd == ADMA_IOC_PORT)
		return user ? -EINVAL : adma_port(file);
	ret = adma_arg_read(&arg, &size, nr, (void __user *)user);
	if (ret)
		return ret;
	switch (cmd) {
	case ADMA_IOC_INFO:
		ret = adma_info(file, &arg.info);
		break;
	case ADMA_IOC_SUBMIT:
		ret = adma_submit(&file->requests, &adma_port_fops, &arg.submit);
		break;
	case ADMA_IOC_WAIT:
		ret = adma_wait(&file->requests, &arg.wait);
		break;
	case ADMA_IOC_EXPORT:
		ret = adma_export(filp, &arg.export);
		break;
	case ADMA_IOC_UNEXPORT:
		ret = adma_unexport(filp, &arg.wait);
		break;
	}
	/* Also after an error: the structure may say how far it got. */
	size = min_t(u32, size, _IOC_SIZE(cmd));
	if (copy_to_user((void __user *)user, &arg, size)) {
		/* The caller does not learn its number, so the export is undone. */
		if (cmd == ADMA_IOC_EXPORT && !ret) {
			arg.wait = (struct adma_wait) { .id = arg.export.id };
			adma_unexport(filp, &arg.wait);
		}
		ret = -EFAULT;
	}
	return ret;
}

/* Maps the words of one channel, read-only. */
static int adma_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct adma_file *file = filp->private_data;
	unsigned long channel = vma->vm_pgoff;
	int ret;

	if (current->mm != file->mem.mm)
		return -EPERM;
	if (channel >= adma_nr_channels ||
	    vma->vm_end - vma->vm_start != PAGE_SIZE ||
	    !(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	if (vma->vm_flags & VM_WRITE)
		return -EACCES;
	channel = array_index_nospec(channel, adma_nr_channels);
	/* The child of a fork has requests of its own. */
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND,
		     VM_MAYWRITE | VM_MAYEXEC);
	vma->vm_pgoff = 0;
	ret = adma_words_get(&file->mem, channel);
	return ret ?: vm_insert_page(vma, vma->vm_start, file->words[channel].page);
}

static const struct file_operations adma_fops = {
	.owner = THIS_MODULE,
	.open = adma_file_open,
	.release = adma_file_release,
	.unlocked_ioctl = adma_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = adma_mmap,
};

static int adma_port_release(struct inode *inode, struct file *port)
{
	struct adma_exports *exports = port->private_data;

	adma_exports_close(exports, port);
	adma_mem_put(exports->mem);
	return 0;
}

static const struct file_operations adma_port_fops = {
	.owner = THIS_MODULE,
	.release = adma_port_release,
	.unlocked_ioctl = adma_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice adma_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "adma",
	.fops = &adma_fops,
	.groups = adma_stat_groups,
	.mode = 0640,
};

static int __init adma_init(void)
{
	int ret = -ENOMEM;

	adma_workqueue = alloc_workqueue("adma", WQ_UNBOUND, 0);
	if (!adma_workqueue)
		return ret;
	/* WQ_MEM_RECLAIM: these unpin the pages that memory may be short of. */
	adma_reapers = alloc_workqueue("adma_reaper",
				       WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	if (!adma_reapers)
		goto err_destroy_workqueue;
	ret = adma_channels_request();
	if (ret) {
		pr_err("no usable DMA_MEMCPY channel; is the driver (ioatdma, idxd) loaded? For idxd: a queue configured, and idxd=1?\n");
		goto err_destroy_reapers;
	}
	ret = adma_kept_init();
	if (ret)
		goto err_release_channels;
	ret = misc_register(&adma_device);
	if (ret)
		goto err_kept_exit;
	pr_info("%u channels\n", adma_nr_channels);
	return 0;

err_kept_exit:
	adma_kept_exit();
err_release_channels:
	adma_channels_release();
err_destroy_reapers:
	destroy_workqueue(adma_reapers);
err_destroy_workqueue:
	destroy_workqueue(adma_workqueue);
	return ret;
}

static void __exit adma_exit(void)
{
	misc_deregister(&adma_device);
	/*
	 * Nothing is pinned: adma_file_free() lets go of the module last. The works
	 * that called it may not have returned yet.
	 */
	flush_workqueue(adma_workqueue);
	flush_workqueue(adma_reapers);
	adma_kept_exit();
	adma_channels_release();
	destroy_workqueue(adma_reapers);
	destroy_workqueue(adma_workqueue);
}

module_init(adma_init);
module_exit(adma_exit);

MODULE_DESCRIPTION("Copies user memory with DMA channels");
MODULE_AUTHOR("The adma authors");
MODULE_LICENSE("GPL");
MODULE_SOFTDEP("pre: ioatdma");
