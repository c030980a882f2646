/* ops_internal.h - declares this folder's kernels, and functions that
 * they share. */
#ifndef FERRY_KERNELS_CPU_OPS_INTERNAL_H
#define FERRY_KERNELS_CPU_OPS_INTERNAL_H

#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "kernels/cpu/ops/real.h"
#include "kernels/ops.h"

#define DECLARE_PLAIN(kernel)                                                                      \
    void NAME(kernel)(const union op_params *p, const struct operand *in,                          \
                      const struct operand *out);
#define DECLARE_WORKSPACE(kernel)                                                                  \
    enum status NAME(kernel)(const union op_params *p, const struct operand *in,                   \
                             const struct operand *out, void *workspace, struct error *err);       \
    size_t NAME(kernel##_workspace)(const union op_params *p, const struct operand *in,            \
                                    const struct operand *out);
#define DECLARE_NONE(kernel)
#define DECLARE(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)            \
    DECLARE_##cpu(name)
OPS(DECLARE)
#undef DECLARE
#undef DECLARE_PLAIN
#undef DECLARE_WORKSPACE
#undef DECLARE_NONE

/* A loop over fewer elements ends before other threads wake up. */
enum { WORTH_THREADS = 1 << 14 };

/* Number of threads that a workspace has room for: equal in all calls. */
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

/* Number of valid rows: all, without counts. */
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

/* A parameter's gradient, an array of ELEM or REAL. `sum`, of the same type, is
 * added to it: NULL, or in most programs the array itself. */
struct gradient {
    void *to;
    const void *sum;
    bool is_real;
};

static inline struct gradient gradient_of(const struct operand *to, const struct operand *sum)
{
    return (struct gradient){to->data, sum->data, to->type == OPERAND_REAL};
}

/* Elements [at, at + n) of the gradient become x, or sum + x, rounded once. */
static inline void gradient_store(const struct gradient *g, size_t at, const real *x, size_t n)
{
    real *to_real = (real *)g->to + at;
    elem *to_elem = (elem *)g->to + at;
    const real *sum_real = g->sum ? (const real *)g->sum + at : NULL;
    const elem *sum_elem = g->sum ? (const elem *)g->sum + at : NULL;
    if (g->is_real && g->sum)
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            to_real[i] = sum_real[i] + x[i];
    else if (g->is_real)
        memcpy(to_real, x, n * sizeof *x);
    else if (g->sum)
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            to_elem[i] = store(load(sum_elem[i]) + x[i]);
    else
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            to_elem[i] = store(x[i]);
}

#endif
