/* Tests adma_alloc memory across fork, free and reuse, with closed descriptors, at limits, and
 * where posts name wrong blocks or pages are taken away: no process is ended, and messages arrive.
 * Second words: returned [closed], fork [bare].
 */
#include "ipc_inside.h"

enum { SIZE = 300000 };

static void *new_block(size_t size)
{
    void *block = adma_alloc(size);
    if (!block)
        wrong("no block of %zu bytes", size);
    for (size_t at = 0; at < size; at += 1000)
        if (((byte *)block)[at])
            wrong("a new block is not all zeros");
    return block;
}

/* Echoes what it gets, from and into blocks of its own, until the connection is closed. */
static int echo(int connection)
{
    void *block = new_block(SIZE);
    ssize_t got;
    while ((got = adma_read(connection, block, SIZE)) > 0)
        EXPECT(adma_write(connection, block, got), got);
    EXPECT(got, -EPIPE);
    EXPECT(adma_free(block), 0);
    EXPECT(adma_close(connection), 0);
    return 0;
}

static void ask(int connection, byte *data, unsigned message)
{
    fill(data, SIZE, message);
    EXPECT(adma_write(connection, (void *)data, SIZE), SIZE);
    memset((void *)data, 0, SIZE);
    EXPECT(adma_read(connection, (void *)data, SIZE), SIZE);
    expect_content(data, SIZE, message, "echo");
}

/* Returns the number of the next descriptor; a block takes one. */
static int next_descriptor(void)
{
    int number = dup(0);
    close(number);
    return number;
}

/* Memory that is no block, or not any more, cannot be freed. */
static void freed(void)
{
    char *block = new_block(10000);
    EXPECT(adma_free(NULL), 0);
    EXPECT(adma_free(&block), -EINVAL);
    EXPECT(adma_free(block + 4096), -EINVAL);
    EXPECT(adma_free(block), 0);
    EXPECT(adma_free(block), -EINVAL);
    EXPECT(adma_free(new_block(0)), 0);
    errno = 12345;
    if (adma_alloc(SIZE_MAX) || adma_alloc(SIZE_MAX / 2) || adma_alloc(1ul << 46))
        wrong("a block larger than the machine");
    EXPECT(errno, 12345);
}

/* Addresses and descriptors are reused; more blocks than the peer keeps mapped. */
static void reused(void)
{
    int connection = with_child(echo);
    enum { BLOCKS = 100 };
    byte *blocks[BLOCKS];
    for (unsigned round = 0; round < 300; round++) {
        byte *block = new_block(SIZE);
        ask(connection, block, round);
        EXPECT(adma_free((void *)block), 0);
    }
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = new_block(SIZE);
    for (unsigned i = 0; i < 3 * BLOCKS; i++)
        ask(connection, blocks[i * 7 % BLOCKS], i);
    finish(connection, child);
}

static long pages_of(int memory)
{
    struct stat is;
    MUST(!fstat(memory, &is));
    return is.st_blocks / (PAGE / 512);
}

/* A freed block takes no memory, though the peer has it mapped; also if the program has closed its
 * descriptor. */
static void returned(void)
{
    enum { LARGE = 4 * 1024 * 1024 };
    int connection = with_child(echo);
    int number = next_descriptor();
    byte *block = new_block(LARGE);
    int kept = dup(number);
    mlock((void *)block, SIZE); /* what is locked is freed as well */
    ask(connection, block + LARGE - SIZE, 1);
    if (variant)
        close(number);
    EXPECT(pages_of(kept), LARGE / PAGE);
    EXPECT(adma_free((void *)block), 0);
    EXPECT(pages_of(kept), 0);
    finish(connection, child);
}

/* A child shares its parent's blocks, and cannot free them. */
static void forked(void)
{
    int connection = with_child(echo);
    byte *block = new_block(SIZE);
    bool bare = variant;
    ask(connection, block, 1);
    pid_t mine = bare ? syscall(SYS_fork) : fork();
    if (mine == 0) {
        expect_content(block, SIZE, 1, "the parent's block in the child");
        if (adma_free((void *)block) != -EINVAL)
            _exit(2);
        block[0] ^= 0xff;
        /* Its own connection carries messages from the parent's block, and from its own. */
        if (!bare) {
            pid_t grandchild;
            int own = with_process(echo, &grandchild);
            ask(own, block, 2);
            ask(own, new_block(SIZE), 3);
            finish(own, grandchild);
        }
        _exit(0);
    }
    expect_good_end(mine);
    if (bare && block[0] != (content(1, 0) ^ 0xff))
        wrong("the child's byte is not there");
    ask(connection, block, 4);
    EXPECT(adma_free((void *)block), 0);
    finish(connection, child);
}

