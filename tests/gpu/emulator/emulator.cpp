#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <vector>

#include "kernels/cuda/mma.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;
char *emulated_shared;
size_t emulated_shared_bytes;

enum { LANES = 32, STACK_BYTES = 64 << 10, MAX_FIBERS = 1024 };

struct copy {
    void *to;
    const void *from;
    bool there;
};

/* Waiting threads stay until all live ones wait; then the
 * generation changes. */
struct barrier {
    unsigned alive, waiting, generation;
};

struct warp {
    struct barrier barrier;
    char given[2][LANES][LANE_BYTES]; /* in turn: others may still read the previous bytes */
};

/* Requests of a thread that it has not waited for. */
template <typename T> struct pending {
    std::vector<T> open; /* of the open group */
    std::vector<std::vector<T>> groups;
};

template <typename T> static void end_group(struct pending<T> *p)
{
    p->groups.push_back(p->open);
    p->open.clear();
}

/* Does all but the last groups. */
template <typename T, typename F>
static void wait_for_groups(struct pending<T> *p, size_t but, F carry_out)
{
    for (; p->groups.size() > but; p->groups.erase(p->groups.begin()))
        for (const T &x : p->groups[0])
            carry_out(x);
}

/* Started once, then reused by each block. Jumps are ten times as fast as
 * swapcontext(), which asks the kernel for the signal mask. */
struct fiber {
    ucontext_t context;
    jmp_buf place; /* the place where it waits */
    char *stack;   /* NULL: not started */
    bool done;
    const struct barrier *waits_for; /* NULL: can go on */
    unsigned generation;
    unsigned exchanges;
    struct pending<struct copy> copies;
    struct pending<std::function<void()>> products;
};

static std::vector<struct fiber> fibers(MAX_FIBERS);
static std::vector<struct warp> warps(MAX_FIBERS / LANES);
static struct barrier block_barrier;
enum { NAMED_BARRIERS = 16 };
static struct barrier named_barriers[NAMED_BARRIERS]; /* bar.sync; the first is the block's */
static jmp_buf scheduler;
static unsigned current;
static const std::function<void()> *running;
static uint32_t random_state = 1;

void emulated_require(bool holds, const char *what)
{
    if (holds) return;
    (void)fprintf(stderr, "emulator: %s (block %u, thread %u)\n", what, blockIdx.x, threadIdx.x);
    abort();
}

static uint32_t draw_number(uint32_t below)
{
    random_state = random_state * 1664525 + 1013904223;
    return (random_state >> 8) % below;
}

/* ---- waiting ---- */

static void release_if_complete(struct barrier *b)
{
    if (b->waiting == 0 || b->waiting < b->alive) return;
    b->waiting = 0;
    b->generation++;
}

static void wait_at(struct barrier *b)
{
    struct fiber *f = &fibers[current];
    f->generation = b->generation;
    b->waiting++;
    release_if_complete(b);
    if (b->generation != f->generation) return;
    f->waits_for = b;
    if (!_setjmp(f->place)) _longjmp(scheduler, 1);
}

void __syncthreads()
{
    wait_at(&block_barrier);
}

void __syncwarp()
{
    wait_at(&warps[threadIdx.x / LANES].barrier);
}

const char (*emulated_exchange(const void *own, size_t bytes))[LANE_BYTES]
{
    struct warp *w = &warps[threadIdx.x / LANES];
    char(*given)[LANE_BYTES] = w->given[fibers[current].exchanges++ % 2];
    emulated_require(bytes <= LANE_BYTES, "an exchange of too many bytes");
    memcpy(given[threadIdx.x % LANES], own, bytes);
    wait_at(&w->barrier);
    return given;
}

/* ---- copies ---- */

void copy_16_bytes(void *shared, const void *global, bool there)
{
    emulated_require((uintptr_t)shared % 16 == 0 && (uintptr_t)global % 16 == 0,
                     "a copy of 16 bytes is not aligned");
    fibers[current].copies.open.push_back({shared, global, there});
}

void copies_commit()
{
    end_group(&fibers[current].copies);
}

void emulated_copies_wait(size_t pending)
{
    wait_for_groups(&fibers[current].copies, pending, [](const struct copy &c) {
        if (c.there)
            memcpy(c.to, c.from, 16);
        else
            memset(c.to, 0, 16);
    });
}

/* ---- waits of sm90_ptx.h ---- */

struct bulk_copy {
    const void *barrier;
    std::function<void()> copy;
};

