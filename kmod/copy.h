/* SPDX-License-Identifier: GPL-2.0 */
/* What the parts of daqmeter_copy share. */
#ifndef DAQMETER_COPY_H
#define DAQMETER_COPY_H

#include <linux/atomic.h>
#include <linux/completion.h>
#include <linux/dma-direction.h>
#include <linux/dmaengine.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/scatterlist.h>
#include <linux/wait.h>

#include "daqmeter_uapi.h"

/* The kernel's side of every copy: pages taken when the module is loaded. */
struct dqm_region {
	struct page **pages;
	unsigned long count;
	unsigned int order;	/* of the blocks that the pages came in */
	bool huge;
};

int dqm_region_make(struct dqm_region *region, unsigned long bytes);
void dqm_region_drop(struct dqm_region *region);

/* One side of a copy: a byte range over whole pages. */
struct dqm_side {
	struct page **pages;
	unsigned long count;
	unsigned int offset;	/* into the first page */
	size_t bytes;
	bool user;
	bool written;
	struct mm_struct *mm;	/* whose pins they are */
	struct sg_table table;
	bool mapped;
	enum dma_data_direction direction;
};

int dqm_side_pin(struct dqm_side *side, u64 address, size_t bytes, bool written,
		 bool for_engine);
void dqm_side_unpin(struct dqm_side *side);
void dqm_side_of_region(struct dqm_side *side, struct dqm_region *region,
			size_t offset, size_t bytes, bool written);
int dqm_side_map(struct dqm_side *side, struct device *dev);
void dqm_side_unmap(struct dqm_side *side, struct device *dev);
bool dqm_can_flush(void);
void dqm_side_flush(const struct dqm_side *side);
unsigned long dqm_pinned(void);

/* Physically contiguous bytes from a place of the side; sets the address. */
size_t dqm_side_run(const struct dqm_side *side, size_t at, void **address);

/* The two sides of a DMA copy, kept together until the engine lets go. */
struct dqm_job {
	struct dqm_side from;
	struct dqm_side to;
	struct list_head list;
};

void dqm_job_release(struct dqm_job *job, struct device *dev);

struct dqm_channel {
	struct dma_chan *chan;
	unsigned int index;
	bool unordered;
	bool pauses;
	bool terminates;
	bool software;
	bool stuck;
	/*
	 * One copy at a time: the policies are about who waits for whom.
	 * Held while descriptors are submitted and waited for.
	 */
	struct mutex lock;
	atomic_t queued;	/* copies that hold or wait for the lock */
	/*
	 * Completions carry the generation of their batch. One that is not
	 * the present one belongs to a copy that was given up; it must touch
	 * nothing of what has been reused since.
	 */
	spinlock_t batch_lock;	/* generation, pending, failed */
	u32 generation;
	unsigned int pending;
	bool failed;
	wait_queue_head_t idle;
	struct list_head quarantine;
	u64 copies;
	u64 bytes;
	u64 failures;
	u64 timeouts;
	atomic64_t late;
};

struct dqm_engine {
	struct dqm_channel *channels;
	unsigned int count;
	struct daqmeter_policy policy;	/* its number goes on after NONE, too */
	unsigned int turn;	/* shared: where the search for a channel begins */
	atomic64_t quarantined;
};

void dqm_engine_prepare(void);
int dqm_engine_set(struct dqm_engine *engine, const struct daqmeter_policy *policy,
		   const char *provider);
void dqm_engine_stop(struct dqm_engine *engine);
struct dqm_channel *dqm_engine_choose(struct dqm_engine *engine, u32 wanted);
struct device *dqm_channel_device(const struct dqm_channel *channel);
int dqm_channel_copy(struct dqm_engine *engine, struct dqm_channel *channel,
		     struct dqm_job *job, u32 completion, u32 timeout_ms, u32 *segments);
void dqm_channel_keep(struct dqm_engine *engine, struct dqm_channel *channel,
		      struct dqm_job *job);

/* The gate of the priority policy. */
void dqm_gate_start(struct dqm_engine *engine);
void dqm_gate_stop(struct dqm_engine *engine);
bool dqm_gate_open(const struct dqm_engine *engine, const struct dqm_channel *channel);
int dqm_gate_wait(const struct dqm_engine *engine, const struct dqm_channel *channel,
		  bool polled, unsigned long until);
void dqm_gate_report(struct daqmeter_info *info);

#endif
