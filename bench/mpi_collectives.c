/*
 * Unmodified MPI: what one message costs. For each size, ping-pong between the first two ranks,
 * alltoall and allreduce of all, each for about the given time, and at the end an integer sort as
 * NAS IS describes it. Rank 0 prints "operation size nanoseconds"; size is what one rank sends to
 * another one, of the sort the bytes of one rank's keys.
 *
 * Every rank writes what it sends anew before each round, and looks at what has arrived after it; neither
 * is timed. All bytes are compared in the first round, later the ends of each block.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static char *out, *in;

/* An operation; rewrite and compare may be missing. */
struct operation {
	const char *name;
	void (*work)(size_t size);
	void (*rewrite)(size_t size, long round);
	/* Compares everything, or the ends of each block; returns whether all is right. */
	int (*compare)(size_t size, long round, int everything);
	/* Set if only the first two ranks take part, in two messages. */
	int is_of_two;
};

static void pingpong(size_t size)
{
	if (rank == 0) {
		MPI_Send(out, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(in, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else if (rank == 1) {
		MPI_Recv(in, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(out, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
	}
}

static void alltoall(size_t size)
{
	MPI_Alltoall(out, size, MPI_BYTE, in, size, MPI_BYTE, MPI_COMM_WORLD);
}

static void allreduce(size_t size)
{
	MPI_Allreduce(out, in, size / sizeof(float), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

/* The first word that a rank sends; each further one is greater by one. */
static uint64_t first_word(int sender, long round)
{
	return (uint64_t)(sender + 1) << 48 ^ (uint64_t)round << 32;
}

/* By a loop, since memset is a function that the library under test may replace. */
static void rewrite_words(size_t bytes, long round)
{
	uint64_t *words = (uint64_t *)out, word = first_word(rank, round);

	for (size_t i = 0; i < bytes / sizeof(*words); i++)
		words[i] = word + i;
}

static void rewrite_block(size_t size, long round)
{
	rewrite_words(size, round);
}

static void rewrite_all(size_t size, long round)
{
	rewrite_words(size * ranks, round);
}

/* Compares a block with what its sender wrote, the first word of which is known. */
static int is_block(const void *block, size_t size, uint64_t word, int everything)
{
	const uint64_t *words = block;
	size_t last = size / sizeof(*words) - 1, step = everything || !last ? 1 : last;

	for (size_t i = 0; i <= last; i += step)
		if (words[i] != word + i)
			return 0;
	return 1;
}

static int is_from_other(size_t size, long round, int everything)
{
	return rank > 1 || is_block(in, size, first_word(1 - rank, round), everything);
}

static int is_from_all(size_t size, long round, int everything)
{
	for (int i = 0; i < ranks; i++) {
		uint64_t word = first_word(i, round) + rank * (size / sizeof(uint64_t));

		if (!is_block(in + i * size, size, word, everything))
			return 0;
	}
	return 1;
}

/* Small whole numbers, whose sum is exact. */
static float number(int sender, long round, size_t i)
{
	return (sender + round + i) % 64;
}

static void rewrite_numbers(size_t size, long round)
{
	for (size_t i = 0; i < size / sizeof(float); i++)
		((float *)out)[i] = number(rank, round, i);
}

static int is_sum(size_t size, long round, int everything)
{
	size_t last = size / sizeof(float) - 1, step = everything || !last ? 1 : last;

	for (size_t i = 0; i <= last; i += step) {
		float sum = 0;

		for (int sender = 0; sender < ranks; sender++)
			sum += number(sender, round, i);
		if (((float *)in)[i] != sum)
			return 0;
	}
	return 1;
}

enum { KEYS = 1 << 22, RANGE = 1 << 19, BUCKETS = 1 << 10 };

static unsigned *keys, *sorted, *received, *ranking;

/*
 * Ranks keys by value: counts of buckets are summed over all ranks, buckets are dealt out so that
 * each rank gets about as many keys, keys travel by alltoallv and are counted where they arrive.
 */
static void sort(size_t bytes)
{
	static int own[BUCKETS], all[BUCKETS], owner[BUCKETS];
	int out_count[256] = {0}, in_count[256], out_at[256], in_at[256], next[256];
	long seen = 0, got = 0, count = bytes / sizeof(*keys);

	memset(own, 0, sizeof(own));
	for (long i = 0; i < count; i++)
		own[keys[i] / (RANGE / BUCKETS)]++;
	MPI_Allreduce(own, all, BUCKETS, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < BUCKETS; i++) {
		owner[i] = seen / count < ranks ? seen / count : ranks - 1;
		seen += all[i];
		out_count[owner[i]] += own[i];
	}
	MPI_Alltoall(out_count, 1, MPI_INT, in_count, 1, MPI_INT, MPI_COMM_WORLD);
	for (int i = 0; i < ranks; i++) {
		next[i] = out_at[i] = i ? out_at[i - 1] + out_count[i - 1] : 0;
		in_at[i] = i ? in_at[i - 1] + in_count[i - 1] : 0;
		got += in_count[i];
	}
	for (long i = 0; i < count; i++)
		sorted[next[owner[keys[i] / (RANGE / BUCKETS)]]++] = keys[i];
	MPI_Alltoallv(sorted, out_count, out_at, MPI_UNSIGNED, received, in_count, in_at, MPI_UNSIGNED,
		      MPI_COMM_WORLD);
	memset(ranking, 0, RANGE * sizeof(*ranking));
	for (long i = 0; i < got; i++)
		ranking[received[i]]++;
	for (int i = 1; i < RANGE; i++)
		ranking[i] += ranking[i - 1];
	if (got && ranking[RANGE - 1] != got)
		abort();
}

static void prepare_sort(void)
{
	unsigned long long state = 314159265 + rank;

	keys = malloc(KEYS * sizeof(*keys));
	sorted = malloc(KEYS * sizeof(*keys));
	received = malloc(2ul * KEYS * sizeof(*keys)); /* shares differ by less than that */
	ranking = malloc(RANGE * sizeof(*ranking));
	for (int i = 0; i < KEYS; i++) {
		state = state * 6364136223846793005ull + 1442695040888963407ull;
		keys[i] = (state >> 33) % RANGE;
	}
}

/* Returns the seconds of one round, with `whole` those of all that belongs to it. */
static double take_turn(const struct operation *operation, size_t size, long round, int everything, double *whole)
{
	double begun = MPI_Wtime(), timed;

	if (operation->rewrite)
		operation->rewrite(size, round);
	if (!operation->is_of_two)
		MPI_Barrier(MPI_COMM_WORLD);
	else if (rank < 2)
		MPI_Sendrecv(NULL, 0, MPI_BYTE, 1 - rank, 1, NULL, 0, MPI_BYTE, 1 - rank, 1, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
	timed = MPI_Wtime();
	operation->work(size);
	timed = MPI_Wtime() - timed;
	if (operation->compare && !operation->compare(size, round, everything)) {
		fprintf(stderr, "%s of %zu bytes, rank %d: wrong bytes\n", operation->name, size, rank);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	*whole = MPI_Wtime() - begun;
	return timed;
}

static void measure(const struct operation *operation, size_t size, double seconds)
{
	enum { WARM_UP = 3 };
	int takes_part = !operation->is_of_two || rank < 2;
	long rounds = 3;
	double time = 0, whole = 0;

	for (int i = 0; takes_part && i < WARM_UP; i++)
		take_turn(operation, size, i, i == 0, &whole);
	if (rank == 0 && whole > 0 && seconds / whole > rounds)
		rounds = seconds / whole;
	MPI_Bcast(&rounds, 1, MPI_LONG, 0, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	for (long i = 0; takes_part && i < rounds; i++)
		time += take_turn(operation, size, WARM_UP + i, 0, &whole);
	if (rank == 0)
		printf("%s %zu %.0f\n", operation->name, size,
		       time / rounds * 1e9 / (operation->is_of_two ? 2 : 1));
	MPI_Barrier(MPI_COMM_WORLD);
}

/* `sort` writes what it sends itself and counts what it gets. */
static const struct operation OPERATIONS[] = {
	{"pingpong", pingpong, rewrite_block, is_from_other, 1},
	{"alltoall", alltoall, rewrite_all, is_from_all, 0},
	{"allreduce", allreduce, rewrite_numbers, is_sum, 0},
}, SORT = {"sort", sort, NULL, NULL, 0};

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 0.2;
	size_t most = 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	for (int i = 2; i < argc; i++)
		if (strtoul(argv[i], NULL, 0) > most)
			most = strtoul(argv[i], NULL, 0);
	out = malloc(most * ranks);
	in = malloc(most * ranks);
	memset(out, 1, most * ranks);
	memset(in, 2, most * ranks);
	for (int i = 2; i < argc; i++)
		for (size_t j = 0; j < sizeof(OPERATIONS) / sizeof(*OPERATIONS); j++)
			measure(&OPERATIONS[j], strtoul(argv[i], NULL, 0), seconds);
	prepare_sort();
	measure(&SORT, KEYS * sizeof(*keys), seconds);
	MPI_Finalize();
	return 0;
}
