// SPDX-License-Identifier: GPL-2.0
/*
 * Makes the kernel refuse or delay what tests cannot otherwise provoke.
 *
 * Write "ADDRESS MS" to /sys/kernel/debug/adma_client_lock: the page at that
 * address of the writer is locked for MS milliseconds, as a page is whose file
 * system waits for a server. The write returns after that.
 *
 * A write to /sys/kernel/debug/adma_client_open opens /dev/adma in a kernel thread,
 * which has no memory map, and returns what the open returned.
 *
 * While the parameter refuse_longterm is 1, no page can be pinned for long, as
 * those of files cannot on kernels since 6.5. Needs kprobes.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/file.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/namei.h>
#include <linux/pagemap.h>
#include <linux/workqueue.h>

static struct dentry *lock_file, *open_file;

static ssize_t lock_write(struct file *f, const char __user *text, size_t len, loff_t *pos)
{
	unsigned long address;
	struct page *page;
	unsigned int ms;
	char line[40];
	int ret;

	ret = simple_write_to_buffer(line, sizeof(line) - 1, pos, text, len);
	if (ret < 0)
		return ret;
	line[ret] = 0;
	if (sscanf(line, "%lu %u", &address, &ms) != 2)
		return -EINVAL;
	ret = get_user_pages_fast(address, 1, 0, &page);
	if (ret != 1)
		return ret < 0 ? ret : -EFAULT;
	lock_page(page);
	msleep_interruptible(ms);
	unlock_page(page);
	put_page(page);
	return len;
}

static const struct file_operations lock_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = lock_write,
};

struct opening {
	struct work_struct work;
	struct path path;
	int ret;
};

static void open_work(struct work_struct *work)
{
	struct opening *opening = container_of(work, struct opening, work);
	struct file *file = dentry_open(&opening->path, O_RDWR, current_cred());

	opening->ret = PTR_ERR_OR_ZERO(file);
	if (!opening->ret)
		fput(file);
}

static ssize_t open_write(struct file *f, const char __user *text, size_t len, loff_t *pos)
{
	struct opening opening;
	int ret = kern_path("/dev/adma", LOOKUP_FOLLOW, &opening.path);

	if (ret)
		return ret;
	INIT_WORK_ONSTACK(&opening.work, open_work);
	schedule_work(&opening.work);
	flush_work(&opening.work);
	destroy_work_on_stack(&opening.work);
	path_put(&opening.path);
	return opening.ret ?: len;
}

static const struct file_operations open_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.write = open_write,
};

static bool refuse_longterm;
module_param(refuse_longterm, bool, 0600);
MODULE_PARM_DESC(refuse_longterm, "no page can be pinned for long");

/* pin_user_pages_fast(start, nr_pages, gup_flags, pages): there is nothing at 0. */
static int before_pin(struct kprobe *probe, struct pt_regs *regs)
{
	if (refuse_longterm && regs->dx & FOLL_LONGTERM)
		regs->di = 0;
	return 0;
}

static struct kprobe pin_probe = {
	.symbol_name = "pin_user_pages_fast",
	.pre_handler = before_pin,
};

static int __init client_init(void)
{
	lock_file = debugfs_create_file("adma_client_lock", 0600, NULL, NULL, &lock_fops);
	open_file = debugfs_create_file("adma_client_open", 0600, NULL, NULL, &open_fops);
	if (register_kprobe(&pin_probe))
		pr_info("adma_client: pins cannot be refused here\n");
	return 0;
}
module_init(client_init);

static void __exit client_exit(void)
{
	unregister_kprobe(&pin_probe);
	debugfs_remove(lock_file);
	debugfs_remove(open_file);
}
module_exit(client_exit);

MODULE_DESCRIPTION("Locks pages, refuses pins and opens the device for tests of adma.ko");
MODULE_LICENSE("GPL");
