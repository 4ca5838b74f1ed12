// SPDX-License-Identifier: GPL-2.0
/*
 * daqmeter_trace: every call of copy_from_user, copy_to_user and their __
 * forms, with size, times, caller and process.
 *
 * lib/ is compiled without ftrace calls, so ftrace, fprobe and tracefs probes
 * refuse these functions; a kretprobe of a module does not. The __ forms are
 * inline and call an assembly helper that the kernel chooses at boot; a helper
 * called from within the two outer functions has been counted there already.
 * On CPUs with FSRM, 6.4 and later copy inline without any call: then the __
 * forms cannot be seen, and the info says so.
 *
 * Rings are per CPU and operation, stop when full, and count what they drop.
 */
#include <linux/cpuhotplug.h>
#include <linux/kallsyms.h>
#include <linux/kprobes.h>
#include <linux/ktime.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <linux/vmalloc.h>

#include "daqmeter_uapi.h"

/* Calls may sleep in a page fault, each with its instance. */
#define INSTANCES 512

static unsigned int ring_records = 16384;
module_param(ring_records, uint, 0444);
MODULE_PARM_DESC(ring_records, "records in each ring, one ring for each CPU and operation (16384)");

static bool inline_forms = true;
module_param(inline_forms, bool, 0444);
MODULE_PARM_DESC(inline_forms, "probe the helpers of the __ forms, too; without, a record costs less (Y)");

/*
 * One writer (this CPU, interrupts off) and one reader (the open file). head
 * is published with release after the record is complete, the reader loads it
 * with acquire; tail the other way round.
 */
struct ring {
	struct daqmeter_trace_record *records;
	unsigned long head;
	unsigned long tail;
	u64 counter;
	u64 dropped;
};

static DEFINE_PER_CPU(struct ring [DAQMETER_OPERATIONS], rings);
static DEFINE_MUTEX(control);
static bool opened;
static bool running;
static pid_t reader;

enum probe_kind { OUTER_FROM, OUTER_TO, HELPER, HELPER_RCX };

struct probe {
	struct kretprobe at;
	const char *symbol;
	enum probe_kind kind;
	bool registered;
};

struct call {
	u64 before_ns;
	u64 bytes;
	u64 caller;
	u32 begin_cpu;
	u16 operation;
};

static struct probe probes[] = {
	{ .symbol = "_copy_from_user", .kind = OUTER_FROM },
	{ .symbol = "_copy_to_user", .kind = OUTER_TO },
	/* 6.1: one of the three, by what the CPU is good at. */
	{ .symbol = "copy_user_enhanced_fast_string", .kind = HELPER },
	{ .symbol = "copy_user_generic_string", .kind = HELPER },
	{ .symbol = "copy_user_generic_unrolled", .kind = HELPER },
	/* 6.4 and later without FSRM: called in place of rep movsb, so the length is in rcx. */
	{ .symbol = "rep_movs_alternative", .kind = HELPER_RCX },
};

/* The outer functions' code, to know a helper that they call. */
static struct { unsigned long start, end; } outer[2];

static bool within_outer(unsigned long address)
{
	return (address >= outer[0].start && address < outer[0].end) ||
	       (address >= outer[1].start && address < outer[1].end);
}

/*
 * The probe sits on the first instruction (behind endbr64), so the return
 * address is still on top of the stack; the instance learns it only later.
 */
static int entered(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct probe *probe = container_of(get_kretprobe(instance), struct probe, at);
	struct call *call = (struct call *)instance->data;

	if (current->tgid == READ_ONCE(reader))
		return 1;
	call->caller = *(unsigned long *)regs->sp;
	call->bytes = probe->kind == HELPER_RCX ? regs->cx : regs->dx;
	switch (probe->kind) {
	case OUTER_FROM:
		call->operation = DAQMETER_COPY_FROM_USER;
		break;
	case OUTER_TO:
		call->operation = DAQMETER_COPY_TO_USER;
		break;
	default:
		if (within_outer(call->caller))
			return 1;
		/* Destination in rdi: of the two, the user's address is the low one. */
		call->operation = regs->di < TASK_SIZE_MAX ? DAQMETER___COPY_TO_USER :
							     DAQMETER___COPY_FROM_USER;
	}
	call->begin_cpu = raw_smp_processor_id();
	call->before_ns = ktime_get_mono_fast_ns();
	return 0;
}

NOKPROBE_SYMBOL(entered);

