/* process_vm_readv and process_vm_writev against the kernel's own answers: every call is made
 * twice, through the C library's symbol and as a bare system call, with equal lists in equal
 * surroundings. Result, errno and bytes must agree. The other process is a child that only waits.
 * Takes a scene, and then two numbers: a seed and rounds, or for "plain" calls of one segment and size.
 */
#include "filtered.h"

#define PAGE ((size_t)4096)
#define REGION (12 * MIB)
#define MOST 1030 /* a few more than the kernel takes */

typedef ssize_t call(pid_t, const struct iovec *, unsigned long, const struct iovec *,
                     unsigned long, unsigned long);

static ssize_t bare_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                          const struct iovec *remote, unsigned long remotes, unsigned long flags)
{
    return syscall(SYS_process_vm_readv, pid, local, locals, remote, remotes, flags);
}

static ssize_t bare_writev(pid_t pid, const struct iovec *local, unsigned long locals,
                           const struct iovec *remote, unsigned long remotes, unsigned long flags)
{
    return syscall(SYS_process_vm_writev, pid, local, locals, remote, remotes, flags);
}

/* Returns a word after the scene's name as a number. */
static uint64_t number(int which)
{
    return strtoul(scene_argument(which, which ? "100" : "1"), NULL, 0);
}

/* Two equal regions, with bad pages at equal places. */
struct pair {
    char *at[2];
    int holes;
    size_t hole[3];
};

/* Region in the child. */
struct remote_side {
    pid_t pid;
    struct pair whole, holed;
};

static struct pair new_pair(int holes, uint64_t *state)
{
    struct pair pair = {.holes = holes};
    for (int i = 0; i < 2; i++)
        fill(pair.at[i] = map(REGION), REGION, 11 + holes);
    for (int i = 0; i < holes; i++) {
        pair.hole[i] = next_random(state) % (REGION / PAGE) * PAGE;
        mprotect(pair.at[0] + pair.hole[i], PAGE, PROT_NONE);
        mprotect(pair.at[1] + pair.hole[i], PAGE, PROT_NONE);
    }
    return pair;
}

/* After a bad page the bytes behind it may have been transferred or not: makes them equal. */
static void make_equal(const struct pair *pair, pid_t pid)
{
    static __thread char *keep;
    if (!keep)
        keep = map(REGION);
    for (size_t at = 0; at < REGION;) {
        size_t until = REGION;
        bool bad = false;
        for (int i = 0; i < pair->holes; i++) {
            bad |= pair->hole[i] == at;
            if (pair->hole[i] > at && pair->hole[i] < until)
                until = pair->hole[i];
        }
        if (bad) {
            at += PAGE;
            continue;
        }
        struct iovec local = {keep, until - at}, one = {pair->at[0] + at, until - at},
                     other = {pair->at[1] + at, until - at};
        if (bare_readv(pid, &local, 1, &one, 1, 0) != (ssize_t)(until - at) ||
            bare_writev(pid, &local, 1, &other, 1, 0) != (ssize_t)(until - at))
            wrong("cannot make two regions equal: %s", strerror(errno));
        at = until;
    }
}

static pid_t waiting_child(void)
{
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent)
            pause();
        _exit(0);
    }
    MUST(child >= 0);
    return child;
}

