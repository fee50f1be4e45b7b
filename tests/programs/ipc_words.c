/* Tests texts and small calls: adma_connection_info, adma_strerror, versions, figures, adma_readv,
 * cookies of copies. The scenes counted and six want ADMA_STATS.
 */
#include "ipc_echo.h"

/* Returns like snprintf. */
static void about(void)
{
    char whole[300], part[300];
    int connection = with_child(echo);
    int len = adma_connection_info(connection, whole, sizeof(whole));
    EXPECT(len, strlen(whole));
    EXPECT(adma_connection_info(connection, NULL, 0), len);
    for (int size = 1; size < len + 5; size++) {
        memset(part, 'x', sizeof(part));
        EXPECT(adma_connection_info(connection, part, size), len);
        EXPECT(strlen(part), size <= len ? size - 1 : len);
        if (strncmp(part, whole, size - 1) || part[size] != 'x')
            wrong("%d bytes of it are %s", size, part);
    }
    finish(connection, child);
}

/* Every error that the header names has a text of its own. */
static void name_errors(void)
{
    static const int errors[] = { EINVAL, EAGAIN, EPIPE, ECONNRESET, EPROTO, EBADF, EPERM,
        EFAULT, ETIMEDOUT, EINPROGRESS, EMFILE, EAFNOSUPPORT, ENOTSOCK, ENOTCONN, ENOENT,
        ECONNREFUSED, EADDRINUSE, ENAMETOOLONG, EACCES, EINTR, ENOMEM, EMSGSIZE, ECANCELED, ENOBUFS,
        ENODATA };
    for (unsigned i = 0; i < COUNT(errors); i++)
        if (!strcmp(adma_strerror(-errors[i]), adma_strerror(-12345)))
            wrong("no words for %s", strerror(errors[i]));
}

static void calls(void)
{
    static char large[40000];
    struct iovec parts[] = { { "ab", 2 }, { "c", 1 }, { large, 40000 }, { "defgh", 5 } };
    char got[10];
    int turn[2]; /* a pipe: a message may come */
    make_pipe(turn);
    PEER(connection) { /* one message of several parts, both ways */
        char first[3], second[40000], third[5];
        struct iovec parts[] = { { first, 3 }, { second, 40000 }, { third, 5 } };
        EXPECT(adma_readv(connection, parts, 3), 40008);
        EXPECT(memcmp(first, "abc", 3) || memcmp(third, "defgh", 5), 0);
        for (int at = 0; at < 40000; at++)
            EXPECT(second[at], (char)(at * 3));
        EXPECT(adma_writev(connection, parts + 2, 1), 5);
        EXPECT(adma_writev(connection, parts, 0), 0);
        EXPECT(adma_writev(connection, parts, -1), -EINVAL);
        for (bool waited = false; !waited;) {
            memset(first, 'x', 3);
            memset(third, 'x', 5);
            send_byte(turn[1]);
            EXPECT(adma_readv(connection, (struct iovec[]){ parts[0], parts[2] }, 2), -EMSGSIZE);
            /* Read first, it holds the beginning; a message that came first stays. */
            waited = adma_next(connection) == -EAGAIN;
            EXPECT(memcmp(first, waited ? "beg" : "xxx", 3), 0);
            EXPECT(memcmp(third, waited ? "innin" : "xxxxx", 5), 0);
            if (!waited)
                EXPECT(adma_read(connection, second, 100), 9);
        }
    }
    EXPECT(adma_version(), ADMA_VERSION);
    for (int at = 0; at < 40000; at++)
        large[at] = at * 3;
    EXPECT(adma_writev(connection, parts, 4), 40008);
    EXPECT(adma_read(connection, got, sizeof(got)), 5);
    EXPECT(adma_read(connection, got, sizeof(got)), 0); /* empty, and not the end */
    for (ssize_t taken = 9; taken == 9;) {
        await_byte(turn[0]);
        usleep(20000);
        taken = adma_wait(adma_iwrite(connection, "beginning", 9));
        EXPECT(taken == 9 || taken == 8, true);
    }
    EXPECT(adma_read(connection, got, sizeof(got)), -ECONNRESET);
    EXPECT(adma_close(connection), 0);
    waitpid(child, NULL, 0);

    /* Cookies of copies: the same calls, and how far they are. */
    size_t len = 64 * MIB, seen = 0;
    byte *src = pages_between_guards(len), *dst = pages_between_guards(len);
    fill(src, len, 9);
    adma_cookie_t cookie = adma_icopy((void *)src, (void *)dst, len);
    while (seen < len) {
        ssize_t copied = adma_copied(cookie);
        if (copied < (ssize_t)seen)
            wrong("copied fell from %zu to %zd", seen, copied);
        if (copied > (ssize_t)len)
            wrong("%zd bytes of %zu are copied", copied, len);
        seen = copied;
        if (seen && dst[seen - 1] != src[seen - 1])
            wrong("byte %zu is not in place", seen - 1);
    }
    EXPECT(adma_wait_for(cookie, 60000), 0);
    EXPECT(adma_check(cookie), -EINVAL);
    EXPECT(adma_copied(cookie), -EINVAL);
    expect_content(dst, len, 9, "copy");
    cookie = adma_icopy((void *)src, (void *)dst, 100);
    EXPECT(adma_copied(cookie), 100);
    EXPECT(adma_cancel(cookie), 0);
    EXPECT(adma_check_copy(cookie), -EINVAL);
}

