// SPDX-License-Identifier: GPL-2.0
/*
 * daqmeter_copy: copies between user memory and a kernel region, by the CPU or
 * by any memory-to-memory channel of the dmaengine framework.
 *
 * Mechanism only: one request is one copy, and its times go back to the caller.
 * Repetitions, statistics and files are the program's part.
 */
#include <linux/cpumask.h>
#include <linux/fs.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/rwsem.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "copy.h"

#define MAX_WINDOW_NS NSEC_PER_SEC
/* A shorter phase would be all timer. */
#define MIN_PHASE_NS (5 * NSEC_PER_USEC)
/* Beyond 2^31 ms the kernel's conversion to jiffies means "for ever". */
#define MAX_TIMEOUT_MS (3600 * MSEC_PER_SEC)

static unsigned int region_mb = 64;
module_param(region_mb, uint, 0444);
MODULE_PARM_DESC(region_mb, "size of the benchmark memory in MiB (64; the study: 1024)");

static char *provider = "";
module_param(provider, charp, 0444);
MODULE_PARM_DESC(provider, "take only channels whose name or driver contains this");

static struct dqm_region region;
static struct dqm_engine engine;
/* Read: a DMA copy is under way. Written: the policy is changed; never waits. */
static DECLARE_RWSEM(policy_lock);
/* The open file whose policy is in force, or NULL; under policy_lock. */
static struct file *owner;
static atomic_t in_flight;

static void engine_name(char *into, const char *name)
{
	strscpy(into, name, DAQMETER_NAME_BYTES);
}

