/* ops_testing.h - ops against their formulas: random operands, all element
 * types, all instruction sets. */
#ifndef FERRY_KERNELS_CPU_OPS_TESTING_H
#define FERRY_KERNELS_CPU_OPS_TESTING_H

#include <math.h>
#include <stdbool.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "common/count.h"
#include "common/half.h"
#include "kernels/op_table.h"
#include "tests/testing.h"

/* One round of a test, which owns its operands until it ends. */
struct op_test {
    enum elem_type elem;
    const char *cpu;
    uint64_t first_seed, seed;
    void *owned[256];
    size_t num_owned;
};

/* Aligned as in programs, but of exact size, for sanitizers. */
static inline void *test_aligned(size_t bytes)
{
    void *p;
    assert_int_equal(posix_memalign(&p, 256, bytes ? bytes : 1), 0);
    return p;
}

static inline void *test_alloc(struct op_test *t, size_t bytes)
{
    void *p = test_aligned(bytes);
    assert_true(t->num_owned < COUNT(t->owned));
    return t->owned[t->num_owned++] = p;
}

static inline size_t test_count(const struct operand *o)
{
    size_t n = 1;
    for (unsigned d = 0; d < o->num_dims; d++)
        n *= o->shape[d];
    return n;
}

static inline double test_get(const struct op_test *t, const struct operand *o, size_t i)
{
    if (o->type == OPERAND_INT) return ((const int32_t *)o->data)[i];
    if (t->elem == ELEM_F64) return ((const double *)o->data)[i];
    if (t->elem == ELEM_F32 || o->type == OPERAND_REAL) return (double)((const float *)o->data)[i];
    const uint16_t bits = ((const uint16_t *)o->data)[i];
    return (double)(t->elem == ELEM_F16 ? half_load(bits) : half_float_of((uint32_t)bits << 16));
}

static inline void test_set(const struct op_test *t, const struct operand *o, size_t i, double x)
{
    const float f = (float)x;
    if (o->type == OPERAND_INT)
        ((int32_t *)o->data)[i] = (int32_t)x;
    else if (t->elem == ELEM_F64)
        ((double *)o->data)[i] = x;
    else if (t->elem == ELEM_F32 || o->type == OPERAND_REAL)
        ((float *)o->data)[i] = f;
    else if (t->elem == ELEM_F16)
        ((uint16_t *)o->data)[i] = half_store(f);
    else
        ((uint16_t *)o->data)[i] = (uint16_t)(half_bits_of(f) >> 16 | (isnan(x) ? 0x40 : 0));
}

/* In [-1, 1) */
static inline double test_uniform(struct op_test *t)
{
    return (double)(test_random(&t->seed) >> 11) * 0x1p-52 - 1;
}

/* From low to high, both included */
static inline size_t test_between(struct op_test *t, size_t low, size_t high)
{
    return low + test_below(&t->seed, high - low + 1);
}

static inline bool test_coin(struct op_test *t)
{
    return test_below(&t->seed, 2);
}

/* An array of random numbers in [-1, 1); zeros for INT. The first dimension of
 * 0 ends the shape. */
static inline struct operand test_operand(struct op_test *t, enum operand_type type,
                                          const uint64_t shape[OPERAND_DIMS])
{
    struct operand o = {.type = type};
    while (o.num_dims < OPERAND_DIMS && shape[o.num_dims]) {
        o.shape[o.num_dims] = shape[o.num_dims];
        o.num_dims++;
    }
    o.data = test_alloc(t, test_count(&o) * operand_bytes_of(type, t->elem));
    for (size_t i = 0; i < test_count(&o); i++)
        test_set(t, &o, i, type == OPERAND_INT ? 0 : test_uniform(t));
    return o;
}

#define ELEMS(...) test_operand(t, OPERAND_ELEM, (const uint64_t[OPERAND_DIMS]){__VA_ARGS__})
#define REALS(...) test_operand(t, OPERAND_REAL, (const uint64_t[OPERAND_DIMS]){__VA_ARGS__})
#define INTS(...) test_operand(t, OPERAND_INT, (const uint64_t[OPERAND_DIMS]){__VA_ARGS__})
#define ABSENT ((struct operand){0})

static inline struct operand test_copy(struct op_test *t, const struct operand *of)
{
    struct operand o = test_operand(t, of->type, of->shape);
    memcpy(o.data, of->data, test_count(of) * operand_bytes_of(of->type, t->elem));
    return o;
}

/* Checks operands against the list of ops; in and out are complete. */
static inline void test_signature(enum op op, const union op_params *p, const struct operand *in,
                                  const struct operand *out)
{
    const struct op_row *row = op_row(op);
    struct operand all_in[MAX_INPUTS] = {0}, all_out[MAX_OUTPUTS] = {0};
    struct op_sizes sizes = {0};
    struct error err = {0};
    memcpy(all_in, in, row->num_in * sizeof *in);
    memcpy(all_out, out, row->num_out * sizeof *out);
    assert_ok(op_check(op, p, all_in, all_out, &sizes, &err));
}

