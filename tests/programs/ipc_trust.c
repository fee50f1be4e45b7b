/* Tests which users are refused, and that a proven peer that becomes another user or keeps tracers
 * out gets nothing more: the connection ends for both, and its counts are not believed.
 */
#include "ipc_filter.h"
#include "ipc_inside.h"

static byte *room; /* 8 MiB */

/* ---- other users ------------------------------------------------------------------------- */

/* Both sides refuse, and nothing is kept for it: no descriptor, thread or place. */
static void refused(void)
{
    root_only();
    int listener = adma_listen(own_name());
    long descriptors = 0, threads = entries_of("/proc/self/task");
    fcntl(listener, F_SETFL, O_NONBLOCK);
    EXPECT(adma_accept(listener), -EAGAIN);
    descriptors = entries_of("/proc/self/fd");
    for (int round = 0; round < 200; round++) {
        CHILD(client) {
            become_user(STRANGER);
            EXPECT(adma_connect(own_name()), -EACCES);
            /* A client without a check of its own is closed, whatever it has sent. */
            int socket = plain_client(own_name());
            char byte;
            send(socket, "adma-ipc", 8, MSG_NOSIGNAL);
            if (recv(socket, &byte, 1, 0) > 0)
                wrong("the server has said something to another user");
        }
        int status;
        while (waitpid(client, &status, WNOHANG) == 0) {
            EXPECT(adma_accept(listener), -EAGAIN);
            EXPECT(entries_of("/proc/self/task"), threads);
        }
        EXPECT(status, 0);
    }
    EXPECT(adma_accept(listener), -EAGAIN);
    EXPECT(entries_of("/proc/self/fd"), descriptors);
}

/* One user listens and another one accepts, which the client's own check cannot detect. */
static void refused_by_server(void)
{
    root_only();
    int listener = adma_listen(own_name());
    CHILD(server) {
        become_user(STRANGER);
        EXPECT(adma_accept_for(listener, 30000), -ETIMEDOUT);
    }
    EXPECT(adma_connect(own_name()), -EACCES);
    kill_child(server);
}

/* A socket file is accessible to its user only, whatever the umask. */
static void private_file(void)
{
    struct stat is;
    umask(0);
    int listener = adma_listen(make_path());
    EXPECT(stat(own_path, &is), 0);
    EXPECT(is.st_mode & 07777, 0600);
    EXPECT(adma_close(listener), 0);
    remove_path();
}

/* ---- proofs ------------------------------------------------------------------------------- */

/* The peer becomes not dumpable: it is not reached any more, and gets nothing more. */
static void not_dumpable(void)
{
    PEER(connection) {
        byte *block = adma_alloc(MIB);
        struct adma_peer peer;
        need_engine(connection, "process_vm");
        EXPECT(adma_peer(connection, &peer), 0);
        EXPECT(peer.proven, 1);
        EXPECT(peer.pid, getppid());
        EXPECT(peer.uid, getuid());
        EXPECT(adma_read(connection, (void *)block, MIB), MIB);
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        sleep_ms(50); /* a look is good for some milliseconds */
        EXPECT(adma_read(connection, (void *)block, MIB), -ECONNRESET);
        EXPECT(adma_write(connection, (void *)block, MIB), -ECONNRESET);
    }
    byte *data = adma_alloc(MIB), *more = adma_alloc(MIB);
    need_engine(connection, "process_vm");
    EXPECT(adma_write(connection, (void *)data, MIB), MIB);
    sleep_ms(20);
    /* Its end is noticed by the first message at the latest. */
    EXPECT(adma_write(connection, (void *)more, MIB), -ECONNRESET);
    finish_after(connection, child);
}

