/* Tests the sockets that a connection can be made over, that they are left as they were, and that
 * children made meanwhile do not keep them. The scene thread wants ADMA_IPC_TIMEOUT=3.
 */
#include "ipc_filter.h"

static void pass(int from, int to, const char *text)
{
    char got[20] = "";
    EXPECT(adma_write(from, text, strlen(text)), strlen(text));
    EXPECT(adma_read(to, got, sizeof(got)), strlen(text));
    if (strcmp(got, text))
        wrong("%s instead of %s", got, text);
}

/* Every kind of unix socket works, and is the program's again afterwards. */
static void kinds(void)
{
    static const int kinds[] = { SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM,
        SOCK_STREAM | SOCK_NONBLOCK, SOCK_SEQPACKET | SOCK_NONBLOCK };
    for (unsigned i = 0; i < COUNT(kinds); i++) {
        int pair[2], one[2], two[2], credentials = 1;
        socklen_t size = sizeof(credentials);
        char got[20];
        make_pair(kinds[i], pair);
        attach_both(pair, one);
        EXPECT(write(pair[0], "ours", 4), 4);
        EXPECT(read(pair[1], got, sizeof(got)), 4);
        getsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &credentials, &size);
        EXPECT(credentials, 0);
        /* A second connection over that socket, and then without it. */
        attach_both(pair, two);
        close(pair[0]);
        close(pair[1]);
        pass(one[0], one[1], "one");
        pass(two[1], two[0], "two");
        EXPECT(adma_close(one[0]), 0);
        EXPECT(adma_read(one[1], got, sizeof(got)), -EPIPE);
        EXPECT(adma_close(one[1]), 0);
        EXPECT(adma_close(two[0]), 0);
        EXPECT(adma_close(two[1]), 0);
    }
}

static void other_sockets(void)
{
    int pair[2];
    EXPECT(adma_attach(socket(AF_INET, SOCK_STREAM, 0)), -EAFNOSUPPORT);
    EXPECT(adma_attach(socket(AF_UNIX, SOCK_STREAM, 0)), -ENOTCONN);
    make_pipe(pair);
    EXPECT(adma_attach(pair[0]), -ENOTSOCK);
    EXPECT(adma_attach(-1), -EBADF);
}

/* ---- forks meanwhile ---------------------------------------------------------------------- */

static void *connect_to_name(void *name)
{
    return (void *)(long)adma_connect(name);
}

/* Forks, and checks that the child has this many sockets. */
static void expect_sockets_of_child(int want)
{
    CHILD(other)
        if (sockets() != want)
            wrong("the child has %d sockets, of which %d are the program's", sockets(), want);
    expect_good_end(other);
}

/* Forks while a thread waits in adma_connect for a listener with a full queue. */
static void waiting(void)
{
    int listener = short_listener(own_name());
    plain_client(own_name());
    int before = sockets();
    pthread_t thread = start(connect_to_name, (long)own_name());
    while (sockets() == before)
        sleep_ms(1);
    sleep_ms(100); /* it was just made; now it waits */
    expect_sockets_of_child(before);
    close(listener);
    EXPECT(result_of(thread), -ECONNREFUSED);
}

static void *accept_for_a_while(void *listener)
{
    return (void *)(long)adma_accept_for((int)(long)listener, 2000);
}

/* Forks during the greetings. */
static void forked(void)
{
    int listener = adma_listen(own_name()), client = plain_client(own_name());
    pthread_t thread = start(accept_for_a_while, listener);
    while (sockets() < 3)
        sleep_ms(1);
    sleep_ms(20);
    expect_sockets_of_child(2);
    EXPECT(result_of(thread), -ETIMEDOUT);
    close(client);
    EXPECT(adma_close(listener), 0);
}

/* In place of socketpair(2). The first pair is for the helper thread that reads the peer's page; the
 * host, which is either side, makes a second one for the doorbell. The child is made without the
 * library's knowledge, which would close the pair there. */
static void pair_and_fork(int signal, siginfo_t *about, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    static int pairs;
    registers[REG_RAX] = socketpair(AF_UNIX, SOCK_SEQPACKET, 0, (int *)registers[REG_R10]) ? -errno : 0;
    if (++pairs != 1)
        return;
    child = syscall(SYS_fork);
    while (child == 0)
        pause();
}

/* Traps the library's calls: the handler makes the pairs instead. */
static void trap_pairs(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    handle_info(SIGSYS, pair_and_fork);
    put_filter(filter, COUNT(filter), 0);
}

/* A greeting that has left a call to a thread notices its end within the limit. */
static void thread_is_done(void)
{
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    CHILD(other)
        made(adma_attach(pair[1]));
    trap_pairs();
    sleep_ms(500); /* so the other has no time left when this one's is over */
    made(adma_attach(pair[0]));
    if (child <= 0)
        wrong("nothing was left to a thread");
    kill_child(child);
    expect_good_end(other);
}

/* ---- a system that demands memory which is not executed --------------------------------- */

static void noexec(void)
{
    static const char path[] = "/proc/sys/vm/memfd_noexec";
    if (unshare(CLONE_NEWPID))
        cannot("no process namespaces here");
    CHILD(inside) {
        int file = open(path, O_WRONLY), ends[2];
        if (file < 0 || write(file, "2", 1) != 1)
            cannot("no vm.memfd_noexec here");
        if (memfd_create("adma-test", 0x10 /* MFD_EXEC */) >= 0)
            wrong("vm.memfd_noexec is not heeded");
        if (!adma_alloc(100000))
            wrong("no block");
        connect_both(ends);
        pass(ends[0], ends[1], "words");
    }
    end_like(inside);
}

PROGRAM((void)0,
        { "kinds", kinds }, { "other_sockets", other_sockets }, { "forked", forked },
        { "waiting", waiting }, { "thread", thread_is_done },
        { "noexec", noexec })
