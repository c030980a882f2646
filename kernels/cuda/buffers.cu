/* Host buffers that the GPU reads on its own: pinned memory, with an event
 * after its last upload. */
#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/device.h"

/* Falls back to pageable memory, from which CUDA's copies wait. */
static enum status allocate_buffer(struct device_buffer *b, uint64_t bytes, struct error *err)
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
    TRY(allocate_buffer(b, bytes, err));
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
    if (st) (void)cudaStreamSynchronize(cuda_stream); /* no event tells when it was read */
    return st;
}

static enum status buffer_wait(const struct device_buffer *b, struct error *err)
{
    return cuda_status("upload", cudaEventSynchronize(static_cast<cudaEvent_t>(b->read)), err);
}

const struct device_buffers cuda_buffers = {buffer_create, buffer_free, buffer_upload, buffer_wait};
