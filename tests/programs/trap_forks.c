/* Processes that copy and make others: by fork, with and without its handlers, by vfork, exec, spawn
 * and daemon.
 */
#include "trap.h"
#include "older.h"
#include <spawn.h>

extern char **environ;

static struct blocks b;

/* ---- fork while threads copy ----------------------------------------------------------- */

enum { PLAIN, WITH_HANDLERS, BARE, ONLY_EXIT };

static struct blocks for_handlers;

static void copy_in_fork_handler(void)
{
    static uint64_t seed;
    if (for_handlers.to)
        copy_checked(for_handlers, 5000 + seed++, "fork handler");
}

static void register_handlers(void)
{
    pthread_atfork(copy_in_fork_handler, copy_in_fork_handler, copy_in_fork_handler);
}

/* Runs before the constructor of any library. */
__attribute__((section(".preinit_array"), used)) static void (*early)(void) = register_handlers;

/* The bare ones run no handler: in the child's memory workers seem to live, and copies of other
 * threads seem to be in flight. */
static pid_t fork_in_turn(int round)
{
    return scene_how < BARE ? fork()
           : round % 3 == 0 ? syscall(SYS_fork)
           : round % 3 == 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
                            : _Fork();
}

static void copy_thrice(int round)
{
    for (int i = 0; i < 3; i++)
        copy_checked(b, 100 * round + i, "child");
}

/* Copies and exits, copies and leaves, only leaves, or has a child. One that exits, and so reports,
 * has copied three times 1 MiB. */
static void be_child(int round)
{
    if (scene_how == ONLY_EXIT)
        exit(0);
    if (round % 4 == 3) {
        pid_t grandchild = fork_in_turn(round + 1);
        if (grandchild == 0) {
            copy_thrice(round);
            _exit(0);
        }
        expect_success(grandchild, "grandchild");
    }
    if (round % 4 != 2)
        copy_thrice(round + 1);
    if (round % 4 == 0)
        exit(0);
    _exit(0);
}

static void fork_once(int round)
{
    pid_t child = fork_in_turn(round);
    if (child == 0)
        be_child(round);
    expect_success(child, "child of fork");
}

static void fork_during_copies(void)
{
    pthread_t threads[3];
    b = map_blocks(1 * MIB);
    if (scene_how == WITH_HANDLERS) {
        for_handlers = map_blocks(1 * MIB);
        register_handlers();
    }
    copy_checked(b, 1, "before");
    for (int round = 0; round < 3; round++)
        fork_once(round); /* of an idle process */
    if (scene_how == ONLY_EXIT)
        return;
    start_copiers(threads, 3, 256 * KIB);
    for (int round = 0; round < rounds(scene_how == PLAIN ? 160 : 70); round++)
        fork_once(round);
    stop_copiers(threads, 3);
    copy_checked(b, 2, "parent after all forks");
}

/* ---- vfork: the child lives in the parent's memory and no fork handler runs -------------- */

enum { COPY, FIRST, EXEC };

/* A dead child must not be waited for. */
static void vfork_once(int round, bool executes)
{
    fill(b.from, b.size, round);
    pid_t child = vfork();
    if (child == 0 && executes) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    if (child == 0) {
        memcpy(b.to, b.from, b.size);
        _exit(0);
    }
    expect_success(child, "child of vfork");
    if (!executes) {
        check(b.to, b.size, round, "what the child of vfork copied");
        copy_checked(b, 1000 + round, "parent after vfork");
    }
}

/* With FIRST the child's copy is the first large one of all: workers it made would be threads of the
 * child and die with it. */
static void vfork_during_copies(void)
{
    pthread_t threads[2];
    b = map_blocks(2 * MIB);
    if (scene_how != FIRST)
        copy_checked(b, 1, "before vfork");
    vfork_once(1, scene_how == EXEC);
    start_copiers(threads, 2, 512 * KIB);
    for (int round = 2; round < 2 + rounds(98); round++)
        vfork_once(round, scene_how == EXEC);
    stop_copiers(threads, 2);
    for (int round = 100; round < 103; round++) {
        have_workers_leave(); /* the next child would be the one to make new ones */
        vfork_once(round, false);
    }
    copiers_stop = false;
    start_copiers(threads, 2, 512 * KIB);
    for (int round = 103; round < 120; round++)
        vfork_once(round, false);
    stop_copiers(threads, 2);
    have_workers_leave(); /* new workers show that copies are offloaded */
    expect_workers(b, "parent after all children");
}

static atomic_bool child_copies;

