// SPDX-License-Identifier: GPL-2.0
/*
 * Channels of the dmaengine framework, and copies by them.
 *
 * Nothing here trusts an engine: it may fail, complete late, out of order, or
 * never. Completions carry the generation of their batch, so that a late one
 * finds nothing to touch; an engine that cannot be stopped keeps its pages.
 */
#include <linux/jiffies.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "copy.h"

/* Descriptors queued at once: drivers have pools of a few tens (zynqmp: 32). */
#define BATCH 16
/* Pieces of a low channel are small, or it would overrun the quantum. */
#define GATED_PIECE 4096u
#define GATED_BATCH 4
#define DEFAULT_TIMEOUT_MS 10000
/* Number of generations: one fits a pointer of 32 bits together with the channel's index. */
#define GENERATIONS BIT(24)

/*
 * Static, not per policy: a completion that comes when its channel has been
 * given back must still find a generation to compare with.
 */
static struct dqm_channel channels[DAQMETER_MAX_CHANNELS];

struct device *dqm_channel_device(const struct dqm_channel *channel)
{
	return dmaengine_get_dma_device(channel->chan);
}

static void *tag(const struct dqm_channel *channel)
{
	return (void *)((unsigned long)channel->generation << 8 | channel->index);
}

/* Called by the driver, often from a tasklet. */
static void completed(void *param, const struct dmaengine_result *result)
{
	unsigned long tagged = (unsigned long)param;
	struct dqm_channel *channel = &channels[tagged & 0xff];
	unsigned long flags;
	bool idle = false;

	spin_lock_irqsave(&channel->batch_lock, flags);
	if (channel->generation != tagged >> 8 || !channel->pending) {
		atomic64_inc(&channel->late);
	} else {
		channel->failed |= result && result->result != DMA_TRANS_NOERROR;
		idle = !--channel->pending;
	}
	spin_unlock_irqrestore(&channel->batch_lock, flags);
	if (idle)
		wake_up(&channel->idle);
}

static bool matches(struct dma_chan *chan, void *provider)
{
	const char *name = provider;

	return !name || !*name || strstr(dma_chan_name(chan), name) ||
		strstr(dev_driver_string(chan->device->dev), name);
}

static void count_from_zero(struct dqm_channel *channel)
{
	channel->copies = 0;
	channel->bytes = 0;
	channel->failures = 0;
	channel->timeouts = 0;
	atomic64_set(&channel->late, 0);
}

static void take(struct dqm_channel *channel, unsigned int index, struct dma_chan *chan)
{
	struct dma_slave_caps caps;
	struct dma_device *device = chan->device;

	channel->chan = chan;
	channel->index = index;
	channel->unordered = dma_has_cap(DMA_COMPLETION_NO_ORDER, device->cap_mask);
	channel->terminates = device->device_terminate_all;
	/* Capabilities are reported for slave engines only; others have the calls or not. */
	if (!dma_get_slave_caps(chan, &caps))
		channel->pauses = caps.cmd_pause && caps.cmd_resume;
	else
		channel->pauses = device->device_pause && device->device_resume;
	channel->software = !strcmp(dev_driver_string(device->dev), "softdma");
	channel->stuck = false;
	channel->pending = 0;
	atomic_set(&channel->queued, 0);
}

void dqm_engine_prepare(void)
{
	unsigned int at;

	for (at = 0; at < ARRAY_SIZE(channels); at++) {
		mutex_init(&channels[at].lock);
		spin_lock_init(&channels[at].batch_lock);
		init_waitqueue_head(&channels[at].idle);
		INIT_LIST_HEAD(&channels[at].quarantine);
	}
}

/* Takes the channels that are free, in addition to those that it has. */
static void take_free(struct dqm_engine *engine, const char *provider)
{
	dma_cap_mask_t mask;

	dma_cap_zero(mask);
	dma_cap_set(DMA_MEMCPY, mask);
	while (engine->count < DAQMETER_MAX_CHANNELS) {
		struct dma_chan *chan = dma_request_channel(mask, matches, (void *)provider);

		if (!chan)
			break;
		take(&channels[engine->count], engine->count, chan);
		engine->count++;
	}
}

