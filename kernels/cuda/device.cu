/* device.cu - a GPU as a device: opening, memory, copies, tables of kernels. It
 * calls the folder's other files, and none of them calls it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "common/count.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn_plan.h"
#include "kernels/device.h"

enum { STAGES = 2, SLOTS = 32 };
#define STAGE_BYTES ((uint64_t)16 << 20)
#define SLOT_BYTES ((uint64_t)512 << 10)

/* Pinned memory: copies through it take half the time of the driver's own, and
 * the host fills one stage while the other is copied. */
static void *stages[STAGES];
static cudaEvent_t stage_read[STAGES];
/* The same for small uploads, such as inputs of a micro-batch: a queue of
 * slots, which the host fills ahead while queued work still waits. */
static char *slots;
static cudaEvent_t slot_read[SLOTS];
static unsigned next_slot;
/* And for small downloads that are waited for later. */
static char *later;
static cudaEvent_t later_done[NUM_LATER];
static char description[320];

#define CUDA_TRY(call, what) TRY(cuda_status(what, call, err))

/* ---- opening ---- */

/* Code is compiled for compute capability 8.0 and newer. */
static enum status check_capability(const cudaDeviceProp *p, struct error *err)
{
    if (p->major >= 8) return OK;
    return fail(err, ERR_DEVICE, "%s has compute capability %d.%d; 8.0 or newer is required",
                p->name, p->major, p->minor);
}

static enum status make_stages(struct error *err)
{
    for (int i = 0; i < STAGES; i++) {
        CUDA_TRY(cudaHostAlloc(&stages[i], STAGE_BYTES, cudaHostAllocDefault), "pinned memory");
        CUDA_TRY(cudaEventCreateWithFlags(&stage_read[i], cudaEventDisableTiming), "an event");
    }
    void *ring, *results;
    CUDA_TRY(cudaHostAlloc(&ring, SLOTS * SLOT_BYTES, cudaHostAllocDefault), "pinned memory");
    slots = static_cast<char *>(ring);
    for (int i = 0; i < SLOTS; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&slot_read[i], cudaEventDisableTiming), "an event");
    CUDA_TRY(cudaHostAlloc(&results, NUM_LATER * LATER_BYTES, cudaHostAllocDefault),
             "pinned memory");
    later = static_cast<char *>(results);
    for (int i = 0; i < NUM_LATER; i++)
        CUDA_TRY(cudaEventCreateWithFlags(&later_done[i], cudaEventDisableTiming), "an event");
    return OK;
}

static enum status device_open(unsigned number, struct error *err)
{
    int count = 0;
    CUDA_TRY(cudaGetDeviceCount(&count), "GPUs");
    if (count == 0) return fail(err, ERR_DEVICE, "no GPU found");
    const int device = (int)(number % (unsigned)count);
    cudaDeviceProp properties;
    CUDA_TRY(cudaGetDeviceProperties(&properties, device), "a GPU's properties");
    TRY(check_capability(&properties, err));
    CUDA_TRY(cudaSetDevice(device), "choosing a GPU");
    CUDA_TRY(cudaStreamCreateWithFlags(&cuda_stream, cudaStreamNonBlocking), "a stream");
    cuda_multiprocessors = properties.multiProcessorCount;
    cuda_capability = 10 * properties.major + properties.minor;
    cuda_shared_bytes = properties.sharedMemPerBlockOptin;
    (void)snprintf(description, sizeof description, "%s, %.0f GB", properties.name,
                   (double)properties.totalGlobalMem / 1e9);
    return make_stages(err);
}

/* Failures are ignored: nothing can be done about them. */
static void device_close(void)
{
    matmul_close();
    attention_close();
    for (int i = 0; i < STAGES; i++) {
        (void)cudaFreeHost(stages[i]);
        (void)cudaEventDestroy(stage_read[i]);
        stages[i] = NULL;
    }
    (void)cudaFreeHost(slots);
    for (int i = 0; i < SLOTS; i++)
        (void)cudaEventDestroy(slot_read[i]);
    slots = NULL;
    (void)cudaFreeHost(later);
    for (int i = 0; i < NUM_LATER; i++)
        (void)cudaEventDestroy(later_done[i]);
    later = NULL;
    (void)cudaStreamDestroy(cuda_stream);
    cuda_stream = NULL;
}

