/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Events: where a copy spends its time. perf trace -e 'adma:*' shows them; in
 * units of bytes, pages, and numbers of requests as the caller knows them.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM adma

#if !defined(ADMA_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define ADMA_TRACE_H

#include <linux/tracepoint.h>

/* A request is handed over, or refused. */
TRACE_EVENT(adma_submit,
	    TP_PROTO(u64 id, unsigned int pieces, unsigned int accepted,
		     u64 bytes, unsigned int pinned, int ret),
	    TP_ARGS(id, pieces, accepted, bytes, pinned, ret),
	    TP_STRUCT__entry(__field(u64, id)
			     __field(u64, bytes)
			     __field(unsigned int, pieces)
			     __field(unsigned int, accepted)
			     __field(unsigned int, pinned)
			     __field(int, ret)),
	    TP_fast_assign(__entry->id = id;
			   __entry->bytes = bytes;
			   __entry->pieces = pieces;
			   __entry->accepted = accepted;
			   __entry->pinned = pinned;
			   __entry->ret = ret;),
	    TP_printk("id=%llu pieces=%u accepted=%u bytes=%llu pinned=%u ret=%d",
		      __entry->id, __entry->pieces, __entry->accepted,
		      __entry->bytes, __entry->pinned, __entry->ret)
);

/* No channel reads or writes its memory any more. */
TRACE_EVENT(adma_complete,
	    TP_PROTO(u64 id, u64 bytes, u64 failed),
	    TP_ARGS(id, bytes, failed),
	    TP_STRUCT__entry(__field(u64, id)
			     __field(u64, bytes)
			     __field(u64, failed)),
	    TP_fast_assign(__entry->id = id;
			   __entry->bytes = bytes;
			   __entry->failed = failed;),
	    TP_printk("id=%llu bytes=%llu failed=%#llx",
		      __entry->id, __entry->bytes, __entry->failed)
);

/* Pages of a range are pinned; a negative number says why not. */
TRACE_EVENT(adma_pin,
	    TP_PROTO(unsigned long addr, unsigned int pages, int pinned),
	    TP_ARGS(addr, pages, pinned),
	    TP_STRUCT__entry(__field(unsigned long, addr)
			     __field(unsigned int, pages)
			     __field(int, pinned)),
	    TP_fast_assign(__entry->addr = addr;
			   __entry->pages = pages;
			   __entry->pinned = pinned;),
	    TP_printk("addr=%#lx pages=%u pinned=%d",
		      __entry->addr, __entry->pages, __entry->pinned)
);

/* The program changes pages that are pinned. */
TRACE_EVENT(adma_invalidate,
	    TP_PROTO(unsigned long start, unsigned long end),
	    TP_ARGS(start, end),
	    TP_STRUCT__entry(__field(unsigned long, start)
			     __field(unsigned long, end)),
	    TP_fast_assign(__entry->start = start;
			   __entry->end = end;),
	    TP_printk("start=%#lx end=%#lx", __entry->start, __entry->end)
);

/* A channel is used (0), put aside (1) or left out (2). */
TRACE_EVENT(adma_channel,
	    TP_PROTO(const char *name, unsigned int health),
	    TP_ARGS(name, health),
	    TP_STRUCT__entry(__array(char, name, 32)
			     __field(unsigned int, health)),
	    TP_fast_assign(strscpy(__entry->name, name, 32);
			   __entry->health = health;),
	    TP_printk("%s health=%u", __entry->name, __entry->health)
);

#endif /* ADMA_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
