/* SPDX-License-Identifier: GPL-2.0 */
/* Differences between kernel versions: see probe.c. */
#ifndef ADMA_COMPAT_H
#define ADMA_COMPAT_H

#include <linux/list_lru.h>
#include <linux/mm.h>

#ifndef ADMA_HAS_LIST_LRU_ADD_OBJ
#define list_lru_add_obj	list_lru_add
#define list_lru_del_obj	list_lru_del
#endif

#ifndef ADMA_HAS_VM_FLAGS_MOD
static inline void vm_flags_mod(struct vm_area_struct *vma, vm_flags_t set,
				vm_flags_t clear)
{
	vma->vm_flags = (vma->vm_flags | set) & ~clear;
}
#endif

#endif /* ADMA_COMPAT_H */
