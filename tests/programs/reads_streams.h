/* For reads.c, after its descriptors: reads of FILEs. */
static size_t freads(int how, void *to, size_t size, size_t count, FILE *file)
{
    switch (how) {
    case 0: return fread(to, size, count, file);
    case 1: return fread_unlocked(to, size, count, file);
    case 2: return __fread_chk(to, 8 * MIB, size, count, file);
    default: return __fread_unlocked_chk(to, 8 * MIB, size, count, file);
    }
}

/* Prints the next byte, not the descriptor's position, which only libc knows. */
static void tell_stream(const char *what, int how, FILE *file, size_t size, size_t count)
{
    char *to = map(8 * MIB);
    errno = 77;
    size_t got = freads(how, to, size, count, file);
    int error = errno;
    printf("%s %d: %zu, errno %d, at %ld, end %d, error %d, ", what, how, got, error,
           ftell(file), feof(file), ferror(file));
    printf("next %d, bytes %lx\n", fgetc(file), sum_of(to, 4 * MIB));
    munmap(to, 8 * MIB);
}

static ssize_t read_cookie(void *cookie, char *to, size_t size)
{
    return read((intptr_t)cookie, to, size);
}

static int close_cookie(void *cookie)
{
    return close((intptr_t)cookie);
}

/* Opens a stream without a descriptor, with functions of the program. */
static FILE *open_cookie(const char *path)
{
    return fopencookie((void *)(intptr_t)open(path, O_RDONLY), "r",
                       (cookie_io_functions_t){.read = read_cookie, .close = close_cookie});
}

static void streams(void)
{
    static char large[2 * MIB];
    const struct { const char *what; size_t size, count; } amounts[] = {
        {"all", 1, SIZE}, {"one more", 1, SIZE + 1}, {"items", 1000, 3000},
        {"too many items", 4096, 2000}, {"one item", 2 * MIB, 1}, {"one item too large", 5 * MIB, 1},
        {"odd", 7, 300001}, {"below", 3, 9000}, {"none", 0, 5 * MIB}, {"nothing", MIB, 0},
    };
    for (int how = 0; how < 4; how++)
        for (size_t i = 0; i < COUNT(amounts); i++)
            for (int before = 0; before < 12; before++) {
                if (before == 0 || before == 8) /* the one before has written */
                    close(new_file("stream", SIZE, O_RDONLY));
                FILE *file = fopen(path_of("stream"), before == 7 ? "r+" : before == 8 ? "rm" : "r");
                int byte = 0;
                switch (before) {
                case 1: byte = fgetc(file); break;
                case 2: byte = fgetc(file); ungetc(byte, file); break;
                case 3: byte = fgetc(file); ungetc(byte ^ 1, file); break;
                case 4: fseek(file, 5001, SEEK_SET); byte = fgetc(file); break;
                case 5: setvbuf(file, NULL, _IONBF, 0); break;
                case 6: setvbuf(file, large, _IOFBF, sizeof large); byte = fgetc(file); break;
                case 7: fwrite("written", 1, 7, file); fseek(file, 3, SEEK_SET); break;
                case 9: fseek(file, -10, SEEK_END); break;
                case 10: while (fgetc(file) != EOF) ; break;
                case 11: ungetc('x', file); break;
                }
                char what[60];
                snprintf(what, sizeof what, "%s after %d", amounts[i].what, before);
                tell_stream(what, how, file, amounts[i].size, amounts[i].count);
                fclose(file);
            }
    const char *kinds[] = {"folder", "written", "wide",   "memory",  "pipe",
                           "closed", "changed", "cookie", "appended"};
    const int count = COUNT(kinds);
    for (int i = 0; i < 4 * count; i++) {
        int kind = i % count, other;
        close(new_file("stream", SIZE, O_RDONLY));
        const char *path = kind == 0 ? folder : path_of("stream");
        FILE *file = kind == 3   ? fmemopen(large, sizeof large, "r")
                     : kind == 4 ? popen("head -c 3000000 /dev/zero", "r")
                     : kind == 7 ? open_cookie(path)
                                 : fopen(path, kind == 1   ? "w"
                                               : kind == 6 ? "r+"
                                               : kind == 8 ? "a+"
                                                           : "r");
        switch (kind) {
        case 2: fwide(file, 1); break;
        case 5: close(fileno(file)); break;
        case 6: /* old bytes in the buffer stay what they were */
            fgetc(file);
            other = open(path_of("stream"), O_WRONLY);
            MUST(pwrite(other, "changed", 7, 100) == 7);
            close(other);
            break;
        case 8: fputs("appended", file); rewind(file);
        }
        tell_stream(kinds[kind], i / count, file, 1, kind > 3 ? 4 * MIB : 3 * MIB);
        kind == 4 ? pclose(file) : fclose(file);
    }
    /* More than there are addresses: the kernel refuses the buffer. */
    for (int i = 0; i < 4; i++) {
        FILE *file = fopen(path_of("stream"), "r");
        if (i / 2)
            fgetc(file);
        tell_stream("too much", i % 2, file, 2, SSIZE_MAX / 4);
        fclose(file);
    }
    /* The descriptor is used beside a stream. */
    for (int i = 0; i < 4 * 4; i++) {
        FILE *file = fopen(path_of("stream"), "r");
        char *to = map(2 * MIB) + 100;
        if (i % 4 == 1)
            setvbuf(file, NULL, _IONBF, 0);
        if (i % 4 == 2)
            fseek(file, 0, SEEK_SET);
        if (i % 4 == 3) { /* only the beginning is cached */
            fdatasync(fileno(file));
            posix_fadvise(fileno(file), 0, 0, POSIX_FADV_DONTNEED);
            posix_fadvise(fileno(file), 0, 0, POSIX_FADV_RANDOM);
            MUST(pread(fileno(file), to, MIB / 4, 0) == (ssize_t)MIB / 4);
        }
        for (int turn = 0; turn < 3; turn++) {
            size_t got = freads(i / 4, to, 1, 3 * MIB / 4 - 100, file);
            ssize_t more = read(fileno(file), to + got, 8 * PAGE);
            printf("beside %d: %zu and %zd, at %ld and %ld, bytes %lx\n", i, got, more, ftell(file),
                   (long)lseek(fileno(file), 0, SEEK_CUR), sum_of(to, MIB));
        }
        fclose(file);
        munmap(to - 100, 2 * MIB);
    }
}