static void end_child(pid_t child)
{
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static struct remote_side other_process(uint64_t *state)
{
    struct remote_side side = {.whole = new_pair(0, state), .holed = new_pair(3, state)};
    side.pid = waiting_child();
    return side;
}

static size_t length(uint64_t *state)
{
    switch (next_random(state) % 8) {
    case 0: return 0;
    case 1: return 1 + next_random(state) % 200;
    case 2: return PAGE * (next_random(state) % 20);
    case 3:
    case 4: return next_random(state) % (64 * KIB);
    case 5: return next_random(state) % (6 * MIB);
    default: return next_random(state) % MIB;
    }
}

/* Makes random lists, ascending or not, overlapping or not, at equal places in two regions. */
static int lists(struct iovec *one, struct iovec *other, char *base, char *other_base, bool apart,
                 uint64_t *state)
{
    const int mosts[] = {4, 4, 4, 4, 80, MOST};
    int most = mosts[next_random(state) % 6], count = 1 + next_random(state) % most;
    size_t at = next_random(state) % (2 * PAGE), total = 0;
    for (int i = 0; i < count; i++) {
        size_t size = length(state);
        if (!apart)
            at = next_random(state) % REGION;
        if (size > REGION - at)
            size = REGION - at;
        if (size > 2 * REGION - total)
            size = 2 * REGION - total;
        total += size;
        one[i] = (struct iovec){base + at, size};
        other[i] = (struct iovec){other_base + at, size};
        at += size;
        if (apart && next_random(state) % 2)
            at += next_random(state) % (3 * PAGE);
        if (at > REGION)
            at = REGION;
    }
    if (apart && next_random(state) % 4 == 0) { /* any order */
        for (int i = count - 1; i > 0; i--) {
            int j = next_random(state) % (i + 1);
            struct iovec keep = one[i];
            one[i] = one[j], one[j] = keep;
            keep = other[i], other[i] = other[j], other[j] = keep;
        }
    }
    return count;
}

/* Returns whether the first `size` bytes of two lists of equal lengths are equal. */
static bool same(const struct iovec *one, const struct iovec *other, size_t size)
{
    for (; size; one++, other++) {
        size_t part = one->iov_len < size ? one->iov_len : size;
        if (memcmp(one->iov_base, other->iov_base, part))
            return false;
        size -= part;
    }
    return true;
}

/* Compares what was read, or what the child now holds. */
static void compare_bytes(bool writing, pid_t pid, struct iovec mine[2][MOST],
                          struct iovec theirs[2][MOST], int remotes, ssize_t size, uint64_t seed)
{
    static __thread char *back[2];
    if (!back[0])
        back[0] = map(2 * REGION), back[1] = map(2 * REGION);
    if (!writing) {
        if (!same(mine[0], mine[1], size))
            wrong("seed %lu: %zd bytes read are not the same", seed, size);
        return;
    }
    for (int i = 0; i < 2; i++) {
        struct iovec to = {back[i], size};
        if (bare_readv(pid, &to, 1, theirs[i], remotes, 0) != size)
            wrong("seed %lu: what was written cannot be read back", seed);
    }
    if (memcmp(back[0], back[1], size))
        wrong("seed %lu: %zd bytes written are not the same", seed, size);
}

/* Calls both ways, and compares the results. */
static void call_both(bool writing, pid_t pid, struct iovec mine[2][MOST], int locals,
                      struct iovec theirs[2][MOST], int remotes, uint64_t seed)
{
    call *both[2][2] = {{process_vm_readv, bare_readv}, {process_vm_writev, bare_writev}};
    ssize_t answer[2];
    int error[2];
    for (int i = 0; i < 2; i++) {
        errno = 4711;
        answer[i] = both[writing][i](pid, mine[i], locals, theirs[i], remotes, 0);
        error[i] = errno;
    }
    if (answer[0] != answer[1] || error[0] != error[1])
        wrong("seed %lu: %zd (errno %d), the kernel has %zd (errno %d)", seed, answer[0], error[0],
              answer[1], error[1]);
    if (answer[0] > 0)
        compare_bytes(writing, pid, mine, theirs, remotes, answer[0], seed);
}

static void compare(bool writing, const struct remote_side *side, const struct pair *local,
                    const struct pair *remote, bool apart, uint64_t seed, uint64_t *state)
{
    struct iovec mine[2][MOST], theirs[2][MOST];
    /* Sources may overlap. */
    int locals = lists(mine[0], mine[1], local->at[0], local->at[1], !writing && apart, state);
    int remotes = lists(theirs[0], theirs[1], remote->at[0], remote->at[1], writing && apart, state);
    call_both(writing, side->pid, mine, locals, theirs, remotes, seed);
    if (local->holes || remote->holes)
        make_equal(writing ? remote : local, writing ? side->pid : getpid());
}

static int stripes(struct iovec lists[2][MOST], const struct pair *pair, int count)
{
    size_t step = REGION / count;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 2; k++)
            lists[k][i] = (struct iovec){pair->at[k] + i * step + 3, step - 16};
    return count;
}

