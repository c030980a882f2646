/* Buffers of the host that the GPU reads by itself: pinned memory, with an event behind its last
 * upload. */
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

/* CUDA copies other memory, too, and then waits: so that is taken where none can be pinned. */
static enum status allocate(struct device_buffer *b, uint64_t bytes, struct error *err)
{
    b->is_pinned = cudaHostAlloc(&b->memory, bytes, cudaHostAllocDefault) == cudaSuccess;
    if (b->is_pinned) return OK;
    (void)cudaGetLastError();
    b->memory = malloc(bytes);
    if (b->memory) return OK;
    return fail(err, ERR_MEMORY, "no memory for a buffer of %.2f GB", (double)bytes / 1e9);
}

static void buffer_free(struct device_buffer *b)
{
    const cudaEvent_t read = static_cast<cudaEvent_t>(b->read);
    if (read) (void)cudaEventSynchronize(read);
    if (read) (void)cudaEventDestroy(read);
    if (b->memory && b->is_pinned) (void)cudaFreeHost(b->memory);
    if (!b->is_pinned) free(b->memory);
    *b = {};
}

static enum status buffer_create(struct device_buffer *b, uint64_t bytes, struct error *err)
{
    cudaEvent_t read = NULL;
    *b = {};
    TRY(allocate(b, bytes, err));
    const enum status st =
        cuda_status("an event", cudaEventCreateWithFlags(&read, cudaEventDisableTiming), err);
    b->read = read;
    if (st) buffer_free(b);
    return st;
}

static enum status buffer_upload(void *to, const struct device_buffer *b, uint64_t bytes,
                                 struct error *err)
{
    TRY(cuda_status(
        "upload", cudaMemcpyAsync(to, b->memory, bytes, cudaMemcpyHostToDevice, cuda_stream), err));
    const enum status st =
        cuda_status("upload", cudaEventRecord(static_cast<cudaEvent_t>(b->read), cuda_stream), err);
    if (st) (void)cudaStreamSynchronize(cuda_stream); /* nothing else tells when it has been read */
    return st;
}

static enum status buffer_wait(const struct device_buffer *b, struct error *err)
{
    return cuda_status("upload", cudaEventSynchronize(static_cast<cudaEvent_t>(b->read)), err);
}

const struct device_buffers cuda_buffers = {buffer_create, buffer_free, buffer_upload, buffer_wait};
