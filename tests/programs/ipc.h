/* Scaffold of the programs of tests/ipc.rs: two processes and a connection between them.
 *
 * They are linked with the library, or preloaded, or both; the tests say which.
 */
#pragma once
#include "pattern.h"
#include "scenes.h"
#include "../../include/adma.h"
#include <grp.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Checks the result of a call. */
#define EXPECT(call, want) expect_result(call, want, #call, __LINE__)

static inline void expect_result(long got, long want, const char *call, int line)
{
    if (got != want)
        wrong("line %d, process %d: %s is %ld (%s), want %ld", line, getpid(), call, got,
              got < 0 ? strerror(-got) : "a count", want);
}

/* Defines a whole program: what it does first, and its scenes. A hang ends it. */
#define PROGRAM(first, ...) SCENES(alarm(200); first, __VA_ARGS__)

#define variant scene_argument(0, NULL)

static inline void root_only(void)
{
    if (getuid())
        cannot("only root can become others");
}

/* ---- bytes ------------------------------------------------------------------------------- */

/* Returns a byte that depends on the message and on the place. */
static inline unsigned char content(unsigned message, size_t at)
{
    return (uint32_t)(at + 1) * 0x9e3779b1u >> 24 ^ message * 151;
}

static inline void fill(byte *data, size_t len, unsigned message)
{
    for (size_t at = 0; at < len; at++)
        data[at] = content(message, at);
}

static inline void expect_content(byte *data, size_t len, unsigned message, const char *what)
{
    for (size_t at = 0; at < len; at++)
        if (data[at] != content(message, at))
            wrong("%s: byte %zu of %zu of message %u is %#x, want %#x", what, at, len, message,
                  data[at], content(message, at));
}

static inline void expect_only(byte *data, size_t len, unsigned char value, const char *what)
{
    for (size_t at = 0; at < len; at++)
        if (data[at] != value)
            wrong("%s: byte %zu beside the buffer was written: %#x", what, at, data[at]);
}

/* Counts the sockets of this process. */
static inline int sockets(void)
{
    int number = 0;
    for (int fd = 0; fd < 100; fd++) {
        struct stat stat;
        number += fstat(fd, &stat) == 0 && S_ISSOCK(stat.st_mode);
    }
    return number;
}

/* Counts the mappings with these rights, or any, and such a file behind them. */
static inline int mappings(const char *rights, const char *file)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[400];
    int count = 0;
    while (fgets(line, sizeof(line), maps))
        count += strstr(line, rights) && strstr(line, file);
    fclose(maps);
    return count;
}

/* ---- sockets and pipes ------------------------------------------------------------------- */

static inline void make_pair(int kind, int pair[2])
{
    MUST(!socketpair(AF_UNIX, kind, 0, pair));
}

static inline void make_pipe(int ends[2])
{
    MUST(!pipe(ends));
}

/* Tells another process over a pipe to go on. */
static inline void send_byte(int to)
{
    EXPECT(write(to, "x", 1), 1);
}

static inline void await_byte(int from)
{
    struct pollfd one = { .fd = from, .events = POLLIN };
    char byte;
    /* Longer than a busy machine needs for anything. */
    if (poll(&one, 1, 60000) != 1 || read(from, &byte, 1) != 1)
        wrong("process %d: the other process does nothing", getpid());
}

/* Returns an abstract name and a path that no other process has. */
static inline char *own_name(void)
{
    static char name[60];
    if (!*name)
        snprintf(name, sizeof(name), "@adma-test-%d", getpid());
    return name;
}

static char own_folder[40] __attribute__((unused)), own_path[60];

/* Makes the folder, which all users can reach, and no file. */
static inline const char *make_path(void)
{
    strcpy(own_folder, "/tmp/adma-test-XXXXXX");
    MUST(mkdtemp(own_folder) && !chmod(own_folder, 0755));
    snprintf(own_path, sizeof(own_path), "%s/file", own_folder);
    return own_path;
}

