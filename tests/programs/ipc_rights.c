/* Tests each way to keep a process out of another's memory, and how messages are copied then.
 * Second words: lost [both], yama SCOPE.
 */
#include "ipc_echo.h"
#include "ipc_filter.h"

enum { NOBODY = 65534 };

/* ---- seccomp -------------------------------------------------------------------------- */

/* Loses the right in the middle of a connection: messages go on, another way. */
static void lost(void)
{
    PEER(connection) {
        EXPECT(adma_read(connection, (void *)room, MIB), MIB);
        EXPECT(adma_write(connection, (void *)room, MIB), MIB);
        filter_reach(SECCOMP_RET_ERRNO | EPERM);
        exit(echo(connection));
    }
    expect_engine(connection, getenv("ENGINE") ?: "process_vm");
    ask_echo(connection, MIB);
    if (variant) /* both */
        filter_reach(SECCOMP_RET_ERRNO | EPERM);
    for (int i = 0; i < 5; i++) {
        ask_echo(connection, 8 * MIB);
        ask_echo(connection, 100);
        ask_echo(connection, 10000);
    }
    finish(connection, child);
}

/* Refuses reads from the beginning. */
static void refuse_reads(int which)
{
    filter_call(SYS_process_vm_readv, SECCOMP_RET_ERRNO | EPERM);
}

/* ---- user namespaces ------------------------------------------------------------------ */

/* With one thread only: one that was joined, or is the library's own, leaves soon. */
static void enter_user_namespace(int which)
{
    char map[40];
    int len = snprintf(map, sizeof(map), "%d %d 1", getuid(), getuid());
    while (unshare(CLONE_NEWUSER)) {
        if (errno != EINVAL)
            cannot("no user namespaces here");
        sleep_ms(10);
    }
    int file = open("/proc/self/uid_map", O_WRONLY);
    EXPECT(write(file, map, len), len); /* the same user, by the same number */
    close(file);
}

/* ---- rights that change in mid-connection ------------------------------------------------ */

/* Echoes until the connection is reset. */
static int echo_until_reset(int connection)
{
    long got;
    while ((got = adma_read(connection, (void *)room, MIB)) > 0 &&
           (got = adma_write(connection, (void *)room, got)) > 0)
        ;
    return got == -ECONNRESET ? 0 : 3;
}

static void *change_user(void *connection)
{
    char state = 0;
    FILE *stat;
    while (state != 'Z') { /* the first thread */
        sleep_ms(1);
        stat = fopen("/proc/self/stat", "r");
        if (!stat || fscanf(stat, "%*d %*s %c", &state) != 1)
            wrong("no /proc/self/stat");
        fclose(stat);
    }
    MUST(!setresuid(NOBODY, NOBODY, NOBODY));
    _exit(echo_until_reset((int)(long)connection));
}

/* The connection ends, for both, when one of them becomes another user. */
static void changed_thread(void)
{
    double begun = seconds();
    long got = 1;
    root_only();
    PEER(connection) { /* the system goes on telling of its first thread, which is root's */
        need_engine(connection, "process_vm");
        start(change_user, connection);
        pthread_exit(NULL);
    }
    need_engine(connection, "process_vm");
    for (size_t len = 100; got > 0 && seconds() - begun < 20; len = MIB + 100 - len) {
        got = adma_write(connection, (void *)room, len);
        if (got > 0)
            got = adma_read(connection, (void *)room, MIB);
    }
    EXPECT(got, -ECONNRESET);
    finish_after(connection, child);
}

/* ---- two children ---------------------------------------------------------------------- */

/* Two processes, their preparation, and the result. */
struct rights {
    uid_t user; /* of both; 0: as they are */
    void (*prepare)(int which);
    int who; /* which of the two prepares; 3: both */
    const char *engine, *about; /* of both of them, and its description */
};

/* Two processes of which neither is the other's parent. */
static void two_children(void)
{
    const struct rights *scene = (void *)scene_how;
    int pair[2], status[2];
    pid_t children[2];
    make_pair(SOCK_STREAM, pair);
    for (int i = 0; i < 2; i++) {
        children[i] = fork_child();
        if (children[i])
            continue;
        if (scene->user)
            become_user(scene->user);
        if (scene->who >> i & 1)
            scene->prepare(i);
        int connection = adma_attach(pair[i]);
        char text[300];
        if (!scene->engine) { /* the second to hear of it may only see the end */
            if (connection != -EACCES && connection != -ECONNRESET && connection != -EPIPE)
                wrong("another user is not refused: %d", connection);
            exit(0);
        }
        if (connection < 0)
            wrong("attach: %s", strerror(-connection));
        adma_connection_info(connection, text, sizeof(text));
        bool yamas = !knows_yama && is_kept_out() && strstr(text, "Yama");
        if (scene->about && !strstr(text, scene->about) && !yamas)
            wrong("%s does not say: %s", text, scene->about);
        /* Changes nothing, but returns only when every thread has done it. */
        MUST(!setresuid(-1, -1, -1));
        expect_engine(connection, scene->engine);
        if (i == 1)
            exit(echo(connection));
        ask_echo(connection, 100);
        ask_echo(connection, 8 * MIB);
        ask_echo(connection, 70000);
        EXPECT(adma_close(connection), 0);
        exit(0);
    }
    close(pair[0]);
    close(pair[1]);
    for (int i = 0; i < 2; i++)
        waitpid(children[i], &status[i], 0);
    for (int i = 0; i < 2; i++)
        if (WIFEXITED(status[i]) && WEXITSTATUS(status[i]) == 77)
            exit(77);
    if (status[0] || status[1])
        wrong("the children ended with status %#x and %#x", status[0], status[1]);
}