static std::vector<struct bulk_copy> bulk_copies;

/* Or at once, to expose overwrites during reads. */
void emulated_copy_later(const void *barrier, const std::function<void()> &copy)
{
    if (draw_number(2))
        copy();
    else
        bulk_copies.push_back({barrier, copy});
}

void emulated_copy_now(const void *barrier)
{
    for (size_t i = 0; i < bulk_copies.size();) {
        const struct bulk_copy c = bulk_copies[i];
        if (c.barrier != barrier) {
            i++;
            continue;
        }
        bulk_copies.erase(bulk_copies.begin() + (ptrdiff_t)i);
        c.copy();
    }
}

void emulated_yield()
{
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

void emulated_sync_some(unsigned number, unsigned threads)
{
    emulated_require(number > 0 && number < NAMED_BARRIERS, "a barrier has no such number");
    named_barriers[number].alive = threads;
    wait_at(&named_barriers[number]);
}

void emulated_product_later(const std::function<void()> &product)
{
    fibers[current].products.open.push_back(product);
}

/* All lanes of a warp end a group, and wait for one, together. */
void products_commit()
{
    __syncwarp();
    end_group(&fibers[current].products);
}

void emulated_products_wait(size_t pending)
{
    wait_for_groups(&fibers[current].products, pending,
                    [](const std::function<void()> &product) { product(); });
    __syncwarp();
}

/* ---- blocks ---- */

static void end_thread(struct fiber *f)
{
    emulated_require(f->copies.open.empty(), "copies are not committed");
    emulated_require(f->products.open.empty() && f->products.groups.empty(),
                     "products are not waited for");
    f->done = true;
    warps[current / LANES].barrier.alive--;
    block_barrier.alive--;
    release_if_complete(&warps[current / LANES].barrier);
    release_if_complete(&block_barrier);
}

static void fiber_main()
{
    for (;;) {
        (*running)();
        end_thread(&fibers[current]);
        if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
    }
}

static void ready_fiber(unsigned i)
{
    struct fiber *f = &fibers[i];
    f->done = false;
    f->waits_for = NULL;
    f->exchanges = 0;
    f->copies.groups.clear();
}

static void start_fiber(struct fiber *f)
{
    f->stack = static_cast<char *>(malloc(STACK_BYTES));
    (void)getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
    (void)setcontext(&f->context);
}

static bool can_run(const struct fiber *f)
{
    return !f->done && (!f->waits_for || f->waits_for->generation != f->generation);
}

static void run_fiber(unsigned i)
{
    current = i;
    threadIdx = dim3(i, 0, 0);
    fibers[i].waits_for = NULL;
    if (_setjmp(scheduler)) return;
    if (!fibers[i].stack) start_fiber(&fibers[i]);
    _longjmp(fibers[i].place, 1);
}

/* Goes around all fibers from a random one, forwards or backwards. */
static void run_block(unsigned threads)
{
    for (unsigned i = 0; i < threads; i++)
        ready_fiber(i);
    for (unsigned w = 0; w < threads / LANES; w++)
        warps[w].barrier = {LANES, 0, 0};
    block_barrier = {threads, 0, 0};
    while (block_barrier.alive > 0) {
        const unsigned first = draw_number(threads), step = draw_number(2) ? 1 : threads - 1;
        bool ran = false;
        for (unsigned n = 0, i = first; n < threads; n++, i = (i + step) % threads)
            if (can_run(&fibers[i])) {
                ran = true;
                run_fiber(i);
            }
        emulated_require(ran, "threads wait for one another");
    }
    emulated_require(bulk_copies.empty(), "a block ends before a copy that it asked for");
}

void emulated_launch(dim3 grid, unsigned threads, size_t shared_bytes,
                     const std::function<void()> &kernel)
{
    emulated_require(threads > 0 && threads <= MAX_FIBERS && threads % LANES == 0,
                     "a block is not whole warps");
    emulated_require(grid.y <= 65535 && grid.z <= 65535, "a grid is too large");
    char *shared = static_cast<char *>(aligned_alloc(128, shared_bytes / 128 * 128 + 128));
    emulated_shared = shared;
    emulated_shared_bytes = shared_bytes;
    gridDim = grid;
    blockDim = dim3(threads);
    running = &kernel;
    const size_t blocks = (size_t)grid.x * grid.y * grid.z;
    const bool forwards = draw_number(2);
    for (size_t n = 0; n < blocks; n++) {
        const size_t i = forwards ? n : blocks - 1 - n;
        blockIdx = dim3((unsigned)(i % grid.x), (unsigned)(i / grid.x % grid.y),
                        (unsigned)(i / grid.x / grid.y));
        memset(shared, 0xff, shared_bytes);
        run_block(threads);
    }
    free(shared);
}

/* ---- the host's side ---- */

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    *out = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}

