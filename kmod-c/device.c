// SPDX-License-Identifier: GPL-2.0
/* /dev/adma: the module, the file and its calls. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
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

/* For the ends of requests; they are short. */
struct workqueue_struct *adma_workqueue;

static int adma_open(struct inode *inode, struct file *filp)
{
	struct adma_file *file = adma_file_new();

	if (IS_ERR(file))
		return PTR_ERR(file);
	filp->private_data = file;
	return nonseekable_open(inode, filp);
}

static int adma_release(struct inode *inode, struct file *filp)
{
	struct adma_file *file = filp->private_data;

	adma_file_drain(file);
	adma_file_put(file);
	return 0;
}

static u64 adma_file_count(struct adma_file *file, enum adma_stat what)
{
	return atomic64_read(&file->counts[what - ADMA_STAT_HITS]);
}

/*
 * A structure of this version or a newer one: what a newer caller asks for and
 * we do not know is refused, not passed over. Each begins with size and flags.
 */
int adma_read(void *arg, size_t known, u32 flags, void __user *user)
{
	struct adma_head {
		u32 size;
		u32 flags;
	} *head = arg;
	u32 size;
	int ret;

	if (get_user(size, (u32 __user *)user))
		return -EFAULT;
	if (size < known)
		return -EINVAL;
	if (size > PAGE_SIZE)
		return -E2BIG;
	ret = copy_struct_from_user(arg, known, user, size);
	if (ret)
		return ret;
	return head->flags & ~flags ? -EOPNOTSUPP : 0;
}

int adma_write(void __user *user, const void *arg, size_t known)
{
	return copy_to_user(user, arg, known) ? -EFAULT : 0;
}

static int adma_ioctl_info(struct adma_file *file, void __user *user)
{
	struct adma_info arg;
	int ret;

	ret = adma_read(&arg, sizeof(arg), 0, user);
	if (ret)
		return ret;
	if (arg.reserved)
		return -EINVAL;
	arg.abi = ADMA_ABI_VERSION;
	arg.features = ADMA_FEATURE_WORDS | ADMA_FEATURE_EXPORTS |
		       (adma_several_nodes ? ADMA_FEATURE_NODES : 0);
	arg.channels = adma_nr_channels;
	arg.usable = adma_channels_usable();
	arg.src_align = adma_channels_align();
	arg.max_bytes = adma_max_bytes;
	arg.max_pages = adma_max_pages;
	arg.keep_pages = READ_ONCE(file->keep_pages);
	arg.pages = READ_ONCE(file->pages);
	arg.hits = adma_file_count(file, ADMA_STAT_HITS);
	arg.misses = adma_file_count(file, ADMA_STAT_MISSES);
	arg.evictions = adma_file_count(file, ADMA_STAT_EVICTIONS);
	arg.invalidations = adma_file_count(file, ADMA_STAT_INVALIDATIONS);
	return adma_write(user, &arg, sizeof(arg));
}

static int adma_ioctl_submit(struct adma_file *file, void __user *user)
{
	struct adma_submit arg;
	int ret;

	ret = adma_read(&arg, sizeof(arg), ADMA_SUBMIT_PULL | ADMA_SUBMIT_PUSH,
			user);
	if (ret)
		return ret;
	arg = (struct adma_submit) {
		.size = arg.size,
		.flags = arg.flags,
		.pieces = arg.pieces,
		.count = arg.count,
		.port = arg.port,
		.export = arg.export,
	};
	ret = adma_submit(file, &arg);
	/* Also with an error: it names how far it got. */
	if (adma_write(user, &arg, sizeof(arg)))
		return -EFAULT;
	return ret;
}

static int adma_ioctl_wait(struct adma_file *file, void __user *user)
{
	struct adma_wait arg;
	int ret;

	ret = adma_read(&arg, sizeof(arg), 0, user);
	if (ret)
		return ret;
	ret = adma_wait(file, &arg);
	if (ret)
		return ret;
	return adma_write(user, &arg, sizeof(arg));
}

static int adma_ioctl_keep(struct adma_file *file, void __user *user)
{
	struct adma_keep arg;
	int ret;

	ret = adma_read(&arg, sizeof(arg), 0, user);
	if (ret)
		return ret;
	WRITE_ONCE(file->keep_pages, min_t(u64, arg.pages, adma_keep_pages));
	adma_ranges_trim(file);
	return 0;
}

static long adma_ioctl(struct file *filp, unsigned int cmd, unsigned long user)
{
	struct adma_file *file = filp->private_data;

	if (current->mm != file->mm)
		return -EPERM;
	switch (cmd) {
	case ADMA_IOC_INFO:
		return adma_ioctl_info(file, (void __user *)user);
	case ADMA_IOC_SUBMIT:
		return adma_ioctl_submit(file, (void __user *)user);
	case ADMA_IOC_WAIT:
		return adma_ioctl_wait(file, (void __user *)user);
	case ADMA_IOC_KEEP:
		return adma_ioctl_keep(file, (void __user *)user);
	case ADMA_IOC_PORT:
		return adma_ioctl_port(file, (void __user *)user);
	default:
		return -ENOTTY;
	}
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
	/* The child of a fork has requests of its own. */
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND,
		     VM_MAYWRITE | VM_MAYEXEC);
	vma->vm_pgoff = 0;
	return dma_mmap_coherent(adma_channels[channel].dev, vma,
				 file->words[channel].page,
				 file->words[channel].dma, PAGE_SIZE);
}

static const struct file_operations adma_fops = {
	.owner = THIS_MODULE,
	.open = adma_open,
	.release = adma_release,
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

static int __init adma_init(void)
{
	int ret;

	adma_workqueue = alloc_workqueue("adma", WQ_UNBOUND, 0);
	if (!adma_workqueue)
		return -ENOMEM;
	ret = adma_channels_request(adma_most_channels, adma_node);
	if (ret) {
		pr_err("no usable DMA_MEMCPY channel; is the engine's driver (ioatdma) loaded?\n");
		goto err_destroy_workqueue;
	}
	ret = adma_range_init();
	if (ret)
		goto err_release_channels;
	ret = adma_kept_init();
	if (ret)
		goto err_range_exit;
	adma_stats_init();
	ret = misc_register(&adma_device);
	if (ret)
		goto err_stats_exit;
	pr_info("%u channels\n", adma_nr_channels);
	return 0;

err_stats_exit:
	adma_stats_exit();
	adma_kept_stop();
	adma_kept_exit();
err_range_exit:
	adma_range_exit();
err_release_channels:
	adma_channels_release();
err_destroy_workqueue:
	destroy_workqueue(adma_workqueue);
	return ret;
}

static void __exit adma_exit(void)
{
	misc_deregister(&adma_device);
	adma_stats_exit();
	/*
	 * No file is open, but the end of its last request may still run, and
	 * the end of its last range after that.
	 */
	adma_kept_stop();
	flush_workqueue(adma_workqueue);
	adma_range_exit();
	adma_kept_exit();
	adma_channels_release();
	destroy_workqueue(adma_workqueue);
}

module_init(adma_init);
module_exit(adma_exit);

MODULE_DESCRIPTION("Copies user memory with DMA channels");
MODULE_AUTHOR("The adma authors");
MODULE_LICENSE("GPL");
MODULE_SOFTDEP("pre: ioatdma");
