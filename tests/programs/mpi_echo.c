/* Two ranks throw a message to and fro, of 1 to 16 MiB and other sizes. The second adds one to
 * every word; the first looks at each that comes back. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank;
    size_t most = 16 << 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    uint64_t *out = malloc(most), *in = malloc(most);
    for (uint64_t round = 0; round < 20; round++) {
        size_t bytes = ((size_t)1 << (20 + round % 5)) - (round % 3) * 8, words = bytes / 8;
        if (rank == 0) {
            for (size_t i = 0; i < words; i++)
                out[i] = i * 0x9E3779B97F4A7C15u + round;
            MPI_Send(out, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(in, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (size_t i = 0; i < words; i++)
                if (in[i] != out[i] + 1) {
                    fprintf(stderr, "round %lu: word %zu of %zu is wrong\n", round, i, words);
                    MPI_Abort(MPI_COMM_WORLD, 1);
                }
        } else {
            MPI_Recv(in, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (size_t i = 0; i < words; i++)
                out[i] = in[i] + 1;
            MPI_Send(out, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
    }
    MPI_Finalize();
    return 0;
}
