/* sm90_ptx.h - kernels/cuda/sm90_ptx.h for the host, after the PTX ISA:
 * mbarrier, cp.async.bulk, wgmma and its matrix descriptors.
 *
 * Copies happen when a thread waits for them, products when their warp waits:
 * early reads, and early writes to data being read, give wrong numbers. It
 * misses absent fence_copies() and products_begin(). */
#ifndef FERRY_KERNELS_CUDA_SM90_PTX_H
#define FERRY_KERNELS_CUDA_SM90_PTX_H

#include <cuda.h>

#include "kernels/cuda/mma.h"

/* ---- barriers ---- */

struct copy_barrier {
    unsigned arrivals, left; /* of a phase; those missing */
    uint32_t parity;         /* of the current phase */
    int64_t bytes;           /* still to come */
};
typedef struct copy_barrier barrier;

static inline void emulated_end_phase(barrier *b)
{
    if (b->left > 0 || b->bytes > 0) return;
    b->left = b->arrivals;
    b->parity ^= 1;
}

static inline void barrier_init(barrier *b, unsigned arrivals)
{
    *b = {arrivals, arrivals, 0, 0};
}

static inline void barrier_arrive(barrier *b)
{
    emulated_require(b->left > 0, "an arrival at a barrier that all have arrived at");
    b->left--;
    emulated_end_phase(b);
}

static inline void barrier_expect(barrier *b, uint32_t bytes)
{
    b->bytes += bytes;
    barrier_arrive(b);
}

/* Copies into shared memory that count at a barrier: done by its first waiter,
 * if not at once. */
void emulated_copy_later(const void *barrier, const std::function<void()> &copy);
void emulated_copy_now(const void *barrier);
/* Lets other threads run first. */
void emulated_yield();

static inline bool barrier_try(barrier *b, uint32_t parity)
{
    if (b->parity == parity) emulated_copy_now(b);
    if (b->parity == parity) emulated_yield();
    return b->parity != parity;
}

/* Each read of the clock is a millisecond later, however busy the host is. */
static inline uint64_t nanoseconds()
{
    static uint64_t looks;
    return ++looks * 1000000;
}

static inline void __trap()
{
    emulated_require(false, "a kernel traps");
}

static inline void emulated_bytes_came(barrier *b, uint32_t bytes)
{
    b->bytes -= bytes;
    emulated_require(b->bytes >= 0, "more bytes than a barrier expects");
    emulated_end_phase(b);
}

static inline void fence_copies()
{
}

static inline uint64_t read_once()
{
    return 0;
}

static inline void copy_bulk(void *shared, const void *global, uint32_t bytes, barrier *b, uint64_t)
{
    emulated_require((uintptr_t)shared % 16 == 0 && (uintptr_t)global % 16 == 0 && bytes % 16 == 0,
                     "a bulk copy is not aligned");
    emulated_copy_later(b, [=] {
        memcpy(shared, global, bytes);
        emulated_bytes_came(b, bytes);
    });
}

/* ---- places in shared memory ---- */

/* Start of dynamic shared memory: no better aligned than promised. */
enum { EMULATED_SHARED_AT = 48 };

static inline uint32_t shared_address(const void *at)
{
    return (uint32_t)(static_cast<const char *>(at) - emulated_shared) + EMULATED_SHARED_AT;
}

/* The 16 bytes at this address, in swizzled rows of 128 bytes. */
static inline char *emulated_swizzled(uint32_t address)
{
    const uint32_t place = address ^ (address >> 7 & 7) << 4;
    emulated_require(place >= EMULATED_SHARED_AT &&
                         place < EMULATED_SHARED_AT + emulated_shared_bytes,
                     "a place is behind the shared memory");
    return emulated_shared + (place - EMULATED_SHARED_AT);
}

static inline void emulated_copy_run(const CUtensorMap &map, uint32_t to, uint64_t column,
                                     uint64_t row)
{
    char *const place = emulated_swizzled(to);
    for (uint64_t i = 0; i < 8; i++)
        if (row < map.rows && column + i < map.columns)
            memcpy(place + 2 * i, map.matrix + row * map.row_bytes + 2 * (column + i), 2);
        else
            memset(place + 2 * i, 0, 2);
}

static inline void copy_tile(void *shared, const CUtensorMap *map, int column, int row, barrier *b)
{
    const CUtensorMap m = *map;
    const uint32_t to = shared_address(shared);
    emulated_require(m.swizzles && to % 1024 == 0 && column >= 0 && row >= 0,
                     "a tile has no place");
    emulated_copy_later(b, [=] {
        for (uint32_t r = 0; r < m.box_rows; r++)
            for (uint32_t c = 0; c < m.box_columns; c += 8)
                emulated_copy_run(m, to + r * 128 + c * 2, (uint64_t)column + c, (uint64_t)row + r);
        emulated_bytes_came(b, m.box_rows * m.box_columns * 2);
    });
}

