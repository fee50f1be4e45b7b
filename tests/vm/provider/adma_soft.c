// SPDX-License-Identifier: GPL-2.0
/*
 * A dmaengine provider without an engine: the processor copies.
 *
 * For machines whose QEMU cannot carry the emulated I/OAT device. A client sees channels with
 * DMA_MEMCPY and DMA_PRIVATE, as ioatdma's are; callbacks come from a worker, or from tx_status,
 * as there. It has two faults: a ring of few places, which is full while the channels are
 * paused, and a channel that takes nothing at all, as ioatdma's during a reset. Like old I/OAT
 * engines it needs both sides aligned.
 *
 * With pci=1 its device is QEMU's pci-testdev, which may be behind an IOMMU: addresses are then
 * translated as the IOMMU would, and one that is not mapped fails.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/platform_device.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#define MAX_CHANNELS 8

static unsigned int channels = 4;
module_param(channels, uint, 0444);
MODULE_PARM_DESC(channels, "how many channels there are");

static char *name = "ioatdma";
module_param(name, charp, 0444);
MODULE_PARM_DESC(name, "the driver that it says it is");

static bool no_order;
module_param(no_order, bool, 0444);
MODULE_PARM_DESC(no_order, "it says so, and keeps it all the same");

static bool pci;
module_param(pci, bool, 0444);
MODULE_PARM_DESC(pci, "the device is QEMU's pci-testdev");

static unsigned int ring;
module_param(ring, uint, 0644);
MODULE_PARM_DESC(ring, "transfers a channel has room for; 0: any number (default)");

static bool rest;
module_param(rest, bool, 0644);
MODULE_PARM_DESC(rest, "the channels take transfers and do not carry them out");

static unsigned int closed;
module_param(closed, uint, 0644);
MODULE_PARM_DESC(closed, "mask of channels that take no transfer");

struct soft_desc {
	struct dma_async_tx_descriptor tx;
	struct list_head node;
	dma_addr_t dst, src;
	size_t len;
	bool failed;
};

struct soft_chan {
	struct dma_chan chan;
	spinlock_t lock; /* the lists and the cookies */
	struct list_head submitted, issued;
	struct work_struct work;
	atomic_t used; /* places of the ring */
};

static struct soft_chan soft_chans[MAX_CHANNELS];
static struct dma_device soft_dma;
static struct platform_device *soft_pdev;
static struct workqueue_struct *soft_workers;

static struct soft_chan *to_soft(struct dma_chan *chan)
{
	return container_of(chan, struct soft_chan, chan);
}

/* Returns the memory at an address of the device, and shortens @len to its page, or NULL. */
static void *soft_memory(dma_addr_t addr, size_t *len)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(soft_dma.dev);
	phys_addr_t phys = addr;

	if (domain) {
		phys = iommu_iova_to_phys(domain, addr);
		*len = min_t(size_t, *len, PAGE_SIZE - offset_in_page(addr));
	}
	return phys ? phys_to_virt(phys) : NULL;
}

static bool soft_copy(const struct soft_desc *desc)
{
	size_t at, len;

	for (at = 0; at < desc->len; at += len) {
		void *dst, *src;

		len = desc->len - at;
		dst = soft_memory(desc->dst + at, &len);
		src = soft_memory(desc->src + at, &len);
		if (WARN_ONCE(!dst || !src, "adma_soft: an address is not mapped\n"))
			return false;
		memcpy(dst, src, len);
	}
	return true;
}

/* Copies everything that was issued. Callbacks come in order, and without our lock. */
static void soft_progress(struct soft_chan *sc)
{
	struct dmaengine_result result = { .result = DMA_TRANS_NOERROR };
	struct soft_desc *desc, *next;
	LIST_HEAD(done);

	spin_lock_bh(&sc->lock);
	/* Under the lock: who looked before may be late, and find what came since. */
	if (READ_ONCE(rest)) {
		spin_unlock_bh(&sc->lock);
		return;
	}
	list_for_each_entry(desc, &sc->issued, node) {
		desc->failed = !soft_copy(desc);
		sc->chan.completed_cookie = desc->tx.cookie;
		desc->tx.cookie = 0;
	}
	list_splice_init(&sc->issued, &done);
	spin_unlock_bh(&sc->lock);

	list_for_each_entry_safe(desc, next, &done, node) {
		result.result = desc->failed ? DMA_TRANS_WRITE_FAILED : DMA_TRANS_NOERROR;
		dma_descriptor_unmap(&desc->tx);
		/* Before the callback, whose client may submit again at once. */
		atomic_dec(&sc->used);
		if (desc->tx.callback_result)
			desc->tx.callback_result(desc->tx.callback_param, &result);
		else if (desc->tx.callback)
			desc->tx.callback(desc->tx.callback_param);
		kfree(desc);
	}
}

static void soft_work(struct work_struct *work)
{
	soft_progress(container_of(work, struct soft_chan, work));
}

static dma_cookie_t soft_submit(struct dma_async_tx_descriptor *tx)
{
	struct soft_desc *desc = container_of(tx, struct soft_desc, tx);
	struct soft_chan *sc = to_soft(tx->chan);
	dma_cookie_t cookie;

	spin_lock_bh(&sc->lock);
	cookie = sc->chan.cookie + 1;
	if (cookie < DMA_MIN_COOKIE)
		cookie = DMA_MIN_COOKIE;
	tx->cookie = cookie;
	sc->chan.cookie = cookie;
	list_add_tail(&desc->node, &sc->submitted);
	spin_unlock_bh(&sc->lock);
	return cookie;
}