static inline void remove_path(void)
{
    unlink(own_path);
    rmdir(own_folder);
}

/* Makes the address of an abstract name, "@" first; returns its length. */
static inline socklen_t abstract_address(const char *name, struct sockaddr_un *address)
{
    *address = (struct sockaddr_un){ .sun_family = AF_UNIX };
    strcpy(address->sun_path + 1, name + 1);
    return offsetof(struct sockaddr_un, sun_path) + strlen(name);
}

/* Makes a plain listener whose queue is full after one client. */
static inline int short_listener(const char *name)
{
    struct sockaddr_un address;
    socklen_t len = abstract_address(name, &address);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(!bind(listener, (void *)&address, len) && !listen(listener, 0));
    return listener;
}

/* Returns a socket that is connected to such a name, and nothing more; negative: an error. */
static inline int try_client(const char *name, int kind)
{
    struct sockaddr_un address;
    socklen_t len = abstract_address(name, &address);
    int client = socket(AF_UNIX, SOCK_STREAM | kind, 0);
    if (connect(client, (void *)&address, len) == 0)
        return client;
    close(client);
    return -1;
}

static inline int plain_client(const char *name)
{
    int client = try_client(name, 0);
    MUST(client >= 0);
    return client;
}

/* ---- time and descriptors ---------------------------------------------------------------- */

static inline double seconds(void)
{
    return clock_us() * 1e-6;
}

/* Checks that something has taken this many seconds since `begun`. */
static inline void expect_seconds(double begun, double least, double most, const char *what)
{
    double taken = seconds() - begun;
    if (taken < least || taken > most * slower())
        wrong("%s took %.3f s", what, taken);
}

/* Checks for no more than before: a thread closes what strangers send, when it gets a CPU. */
static inline void expect_descriptors(long before)
{
    for (double begun = seconds(); entries_of("/proc/self/fd") > before; sleep_ms(10))
        if (seconds() - begun > 60)
            wrong("%ld descriptors are left", entries_of("/proc/self/fd") - before);
}

/* ---- threads ----------------------------------------------------------------------------- */

static inline pthread_t start(void *(*work)(void *), long argument)
{
    return start_thread(work, (void *)argument);
}

static inline long result_of(pthread_t thread)
{
    void *result;
    pthread_join(thread, &result);
    return (long)result;
}

/* ---- connections ------------------------------------------------------------------------- */

static inline adma_cookie_t post(int connection, byte *data, size_t len, bool writes)
{
    return writes ? adma_iwrite(connection, (void *)data, len)
                  : adma_iread(connection, (void *)data, len);
}

/* Set by the scene that changes Yama's setting itself, and knows what is right at each. */
static bool knows_yama;

/* Yama, or a filter (KEPT_OUT), keeps this process out of the memory of others than its children: a message
 * may be streamed whose test expects one copy. As under tests/systems/guests, and for users of Ubuntu. */
static inline bool is_kept_out(void)
{
    if (getenv("KEPT_OUT"))
        return true;
    struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct held[2] = { { 0 } };
    char scope = '0';
    int file = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
    if (file >= 0 && (read(file, &scope, 1) != 1 || close(file)))
        scope = '0';
    return scope != '0' && !syscall(SYS_capget, &header, held) &&
           !(held[0].effective & 1u << CAP_SYS_PTRACE);
}

static inline bool engine_is(int connection, const char *name, char text[200])
{
    if (adma_connection_info(connection, text, 200) <= 0)
        wrong("no connection info");
    return !strncmp(text, name, strlen(name));
}

/* For scenes in which messages arrive whatever carries them. */
static inline void expect_engine(int connection, const char *name)
{
    char text[200];
    if (engine_is(connection, name, text))
        return;
    if (knows_yama || strncmp(name, "process_vm", 10) || !is_kept_out())
        wrong("the engine is %s, want %s", text, name);
}