static long give_info(void __user *argument)
{
	struct daqmeter_info info = {};
	u32 abi;

	if (get_user(abi, (u32 __user *)argument))
		return -EFAULT;
	info.abi = DAQMETER_ABI;
	if (abi != DAQMETER_ABI)
		return put_user(info.abi, (u32 __user *)argument) ? -EFAULT : -EPROTO;
	down_read(&policy_lock);
	info.flags = (region.huge ? DAQMETER_REGION_HUGE : 0) |
		     (dqm_can_flush() ? DAQMETER_CAN_FLUSH : 0);
	info.policy = engine.policy.policy;
	info.channels = engine.count;
	info.region_bytes = (u64)region.count << PAGE_SHIFT;
	info.high_channels = engine.policy.high_channels;
	info.quantum_ns = engine.policy.quantum_ns;
	info.window_ns = engine.policy.window_ns;
	info.in_flight = atomic_read(&in_flight);
	info.pinned_pages = dqm_pinned();
	info.quarantined_pages = atomic64_read(&engine.quarantined);
	dqm_gate_report(&info);
	up_read(&policy_lock);
	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static long give_channel(void __user *argument)
{
	struct daqmeter_channel about = {};
	struct dqm_channel *channel;
	long error = -ECHRNG;

	if (get_user(about.index, (u32 __user *)argument))
		return -EFAULT;
	down_read(&policy_lock);
	if (about.index < engine.count) {
		channel = &engine.channels[about.index];
		engine_name(about.name, dma_chan_name(channel->chan));
		engine_name(about.driver, dev_driver_string(channel->chan->device->dev));
		about.flags = (channel->pauses ? DAQMETER_CHANNEL_PAUSES : 0) |
			      (channel->unordered ? DAQMETER_CHANNEL_UNORDERED : 0) |
			      (channel->stuck ? DAQMETER_CHANNEL_STUCK : 0) |
			      (channel->software ? DAQMETER_CHANNEL_SOFTWARE : 0);
		about.copies = channel->copies;
		about.bytes = channel->bytes;
		about.failures = channel->failures;
		about.timeouts = channel->timeouts;
		about.late = atomic64_read(&channel->late);
		error = 0;
	}
	up_read(&policy_lock);
	if (error)
		return error;
	return copy_to_user(argument, &about, sizeof(about)) ? -EFAULT : 0;
}

/* Subtracted, not added: the sum of two numbers of a program may wrap. */
static bool window_is_possible(const struct daqmeter_policy *policy)
{
	return policy->window_ns <= MAX_WINDOW_NS && policy->quantum_ns >= MIN_PHASE_NS &&
	       policy->quantum_ns <= policy->window_ns &&
	       policy->window_ns - policy->quantum_ns >= MIN_PHASE_NS;
}

/* Only the owner's program changes a policy: another's would be measured under a wrong name. */
static long set_policy(struct file *file, struct daqmeter_policy __user *argument)
{
	struct daqmeter_policy policy;
	long error;

	if (copy_from_user(&policy, argument, sizeof(policy)))
		return -EFAULT;
	if (policy.policy > DAQMETER_POLICY_PRIORITY || policy.reserved)
		return -EINVAL;
	if (policy.policy == DAQMETER_POLICY_PRIORITY && !window_is_possible(&policy))
		return -EINVAL;
	if (!down_write_trylock(&policy_lock))
		return -EBUSY;
	error = owner && owner != file ? -EBUSY : dqm_engine_set(&engine, &policy, provider);
	if (!error) {
		WRITE_ONCE(owner, policy.policy == DAQMETER_POLICY_NONE ? NULL : file);
		policy.number = engine.policy.number;
	}
	up_write(&policy_lock);
	if (error)
		return error;
	return put_user(policy.number, &argument->number) ? -EFAULT : 0;
}

/* Hardened usercopy refuses what spans two allocations, also when they are neighbours. */
static size_t to_block_end(const struct daqmeter_copy *request, size_t at)
{
	size_t block = PAGE_SIZE << region.order;

	return block - ((request->region_offset + at) & (block - 1));
}

/* One direction by the CPU, as a driver would: one call for each contiguous run of the region. */
static int cpu_copy(struct daqmeter_copy *request, bool to_user)
{
	u8 __user *user = u64_to_user_ptr(request->user_address);
	struct dqm_side side;
	size_t at = 0;

	dqm_side_of_region(&side, &region, request->region_offset, request->bytes, !to_user);
	while (at < request->bytes) {
		void *address;
		size_t run = min(dqm_side_run(&side, at, &address), to_block_end(request, at));

		if (to_user ? copy_to_user(user + at, address, run) :
			      copy_from_user(address, user + at, run))
			return -EFAULT;
		request->segments++;
		at += run;
		if (at < request->bytes) {
			if (fatal_signal_pending(current))
				return -EINTR;
			cond_resched();
		}
	}
	return 0;
}

static bool goes_from(const struct daqmeter_copy *request)
{
	return request->direction != DAQMETER_TO_USER;
}

static bool goes_to(const struct daqmeter_copy *request)
{
	return request->direction != DAQMETER_FROM_USER;
}

/* Flushing needs the pages at hand; they are let go before the clock starts. */
static int flush_both(struct daqmeter_copy *request)
{
	struct dqm_side user = {}, kernel = {};
	int error = dqm_side_pin(&user, request->user_address, request->bytes, false, false);

	if (error)
		return error;
	dqm_side_of_region(&kernel, &region, request->region_offset, request->bytes, false);
	dqm_side_flush(&user);
	dqm_side_flush(&kernel);
	dqm_side_unpin(&user);
	return 0;
}

static int copy_by_cpu(struct daqmeter_copy *request)
{
	int error = request->flags & DAQMETER_COLD ? flush_both(request) : 0;

	if (error)
		return error;
	request->cpu_before = raw_smp_processor_id();
	request->before_ns = ktime_get_ns();
	if (goes_from(request))
		error = cpu_copy(request, false);
	if (!error && goes_to(request))
		error = cpu_copy(request, true);
	request->after_ns = ktime_get_ns();
	request->cpu_after = raw_smp_processor_id();
	return error;
}

static struct dqm_job *pin_job(struct daqmeter_copy *request, bool to_user)
{
	struct dqm_job *job = kzalloc(sizeof(*job), GFP_KERNEL);
	struct dqm_side *user, *kernel;
	int error;

	if (!job)
		return ERR_PTR(-ENOMEM);
	user = to_user ? &job->to : &job->from;
	kernel = to_user ? &job->from : &job->to;
	error = dqm_side_pin(user, request->user_address, request->bytes, to_user, true);
	if (error) {
		kfree(job);
		return ERR_PTR(error);
	}
	dqm_side_of_region(kernel, &region, request->region_offset, request->bytes, !to_user);
	return job;
}

static u64 since(u64 *mark)
{
	u64 now = ktime_get_ns();
	u64 passed = now - *mark;

	*mark = now;
	return passed;
}

/*
 * Maps, copies and unmaps one job, which is NULL afterwards where the engine
 * keeps its pages. The request's clock goes on by the copy alone.
 */
static int copy_job(struct daqmeter_copy *request, struct dqm_channel *channel,
		    struct dqm_job **job)
{
	struct device *dev = dqm_channel_device(channel);
	u64 mark = ktime_get_ns();
	u64 copied = 0;
	int error = dqm_side_map(&(*job)->from, dev);

	if (!error)
		error = dqm_side_map(&(*job)->to, dev);
	request->map_ns += since(&mark);
	if (!error) {
		error = dqm_channel_copy(&engine, channel, *job, request->completion,
					 request->timeout_ms, &request->segments);
		copied = since(&mark);
	}
	/* Of two copies, the times are added: what lies between is mapping. */
	request->before_ns = mark - (request->after_ns - request->before_ns) - copied;
	request->after_ns = mark;
	if (error == -EINPROGRESS) {
		dqm_channel_keep(&engine, channel, *job);
		*job = NULL;
		return -ETIMEDOUT;
	}
	dqm_side_unmap(&(*job)->from, dev);
	dqm_side_unmap(&(*job)->to, dev);
	request->unmap_ns += since(&mark);
	return error;
}

/*
 * From and to are jobs of their own, pinned before the clock and let go after
 * it. The second is mapped when the first is unmapped: where a mapping is a
 * bounce buffer (swiotlb), it holds what the memory held when it was mapped,
 * and the first copy reaches memory only when it is unmapped.
 */
static int copy_by_dma(struct daqmeter_copy *request)
{
	struct dqm_channel *channel = dqm_engine_choose(&engine, request->channel);
	struct dqm_job *jobs[2] = {};
	unsigned int count = 0, at;
	u64 mark = ktime_get_ns();
	int error = 0;

	if (IS_ERR(channel))
		return PTR_ERR(channel);
	request->channel_used = channel->index;
	for (at = 0; at < 2 && !error; at++) {
		if (!(at ? goes_to(request) : goes_from(request)))
			continue;
		jobs[count] = pin_job(request, at);
		if (IS_ERR(jobs[count]))
			error = PTR_ERR(jobs[count]);
		else
			count++;
	}
	request->pin_ns = since(&mark);
	if (!error && request->flags & DAQMETER_COLD) {
		dqm_side_flush(&jobs[0]->from);
		dqm_side_flush(&jobs[0]->to);
	}
	request->cpu_before = raw_smp_processor_id();
	for (at = 0; at < count && !error; at++)
		error = copy_job(request, channel, &jobs[at]);
	request->cpu_after = raw_smp_processor_id();
	mark = ktime_get_ns();
	for (at = 0; at < count; at++) {
		if (jobs[at])
			dqm_job_release(jobs[at], dqm_channel_device(channel));
		kfree(jobs[at]);
	}
	request->unpin_ns = since(&mark);
	return error;
}

/* The channels are the owner's. */
static int copy_as_owner(const struct file *file, struct daqmeter_copy *request)
{
	int error = down_read_killable(&policy_lock);

	if (error)
		return error;
	/* In flight means that the policy cannot change any more. */
	atomic_inc(&in_flight);
	request->policy_number = engine.policy.number;
	error = owner && owner != file ? -EBUSY : copy_by_dma(request);
	atomic_dec(&in_flight);
	up_read(&policy_lock);
	return error;
}

static int check(const struct daqmeter_copy *request)
{
	u64 region_bytes = (u64)region.count << PAGE_SHIFT;

	if (request->by > DAQMETER_BY_DMA || request->direction > DAQMETER_BOTH ||
	    request->completion > DAQMETER_INTERRUPT || request->flags & ~DAQMETER_COLD ||
	    request->timeout_ms > MAX_TIMEOUT_MS)
		return -EINVAL;
	if (!request->bytes || request->bytes > region_bytes ||
	    request->region_offset > region_bytes - request->bytes)
		return -ERANGE;
	if (!access_ok(u64_to_user_ptr(request->user_address), request->bytes))
		return -EFAULT;
	if (request->flags & DAQMETER_COLD && !dqm_can_flush())
		return -EOPNOTSUPP;
	return 0;
}

static long do_copy(const struct file *file, void __user *argument)
{
	struct daqmeter_copy request;
	int error;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	error = check(&request);
	if (error)
		return error;
	request.segments = 0;
	request.before_ns = 0;
	request.after_ns = 0;
	request.channel_used = DAQMETER_ANY_CHANNEL;
	request.pin_ns = 0;
	request.map_ns = 0;
	request.unmap_ns = 0;
	request.unpin_ns = 0;
	request.policy_number = 0;
	error = request.by == DAQMETER_BY_CPU ? copy_by_cpu(&request) :
						copy_as_owner(file, &request);
	if (error)
		return error;
	return copy_to_user(argument, &request, sizeof(request)) ? -EFAULT : 0;
}

static long copy_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	switch (command) {
	case DAQMETER_IOC_INFO:
		return give_info((void __user *)argument);
	case DAQMETER_IOC_CHANNEL:
		return give_channel((void __user *)argument);
	case DAQMETER_IOC_POLICY:
		return set_policy(file, (void __user *)argument);
	case DAQMETER_IOC_COPY:
		return do_copy(file, (void __user *)argument);
	default:
		return -ENOTTY;
	}
}