/* Of 65 to 1024 segments. */
static void long_lists(void)
{
    int count = number(1);
    static struct iovec mine[2][MOST], theirs[2][MOST];
    uint64_t state = 3;
    struct remote_side side = other_process(&state);
    struct pair local = new_pair(0, &state);
    for (int round = 0; round < count; round++) {
        const struct pair *remote = round % 3 ? &side.whole : &side.holed;
        bool writing = round % 2;
        int locals = stripes(mine, &local, 65 + next_random(&state) % 960);
        int remotes = stripes(theirs, remote, 1 + next_random(&state) % 1024);
        call_both(writing, side.pid, mine, locals, theirs, remotes, round);
        if (remote->holes)
            make_equal(writing ? remote : &local, writing ? side.pid : getpid());
    }
    call_both(false, side.pid, mine, stripes(mine, &local, 1024), theirs,
              stripes(theirs, &side.whole, 1025), 0);
    end_child(side.pid);
}

static void random_calls(uint64_t seed, int count)
{
    uint64_t state = seed;
    struct remote_side side = other_process(&state);
    struct pair whole = new_pair(0, &state), holed = new_pair(3, &state);
    for (int round = 0; round < count; round++) {
        bool writing = next_random(&state) % 2, apart = next_random(&state) % 8;
        bool holes = next_random(&state) % 4 == 0, remote_holes = next_random(&state) % 4 == 0;
        compare(writing, &side, holes ? &holed : &whole, remote_holes ? &side.holed : &side.whole,
                apart, seed, &state);
    }
    end_child(side.pid);
}

static void expect_alike(const char *what, pid_t pid, const struct iovec *local,
                         unsigned long locals, const struct iovec *remote, unsigned long remotes,
                         unsigned long flags)
{
    call *all[4] = {process_vm_readv, bare_readv, process_vm_writev, bare_writev};
    ssize_t answer[4];
    int error[4];
    for (int i = 0; i < 4; i++) {
        errno = 4711;
        answer[i] = all[i](pid, local, locals, remote, remotes, flags);
        error[i] = errno;
    }
    for (int i = 0; i < 4; i += 2)
        if (answer[i] != answer[i + 1] || error[i] != error[i + 1])
            wrong("%s, %s: %zd (errno %d), the kernel has %zd (errno %d)", what,
                  i ? "write" : "read", answer[i], error[i], answer[i + 1], error[i + 1]);
}

#define ALIKE(...) expect_alike(#__VA_ARGS__, __VA_ARGS__)

struct without_rights {
    pid_t pid;
    struct iovec local, remote;
};

/* One thread drops its rights by a bare system call: workers still have them. */
static void *call_without_rights(void *call)
{
    struct without_rights *it = call;
    MUST(!syscall(SYS_setresuid, 65534, 65534, 65534));
    ALIKE(it->pid, &it->local, 1, &it->remote, 1, 0);
    return NULL;
}

