/* For api.c: bad pages under copies that workers make. */
#pragma once
#include "api_cookies.h"

static sigjmp_buf back;
static volatile sig_atomic_t faults;
static void *volatile bad_page;
static volatile bool repair;

static void on_fault(int signal, siginfo_t *info, void *context)
{
    faults++;
    if (!repair)
        siglongjmp(back, 1);
    mprotect((void *)((uintptr_t)info->si_addr / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE);
}

static void spoil(struct pair *pair, bool source)
{
    byte *base = source ? pair->src.base : pair->dst.base;
    bad_page = (void *)(base + pair->src.size / PAGE / 2 * PAGE);
    EXPECT(mprotect(bad_page, PAGE, PROT_NONE) == 0);
    faults = 0;
}

static void dies_without_handler(bool notif)
{
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        struct pair pair = new_pair(MIB, 0, 0);
        uint64_t word = 0;
        signal(SIGSEGV, SIG_DFL);
        alarm(200);
        spoil(&pair, true);
        if (notif) {
            if (adma_icopy_notif(from(&pair), to(&pair), MIB, &word, 1) == 0)
                while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == 0)
                    ;
        } else {
            adma_wait_copy(start(&pair));
        }
        _exit(0);
    }
    EXPECT(waitpid(pid, &status, 0) == pid);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        wrong("a bad page without handler: status %#x", status);
}

static void batches_with_bad_pages(void)
{
    enum { BAD = 3 };
    for (volatile int round = 0; round < 10; round++) {
        struct pair good = new_pair(8 * MIB, 1, 2), bad[BAD];
        struct adma_op ops[1 + BAD] = { { from(&good), to(&good), good.src.len } };
        volatile adma_cookie_t cookie = 0;
        for (int i = 0; i < BAD; i++) {
            bad[i] = new_pair(round % 2 ? MIB : 10000, 0, 0);
            ops[1 + i] = (struct adma_op){ from(&bad[i]), to(&bad[i]), bad[i].src.len };
            spoil(&bad[i], i % 2);
        }
        repair = false;
        if (sigsetjmp(back, 1) == 0) {
            cookie = adma_icopy_batch(ops, 1 + BAD);
            adma_wait_copy(cookie);
            wrong("no fault came");
        }
        EXPECT(faults == 1);
        if (cookie)
            is_unknown(cookie);
        /* The call was left: nothing of it goes on. Workers reach the front last. */
        struct side front = { good.dst.base, 2 * PAGE, good.dst.from, good.dst.len };
        lay_down(&front, DESTINATION);
        sleep_ms(20);
        for (size_t at = 0; at < front.size; at++)
            if (front.base[at] != laid_down(&front, DESTINATION, at))
                wrong("byte %zu was written after a handler had left", at);
        repair = true;
        finish_by_wait(adma_icopy_batch(ops, 1 + BAD));
        EXPECT(faults == 1 + BAD);
        copied(&good, "good one of a batch");
        for (int i = 0; i < BAD; i++) {
            copied(&bad[i], "repaired one of a batch");
            free_pair(&bad[i]);
        }
        free_pair(&good);
    }
}

static void subject_faults(void)
{
    uint64_t word = 0;
    dies_without_handler(false);
    dies_without_handler(true);
    handle_info(SIGSEGV, on_fault);
    for (int round = 0; round < 40; round++) {
        struct pair pair = new_pair(round % 4 < 2 ? MIB : 15000, 0, 0);
        volatile adma_cookie_t cookie = 0;
        /* The handler jumps out of the start, or out of the call that reports the end. */
        repair = false;
        spoil(&pair, round % 2);
        if (sigsetjmp(back, 1) == 0) {
            cookie = start(&pair);
            if (round % 8 < 4)
                adma_wait_copy(cookie);
            else
                while (adma_check_copy(cookie) == 0)
                    sched_yield();
            wrong("no fault came");
        }
        EXPECT(faults == 1);
        if (cookie)
            is_unknown(cookie);
        /* The call of the word faults itself. */
        if (sigsetjmp(back, 1) == 0) {
            adma_icopy_notif(from(&pair), to(&pair), pair.src.len, &word, 1);
            wrong("no fault came");
        }
        EXPECT(faults == 2 && word == 0);
        /* The handler repairs. */
        repair = true;
        mprotect(bad_page, PAGE, PROT_NONE);
        by_waiting(&pair);
        EXPECT(faults == 3);
        mprotect(bad_page, PAGE, PROT_NONE);
        by_notif(&pair);
        EXPECT(faults == 4);
        mprotect(bad_page, PAGE, PROT_READ | PROT_WRITE);
        copied(&pair, "repaired");
        free_pair(&pair);
    }
    batches_with_bad_pages();
    /* Nothing is left of all that: the table is empty again. */
    static adma_cookie_t cookies[ADMA_COOKIES];
    struct pair small = new_pair(10, 0, 0);
    for (int i = 0; i < ADMA_COOKIES; i++)
        cookies[i] = start(&small);
    for (int i = 0; i < ADMA_COOKIES; i++)
        finish_by_wait(cookies[i]);
}
