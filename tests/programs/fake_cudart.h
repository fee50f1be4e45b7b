/* CUDA as far as copies of a program need it: the fake of fake_cudart.c, and of the real ones. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TO_CARD = 1, FROM_CARD = 2, ANY_WAY = 4 };

int cudaMemcpy(void *dst, const void *src, size_t len, int direction);
int cudaMemcpy_ptds(void *dst, const void *src, size_t len, int direction);
int cudaMemcpyAsync(void *dst, const void *src, size_t len, int direction, void *stream);
int cudaMemcpyAsync_ptsz(void *dst, const void *src, size_t len, int direction, void *stream);
int cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                 size_t height, int direction);
int cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch, size_t width,
                      size_t height, int direction, void *stream);
int cudaGetLastError(void);
int cudaDeviceReset(void);
int cuMemcpyHtoD_v2(uint64_t dst, const void *src, size_t len);
int cuMemcpyDtoH_v2(void *dst, uint64_t src, size_t len);
int cuMemcpyHtoDAsync_v2(uint64_t dst, const void *src, size_t len, void *stream);
int cuMemcpyDtoHAsync_v2(void *dst, uint64_t src, size_t len, void *stream);
int cuMemHostRegister_v2(void *memory, size_t len, unsigned flags);
int cuMemHostUnregister(void *memory);
int cuStreamSynchronize(void *stream);

/* What a test sees of the fake. */
struct fake_counts {
    unsigned long pageable; /* bytes that the fake's own way has taken */
    unsigned long pinned;   /* bytes of registered memory that were transferred */
    unsigned long calls;    /* of the driver, by whomever */
    unsigned long registered; /* bytes that are registered now */
};
struct fake_counts fake_counts(void);
void *fake_memory(size_t len); /* on the card: the program cannot touch it */
void *fake_managed(size_t len);
void *fake_memory_of_another(size_t len); /* card */
void *fake_stream(void);
void fake_write(void *stream, void *memory, int value, size_t len); /* as a kernel would */
bool fake_holds(void *memory, const void *bytes, size_t len); /* waits for everything first */
void fake_capture(void *stream, bool begin);
void fake_use_other_context(bool other);
void fake_fail(const char *function, int after, int code, bool for_good);
