// SPDX-License-Identifier: GPL-2.0
/*
 * The benchmark memory: taken at load, so that no copy waits for memory. Huge
 * blocks where the machine has them, or a gigabyte would be 262,144 runs.
 */
#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "copy.h"

#define HUGE_ORDER (PMD_SHIFT - PAGE_SHIFT)

static void free_blocks(struct dqm_region *region, unsigned long filled)
{
	unsigned long at;

	for (at = 0; at < filled; at += 1UL << region->order)
		__free_pages(region->pages[at], region->order);
}

static int fill(struct dqm_region *region, unsigned int order)
{
	gfp_t more = order ? __GFP_NORETRY | __GFP_COMP : 0;
	gfp_t flags = GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN | more;
	unsigned long at, page;

	region->order = order;
	for (at = 0; at < region->count; at += 1UL << order) {
		struct page *block = alloc_pages(flags, order);

		if (!block) {
			free_blocks(region, at);
			return -ENOMEM;
		}
		for (page = 0; page < 1UL << order; page++)
			region->pages[at + page] = block + page;
		cond_resched();
	}
	return 0;
}

int dqm_region_make(struct dqm_region *region, unsigned long bytes)
{
	unsigned long blocks = DIV_ROUND_UP(bytes, PMD_SIZE);

	region->count = blocks << HUGE_ORDER;
	if (region->count > totalram_pages() / 4 * 3)
		return -ENOMEM;
	region->pages = kvcalloc(region->count, sizeof(*region->pages), GFP_KERNEL);
	if (!region->pages)
		return -ENOMEM;
	region->huge = !fill(region, HUGE_ORDER);
	if (!region->huge && fill(region, 0)) {
		kvfree(region->pages);
		region->pages = NULL;
		return -ENOMEM;
	}
	return 0;
}

void dqm_region_drop(struct dqm_region *region)
{
	if (!region->pages)
		return;
	free_blocks(region, region->count);
	kvfree(region->pages);
	region->pages = NULL;
}