static void release_quarantine(struct dqm_engine *engine, struct dqm_channel *channel,
			       struct device *dev)
{
	struct dqm_job *job, *next;

	list_for_each_entry_safe(job, next, &channel->quarantine, list) {
		atomic64_sub(job->from.count + job->to.count, &engine->quarantined);
		list_del(&job->list);
		dqm_job_release(job, dev);
		kfree(job);
	}
	channel->stuck = false;
}

/* Gives channels back to their drivers, from this one on. */
static void give_back(struct dqm_engine *engine, unsigned int from)
{
	unsigned int at;

	for (at = from; at < engine->count; at++) {
		struct dqm_channel *channel = &engine->channels[at];
		struct device *dev = get_device(dqm_channel_device(channel));
		struct dma_chan *chan = channel->chan;

		/* A driver has stopped the channel when these return; only then may pages go. */
		dmaengine_terminate_sync(chan);
		dma_release_channel(chan);
		release_quarantine(engine, channel, dev);
		channel->chan = NULL;
		put_device(dev);
	}
	engine->count = from;
}

/* Returns 0 if the channels can do what the policy asks for. */
static int possible(const struct dqm_engine *engine, const struct daqmeter_policy *policy)
{
	if (!engine->count)
		return -ENODEV;
	if (policy->policy == DAQMETER_POLICY_PRIORITY &&
	    (!policy->high_channels || policy->high_channels >> (engine->count - 1) > 1))
		return -EINVAL;
	return 0;
}

/*
 * The channels that the old policy held go on to the new one; when that is not
 * possible, the old one stays in force as it was.
 */
int dqm_engine_set(struct dqm_engine *engine, const struct daqmeter_policy *policy,
		   const char *provider)
{
	unsigned int at, held = engine->count;
	u64 number = engine->policy.number + 1;
	int error;

	if (policy->policy == DAQMETER_POLICY_NONE) {
		dqm_engine_stop(engine);
		return 0;
	}
	engine->channels = channels;
	take_free(engine, provider);
	error = possible(engine, policy);
	if (error) {
		give_back(engine, held);
		return error;
	}
	dqm_gate_stop(engine);
	engine->policy = *policy;
	engine->policy.number = number;
	engine->turn = 0;
	for (at = 0; at < engine->count; at++)
		count_from_zero(&channels[at]);
	dqm_gate_start(engine);
	return 0;
}

void dqm_engine_stop(struct dqm_engine *engine)
{
	dqm_gate_stop(engine);
	give_back(engine, 0);
	engine->policy.policy = DAQMETER_POLICY_NONE;
	engine->policy.number++;
}

/* Exclusive: channel k for CPU k. Shared: the one with the shortest queue. */
struct dqm_channel *dqm_engine_choose(struct dqm_engine *engine, u32 wanted)
{
	unsigned int at, best;

	if (!engine->count)
		return ERR_PTR(-ENODEV);
	if (wanted != DAQMETER_ANY_CHANNEL)
		return wanted < engine->count ? &engine->channels[wanted] : ERR_PTR(-ECHRNG);
	if (engine->policy.policy == DAQMETER_POLICY_EXCLUSIVE)
		return &engine->channels[raw_smp_processor_id() % engine->count];
	/* A race only makes the turn less fair. */
	best = READ_ONCE(engine->turn) % engine->count;
	WRITE_ONCE(engine->turn, best + 1);
	for (at = 0; at < engine->count; at++)
		if (atomic_read(&engine->channels[at].queued) <
		    atomic_read(&engine->channels[best].queued))
			best = at;
	return &engine->channels[best];
}

static void new_batch(struct dqm_channel *channel)
{
	unsigned long flags;

	spin_lock_irqsave(&channel->batch_lock, flags);
	channel->generation = (channel->generation + 1) % GENERATIONS;
	channel->pending = 0;
	channel->failed = false;
	spin_unlock_irqrestore(&channel->batch_lock, flags);
}

static unsigned int pending(struct dqm_channel *channel)
{
	return READ_ONCE(channel->pending);
}

