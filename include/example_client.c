/*
 * The client of example_server.c: sends messages of several sizes, looks at the answers, and has the
 * server end if it is told so.
 *
 * cc example_client.c $(pkg-config --cflags --libs adma) -o example_client
 */
#include <adma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	static const size_t sizes[] = { 1, 100, 5000, 100000, 8 << 20 };
	int c = adma_connect_for(argc > 1 ? argv[1] : "/tmp/adma-example", 60000);
	struct adma_peer peer;

	if (c < 0 || adma_peer(c, &peer)) {
		fprintf(stderr, "adma_connect: %s\n", adma_strerror(c));
		return 1;
	}
	printf("connected to process %d, %s\n", (int)peer.pid, peer.proven ? "proven" : "streamed");
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t len = sizes[i];
		/* Large messages between such buffers are copied without the kernel. */
		char *sent = adma_alloc(len), *answer = adma_alloc(len);
		ssize_t got;

		if (!sent || !answer)
			return 1;
		for (size_t at = 0; at < len; at++)
			sent[at] = (char)(at * 7 + i);
		if ((got = adma_write(c, sent, len)) < 0 || (got = adma_read(c, answer, len)) < 0) {
			fprintf(stderr, "%zu bytes: %s\n", len, adma_strerror((int)got));
			return 1;
		}
		for (size_t at = 0; at < len; at++)
			if ((size_t)got != len || answer[at] != sent[len - 1 - at]) {
				fprintf(stderr, "%zu bytes: the answer is wrong\n", len);
				return 1;
			}
		printf("%zu bytes and back\n", len);
		adma_free(sent);
		adma_free(answer);
	}
	if (argc > 2 && !strcmp(argv[2], "end"))
		adma_write(c, "", 0); /* an empty message is a message */
	return adma_close(c) != 0;
}
