/*
 * Ping-pong with MPI, in turns: each rank waits for its orders in a blocking read of a FIFO
 * of its own (an MPI receive would spin while others are measured). Rank 0 prints, for each
 * order "size rounds", the nanoseconds of half a round trip.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1e9 + time.tv_nsec;
}

int main(int argc, char **argv)
{
	size_t size, largest = 64ul << 20;
	int rank, rounds;
	char name[4096];

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	char *out = malloc(largest), *in = malloc(largest);

	memset(out, 1, largest);
	memset(in, 2, largest);
	snprintf(name, sizeof(name), "%s/order.%d", argv[1], rank);
	FILE *orders = fopen(name, "r");
	snprintf(name, sizeof(name), "%s/answers", argv[1]);
	FILE *answers = rank == 0 ? fopen(name, "w") : NULL;

	while (orders && fscanf(orders, "%zu %d", &size, &rounds) == 2) {
		double begun = 0;

		for (int round = -2; round < rounds; round++) {
			if (round == 0)
				begun = now();
			if (rank == 0) {
				MPI_Send(out, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
				MPI_Recv(in, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD,
					 MPI_STATUS_IGNORE);
			} else {
				MPI_Recv(in, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD,
					 MPI_STATUS_IGNORE);
				MPI_Send(out, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
			}
		}
		if (rank == 0) {
			fprintf(answers, "%.1f\n", (now() - begun) / rounds / 2);
			fflush(answers);
		}
	}
	MPI_Finalize();
	return 0;
}
