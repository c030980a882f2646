/* gradient_testing.h - backward ops against central differences of forward ops,
 * in f64.
 *
 * A loss is a function of operands: the sum of dout[i] * out[i] over all
 * elements of all outputs of an op (struct forward), or another function of
 * double. With a step of 1e-5 the difference quotient errs by about 1e-10 for a
 * loss of about 1. Types other than f64 are skipped. */
#ifndef FERRY_KERNELS_CPU_OPS_GRADIENT_TESTING_H
#define FERRY_KERNELS_CPU_OPS_GRADIENT_TESTING_H

#include "kernels/cpu/ops/ops_testing.h"

#define GRADIENT_STEP 1e-5
#define GRADIENT_TOLERANCE 1e-6

/* Number of random elements of an array that are checked, at most. */
enum { GRADIENT_CHECKS = 60 };

typedef double loss_function(struct op_test *t, void *context);

/* Slope of the loss by element i of x, which the loss reads. */
static inline double test_slope(struct op_test *t, loss_function *loss, void *context,
                                const struct operand *x, size_t i)
{
    const double before = test_get(t, x, i);
    test_set(t, x, i, before + GRADIENT_STEP);
    const double above = loss(t, context);
    test_set(t, x, i, before - GRADIENT_STEP);
    const double below = loss(t, context);
    test_set(t, x, i, before);
    return (above - below) / (2 * GRADIENT_STEP);
}

/* Checks that `gradient`, of x's size, is the gradient of the loss by x. */
static inline void test_gradient(struct op_test *t, loss_function *loss, void *context,
                                 const struct operand *x, const struct operand *gradient)
{
    const size_t n = test_count(x), checks = n < GRADIENT_CHECKS ? n : GRADIENT_CHECKS;
    if (t->elem != ELEM_F64) return;
    assert_int_equal(test_count(gradient), n);
    for (size_t k = 0; k < checks; k++) {
        const size_t i = n == checks ? k : (size_t)test_below(&t->seed, n);
        const double got = test_get(t, gradient, i), want = test_slope(t, loss, context, x, i);
        if (!(fabs(got - want) <= GRADIENT_TOLERANCE * (1 + fabs(want))))
            fail_msg("element %zu of the gradient is %.12g, not %.12g (%s, seed %llu)", i, got,
                     want, t->cpu, (unsigned long long)t->first_seed);
    }
}

/* A call of a forward op without outputs in place. dout[i] has the shape of
 * out[i]; if absent, the loss does not depend on that output. */
struct forward {
    enum op op;
    const union op_params *params;
    struct operand in[MAX_INPUTS], out[MAX_OUTPUTS], dout[MAX_OUTPUTS];
};

static inline double forward_loss(struct op_test *t, void *context)
{
    const struct forward *f = context;
    struct error err = {0};
    double loss = 0;
    assert_ok(test_try(t, f->op, f->params, f->in, f->out, &err));
    for (size_t o = 0; o < MAX_OUTPUTS; o++)
        for (size_t i = 0; f->dout[o].data && i < test_count(&f->dout[o]); i++)
            loss += test_get(t, &f->dout[o], i) * test_get(t, &f->out[o], i);
    return loss;
}

/* Checks `gradient` of the loss of `f` by its input `in[input]`. */
static inline void test_forward_gradient(struct op_test *t, struct forward *f, size_t input,
                                         const struct operand *gradient)
{
    test_gradient(t, forward_loss, f, &f->in[input], gradient);
}

/* One of the two types that a parameter's gradient may have. */
static inline enum operand_type test_float(struct op_test *t)
{
    return test_coin(t) ? OPERAND_REAL : OPERAND_ELEM;
}

#define FLOATS(...) test_operand(t, test_float(t), (const uint64_t[OPERAND_DIMS]){__VA_ARGS__})

/* The input that is added to a gradient in `to`: none, the array itself or
 * another one. `before` becomes a copy of its values, else zeros. */
static inline struct operand test_sum(struct op_test *t, const struct operand *to,
                                      struct operand *before)
{
    const size_t which = (size_t)test_below(&t->seed, 3);
    *before = test_copy(t, to);
    for (size_t i = 0; which == 0 && i < test_count(to); i++)
        test_set(t, before, i, 0);
    if (which == 0) return ABSENT;
    return which == 1 ? *to : test_copy(t, before);
}

#endif
