/* SPDX-License-Identifier: GPL-2.0 */
/* What kernels call differently: see probe.c. */
#ifndef ADMA_COMPAT_H
#define ADMA_COMPAT_H

#include <linux/list_lru.h>
#include <linux/mm.h>

#ifdef ADMA_HAS_LIST_LRU_ADD_OBJ
#define adma_lru_add	list_lru_add_obj
#define adma_lru_del	list_lru_del_obj
#else
#define adma_lru_add	list_lru_add
#define adma_lru_del	list_lru_del
#endif

#ifdef ADMA_HAS_ISOLATE_WITHOUT_LOCK
#define ADMA_ISOLATE(name, item, list, arg) \
	enum lru_status name(struct list_head *item, \
			     struct list_lru_one *list, void *arg)
#else
#define ADMA_ISOLATE(name, item, list, arg) \
	enum lru_status name(struct list_head *item, \
			     struct list_lru_one *list, \
			     spinlock_t *lock, void *arg)
#endif

#ifndef ADMA_HAS_VM_FLAGS_MOD
static inline void vm_flags_mod(struct vm_area_struct *vma, vm_flags_t set,
				vm_flags_t clear)
{
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
}
#endif

#endif /* ADMA_COMPAT_H */
