/* ops_internal.h - the kernels of this folder, and what they share. */
#ifndef FERRY_KERNELS_CPU_OPS_INTERNAL_H
#define FERRY_KERNELS_CPU_OPS_INTERNAL_H

#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/ops/real.h"
#include "kernels/ops.h"

// clang-format off
#define KERNELS(PLAIN, WITH_WORKSPACE)                \
    PLAIN(OP_EMBEDDING, embedding)                    \
    PLAIN(OP_POSITIONS, positions)                    \
    PLAIN(OP_NORM, norm)                              \
    PLAIN(OP_ADD_NORM, add_norm)                      \
    PLAIN(OP_ADD, add)                                \
    WITH_WORKSPACE(OP_MATMUL, matmul)                 \
    PLAIN(OP_HEAD_NORM, head_norm)                    \
    PLAIN(OP_ROTARY, rotary)                          \
    WITH_WORKSPACE(OP_ATTENTION, attention)           \
    PLAIN(OP_ATTENTION_MERGE, attention_merge)        \
    PLAIN(OP_CACHE_WRITE, cache_write)                \
    PLAIN(OP_ACTIVATION, activation)                  \
    WITH_WORKSPACE(OP_ROUTE, route)                   \
    PLAIN(OP_SORT_BY_EXPERT, sort_by_expert)          \
    PLAIN(OP_SORT_RECEIVED, sort_received)            \
    PLAIN(OP_PERMUTE, permute)                        \
    PLAIN(OP_UNPERMUTE, unpermute)                    \
    WITH_WORKSPACE(OP_GROUPED_MATMUL, grouped_matmul) \
    PLAIN(OP_SIGMOID_SCALE, sigmoid_scale)            \
    PLAIN(OP_GATHER_ROWS, gather_rows)                \
    PLAIN(OP_VOCAB_MAX, vocab_max)                    \
    PLAIN(OP_VOCAB_SUM, vocab_sum)                    \
    PLAIN(OP_TOKEN_LOSS, token_loss)                  \
    WITH_WORKSPACE(OP_SAMPLE, sample)                 \
    PLAIN(OP_DIGEST, digest)
// clang-format on

#define DECLARE_PLAIN(op, kernel)                                                                  \
    void NAME(kernel)(const union op_params *p, const struct operand *in,                          \
                      const struct operand *out);
#define DECLARE_WITH_WORKSPACE(op, kernel)                                                         \
    enum status NAME(kernel)(const union op_params *p, const struct operand *in,                   \
                             const struct operand *out, void *workspace, struct error *err);       \
    size_t NAME(kernel##_workspace)(const union op_params *p, const struct operand *in,            \
                                    const struct operand *out);
KERNELS(DECLARE_PLAIN, DECLARE_WITH_WORKSPACE)
#undef DECLARE_PLAIN
#undef DECLARE_WITH_WORKSPACE

/* Loops over fewer elements than this are done before other threads have woken up. */
enum { WORTH_THREADS = 1 << 14 };

/* How many threads a workspace is cut for: the same whenever it is asked for. */
static inline size_t most_workers(void)
{
    long n = sysconf(_SC_NPROCESSORS_CONF);
    return n < 1 ? 1 : n > 64 ? 64 : (size_t)n;
}

#ifdef _OPENMP
static inline int workers(void)
{
    int n = omp_get_max_threads(), most = (int)most_workers();
    return n < most ? n : most;
}

static inline size_t worker(void)
{
    return (size_t)omp_get_thread_num();
}
#else
static inline size_t worker(void)
{
    return 0;
}
#endif

/* Elements of one token of query, key and value. */
static inline size_t qkv_columns(const struct head_shape *s)
{
    return (size_t)s->groups * (s->queries + 2) * s->head_dim;
}

/* The rows that hold something: all, where nobody counts. */
static inline size_t counted_rows(const struct operand *counts, size_t rows)
{
    size_t sum = 0;
    for (size_t e = 0; counts->data && e < counts->shape[0]; e++)
        sum += (size_t)((const int32_t *)counts->data)[e];
    return counts->data ? sum : rows;
}

static inline size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

#endif