static int left(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	u64 now = ktime_get_mono_fast_ns();
	const struct call *call = (struct call *)instance->data;
	struct daqmeter_trace_record *record;
	unsigned long flags;
	struct ring *ring;

	/* An interrupt on this CPU may copy, too (perf, for one). */
	local_irq_save(flags);
	ring = &(*this_cpu_ptr(&rings))[call->operation];
	/* Acquire: the reader has copied what lies before its tail. */
	if (ring->head - smp_load_acquire(&ring->tail) >= ring_records) {
		ring->counter++;
		ring->dropped++;
		goto out;
	}
	record = &ring->records[ring->head % ring_records];
	record->counter = ring->counter++;
	record->bytes = call->bytes;
	record->before_ns = call->before_ns;
	record->after_ns = now;
	record->caller = call->caller;
	record->ring_cpu = smp_processor_id();
	record->begin_cpu = call->begin_cpu;
	record->pid = current->tgid;
	record->operation = call->operation;
	record->by = DAQMETER_BY_CPU;
	memcpy(record->comm, current->comm, sizeof(record->comm));
	/* Release: the record is complete before the reader sees it. */
	smp_store_release(&ring->head, ring->head + 1);
out:
	local_irq_restore(flags);
	return 0;
}

NOKPROBE_SYMBOL(left);

/* "name+0x0/0x5d [module]": the size is behind the slash. */
static unsigned long size_of_symbol(unsigned long address)
{
	char text[KSYM_SYMBOL_LEN];
	unsigned long size = 0;
	char *slash;

	sprint_symbol(text, address);
	slash = strrchr(text, '/');
	if (!slash || sscanf(slash + 1, "%lx", &size) != 1)
		return 0;
	return size;
}

static void drop_probes(void)
{
	unsigned int at;

	for (at = 0; at < ARRAY_SIZE(probes); at++) {
		if (probes[at].registered)
			unregister_kretprobe(&probes[at].at);
		probes[at].registered = false;
	}
}

static int set_probes(void)
{
	unsigned int at;

	for (at = 0; at < ARRAY_SIZE(probes); at++) {
		struct probe *probe = &probes[at];
		int error;

		if (probe->kind >= HELPER && !inline_forms)
			continue;
		memset(&probe->at, 0, sizeof(probe->at));
		probe->at.kp.symbol_name = probe->symbol;
		probe->at.entry_handler = entered;
		probe->at.handler = left;
		probe->at.data_size = sizeof(struct call);
		probe->at.maxactive = INSTANCES;
		error = register_kretprobe(&probe->at);
		probe->registered = !error;
		if (error && probe->kind < HELPER) {
			pr_err("daqmeter_trace: no probe on %s: %d\n", probe->symbol, error);
			drop_probes();
			return error;
		}
		if (probe->kind < HELPER) {
			outer[at].start = (unsigned long)probe->at.kp.addr & ~0xfUL;
			outer[at].end = outer[at].start + size_of_symbol(outer[at].start);
		}
	}
	return 0;
}

static void free_rings(void)
{
	unsigned int cpu, at;

	for_each_possible_cpu(cpu) {
		for (at = 0; at < DAQMETER_OPERATIONS; at++) {
			struct ring *ring = &per_cpu(rings, cpu)[at];

			vfree(ring->records);
			memset(ring, 0, sizeof(*ring));
		}
	}
}

/*
 * Before a CPU comes online: many are possible that never do. The rings of one
 * that goes offline are kept with their records.
 */
static int make_rings(unsigned int cpu)
{
	size_t bytes = array_size(ring_records, sizeof(struct daqmeter_trace_record));
	unsigned int at;

	for (at = 0; at < DAQMETER_OPERATIONS; at++) {
		struct ring *ring = &per_cpu(rings, cpu)[at];

		if (!ring->records)
			ring->records = vzalloc_node(bytes, cpu_to_node(cpu));
		if (!ring->records)
			return -ENOMEM;
	}
	return 0;
}

/* Rings begin empty; what a former run left has been given up with its file. */
static void empty_rings(void)
{
	unsigned int cpu, at;

	for_each_possible_cpu(cpu) {
		for (at = 0; at < DAQMETER_OPERATIONS; at++) {
			struct ring *ring = &per_cpu(rings, cpu)[at];

			ring->head = 0;
			ring->tail = 0;
			ring->counter = 0;
			ring->dropped = 0;
		}
	}
}

static unsigned long missed;

static int start(void)
{
	int error;

	if (running)
		return -EBUSY;
	empty_rings();
	missed = 0;
	reader = current->tgid;
	error = set_probes();
	running = !error;
	return error;
}

static void count_missed(void)
{
	unsigned int at;

	missed = 0;
	for (at = 0; at < ARRAY_SIZE(probes); at++)
		missed += probes[at].at.nmissed + probes[at].at.kp.nmissed;
}

/* Unregistering waits until no handler runs any more. */
static void stop(void)
{
	if (!running)
		return;
	count_missed();
	drop_probes();
	running = false;
}

static u32 seen_operations(void)
{
	u32 seen = BIT(DAQMETER_COPY_FROM_USER) | BIT(DAQMETER_COPY_TO_USER);
	unsigned int at;

	for (at = 0; at < ARRAY_SIZE(probes); at++) {
		if (!probes[at].registered || probes[at].kind < HELPER)
			continue;
		/* The helper exists also where FSRM replaced its calls. */
		if (probes[at].kind == HELPER_RCX && boot_cpu_has(X86_FEATURE_FSRM))
			continue;
		seen |= BIT(DAQMETER___COPY_FROM_USER) | BIT(DAQMETER___COPY_TO_USER);
	}
	return seen;
}

