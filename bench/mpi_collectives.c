/*
 * Unmodified MPI: what one message costs. For each size, ping-pong between the first two ranks,
 * alltoall and allreduce of all, each for about the given time, and at the end an integer sort as
 * NAS IS describes it. Rank 0 prints "operation size nanoseconds"; size is what one rank sends to
 * another one, of the sort the bytes of one rank's keys.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;
static char *out, *in;

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

static void measure(const char *name, void (*work)(size_t), size_t size, double seconds)
{
	long rounds = 1;
	double begun, time = 0;

	for (int i = 0; i < 3; i++) {
		begun = MPI_Wtime();
		work(size);
		time = MPI_Wtime() - begun;
	}
	if (rank == 0 && time > 0)
		rounds = seconds / time;
	if (rounds < 3)
		rounds = 3;
	MPI_Bcast(&rounds, 1, MPI_LONG, 0, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
	begun = MPI_Wtime();
	for (long i = 0; i < rounds; i++)
		work(size);
	time = (MPI_Wtime() - begun) / rounds;
	if (rank == 0)
		printf("%s %zu %.0f\n", name, size, time * 1e9 / (work == pingpong ? 2 : 1));
	MPI_Barrier(MPI_COMM_WORLD);
}

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
	for (int i = 2; i < argc; i++) {
		size_t size = strtoul(argv[i], NULL, 0);

		measure("pingpong", pingpong, size, seconds);
		measure("alltoall", alltoall, size, seconds);
		measure("allreduce", allreduce, size, seconds);
	}
	prepare_sort();
	measure("sort", sort, KEYS * sizeof(*keys), seconds);
	MPI_Finalize();
	return 0;
}
