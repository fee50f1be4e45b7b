/* Copies between memory and a card, against what the driver's own way promises. Usage: card_copies SCENE.
 * Prints how many bytes went the driver's own way, and how many by pinned memory.
 */
#include "usual.h"
#include "fake_cudart.h"

enum { LEN = 24 << 20 };

__attribute__((noreturn, format(printf, 1, 2)))
static void wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    _exit(1);
}

static char *fill(char *at, size_t len, unsigned seed)
{
    uint64_t *words = (uint64_t *)at, x = seed * 0x9e3779b97f4a7c15 + 1;
    for (size_t i = 0; i < len / 8; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        words[i] = x;
    }
    return at;
}

static void must(int code, const char *what)
{
    if (code)
        wrong("%s: error %d", what, code);
}

/* A copy by each function, in turn. */
static int up(unsigned turn, void *card, const void *memory, size_t len, void *stream)
{
    switch (turn % 8) {
    case 0: return cudaMemcpyAsync(card, memory, len, TO_CARD, stream);
    case 1: return cudaMemcpyAsync(card, memory, len, ANY_WAY, stream);
    case 2: return cuMemcpyHtoDAsync_v2((uint64_t)card, memory, len, stream);
    case 3: return cudaMemcpyAsync_ptsz(card, memory, len, TO_CARD, stream);
    case 4: return cudaMemcpy2DAsync(card, len / 4, memory, len / 4, len / 4, 4, TO_CARD, stream);
    case 5: return cudaMemcpy(card, memory, len, TO_CARD);
    case 6: return cudaMemcpy_ptds(card, memory, len, TO_CARD);
    default: return cuMemcpyHtoD_v2((uint64_t)card, memory, len);
    }
}

static int down(unsigned turn, void *memory, const void *card, size_t len, void *stream)
{
    switch (turn % 8) {
    case 0: return cudaMemcpyAsync(memory, card, len, FROM_CARD, stream);
    case 1: return cudaMemcpyAsync(memory, card, len, ANY_WAY, stream);
    case 2: return cuMemcpyDtoHAsync_v2(memory, (uint64_t)card, len, stream);
    case 3: return cudaMemcpyAsync_ptsz(memory, card, len, FROM_CARD, stream);
    case 4: return cudaMemcpy2DAsync(memory, len / 4, card, len / 4, len / 4, 4, FROM_CARD, stream);
    case 5: return cudaMemcpy(memory, card, len, FROM_CARD);
    case 6: return cudaMemcpy_ptds(memory, card, len, FROM_CARD);
    default: return cuMemcpyDtoH_v2(memory, (uint64_t)card, len);
    }
}

/* The source changes as soon as a call has returned; the destination is read at once. */
static void *round_trips(void *argument)
{
    unsigned seed = (uintptr_t)argument;
    char *from = malloc(LEN), *to = malloc(LEN), *kept = malloc(LEN), *card = fake_memory(LEN);
    void *own = fake_stream();
    for (unsigned turn = 0; turn < 24; turn++) {
        size_t len = (rand_r(&seed) % (LEN - 65536) + 65536) & ~31ul;
        size_t at = rand_r(&seed) % (LEN - len + 1) & ~7ul;
        void *stream = turn % 8 < 5 ? own : NULL;
        fill(kept, len, turn + seed);
        memcpy(from + at, kept, len);
        must(up(turn, card + at, from + at, len, stream), "to the card");
        memset(from + at, 0xee, len);
        /* On another default stream nothing says which comes first. */
        if (turn % 8 >= 5)
            must(cuStreamSynchronize(turn % 8 == 6 ? (void *)2 : (void *)1), "the stream");
        memset(to, 0xdd, LEN);
        must(down(turn, to + at, card + at, len, stream), "from the card");
        if (memcmp(to + at, kept, len))
            wrong("turn %u: %zu bytes are wrong", turn, len);
        if (at && (unsigned char)to[at - 1] != 0xdd)
            wrong("turn %u: the byte in front was written", turn);
    }
    free(from), free(to), free(kept);
    return NULL;
}

static void one_thread(void) { round_trips((void *)1); }

static void many_threads(void)
{
    pthread_t threads[4];
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, round_trips, (void *)(i + 1));
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
}

