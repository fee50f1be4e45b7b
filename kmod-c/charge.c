// SPDX-License-Identifier: GPL-2.0
/*
 * What pins are charged to: RLIMIT_MEMLOCK of the user and VmPin of the process,
 * as io_uring's are, and the file's own limit.
 *
 * A pinned page of a large folio keeps all of the folio in memory, so all of it is
 * charged, once for each file. Pages of hugetlbfs cannot be swapped in any case.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hugetlb.h>
#include <linux/memcontrol.h>
#include <linux/module.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>

#include "range.h"

static unsigned long adma_max_pages = 2 * ((64UL << 20) / PAGE_SIZE + ADMA_MAX_PIECES);
module_param_named(max_pages, adma_max_pages, ulong, 0644);
MODULE_PARM_DESC(max_pages, "pages pinned for one open file at most (default: enough for 64 MiB)");

/* Part of a control group's memory that one file may pin. */
#define ADMA_MEMCG_PART	8

/**
 * adma_page_limit() - pages that the caller may have pinned for one file
 *
 * Pages in flight cannot be swapped: where they are most of what a control group
 * may have, the next page fault kills.
 */
unsigned long adma_page_limit(void)
{
	unsigned long limit = READ_ONCE(adma_max_pages);
#ifdef CONFIG_MEMCG
	struct mem_cgroup *memcg;

	rcu_read_lock();
	for (memcg = mem_cgroup_from_task(current); memcg;
	     memcg = parent_mem_cgroup(memcg))
		limit = min(limit, READ_ONCE(memcg->memory.max) / ADMA_MEMCG_PART);
	rcu_read_unlock();
#endif
	return limit;
}

/* Returns how many pages from the first on are in one folio. */
static unsigned int adma_same_folio(struct page **pages, unsigned int nr)
{
	struct folio *folio = page_folio(pages[0]);
	unsigned int same = 1;

	while (same < nr && page_folio(pages[same]) == folio)
		same++;
	return same;
}

/*
 * Adds @pins (or takes them away) of a folio. Returns the pages that are held
 * because of it, and not without it, or -ENOMEM.
 */
static long adma_folio_pins(struct adma_mem *mem, struct folio *folio, long pins)
{
	unsigned long pfn = folio_pfn(folio);
	void *old, *new = NULL;
	long before, ret;

	if (!folio_test_large(folio) || folio_test_hugetlb(folio))
		return abs(pins);
	xa_lock(&mem->folios);
	old = xa_load(&mem->folios, pfn);
	before = old ? xa_to_value(old) : 0;
	if (before + pins)
		new = xa_mk_value(before + pins);
	ret = xa_err(__xa_store(&mem->folios, pfn, new,
				GFP_NOWAIT | __GFP_ACCOUNT | __GFP_NOWARN));
	xa_unlock(&mem->folios);
	if (ret)
		return ret;
	return !before || !new ? folio_nr_pages(folio) : 0;
}

static void adma_add_held(struct adma_mem *mem, long pages)
{
	atomic_long_add(pages, &mem->cred->user->locked_vm);
	atomic64_add(pages, &mem->mm->pinned_vm);
	atomic_long_add(pages, &mem->pages);
}

void adma_uncharge(struct adma_mem *mem, struct page **pages, unsigned int nr)
{
	unsigned int at, same;
	long held = 0;

	for (at = 0; at < nr; at += same) {
		same = adma_same_folio(pages + at, nr - at);
		held += adma_folio_pins(mem, page_folio(pages[at]), -(long)same);
	}
	adma_add_held(mem, -held);
}

/**
 * adma_charge() - charge pages that were just pinned
 * @mem: memory that they are part of
 * @pages: the pages
 * @nr: number of them
 *
 * Returns -EAGAIN at the file's limit, -ENOMEM at the user's.
 */
int adma_charge(struct adma_mem *mem, struct page **pages, unsigned int nr)
{
	unsigned long limit = rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
	unsigned int at, same;
	long held = 0, more;

	for (at = 0; at < nr; at += same) {
		same = adma_same_folio(pages + at, nr - at);
		more = adma_folio_pins(mem, page_folio(pages[at]), same);
		if (more < 0) {
			adma_add_held(mem, held);
			adma_uncharge(mem, pages, at);
			return more;
		}
		held += more;
	}
	adma_add_held(mem, held);
	if (atomic_long_read(&mem->pages) > adma_page_limit()) {
		adma_uncharge(mem, pages, nr);
		return -EAGAIN;
	}
	/* Without an audit record for each refusal. */
	if (atomic_long_read(&mem->cred->user->locked_vm) > limit &&
	    !ns_capable_noaudit(&init_user_ns, CAP_IPC_LOCK)) {
		adma_uncharge(mem, pages, nr);
		return -ENOMEM;
	}
	return 0;
}