/* ---- process namespaces ---------------------------------------------------------------- */

/* Only children enter a new pid namespace: its maker stays and waits. */
static void enter_process_namespace(int which)
{
    if (unshare(CLONE_NEWPID))
        cannot("no process namespaces here");
    pid_t inside = fork_child();
    if (inside)
        end_like(inside);
}

/* ---- processes that must not be traced -------------------------------------------------- */

/* Even by root, which the kernel would let in. */
static void keep_tracers_out(int which)
{
    MUST(!prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
}

/* A process of this user with fewer capabilities, CAP_SYS_PTRACE not among them. */
static void lose_capabilities(int which)
{
    root_only();
    drop_capability(CAP_CHOWN);
    drop_capability(CAP_SYS_PTRACE);
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

/* Keeps root as the saved user. */
static void stay_changeable(int which)
{
    if (getuid() || setresuid(NOBODY, NOBODY, 0))
        cannot("cannot become another user");
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

static int turns[2], joined[2];

/* Two users that a namespace does not map, with all rights there. */
static void nameless_users(int which)
{
    char name[60];
    pid_t owner = getpid();
    root_only();
    if (which == 0) {
        if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY) ||
            unshare(CLONE_NEWUSER))
            owner = 0;
        EXPECT(write(turns[1], &owner, sizeof(owner)), sizeof(owner));
        if (!owner)
            cannot("no user namespaces here");
        await_byte(joined[0]);
    } else {
        EXPECT(read(turns[0], &owner, sizeof(owner)), sizeof(owner));
        if (!owner)
            cannot("no user namespaces here");
        snprintf(name, sizeof(name), "/proc/%d/ns/user", owner);
        MUST(!setns(open(name, O_RDONLY), CLONE_NEWUSER));
        send_byte(joined[1]);
    }
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

static void two_users(int which)
{
    root_only();
    become_user(NOBODY - which);
}

static const char both_copy[] = "process_vm, one copy, both processes copy";
static const char neither_copies[] = "shared memory, two copies";

/* ---- Yama ------------------------------------------------------------------------------- */

/* Only root may change it, so this runs in a guest. */
static void yama(void)
{
    int file = open("/proc/sys/kernel/yama/ptrace_scope", O_WRONLY);
    bool lets_in = *variant == '0' || (*variant == '1' && getenv("ADMA_IPC_PTRACER"));
    char about[40];
    if (file < 0 || write(file, variant, 1) != 1)
        cannot("no Yama here, or no right to change it");
    close(file);
    knows_yama = true;
    snprintf(about, sizeof(about), "Yama is at %s", variant);
    scene_how = (long)&(struct rights){ NOBODY, NULL, 0, lets_in ? both_copy : "shared memory",
                                        lets_in ? NULL : about };
    two_children();
}

/* Thread-local variables lie on the stack of every thread, the library's too. */
static __thread volatile char own[300 * 1024];

static void *nothing(void *unused)
{
    own[0] = 1;
    return unused;
}

static void prepare_all(void)
{
    /* With the first thread the C library unblocks its own signals, and only then. */
    result_of(start(nothing, 0));
    make_room();
    pthread_atfork(NULL, NULL, make_room);
    make_pipe(turns);
    make_pipe(joined);
}

#define TWO(...) two_children, (long)&(struct rights){ __VA_ARGS__ }

PROGRAM(prepare_all(),
        { "lost", lost }, { "changed_thread", changed_thread }, { "yama", yama },
        { "refused", TWO(0, refuse_reads, 3, neither_copies, NULL) },
        { "namespaces", TWO(0, enter_user_namespace, 2, neither_copies, NULL) },
        { "namespaces_both", TWO(0, enter_user_namespace, 3, neither_copies, NULL) },
        { "pid_namespace", TWO(0, enter_process_namespace, 2, neither_copies, NULL) },
        { "pid_namespaces", TWO(0, enter_process_namespace, 3, neither_copies,
                                "cannot be seen from this namespace") },
        { "nobody", TWO(NOBODY, NULL, 0, both_copy, NULL) },
        { "dumpable", TWO(NOBODY, keep_tracers_out, 2, neither_copies, NULL) },
        { "dumpable_both", TWO(NOBODY, keep_tracers_out, 3, neither_copies, NULL) },
        { "keeps_out", TWO(0, keep_tracers_out, 2, neither_copies, NULL) },
        { "poorer", TWO(0, lose_capabilities, 2, neither_copies, NULL) },
        { "changeable", TWO(0, stay_changeable, 3, neither_copies, NULL) },
        { "nameless", TWO(0, nameless_users, 3, NULL, NULL) },
        { "users", TWO(0, two_users, 3, NULL, NULL) })