/* Cookies are valid once and only their own; others are refused. */
static void cookies(void)
{
    int ends[2];
    char data[100] = "";
    connect_both(ends);
    adma_cookie_t written = adma_iwrite(ends[0], data, 100), taken = adma_iread(ends[1], data, 100);
    const adma_cookie_t none[] = { 0, -1, 1, INT64_MAX, INT64_MIN, written, taken, written + 1,
                                   written ^ 1l << 31, taken ^ 1l << 50 };
    EXPECT(adma_wait(written), 100);
    EXPECT(adma_check(taken), 100);
    for (unsigned i = 0; i < COUNT(none); i++) {
        EXPECT(adma_check(none[i]), -EINVAL);
        EXPECT(adma_wait(none[i]), -EINVAL);
        EXPECT(adma_cancel(none[i]), -EINVAL);
    }
    taken = adma_iread(ends[1], data, 100);
    EXPECT(adma_check(taken), -EINPROGRESS);
    EXPECT(adma_close(ends[0]), 0);
    EXPECT(adma_wait(taken), -EPIPE);
    taken = adma_iread(ends[1], data, 100);
    EXPECT(adma_close(ends[1]), 0);
    EXPECT(adma_wait(taken), -EINVAL);
}

static void counted(void)
{
    struct adma_stats stats = { .size = sizeof(stats) };
    int connection = with_child(echo);
    ask_echo(connection, 1000);
    EXPECT(adma_stats(&stats), 0);
    EXPECT(stats.messages_sent, 1);
    EXPECT(stats.bytes_received, 1000);
    stats.size = 7;
    EXPECT(adma_stats(&stats), -EINVAL);
    finish(connection, child);
}

/* Sends three eager messages and three large ones, for the counts of the report at exit. */
static void six(void)
{
    static const size_t sizes[] = { 100, 100, 100, 40000, 40000, 4 * MIB };
    int connection = fork_connected(&child);
    byte *data = message_memory(4 * MIB);
    for (unsigned i = 0; i < COUNT(sizes); i++)
        EXPECT(child ? adma_write(connection, (void *)data, sizes[i])
                     : adma_read(connection, (void *)data, sizes[i]), sizes[i]);
    if (child == 0)
        exit(0);
    CHILD(silent) /* of the connection's owner: it has sent nothing */
        ;
    expect_good_end(silent);
    finish_after(connection, child);
}

PROGRAM(make_room(),
        { "about", about }, { "errors", name_errors }, { "calls", calls },
        { "counted", counted }, { "six", six }, { "cookies", cookies })
