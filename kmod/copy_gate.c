// SPDX-License-Identifier: GPL-2.0
/*
 * The priority policy: in each window the high channels own the engine for a
 * quantum, and low channels hold their work back.
 *
 * Gating is done here, in the client, because today's memory-copy drivers do
 * not pause; where one does (dma_get_slave_caps), its low channels are paused
 * as well, a moment later. What the gate really did is accounted, since a timer
 * on a busy machine keeps no promise.
 */
#include <linux/hrtimer.h>
#include <linux/irq_work.h>
#include <linux/ktime.h>
#include <linux/sched.h>
#include <linux/sched/signal.h>
#include <linux/seqlock.h>
#include <linux/workqueue.h>

#include "compat.h"
#include "copy.h"

static struct {
	struct hrtimer timer;
	/*
	 * The timer fires in hard interrupt context, where sleepers must not
	 * be woken under PREEMPT_RT; irq_work is run where that is allowed.
	 */
	struct irq_work wake;
	/*
	 * Drivers pause under locks that they do not take in hard interrupts
	 * (spin_lock_bh), so that channels are paused by a thread.
	 */
	struct work_struct pause;
	wait_queue_head_t opened;
	struct dqm_engine *engine;
	bool pauses;		/* a channel can be paused: a work item costs a short window */
	bool high_only;
	ktime_t changed;
	u64 high_ns;
	u64 low_ns;
	u64 windows;
	seqcount_t sequence;	/* of the accounts; the timer is the one writer */
} gate;

static void wake(struct irq_work *work)
{
	if (!READ_ONCE(gate.high_only))
		wake_up_all(&gate.opened);
}

static void pause(struct work_struct *work)
{
	struct dqm_engine *engine = gate.engine;
	unsigned int at;

	for (at = 0; at < engine->count; at++) {
		struct dqm_channel *channel = &engine->channels[at];

		if (!channel->pauses || engine->policy.high_channels & BIT_ULL(at))
			continue;
		if (READ_ONCE(gate.high_only))
			dmaengine_pause(channel->chan);
		else
			dmaengine_resume(channel->chan);
	}
}

static enum hrtimer_restart toggle(struct hrtimer *timer)
{
	const struct daqmeter_policy *policy = &gate.engine->policy;
	ktime_t now = ktime_get();
	u64 lasted = ktime_to_ns(ktime_sub(now, gate.changed));

	write_seqcount_begin(&gate.sequence);
	if (gate.high_only) {
		gate.high_ns += lasted;
	} else {
		gate.low_ns += lasted;
		gate.windows++;
	}
	gate.changed = now;
	write_seqcount_end(&gate.sequence);
	WRITE_ONCE(gate.high_only, !gate.high_only);
	irq_work_queue(&gate.wake);
	if (gate.pauses)
		queue_work(system_highpri_wq, &gate.pause);
	hrtimer_forward_now(timer, ns_to_ktime(gate.high_only ? policy->quantum_ns :
					       policy->window_ns - policy->quantum_ns));
	return HRTIMER_RESTART;
}

void dqm_gate_start(struct dqm_engine *engine)
{
	unsigned int at;

	if (engine->policy.policy != DAQMETER_POLICY_PRIORITY)
		return;
	memset(&gate, 0, sizeof(gate));
	seqcount_init(&gate.sequence);
	init_waitqueue_head(&gate.opened);
	init_irq_work(&gate.wake, wake);
	INIT_WORK(&gate.pause, pause);
	gate.engine = engine;
	for (at = 0; at < engine->count; at++)
		gate.pauses |= engine->channels[at].pauses;
	gate.high_only = true;
	gate.changed = ktime_get();
	dqm_hrtimer_setup(&gate.timer, toggle, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
	hrtimer_start(&gate.timer, ns_to_ktime(engine->policy.quantum_ns), HRTIMER_MODE_REL_HARD);
}

void dqm_gate_stop(struct dqm_engine *engine)
{
	if (!gate.engine)
		return;
	hrtimer_cancel(&gate.timer);
	irq_work_sync(&gate.wake);
	cancel_work_sync(&gate.pause);
	WRITE_ONCE(gate.high_only, false);
	pause(&gate.pause);
	wake(&gate.wake);
	gate.engine = NULL;
}

bool dqm_gate_open(const struct dqm_engine *engine, const struct dqm_channel *channel)
{
	return engine->policy.policy != DAQMETER_POLICY_PRIORITY ||
		engine->policy.high_channels & BIT_ULL(channel->index) ||
		!READ_ONCE(gate.high_only);
}

int dqm_gate_wait(const struct dqm_engine *engine, const struct dqm_channel *channel,
		  bool polled, unsigned long until)
{
	if (dqm_gate_open(engine, channel))
		return 0;
	if (!polled) {
		long left = wait_event_killable_timeout(gate.opened,
							dqm_gate_open(engine, channel),
							max(1L, (long)(until - jiffies)));

		return left < 0 ? -EINTR : left ? 0 : -ETIMEDOUT;
	}
	while (!dqm_gate_open(engine, channel)) {
		if (time_after(jiffies, until))
			return -ETIMEDOUT;
		if (fatal_signal_pending(current))
			return -EINTR;
		cpu_relax();
		cond_resched();
	}
	return 0;
}

void dqm_gate_report(struct daqmeter_info *info)
{
	unsigned int sequence;

	if (!gate.engine)
		return;
	do {
		sequence = read_seqcount_begin(&gate.sequence);
		info->gate_high_ns = gate.high_ns;
		info->gate_low_ns = gate.low_ns;
		info->gate_windows = gate.windows;
	} while (read_seqcount_retry(&gate.sequence, sequence));
}
