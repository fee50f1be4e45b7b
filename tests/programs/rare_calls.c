/* Makes calls of each kind that the library carries, checks their results, and prints how they were
 * carried. tests/refusals.rs runs it where one system call is refused, and compares the lines.
 */
#include "ipc.h"
#include <sys/uio.h>

enum { SIZE = 512 << 10, TIMES = 4, FRESH = 36 << 20 };

static byte *from, *to;

static byte *mapped(size_t size)
{
    byte *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(at != MAP_FAILED);
    return at;
}

static uint64_t carried(void)
{
    struct adma_stats stats = { .size = sizeof stats };
    EXPECT(adma_stats(&stats), 0);
    return stats.engine_calls;
}

/* Prints the subject, and whether the engine has carried a call since there were `before`. */
static void report(const char *subject, uint64_t before)
{
    printf("%s %s\n", subject, carried() > before ? "shared" : "libc");
}

static void copy(void)
{
    uint64_t before = carried();
    for (int i = 0; i < TIMES; i++) {
        fill(from, SIZE, i);
        memcpy((void *)to, (void *)from, SIZE);
        expect_content(to, SIZE, i, "copy");
    }
    report("copy", before);
    byte *fresh = mapped(FRESH + 4096), *source = mapped(FRESH);
    for (size_t i = 0; i < FRESH; i += 4096)
        source[i] = i / 4096 + 1;
    memcpy((void *)(fresh + 8), (void *)source, FRESH);
    for (size_t i = 0; i < FRESH; i += 4096)
        if (fresh[i + 8] != source[i])
            wrong("fresh: byte %zu is wrong", i);
    long huge = 0;
    char line[200];
    FILE *rollup = fopen("/proc/self/smaps_rollup", "r");
    while (rollup && fgets(line, sizeof line, rollup))
        sscanf(line, "AnonHugePages: %ld", &huge);
    if (rollup)
        fclose(rollup);
    FILE *setting = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    bool unasked = setting && fgets(line, sizeof line, setting) && strstr(line, "[always]");
    if (setting)
        fclose(setting);
    printf("fresh %s\n", unasked ? "unasked" : huge ? "huge" : "small");
}

static sigjmp_buf back;

static void jump(int number)
{
    siglongjmp(back, number);
}

/* A copy that meets a bad page raises SIGSEGV in its caller. */
static void fault(void)
{
    MUST(signal(SIGSEGV, jump) != SIG_ERR);
    byte *bad = mapped(SIZE);
    MUST(!mprotect((void *)(bad + SIZE / 2), SIZE / 2, PROT_NONE));
    int got = sigsetjmp(back, 1);
    if (got == 0)
        memcpy((void *)to, (void *)bad, SIZE);
    EXPECT(got, SIGSEGV);
    uint64_t before = carried();
    for (int i = 0; i < TIMES; i++)
        memcpy((void *)to, (void *)from, SIZE);
    report("handled", before);
}

static void read_file(void)
{
    char path[] = "/tmp/adma-rare-XXXXXX";
    int file = mkstemp(path);
    MUST(file >= 0 && !unlink(path));
    fill(from, SIZE, 7);
    EXPECT(write(file, (void *)from, SIZE), SIZE);
    bool shared = false;
    for (int i = 0; i < TIMES; i++) {
        memset((void *)to, 0, SIZE);
        lseek(file, 0, SEEK_SET);
        uint64_t before = carried();
        EXPECT(read(file, (void *)to, SIZE), SIZE);
        shared |= carried() > before;
        expect_content(to, SIZE, 7, "read");
        EXPECT(lseek(file, 0, SEEK_CUR), SIZE);
    }
    printf("read %s\n", shared ? "shared" : "libc");
    close(file);
}

static void remote(void)
{
    fill(from, SIZE, 9);
    uint64_t before = carried();
    for (int i = 0; i < TIMES; i++) {
        struct iovec here = { (void *)to, SIZE }, there = { (void *)from, SIZE };
        ssize_t got = process_vm_readv(getpid(), &here, 1, &there, 1, 0);
        if (got < 0 && (errno == ENOSYS || errno == EPERM)) {
            puts("remote refused");
            return;
        }
        EXPECT(got, SIZE);
        expect_content(to, SIZE, 9, "remote");
    }
    report("remote", before);
}

/* Copies that go on while the caller does something else, and the descriptor that tells their end. */
static void cookie(void)
{
    fill(from, SIZE, 11);
    adma_cookie_t cookie = adma_icopy((void *)from, (void *)to, SIZE);
    EXPECT(cookie > 0, true);
    EXPECT(adma_wait_copy(cookie), 0);
    expect_content(to, SIZE, 11, "cookie");
    int fd = adma_poll_fd();
    printf("cookie %s\n", fd >= 0 ? "polled" : "waited for");
}

static int echo(int connection)
{
    ssize_t got;
    while ((got = adma_read(connection, (void *)to, SIZE)) > 0)
        EXPECT(adma_write(connection, (void *)to, got), got);
    return got != -EPIPE;
}

/* An eager and a large message both ways, and the means of the connection. */
static void message(void)
{
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    fflush(stdout);
    pid_t child = fork_child();
    close(pair[child != 0]);
    int connection = adma_attach(pair[child == 0]);
    close(pair[child == 0]);
    if (child == 0)
        exit(connection < 0 ? 0 : echo(connection));
    if (connection < 0) {
        puts("message refused");
    } else {
        char text[200];
        const size_t sizes[] = { 100, SIZE };
        for (size_t i = 0; i < COUNT(sizes); i++) {
            fill(from, sizes[i], 20 + i);
            EXPECT(adma_write(connection, (void *)from, sizes[i]), sizes[i]);
            EXPECT(adma_read(connection, (void *)to, SIZE), sizes[i]);
            expect_content(to, sizes[i], 20 + i, "message");
        }
        adma_connection_info(connection, text, sizeof text);
        text[strcspn(text, ",;")] = 0;
        printf("message %s\n", text);
        EXPECT(adma_close(connection), 0);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    EXPECT(status, 0);
    byte *block = adma_alloc(SIZE);
    printf("block %s\n", block ? "made" : "none");
    EXPECT(adma_free((void *)block), 0);
}

int main(void)
{
    alarm(100);
    from = mapped(SIZE);
    to = mapped(SIZE);
    copy();
    read_file();
    remote();
    cookie();
    fault();
    message();
    return 0;
}
