// SPDX-License-Identifier: GPL-2.0
/*
 * Spans: lines side by side that are pinned, and mapped for every device, before
 * anything is copied. Each side of a copy between processes is one, made by the
 * process whose memory it is.
 */
#include <linux/mm.h>
#include <linux/slab.h>

#include "adma.h"

/* How often lines are pinned anew that have died while they were pinned. */
#define ADMA_SPAN_TRIES	3

struct adma_span *adma_span_new(unsigned int lines)
{
	struct adma_span *span;

	return kvzalloc(struct_size(span, line, lines), GFP_KERNEL_ACCOUNT);
}

void adma_span_put(struct adma_span *span)
{
	unsigned int i;

	for (i = 0; span && i < span->nr; i++)
		adma_line_put(span->line[i]);
	kvfree(span);
}

static int adma_span_try(struct adma_line *line, u64 addr, size_t len,
			 unsigned int *pinned)
{
	unsigned int device;
	int ret = 0;

	for (device = 0; device < adma_nr_devices && !ret; device++)
		ret = adma_line_fill(line, adma_page_in_line(addr),
				     adma_pages_until(addr, len), device, true,
				     pinned);
	return ret;
}

static struct adma_line *adma_span_line(struct adma_file *file, u64 addr,
					size_t len, bool write,
					unsigned int *pinned)
{
	u64 number = adma_line_of(addr);
	struct adma_line *line;
	bool alone = false;
	unsigned int tries;
	int ret = 0;

	for (tries = 0; tries < ADMA_SPAN_TRIES; tries++) {
		if (alone)
			line = adma_line_new(file, number, write, ADMA_LASTING);
		else
			line = adma_line_get_lasting(file, number, write);
		if (IS_ERR(line))
			return line;
		ret = adma_span_try(line, addr, len, pinned);
		if (!ret)
			return line;
		adma_line_put(line);
		/*
		 * A line that others share may be busy, or be for writing where
		 * that is not allowed.
		 */
		if (ret != -ESTALE && ret != -EBUSY && ret != -EFAULT)
			break;
		if (ret != -ESTALE) {
			if (alone)
				break;
			alone = true;
		}
	}
	return ERR_PTR(ret == -ESTALE ? -EFAULT : ret);
}

/*
 * Adds the lines of a stretch of the caller's memory, pinned and mapped. Also
 * with an error some of them may have come; the first *good bytes are in them.
 */
int adma_span_fill(struct adma_span *span, struct adma_file *file, u64 addr,
		   u64 len, bool write, u64 *good, unsigned int *pinned)
{
	u64 at = 0;

	while (at < len) {
		size_t part = min_t(u64, adma_line_rest(addr + at), len - at);
		struct adma_line *line;

		line = adma_span_line(file, addr + at, part, write, pinned);
		if (IS_ERR(line))
			return PTR_ERR(line);
		span->line[span->nr++] = line;
		at += part;
		*good = at;
	}
	return 0;
}
