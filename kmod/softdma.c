// SPDX-License-Identifier: GPL-2.0
/*
 * softdma: a dmaengine provider whose channels are threads that copy with the
 * CPU. It exists to test clients, so its faults are parameters.
 *
 * It is never to be mistaken for hardware: records carry its name, and the
 * client marks its channels as software.
 */
#include <linux/delay.h>
#include <linux/dma-direct.h>
#include <linux/dma-mapping.h>
#include <linux/dmaengine.h>
#include <linux/kthread.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/slab.h>

#include "compat.h"

#define MAX_CHANNELS 32
/* Failed cookies that a channel remembers for those who poll. */
#define REMEMBERED 64

static unsigned int channels = 4;
module_param(channels, uint, 0444);
MODULE_PARM_DESC(channels, "number of channels (4)");
/* Descriptors of a channel, which are one allocation. */
#define MAX_POOL 4096

static unsigned int pool = 64;
module_param(pool, uint, 0444);
MODULE_PARM_DESC(pool, "descriptors of a channel; when they are used up, preparing gives none (64)");
static bool unordered;
module_param(unordered, bool, 0444);
MODULE_PARM_DESC(unordered, "complete the newest descriptor first, and say so (N)");
static bool pausing;
module_param(pausing, bool, 0444);
MODULE_PARM_DESC(pausing, "offer pause and resume (N)");
static bool terminating = true;
module_param(terminating, bool, 0444);
MODULE_PARM_DESC(terminating, "offer to terminate; without, a late engine cannot be stopped (Y)");
static int cpu = -1;
module_param(cpu, int, 0444);
MODULE_PARM_DESC(cpu, "bind the threads to this CPU (-1: free)");

/* Faults; each counts descriptors of a channel, 0 is off. Changeable at run time. */
static unsigned int fail_every;
module_param(fail_every, uint, 0644);
MODULE_PARM_DESC(fail_every, "every so many descriptors end with an error");
static unsigned int flip_every;
module_param(flip_every, uint, 0644);
MODULE_PARM_DESC(flip_every, "in every so many descriptors one bit is wrong");
static unsigned int lose_every;
module_param(lose_every, uint, 0644);
MODULE_PARM_DESC(lose_every, "every so many descriptors never complete");
static unsigned int delay_us;
module_param(delay_us, uint, 0644);
MODULE_PARM_DESC(delay_us, "each descriptor takes so much longer");
static bool starving;
module_param(starving, bool, 0644);
MODULE_PARM_DESC(starving, "preparing gives no descriptor, as if the pool was used up (N)");

struct soft_descriptor {
	struct dma_async_tx_descriptor tx;
	struct list_head list;
	dma_addr_t from, to;
	size_t bytes;
};

struct soft_channel {
	struct dma_chan chan;
	struct task_struct *thread;
	wait_queue_head_t work;
	spinlock_t lock;	/* everything below */
	struct list_head free, submitted, issued;
	struct soft_descriptor *running;
	bool moving;		/* the thread writes memory; it alone clears this */
	struct soft_descriptor *descriptors;
	bool paused;
	u64 count;
	dma_cookie_t failed[REMEMBERED];
	unsigned int failures;
};

static struct dma_device soft_device;
static struct soft_channel *soft_channels;

static struct soft_channel *soft(struct dma_chan *chan)
{
	return container_of(chan, struct soft_channel, chan);
}

static bool due(u64 count, unsigned int every)
{
	return every && count % every == 0;
}

/* The cookie helpers of drivers/dma are private; the rules are few. */
static dma_cookie_t soft_submit(struct dma_async_tx_descriptor *tx)
{
	struct soft_descriptor *descriptor = container_of(tx, struct soft_descriptor, tx);
	struct soft_channel *channel = soft(tx->chan);
	unsigned long flags;
	dma_cookie_t cookie;

	spin_lock_irqsave(&channel->lock, flags);
	cookie = channel->chan.cookie + 1;
	if (cookie < DMA_MIN_COOKIE)
		cookie = DMA_MIN_COOKIE;
	channel->chan.cookie = cookie;
	tx->cookie = cookie;
	list_add_tail(&descriptor->list, &channel->submitted);
	spin_unlock_irqrestore(&channel->lock, flags);
	return cookie;
}