/* Work on the stream before and after copies keeps its place. */
static void order(void)
{
    void *stream = fake_stream();
    char *card = fake_memory(LEN), *memory = malloc(LEN), *all = malloc(LEN);
    for (int turn = 0; turn < 6; turn++) {
        memset(memory, 1, LEN);
        fake_write(stream, card, 7, LEN);
        must(cudaMemcpyAsync(card, memory, LEN, TO_CARD, stream), "to the card");
        fake_write(stream, card, 2, LEN / 2);
        must(cudaMemcpyAsync(memory, card, LEN, FROM_CARD, stream), "from the card");
        fake_write(stream, card, 9, LEN);
        memset(all, 2, LEN / 2);
        memset(all + LEN / 2, 1, LEN / 2);
        if (memcmp(memory, all, LEN))
            wrong("turn %d: out of order", turn);
        memset(all, 9, LEN);
        if (!fake_holds(card, all, LEN))
            wrong("turn %d: what came last was overtaken", turn);
        /* cudaMemcpy reads its source when the stream has come so far. */
        fake_write((void *)1, memory, 5, LEN);
        must(cudaMemcpy(card, memory, LEN, TO_CARD), "cudaMemcpy");
        memset(all, 5, LEN);
        if (!fake_holds(card, all, LEN))
            wrong("turn %d: the source was read too early", turn);
    }
}

/* Copies that are passed on. */
static void passed_on(void)
{
    void *stream = fake_stream(), *captured = fake_stream();
    char *card = fake_memory(LEN), *memory = fill(malloc(LEN), LEN, 3);
    char *pinned = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(cuMemHostRegister_v2(pinned, LEN, 0), "register");
    must(cudaMemcpyAsync(card, fill(pinned, LEN, 4), LEN, TO_CARD, stream), "pinned");
    if (!fake_holds(card, pinned, LEN))
        wrong("pinned memory");
    struct fake_counts before = fake_counts();
    void *others[] = { fake_managed(LEN), fake_memory_of_another(LEN) };
    for (int i = 0; i < 2; i++) {
        must(cudaMemcpyAsync(others[i], memory, LEN, TO_CARD, stream), "other memory");
        if (!fake_holds(others[i], memory, LEN))
            wrong("other memory");
    }
    fake_use_other_context(true);
    must(cudaMemcpyAsync(card, memory, LEN, TO_CARD, stream), "another context");
    fake_use_other_context(false);
    /* What these answer depends on CUDA's version: the caller compares it. */
    fake_capture(captured, true);
    int code = cudaMemcpyAsync(card, memory, LEN, TO_CARD, captured);
    printf("%d %d ", code, cudaGetLastError());
    code = cudaMemcpyAsync(card, memory, LEN, 3, stream);
    printf("%d %d\n", code, cudaGetLastError());
    must(cudaMemcpy2DAsync(card, 8192, memory, 4096, 4096, LEN / 8192, TO_CARD, stream), "rows");
    if (fake_counts().pinned != before.pinned)
        wrong("a copy was staged that should not be");
    /* A capture of another stream is not disturbed. */
    must(cudaMemcpyAsync(card, memory, LEN, TO_CARD, stream), "beside a capture");
    fake_capture(captured, false);
    must(cuMemHostUnregister(pinned), "unregister");
}

/* Errors are those of the program's own call. */
static void errors(void)
{
    const char *functions[] = { "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord",
                                "cuEventSynchronize", "cuMemHostRegister_v2", "cuEventCreate",
                                "cuStreamIsCapturing", "cuPointerGetAttribute", "cuCtxGetId" };
    void *stream = fake_stream();
    char *card = fake_memory(LEN), *memory = malloc(LEN), *back = malloc(LEN);
    for (unsigned i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
        for (int after = 0; after < 4; after++) {
            fake_fail(functions[i], after, 999, false);
            fill(memory, LEN, i + after);
            must(cudaMemcpyAsync(card, memory, LEN, TO_CARD, stream), functions[i]);
            memset(back, 0, LEN);
            must(cudaMemcpyAsync(back, card, LEN, FROM_CARD, stream), functions[i]);
            if (memcmp(memory, back, LEN))
                wrong("%s fails: wrong bytes", functions[i]);
            if (cudaGetLastError())
                wrong("%s fails: an error is left", functions[i]);
        }
    }
    fake_fail("cuEventRecord", 2, 700, true);
    int code = cudaMemcpyAsync(card, memory, LEN, TO_CARD, stream);
    if (!code) /* without us nobody calls that */
        fake_fail("cudaMemcpyAsync", 0, 700, true), code = cudaMemcpyAsync(card, memory, LEN, TO_CARD, stream);
    if (code != 700 || cudaGetLastError() != 700)
        wrong("an error that stays: %d", code);
    fake_fail(NULL, 0, 0, false);
    fill(memory, LEN, 77);
    must(cudaMemcpyAsync(card, memory, LEN, TO_CARD, stream), "afterwards");
    if (!fake_holds(card, memory, LEN))
        wrong("wrong bytes afterwards");
}

