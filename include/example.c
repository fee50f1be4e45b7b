/*
 * Copies 64 MiB in the background and computes meanwhile:
 * compile with the line from README.md, and run it.
 */
#include <adma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(void)
{
	size_t len = (size_t)64 << 20;
	char *src = malloc(len), *dst = malloc(len);

	if (!src || !dst)
		return 1;
	memset(src, 'x', len);

	adma_cookie_t cookie = adma_icopy(src, dst, len);
	if (cookie < 0) {
		fprintf(stderr, "adma_icopy: %s\n", adma_strerror((int)cookie));
		return 1;
	}

	/* Anything but src and dst may be used here. */
	unsigned long turns = 0;
	volatile unsigned long sum = 0; /* real work: not a formula for it */
	int over;
	while ((over = adma_check_copy(cookie)) == 0)
		for (int i = 0; i < 10000; i++)
			sum += ++turns;
	if (over < 0) {
		fprintf(stderr, "adma_check_copy: %s\n", adma_strerror(over));
		return 1;
	}

	/* Now dst holds the bytes, and both buffers are ours again. */
	printf("copied %zu MiB, counted to %lu meanwhile (sum %lu)\n", len >> 20, turns, sum);
	return memcmp(src, dst, len) != 0;
}