/* ---- memory ---- */

static enum status no_memory(uint64_t bytes, const char *what, struct error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return fail(err, ERR_MEMORY,
                "not enough GPU memory for %s: %.2f GB are needed, %.2f GB are free on %s", what,
                (double)bytes / 1e9, (double)free_bytes / 1e9, description);
}

static enum status device_allocate(void **out, uint64_t bytes, const char *what, struct error *err)
{
    if (bytes == 0) bytes = 1;
    const cudaError_t code = cudaMalloc(out, bytes);
    if (code == cudaErrorMemoryAllocation) return no_memory(bytes, what, err);
    CUDA_TRY(code, what);
    CUDA_TRY(cudaMemsetAsync(*out, 0, bytes, cuda_stream), what);
    return OK;
}

static void device_release(void *memory)
{
    (void)cudaFree(memory);
}

/* A hash of the GPU's UUID, which is unique. */
static enum status device_identity(uint64_t *id, struct error *err)
{
    cudaDeviceProp properties;
    int number;
    CUDA_TRY(cudaGetDevice(&number), "a GPU");
    CUDA_TRY(cudaGetDeviceProperties(&properties, number), "a GPU's properties");
    *id = device_hash(properties.uuid.bytes, sizeof properties.uuid.bytes);
    return OK;
}

static enum status device_free_memory(unsigned ranks, uint64_t *bytes, struct error *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    int count = 1;
    CUDA_TRY(cudaGetDeviceCount(&count), "GPUs");
    CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes), "free memory");
    *bytes = free_bytes / ((ranks + (unsigned)count - 1) / (unsigned)count);
    return OK;
}

/* ---- copies ---- */

static uint64_t stage_part(uint64_t done, uint64_t bytes)
{
    return bytes - done < STAGE_BYTES ? bytes - done : STAGE_BYTES;
}

static enum status device_synchronize(struct error *err)
{
    return cuda_status("the GPU", cudaStreamSynchronize(cuda_stream), err);
}

/* Waits only if more than SLOTS uploads are queued. */
static enum status upload_small(void *to, const void *from, uint64_t bytes, struct error *err)
{
    const unsigned slot = next_slot++ % SLOTS;
    char *stage = slots + slot * SLOT_BYTES;
    CUDA_TRY(cudaEventSynchronize(slot_read[slot]), "upload");
    memcpy(stage, from, bytes);
    CUDA_TRY(cudaMemcpyAsync(to, stage, bytes, cudaMemcpyHostToDevice, cuda_stream), "upload");
    return cuda_status("upload", cudaEventRecord(slot_read[slot], cuda_stream), err);
}

static enum status device_upload(void *to, const void *from, uint64_t bytes, struct error *err)
{
    if (bytes <= SLOT_BYTES) return upload_small(to, from, bytes, err);
    for (uint64_t done = 0, n, i = 0; done < bytes; done += n, i++) {
        const unsigned stage = i % STAGES;
        n = stage_part(done, bytes);
        CUDA_TRY(cudaEventSynchronize(stage_read[stage]), "upload");
        memcpy(stages[stage], (const char *)from + done, n);
        CUDA_TRY(cudaMemcpyAsync((char *)to + done, stages[stage], n, cudaMemcpyHostToDevice,
                                 cuda_stream),
                 "upload");
        CUDA_TRY(cudaEventRecord(stage_read[stage], cuda_stream), "upload");
    }
    return OK;
}

static enum status download_part(const char *from, unsigned stage, uint64_t n, struct error *err)
{
    CUDA_TRY(cudaMemcpyAsync(stages[stage], from, n, cudaMemcpyDeviceToHost, cuda_stream),
             "download");
    CUDA_TRY(cudaEventRecord(stage_read[stage], cuda_stream), "download");
    return OK;
}