/* For scenes about that engine itself. */
static inline void need_engine(int connection, const char *name)
{
    char text[200];
    if (engine_is(connection, name, text))
        return;
    if (is_kept_out())
        cannot("this process is kept out of the memory of others, which this is about");
    wrong("the engine is %s, want %s", text, name);
}

/* Checks that a connection was made. */
static inline int made(int connection)
{
    if (connection < 0)
        wrong("process %d: no connection: %s", getpid(), strerror(-connection));
    return connection;
}

/* Retries as often as a busy machine needs. */
static inline int connect_patiently(const char *name)
{
    int connection = -ETIMEDOUT;
    for (int tries = 0; connection == -ETIMEDOUT && tries < 20; tries++)
        connection = adma_connect(name);
    return made(connection);
}

/* Attaches over a socket that is not needed any more. */
static inline int attach_and_close(int socket)
{
    int connection = made(adma_attach(socket));
    close(socket);
    return connection;
}

static inline void *attach_in_thread(void *socket)
{
    return (void *)(long)adma_attach((int)(long)socket);
}

/* Attaches both ends in this process, or says why not. */
static inline void attach_both(const int pair[2], int ends[2])
{
    pthread_t thread = start(attach_in_thread, pair[1]);
    ends[0] = adma_attach(pair[0]);
    ends[1] = result_of(thread);
}

static inline void connect_both(int ends[2])
{
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    attach_both(pair, ends);
    close(pair[0]);
    close(pair[1]);
}

/* ---- processes --------------------------------------------------------------------------- */

static inline pid_t fork_child(void)
{
    pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

/* Becomes this user, without rights of its own, if it is root. */
static inline void become_user(uid_t user)
{
    if (user == getuid())
        return;
    if (getuid() == 0 && (setgroups(0, NULL) || setresgid(user, user, user) ||
                          setresuid(user, user, user)))
        cannot("cannot become another user");
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* which goes with the user */
}

/* Runs the block behind this in a child of that name, which exits with success. */
#define CHILD(name)                                                                                \
    pid_t name = fork_child();                                                                     \
    for (; name == 0; exit(0))

/* Forks a child with a connection to it; both get their end. */
static inline int fork_connected(pid_t *child)
{
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    *child = fork_child();
    close(pair[*child != 0]);
    return attach_and_close(pair[*child == 0]);
}

static pid_t child __attribute__((unused)); /* of the latest PEER or with_child */

/* Like CHILD, with an end of a connection for both: the block is the peer's part. */
#define PEER(connection)                                                                           \
    int connection = fork_connected(&child);                                                       \
    for (; child == 0; exit(0))

/* Returns the parent's end; the child runs `other`. */
static inline int with_process(int (*other)(int connection), pid_t *child)
{
    int connection = fork_connected(child);
    if (*child == 0)
        exit(other(connection));
    return connection;
}

static inline int with_child(int (*other)(int connection))
{
    return with_process(other, &child);
}

enum { STRANGER = 1001 };

static inline void expect_good_end(pid_t child)
{
    int status;
    if (waitpid(child, &status, 0) != child || status != 0)
        wrong("the other process ended with status %#x", status);
}

/* Closes, which the other process waits for. */
static inline void finish(int connection, pid_t child)
{
    EXPECT(adma_close(connection), 0);
    expect_good_end(child);
}

/* Closes when the other process has ended. */
static inline void finish_after(int connection, pid_t child)
{
    expect_good_end(child);
    EXPECT(adma_close(connection), 0);
}

/* Exits like the child. */
__attribute__((noreturn))
static inline void end_like(pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static inline void kill_child(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* Allocates memory for messages: a block of adma_alloc if BLOCKS is set. */
static inline byte *message_memory(size_t size)
{
    if (!getenv("BLOCKS"))
        return pages_between_guards(size);
    byte *block = adma_alloc(size);
    if (!block)
        wrong("no block of %zu bytes", size);
    return block;
}