static void add_pending(struct dqm_channel *channel, int by)
{
	unsigned long flags;

	spin_lock_irqsave(&channel->batch_lock, flags);
	channel->pending += by;
	spin_unlock_irqrestore(&channel->batch_lock, flags);
}

struct batch {
	dma_cookie_t cookies[BATCH];
	unsigned int count;
	bool callbacks;
	bool polled;
	unsigned long until;
};

/* Polling an ordered engine needs no callback: the last cookie tells. */
static int poll_cookies(struct dqm_channel *channel, const struct batch *batch)
{
	unsigned int at;

	for (;;) {
		enum dma_status status = dma_async_is_tx_complete(channel->chan,
				batch->cookies[batch->count - 1], NULL, NULL);

		if (status == DMA_COMPLETE || status == DMA_ERROR)
			break;
		if (time_after(jiffies, batch->until))
			return -ETIMEDOUT;
		if (fatal_signal_pending(current))
			return -EINTR;
		cpu_relax();
		/* An engine that is a thread may need this CPU. */
		cond_resched();
	}
	for (at = 0; at < batch->count; at++)
		if (dma_async_is_tx_complete(channel->chan, batch->cookies[at], NULL, NULL) ==
		    DMA_ERROR)
			return -EIO;
	return 0;
}

static int spin_pending(struct dqm_channel *channel, const struct batch *batch)
{
	while (pending(channel)) {
		if (time_after(jiffies, batch->until))
			return -ETIMEDOUT;
		if (fatal_signal_pending(current))
			return -EINTR;
		cpu_relax();
		cond_resched();
	}
	return channel->failed ? -EIO : 0;
}

static int finish_batch(struct dqm_channel *channel, struct batch *batch)
{
	long left;
	int error;

	if (!batch->count)
		return 0;
	dma_async_issue_pending(channel->chan);
	if (batch->polled) {
		error = batch->callbacks ? spin_pending(channel, batch) :
			poll_cookies(channel, batch);
	} else {
		left = wait_event_killable_timeout(channel->idle, !pending(channel),
						   max(1L, (long)(batch->until - jiffies)));
		error = left < 0 ? -EINTR : !left ? -ETIMEDOUT : channel->failed ? -EIO : 0;
	}
	/* A copy that failed has completed, too: nothing is queued any more. */
	if (!error || error == -EIO)
		batch->count = 0;
	return error;
}

static struct dma_async_tx_descriptor *prepare(struct dqm_channel *channel, dma_addr_t to,
					       dma_addr_t from, size_t bytes, bool callbacks)
{
	unsigned long flags = DMA_CTRL_ACK | (callbacks ? DMA_PREP_INTERRUPT : 0);

	return dmaengine_prep_dma_memcpy(channel->chan, to, from, bytes, flags);
}

/* Queues one piece; a full pool is emptied first. */
static int queue_piece(struct dqm_channel *channel, struct batch *batch, dma_addr_t to,
		       dma_addr_t from, size_t bytes)
{
	struct dma_async_tx_descriptor *tx;
	dma_cookie_t cookie;
	int error;

	while (!(tx = prepare(channel, to, from, bytes, batch->callbacks))) {
		if (time_after(jiffies, batch->until))
			return -ETIMEDOUT;
		if (fatal_signal_pending(current))
			return -EINTR;
		error = finish_batch(channel, batch);
		if (error)
			return error;
		new_batch(channel);
		cond_resched();
	}
	/* Descriptors are recycled: what an earlier user left must go. */
	tx->callback = NULL;
	tx->callback_result = NULL;
	tx->callback_param = NULL;
	if (batch->callbacks) {
		tx->callback_result = completed;
		tx->callback_param = tag(channel);
		add_pending(channel, 1);
	}
	cookie = dmaengine_submit(tx);
	if (dma_submit_error(cookie)) {
		if (batch->callbacks)
			add_pending(channel, -1);
		return -EIO;
	}
	batch->cookies[batch->count++] = cookie;
	return 0;
}

/* Walks both tables of segments at once: a piece ends where either side's does. */
struct walk {
	struct scatterlist *from, *to;
	size_t from_at, to_at;
	size_t left;
};