static void *copy_along(void *blocks)
{
    struct blocks own = *(struct blocks *)blocks;
    while (!child_copies)
        ;
    for (int round = 0; round < 40; round++)
        memcpy(own.to, own.from, own.size);
    check(own.to, own.size, 8, "thread beside the child of vfork");
    return NULL;
}

static void race_for_first_copy(void)
{
    struct blocks beside = map_blocks(1 * MIB);
    fill(beside.from, beside.size, 8);
    pthread_t thread = start_thread(copy_along, &beside);
    pid_t child = vfork();
    if (child == 0) {
        child_copies = true;
        memcpy(b.to, b.from, b.size);
        _exit(0);
    }
    pthread_join(thread, NULL);
    expect_success(child, "child of vfork");
    check(b.to, b.size, 7, "what the child of vfork copied");
}

/* A worker that dies with the child would leave a piece of another thread's first copy undone. */
static void race(void)
{
    b = map_blocks(2 * MIB);
    fill(b.from, b.size, 7);
    for (int round = 0; round < rounds(80); round++)
        IN_CHILD("process with a race for its first copy")
            race_for_first_copy();
    copy_checked(b, 1, "after the races");
}

static atomic_int copying_child;

/* The parent is blocked in vfork, so another thread kills. */
static void *kill_children(void *count)
{
    for (int i = 0; i < *(int *)count; i++) {
        while (copying_child == 0)
            ;
        pid_t child = copying_child;
        usleep(100 + i % 16 * 100);
        copying_child = 0;
        kill(child, SIGKILL);
    }
    return NULL;
}

static void kill_in_the_middle_of_copies(void)
{
    int count = rounds(60);
    b = map_blocks(2 * MIB);
    copy_checked(b, 1, "before vfork");
    pthread_t killer = start_thread(kill_children, &count);
    for (int round = 0; round < count; round++) {
        pid_t child = vfork();
        if (child == 0) {
            copying_child = getpid();
            for (;;)
                memcpy(b.to, b.from, b.size);
        }
        int status;
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
            wrong("the child was not killed: status 0x%x", status);
    }
    pthread_join(killer, NULL);
    for (int round = 0; round < 100; round++)
        copy_checked(b, 200 + round, "parent after its children were killed");
}

/* ---- calls right after a copy that count threads: idle workers must be gone --------------- */

/* In parent and child: Python warns of other threads. */
static void fork_alone(void)
{
    b = map_blocks(4 * MIB);
    for (int round = 0; round < rounds(30); round++) {
        if (round % 3 == 0)
            expect_workers(b, "before fork");
        copy_checked(b, round, "just before fork");
        long begun = clock_ms();
        pid_t child = fork();
        int threads = count_threads();
        bool too_busy = waited_in_vain(begun);
        if (child == 0) {
            copy_checked(b, 100 + round, "child");
            _exit(threads != 1);
        }
        expect_success(child, "child of fork");
        if (threads != 1 && !too_busy)
            wrong("%d threads right after fork, round %d", threads, round);
    }
}

/* Namespaces for processes of one thread, and for those that do not share their directory. */
static void enter_namespace(void)
{
    int mounts = open("/proc/self/ns/mnt", O_RDONLY);
    b = map_blocks(4 * MIB);
    expect_workers(b, "before");
    copy_checked(b, 2, "just before");
    long begun = clock_ms();
    if (scene_how == CLONE_NEWUSER ? unshare(CLONE_NEWUSER) : setns(mounts, CLONE_NEWNS)) {
        if (errno != EINVAL)
            cannot("not permitted here: %s", strerror(errno));
        if (!waited_in_vain(begun))
            wrong("the call sees other threads");
    }
    expect_workers(b, "afterwards");
}

/* ---- processes too short for an engine, and ones that want it at once; no knob is set ------ */

static void copy_alone(void)
{
    static uint64_t seed = 1;
    copy_checked(b, seed++, "short process");
    if (b.size < MIB && count_threads() != 1)
        wrong("a short process has %d threads", count_threads());
}

static void copy_in_children(void)
{
    bool large = scene_how >= (long)MIB;
    b = map_blocks(scene_how);
    if (large)
        copy_alone();
    for (int round = 0; round < (large ? 5 : 20); round++)
        IN_CHILD("child")
            copy_alone();
}

static void copy_and_fork_in_turn(void)
{
    b = map_blocks(256 * KIB);
    for (int round = 0; round < 20; round++) {
        copy_alone();
        IN_CHILD("child")
            ;
    }
}

static void one_large_copy(void)
{
    copy_once(64 * MIB, 1, "large copy");
}

static long page_faults(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
}

static void page_faults_of_a_child(void)
{
    IN_CHILD("child") {
        printf("%ld\n", page_faults());
        exit(0);
    }
}