static struct dma_async_tx_descriptor *soft_prepare(struct dma_chan *chan, dma_addr_t to,
						    dma_addr_t from, size_t bytes,
						    unsigned long tx_flags)
{
	struct soft_channel *channel = soft(chan);
	struct soft_descriptor *descriptor;
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	descriptor = list_first_entry_or_null(&channel->free, struct soft_descriptor, list);
	if (READ_ONCE(starving))
		descriptor = NULL;
	if (descriptor)
		list_del(&descriptor->list);
	spin_unlock_irqrestore(&channel->lock, flags);
	if (!descriptor)
		return NULL;
	dma_async_tx_descriptor_init(&descriptor->tx, chan);
	descriptor->tx.tx_submit = soft_submit;
	descriptor->tx.flags = tx_flags;
	descriptor->from = from;
	descriptor->to = to;
	descriptor->bytes = bytes;
	return &descriptor->tx;
}

static void soft_issue(struct dma_chan *chan)
{
	struct soft_channel *channel = soft(chan);
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	list_splice_tail_init(&channel->submitted, &channel->issued);
	spin_unlock_irqrestore(&channel->lock, flags);
	wake_up(&channel->work);
}

static enum dma_status soft_status(struct dma_chan *chan, dma_cookie_t cookie,
				   struct dma_tx_state *state)
{
	struct soft_channel *channel = soft(chan);
	enum dma_status status;
	unsigned long flags;
	unsigned int at;

	if (unordered)
		return DMA_OUT_OF_ORDER;
	spin_lock_irqsave(&channel->lock, flags);
	status = dma_async_is_complete(cookie, channel->chan.completed_cookie,
				       channel->chan.cookie);
	for (at = 0; at < REMEMBERED && status == DMA_COMPLETE; at++)
		if (channel->failed[at] == cookie)
			status = DMA_ERROR;
	if (channel->paused && status == DMA_IN_PROGRESS)
		status = DMA_PAUSED;
	spin_unlock_irqrestore(&channel->lock, flags);
	return status;
}

static struct soft_descriptor *next(struct soft_channel *channel)
{
	struct soft_descriptor *descriptor = NULL;

	spin_lock_irq(&channel->lock);
	if (!channel->paused && !list_empty(&channel->issued)) {
		descriptor = unordered ?
			list_last_entry(&channel->issued, struct soft_descriptor, list) :
			list_first_entry(&channel->issued, struct soft_descriptor, list);
		list_del(&descriptor->list);
		channel->running = descriptor;
		channel->count++;
	}
	spin_unlock_irq(&channel->lock);
	return descriptor;
}

/* Addresses come from the direct mapping: softdma's device has no IOMMU. */
static void *memory(struct device *dev, dma_addr_t address)
{
	return phys_to_virt(dma_to_phys(dev, address));
}

static void move(struct soft_channel *channel, struct soft_descriptor *descriptor)
{
	struct device *dev = soft_device.dev;
	u8 *to = memory(dev, descriptor->to);

	memcpy(to, memory(dev, descriptor->from), descriptor->bytes);
	if (due(channel->count, READ_ONCE(flip_every)))
		to[descriptor->bytes / 2] ^= 0x10;
}

static void complete_one(struct soft_channel *channel, struct soft_descriptor *descriptor,
			 bool failed)
{
	struct dmaengine_result result = {
		.result = failed ? DMA_TRANS_ABORTED : DMA_TRANS_NOERROR,
		.residue = failed ? descriptor->bytes : 0,
	};
	/* What the client wants called, before the descriptor is free for another. */
	dma_async_tx_callback_result with_result = descriptor->tx.callback_result;
	dma_async_tx_callback plain = descriptor->tx.callback;
	void *param = descriptor->tx.callback_param;
	bool terminated;

	spin_lock_irq(&channel->lock);
	terminated = channel->running != descriptor;
	channel->running = NULL;
	if (failed)
		channel->failed[channel->failures++ % REMEMBERED] = descriptor->tx.cookie;
	if (!terminated)
		channel->chan.completed_cookie = descriptor->tx.cookie;
	list_add_tail(&descriptor->list, &channel->free);
	spin_unlock_irq(&channel->lock);
	if (terminated)
		return;
	/* Drivers call from tasklets: the client sees bottom halves off here, too. */
	local_bh_disable();
	if (with_result)
		with_result(param, &result);
	else if (plain)
		plain(param);
	local_bh_enable();
}