static void refused_calls(void)
{
    uint64_t state = 5;
    struct remote_side side = other_process(&state);
    char *local = map(REGION), *remote = side.whole.at[0], *nothing = map(2 * PAGE);
    mprotect(nothing + PAGE, PAGE, PROT_NONE);
    static struct iovec many[2000];
    struct iovec l = {local, REGION}, r = {remote, REGION};
    for (int i = 0; i < 2000; i++)
        many[i] = (struct iovec){remote, 4096};
    pid_t gone = waiting_child();
    end_child(gone);
    ALIKE(gone, &l, 1, &r, 1, 0);
    ALIKE(-1, &l, 1, &r, 1, 0);
    ALIKE(0, &l, 1, &r, 1, 0);
    ALIKE(side.pid, &l, 1, &r, 1, 1);
    ALIKE(side.pid, &l, 1, &r, 1, ~0ul);
    ALIKE(side.pid, &l, 0, &r, 1, 0);
    ALIKE(side.pid, &l, 1, &r, 0, 0);
    ALIKE(side.pid, NULL, 0, NULL, 0, 0);
    ALIKE(side.pid, NULL, 1, &r, 1, 0);
    ALIKE(side.pid, &l, 1, (void *)8, 1, 0);
    ALIKE(side.pid, (void *)-1, 1, &r, 1, 0);
    ALIKE(side.pid, (void *)(nothing + PAGE), 1, &r, 1, 0);
    ALIKE(side.pid, (void *)(nothing + PAGE - 8), 1, &r, 1, 0);
    ALIKE(side.pid, &l, 1, (void *)(nothing + PAGE), 2, 0);
    ALIKE(side.pid, &l, 1, many, 1024, 0);
    ALIKE(side.pid, &l, 1, many, 1025, 0);
    ALIKE(side.pid, many, 2000, &r, 1, 0);
    ALIKE(side.pid, &l, ~0ul, &r, 1, 0);
    ALIKE(side.pid, &l, 1, &r, 1ul << 60, 0);
    ALIKE(side.pid, &(struct iovec){local, ~0ul}, 1, &r, 1, 0);
    ALIKE(side.pid, &(struct iovec){local, 1ul << 63}, 1, &r, 1, 0);
    ALIKE(side.pid, &l, 1, &(struct iovec){remote, ~0ul}, 1, 0);
    ALIKE(side.pid, &l, 1, &(struct iovec){remote, SSIZE_MAX}, 1, 0);
    ALIKE(side.pid, &(struct iovec){local, SSIZE_MAX}, 1, &r, 1, 0);
    ALIKE(side.pid, &l, 1, &(struct iovec){remote, 1ul << 40}, 1, 0);
    ALIKE(side.pid, &(struct iovec){NULL, REGION}, 1, &r, 1, 0);
    ALIKE(side.pid, &l, 1, &(struct iovec){NULL, REGION}, 1, 0);
    ALIKE(side.pid, &l, 1, &(struct iovec){(void *)-4096, REGION}, 1, 0);
    ALIKE(side.pid, &(struct iovec){(void *)-4096, REGION}, 1, &r, 1, 0);
    struct iovec with_end[2] = {{local, REGION}, {(void *)(1ul << 63), 0}};
    ALIKE(side.pid, with_end, 2, &r, 1, 0);
    with_end[1].iov_base = (void *)~0ul, with_end[1].iov_len = 10;
    ALIKE(side.pid, with_end, 2, &r, 1, 0);
    ALIKE(side.pid, &l, 1, with_end, 2, 0);
    with_end[1].iov_len = 1ul << 63;
    ALIKE(side.pid, with_end, 2, &r, 1, 0);
    /* Ends in the middle of a segment, and right behind it. */
    ALIKE(side.pid, &l, 1, &(struct iovec){remote + REGION - MIB, 4 * MIB}, 1, 0);
    ALIKE(side.pid, &(struct iovec){local + REGION - MIB, 4 * MIB}, 1, &r, 1, 0);
    if (geteuid() == 0) {
        IN_CHILD("child without rights") {
            MUST(!setresuid(65534, 65534, 65534));
            ALIKE(side.pid, &l, 1, &r, 1, 0);
            ALIKE(1, &l, 1, &r, 1, 0);
        }
        char *plain = map(REGION);
        l.iov_base = plain;
        if (process_vm_readv(side.pid, &l, 1, &r, 1, 0) != (ssize_t)REGION)
            wrong("cannot read from the child");
        struct without_rights without = {side.pid, l, r};
        pthread_join(start_thread(call_without_rights, &without), NULL);
    }
    end_child(side.pid);
}

/* Moves inside this process: the kernel copies page by page, from the first byte on. By less
 * than a page its own result differs from call to call. */
static void calls_to_itself(pid_t self)
{
    char *region[2] = {map(REGION), map(REGION)};
    call *both[2][2] = {{process_vm_readv, bare_readv}, {process_vm_writev, bare_writev}};
    const long shifts[] = {0, 4096, 5000, 100000, 3 * MIB, -4096, -5000, -70000};
    for (size_t i = 0; i < COUNT(shifts); i++)
        for (int writing = 0; writing < 2; writing++) {
            for (int way = 0; way < 2; way++) {
                fill(region[way], REGION, 15);
                char *at = region[way] + 4 * MIB;
                struct iovec local = {at, 4 * MIB}, remote = {at + shifts[i], 4 * MIB};
                struct iovec halves[2] = {{at, MIB}, {at + MIB, 3 * MIB}};
                bool cut = i % 2;
                errno = 4711;
                ssize_t done = both[writing][way](self, cut ? halves : &local, cut ? 2 : 1,
                                                  &remote, 1, 0);
                if (done != 4 * (ssize_t)MIB || errno != 4711)
                    wrong("shift %ld: %zd, errno %d", shifts[i], done, errno);
            }
            if (memcmp(region[0], region[1], REGION))
                wrong("shift %ld, %s: not as the kernel does it", shifts[i],
                      writing ? "write" : "read");
        }
}

static void *thread_to_itself(void *unused)
{
    calls_to_itself(syscall(SYS_gettid));
    return NULL;
}

