/* SPDX-License-Identifier: GPL-2.0 */
/* Where 6.1 and later kernels differ; nothing else asks for a version. */
#ifndef DAQMETER_COMPAT_H
#define DAQMETER_COMPAT_H

#include <linux/hrtimer.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
/* platform_driver.remove returns nothing (commit 0edb555a65d1). */
#define DQM_REMOVE(name, argument) void name(argument)
#define DQM_REMOVED
#else
#define DQM_REMOVE(name, argument) int name(argument)
#define DQM_REMOVED 0
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
#define dqm_hrtimer_setup hrtimer_setup
#else
static inline void dqm_hrtimer_setup(struct hrtimer *timer,
				     enum hrtimer_restart (*call)(struct hrtimer *),
				     clockid_t clock, enum hrtimer_mode mode)
{
	hrtimer_init(timer, clock, mode);
	timer->function = call;
}
#endif

#endif