static struct dma_async_tx_descriptor *soft_prep(struct dma_chan *chan, dma_addr_t dst,
						 dma_addr_t src, size_t len, unsigned long flags)
{
	unsigned int places = READ_ONCE(ring);
	struct soft_chan *sc = to_soft(chan);
	struct soft_desc *desc;

	if (!IS_ALIGNED(dst | src | len, 8))
		return NULL;
	if (READ_ONCE(closed) & BIT(sc - soft_chans) ||
	    (places && atomic_read(&sc->used) >= places))
		return NULL;
	desc = kzalloc(sizeof(*desc), GFP_NOWAIT);
	if (!desc)
		return NULL;
	atomic_inc(&sc->used);
	dma_async_tx_descriptor_init(&desc->tx, chan);
	desc->tx.tx_submit = soft_submit;
	desc->tx.flags = flags;
	desc->dst = dst;
	desc->src = src;
	desc->len = len;
	return &desc->tx;
}

static void soft_issue(struct dma_chan *chan)
{
	struct soft_chan *sc = to_soft(chan);

	spin_lock_bh(&sc->lock);
	list_splice_tail_init(&sc->submitted, &sc->issued);
	spin_unlock_bh(&sc->lock);
	queue_work(soft_workers, &sc->work);
}

/* A client that polls must not wait for the worker. */
static enum dma_status soft_status(struct dma_chan *chan, dma_cookie_t cookie,
				   struct dma_tx_state *state)
{
	struct soft_chan *sc = to_soft(chan);
	dma_cookie_t used, completed;

	soft_progress(sc);
	spin_lock_bh(&sc->lock);
	used = chan->cookie;
	completed = chan->completed_cookie;
	spin_unlock_bh(&sc->lock);
	dma_set_tx_state(state, completed, used, 0);
	return dma_async_is_complete(cookie, completed, used);
}

static int soft_alloc(struct dma_chan *chan)
{
	chan->cookie = DMA_MIN_COOKIE;
	chan->completed_cookie = DMA_MIN_COOKIE;
	return 1;
}

static void soft_free(struct dma_chan *chan)
{
	struct soft_chan *sc = to_soft(chan);
	struct soft_desc *desc, *next;

	cancel_work_sync(&sc->work);
	list_splice_tail_init(&sc->issued, &sc->submitted);
	list_for_each_entry_safe(desc, next, &sc->submitted, node)
		kfree(desc);
	INIT_LIST_HEAD(&sc->submitted);
	atomic_set(&sc->used, 0);
}

static int soft_register(struct device *dev)
{
	struct dma_device *dma = &soft_dma;
	unsigned int i;
	int ret;

	ret = dma_coerce_mask_and_coherent(dev, DMA_BIT_MASK(64));
	if (ret)
		return ret;
	dma_cap_set(DMA_MEMCPY, dma->cap_mask);
	dma_cap_set(DMA_PRIVATE, dma->cap_mask);
	if (no_order)
		dma_cap_set(DMA_COMPLETION_NO_ORDER, dma->cap_mask);
	dma->copy_align = DMAENGINE_ALIGN_8_BYTES;
	dma->dev = dev;
	dma->device_alloc_chan_resources = soft_alloc;
	dma->device_free_chan_resources = soft_free;
	dma->device_prep_dma_memcpy = soft_prep;
	dma->device_issue_pending = soft_issue;
	dma->device_tx_status = soft_status;
	INIT_LIST_HEAD(&dma->channels);
	for (i = 0; i < channels; i++) {
		struct soft_chan *sc = &soft_chans[i];

		spin_lock_init(&sc->lock);
		INIT_LIST_HEAD(&sc->submitted);
		INIT_LIST_HEAD(&sc->issued);
		INIT_WORK(&sc->work, soft_work);
		sc->chan.device = dma;
		list_add_tail(&sc->chan.device_node, &dma->channels);
	}
	return dma_async_device_register(dma);
}

static int soft_probe(struct platform_device *pdev)
{
	return soft_register(&pdev->dev);
}

static struct platform_driver soft_driver;

static int soft_pci_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int ret = pcim_enable_device(pdev);

	if (ret)
		return ret;
	pci_set_master(pdev);
	return soft_register(&pdev->dev);
}

static void soft_pci_remove(struct pci_dev *pdev)
{
	dma_async_device_unregister(&soft_dma);
}

static const struct pci_device_id soft_pci_ids[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_REDHAT, 0x0005) },
	{ }
};

static struct pci_driver soft_pci_driver = {
	.id_table = soft_pci_ids,
	.probe = soft_pci_probe,
	.remove = soft_pci_remove,
};

static int __init soft_init(void)
{
	int ret;

	if (!channels || channels > MAX_CHANNELS)
		return -EINVAL;
	soft_workers = alloc_workqueue("adma_soft", WQ_UNBOUND, 0);
	if (!soft_workers)
		return -ENOMEM;
	if (pci) {
		soft_pci_driver.name = name;
		ret = pci_register_driver(&soft_pci_driver);
		if (ret)
			destroy_workqueue(soft_workers);
		return ret;
	}
	soft_driver.driver.name = name;
	soft_pdev = platform_create_bundle(&soft_driver, soft_probe, NULL, 0, NULL, 0);
	if (IS_ERR(soft_pdev))
		destroy_workqueue(soft_workers);
	return PTR_ERR_OR_ZERO(soft_pdev);
}
module_init(soft_init);

static void __exit soft_exit(void)
{
	if (pci) {
		pci_unregister_driver(&soft_pci_driver);
	} else {
		dma_async_device_unregister(&soft_dma);
		platform_device_unregister(soft_pdev);
		platform_driver_unregister(&soft_driver);
	}
	destroy_workqueue(soft_workers);
}
module_exit(soft_exit);

MODULE_DESCRIPTION("DMA channels on which the processor copies, for tests");
MODULE_LICENSE("GPL");
