// SPDX-License-Identifier: GPL-2.0
/* The pages on both sides of a copy: pinned, mapped for an engine, flushed. */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#ifdef CONFIG_X86
#include <asm/cacheflush.h>
#endif

#include "copy.h"

/* Pages of one call to the pinning function: a signal is looked at between. */
#define PIN_BATCH 1024

static atomic64_t pinned_pages;

unsigned long dqm_pinned(void)
{
	return atomic64_read(&pinned_pages);
}

/*
 * Pinned pages cannot be moved or swapped, so they count against
 * RLIMIT_MEMLOCK like those of RDMA: the descriptor may have been inherited by
 * a program that could not open the device.
 */
static int account(struct dqm_side *side, unsigned long pages)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned long pinned = atomic64_add_return(pages, &current->mm->pinned_vm);

	if (pinned > limit && !capable(CAP_IPC_LOCK)) {
		atomic64_sub(pages, &current->mm->pinned_vm);
		return -ENOMEM;
	}
	/* The pins of an engine that cannot be stopped may outlive the program. */
	mmgrab(current->mm);
	side->mm = current->mm;
	return 0;
}

static void unaccount(struct dqm_side *side, unsigned long pages)
{
	atomic64_sub(pages, &side->mm->pinned_vm);
	mmdrop(side->mm);
	side->mm = NULL;
}

static int pin_pages(struct dqm_side *side, unsigned long start, unsigned long wanted,
		     unsigned int flags)
{
	int got = 0;

	for (side->count = 0; side->count < wanted; side->count += got) {
		unsigned int batch = min_t(unsigned long, wanted - side->count, PIN_BATCH);

		if (fatal_signal_pending(current))
			return -EINTR;
		got = pin_user_pages_fast(start + side->count * PAGE_SIZE, batch, flags,
					  side->pages + side->count);
		if (got <= 0)
			return got < 0 ? got : -EFAULT;
		atomic64_add(got, &pinned_pages);
		cond_resched();
	}
	return 0;
}

/*
 * A range that is not mapped gives -EFAULT, as does a read-only one that is to
 * be written. What an engine gets is pinned for long: if it cannot be stopped,
 * the pins stay until the channel is given back.
 */
int dqm_side_pin(struct dqm_side *side, u64 address, size_t bytes, bool written,
		 bool for_engine)
{
	unsigned int flags = (written ? FOLL_WRITE : 0) | (for_engine ? FOLL_LONGTERM : 0);
	unsigned long start = untagged_addr(address) & PAGE_MASK;
	unsigned long wanted;
	int error;

	side->offset = offset_in_page(address);
	wanted = DIV_ROUND_UP(side->offset + bytes, PAGE_SIZE);
	error = account(side, wanted);
	if (error)
		return error;
	side->pages = kvmalloc_array(wanted, sizeof(*side->pages), GFP_KERNEL);
	if (!side->pages) {
		unaccount(side, wanted);
		return -ENOMEM;
	}
	side->bytes = bytes;
	side->user = true;
	error = pin_pages(side, start, wanted, flags);
	if (error) {
		/* What was not pinned is not accounted; the rest goes with its pins. */
		atomic64_sub(wanted - side->count, &side->mm->pinned_vm);
		dqm_side_unpin(side);
		return error;
	}
	side->written = written;
	return 0;
}

void dqm_side_unpin(struct dqm_side *side)
{
	if (!side->user || !side->pages)
		return;
	unpin_user_pages_dirty_lock(side->pages, side->count, side->written);
	atomic64_sub(side->count, &pinned_pages);
	unaccount(side, side->count);
	kvfree(side->pages);
	side->pages = NULL;
	side->count = 0;
}

void dqm_side_of_region(struct dqm_side *side, struct dqm_region *region,
			size_t offset, size_t bytes, bool written)
{
	side->pages = region->pages + offset / PAGE_SIZE;
	side->offset = offset_in_page(offset);
	side->count = DIV_ROUND_UP(side->offset + bytes, PAGE_SIZE);
	side->bytes = bytes;
	side->user = false;
	side->written = written;
}

/*
 * The table merges neighbours, so huge pages become few segments; the DMA API
 * may merge further behind an IOMMU.
 */
int dqm_side_map(struct dqm_side *side, struct device *dev)
{
	unsigned int largest = min_t(size_t, dma_get_max_seg_size(dev), dma_max_mapping_size(dev));
	int error;

	side->direction = side->written ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
	largest = max_t(unsigned int, largest & PAGE_MASK, PAGE_SIZE);
	error = sg_alloc_table_from_pages_segment(&side->table, side->pages, side->count,
						  side->offset, side->bytes, largest, GFP_KERNEL);
	if (error)
		return error;
	error = dma_map_sgtable(dev, &side->table, side->direction, 0);
	if (error) {
		sg_free_table(&side->table);
		return error;
	}
	side->mapped = true;
	return 0;
}

void dqm_side_unmap(struct dqm_side *side, struct device *dev)
{
	if (!side->mapped)
		return;
	dma_unmap_sgtable(dev, &side->table, side->direction, 0);
	sg_free_table(&side->table);
	side->mapped = false;
}

size_t dqm_side_run(const struct dqm_side *side, size_t at, void **address)
{
	size_t place = side->offset + at;
	unsigned long page = place / PAGE_SIZE;
	size_t within = offset_in_page(place);
	size_t run = PAGE_SIZE - within;

	*address = page_address(side->pages[page]) + within;
	while (page + 1 < side->count && run < side->bytes - at &&
	       page_to_pfn(side->pages[page]) + 1 == page_to_pfn(side->pages[page + 1])) {
		run += PAGE_SIZE;
		page++;
	}
	return min(run, side->bytes - at);
}

bool dqm_can_flush(void)
{
	return IS_ENABLED(CONFIG_X86);
}

void dqm_side_flush(const struct dqm_side *side)
{
#ifdef CONFIG_X86
	size_t at = 0;

	while (at < side->bytes) {
		void *address;
		size_t run = dqm_side_run(side, at, &address);

		clflush_cache_range(address, run);
		at += run;
		cond_resched();
	}
#endif
}

void dqm_job_release(struct dqm_job *job, struct device *dev)
{
	dqm_side_unmap(&job->from, dev);
	dqm_side_unmap(&job->to, dev);
	dqm_side_unpin(&job->from);
	dqm_side_unpin(&job->to);
}