static bool has_work(struct soft_channel *channel)
{
	return !READ_ONCE(channel->paused) && !list_empty_careful(&channel->issued);
}

static bool taken_away(struct soft_channel *channel, struct soft_descriptor *descriptor)
{
	return kthread_should_stop() || READ_ONCE(channel->running) != descriptor;
}

/* A descriptor that is taken away meanwhile is not waited for. */
static void be_late(struct soft_channel *channel, struct soft_descriptor *descriptor)
{
	unsigned int delay = READ_ONCE(delay_us);

	if (delay < 10 * USEC_PER_MSEC)
		usleep_range(delay, delay + delay / 8 + 1);
	else
		wait_event_idle_timeout(channel->work, taken_away(channel, descriptor),
					usecs_to_jiffies(delay));
}

/* What was taken away is not copied: its memory may belong to others. */
static bool begin_moving(struct soft_channel *channel, struct soft_descriptor *descriptor)
{
	spin_lock_irq(&channel->lock);
	channel->moving = !taken_away(channel, descriptor);
	spin_unlock_irq(&channel->lock);
	return channel->moving;
}

static void run_one(struct soft_channel *channel, struct soft_descriptor *descriptor)
{
	bool failed = due(channel->count, READ_ONCE(fail_every));
	bool lost = due(channel->count, READ_ONCE(lose_every));

	if (READ_ONCE(delay_us))
		be_late(channel, descriptor);
	/* A lost one stays with the channel until it is terminated or freed. */
	if (lost)
		wait_event_idle(channel->work, taken_away(channel, descriptor));
	if (!failed && begin_moving(channel, descriptor)) {
		move(channel, descriptor);
		/* Release: soft_synchronize() sees that the bytes were written. */
		smp_store_release(&channel->moving, false);
		complete_one(channel, descriptor, false);
	} else {
		complete_one(channel, descriptor, true);
	}
}

static int soft_thread(void *data)
{
	struct soft_channel *channel = data;

	while (!kthread_should_stop()) {
		struct soft_descriptor *descriptor;

		wait_event_idle(channel->work, kthread_should_stop() || has_work(channel));
		descriptor = next(channel);
		if (descriptor)
			run_one(channel, descriptor);
		cond_resched();
	}
	return 0;
}

static int soft_terminate(struct dma_chan *chan)
{
	struct soft_channel *channel = soft(chan);
	unsigned long flags;

	spin_lock_irqsave(&channel->lock, flags);
	list_splice_tail_init(&channel->submitted, &channel->free);
	list_splice_tail_init(&channel->issued, &channel->free);
	/* The thread sees that it was taken away, and calls nobody. */
	WRITE_ONCE(channel->running, NULL);
	channel->chan.completed_cookie = channel->chan.cookie;
	channel->paused = false;
	spin_unlock_irqrestore(&channel->lock, flags);
	wake_up(&channel->work);
	return 0;
}

/* Waits until a copy that the thread had begun is over, however long it takes. */
static void soft_synchronize(struct dma_chan *chan)
{
	/* Acquire: after this, all bytes of the copy at hand have been written. */
	while (smp_load_acquire(&soft(chan)->moving))
		usleep_range(100, 200);
}

static int soft_pause(struct dma_chan *chan)
{
	WRITE_ONCE(soft(chan)->paused, true);
	return 0;
}

static int soft_resume(struct dma_chan *chan)
{
	WRITE_ONCE(soft(chan)->paused, false);
	wake_up(&soft(chan)->work);
	return 0;
}

