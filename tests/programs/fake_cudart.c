/* libcuda.so.1 and the CUDA runtime in one library, for a card that does not exist: streams that run
 * apart, memory that only they can touch, and the rules of copies from memory that is not pinned. It
 * ends a program that breaks a rule.
 *
 * Transfers of registered memory are made when their turn on the stream comes, after a random delay:
 * so a buffer that is written too early, or read too early, shows in the bytes.
 */
#include "usual.h"
#include "fake_cudart.h"

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_HANDLE = 400, CAPTURING = 900 };
enum { STREAMS = 12, RANGES = 64, QUEUE = 4096, EVENTS = 256 };
static const size_t CARD = 1ul << 30;

struct operation {
    enum { COPY, WRITE, MARK } kind;
    char *dst;
    const char *src;
    size_t len;
    int value;
    struct range *range;
    char *staged; /* freed afterwards */
};

struct stream {
    bool used, captured;
    struct operation queue[QUEUE];
    size_t head, tail; /* operations done, and asked for */
};

struct range { char *start; size_t len; int users; };
struct event { struct stream *stream; size_t until; unsigned long context; };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct stream streams[STREAMS]; /* the first two are the default ones */
static struct range ranges[RANGES];
static struct event events[EVENTS];
static char *seen_at, *card; /* card's memory: its address, and where it can be touched */
static struct fake_counts counts;
static unsigned long context_id = 1;
static int primary, other; /* contexts */
static __thread void *current = &primary;
static __thread int last_error;
static __thread int capture_mode;
static pid_t owner;
static const char *failing;
static int fails_after, fails_with;
static bool fails_for_good;
static int sticky;

__attribute__((noreturn, format(printf, 1, 2)))
static void wrong(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "fake_cudart: ");
    vfprintf(stderr, format, args);
    fprintf(stderr, "\n");
    _exit(99);
}

static void *run(void *argument)
{
    struct stream *stream = argument;
    unsigned seed = stream - streams + 1;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (stream->head == stream->tail)
            pthread_cond_wait(&changed, &lock);
        struct operation op = stream->queue[stream->head % QUEUE];
        pthread_mutex_unlock(&lock);
        if (op.kind != MARK)
            usleep(rand_r(&seed) % 300);
        if (op.kind == COPY)
            memcpy(op.dst, op.src, op.len);
        else if (op.kind == WRITE)
            memset(op.dst, op.value, op.len);
        free(op.staged);
        pthread_mutex_lock(&lock);
        if (op.range)
            op.range->users--;
        stream->head++;
        pthread_cond_broadcast(&changed);
    }
    return NULL;
}

static void start_stream(struct stream *stream)
{
    pthread_t thread;
    stream->used = true;
    if (pthread_create(&thread, NULL, run, stream))
        wrong("no thread for a stream");
}

