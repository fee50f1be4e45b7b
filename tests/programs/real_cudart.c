/* What card_copies.c wants of the fake, with CUDA's own libraries and a card. Bytes by either way are
 * not counted: the report has them.
 */
#include "usual.h"
#include "fake_cudart.h"

typedef void on_host(void *);
int cudaMalloc(void **memory, size_t len);
int cudaMallocManaged(void **memory, size_t len, unsigned flags);
int cudaMemsetAsync(void *memory, int value, size_t len, void *stream);
int cudaStreamCreateWithFlags(void **stream, unsigned flags);
int cudaStreamBeginCapture(void *stream, int mode);
int cudaStreamEndCapture(void *stream, void **graph);
int cudaLaunchHostFunc(void *stream, on_host *function, void *argument);
int cudaDeviceSynchronize(void);
int cuInit(unsigned flags);
int cuCtxCreate_v2(void **context, unsigned flags, int device);
int cuCtxPopCurrent_v2(void **context);
int cuCtxPushCurrent_v2(void *context);

static void need(int code, const char *what)
{
    if (!code)
        return;
    fprintf(stderr, "%s: error %d\n", what, code);
    _exit(3);
}

struct fake_counts fake_counts(void) { return (struct fake_counts){ 0 }; }

void *fake_memory(size_t len)
{
    void *memory;
    need(cudaMalloc(&memory, len), "cudaMalloc");
    return memory;
}

void *fake_managed(size_t len)
{
    void *memory;
    need(cudaMallocManaged(&memory, len, 1), "cudaMallocManaged");
    return memory;
}

/* There is one card. */
void *fake_memory_of_another(size_t len) { return fake_managed(len); }

/* Work of the default stream does not wait for it. */
void *fake_stream(void)
{
    void *stream;
    need(cudaStreamCreateWithFlags(&stream, 1), "cudaStreamCreateWithFlags");
    return stream;
}

struct filling { void *memory; int value; size_t len; };

static void fill_on_host(void *argument)
{
    struct filling *filling = argument;
    usleep(5000);
    memset(filling->memory, filling->value, filling->len);
    free(filling);
}

/* Memory of the program is written late, by the host. */
void fake_write(void *stream, void *memory, int value, size_t len)
{
    if ((uintptr_t)stream != 1) {
        need(cudaMemsetAsync(memory, value, len, stream), "cudaMemsetAsync");
        return;
    }
    struct filling *filling = malloc(sizeof *filling);
    *filling = (struct filling){ memory, value, len };
    need(cudaLaunchHostFunc(stream, fill_on_host, filling), "cudaLaunchHostFunc");
}

bool fake_holds(void *memory, const void *bytes, size_t len)
{
    need(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    char part[1 << 16];
    for (size_t at = 0; at < len; at += sizeof part) {
        size_t here = len - at < sizeof part ? len - at : sizeof part;
        need(cudaMemcpy(part, (char *)memory + at, here, FROM_CARD), "cudaMemcpy");
        if (memcmp(part, (const char *)bytes + at, here))
            return false;
    }
    return true;
}

void fake_capture(void *stream, bool begin)
{
    void *graph;
    if (begin)
        need(cudaStreamBeginCapture(stream, 1), "cudaStreamBeginCapture");
    else
        cudaStreamEndCapture(stream, &graph), cudaGetLastError(); /* was made invalid */
}

void fake_use_other_context(bool other)
{
    static void *context;
    if (other && !context)
        need(cuCtxCreate_v2(&context, 0, 0), "cuCtxCreate");
    else if (other)
        need(cuCtxPushCurrent_v2(context), "cuCtxPushCurrent");
    else
        need(cuCtxPopCurrent_v2(&context), "cuCtxPopCurrent");
}

/* The real one does not fail when asked to. */
void fake_fail(const char *function, int after, int code, bool for_good) { }
