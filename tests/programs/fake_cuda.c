/* A driver library for tests: libcuda.so.1 with the functions that src/backend/gpu calls, for a
 * card that does not exist. It checks the rules of the real one, and injects faults.
 *
 * Registered memory is pinned as a real driver pins it (pinned.h). The card's memory is a memfd, and
 * the copies are reads and writes of that file with the pinned pages: so a copy with a registration
 * that is older than the memory behind it goes to the old pages, as with a real card. Where there is
 * no io_uring it goes by address, and that cannot be shown (fake_cuda_pins).
 *
 * A stream is a thread. Order holds within a stream only; FAKE_CUDA_SHUFFLE delays each
 * operation by a random time.
 *
 *	FAKE_CUDA_FAIL=name:n:code	the n-th call of a function fails; n+: it and all later ones
 *	FAKE_CUDA_LOSE=n		the n-th word is not written
 *	FAKE_CUDA_DIE=n			at the n-th copy the card is lost: nothing after it is done
 *	FAKE_CUDA_STALL=ms		delay of each word
 *	FAKE_CUDA_SLOW=us		delay of each copy
 *	FAKE_CUDA_SHUFFLE=us		random delay of each operation, at most
 *	FAKE_CUDA_START=ms		delay of cuInit
 *	FAKE_CUDA_SYNC=1		copies from host to host are made during the call, by the CPU
 *
 * A program can also say when words come and queries are answered: fake_cuda_hold.
 *
 * What a program must not do ends it, with a line on standard error.
 */
#include "pinned.h"

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    INVALID_CONTEXT = 201,
    NOT_READY = 600,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    UNKNOWN = 999,
};
enum { STREAMS = 16, RANGES = 1024, STACK = 8, QUEUE = 1 << 16 };
static const uint64_t CARD = 0xd00000000000; /* where the card's memory begins, for the card */
static const size_t CARD_SIZE = 64 << 20;
/* Behind it, for each stream: what an engine that copies from host to host has in its hands. */
static const size_t HANDS = 256 << 20;

struct range {
    uintptr_t start;
    size_t len;
    struct ring ring;
    bool pinned;
    int users;
};

struct operation {
    enum { UP, DOWN, WORD } kind;
    uint64_t card;
    uintptr_t host;
    size_t len;
    uint32_t value;
    bool in_hands;
    struct range *range;
};

struct stream {
    bool used;
    pthread_t thread;
    struct operation *queue;
    size_t head, tail; /* operations done, and asked for */
    bool end;
};

#define EACH_RANGE for (struct range *range = ranges; range < ranges + RANGES; range++)
#define EACH_STREAM for (struct stream *stream = streams; stream < streams + STREAMS; stream++)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct range ranges[RANGES];
static struct stream streams[STREAMS];
static int card_fd = -1, device_lost;
static size_t card_used;
static pid_t owner;
static int retained, torn_down;
static int context_object;
static __thread void *contexts[STACK];
static __thread int depth;
static _Atomic unsigned long bytes_up, bytes_down, bytes_straight, copies, words, registered,
    all_calls;

static long number(const char *name)
{
    const char *value = getenv(name);
    return value ? atol(value) : 0;
}