/* The program closes unknown descriptors; the numbers go to other blocks, and other files. */
static void closed(void)
{
    int connection = with_child(echo);
    int before = next_descriptor();
    byte *first = new_block(SIZE);
    int after = next_descriptor();
    if (after <= before)
        wrong("a block has a descriptor: %d is free before, %d after", before, after);
    close(before);
    byte *second = new_block(SIZE);
    fill(second, SIZE, 99);
    ask(connection, first, 1);
    expect_content(second, SIZE, 99, "the other block");
    ask(connection, second, 2);
    EXPECT(adma_free((void *)first), 0);
    ask(connection, second, 3);
    close(before);
    if (dup(0) != before)
        wrong("the number is not free");
    EXPECT(adma_free((void *)second), 0);
    if (fcntl(before, F_GETFD) < 0)
        wrong("a descriptor of the program was closed");
    finish(connection, child);
}

/* An unmapped buffer is reported as usual if the other one is a block. */
static void hole(void)
{
    PEER(connection) {
        byte *room = pages_between_guards(SIZE);
        need_engine(connection, "process_vm");
        munmap((char *)room + 200 * KIB, 4 * KIB);
        EXPECT(adma_read(connection, (void *)room, SIZE), -EFAULT);
        echo(connection);
    }
    byte *block = new_block(SIZE);
    need_engine(connection, "process_vm");
    EXPECT(adma_write(connection, (void *)block, SIZE), -EFAULT);
    ask(connection, block, 1);
    finish(connection, child);
}

/* ---- limits --------------------------------------------------------------------------- */

static volatile int alarms;

static void count_alarm(int signal)
{
    alarms++;
}

/* Frequent signals do not prevent the allocation of a large block. */
static void interrupted(void)
{
    struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { 0 };
    signal(SIGALRM, count_alarm);
    setitimer(ITIMER_REAL, &often, NULL);
    byte *block = adma_alloc(64 * MIB);
    setitimer(ITIMER_REAL, &never, NULL);
    if (!block)
        wrong("no block while signals come");
    if (!alarms)
        cannot("this machine makes a block faster than signals come");
    EXPECT(adma_free((void *)block), 0);
}

/* A limit of the system is an error, not a kill. */
static void limited(void)
{
    int ends[2];
    errno = 12345;
    limit_to(RLIMIT_FSIZE, 100000);
    if (adma_alloc(SIZE))
        wrong("a block larger than files may be");
    EXPECT(adma_free(new_block(10000)), 0);
    connect_both(ends); /* the one that makes the region is told */
    EXPECT(ends[0] == -EFBIG || ends[1] == -EFBIG, 1);
    limit_to(RLIMIT_FSIZE, RLIM_INFINITY);

    limit_to(RLIMIT_AS, 1536 * MIB);
    if (adma_alloc(2048 * MIB))
        wrong("a block larger than the address space may be");
    EXPECT(adma_free(new_block(SIZE)), 0);
    limit_to(RLIMIT_AS, RLIM_INFINITY);

    int next = next_descriptor();
    limit_to(RLIMIT_NOFILE, next);
    if (adma_alloc(SIZE))
        wrong("a block without a descriptor");
    limit_to(RLIMIT_NOFILE, next + 10);
    EXPECT(adma_free(new_block(SIZE)), 0);
    EXPECT(errno, 12345);
}

/* A block that cannot be opened for want of a descriptor is copied another way. */
static void no_descriptors(void)
{
    PEER(connection) {
        void *block = new_block(SIZE);
        limit_to(RLIMIT_NOFILE, next_descriptor());
        EXPECT(adma_read(connection, block, SIZE), SIZE);
        EXPECT(adma_write(connection, block, SIZE), SIZE);
        EXPECT(adma_free(block), 0);
        EXPECT(adma_close(connection), 0);
    }
    ask(connection, new_block(SIZE), 1);
    finish(connection, child);
}

/* What a program writes to its closed standard output does not end up in a block. */
static void standard(void)
{
    close(0);
    close(1);
    byte *other = new_block(SIZE), *block = new_block(SIZE);
    if (write(1, "spoiled", 7) > 0)
        wrong("the standard output has become a block");
    expect_only(block, SIZE, 0, "block");
    EXPECT(adma_free((void *)block), 0);
    EXPECT(adma_free((void *)other), 0);
}

/* ---- places --------------------------------------------------------------------------- */

