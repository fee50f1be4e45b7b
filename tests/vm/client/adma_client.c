// SPDX-License-Identifier: GPL-2.0
/*
 * A client of one DMA channel, to see what a fault of the engine looks like.
 *
 * Write "CHANNEL SIZE COUNT MS" to /sys/kernel/debug/adma_client: COUNT copies
 * of SIZE bytes are submitted at once, and MS milliseconds are waited for their
 * callbacks. Then read one word per question:
 *
 *   results=  per copy: N no error, R read failed, W write failed, A aborted,
 *             - no callback came
 *   data=     per copy: = all bytes are there, 0 none is, ! some are
 *   complete= 1 when the channel says that the last cookie is complete
 *
 * The channel is kept open until another one is named or a copy goes wrong: with
 * a debug kernel it takes seconds to open one.
 *
 * Write "ADDRESS MS" to /sys/kernel/debug/adma_client_lock: the page at that
 * address of the writer is locked for MS milliseconds, as a page is whose file
 * system waits for a server. The write returns after that.
 *
 * While the parameter refuse_longterm is 1, no page can be pinned for long, as
 * those of files cannot on kernels since 6.5.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pagemap.h>
#include <linux/slab.h>
#include <linux/wait.h>

#define MAX_COPIES 64

struct copy {
	dma_addr_t src, dst;
	char result;
};

static DEFINE_MUTEX(lock);
static DECLARE_WAIT_QUEUE_HEAD(answered);
static atomic_t open_answers;
static struct copy copies[MAX_COPIES];
static char report[2 * MAX_COPIES + 64];
static struct dma_chan *held;
static struct dentry *file, *lock_file;

static void callback(void *param, const struct dmaengine_result *result)
{
	static const char letters[] = {
		[DMA_TRANS_NOERROR] = 'N',
		[DMA_TRANS_READ_FAILED] = 'R',
		[DMA_TRANS_WRITE_FAILED] = 'W',
		[DMA_TRANS_ABORTED] = 'A',
	};
	struct copy *copy = param;

	copy->result = letters[result ? result->result : DMA_TRANS_NOERROR];
	if (atomic_dec_and_test(&open_answers))
		wake_up(&answered);
}

static void release(void)
{
	if (held)
		dma_release_channel(held);
	held = NULL;
}

static bool by_name(struct dma_chan *chan, void *name)
{
	return !strcmp(dma_chan_name(chan), name);
}

static u8 pattern(size_t i)
{
	return i * 7 + i / 251 + 1;
}

static char compare(const u8 *dst, size_t from, size_t size)
{
	size_t good = 0, i;

	for (i = from; i < from + size; i++)
		good += dst[i] == pattern(i);
	/* The destination was zero, which the pattern is at times. */
	return good == size ? '=' : good < size / 64 ? '0' : '!';
}

static int submit(struct dma_chan *chan, struct copy *copy, size_t size, dma_cookie_t *cookie)
{
	struct dma_async_tx_descriptor *tx;

	copy->result = '-';
	tx = dmaengine_prep_dma_memcpy(chan, copy->dst, copy->src, size,
				       DMA_PREP_INTERRUPT | DMA_CTRL_ACK);
	if (!tx)
		return -EBUSY;
	tx->callback_result = callback;
	tx->callback_param = copy;
	*cookie = dmaengine_submit(tx);
	return dma_submit_error(*cookie);
}

static bool all_good(unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (copies[i].result != 'N')
			return false;
	return true;
}

static int run(u8 *src, u8 *dst, size_t size, unsigned int count, unsigned int ms)
{
	struct device *dev = held->device->dev;
	size_t all = size * count, i;
	dma_addr_t from, to;
	dma_cookie_t cookie = 0;
	bool complete;
	int ret = 0, at;

	for (i = 0; i < all; i++)
		src[i] = pattern(i);
	from = dma_map_single(dev, src, all, DMA_TO_DEVICE);
	if (dma_mapping_error(dev, from))
		return -ENOMEM;
	to = dma_map_single(dev, dst, all, DMA_FROM_DEVICE);
	if (dma_mapping_error(dev, to)) {
		dma_unmap_single(dev, from, all, DMA_TO_DEVICE);
		return -ENOMEM;
	}
	atomic_set(&open_answers, count);
	for (i = 0; i < count && !ret; i++) {
		copies[i].src = from + i * size;
		copies[i].dst = to + i * size;
		ret = submit(held, &copies[i], size, &cookie);
	}
	dma_async_issue_pending(held);
	wait_event_timeout(answered, !atomic_read(&open_answers), msecs_to_jiffies(ms));
	complete = dma_async_is_tx_complete(held, cookie, NULL, NULL) == DMA_COMPLETE;
	/* Releasing resets the channel: after this nothing is written. */
	if (ret || !all_good(count))
		release();
	dma_unmap_single(dev, to, all, DMA_FROM_DEVICE);
	dma_unmap_single(dev, from, all, DMA_TO_DEVICE);
	if (ret)
		return ret;

	at = scnprintf(report, sizeof(report), "results=");
	for (i = 0; i < count; i++)
		report[at++] = copies[i].result;
	at += scnprintf(report + at, sizeof(report) - at, " data=");
	for (i = 0; i < count; i++)
		report[at++] = compare(dst, i * size, size);
	scnprintf(report + at, sizeof(report) - at, " complete=%d\n", complete);
	return 0;
}

static ssize_t client_write(struct file *f, const char __user *text, size_t len, loff_t *pos)
{
	unsigned int size, count, ms;
	char line[80], name[32];
	dma_cap_mask_t mask;
	u8 *src, *dst;
	int ret;

	ret = simple_write_to_buffer(line, sizeof(line) - 1, pos, text, len);
	if (ret < 0)
		return ret;
	line[ret] = 0;
	if (sscanf(line, "%31s %u %u %u", name, &size, &count, &ms) != 4 || !size ||
	    size > SZ_1M || !count || count > MAX_COPIES || size * count > SZ_4M)
		return -EINVAL;
	mutex_lock(&lock);
	src = kzalloc(size * count, GFP_KERNEL);
	dst = kzalloc(size * count, GFP_KERNEL);
	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	if (held && !by_name(held, name))
		release();
	if (!held)
		held = dma_request_channel(mask, by_name, name);
	if (!held)
		ret = -ENODEV;
	else if (src && dst)
		ret = run(src, dst, size, count, ms);
	else
		ret = -ENOMEM;
	kfree(src);
	kfree(dst);
	mutex_unlock(&lock);
	return ret < 0 ? ret : len;
}

static ssize_t client_read(struct file *f, char __user *to, size_t len, loff_t *pos)
{
	return simple_read_from_buffer(to, len, pos, report, strlen(report));
}

static const struct file_operations client_fops = {
	.owner = THIS_MODULE,
	.open = simple_open,
	.read = client_read,
	.write = client_write,
};

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
	file = debugfs_create_file("adma_client", 0600, NULL, NULL, &client_fops);
	if (IS_ERR(file))
		return PTR_ERR(file);
	lock_file = debugfs_create_file("adma_client_lock", 0600, NULL, NULL, &lock_fops);
	if (register_kprobe(&pin_probe))
		pr_info("adma_client: pins cannot be refused here\n");
	return 0;
}
module_init(client_init);

static void __exit client_exit(void)
{
	unregister_kprobe(&pin_probe);
	debugfs_remove(lock_file);
	debugfs_remove(file);
	release();
}
module_exit(client_exit);

MODULE_DESCRIPTION("Copies over one DMA channel and tells how each copy ended");
MODULE_LICENSE("GPL");
