/*
 * checked NAME SIZE ROOM: a checked copy of SIZE bytes into a destination that the compiler
 * believes to have ROOM bytes.
 *
 * With too little room the process must end in glibc's "buffer overflow detected" and
 * SIGABRT before a byte is written; with just enough it must copy.
 */
#include "pattern.h"

static struct side dst, src;

/* The abort is expected; a destination that was written before it is not. */
static void on_abort(int signo)
{
    expect_untouched(&dst, DESTINATION, "before the abort");
    signal(signo, SIG_DFL);
    raise(signo);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        fail("usage: checked NAME SIZE ROOM");
    size_t len = strtoul(argv[2], NULL, 0), room = strtoul(argv[3], NULL, 0);
    void *(*checked)(void *, const void *, size_t, size_t) = !strcmp(argv[1], "__memcpy_chk") ?
        __memcpy_chk :
        !strcmp(argv[1], "__memmove_chk") ? __memmove_chk :
        !strcmp(argv[1], "__mempcpy_chk") ? __mempcpy_chk : NULL;
    if (!checked)
        fail("no checked function is called %s", argv[1]);
    dst = (struct side){ pages_between_guards(len), len, 0, len };
    src = (struct side){ pages_between_guards(len), len, 0, len };
    lay_down(&dst, DESTINATION);
    lay_down(&src, SOURCE);
    signal(SIGABRT, on_abort);
    checked((void *)dst.base, (void *)src.base, len, room);
    expect_copied(&dst, &src, argv[1]);
    return 0;
}