static void reset(void)
{
    for (int i = 0; i < 3; i++) {
        round_trips((void *)(uintptr_t)(i + 1));
        cudaDeviceReset();
    }
}

/* The child's call is passed on, and fails: the fake ends a child that calls anything else. */
static void forked(void)
{
    one_thread();
    char *card = fake_memory(LEN), *memory = malloc(LEN);
    pid_t child = fork();
    if (!child) {
        _exit(cudaMemcpy(card, memory, LEN, TO_CARD) ? 99 : 1); /* the fake ends with 99 by itself */
    }
    int status;
    waitpid(child, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 99)
        wrong("the child: %x", status);
    one_thread();
}

/* Pinned memory goes back when nobody copies. */
static void idle(void)
{
    one_thread();
    for (int i = 0; i < 200 && fake_counts().registered; i++)
        usleep(100000);
    if (fake_counts().registered)
        wrong("%lu bytes are still pinned", fake_counts().registered);
    one_thread();
}

/* The same memory again and again, which the library registers (ADMA_GOAL=cpu). Small copies of it as well
 * return when the source may change, registrations go while copies come, and copies of more than is
 * registered succeed. Ends with 77 where memory cannot be registered.
 */
static void registered(void)
{
    void *stream = fake_stream();
    char *card = fake_memory(LEN), *kept = malloc(LEN);
    unsigned long most = 0;
    for (unsigned block = 0; block < 3; block++) {
        char *memory = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (unsigned turn = 0; turn < 40; turn++) {
            size_t len = turn % 2 ? turn < 20 ? LEN / 2 : LEN : 16384;
            fill(kept, len, turn + block);
            memcpy(memory, kept, len);
            must(cudaMemcpyAsync(card, memory, len, TO_CARD, stream), "to the card");
            memset(memory, 0xee, len);
            must(cudaMemcpyAsync(memory, card, len, FROM_CARD, stream), "from the card");
            if (memcmp(memory, kept, len))
                wrong("block %u, turn %u: %zu bytes are wrong", block, turn, len);
            unsigned long now = fake_counts().registered;
            most = now > most ? now : most;
            usleep(1000);
        }
        munmap(memory, LEN);
    }
    exit(most > 32 << 20 ? 0 : 77); /* more than the buffers for staging */
}

static _Atomic int alarms;
static void on_alarm(int number) { alarms++; }

static void interrupted(void)
{
    struct itimerval often = { { 0, 500 }, { 0, 500 } };
    signal(SIGALRM, on_alarm);
    setitimer(ITIMER_REAL, &often, NULL);
    one_thread();
    if (!alarms)
        wrong("no signal came");
}

#ifdef MODULE
#define main scene /* of opens_module.c */
#endif

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } scenes[] = {
        { "one", one_thread }, { "many", many_threads }, { "order", order },
        { "passed", passed_on }, { "errors", errors }, { "reset", reset },
        { "forked", forked }, { "registered", registered }, { "idle", idle }, { "interrupted", interrupted },
    };
    for (unsigned i = 0; i < sizeof(scenes) / sizeof(*scenes); i++)
        if (argc > 1 && !strcmp(argv[1], scenes[i].name)) {
            scenes[i].run();
            printf("%lu %lu\n", fake_counts().pageable >> 20, fake_counts().pinned >> 20);
            return 0;
        }
    return 2;
}