static inline enum status test_try(struct op_test *t, enum op op, const union op_params *p,
                                   const struct operand *in, const struct operand *out,
                                   struct error *err)
{
    const struct op_kernel *kernel = cpu_ops(t->elem) + op;
    test_signature(op, p, in, out);
    const size_t bytes = kernel->workspace ? kernel->workspace(p, in, out) : 0;
    void *workspace = test_aligned(bytes);
    memset(workspace, 0xFF, bytes); /* NaN in every type */
    enum status st = kernel->run(p, in, out, workspace, err);
    free(workspace);
    return st;
}

static inline void test_set_threads(int threads)
{
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

static inline size_t test_bytes(const struct op_test *t, const struct operand *o)
{
    return o->data ? test_count(o) * operand_bytes_of(o->type, t->elem) : 0;
}

static inline void test_op(struct op_test *t, enum op op, const union op_params *p,
                           const struct operand *in, const struct operand *out)
{
    struct error err = {0};
    char *before[MAX_OUTPUTS], *first[MAX_OUTPUTS];
    const size_t num_outputs = op_row(op)->num_out;
    for (size_t i = 0; i < num_outputs; i++) {
        before[i] = test_alloc(t, test_bytes(t, out + i));
        first[i] = test_alloc(t, test_bytes(t, out + i));
        if (out[i].data) memcpy(before[i], out[i].data, test_bytes(t, out + i));
    }
    test_set_threads(1);
    assert_ok(test_try(t, op, p, in, out, &err));
    for (size_t i = 0; i < num_outputs; i++) {
        if (!out[i].data) continue;
        memcpy(first[i], out[i].data, test_bytes(t, out + i));
        memcpy(out[i].data, before[i], test_bytes(t, out + i));
    }
    test_set_threads(3);
    assert_ok(test_try(t, op, p, in, out, &err));
    for (size_t i = 0; i < num_outputs; i++)
        if (out[i].data) assert_memory_equal(first[i], out[i].data, test_bytes(t, out + i));
}

/* Allowed deviation from the exact result, relative to `magnitude` (the sum
 * of magnitudes) or the result. */
static inline double test_tolerance(const struct op_test *t, const struct operand *o)
{
    if (t->elem == ELEM_F64) return 2e-14;
    if (t->elem == ELEM_F32 || o->type == OPERAND_REAL) return 4e-6;
    return t->elem == ELEM_BF16 ? 0x1.02p-8 : 0x1.04p-11;
}

/* f16 below 2^-14 are 2^-24 apart: the rounding error that this allows. */
static inline double test_floor(const struct op_test *t, const struct operand *o)
{
    return t->elem == ELEM_F16 && o->type == OPERAND_ELEM ? 0x1.04p-25 : 0;
}

static inline void test_near(const struct op_test *t, const struct operand *o, size_t i,
                             double want, double magnitude)
{
    static const char *const names[] = {"f32", "f64", "bf16", "f16"};
    const double got = test_get(t, o, i);
    const double off = fabs(got - want), size = fabs(want) + magnitude;
    const double allowed = size * test_tolerance(t, o) + test_floor(t, o);
    const bool same = isnan(want) ? isnan(got) : got == want || off <= allowed;
    if (!same)
        fail_msg("element %zu is %.17g, not %.17g (%s, %s, seed %llu)", i, got, want,
                 names[t->elem], t->cpu, (unsigned long long)t->first_seed);
}

/* Runs a test with each instruction set that this CPU has for the type. */
static inline void test_on_each_cpu(void (*test)(struct op_test *t), enum elem_type elem,
                                    uint64_t seed)
{
    static const char *const cpus[] = {"v1", "v3", "v4", "amx"};
    const struct op_kernel *before = NULL;
    for (size_t i = 0; i < COUNT(cpus); i++) {
        struct op_test t = {.elem = elem, .cpu = cpus[i], .first_seed = seed, .seed = seed};
        setenv("FERRY_CPU", t.cpu, 1);
        if (cpu_ops(elem) == before) continue;
        before = cpu_ops(elem);
        test(&t);
        while (t.num_owned)
            free(t.owned[--t.num_owned]);
    }
}

static inline void test_everywhere(void (*test)(struct op_test *t), int rounds)
{
    for (int i = 0; i < NUM_ELEM_TYPES * test_rounds(rounds); i++)
        test_on_each_cpu(test, (enum elem_type)(i % NUM_ELEM_TYPES), test_seed() + (uint64_t)i);
}

/* The test NAME runs `NAME_once` for all types and instruction sets. */
#define OP_TEST(name, rounds)                                                                      \
    static void name##_once(struct op_test *t);                                                    \
    static void name(void **state)                                                                 \
    {                                                                                              \
        (void)state;                                                                               \
        test_everywhere(name##_once, rounds);                                                      \
    }                                                                                              \
    static void name##_once(struct op_test *t)

#endif
