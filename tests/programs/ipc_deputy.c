/* Tests that a peer cannot make this process reach into another program: it posts an address, and
 * then executes that program or leaves its process number to it. The second word is the path of
 * ipc_victim.
 */
#include "ipc.h"
#include "ipc_victim.h"
#include <linux/sched.h>
#include <sys/sendfile.h>
#include <sys/xattr.h>

static byte *room; /* 8 MiB */

/* ---- programs with rights of their own ------------------------------------------------- */

/* Copies the program to a place that all users can reach. */
static void copy_program(const char *path, int mode, bool capable)
{
    int from = open(path, O_RDONLY), to;
    struct stat stat;
    make_path();
    to = open(own_path, O_WRONLY | O_CREAT | O_EXCL, 0700);
    if (from < 0 || fstat(from, &stat) || to < 0 ||
        sendfile(to, from, NULL, stat.st_size) != stat.st_size || fchmod(to, mode))
        wrong("copying the program: %s", strerror(errno));
    close(from);
    close(to);
    if (capable) {
        struct vfs_cap_data caps = {
            .magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE,
            .data[0].permitted = 1 << CAP_NET_RAW,
        };
        if (setxattr(own_path, "security.capability", &caps, sizeof(caps), 0)) {
            remove_path();
            cannot("no file capabilities here");
        }
    }
}

/* A peer that becomes that program: its process, our end of the socket, its input and output. */
struct peer {
    pid_t pid;
    int socket, to, from;
};

/* Forks a peer: as `user` it posts something, and then executes the program at `path`. */
static struct peer fork_peer(int user, const char *path, void (*post_first)(int socket, long how),
                             long how)
{
    int pair[2], to[2], from[2];
    make_pair(SOCK_STREAM, pair);
    make_pipe(to);
    make_pipe(from);
    CHILD(other) {
        close(pair[0]);
        become_user(user);
        post_first(pair[1], how);
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        execl(path, "victim", (char *)NULL);
        wrong("exec: %s", strerror(errno));
    }
    close(pair[1]);
    close(to[0]);
    close(from[1]);
    return (struct peer){ other, pair[0], to[1], from[0] };
}

/* Ends it, and checks its report that it was not touched. */
static void end_peer(struct peer peer)
{
    close(peer.to);
    expect_good_end(peer.pid);
    close(peer.from);
    close(peer.socket);
}

/* ---- a peer that becomes another program ------------------------------------------------ */

/* Both users are those that the processes have at first. */
struct becoming {
    int server, peer; /* users */
    int mode; /* of the program */
    bool capable; /* it has a file capability */
    int becomes; /* the user that the program has in effect */
    bool ends; /* nothing but the program has changed */
};

/* Posts an address of the program that it then becomes; descriptors stay. */
static void post_secret(int socket, long reads)
{
    if (post(made(adma_attach(socket)), (byte *)SECRET_AT, SECRET_LEN, !reads) <= 0)
        wrong("the post is refused");
    for (int fd = 3; fd < 200; fd++)
        fcntl(fd, F_SETFD, 0);
}

static void show(const struct becoming *scene, bool reads)
{
    struct peer peer = fork_peer(scene->peer, own_path, post_secret, reads);
    int connection = made(adma_attach(peer.socket));
    char text[80] = "", want[80];
    need_engine(connection, "process_vm, one copy, both processes copy");
    if (read(peer.from, text, sizeof(text) - 1) <= 0)
        wrong("the program does not begin");
    snprintf(want, sizeof(want), "ready %d", scene->becomes);
    if (strcmp(text, want))
        cannot("programs with rights of their own are not heeded here");
    memset((void *)room, 1, SECRET_LEN);
    adma_cookie_t cookie = post(connection, room, SECRET_LEN, reads);
    long got = cookie < 0 ? cookie : adma_wait_for(cookie, scene->ends ? 60000 : 300);
    /* A writer may be done when its bytes are in shared memory. */
    if (scene->ends ? got != -ECONNRESET : !reads && got >= 0)
        wrong("a message to another program is %ld", got);
    expect_only(room, SECRET_LEN, 1, "another program was read");
    end_peer(peer);
    adma_close(connection);
}