static size_t next_piece(struct walk *walk, size_t most, dma_addr_t *from, dma_addr_t *to)
{
	size_t bytes;

	while (walk->from_at == sg_dma_len(walk->from)) {
		walk->from = sg_next(walk->from);
		walk->from_at = 0;
	}
	while (walk->to_at == sg_dma_len(walk->to)) {
		walk->to = sg_next(walk->to);
		walk->to_at = 0;
	}
	bytes = min3(sg_dma_len(walk->from) - walk->from_at, sg_dma_len(walk->to) - walk->to_at,
		     walk->left);
	bytes = min(bytes, most);
	*from = sg_dma_address(walk->from) + walk->from_at;
	*to = sg_dma_address(walk->to) + walk->to_at;
	walk->from_at += bytes;
	walk->to_at += bytes;
	walk->left -= bytes;
	return bytes;
}

static int run_pieces(struct dqm_engine *engine, struct dqm_channel *channel,
		      struct dqm_job *job, struct batch *batch, u32 *segments)
{
	bool gated = engine->policy.policy == DAQMETER_POLICY_PRIORITY;
	unsigned int most = gated ? GATED_BATCH : BATCH;
	struct walk walk = {
		.from = job->from.table.sgl,
		.to = job->to.table.sgl,
		.left = job->from.bytes,
	};
	int error = 0;

	while (walk.left && !error) {
		dma_addr_t from, to;
		size_t bytes;

		if (gated && !batch->count) {
			error = dqm_gate_wait(engine, channel, batch->polled, batch->until);
			if (error)
				return error;
		}
		if (!batch->count)
			new_batch(channel);
		bytes = next_piece(&walk, gated ? GATED_PIECE : SIZE_MAX, &from, &to);
		if (!is_dma_copy_aligned(channel->chan->device, from, to, bytes))
			error = -EDOM;
		else
			error = queue_piece(channel, batch, to, from, bytes);
		++*segments;
		if (!error && (batch->count == most || !walk.left))
			error = finish_batch(channel, batch);
	}
	return error;
}

/* After this no completion touches the copy; true when the engine is quiet. */
static bool give_up(struct dqm_channel *channel)
{
	new_batch(channel);
	if (channel->terminates && !dmaengine_terminate_sync(channel->chan))
		return true;
	channel->stuck = true;
	return false;
}

/*
 * Copies what both mapped sides of the job describe. Returns -EINPROGRESS when
 * the engine could not be stopped: then the job must be kept (dqm_channel_keep).
 */
int dqm_channel_copy(struct dqm_engine *engine, struct dqm_channel *channel,
		     struct dqm_job *job, u32 completion, u32 timeout_ms, u32 *segments)
{
	struct batch batch = {
		.polled = completion == DAQMETER_POLLED,
		.callbacks = completion == DAQMETER_INTERRUPT || channel->unordered,
		.until = jiffies + msecs_to_jiffies(timeout_ms ?: DEFAULT_TIMEOUT_MS) + 1,
	};
	int error;

	atomic_inc(&channel->queued);
	error = mutex_lock_killable(&channel->lock);
	if (error)
		goto leave;
	if (channel->stuck) {
		error = -EBUSY;
		goto unlock;
	}
	error = run_pieces(engine, channel, job, &batch, segments);
	if (!error) {
		channel->copies++;
		channel->bytes += job->from.bytes;
		goto unlock;
	}
	if (error == -ETIMEDOUT)
		channel->timeouts++;
	else
		channel->failures++;
	/* Something may still be queued, whatever went wrong. */
	if (batch.count && !give_up(channel))
		error = -EINPROGRESS;
unlock:
	mutex_unlock(&channel->lock);
leave:
	atomic_dec(&channel->queued);
	return error;
}

/* Until the policy is stopped, which gives the channel back to its driver. */
void dqm_channel_keep(struct dqm_engine *engine, struct dqm_channel *channel,
		      struct dqm_job *job)
{
	mutex_lock(&channel->lock);
	atomic64_add(job->from.count + job->to.count, &engine->quarantined);
	list_add(&job->list, &channel->quarantine);
	mutex_unlock(&channel->lock);
}
