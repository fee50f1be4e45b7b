/* The inside of a connection, for tests that change it: greetings, region and posts. */
#pragma once
#include "ipc.h"

/* Greeting, as in src/ipc/setup/talk.rs. */
struct greeting {
    char magic[8];
    uint32_t version, step;
    uint64_t nonce, page, secret[2], pin;
    uint32_t region, side, flags, reserved;
};

enum { HELLO = 1, PAGE_AT, PROOF, DONE };
enum { EITHER, GUEST, HOST };

/* Returns the first greeting of the library. */
static inline struct greeting overheard_hello(void)
{
    struct greeting hello;
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    pthread_t thread = start(attach_in_thread, pair[1]);
    EXPECT(recv(pair[0], &hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
    close(pair[0]);
    pthread_join(thread, NULL);
    close(pair[1]);
    return hello;
}

/* Post in the region, as in src/ipc/memory/region.rs. */
struct post {
    _Alignas(128) uint32_t number;
    uint32_t kind;
    uint64_t len, at, post;
    uint32_t finished, reserved;
    uint64_t block, block_offset, reserved_too;
};

/* Returns our mapping, by its name in the list of mappings; a block has another name. */
static inline byte *region(size_t *size)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[400];
    unsigned long from, to;
    while (fgets(line, sizeof(line), maps))
        if (strstr(line, "memfd:adma ") && sscanf(line, "%lx-%lx", &from, &to) == 2) {
            fclose(maps);
            *size = to - from;
            return (byte *)from;
        }
    wrong("no region found");
}

/* Says of the first message of either lane, if it has this length, that its writer has copied all of it. */
static inline void claim_pieces(size_t len)
{
    size_t size;
    volatile struct post *post = (void *)region(&size);
    while (post->len != len || post->number != 1)
        post++;
    for (uint64_t back = 1; back <= 4; back++) { /* in two pieces or four */
        post->finished = back;
        *(volatile uint64_t *)(post + 2) = back << 12;
    }
}
