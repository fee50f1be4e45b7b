/*
 * What the library says in words: of a connection, and of an error.
 *
 * usage: ipc_words about|errors
 */
#include "ipc_echo.h"

/* As snprintf. */
static void about(void)
{
	char whole[300], part[300];
	pid_t child;
	int connection = with_child(echo, &child);
	int len = adma_connection_info(connection, whole, sizeof(whole));

	EXPECT(len, strlen(whole));
	EXPECT(adma_connection_info(connection, NULL, 0), len);
	for (int size = 1; size < len + 5; size++) {
		memset(part, 'x', sizeof(part));
		EXPECT(adma_connection_info(connection, part, size), len);
		EXPECT(strlen(part), size <= len ? size - 1 : len);
		if (strncmp(part, whole, size - 1) || part[size] != 'x')
			fail("%d bytes of it are %s", size, part);
	}
	finish(connection, child);
}

/* Every error that the header and what it refers to name has words of its own. */
static void name_errors(void)
{
	static const int errors[] = { EINVAL, EAGAIN, EPIPE, ECONNRESET, EPROTO, EBADF, EPERM,
		EFAULT, ETIMEDOUT, EINPROGRESS, EMFILE, EAFNOSUPPORT, ENOTSOCK, ENOTCONN, ENOENT,
		ECONNREFUSED, EADDRINUSE, ENAMETOOLONG, EACCES, EINTR, ENOMEM, EMSGSIZE, ECANCELED,
		ENODATA };

	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (!strcmp(adma_strerror(-errors[i]), adma_strerror(-12345)))
			fail("no words for %s", strerror(errors[i]));
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "about", about }, { "errors", name_errors }, { 0 }
	};

	make_room();
	return run_mode(argc, argv, all);
}
