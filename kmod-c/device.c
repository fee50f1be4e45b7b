// SPDX-License-Identifier: GPL-2.0
/* /dev/adma: the module, and the calls of a file. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/uaccess.h>

#include "adma.h"
#include "compat.h"

static unsigned int adma_most_channels;
module_param_named(channels, adma_most_channels, uint, 0444);
MODULE_PARM_DESC(channels, "channels to hold at most; 0: all (default)");

static int adma_node = NUMA_NO_NODE;
module_param_named(node, adma_node, int, 0444);
MODULE_PARM_DESC(node, "only channels of this NUMA node; -1: any (default)");

unsigned int adma_timeout_ms = 1000;
module_param_named(timeout_ms, adma_timeout_ms, uint, 0644);
MODULE_PARM_DESC(timeout_ms, "a channel that is silent for so long is put aside (default 1000)");

unsigned long adma_max_bytes = 64UL << 20;
module_param_named(max_bytes, adma_max_bytes, ulong, 0644);
MODULE_PARM_DESC(max_bytes, "bytes under way of one user at most (default 64 MiB)");

unsigned long adma_depth = 16UL << 20;
module_param_named(depth, adma_depth, ulong, 0644);
MODULE_PARM_DESC(depth, "bytes queued on one channel at most (default 16 MiB)");

unsigned long adma_max_pages = 2 * ((64UL << 20) / PAGE_SIZE + ADMA_MAX_PIECES);
module_param_named(max_pages, adma_max_pages, ulong, 0644);
MODULE_PARM_DESC(max_pages, "pages pinned for one open file at most (default: enough for 64 MiB)");

unsigned long adma_keep_pages = (64UL << 20) / PAGE_SIZE;
module_param_named(keep_pages, adma_keep_pages, ulong, 0644);
MODULE_PARM_DESC(keep_pages, "pages that stay pinned between copies, for each open file (default 64 MiB)");

unsigned long adma_max_files = 1024;
module_param_named(files, adma_max_files, ulong, 0644);
MODULE_PARM_DESC(files, "open files of one user at most (default 1024)");

struct workqueue_struct *adma_workqueue;	/* ends of requests, watches */
struct workqueue_struct *adma_reaper;	/* ends of ranges; may wait long */

static int adma_info(struct adma_file *file, struct adma_info *arg)
{
	if (arg->reserved)
		return -EINVAL;
	if (arg->flags & ADMA_INFO_KEEP) {
		WRITE_ONCE(file->keep_pages,
			   min_t(u64, arg->keep_pages, adma_keep_pages));
		/* Nothing: before a fork, which copies pinned pages apart. */
		if (!arg->keep_pages) {
			adma_ranges_drop(file);
			adma_file_catch_up(file, READ_ONCE(file->sequence));
		}
		adma_ranges_trim(file);
	}
	*arg = (struct adma_info) {
		.size = arg->size,
		.flags = arg->flags,
		.abi = ADMA_ABI_VERSION,
		.features = ADMA_FEATURE_WORDS | ADMA_FEATURE_EXPORTS |
			    (adma_several_nodes ? ADMA_FEATURE_NODES : 0),
		.channels = adma_nr_channels,
		.usable = adma_channels_usable(),
		.src_align = adma_align,
		.max_bytes = adma_max_bytes,
		.max_pages = adma_max_pages,
		.keep_pages = READ_ONCE(file->keep_pages),
		.pages = atomic_long_read(&file->pages),
		.hits = atomic64_read(&file->counts[ADMA_STAT_HITS]),
		.misses = atomic64_read(&file->counts[ADMA_STAT_MISSES]),
		.evictions = atomic64_read(&file->counts[ADMA_STAT_EVICTIONS]),
		.invalidations = atomic64_read(&file->counts[ADMA_STAT_INVALIDATIONS]),
	};
	return 0;
}

/* What each call takes, which flags it knows, and whether it is one of a port. */
static const struct {
	unsigned int size;
	u32 flags;
	bool port;
} adma_calls[] = {
	[_IOC_NR(ADMA_IOC_INFO)] = { sizeof(struct adma_info), ADMA_INFO_KEEP },
	[_IOC_NR(ADMA_IOC_SUBMIT)] = { sizeof(struct adma_submit),
				       ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH },
	[_IOC_NR(ADMA_IOC_WAIT)] = { sizeof(struct adma_wait) },
	[_IOC_NR(ADMA_IOC_PORT)] = { 0 },
	[_IOC_NR(ADMA_IOC_EXPORT)] = { sizeof(struct adma_export),
				       ADMA_EXPORT_READ | ADMA_EXPORT_WRITE,
				       true },
	[_IOC_NR(ADMA_IOC_UNEXPORT)] = { sizeof(struct adma_wait), 0, true },
};

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
 * A structure of this version or a newer one: what a newer caller asks for and
 * we do not know is refused, not passed over.
 */
