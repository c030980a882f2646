/* cuda_runtime.h - enough of CUDA to run kernels/cuda on the host, one thread
 * of a block after another: `make test` compares the kernels with the CPU's ops
 * without a GPU.
 *
 * 1. A block's threads are fibers. One runs until it waits for its warp
 *    (shuffles, votes, mma) or its block; the next is drawn at random, to
 *    expose missing barriers.
 * 2. Blocks run one after another, from either end; shared memory is static,
 *    dynamic shared memory starts as NaN.
 * 3. Asynchronous copies and products happen when the kernel waits for them.
 * 4. Work on a stream is done at once, or recorded while a graph is; nothing
 *    that waits may be called then.
 *
 * It models neither memory order nor speed, and no real compiler. */
#ifndef FERRY_TESTS_GPU_EMULATOR_H
#define FERRY_TESTS_GPU_EMULATOR_H

#include <algorithm>
#include <functional>
#include <map>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define DYNAMIC_SHARED(name) char *const name = emulated_shared

using std::max;
using std::min;

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

extern dim3 threadIdx, blockIdx, blockDim, gridDim;
extern char *emulated_shared;
extern size_t emulated_shared_bytes;

/* ---- threads ---- */

void __syncthreads();
void __syncwarp();

/* Every lane gives some bytes and then sees those of all lanes, until it
 * waits again. */
enum { LANE_BYTES = 64 };
const char (*emulated_exchange(const void *own, size_t bytes))[LANE_BYTES];

template <typename T> static inline T emulated_lane(const char (*all)[LANE_BYTES], unsigned lane)
{
    T x;
    memcpy(&x, all[lane % 32], sizeof x);
    return x;
}

template <typename T> static inline T __shfl_sync(unsigned, T x, int lane)
{
    return emulated_lane<T>(emulated_exchange(&x, sizeof x), (unsigned)lane);
}

template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int distance)
{
    return emulated_lane<T>(emulated_exchange(&x, sizeof x), threadIdx.x ^ (unsigned)distance);
}

template <typename T> static inline T __shfl_up_sync(unsigned, T x, unsigned distance)
{
    const char(*all)[LANE_BYTES] = emulated_exchange(&x, sizeof x);
    return threadIdx.x % 32 < distance ? x : emulated_lane<T>(all, threadIdx.x - distance);
}

static inline unsigned __ballot_sync(unsigned, bool vote)
{
    const char(*all)[LANE_BYTES] = emulated_exchange(&vote, sizeof vote);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        votes |= (unsigned)emulated_lane<bool>(all, lane) << lane;
    return votes;
}

static inline int atomicMax(int *at, int x)
{
    const int was = *at;
    *at = max(was, x);
    return was;
}

static inline int atomicMin(int *at, int x)
{
    const int was = *at;
    *at = min(was, x);
    return was;
}

template <typename T> static inline T atomicAdd(T *at, T x)
{
    const T was = *at;
    *at = was + x;
    return was;
}

/* Errs as the GPU's may: by 2 roundings, and 1.2 |x| more for exp(). The
 * quotient is 0 if y is too large for its inverse. */
static inline float emulated_expf(float x)
{
    return (float)(exp((double)x) * (1 + (2 + 1.2 * fmin(fabs(x), 128)) * 0x1p-23));
}
#define __expf emulated_expf /* the C library has the name, too */

static inline float __fdividef(float x, float y)
{
    if (fabsf(y) > 0x1p126f && fabsf(y) <= 0x1.fffffep127f) return isinf(x) ? NAN : 0 * x;
    return (float)((double)x / (double)y * (1 - 2 * 0x1p-23));
}

/* Counts from 0 to last, then from 0 again. */
static inline unsigned atomicInc(unsigned *at, unsigned last)
{
    const unsigned was = *at;
    *at = was >= last ? 0 : was + 1;
    return was;
}