/* ---- other programs ---------------------------------------------------------------------- */

static void spawn_self(void)
{
    char *words[] = {scene_words[0], "leaf", NULL};
    pid_t child;
    int refused = posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ);
    if (refused)
        wrong("posix_spawn: %s", strerror(refused));
    expect_success(child, "spawned program");
}

static void leaf(void)
{
    copy_once(1 * MIB, 1, "spawned program");
}

static void read_from_shell(void)
{
    char line[16] = "";
    FILE *shell = popen("echo spawned", "r");
    if (!shell || !fgets(line, sizeof line, shell) || strcmp(line, "spawned\n"))
        wrong("popen gave \"%s\"", line);
    if (pclose(shell))
        wrong("pclose is not 0");
}

static void spawn(void)
{
    pthread_t threads[2];
    start_copiers(threads, 2, 512 * KIB);
    for (int round = 0; round < rounds(25); round++) {
        spawn_self();
        read_from_shell();
        if (system("exit 3") != 3 << 8)
            wrong("system does not tell the exit status");
    }
    stop_copiers(threads, 2);
}

static void become_daemon(void)
{
    int ends[2];
    char answer = 0;
    b = map_blocks(8 * MIB);
    copy_checked(b, 1, "before daemon()");
    MUST(!pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        MUST(!daemon(0, 0));
        for (int i = 0; i < 5; i++)
            copy_checked(b, 2 + i, "daemon");
        expect_workers(b, "daemon");
        exit(write(ends[1], "k", 1) != 1);
    }
    close(ends[1]);
    expect_success(child, "parent of the daemon");
    struct pollfd until = {ends[0], POLLIN, 0};
    if (poll(&until, 1, 100000) != 1 || read(ends[0], &answer, 1) != 1 || answer != 'k')
        wrong("the daemon did not come to the end of its copies");
    /* The end of the pipe closes with the daemon's end, when its report is written. */
    if (poll(&until, 1, 100000) != 1 || read(ends[0], &answer, 1) != 0)
        wrong("the daemon did not end");
}

static char left[16];

static void *exec_self(void *nothing)
{
    sleep_ms(3);
    execl("/proc/self/exe", scene_words[0], "exec", left, (char *)NULL);
    wrong("exec: %s", strerror(errno));
    return nothing;
}

/* Executes itself while other threads copy, from the main thread and from another one in turn. Each
 * new program must be alone in its process: a worker outside of the thread group would live on. */
static void exec_again_and_again(void)
{
    const char *given = scene_argument(0, NULL);
    int generations = given ? atoi(given) : rounds(30);
    pthread_t threads[2];
    if (count_threads() != 1)
        wrong("%d threads right after exec", count_threads());
    if (generations == 0) {
        copy_once(8 * MIB, 1, "last generation");
        return;
    }
    snprintf(left, sizeof left, "%d", generations - 1);
    start_copiers(threads, 2, 512 * KIB);
    if (generations % 2)
        exec_self(NULL);
    start_thread(exec_self, NULL);
    for (;;)
        pause();
}

static void page_faults_of_the_first_copy(void)
{
    b = map_blocks(1 * MIB);
    for (size_t at = 0; at < b.size; at += 64)
        ((volatile char *)b.to)[at] = ((volatile char *)b.from)[at] = 1;
    volatile size_t size = 1;
    memcpy(b.to, b.from, size); /* the loader is asked for memcpy */
    page_faults();
    long before = page_faults();
    memcpy(b.to, b.from, b.size);
    printf("%ld\n", page_faults() - before);
}

SCENES((void)0, {"fork", fork_during_copies, PLAIN}, {"handlers", fork_during_copies, WITH_HANDLERS},
       {"bare", fork_during_copies, BARE}, {"bare-exit", fork_during_copies, ONLY_EXIT},
       {"vfork", vfork_during_copies, COPY}, {"vfork-first", vfork_during_copies, FIRST},
       {"vfork-exec", vfork_during_copies, EXEC}, {"vfork-race", race},
       {"vfork-killed", kill_in_the_middle_of_copies}, {"alone", fork_alone},
       {"unshare", enter_namespace, CLONE_NEWUSER}, {"setns", enter_namespace, CLONE_NEWNS},
       {"prefork", copy_in_children, 256 * KIB}, {"again", copy_in_children, 4 * MIB},
       {"turn", copy_and_fork_in_turn}, {"large", one_large_copy},
       {"faults", page_faults_of_a_child}, {"first", page_faults_of_the_first_copy},
       {"spawn", spawn}, {"leaf", leaf},
       {"daemon", become_daemon}, {"exec", exec_again_and_again})