static int adma_arg_read(union adma_arg *arg, unsigned int nr, void __user *user)
{
	u32 size;
	int ret;

	if (get_user(size, (u32 __user *)user))
		return -EFAULT;
	if (size < adma_calls[nr].size)
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	ret = copy_struct_from_user(arg, adma_calls[nr].size, user, size);
	if (ret)
		return ret;
	return arg->flags & ~adma_calls[nr].flags ? -EOPNOTSUPP : 0;
}

/* Of /dev/adma and of ports. */
long adma_ioctl(struct file *filp, unsigned int cmd, unsigned long user)
{
	bool port = filp->f_op == &adma_port_fops;
	struct adma_file *file = filp->private_data;
	unsigned int nr = _IOC_NR(cmd);
	union adma_arg arg;
	int ret;

	if (current->mm != file->mm)
		return -EPERM;
	if (nr >= ARRAY_SIZE(adma_calls) || cmd != _IO(ADMA_IOC_TYPE, nr))
		return -ENOTTY;
	nr = array_index_nospec(nr, ARRAY_SIZE(adma_calls));
	if (adma_calls[nr].port != port)
		return -ENOTTY;
	if (cmd == ADMA_IOC_PORT)
		return user ? -EINVAL : adma_port(file);
	ret = adma_arg_read(&arg, nr, (void __user *)user);
	if (ret)
		return ret;
	switch (cmd) {
	case ADMA_IOC_INFO:
		ret = adma_info(file, &arg.info);
		break;
	case ADMA_IOC_SUBMIT:
		ret = adma_submit(filp, &arg.submit);
		break;
	case ADMA_IOC_WAIT:
		ret = adma_wait_until(filp, &arg.wait, adma_ended);
		break;
	case ADMA_IOC_EXPORT:
		ret = adma_export(filp, &arg.export);
		break;
	case ADMA_IOC_UNEXPORT:
		ret = adma_unexport(filp, &arg.wait);
		break;
	}
	/* Also with an error: it may name how far it got. */
	if (copy_to_user((void __user *)user, &arg, adma_calls[nr].size)) {
		/* Nobody would know its number. */
		if (cmd == ADMA_IOC_EXPORT && !ret) {
			arg.wait = (struct adma_wait) { .id = arg.export.id };
			adma_unexport(filp, &arg.wait);
		}
		ret = -EFAULT;
	}
	return ret;
}

/* The words of one channel, to look at only. */
static int adma_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct adma_file *file = filp->private_data;
	unsigned long channel = vma->vm_pgoff;

	if (current->mm != file->mm)
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
	return vm_insert_page(vma, vma->vm_start, file->words[channel].page);
}

static const struct file_operations adma_fops = {
	.owner = THIS_MODULE,
	.open = adma_file_open,
	.release = adma_file_release,
	.unlocked_ioctl = adma_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = adma_mmap,
};

static struct miscdevice adma_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "adma",
	.fops = &adma_fops,
	.groups = adma_stat_groups,
	.mode = 0640,
};

/* In the reverse order. */
static void adma_cleanup(void)
{
	adma_stats_exit();
	/*
	 * No file is open, but the end of its last request may still run, and
	 * the end of its last range after that.
	 */
	flush_workqueue(adma_workqueue);
	flush_workqueue(adma_reaper);
	adma_kept_exit();
	adma_channels_release();
	destroy_workqueue(adma_reaper);
	destroy_workqueue(adma_workqueue);
}

static int __init adma_init(void)
{
	int ret = -ENOMEM;

	adma_workqueue = alloc_workqueue("adma", WQ_UNBOUND, 0);
	if (!adma_workqueue)
		return ret;
	/* Memory may be short because of the pages that it lets go. */
	adma_reaper = alloc_workqueue("adma_reaper",
				      WQ_UNBOUND | WQ_MEM_RECLAIM, 0);
	if (!adma_reaper)
		goto err_destroy_workqueue;
	ret = adma_channels_request(adma_most_channels, adma_node);
	if (ret) {
		pr_err("no usable DMA_MEMCPY channel; is the engine's driver (ioatdma) loaded?\n");
		goto err_destroy_reaper;
	}
	ret = adma_kept_init();
	if (ret)
		goto err_release_channels;
	adma_stats_init();
	ret = misc_register(&adma_device);
	if (ret)
		adma_cleanup();
	else
		pr_info("%u channels\n", adma_nr_channels);
	return ret;

err_release_channels:
	adma_channels_release();
err_destroy_reaper:
	destroy_workqueue(adma_reaper);
err_destroy_workqueue:
	destroy_workqueue(adma_workqueue);
	return ret;
}

static void __exit adma_exit(void)
{
	misc_deregister(&adma_device);
	adma_cleanup();
}

module_init(adma_init);
module_exit(adma_exit);

MODULE_DESCRIPTION("Copies user memory with DMA channels");
MODULE_AUTHOR("The adma authors");
MODULE_LICENSE("GPL");
MODULE_SOFTDEP("pre: ioatdma");