static void nap(long us)
{
    struct timespec time = { us / 1000000, us % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

/* Functions for the program under test. */
unsigned long fake_cuda_bytes(void) { return bytes_down; }
unsigned long fake_cuda_straight(void) { return bytes_straight; }
unsigned long fake_cuda_registered(void) { return registered; }
int fake_cuda_retained(void) { return retained; }
unsigned long fake_cuda_calls(void) { return all_calls; }

static bool words_held, answers_held;
static _Atomic unsigned long asked;

static unsigned long hold(bool words, bool answers)
{
    pthread_mutex_lock(&lock);
    words_held = words;
    answers_held = answers;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

/* Holds words, and queries of streams; the others release words, then answers. */
unsigned long fake_cuda_hold(void) { return hold(true, true); }
unsigned long fake_cuda_let_words_come(void) { return hold(false, true); }
unsigned long fake_cuda_answer(void) { return hold(false, false); }

/* Returns the number of threads that wait for an answer. */
unsigned long fake_cuda_asked(void) { return asked; }

/* ---- trouble ------------------------------------------------------------------------- */

/* Returns the code that a call is to fail with, or SUCCESS. */
static int trouble(const char *function)
{
    static _Atomic int calls;
    const char *fail = getenv("FAKE_CUDA_FAIL"), *colon = fail ? strchr(fail, ':') : NULL;
    all_calls++;
    if (owner && owner != getpid())
        wrong("%s is called in a child", function);
    if (torn_down)
        wrong("%s is called after the driver's teardown", function);
    if (colon && strlen(function) == (size_t)(colon - fail) &&
        !strncmp(function, fail, colon - fail)) {
        char *rest;
        long which = strtol(colon + 1, &rest, 10);
        bool later = *rest == '+';
        int now = ++calls;
        rest += later;
        if (now == which || (later && now > which))
            return atoi(rest + 1);
    }
    return SUCCESS;
}

#define BEGIN                                                                                \
    do {                                                                                 \
        int code = trouble(__func__);                                                \
        if (code)                                                                    \
            return code;                                                         \
    } while (0)

/* Like BEGIN, for calls that need a context. */
#define BEGIN_IN_CONTEXT                                                                     \
    do {                                                                                 \
        BEGIN;                                                                       \
        if (!depth)                                                                  \
            wrong("%s is called without a context", __func__);                   \
        if (device_lost)                                                             \
            return UNKNOWN;                                                      \
    } while (0)

/* ---- registered memory ---------------------------------------------------------------- */

static void transfer(struct operation *op)
{
    static pthread_mutex_t one_by_one = PTHREAD_MUTEX_INITIALIZER;
    bool up = op->kind == UP;
    if (op->range->pinned) {
        pthread_mutex_lock(&one_by_one);
        ring_transfer(&op->range->ring, up, op->host, card_fd, op->card - CARD, op->len);
        pthread_mutex_unlock(&one_by_one);
    } else if (up ? pwrite(card_fd, (void *)op->host, op->len, op->card - CARD) < 0 :
               pread(card_fd, (void *)op->host, op->len, op->card - CARD) < 0) {
        wrong("a transfer of %zu bytes failed: %s", op->len, strerror(errno));
    }
    atomic_fetch_add(up ? &bytes_up : &bytes_down, op->len);
}

/* Caller holds the lock. */
static struct range *range_of(uintptr_t start, size_t len)
{
    EACH_RANGE
        if (range->len && start >= range->start && start + len <= range->start + range->len)
            return range;
    return NULL;
}

int cuMemHostRegister_v2(void *memory, size_t len, unsigned flags)
{
    uintptr_t start = (uintptr_t)memory;
    struct range *free = NULL;
    BEGIN_IN_CONTEXT;
    if (!len || !memory)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    EACH_RANGE {
        if (range->len && start < range->start + range->len && range->start < start + len) {
            pthread_mutex_unlock(&lock);
            return ALREADY_REGISTERED;
        }
        if (!range->len && !free)
            free = range;
    }
    if (!free)
        wrong("too many registrations");
    memset(free, 0, sizeof(*free));
    uintptr_t from = start & ~4095ul, to = (start + len + 4095) & ~4095ul;
    bool pinned = ring_open(&free->ring, from, to - from);
    if (!pinned && free->ring.fd >= 0) {
        /* With io_uring, such memory cannot be registered. */
        ring_close(&free->ring);
        pthread_mutex_unlock(&lock);
        return INVALID_VALUE;
    }
    free->pinned = pinned;
    free->start = from;
    free->len = to - from;
    registered += free->len;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuMemHostRegister(void *memory, size_t len, unsigned flags)
{
    return cuMemHostRegister_v2(memory, len, flags);
}

int cuMemHostUnregister(void *memory)
{
    int code = NOT_REGISTERED;
    BEGIN_IN_CONTEXT;
    pthread_mutex_lock(&lock);
    EACH_RANGE {
        if (!range->len || range->start != ((uintptr_t)memory & ~4095ul))
            continue;
        if (range->users)
            wrong("memory is unregistered that the card just uses");
        if (range->pinned)
            ring_close(&range->ring);
        registered -= range->len;
        range->len = 0;
        code = SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags)
{
    BEGIN_IN_CONTEXT;
    *address = (uintptr_t)memory;
    return SUCCESS;
}

bool fake_cuda_pins(void)
{
    struct ring ring;
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(&ring, 0, sizeof(ring));
    bool pins = ring_open(&ring, (uintptr_t)page, 4096);
    ring_close(&ring);
    munmap(page, 4096);
    return pins;
}

/* ---- device and context ---------------------------------------------------------------- */

int cuInit(unsigned flags)
{
    BEGIN;
    owner = getpid();
    nap(number("FAKE_CUDA_START") * 1000);
    if (card_fd < 0) {
        card_fd = memfd_create("card", MFD_CLOEXEC);
        if (card_fd < 0 || ftruncate(card_fd, CARD_SIZE + STREAMS * HANDS))
            wrong("no memory for the card");
    }
    return SUCCESS;
}

int cuDeviceGet(int *device, int which)
{
    BEGIN;
    *device = 7;
    return which ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGetName(char *name, int len, int device)
{
    BEGIN;
    snprintf(name, len, "Fake Card");
    return SUCCESS;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    BEGIN;
    *value = attribute == 40 ? 3 : 0;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    BEGIN;
    if (!owner)
        return NOT_INITIALIZED;
    if (device != 7)
        return INVALID_VALUE;
    pthread_mutex_lock(&lock);
    retained++;
    pthread_mutex_unlock(&lock);
    *context = &context_object;
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    BEGIN;
    pthread_mutex_lock(&lock);
    if (device != 7 || --retained < 0)
        wrong("a context is released that was not retained");
    if (!retained)
        EACH_STREAM
            if (stream->used && stream->head != stream->tail && !device_lost)
                wrong("the context ends while copies are under way");
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuCtxPushCurrent_v2(void *context)
{
    BEGIN;
    if (context != &context_object || depth == STACK)
        return INVALID_CONTEXT;
    contexts[depth++] = context;
    return SUCCESS;
}

int cuCtxPopCurrent_v2(void **context)
{
    BEGIN;
    if (!depth)
        wrong("a context is popped that was not pushed");
    *context = contexts[--depth];
    return SUCCESS;
}

int cuCtxGetCurrent(void **context)
{
    BEGIN;
    *context = depth ? contexts[depth - 1] : NULL;
    return SUCCESS;
}

/* For a lost card, only this tells when its last transfer has ended. */
int cuCtxSynchronize(void)
{
    BEGIN;
    if (!depth)
        wrong("%s is called without a context", __func__);
    if (!device_lost)
        wrong("all of the context is synchronised, the program's streams too");
    pthread_mutex_lock(&lock);
    EACH_STREAM
        while (stream->used && stream->head != stream->tail)
            pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return UNKNOWN;
}

int cuMemAlloc_v2(uint64_t *address, size_t len)
{
    BEGIN_IN_CONTEXT;
    pthread_mutex_lock(&lock);
    *address = CARD + card_used;
    card_used += len;
    pthread_mutex_unlock(&lock);
    return card_used <= CARD_SIZE ? SUCCESS : 2;
}

int cuMemFree_v2(uint64_t address)
{
    BEGIN_IN_CONTEXT;
    return SUCCESS;
}

/* ---- streams ------------------------------------------------------------------------- */

static void *run(void *argument)
{
    struct stream *stream = argument;
    unsigned seed = stream - streams + 1;
    long slow = number("FAKE_CUDA_SLOW"), shuffle = number("FAKE_CUDA_SHUFFLE");
    long stall = number("FAKE_CUDA_STALL"), lose = number("FAKE_CUDA_LOSE");
    long die = number("FAKE_CUDA_DIE");
    pthread_mutex_lock(&lock);
    while (!stream->end || stream->head != stream->tail) {
        if (stream->head == stream->tail) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        struct operation op = stream->queue[stream->head % QUEUE];
        pthread_mutex_unlock(&lock);
        if (shuffle)
            nap(rand_r(&seed) % shuffle);
        if (op.kind == WORD) {
            if (stall)
                nap(stall * 1000);
            pthread_mutex_lock(&lock);
            while (words_held)
                pthread_cond_wait(&changed, &lock);
            pthread_mutex_unlock(&lock);
            if (!device_lost && (long)++words != lose)
                __atomic_store_n((uint32_t *)op.host, op.value, __ATOMIC_RELEASE);
        } else {
            if (slow)
                nap(slow);
            if (die && (long)++copies >= die)
                device_lost = 1;
            if (!device_lost)
                transfer(&op);
        }
        pthread_mutex_lock(&lock);
        if (op.range)
            op.range->users--;
        stream->head++;
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static struct stream *stream_of(void *handle, const char *function)
{
    struct stream *stream = handle;
    if (stream < streams || stream >= streams + STREAMS || !stream->used)
        wrong("%s is called for the default stream, or for none", function);
    return stream;
}

int cuStreamCreate(void **handle, unsigned flags)
{
    BEGIN_IN_CONTEXT;
    if (flags != 1)
        wrong("a stream is made that waits for the default stream");
    EACH_STREAM {
        if (stream->used)
            continue;
        memset(stream, 0, sizeof(*stream));
        stream->queue = calloc(QUEUE, sizeof(*stream->queue));
        stream->used = true;
        if (!stream->queue || pthread_create(&stream->thread, NULL, run, stream))
            wrong("no thread for a stream");
        *handle = stream;
        return SUCCESS;
    }
    return INVALID_VALUE;
}

int cuStreamDestroy_v2(void *handle)
{
    struct stream *stream = stream_of(handle, __func__);
    BEGIN;
    pthread_mutex_lock(&lock);
    stream->end = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(stream->thread, NULL);
    free(stream->queue);
    stream->used = false;
    return SUCCESS;
}

int cuStreamSynchronize(void *handle);

static int enqueue(void *handle, struct operation op, const char *function)
{
    struct stream *stream = stream_of(handle, function);
    pthread_mutex_lock(&lock);
    op.range = range_of(op.host, op.len);
    if (!op.range)
        wrong("%s: memory at %lx, %zu bytes, is not registered in one piece", function, op.host,
              op.len);
    if (op.kind != WORD && !op.in_hands && (op.card < CARD || op.card + op.len > CARD + card_used))
        wrong("%s: no such memory on the card", function);
    while (stream->tail - stream->head == QUEUE)
        pthread_cond_wait(&changed, &lock);
    op.range->users++;
    stream->queue[stream->tail++ % QUEUE] = op;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t len, void *stream)
{
    BEGIN_IN_CONTEXT;
    struct operation op = { .kind = UP, .card = to, .host = (uintptr_t)from, .len = len };
    return enqueue(stream, op, __func__);
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t len, void *stream)
{
    BEGIN_IN_CONTEXT;
    struct operation op = { .kind = DOWN, .card = from, .host = (uintptr_t)to, .len = len };
    return enqueue(stream, op, __func__);
}

#ifndef OLD /* since version 12.8 */
int cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *lens, size_t count, void *attributes,
                       size_t *firsts, size_t sets, size_t *failed, void *handle)
{
    BEGIN_IN_CONTEXT;
    uint64_t hands = CARD + CARD_SIZE + (stream_of(handle, __func__) - streams) * HANDS;
    if (!count || sets != 1 || *firsts || *(int *)attributes != 1)
        return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        struct operation up = { .kind = UP, .card = hands, .in_hands = true };
        struct operation down = { .kind = DOWN, .card = hands, .in_hands = true };
        if (lens[i] > HANDS)
            return *failed = i, INVALID_VALUE;
        up.host = from[i];
        down.host = to[i];
        up.len = down.len = lens[i];
        enqueue(handle, up, __func__);
        enqueue(handle, down, __func__);
        bytes_straight += lens[i];
    }
    if (number("FAKE_CUDA_SYNC")) {
        struct timespec begun, now;
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begun);
        do
            clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
        while ((now.tv_sec - begun.tv_sec) * 1000000000 + now.tv_nsec - begun.tv_nsec < 1000000);
        return cuStreamSynchronize(handle);
    }
    return SUCCESS;
}
#endif

int cuStreamWriteValue32_v2(void *stream, uint64_t word, uint32_t value, unsigned flags)
{
    BEGIN_IN_CONTEXT;
    struct operation op = { .kind = WORD, .host = word, .len = 4, .value = value };
    return enqueue(stream, op, __func__);
}

int cuStreamQuery(void *handle)
{
    struct stream *stream = stream_of(handle, __func__);
    BEGIN_IN_CONTEXT;
    pthread_mutex_lock(&lock);
    asked++;
    while (answers_held)
        pthread_cond_wait(&changed, &lock);
    asked--;
    bool done = stream->head == stream->tail;
    pthread_mutex_unlock(&lock);
    return done ? SUCCESS : NOT_READY;
}

int cuStreamSynchronize(void *handle)
{
    struct stream *stream = stream_of(handle, __func__);
    BEGIN_IN_CONTEXT;
    pthread_mutex_lock(&lock);
    while (stream->head != stream->tail)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

__attribute__((destructor))
static void tear_down(void)
{
    torn_down = 1;
}
