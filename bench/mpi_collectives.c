/*
 * Unmodified MPI: what one message costs. For each size, ping-pong between the first two ranks,
 * alltoall and allreduce of all, each for about the given time. Rank 0 prints
 * "operation size nanoseconds"; size is what one rank sends to another one.
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
	MPI_Finalize();
	return 0;
}
