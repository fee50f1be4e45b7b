/* Workers are stopped in the middle of a piece, each time for as long as it takes to make more
 * copies: a caller must not wait for them, and when they go on they must not write into memory that
 * is not theirs any more. A child stops them as a debugger would, one thread at a time.
 *
 * With "refused" membarrier, by which they are interrupted, answers EPERM from now on, as after a
 * restore from a checkpoint. Then a stopped worker has to be waited for, and is stopped for a moment
 * only.
 */
#include "trap.h"
#include "seccomp.h"
#include <sys/ptrace.h>

enum { ROUNDS = 100, MOST = 64, SIZE = 2 << 20, PATIENCE_MS = 60000 };

static struct shared {
    atomic_int stopped, failed;
} *shared;
static bool refused;

/* Interrupting workers is refused, and the filter does not show. */
static void refuse_interruptions(void)
{
    const int interrupt = 1 << 7; /* MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ */
    const unsigned argument = offsetof(struct seccomp_data, args[0]);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, interrupt, 0, 5),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, argument),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PR_GET_SECCOMP, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    put_filter_unseen(code, COUNT(code), 0);
}

struct tracer {
    pid_t parent;
    pid_t seized[MOST];
    int count;
};

static void seize_workers(struct tracer *t)
{
    struct task all[MOST_TASKS];
    for (int i = tasks_of(t->parent, all) - 1; i >= 0; i--) {
        int at = 0;
        while (at < t->count && t->seized[at] != all[i].tid)
            at++;
        if (!is_worker(&all[i]) || at < t->count || t->count == MOST)
            continue;
        if (ptrace(PTRACE_SEIZE, all[i].tid, 0, 0) == 0)
            t->seized[t->count++] = all[i].tid;
        else
            shared->failed = 1;
    }
}

static void stop_workers(struct tracer *t)
{
    for (int i = 0; i < t->count; i++) {
        int status;
        if (ptrace(PTRACE_INTERRUPT, t->seized[i], 0, 0) < 0 ||
            waitpid(t->seized[i], &status, __WALL) < 0 || !WIFSTOPPED(status))
            t->seized[i--] = t->seized[--t->count]; /* it has ended */
    }
}

/* 's': stop them in a little while; 'c': let them go on; end of file: all is over. */
static void trace(pid_t parent, int orders)
{
    struct tracer t = {.parent = parent};
    for (int round = 0;; round++) {
        char order;
        struct pollfd readable = {orders, POLLIN, 0};
        if (poll(&readable, 1, PATIENCE_MS) == 0) {
            kill(parent, SIGKILL); /* it waits for a worker that does not run */
            _exit(1);
        }
        if (read(orders, &order, 1) != 1)
            _exit(0);
        if (order == 's') {
            struct timespec moment = {0, round * 137 % 40 * 25000};
            seize_workers(&t);
            nanosleep(&moment, NULL);
            stop_workers(&t);
            shared->stopped = 1;
            sleep_ms(refused ? 20 : 0);
        }
        if (order != 's' || refused) {
            shared->stopped = 0;
            for (int i = 0; i < t.count; i++)
                ptrace(PTRACE_CONT, t.seized[i], 0, 0);
        }
    }
}

int main(int count, char **words)
{
    int orders[2];
    refused = count > 1 && !strcmp(words[1], "refused");
    shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(orders))
        wrong("no shared page or pipe");
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        close(orders[1]);
        trace(parent, orders[0]);
    }
    close(orders[0]);
    struct blocks b = map_blocks(SIZE);
    copy_checked(b, 1, "before");
    expect_workers(b, "before");
    if (refused)
        refuse_interruptions();
    uint64_t seed = 100;
    for (int round = 0; round < rounds(ROUNDS); round++) {
        if (write(orders[1], "s", 1) != 1)
            wrong("no tracer");
        fill(b.from, b.size, seed);
        do /* most of the time, so that they are stopped in the middle */
            memcpy(b.to, b.from, b.size);
        while (!shared->stopped && !refused);
        check(b.to, b.size, seed++, "while workers were being stopped");
        if (shared->failed)
            cannot("a child may not trace its parent here");
        for (int i = 0; i < 3; i++)
            copy_checked(b, seed++, "with stopped workers");
        fill(b.to, b.size, 7);
        if (write(orders[1], "c", 1) != 1)
            wrong("no tracer");
        sleep_ms(2);
        check(b.to, b.size, 7, "after the workers went on");
    }
    close(orders[1]);
    expect_success(child, "tracer");
    return 0;
}
