/* Follows the lines of its standard input, and answers each with a line.
 *
 *     copy BYTES COUNT   COUNT copies
 *     read BYTES COUNT   COUNT reads of a file in memory
 *     fork COUNT         a child makes COUNT copies of 1 MiB and leaves by _exit
 *     rawfork COUNT      like fork, without the C library's fork handlers
 *     messages COUNT     COUNT of 100 kB to a child, which leaves by _exit
 *     descriptor         the lowest number that is free
 *     fsize              no file may grow any more
 *     exec               executes this program again
 *     terminal           behaves like an editor from now on: says when it is interrupted or let go
 *                        on, and tidies up before it stops, for which it takes its time
 *     signal N           to its whole group, and goes on
 *     tell N             that signal to its parent
 *     leave              into a process group of its own, and waits there
 *     exit N, _exit N, kill, stop
 */
#include "trap.h"
#include <sys/socket.h>

static void copy(size_t size, long count)
{
    unsigned char *from = map(size), *to = map(size);
    for (size_t at = 0; at < size; at += 4096)
        from[at] = at >> 12;
    for (long n = 0; n < count; n++)
        memcpy(to, from, size);
    for (size_t at = 0; count && at < size; at += 4096)
        if (to[at] != (unsigned char)(at >> 12))
            wrong("byte %zu is wrong", at);
    munmap(from, size);
    munmap(to, size);
}

static void read_file(size_t size, long count)
{
    int fd = memfd_create("read", 0);
    unsigned char *to = map(size);
    MUST(!ftruncate(fd, size));
    for (long n = 0; n < count; n++)
        MUST(pread(fd, to, size, 0) == (ssize_t)size);
    munmap(to, size);
    close(fd);
}

static void child(pid_t pid, long count)
{
    if (pid == 0) {
        copy(1 << 20, count);
        _exit(0);
    }
    expect_success(pid, "child");
    printf("%d\n", pid);
}

/* Calls a function of the preloaded library. */
static long call(const char *name, long first, void *second, long third)
{
    long (*function)(long, void *, long) = (long (*)(long, void *, long))dlsym(RTLD_DEFAULT, name);
    return function ? function(first, second, third) : -1;
}

static void send_messages(long count)
{
    enum { SIZE = 100000 };
    int sockets[2];
    unsigned char *room = map(SIZE);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        _exit(1);
    pid_t pid = fork();
    const char *transfer = pid ? "adma_write" : "adma_read";
    int connection = (int)call("adma_attach", sockets[!pid], NULL, 0);
    for (long n = 0; n < count; n++)
        if (call(transfer, connection, room, SIZE) != SIZE)
            _exit(1);
    if (pid == 0)
        _exit(0);
    expect_success(pid, "reader");
    call("adma_close", connection, NULL, 0);
    munmap(room, SIZE);
}

static void speak(int number)
{
    say(number == SIGINT ? "interrupted" : "went on");
}

static void tidy_up(int number)
{
    sigset_t set;
    usleep(100000);
    say("tidied up");
    signal(number, SIG_DFL);
    sigemptyset(&set);
    sigaddset(&set, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &set, NULL);
    signal(number, tidy_up);
}

int main(int words, char **word)
{
    char line[256], what[32];
    setvbuf(stdout, NULL, _IOLBF, 4096);
    while (fgets(line, sizeof line, stdin)) {
        long first = 0, second = 0;
        if (sscanf(line, "%31s %ld %ld", what, &first, &second) < 1)
            continue;
        if (!strcmp(what, "copy")) {
            copy(first, second);
            puts("copied");
        } else if (!strcmp(what, "read")) {
            read_file(first, second);
            puts("read");
        } else if (!strcmp(what, "fork")) {
            child(fork(), first);
        } else if (!strcmp(what, "rawfork")) {
            child(syscall(SYS_fork), first);
        } else if (!strcmp(what, "messages")) {
            send_messages(first);
            puts("sent");
        } else if (!strcmp(what, "descriptor")) {
            int fd = open("/dev/null", O_RDONLY);
            close(fd);
            printf("%d\n", fd);
        } else if (!strcmp(what, "fsize")) {
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0});
            puts("limited");
        } else if (!strcmp(what, "exec")) {
            puts("executing");
            execv("/proc/self/exe", word);
        } else if (!strcmp(what, "terminal")) {
            signal(SIGINT, speak);
            signal(SIGCONT, speak);
            signal(SIGTSTP, tidy_up);
            puts("handled");
        } else if (!strcmp(what, "signal")) {
            signal(first, SIG_IGN);
            kill(0, first);
            puts("signalled");
        } else if (!strcmp(what, "tell")) {
            kill(getppid(), first);
            puts("told");
        } else if (!strcmp(what, "leave")) {
            setpgid(0, 0);
            puts("left");
            pause();
        } else if (!strcmp(what, "exit")) {
            exit(first);
        } else if (!strcmp(what, "_exit")) {
            _exit(first);
        } else if (!strcmp(what, "kill")) {
            kill(getpid(), SIGKILL);
        } else if (!strcmp(what, "stop")) {
            raise(SIGSTOP);
            puts("went on");
        }
    }
    return 0;
}