/* Blocks are mapped by the first message that needs one: not if the reader has none. */
static void lazy(void)
{
    PEER(connection) {
        byte *data = pages_between_guards(MIB);
        need_engine(connection, "process_vm");
        for (int i = 0; i < 20; i++)
            EXPECT(adma_read(connection, (void *)data, MIB), MIB);
        EXPECT(mappings("rw-s", "adma-block"), 0);
        EXPECT(adma_read(connection, adma_alloc(MIB), MIB), MIB);
        EXPECT(mappings("rw-s", "adma-block"), 2); /* its own, and one more */
    }
    need_engine(connection, "process_vm");
    for (int i = 0; i < 20; i++) {
        byte *block = adma_alloc(MIB);
        EXPECT(adma_write(connection, (void *)block, MIB), MIB);
        EXPECT(adma_free((void *)block), 0);
    }
    /* Not waited for: the reader copies all of it. */
    EXPECT(adma_iwrite(connection, adma_alloc(MIB), MIB) > 0, 1);
    finish_after(connection, child);
}

/* ---- another user ------------------------------------------------------------------------- */

static int told[2]; /* a pipe from the process that has changed */

/* Becomes another user, and reports that past the connection. */
static void change(int connection)
{
    EXPECT(adma_read(connection, (void *)room, 64 * KIB), 64 * KIB);
    become_user(STRANGER);
    send_byte(told[1]);
}

/* Connects to a proven peer that will change its user. */
static int with_changing(int (*other)(int connection))
{
    root_only();
    make_pipe(told);
    int connection = with_child(other);
    need_engine(connection, "process_vm, one copy, both processes copy");
    EXPECT(adma_write(connection, (void *)room, 64 * KIB), 64 * KIB);
    await_byte(told[0]);
    /* The check is repeated every few milliseconds. */
    sleep_ms(100);
    return connection;
}

static int change_and_read(int connection)
{
    change(connection);
    EXPECT(adma_read(connection, (void *)room, 8 * MIB), -ECONNRESET);
    EXPECT(adma_write(connection, (void *)room, 8 * MIB), -ECONNRESET);
    return 0;
}

/* The connection ends then, on both sides. */
static void changed(void)
{
    int connection = with_changing(change_and_read);
    filter_reach(SECCOMP_RET_KILL_PROCESS);
    EXPECT(adma_write(connection, (void *)room, 8 * MIB), -ECONNRESET);
    EXPECT(adma_read(connection, (void *)room, 8 * MIB), -ECONNRESET);
    finish_after(connection, child);
}

static int change_and_look(int connection)
{
    byte *block = adma_alloc(MIB);
    int before = mappings("rw-s", "memfd:adma-block");
    change(connection);
    EXPECT(adma_read(connection, (void *)block, 64 * KIB), -ECONNRESET);
    EXPECT(mappings("rw-s", "memfd:adma-block"), before);
    return 0;
}

/* Nothing more is exposed to it for writing. */
static void changed_block(void)
{
    int connection = with_changing(change_and_look);
    byte *block = adma_alloc(MIB);
    EXPECT(adma_write(connection, (void *)block, 64 * KIB), -ECONNRESET);
    finish_after(connection, child);
}

/* Claims, after the change, that it has copied all of the lane's first message. That is posted
 * before, because its own library would soon notice and refuse. */
static int change_and_claim(int connection)
{
    EXPECT(adma_read(connection, (void *)room, 64 * KIB), 64 * KIB);
    if (adma_iwrite(connection, (void *)room, MIB) <= 0)
        wrong("the post is refused");
    become_user(STRANGER);
    claim_pieces(MIB);
    send_byte(told[1]);
    sleep_ms(3000);
    return 0;
}

/* Its claims are not trusted. */
static void changed_claims(void)
{
    int connection = with_changing(change_and_claim);
    EXPECT(adma_read(connection, (void *)room, MIB), -ECONNRESET);
    kill_child(child);
    EXPECT(adma_close(connection), 0);
}

PROGRAM(own_name(); room = message_memory(8 * MIB),
        { "refused", refused }, { "refused_by_server", refused_by_server },
        { "private", private_file }, { "not_dumpable", not_dumpable }, { "lazy", lazy },
        { "changed", changed }, { "changed_block", changed_block }, { "changed_claims", changed_claims })