static int soft_allocate(struct dma_chan *chan)
{
	struct soft_channel *channel = soft(chan);
	unsigned int at;

	channel->descriptors = kcalloc(pool, sizeof(*channel->descriptors), GFP_KERNEL);
	if (!channel->descriptors)
		return -ENOMEM;
	INIT_LIST_HEAD(&channel->free);
	INIT_LIST_HEAD(&channel->submitted);
	INIT_LIST_HEAD(&channel->issued);
	for (at = 0; at < pool; at++)
		list_add_tail(&channel->descriptors[at].list, &channel->free);
	chan->cookie = DMA_MIN_COOKIE;
	chan->completed_cookie = DMA_MIN_COOKIE;
	channel->count = 0;
	channel->paused = false;
	channel->running = NULL;
	channel->moving = false;
	memset(channel->failed, 0, sizeof(channel->failed));
	channel->thread = kthread_create(soft_thread, channel, "softdma/%u", chan->chan_id);
	if (IS_ERR(channel->thread)) {
		kfree(channel->descriptors);
		return PTR_ERR(channel->thread);
	}
	if (cpu >= 0)
		kthread_bind(channel->thread, cpu);
	wake_up_process(channel->thread);
	return pool;
}

static void soft_free(struct dma_chan *chan)
{
	struct soft_channel *channel = soft(chan);

	/* The thread ends after the copy at hand, so nothing is written any more. */
	kthread_stop(channel->thread);
	kfree(channel->descriptors);
	channel->descriptors = NULL;
}

static int soft_probe(struct platform_device *platform)
{
	struct dma_device *device = &soft_device;
	unsigned int at;
	int error;

	error = dma_set_mask_and_coherent(&platform->dev, DMA_BIT_MASK(64));
	if (error)
		return error;
	dma_set_max_seg_size(&platform->dev, UINT_MAX);
	soft_channels = devm_kcalloc(&platform->dev, channels, sizeof(*soft_channels), GFP_KERNEL);
	if (!soft_channels)
		return -ENOMEM;
	memset(device, 0, sizeof(*device));
	INIT_LIST_HEAD(&device->channels);
	dma_cap_set(DMA_MEMCPY, device->cap_mask);
	/* Never for the kernel's own copies (async_tx): faults are meant for tests. */
	dma_cap_set(DMA_PRIVATE, device->cap_mask);
	if (unordered)
		dma_cap_set(DMA_COMPLETION_NO_ORDER, device->cap_mask);
	/* dma_async_device_register reads dev->driver, so this must be probe(). */
	device->dev = &platform->dev;
	device->device_alloc_chan_resources = soft_allocate;
	device->device_free_chan_resources = soft_free;
	device->device_prep_dma_memcpy = soft_prepare;
	device->device_issue_pending = soft_issue;
	device->device_tx_status = soft_status;
	if (terminating) {
		device->device_terminate_all = soft_terminate;
		device->device_synchronize = soft_synchronize;
	}
	if (pausing) {
		device->device_pause = soft_pause;
		device->device_resume = soft_resume;
	}
	for (at = 0; at < channels; at++) {
		struct soft_channel *channel = &soft_channels[at];

		channel->chan.device = device;
		spin_lock_init(&channel->lock);
		init_waitqueue_head(&channel->work);
		list_add_tail(&channel->chan.device_node, &device->channels);
	}
	return dma_async_device_register(device);
}

static DQM_REMOVE(soft_remove, struct platform_device *platform)
{
	dma_async_device_unregister(&soft_device);
	return DQM_REMOVED;
}

static struct platform_driver soft_driver = {
	/* Unbound by hand, it would take its channels from under a client that holds them. */
	.driver = { .name = "softdma", .suppress_bind_attrs = true },
	.probe = soft_probe,
	.remove = soft_remove,
};

static struct platform_device *soft_platform;

static int __init soft_init(void)
{
	int error;

	if (!channels || channels > MAX_CHANNELS || !pool || pool > MAX_POOL ||
	    cpu >= (int)nr_cpu_ids)
		return -EINVAL;
	error = platform_driver_register(&soft_driver);
	if (error)
		return error;
	soft_platform = platform_device_register_simple("softdma", -1, NULL, 0);
	if (IS_ERR(soft_platform)) {
		platform_driver_unregister(&soft_driver);
		return PTR_ERR(soft_platform);
	}
	return 0;
}

static void __exit soft_exit(void)
{
	platform_device_unregister(soft_platform);
	platform_driver_unregister(&soft_driver);
}

module_init(soft_init);
module_exit(soft_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A software DMA engine with faults, to test clients of dmaengine");
