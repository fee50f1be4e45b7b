/* For api.c: ends that are reported by a word or by a descriptor. */
#pragma once
#include "api_pairs.h"
#include <sys/epoll.h>

static void subject_notif(void)
{
    /* Rounds are told apart by the bytes themselves: no barrier, no second look. */
    enum { LEN = 400000 };
    unsigned char *src = (unsigned char *)pages_between_guards(LEN);
    volatile unsigned char *dst = pages_between_guards(LEN);
    _Alignas(8) static uint64_t words[4];
    for (uint64_t round = 1; round < 400; round++) {
        for (size_t at = 0; at < LEN; at += 64)
            src[at] = round;
        uint64_t *word = &words[round % 4], value = round << 32 | round;
        EXPECT(!adma_icopy_notif(src, (void *)dst, LEN, word, value));
        while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
            ;
        for (size_t at = 0; at < LEN; at += 64)
            if (dst[at] != (unsigned char)round)
                wrong("round %d: byte %zu came after the word", (int)round, at);
        EXPECT(words[(round + 1) % 4] < value && words[(round + 2) % 4] < value);
    }
}

static void subject_poll(void)
{
    enum { COPIES = 200 };
    struct pair pairs[COPIES];
    adma_cookie_t cookies[COPIES];
    int fd = adma_poll_fd(), loop = epoll_create1(0), left = 0, rounds = 0;
    struct epoll_event event = { .events = EPOLLIN };
    uint64_t count;
    EXPECT(fd >= 0 && adma_poll_fd() == fd);
    EXPECT(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    EXPECT(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0);
    EXPECT(epoll_wait(loop, &event, 1, 0) == 0);
    EXPECT(read(fd, &count, 8) == -1 && errno == EAGAIN);
    for (int i = 0; i < COPIES; i++)
        pairs[i] = new_pair(i % 5 ? 100000 + i : 50, i % 64, 0);
    for (int i = 0; i < COPIES; i++, left++)
        cookies[i] = start(&pairs[i]);
    while (left > 0) {
        if (epoll_wait(loop, &event, 1, 100000) != 1)
            wrong("%d copies are left and nothing has come for 100 s", left);
        EXPECT(read(fd, &count, 8) == 8 && count > 0);
        rounds++;
        for (int i = 0; i < COPIES; i++)
            if (cookies[i] && adma_check_copy(cookies[i]) == 1) {
                copied(&pairs[i], "polled");
                cookies[i] = 0;
                left--;
            }
    }
    EXPECT(rounds <= COPIES);
    /* The end of a word's copy is reported as well. */
    while (epoll_wait(loop, &event, 1, 0) == 1)
        EXPECT(read(fd, &count, 8) == 8);
    by_notif(&pairs[1]);
    EXPECT(epoll_wait(loop, &event, 1, 100000) == 1);
    /* The program closes it although it must not, and opens another file under its number:
     * nothing gets into that. */
    close(fd);
    int file = memfd_create("mine", 0);
    EXPECT(dup2(file, fd) == fd);
    by_waiting(&pairs[1]);
    by_notif(&pairs[1]);
    EXPECT(lseek(file, 0, SEEK_END) == 0);
    EXPECT(adma_poll_fd() != fd);
    /* A program without standard input: the lowest free number is 0. */
    pid_t pid = fork();
    if (pid == 0) {
        alarm(200);
        close(0);
        struct pollfd poll_fd = { .fd = adma_poll_fd(), .events = POLLIN };
        EXPECT(poll_fd.fd == 0 && adma_poll_fd() == 0);
        finish_by_wait(start(&pairs[1]));
        EXPECT(poll(&poll_fd, 1, 100000) == 1);
        _exit(0);
    }
    child_succeeds(pid);
}