static void calls_of_one_segment(int count, size_t size)
{
    char *local = map(size), *remote = map(size);
    fill(remote, size, 16);
    pid_t child = waiting_child();
    for (int i = 0; i < count; i++) {
        struct iovec l = {local, size}, r = {remote, size};
        memset(local, 0, size);
        if (process_vm_readv(child, &l, 1, &r, 1, 0) != (ssize_t)size)
            wrong("call %d: %s", i, strerror(errno));
        check(local, size, 16, "what was read");
    }
    end_child(child);
}

static void *random_lists(void *which)
{
    random_calls(number(0) + (uintptr_t)which, number(1));
    return NULL;
}

/* Scattered lists, also with bad pages on either side. */
static void random_scene(void)
{
    random_lists(NULL);
}

static void threads(void)
{
    in_threads(4, random_lists);
}

static void forked(void)
{
    random_calls(number(0), 10);
    IN_CHILD("child of a fork")
        random_scene();
}

#define STRIPES 256

/* Reads 256 segments of `size` bytes from another process. */
static void read_stripes(pid_t other, char *to, char *from, size_t size)
{
    struct iovec local[STRIPES], remote[STRIPES];
    for (int i = 0; i < STRIPES; i++) {
        local[i] = (struct iovec){to + i * size, size};
        remote[i] = (struct iovec){from + i * size, size};
    }
    MUST(process_vm_readv(other, local, STRIPES, remote, STRIPES, 0) == (ssize_t)(STRIPES * size));
}

static pid_t read_from;
static char *read_at;
static atomic_bool stop;

static void *read_short_stripes(void *to)
{
    while (!stop)
        read_stripes(read_from, to, read_at, PAGE / 2);
    return NULL;
}

/* Children of a process that has made small transfers only, of long lists, and makes one now. */
static void forked_cold(void)
{
    char *to = map(REGION);
    read_at = map(REGION);
    fill(read_at, REGION, 17);
    read_from = waiting_child();
    pthread_t thread = start_thread(read_short_stripes, map(REGION));
    for (int i = 0; i < 8; i++)
        IN_CHILD("child of a fork") {
            for (int j = 0; j < 30; j++)
                read_stripes(read_from, to, read_at, 8 * PAGE);
            check(to, STRIPES * 8 * PAGE, 17, "what the child has read");
        }
    stop = true;
    pthread_join(thread, NULL);
    end_child(read_from);
}

static void filtered(void)
{
    const int forbidden[] = {SYS_tgkill,  SYS_mincore,           SYS_madvise, SYS_membarrier,
                             SYS_clone,   SYS_sched_setaffinity, SYS_rseq,    SYS_getpriority,
                             SYS_kcmp,    -1};
    uint64_t seed = number(0);
    calls_of_one_segment(20, 4 * MIB);
    struct remote_side side = other_process(&seed);
    struct pair local = new_pair(0, &seed);
    filter_calls(forbidden, SECCOMP_RET_KILL_PROCESS, 0);
    for (uint64_t i = 0; i < number(1); i++)
        compare(i % 2, &side, &local, &side.whole, true, number(0), &seed);
    end_child(side.pid);
}

static void itself(void)
{
    calls_to_itself(getpid());
    pthread_join(start_thread(thread_to_itself, NULL), NULL);
}

static void plain(void)
{
    calls_of_one_segment(number(0), number(1));
}

/* Calls one after the other, each shared with one worker: those after the first find it awake. */
static void in_a_row(void)
{
    enum { SIZE = MIB };
    char *local = map(SIZE), *remote = map(SIZE);
    pid_t child = waiting_child();
    for (int i = 0; i < 7; i++) {
        struct iovec l = {local, SIZE}, r = {remote, SIZE};
        if (process_vm_readv(child, &l, 1, &r, 1, 0) != SIZE)
            wrong("call %d: %s", i, strerror(errno));
    }
    if (count_threads() > 2)
        wrong("%d threads where two are enough", count_threads());
    end_child(child);
}

SCENES((void)0, {"random", random_scene}, {"threads", threads}, {"forked", forked}, {"forked_cold", forked_cold},
       {"filtered", filtered}, {"long", long_lists}, {"errors", refused_calls}, {"itself", itself},
       {"plain", plain}, {"in_a_row", in_a_row})