/* EMULATED_PINNED limits the bytes, of all requests together. */
cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned)
{
    static size_t given;
    const char *most = getenv("EMULATED_PINNED");
    if (most && given + bytes > strtoull(most, NULL, 10)) return cudaErrorMemoryAllocation;
    given += bytes;
    return cudaMalloc(out, bytes);
}

/* EMULATED_MEMORY sets the bytes. */
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    const char *given = getenv("EMULATED_MEMORY");
    *total_bytes = (size_t)8 << 30;
    *free_bytes = given ? strtoull(given, NULL, 10) : *total_bytes;
    return cudaSuccess;
}

/* EMULATED_SHARED sets the bytes. */
std::map<void (*)(), size_t> emulated_shared_allowed;

size_t emulated_shared_limit()
{
    const char *given = getenv("EMULATED_SHARED");
    return given ? strtoull(given, NULL, 10) : (size_t)227 << 10;
}

/* EMULATED_GPUS sets the number of GPUs. */
static int current_device;

cudaError_t cudaGetDeviceCount(int *count)
{
    const char *given = getenv("EMULATED_GPUS");
    *count = given ? atoi(given) : 1;
    return cudaSuccess;
}

/* As with the driver: a process that used a GPU cannot fork children that
 * use it. */
cudaError_t cudaSetDevice(int device)
{
    static pid_t user;
    if (user && user != getpid()) return cudaErrorInitializationError;
    user = getpid();
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device)
{
    memset(out, 0, sizeof *out);
    (void)snprintf(out->name, sizeof out->name, "an emulated GPU");
    out->uuid.bytes[0] = (char)(device + 1);
    out->major = getenv("EMULATED_SM90") ? 9 : 8;
    out->totalGlobalMem = (size_t)8 << 30;
    out->sharedMemPerBlockOptin = emulated_shared_limit();
    out->multiProcessorCount = 16;
    return cudaSuccess;
}

/* ---- graphs ---- */

struct emulated_graph {
    std::vector<std::function<void()>> work;
};

static struct emulated_graph *recording;

static bool has_trapped;

void emulated_trap()
{
    has_trapped = true;
}

cudaError_t emulated_sticky_error()
{
    return has_trapped ? cudaErrorLaunchFailure : cudaSuccess;
}

void emulated_enqueue(const std::function<void()> &work)
{
    if (recording)
        recording->work.push_back(work);
    else
        work();
}

/* Number of recorded events, and of those before the host's last wait. */
static uint64_t events_recorded, events_waited_for;

cudaError_t emulated_wait()
{
    if (recording) return cudaErrorStreamCaptureUnsupported;
    events_waited_for = events_recorded;
    return emulated_sticky_error();
}

cudaError_t cudaStreamBeginCapture(cudaStream_t, int)
{
    if (recording) return cudaErrorStreamCaptureUnsupported;
    recording = new emulated_graph;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *out)
{
    *out = recording;
    recording = NULL;
    return *out ? (cudaError_t)cudaSuccess : (cudaError_t)cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *out)
{
    *out = recording ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

/* Fails on the GPU that EMULATED_NO_GRAPHS names. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
    const char *without = getenv("EMULATED_NO_GRAPHS");
    if (without && atoi(without) == current_device) return cudaErrorMemoryAllocation;
    *out = new emulated_graph(*graph);
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t)
{
    if (recording) return cudaErrorStreamCaptureUnsupported;
    for (const std::function<void()> &work : graph->work)
        work();
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
    delete graph;
    return cudaSuccess;
}

/* ---- events ---- */

struct emulated_event {
    bool is_timed;
    uint64_t number; /* of its last recording, from 1; 0: none */
    double ms;
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = new emulated_event{flags != cudaEventDisableTiming, 0, 0};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

static void record_event(cudaEvent_t event)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    event->ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
    event->number = ++events_recorded;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t)
{
    emulated_enqueue([=] { record_event(event); });
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->is_timed || !to->is_timed || !from->number || !to->number)
        return cudaErrorInvalidResourceHandle;
    if (max(from->number, to->number) > events_waited_for) return cudaErrorNotReady;
    *ms = (float)(to->ms - from->ms);
    return cudaSuccess;
}