/* Messages that begin in a block and end behind it are copied as from any memory. */
static void straddling(void)
{
    int connection = with_child(echo);
    size_t whole = (SIZE + PAGE - 1) / PAGE * PAGE;
    byte *block = new_block(whole), *below = new_block(whole);
    if (below + whole != block)
        cannot("two blocks that do not lie side by side");
    ask(connection, block - 1000, 1);
    ask(connection, block - SIZE + 1, 2);
    ask(connection, below, 3);
    EXPECT(adma_free((void *)block), 0);
    if (mmap((void *)block, whole, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != block)
        wrong("no memory behind the block");
    ask(connection, block - 1000, 4);
    ask(connection, block, 5);
    EXPECT(adma_free((void *)below), 0);
    finish(connection, child);
}

static void *echo_here(void *socket)
{
    echo(adma_attach((int)(long)socket));
    return NULL;
}

/* A process connected to itself. */
static void alone(void)
{
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    pthread_t thread = start(echo_here, pair[1]);
    int connection = adma_attach(pair[0]);
    byte *block = new_block(SIZE);
    for (unsigned i = 0; i < 20; i++)
        ask(connection, block, i);
    EXPECT(adma_free((void *)block), 0);
    EXPECT(adma_close(connection), 0);
    pthread_join(thread, NULL);
}

/* ---- lies ------------------------------------------------------------------------------ */

/* Finds the latest post with this buffer. */
static volatile struct post *find_post(const void *buffer)
{
    volatile struct post *latest = NULL;
    size_t size;
    byte *from = region(&size);
    for (volatile struct post *post = (void *)from; (byte *)post < from + size; post++)
        if (post->at == (uintptr_t)buffer && post->len == SIZE &&
            (!latest || post->number > latest->number))
            latest = post;
    if (!latest)
        wrong("no post found");
    return latest;
}

static int some_memory(off_t size, unsigned seals, bool pages)
{
    int memory = memfd_create("lie", MFD_ALLOW_SEALING);
    if (memory < 0 || ftruncate(memory, size) || (pages && fallocate(memory, 0, 0, size)) ||
        fcntl(memory, F_ADD_SEALS, seals))
        wrong("no memory: %s", strerror(errno));
    return memory;
}

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Names a descriptor as the library names a block: number and file. */
static uint64_t name_of(int memory)
{
    struct stat file;
    MUST(!fstat(memory, &file));
    return (uint64_t)memory << 40 | ((file.st_ino ^ (uint64_t)file.st_dev << 32) & ((1ul << 39) - 1));
}

/* Posts with wrong blocks; the first is right. */
static const struct {
    off_t size;
    unsigned seals;
    bool pages;
    int wrong_file;
    uint64_t offset;
} lies[] = {
    { .size = 0 },
    { .size = SIZE, .seals = F_SEAL_GROW | F_SEAL_SEAL, .pages = true }, /* could be made smaller later */
    { .size = SIZE, .seals = SEALS | F_SEAL_WRITE, .pages = true },
    { .size = SIZE, .seals = 0, .pages = true },
    { .size = 1l << 46, .seals = SEALS, .pages = false }, /* half of the address space, and no page in it */
    { .size = SIZE, .seals = SEALS, .pages = true, .wrong_file = 1 }, /* the number of another file */
    { .offset = 1l << 40 },
    { .offset = 1ul << 63 },
};

enum { LIES = COUNT(lies) };

static void tell(int lie, volatile struct post *post)
{
    if (lies[lie].size) {
        int memory = some_memory(lies[lie].size, lies[lie].seals, lies[lie].pages);
        post->block = name_of(memory) ^ lies[lie].wrong_file;
    }
    if (lies[lie].offset)
        post->block_offset = lies[lie].offset;
}

/* A wrong block is not mapped, and the message arrives. */
static void lied_to(void)
{
    int told[2];
    char go = 0;
    make_pipe(told);
    PEER(connection) {
        byte *block = new_block(SIZE);
        need_engine(connection, "process_vm");
        /* Posts are right except for the block. */
        for (int i = 0; i < LIES; i++) {
            fill(block, SIZE, i);
            adma_cookie_t cookie = adma_iwrite(connection, (void *)block, SIZE);
            tell(i, find_post((void *)block));
            send_byte(told[1]);
            /* Only the other side copies. */
            EXPECT(adma_read(connection, &go, 1), 1);
            EXPECT(adma_wait(cookie), SIZE);
        }
        echo(connection);
    }
    byte *block = new_block(SIZE);
    need_engine(connection, "process_vm");
    for (int i = 0; i < LIES; i++) {
        await_byte(told[0]);
        int before = mappings("", "(deleted)");
        EXPECT(adma_read(connection, (void *)block, SIZE), SIZE);
        expect_content(block, SIZE, i, "lie");
        EXPECT(mappings("", "(deleted)") - before, i == 0);
        EXPECT(adma_write(connection, &go, 1), 1);
    }
    ask(connection, block, 77);
    finish(connection, child);
}

/* The peer keeps removing the pages of its block: messages arrive, with any contents. */
static void punched(void)
{
    PEER(connection) {
        int memory = next_descriptor();
        void *block = new_block(SIZE);
        for (unsigned i = 0; i < 200; i++) {
            adma_cookie_t cookie = post(connection, block, SIZE, i % 2);
            while (adma_wait_for(cookie, 0) == -ETIMEDOUT)
                EXPECT(fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE), 0);
        }
        echo(connection);
    }
    byte *block = new_block(SIZE);
    for (unsigned i = 0; i < 200; i++)
        EXPECT(i % 2 ? adma_read(connection, (void *)block, SIZE)
                     : adma_write(connection, (void *)block, SIZE), SIZE);
    ask(connection, block, 1);
    finish(connection, child);
}

PROGRAM((void)0,
        { "freed", freed }, { "reused", reused }, { "returned", returned },
        { "fork", forked }, { "closed", closed }, { "hole", hole },
        { "interrupted", interrupted }, { "limited", limited },
        { "no_descriptors", no_descriptors }, { "standard", standard },
        { "straddling", straddling }, { "alone", alone },
        { "lied_to", lied_to }, { "punched", punched })
