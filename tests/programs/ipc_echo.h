/* One process echoes what the other one sends. */
#pragma once
#include "ipc.h"

static byte *room; /* 32 MiB */

/* Each process for itself: a block that it has got by fork is not its own. */
static inline void make_room(void)
{
    room = message_memory(32 * MIB);
}

static inline int echo(int connection)
{
    long got;
    while ((got = adma_read(connection, (void *)room, 16 * MIB)) > 0)
        EXPECT(adma_write(connection, (void *)room, got), got);
    return got == -EPIPE ? 0 : 3;
}

static inline void ask_echo(int connection, size_t size)
{
    byte *back = room + 16 * MIB;
    fill(room, size, 5);
    EXPECT(adma_write(connection, (void *)room, size), size);
    EXPECT(adma_read(connection, (void *)back, size), size);
    expect_content(back, size, 5, "echo");
}