/* The policy ends with its file: then no timer ticks and no channel is held. */
static int copy_release(struct inode *inode, struct file *file)
{
	/* It is not read and written at once: a file becomes owner while it is open. */
	if (READ_ONCE(owner) != file)
		return 0;
	down_write(&policy_lock);
	dqm_engine_stop(&engine);
	WRITE_ONCE(owner, NULL);
	up_write(&policy_lock);
	return 0;
}

static const struct file_operations copy_operations = {
	.owner = THIS_MODULE,
	.release = copy_release,
	.unlocked_ioctl = copy_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice copy_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "daqmeter-copy",
	.fops = &copy_operations,
	.mode = 0600,
};

static int __init copy_init(void)
{
	int error;

	if (!region_mb)
		return -EINVAL;
	error = dqm_region_make(&region, (unsigned long)region_mb << 20);
	if (error) {
		pr_err("daqmeter_copy: no %u MiB for the region; load with a smaller region_mb\n",
		       region_mb);
		return error;
	}
	dqm_engine_prepare();
	error = misc_register(&copy_device);
	if (error)
		goto drop_region;
	pr_info("daqmeter_copy: %u CPUs, region of %u MiB on %s pages, ABI %d\n",
		num_online_cpus(), region_mb, region.huge ? "huge" : "base", DAQMETER_ABI);
	return 0;

drop_region:
	dqm_region_drop(&region);
	return error;
}

static void __exit copy_exit(void)
{
	/* The device is not open any more, so no copy is under way. */
	misc_deregister(&copy_device);
	dqm_engine_stop(&engine);
	dqm_region_drop(&region);
}

module_init(copy_init);
module_exit(copy_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Copies between user and kernel memory, by CPU or DMA, timed one by one");