__attribute__((constructor))
static void start(void)
{
    int file = memfd_create("card", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, CARD))
        wrong("no memory for the card");
    card = mmap(NULL, CARD, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    seen_at = mmap(NULL, CARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    close(file);
    owner = getpid();
}

/* Counts a call; returns the code that it is to fail with. */
static int begin(const char *function)
{
    pthread_mutex_lock(&lock);
    counts.calls++;
    bool now = failing && !strcmp(failing, function) && fails_after-- == 0;
    if (now && fails_for_good)
        sticky = fails_with;
    int code = now ? fails_with : sticky;
    pthread_mutex_unlock(&lock);
    if (owner != getpid())
        wrong("%s is called in a child", function);
    return code;
}
#define BEGIN                                                                                 \
    do {                                                                                  \
        int code = begin(__func__);                                                   \
        if (code)                                                                     \
            return code;                                                          \
    } while (0)

static struct stream *stream_of(void *handle)
{
    if ((uintptr_t)handle <= 2) {
        struct stream *stream = &streams[(uintptr_t)handle == 2];
        pthread_mutex_lock(&lock);
        if (!stream->used)
            start_stream(stream);
        pthread_mutex_unlock(&lock);
        return stream;
    }
    struct stream *stream = handle;
    if (stream < streams || stream >= streams + STREAMS || !stream->used)
        wrong("no such stream");
    return stream;
}

static void enqueue(struct stream *stream, struct operation op)
{
    pthread_mutex_lock(&lock);
    while (stream->tail - stream->head == QUEUE)
        pthread_cond_wait(&changed, &lock);
    if (op.range)
        op.range->users++;
    stream->queue[stream->tail++ % QUEUE] = op;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

static void wait_until(struct stream *stream, size_t until)
{
    pthread_mutex_lock(&lock);
    while (stream->head < until)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static bool is_on_card(const void *at)
{
    return (const char *)at >= seen_at && (const char *)at < seen_at + CARD;
}

static char *reach(const void *at) { return card + ((const char *)at - seen_at); }

static struct range *range_of(const void *at, size_t len)
{
    struct range *found = NULL;
    pthread_mutex_lock(&lock);
    for (struct range *range = ranges; range < ranges + RANGES; range++)
        if (range->len && (const char *)at >= range->start &&
            (const char *)at + len <= range->start + range->len)
            found = range;
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_registered_in_part(const char *at, size_t len)
{
    bool is_in_part = false;
    pthread_mutex_lock(&lock);
    for (struct range *range = ranges; range < ranges + RANGES; range++)
        if (range->len && at < range->start + range->len && range->start < at + len)
            is_in_part = true;
    pthread_mutex_unlock(&lock);
    return is_in_part;
}

/* ---- copies ------------------------------------------------------------------------------- */

/* The driver's own way: registered memory when its turn comes, other memory before it returns. */
static int copy(void *dst, const void *src, size_t len, int direction, void *handle, bool wait)
{
    struct stream *stream = stream_of(handle);
    if (direction == ANY_WAY)
        direction = is_on_card(dst) ? TO_CARD : FROM_CARD;
    bool up = direction == TO_CARD;
    if (is_on_card(up ? dst : src) == false || is_on_card(up ? src : dst))
        return INVALID_VALUE;
    if (stream->captured)
        return CAPTURING;
    struct range *range = range_of(up ? src : dst, len);
    if (!range && is_registered_in_part(up ? src : dst, len))
        return INVALID_VALUE;
    struct operation op = { .kind = COPY, .len = len, .range = range };
    __atomic_fetch_add(range ? &counts.pinned : &counts.pageable, len, __ATOMIC_RELAXED);
    op.dst = up ? reach(dst) : dst;
    op.src = up ? src : reach(src);
    if (wait)
        wait_until(stream, stream->tail);
    if (up && !range) {
        op.src = op.staged = malloc(len);
        memcpy(op.staged, src, len);
    }
    enqueue(stream, op);
    if (!up && (!range || wait))
        wait_until(stream, stream->tail);
    return 0;
}

static int told(int code)
{
    if (code)
        last_error = code;
    return code;
}

#define COPY(name, wait, handle, direction, ...)                                              \
    int name(__VA_ARGS__)                                                                 \
    {                                                                                     \
        int code = begin(__func__);                                                   \
        if (!code)                                                                    \
            code = copy((void *)dst, (void *)src, len, direction, handle, wait);  \
        return __func__[2] == 'd' ? told(code) : code;                                \
    }

COPY(cudaMemcpy, true, (void *)1, direction, void *dst, const void *src, size_t len, int direction)
COPY(cudaMemcpy_ptds, true, (void *)2, direction, void *dst, const void *src, size_t len,
     int direction)
COPY(cudaMemcpyAsync, false, stream, direction, void *dst, const void *src, size_t len, int direction,
     void *stream)
COPY(cudaMemcpyAsync_ptsz, false, stream ? stream : (void *)2, direction, void *dst, const void *src,
     size_t len, int direction, void *stream)
COPY(cuMemcpyHtoD_v2, true, (void *)1, TO_CARD, uint64_t dst, const void *src, size_t len)
COPY(cuMemcpyDtoH_v2, true, (void *)1, FROM_CARD, void *dst, uint64_t src, size_t len)
COPY(cuMemcpyHtoDAsync_v2, false, stream, TO_CARD, uint64_t dst, const void *src, size_t len,
     void *stream)
COPY(cuMemcpyDtoHAsync_v2, false, stream, FROM_CARD, void *dst, uint64_t src, size_t len, void *stream)

int cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                      size_t height, int direction, void *stream)
{
    int code = begin(__func__);
    for (size_t row = 0; row < height && !code; row++)
        code = copy((char *)dst + row * dst_pitch, (char *)src + row * src_pitch, width, direction,
                    stream, false);
    return told(code);
}

int cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                 size_t height, int direction)
{
    return cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, height, direction, (void *)1);
}

int cudaGetLastError(void)
{
    int code = last_error;
    last_error = 0;
    return code;
}

/* ---- registered memory ---------------------------------------------------------------------- */

int cuMemHostRegister_v2(void *memory, size_t len, unsigned flags)
{
    BEGIN;
    if (streams[3].captured && capture_mode != 2)
        wrong("memory is registered while a stream is captured");
    pthread_mutex_lock(&lock);
    struct range *range = ranges;
    while (range < ranges + RANGES && range->len)
        range++;
    if (range == ranges + RANGES)
        wrong("too many registrations");
    *range = (struct range){ memory, len, 0 };
    counts.registered += len;
    pthread_mutex_unlock(&lock);
    return 0;
}

int cuMemHostUnregister(void *memory)
{
    BEGIN;
    int code = 713;
    pthread_mutex_lock(&lock);
    for (struct range *range = ranges; range < ranges + RANGES; range++) {
        if (!range->len || range->start != memory)
            continue;
        if (range->users)
            wrong("memory is unregistered that a transfer uses");
        counts.registered -= range->len;
        range->len = 0;
        code = 0;
    }
    pthread_mutex_unlock(&lock);
    return code;
}

int cuPointerGetAttribute(void *value, int attribute, uint64_t address)
{
    BEGIN;
    const char *at = (char *)address;
    bool is_managed = false, is_other = false;
    if (!is_on_card(at)) {
        if (!range_of(at, 1))
            return INVALID_VALUE;
    } else {
        is_managed = at >= seen_at + CARD / 2;
        is_other = at >= seen_at + CARD / 4 * 3;
    }
    switch (attribute) {
    case 2:
        *(unsigned *)value = is_on_card(at) ? 2 : 1;
        return 0;
    case 8:
        *(unsigned *)value = is_managed && !is_other;
        return 0;
    case 9:
        *(int *)value = is_other ? 1 : 0;
        return 0;
    }
    return INVALID_VALUE;
}

/* ---- contexts, streams and events ------------------------------------------------------------ */

int cuCtxGetCurrent(void **context) { BEGIN; *context = current; return 0; }
int cuCtxGetDevice(int *device) { BEGIN; *device = 0; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { BEGIN; *context = &primary; return 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { BEGIN; return 0; }
int cuStreamGetCtx(void *stream, void **context) { BEGIN; *context = current; return 0; }

int cuCtxGetId(void *context, uint64_t *id)
{
    BEGIN;
    *id = context == &primary ? context_id : 1000;
    return 0;
}

int cuCtxPushCurrent_v2(void *context) { BEGIN; current = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { BEGIN; *context = current; current = NULL; return 0; }

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    BEGIN;
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

int cuStreamIsCapturing(void *stream, int *status)
{
    BEGIN;
    *status = stream_of(stream)->captured;
    return 0;
}

int cuStreamSynchronize(void *handle)
{
    BEGIN;
    struct stream *stream = stream_of(handle);
    wait_until(stream, stream->tail);
    return 0;
}

static struct event *event_of(void *handle)
{
    struct event *event = handle;
    if (event < events || event >= events + EVENTS || event->context != context_id)
        wrong("an event is used that its context has not");
    return event;
}

int cuEventCreate(void **handle, unsigned flags)
{
    static int made;
    BEGIN;
    pthread_mutex_lock(&lock);
    struct event *event = &events[made++ % EVENTS];
    *event = (struct event){ .context = context_id };
    pthread_mutex_unlock(&lock);
    *handle = event;
    return 0;
}

int cuEventDestroy_v2(void *handle) { BEGIN; event_of(handle)->context = 0; return 0; }

int cuEventRecord(void *handle, void *stream)
{
    BEGIN;
    struct event *event = event_of(handle);
    event->stream = stream_of(stream);
    event->until = event->stream->tail;
    return 0;
}

int cuEventSynchronize(void *handle)
{
    BEGIN;
    struct event *event = event_of(handle);
    if (event->stream)
        wait_until(event->stream, event->until);
    return 0;
}

static void wait_for_all(void)
{
    for (struct stream *stream = streams; stream < streams + STREAMS; stream++)
        if (stream->used)
            wait_until(stream, stream->tail);
}

int cudaDeviceReset(void)
{
    wait_for_all();
    context_id++;
    memset(ranges, 0, sizeof(ranges));
    counts.registered = 0;
    return 0;
}

/* ---- for the test ------------------------------------------------------------------------------ */

struct fake_counts fake_counts(void) { return counts; }

static void *part(size_t from, size_t len)
{
    static size_t used;
    void *at = seen_at + from + used;
    used += (len + 65535) & ~65535ul;
    if (used > CARD / 4)
        wrong("the card is full");
    return at;
}

void *fake_memory(size_t len) { return part(0, len); }
void *fake_managed(size_t len) { return part(CARD / 2, len); }
void *fake_memory_of_another(size_t len) { return part(CARD / 4 * 3, len); }

void *fake_stream(void)
{
    struct stream *stream = streams + 2;
    pthread_mutex_lock(&lock);
    while (stream->used)
        stream++;
    if (stream == streams + STREAMS)
        wrong("too many streams");
    start_stream(stream);
    pthread_mutex_unlock(&lock);
    return stream;
}

/* What the engine opens that registers memory (ADMA_GOAL=cpu), and never uses here. */
int cuInit(unsigned flags) { return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDeviceGetName(char *name, int len, int device) { snprintf(name, len, "Fake Card"); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = 1; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuStreamCreate(void **stream, unsigned flags) { *stream = fake_stream(); return 0; }
int cuStreamDestroy_v2(void *stream) { return 0; }
int cuStreamQuery(void *stream) { return 0; }
int cuStreamWriteValue32_v2(void *stream, uint64_t address, unsigned value, unsigned flags) { return 801; }
int cuMemAlloc_v2(uint64_t *address, size_t len) { *address = (uint64_t)fake_memory(len); return 0; }
int cuMemFree_v2(uint64_t address) { return 0; }
int cuMemHostGetDevicePointer_v2(uint64_t *address, void *memory, unsigned flags)
{
    *address = (uint64_t)memory;
    return 0;
}

void fake_write(void *stream, void *memory, int value, size_t len)
{
    char *at = is_on_card(memory) ? reach(memory) : memory;
    enqueue(stream_of(stream), (struct operation){ .kind = WRITE, .dst = at, .len = len, .value = value });
}

bool fake_holds(void *memory, const void *bytes, size_t len)
{
    wait_for_all();
    return !memcmp(reach(memory), bytes, len);
}

void fake_capture(void *stream, bool begins) { stream_of(stream)->captured = begins; }
void fake_use_other_context(bool is_other) { current = is_other ? &other : &primary; }

void fake_fail(const char *function, int after, int code, bool for_good)
{
    pthread_mutex_lock(&lock);
    failing = function;
    fails_after = after;
    fails_with = code;
    fails_for_good = for_good;
    sticky = 0;
    pthread_mutex_unlock(&lock);
}