/* ---- warpgroups ---- */

enum { WARPGROUP = 128 };

void emulated_sync_some(unsigned number, unsigned threads);

static inline void sync_warpgroup(unsigned number)
{
    emulated_sync_some(number, WARPGROUP);
}

template <int registers> static inline void take_registers()
{
    static_assert(registers % 8 == 0 && registers >= 24 && registers <= 256, "registers");
}

template <int registers> static inline void give_registers()
{
    take_registers<registers>();
}

/* ---- products of warpgroups ---- */

/* A decoded descriptor (PTX ISA, for 128-byte swizzling). */
struct emulated_matrix {
    uint32_t start, leading, stride; /* bytes */
};

static inline emulated_matrix emulated_matrix_of(uint64_t descriptor)
{
    emulated_require(descriptor >> 62 == 1, "a descriptor without swizzling of 128 bytes");
    return {(uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
            (uint32_t)(descriptor >> 32 & 0x3fff) << 4};
}

/* Element k of row i, if a row's elements are neighbours (K-major). */
template <typename E>
static inline float emulated_of_row(const emulated_matrix &m, unsigned i, unsigned k)
{
    const uint32_t at = m.start + i / 8 * m.stride + i % 8 * 128 + k * 2;
    E x;
    memcpy(&x, emulated_swizzled(at), sizeof x);
    return to_real(x);
}

/* Element (k, i), if those of one k are neighbours (MN-major). */
template <typename E>
static inline float emulated_of_column(const emulated_matrix &m, unsigned k, unsigned i)
{
    const uint32_t at = m.start + i / 64 * m.leading + k / 8 * m.stride + k % 8 * 128 + i % 64 * 2;
    E x;
    memcpy(&x, emulated_swizzled(at), sizeof x);
    return to_real(x);
}

/* Queues a product of the calling thread, in groups. */
void emulated_product_later(const std::function<void()> &product);
void products_commit();
void emulated_products_wait(size_t pending);

template <int pending> static inline void products_wait()
{
    emulated_products_wait(pending);
}

static inline void products_begin()
{
}

template <int N> static inline void products_made(float (&)[N][4])
{
}

/* c += rows b for a lane's two rows, 16 elements of each. */
template <int N, typename B>
static inline void emulated_add(float (*c)[4], unsigned lane, const float (&rows)[2][16], B b)
{
    for (unsigned j = 0; j < N / 8; j++)
        for (unsigned e = 0; e < 2; e++)
            for (unsigned k = 0; k < 16; k++) {
                const float x = b(k, j * 8 + lane % 4 * 2 + e);
                c[j][e] += rows[0][k] * x;
                c[j][2 + e] += rows[1][k] * x;
            }
}

template <typename E, int N>
static inline void multiply_rows(float (&c)[N / 8][4], uint64_t a, uint64_t b, bool adds)
{
    const emulated_matrix am = emulated_matrix_of(a), bm = emulated_matrix_of(b);
    const unsigned lane = threadIdx.x % 32, first = threadIdx.x % 128 / 32 * 16 + lane / 4;
    float(*const to)[4] = c;
    __syncwarp(); /* .sync.aligned: all lanes call it */
    emulated_product_later([=] {
        float rows[2][16];
        if (!adds) memset(to, 0, N / 8 * sizeof *to);
        for (unsigned i = 0; i < 2; i++)
            for (unsigned k = 0; k < 16; k++)
                rows[i][k] = emulated_of_row<E>(am, first + i * 8, k);
        emulated_add<N>(to, lane, rows, [=](unsigned k, unsigned column) {
            return emulated_of_row<E>(bm, column, k);
        });
    });
}

template <typename E, int N>
static inline void multiply_weights(float (&c)[N / 8][4], const uint32_t (&a)[4], uint64_t b)
{
    const emulated_matrix bm = emulated_matrix_of(b);
    const emulated_fragments own = {{a[0], a[1], a[2], a[3]}, {0, 0}};
    const char(*all)[LANE_BYTES] = emulated_exchange(&own, sizeof own);
    const unsigned lane = threadIdx.x % 32;
    float(*const to)[4] = c;
    struct two_rows {
        float of[2][16];
    } rows;
    for (unsigned i = 0; i < 2; i++)
        for (unsigned k = 0; k < 16; k++)
            rows.of[i][k] = emulated_a<E>(all, lane / 4 + i * 8, k);
    emulated_product_later([=] {
        emulated_add<N>(to, lane, rows.of, [=](unsigned k, unsigned column) {
            return emulated_of_column<E>(bm, k, column);
        });
    });
}

#endif