static void become(void)
{
    const struct becoming *scene = (void *)scene_how;
    root_only();
    copy_program(variant, scene->mode, scene->capable);
    CHILD(server) {
        become_user(scene->server);
        show(scene, true);
        show(scene, false);
    }
    atexit(remove_path);
    end_like(server);
}

/* ---- a number that is given to another process ------------------------------------------- */

static int post_and_end(int connection)
{
    if (adma_iread(connection, (void *)SECRET_AT, SECRET_LEN) <= 0)
        wrong("the post is refused");
    /* Another process keeps the descriptors open, so they do not show the end. */
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, 0);
        sleep(3);
        _exit(0);
    }
    _exit(0);
}

/* Forks until a process gets the pid of one that has ended. */
static pid_t fork_heir(pid_t ended)
{
    struct clone_args args = {
        .set_tid = (uint64_t)&ended, .set_tid_size = 1, .exit_signal = SIGCHLD,
    };
    waitpid(ended, NULL, 0);
    pid_t heir = syscall(SYS_clone3, &args, sizeof(args));
    if (heir == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    else if (heir != ended)
        cannot("process numbers cannot be chosen here");
    return heir;
}

static void reused(void)
{
    int connection = with_child(post_and_end), status, pipes[2];
    memset((void *)room, 1, SECRET_LEN);
    make_pipe(pipes);
    /* At that place the stranger has what a fork of us has. */
    unsigned char *own = lay_down_secret();
    pid_t stranger = fork_heir(child);
    if (stranger == 0) {
        char byte;
        close(pipes[1]);
        while (read(pipes[0], &byte, 1) > 0)
            ;
        _exit(is_untouched(own) ? 0 : TOUCHED);
    }
    long got = adma_write(connection, (void *)room, SECRET_LEN);
    close(pipes[1]);
    waitpid(stranger, &status, 0);
    if (status)
        wrong("the new process with that number was touched: %#x", status);
    EXPECT(got, -ECONNRESET);
}

/* ---- a peer that becomes another program while bytes are on their way --------------------- */

static void post_own(int socket, long round)
{
    int connection = adma_attach(socket);
    if (adma_iread(connection, lay_down_secret(), SECRET_LEN) <= 0)
        wrong("the post is refused");
    EXPECT(adma_write(connection, "now", 3), 3);
    for (double begun = seconds(); seconds() - begun < round % 25 * 20e-6;)
        ;
}

static void raced(void)
{
    for (int round = 0; round < 100; round++) {
        struct peer peer = fork_peer(getuid(), variant, post_own, round);
        int connection = adma_attach(peer.socket);
        char text[80];
        EXPECT(adma_read(connection, text, 3), 3);
        long got = adma_write(connection, (void *)room, SECRET_LEN);
        if (got != SECRET_LEN && got != -ECONNRESET)
            wrong("a message in mid-exec is %ld", got);
        if (read(peer.from, text, sizeof(text)) <= 0)
            wrong("round %d: the program does not begin", round);
        end_peer(peer);
        adma_close(connection);
    }
}

#define BECOMES(...) become, (long)&(struct becoming){ __VA_ARGS__ }

PROGRAM(room = message_memory(8 * MIB),
        { "set_user_id_same", BECOMES(STRANGER, STRANGER, 04755, false, 0, false) },
        { "capability_same", BECOMES(STRANGER, STRANGER, 0755, true, STRANGER, false) },
        { "exec", BECOMES(0, 0, 0755, false, 0, true) },
        { "exec_same", BECOMES(STRANGER, STRANGER, 0755, false, STRANGER, true) },
        { "reused", reused }, { "raced", raced })
