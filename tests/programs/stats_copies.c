/* Makes exactly the copies it is told to make, checks them, and says how many bytes.
 *
 *     stats_copies [FUNCTION SIZE[-SIZE] COUNT] ...
 *
 * Of a range FIRST-LAST the COUNT copies take evenly spread sizes. "overlap" is a memmove within one
 * block, "fresh" a memcpy into memory that the program has given back. Blocks are filled by plain stores,
 * so that the program makes no other copies.
 */
#include "trap.h"
#include "pattern.h"

static unsigned char byte_at(size_t place, unsigned seed)
{
    return (place ^ place >> 8 ^ place >> 16) * 31 + seed;
}

int main(int words, char **word)
{
    unsigned long long bytes = 0;
    for (int i = 1; i + 2 < words; i += 3) {
        bool overlap = !strcmp(word[i], "overlap"), fresh = !strcmp(word[i], "fresh");
        const struct operation *function =
            operation_named(overlap ? "memmove" : fresh ? "memcpy" : word[i]);
        char *rest;
        size_t first = strtoull(word[i + 1], &rest, 10);
        size_t last = *rest == '-' ? strtoull(rest + 1, NULL, 10) : first;
        size_t count = strtoull(word[i + 2], NULL, 10);
        size_t step = count > 1 ? (last - first) / (count - 1) : 0;
        size_t distance = overlap ? 64 : 0, size = first;
        unsigned char *from = map(last + 4096), *to = overlap ? from + distance : map(last + 4096);
        for (size_t n = 0; n < count; n++) {
            size = first + n * step;
            /* The first and the last copy are checked: all of them would take too long. */
            if (n == 0 || n + 1 == count)
                for (size_t at = 0; at < size; at++)
                    from[at] = byte_at(at, i + n);
            if (fresh)
                MUST(!madvise(to, last + 4096, MADV_DONTNEED));
            function->call(to, from, size);
            bytes += size;
            if (n == 0 || n + 1 == count)
                for (size_t at = 0; at < size; at++)
                    if (to[at] != byte_at(at, i + n))
                        wrong("%s: byte %zu of %zu is wrong", word[i], at, size);
        }
        if (to[size] != (overlap ? from[size + distance] : 0))
            wrong("%s: wrote past the end of %zu", word[i], size);
        munmap(from, last + 4096);
        if (!overlap)
            munmap(to, last + 4096);
    }
    printf("%llu bytes copied\n", bytes);
    return 0;
}
