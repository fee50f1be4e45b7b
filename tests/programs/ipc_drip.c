/*
 * A crowd of clients that say their greetings byte by byte, each byte before whoever accepts stops
 * expecting it. An honest client behind them in the queue gets in all the same, within its limit.
 *
 * Run with ADMA_IPC_TIMEOUT=15. To hear all of them to the end, one after the other, takes 30 s; to
 * leave each one after the time that a few honest ones need takes 1 s.
 */
#include "ipc.h"
#include <sys/resource.h>

/* Three greetings of each: so much is listened to, whoever says it. */
enum { CROWD = 100, GREETING = 88, STEP = 12, ALL = 3 * GREETING };

static char name[60], greeting[GREETING];

/* What an honest process says first, without what comes with it. */
static void overhear(void)
{
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair: %s", strerror(errno));
	pid_t child = fork();

	if (child == 0) {
		close(pair[0]);
		adma_attach(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	EXPECT(recv(pair[0], greeting, GREETING, MSG_WAITALL), GREETING);
	EXPECT(greeting[STEP], 1);
	close(pair[0]);
	waitpid(child, NULL, 0);
}

/* The bytes of all three greetings differ in their step only. */
static char byte_at(int place)
{
	return place % GREETING == STEP ? 1 + place / GREETING : greeting[place % GREETING];
}

/* Who was accepted has been told so. */
static bool is_accepted(int client)
{
	char byte;

	return recv(client, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
}

static void drip(int queued)
{
	struct { int socket, said; } all[CROWD];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int i = 0; i < CROWD; i++) {
		all[i].socket = plain_client(name);
		all[i].said = 0;
	}
	EXPECT(write(queued, "x", 1), 1);
	for (;; sleep_ms(1))
		for (int i = 0; i < CROWD; i++)
			if (all[i].said < ALL && is_accepted(all[i].socket))
				say(all[i].socket, &(char){ byte_at(all[i].said++) }, 1, NULL, 0);
}

static void *accept_all(void *listener)
{
	for (;;) {
		int connection = adma_accept((int)(long)listener);

		if (connection > 0)
			EXPECT(adma_close(connection), 0);
	}
	return NULL;
}

int main(void)
{
	struct rlimit enough = { 4096, 4096 };
	int queued[2], listener;
	pthread_t thread;
	char byte;

	alarm(200);
	snprintf(name, sizeof(name), "@adma-drip-%d", getpid());
	setrlimit(RLIMIT_NOFILE, &enough);
	overhear();
	listener = adma_listen(name);
	if (listener < 0 || pipe(queued))
		fail("listen: %s", strerror(-listener));
	pid_t crowd = fork();

	if (crowd == 0)
		drip(queued[1]);
	EXPECT(read(queued[0], &byte, 1), 1);
	pid_t honest = fork();

	if (honest == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		int connection = adma_connect(name);

		if (connection < 0)
			fail("an honest client: connect is %s", strerror(-connection));
		exit(adma_close(connection));
	}
	/* It comes when all the others are there: they are accepted in this order. */
	pthread_create(&thread, NULL, accept_all, (void *)(long)listener);
	expect_good_end(honest);
	kill(crowd, SIGKILL);
	waitpid(crowd, NULL, 0);
	return 0;
}
