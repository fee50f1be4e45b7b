/* A program with its own allocator under a lock that is not recursive, and whose
 * first large copy happens inside realloc with the lock held.
 *
 * Entering the allocator meanwhile, from this thread or a new one, would be a
 * deadlock: here it is an error at once. With "exit" the program ends with the
 * lock held, as one does whose allocator gives up.
 */
#include "trap.h"

static atomic_flag held = ATOMIC_FLAG_INIT;
static atomic_bool copied_inside;
static char *next_free, *arena_end;

static void lock(void)
{
    /* The program has one thread, so a call that finds the lock taken would deadlock. */
    if (atomic_flag_test_and_set(&held))
        wrong("the allocator was entered while its lock was held");
}

static void unlock(void)
{
    atomic_flag_clear(&held);
}

static void *take(size_t align, size_t size)
{
    if (align < 16)
        align = 16;
    if (!next_free) {
        next_free = map(512 * MIB);
        arena_end = next_free + 512 * MIB;
    }
    char *block = (char *)(((uintptr_t)next_free + 16 + align - 1) & ~(align - 1));
    if (size > (size_t)(arena_end - block))
        return NULL;
    ((size_t *)block)[-1] = size;
    next_free = block + size;
    return block;
}

void *malloc(size_t size)
{
    lock();
    void *block = take(16, size);
    unlock();
    return block;
}

void *calloc(size_t count, size_t size)
{
    return malloc(count * size); /* fresh pages are zero and nothing is used twice */
}

void free(void *block)
{
    lock();
    unlock();
}

void *realloc(void *old, size_t size)
{
    lock();
    void *block = take(16, size);
    if (old && block) {
        size_t before = ((size_t *)old)[-1];
        memcpy(block, old, before < size ? before : size);
        copied_inside |= before >= MIB && size >= MIB;
    }
    unlock();
    return block;
}

void *memalign(size_t align, size_t size)
{
    lock();
    void *block = take(align, size);
    unlock();
    return block;
}

void *aligned_alloc(size_t align, size_t size)
{
    return memalign(align, size);
}

int posix_memalign(void **block, size_t align, size_t size)
{
    *block = memalign(align, size);
    return *block ? 0 : ENOMEM;
}

int main(int count, char **words)
{
    uint64_t seed = 1;
    for (size_t size = 4 * MIB; size <= 32 * MIB; size *= 2) {
        char *block = malloc(size);
        for (int round = 0; round < 4; round++, seed++) {
            fill(block, size, seed);
            block = realloc(block, size + 4 * KIB);
            check(block, size, seed, "block that realloc moved");
        }
    }
    if (!copied_inside)
        wrong("no large copy was made inside the allocator");
    if (count > 1 && !strcmp(words[1], "exit"))
        lock();
    return 0;
}