static long give_info(void __user *argument)
{
	struct daqmeter_trace_info info = { .abi = DAQMETER_ABI };
	unsigned int cpu, at;
	u32 abi;

	if (get_user(abi, (u32 __user *)argument))
		return -EFAULT;
	if (abi != DAQMETER_ABI)
		return put_user(info.abi, (u32 __user *)argument) ? -EFAULT : -EPROTO;
	info.running = running;
	info.cpus = num_online_cpus();
	info.ring_records = ring_records;
	info.probed = running ? seen_operations() : 0;
	for_each_possible_cpu(cpu) {
		for (at = 0; at < DAQMETER_OPERATIONS; at++) {
			const struct ring *ring = &per_cpu(rings, cpu)[at];

			info.recorded[at] += READ_ONCE(ring->counter) - READ_ONCE(ring->dropped);
			info.dropped[at] += READ_ONCE(ring->dropped);
		}
	}
	if (running)
		count_missed();
	info.missed = missed;
	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static long trace_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	long error = 0;

	mutex_lock(&control);
	switch (command) {
	case DAQMETER_IOC_TRACE_INFO:
		error = give_info((void __user *)argument);
		break;
	case DAQMETER_IOC_TRACE_START:
		error = start();
		break;
	case DAQMETER_IOC_TRACE_STOP:
		stop();
		break;
	default:
		error = -ENOTTY;
	}
	mutex_unlock(&control);
	return error;
}

static ssize_t drain(struct ring *ring, char __user *buffer, size_t room)
{
	const size_t each = sizeof(*ring->records);
	/* Acquire: records before the head are complete. */
	unsigned long head = smp_load_acquire(&ring->head);
	unsigned long at = ring->tail % ring_records;
	unsigned long count = min3(head - ring->tail, ring_records - at, room / each);

	if (copy_to_user(buffer, &ring->records[at], count * each))
		return -EFAULT;
	/* Release: copied, the writer may use the room again. */
	smp_store_release(&ring->tail, ring->tail + count);
	return count * each;
}

/* Whole records of any ring; 0 when all are empty. It never waits. */
static ssize_t trace_read(struct file *file, char __user *buffer, size_t bytes, loff_t *place)
{
	unsigned int cpu, at, twice;
	ssize_t done = 0;

	if (bytes < sizeof(struct daqmeter_trace_record))
		return -EINVAL;
	mutex_lock(&control);
	for_each_possible_cpu(cpu) {
		/* Twice: the second time what lies behind the wrap. */
		for (at = 0, twice = 0; at < DAQMETER_OPERATIONS; at += twice, twice = !twice) {
			ssize_t got = drain(&per_cpu(rings, cpu)[at], buffer + done, bytes - done);

			if (got < 0) {
				done = done ?: got;
				goto out;
			}
			done += got;
		}
	}
out:
	mutex_unlock(&control);
	return done;
}

static int trace_open(struct inode *inode, struct file *file)
{
	int error = 0;

	mutex_lock(&control);
	if (opened)
		error = -EBUSY;
	else
		opened = true;
	mutex_unlock(&control);
	return error;
}

static int trace_release(struct inode *inode, struct file *file)
{
	mutex_lock(&control);
	stop();
	opened = false;
	mutex_unlock(&control);
	return 0;
}

static const struct file_operations trace_operations = {
	.owner = THIS_MODULE,
	.open = trace_open,
	.release = trace_release,
	.read = trace_read,
	.unlocked_ioctl = trace_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct miscdevice trace_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "daqmeter-trace",
	.fops = &trace_operations,
	.mode = 0600,
};

static int hotplug_state;

static int __init tracer_init(void)
{
	int error;

	if (ring_records < 16 || ring_records > 1U << 22)
		return -EINVAL;
	hotplug_state = cpuhp_setup_state(CPUHP_BP_PREPARE_DYN, "daqmeter:trace", make_rings,
					  NULL);
	if (hotplug_state < 0) {
		error = hotplug_state;
		goto free;
	}
	error = misc_register(&trace_device);
	if (error)
		goto remove_state;
	pr_info("daqmeter_trace: %u CPUs, %u records a ring, ABI %d\n",
		num_online_cpus(), ring_records, DAQMETER_ABI);
	return 0;

remove_state:
	cpuhp_remove_state_nocalls(hotplug_state);
free:
	free_rings();
	return error;
}

static void __exit tracer_exit(void)
{
	misc_deregister(&trace_device);
	cpuhp_remove_state_nocalls(hotplug_state);
	free_rings();
}

module_init(tracer_init);
module_exit(tracer_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Traces copies between user and kernel memory, call by call");
