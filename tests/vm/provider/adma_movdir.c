// SPDX-License-Identifier: GPL-2.0
/*
 * MOVDIR64B for processors without it, as QEMU's are: idxd does not load without
 * the instruction and submits descriptors by it.
 *
 * Load this before idxd. It sets the processor's feature bit, and carries the
 * instruction out as eight stores of 8 bytes when it is not known (#UD). Those of
 * two processors must not mix in a portal, and interrupts are off in a trap.
 */
#include <linux/io.h>
#include <linux/kdebug.h>
#include <linux/module.h>
#include <linux/spinlock.h>
#include <asm/cpufeature.h>
#include <asm/traps.h>

/* movdir64b (%rdx), %rax: as movdir64b() of the kernel has it */
static const u8 code[] = { 0x66, 0x0f, 0x38, 0xf8, 0x02 };

static DEFINE_RAW_SPINLOCK(portal_lock);

static int on_trap(struct notifier_block *nb, unsigned long event, void *data)
{
	struct die_args *args = data;
	struct pt_regs *regs = args->regs;
	const u64 *from;
	u64 __iomem *to;
	int i;

	if (event != DIE_TRAP || args->trapnr != X86_TRAP_UD || user_mode(regs) ||
	    memcmp((void *)regs->ip, code, sizeof(code)))
		return NOTIFY_DONE;
	from = (const u64 *)regs->dx;
	to = (u64 __iomem *)regs->ax;
	raw_spin_lock(&portal_lock);
	for (i = 0; i < 8; i++)
		writeq(from[i], &to[i]);
	raw_spin_unlock(&portal_lock);
	regs->ip += sizeof(code);
	return NOTIFY_STOP;
}

static struct notifier_block trap_notifier = { .notifier_call = on_trap };

static int __init movdir_init(void)
{
	if (boot_cpu_has(X86_FEATURE_MOVDIR64B))
		return 0;
	set_cpu_cap(&boot_cpu_data, X86_FEATURE_MOVDIR64B);
	return register_die_notifier(&trap_notifier);
}
module_init(movdir_init);

MODULE_DESCRIPTION("MOVDIR64B on #UD, for tests of idxd");
MODULE_LICENSE("GPL");