static inline void __threadfence()
{
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline long long __double_as_longlong(double x)
{
    long long bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- the host's side ---- */

typedef int cudaError_t;
typedef void *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
enum {
    cudaSuccess = 0,
    cudaErrorInvalidValue = 1,
    cudaErrorMemoryAllocation = 2,
    cudaErrorInitializationError = 3,
    cudaErrorInvalidResourceHandle = 400,
    cudaErrorNotReady = 600,
    cudaErrorLaunchFailure = 719,
    cudaErrorStreamCaptureUnsupported = 900
};
enum { cudaHostAllocDefault, cudaHostAllocMapped, cudaStreamNonBlocking, cudaEventDisableTiming };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum { cudaFuncAttributeMaxDynamicSharedMemorySize };

struct cudaDeviceProp {
    char name[256];
    struct {
        char bytes[16];
    } uuid;
    size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount;
};

/* Kernels run one after another here, so early starts have no effect. */
enum { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    int id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};

struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

/* Dynamic shared memory a block has by default; limit of a block. */
enum { EMULATED_PLAIN_SHARED = 48 << 10 };
extern std::map<void (*)(), size_t> emulated_shared_allowed;
size_t emulated_shared_limit();

template <typename F>
static inline cudaError_t cudaFuncSetAttribute(F kernel, int attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize ||
        (size_t)value > emulated_shared_limit())
        return cudaErrorInvalidValue;
    emulated_shared_allowed[(void (*)())kernel] = (size_t)value;
    return cudaSuccess;
}

template <typename F> static inline bool emulated_shared_fits(F kernel, size_t bytes)
{
    const auto allowed = emulated_shared_allowed.find((void (*)())kernel);
    const bool is_set = allowed != emulated_shared_allowed.end();
    return bytes <= (is_set ? allowed->second : (size_t)EMULATED_PLAIN_SHARED);
}

/* As after a trap in a kernel: every launch, copy and wait fails from
 * then on. */
void emulated_trap();
cudaError_t emulated_sticky_error();

/* Does the work, or records it. */
void emulated_enqueue(const std::function<void()> &work);
/* cudaErrorStreamCaptureUnsupported while a graph is recorded. */
cudaError_t emulated_wait();

void emulated_launch(dim3 grid, unsigned threads, size_t shared_bytes,
                     const std::function<void()> &kernel);

template <typename... P, typename... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...),
                                             A... args)
{
    const cudaLaunchConfig_t c = *config;
    if (emulated_sticky_error()) return emulated_sticky_error();
    if (!emulated_shared_fits(kernel, c.dynamicSmemBytes)) return cudaErrorInvalidValue;
    emulated_enqueue([=] {
        emulated_launch(c.gridDim, c.blockDim.x, c.dynamicSmemBytes, [=] { kernel(args...); });
    });
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDevice(int *device);

enum { cudaDevAttrL2CacheSize };
static inline cudaError_t cudaDeviceGetAttribute(int *value, int, int)
{
    *value = 64 << 10;
    return cudaSuccess;
}

/* ---- events: the host's clock ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t);
/* cudaErrorNotReady until the host has waited after both were recorded. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to);

static inline cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, 0);
}

/* ---- graphs ---- */

typedef struct emulated_graph *cudaGraph_t, *cudaGraphExec_t;
enum cudaStreamCaptureStatus { cudaStreamCaptureStatusNone, cudaStreamCaptureStatusActive };
enum { cudaStreamCaptureModeThreadLocal };
cudaError_t cudaStreamBeginCapture(cudaStream_t, int mode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *out);
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *out);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);

/* ---- copies ---- */

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags);
static inline cudaError_t cudaFreeHost(void *memory)
{
    return cudaFree(memory);
}

static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int,
                                          cudaStream_t)
{
    emulated_enqueue([=] { memmove(to, from, bytes); });
    return emulated_sticky_error();
}

static inline cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t)
{
    emulated_enqueue([=] { memset(to, value, bytes); });
    return emulated_sticky_error();
}

static inline cudaError_t cudaStreamSynchronize(cudaStream_t)
{
    return emulated_wait();
}

static inline cudaError_t cudaStreamQuery(cudaStream_t)
{
    return emulated_wait();
}

static inline cudaError_t cudaEventSynchronize(cudaEvent_t)
{
    return emulated_wait();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);

/* A function of the driver, see cuda.h. */
enum cudaDriverEntryPointQueryResult { cudaDriverEntryPointSuccess };
enum { cudaEnableDefault };
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version,
                                             unsigned long long flags,
                                             cudaDriverEntryPointQueryResult *result);

/* Nothing is ever pending, and nothing fails. */
#define NOTHING(name, ...)                                                                         \
    static inline cudaError_t name(__VA_ARGS__)                                                    \
    {                                                                                              \
        return cudaSuccess;                                                                        \
    }
NOTHING(cudaGetLastError, void)
NOTHING(cudaStreamCreateWithFlags, cudaStream_t *, unsigned)
NOTHING(cudaStreamDestroy, cudaStream_t)

static inline const char *cudaGetErrorString(cudaError_t)
{
    return "an emulated error";
}

static inline const char *cudaGetErrorName(cudaError_t)
{
    return "cudaError";
}

#endif
