// SPDX-License-Identifier: GPL-2.0
/*
 * Never part of the module: Kbuild tries to compile it with one of these names
 * defined, and defines the name for the module if that works. A version would
 * not tell, for distributions take newer interfaces into older kernels.
 */
#include <linux/list_lru.h>
#include <linux/mm.h>
#include <linux/shrinker.h>

#ifdef ADMA_HAS_SHRINKER_ALLOC
typeof(shrinker_alloc) *probe = shrinker_alloc;
#endif

#ifdef ADMA_HAS_LIST_LRU_ADD_OBJ
typeof(list_lru_add_obj) *probe = list_lru_add_obj;
#endif

#ifdef ADMA_HAS_ISOLATE_WITHOUT_LOCK
enum lru_status probe_isolate(struct list_head *item, struct list_lru_one *list,
			      void *arg);
list_lru_walk_cb probe = probe_isolate;
#endif

#ifdef ADMA_HAS_VM_FLAGS_MOD
typeof(vm_flags_mod) *probe = vm_flags_mod;
#endif