/* Part i + 1 is in flight while part i is copied out of its stage. */
static enum status device_download(void *to, const void *from, uint64_t bytes, struct error *err)
{
    char *host = static_cast<char *>(to);
    const char *device = static_cast<const char *>(from);
    if (bytes > 0) TRY(download_part(device, 0, stage_part(0, bytes), err));
    for (uint64_t done = 0, n, i = 0; done < bytes; done += n, i++) {
        n = stage_part(done, bytes);
        if (done + n < bytes)
            TRY(download_part(device + done + n, (i + 1) % STAGES, stage_part(done + n, bytes),
                              err));
        CUDA_TRY(cudaEventSynchronize(stage_read[i % STAGES]), "download");
        memcpy(host + done, stages[i % STAGES], n);
    }
    return device_synchronize(err);
}

static enum status device_download_later(unsigned number, const void *from, uint64_t bytes,
                                         struct error *err)
{
    CUDA_TRY(cudaMemcpyAsync(later + number * LATER_BYTES, from, bytes, cudaMemcpyDeviceToHost,
                             cuda_stream),
             "download");
    return cuda_status("download", cudaEventRecord(later_done[number], cuda_stream), err);
}

static enum status device_download_wait(unsigned number, void *to, uint64_t bytes,
                                        struct error *err)
{
    CUDA_TRY(cudaEventSynchronize(later_done[number]), "download");
    memcpy(to, later + number * LATER_BYTES, bytes);
    return OK;
}

static enum status device_copy(void *to, const void *from, uint64_t bytes, struct error *err)
{
    return cuda_status(
        "copy", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream), err);
}

/* ---- the tables ---- */

struct op_table {
    struct op_kernel rows[NUM_OPS];
};

template <typename E> static struct op_table make_table()
{
    struct op_table t = {};
#define ROW_PLAIN(id, op) t.rows[id].run = op<E>;
#define ROW_WORKSPACE(id, op) t.rows[id].run = op<E>, t.rows[id].workspace = op##_workspace<E>;
#define ROW_NONE(id, op)
#define ROW(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)                \
    ROW_##cuda(id, op_##name)
    OPS(ROW)
    return t;
}

static const struct op_kernel *device_ops(enum elem_type elem)
{
    static const struct op_table f32 = make_table<float>(), f64 = make_table<double>(),
                                 bf16_table = make_table<bf16>(), f16_table = make_table<f16>();
    return elem == ELEM_F64    ? f64.rows
           : elem == ELEM_BF16 ? bf16_table.rows
           : elem == ELEM_F16  ? f16_table.rows
                               : f32.rows;
}

static const struct device_kernel *device_kernels(unsigned op)
{
    return op == OP_MATMUL               ? matmul_kernels
           : op == OP_NORM_MATMUL        ? norm_matmul_kernels
           : op == OP_ACTIVATION_MATMUL  ? activation_matmul_kernels
           : op == OP_ATTENTION          ? attention_kernels
           : op == OP_ATTENTION_BACKWARD ? attention_backward_kernels
           : op == OP_GROUPED_MATMUL     ? grouped_kernels
                                         : NULL;
}

static const char *device_describe(void)
{
    return description;
}

static bool device_library(unsigned number, struct device_library *out)
{
    static const struct {
        const char *name;
        unsigned (*version)(struct error *err); /* 0: missing */
    } libraries[] = {
        {"cuBLASLt", [](struct error *) { return (unsigned)cublasLtGetVersion(); }},
        {"cuDNN", [](struct error *err) { return cudnn_load(err) ? 0 : cudnn_version(); }},
        {"NCCL", cuda_collectives_version}};
    if (number >= COUNT(libraries)) return false;
    *out = {};
    out->name = libraries[number].name;
    out->version = libraries[number].version(&out->missing);
    return true;
}

static const struct device cuda_device = {"cuda",
                                          false,
                                          device_open,
                                          device_close,
                                          device_allocate,
                                          device_release,
                                          device_identity,
                                          device_free_memory,
                                          device_upload,
                                          device_download,
                                          device_copy,
                                          device_download_later,
                                          device_download_wait,
                                          device_synchronize,
                                          device_ops,
                                          device_kernels,
                                          device_describe,
                                          &cuda_timers,
                                          &cuda_graphs,
                                          cuda_collectives,
                                          &cuda_buffers,
                                          device_library};

extern "C" {
extern const struct device *ferry_cuda_device;
__attribute__((visibility("default"))) const struct device *ferry_cuda_device = &cuda_device;
}
