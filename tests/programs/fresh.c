/*
 * Copies into memory that was never touched, and what becomes of its pages.
 *
 * usage: fresh huge|asked_for_small|told_small|resident|mappings
 *
 * Prints what was found; the test compares. Exit status 77: cannot be shown here.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#define MIB (1ul << 20)

static char *mapped(size_t size)
{
	char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return at;
}

/* A source of small pages, so that what is huge afterwards is a destination. */
static char *source(size_t size)
{
	char *at = mapped(size);

	for (size_t i = 0; i < size; i += 4096)
		at[i] = (char)(i / 4096 + 1);
	return at;
}

static long field(const char *file, const char *name)
{
	char line[256];
	long value = -1;
	FILE *in = fopen(file, "r");

	while (in && fgets(line, sizeof(line), in))
		if (strncmp(line, name, strlen(name)) == 0)
			value = atol(line + strlen(name));
	if (in)
		fclose(in);
	return value;
}

static long huge_kib(void)
{
	return field("/proc/self/smaps_rollup", "AnonHugePages:");
}

static long count_mappings(void)
{
	long lines = 0;
	FILE *in = fopen("/proc/self/maps", "r");

	for (int c; in && (c = getc(in)) != EOF;)
		lines += c == '\n';
	if (in)
		fclose(in);
	return lines;
}

static void copy_into_fresh(const char *from, size_t size)
{
	char *to = mapped(size + 4096);

	memcpy(to + 100, from, size);
	if (memcmp(to + 100, from, size) != 0) {
		fprintf(stderr, "other bytes\n");
		exit(1);
	}
}

/* Mappings of the program's own that cannot be merged, then fresh copies, kept mapped and empty. */
static void mappings(long own)
{
	char *pages = mapped((size_t)own * 4096), *from = source(4 * MIB + 4096);
	long before;

	for (long i = 0; i < own; i += 2)
		mprotect(pages + i * 4096, 4096, PROT_READ);
	before = count_mappings();
	for (int i = 0; i < 600; i++) {
		char *to = mapped(6 * MIB);

		mprotect(to, 4096, PROT_NONE); /* never merged with its neighbour */
		memcpy(to + 4096 + 100, from, 4 * MIB);
		madvise(to + 4096, 6 * MIB - 4096, MADV_DONTNEED);
	}
	printf("%ld\n", count_mappings() - before);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	size_t size = 32 * MIB;

	if (strcmp(what, "mappings") == 0) {
		mappings(argc > 2 ? atol(argv[2]) : 0);
		return 0;
	}
	char *from = source(size);

	if (huge_kib() != 0)
		return 77; /* the system makes huge pages without being asked */
	if (strcmp(what, "asked_for_small") == 0)
		madvise(mapped(4 * MIB), 4 * MIB, MADV_NOHUGEPAGE);
	if (strcmp(what, "told_small") == 0)
		prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
	long before = field("/proc/self/status", "VmRSS:");

	copy_into_fresh(from, size);
	if (strcmp(what, "resident") == 0)
		printf("%ld\n", field("/proc/self/status", "VmRSS:") - before);
	else
		printf("%ld\n", huge_kib());
	return 0;
}
