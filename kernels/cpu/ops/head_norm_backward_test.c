#include "kernels/cpu/ops/gradient_testing.h"

struct heads {
    union op_params p;
    size_t n, columns;
    struct operand in[6], out[3], dy, before[2];
};

static struct heads make_heads(struct op_test *t, size_t most_tokens)
{
    static const uint32_t head_dims[] = {2, 6, 64, 80, 128};
    const struct head_shape s = {.groups = (uint32_t)test_between(t, 1, 3),
                                 .queries = (uint32_t)test_between(t, 1, 4),
                                 .head_dim = head_dims[test_below(&t->seed, 5)]};
    struct heads x = {.n = test_between(t, 1, most_tokens),
                      .columns = (size_t)s.groups * (s.queries + 2) * s.head_dim};
    x.p = (union op_params){.head_norm = {.heads = s, .epsilon = 0.01}};
    x.p.head_norm.shift = test_coin(t) ? 1 : 0;
    x.in[0] = ELEMS(x.n, x.columns);
    x.in[1] = ELEMS(s.head_dim);
    x.in[2] = ELEMS(s.head_dim);
    x.in[3] = ELEMS(x.n, x.columns);
    x.dy = test_copy(t, x.in + 3);
    x.out[0] = test_coin(t) ? x.in[3] : ELEMS(x.n, x.columns);
    for (size_t k = 0; k < 2; k++) {
        x.out[1 + k] = FLOATS(s.head_dim);
        x.in[4 + k] = test_sum(t, &x.out[1 + k], &x.before[k]);
    }
    test_op(t, OP_HEAD_NORM_BACKWARD, &x.p, x.in, x.out);
    return x;
}

/* dweight and size: [2, d], of queries and keys: sums, and sums
 * of magnitudes. */
static void check_head(const struct op_test *t, const struct heads *x, size_t begin, bool is_key,
                       double *dweight, double *size)
{
    const size_t d = x->p.head_norm.heads.head_dim;
    double square = 0, average = 0;
    for (size_t i = 0; i < d; i++)
        square += pow(test_get(t, x->in, begin + i), 2) / (double)d;
    const double scale = 1 / sqrt(square + 0.01);
    for (size_t i = 0; i < d; i++) {
        const double w = test_get(t, x->in + 1 + is_key, i) + x->p.head_norm.shift;
        const double dz = test_get(t, &x->dy, begin + i) * test_get(t, x->in, begin + i) * scale;
        average += dz * w / (double)d;
        dweight[is_key * d + i] += dz;
        size[is_key * d + i] += fabs(dz) / 8;
    }
    for (size_t i = 0; i < d; i++) {
        const double w = test_get(t, x->in + 1 + is_key, i) + x->p.head_norm.shift;
        const double z = test_get(t, x->in, begin + i) * scale;
        test_near(t, x->out, begin + i, scale * (test_get(t, &x->dy, begin + i) * w - z * average),
                  scale * (1 + fabs(z)));
    }
}

OP_TEST(gradients_are_their_formula, 15)
{
    const struct heads x = make_heads(t, 100);
    const struct head_shape s = x.p.head_norm.heads;
    const size_t d = s.head_dim;
    double dweight[2 * 128] = {0}, size[2 * 128] = {0};
    for (size_t begin = 0; begin < x.n * x.columns; begin += d) {
        const size_t head = begin / d % (s.queries + 2);
        if (head <= s.queries)
            check_head(t, &x, begin, head == s.queries, dweight, size);
        else
            for (size_t i = 0; i < d; i++)
                assert_true(test_get(t, x.out, begin + i) == test_get(t, &x.dy, begin + i));
    }
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < d; i++)
            test_near(t, &x.out[1 + k], i, test_get(t, &x.before[k], i) + dweight[k * d + i],
                      1 + size[k * d + i]);
}

OP_TEST(gradients_are_differences_of_the_norm, 15)
{
    if (t->elem != ELEM_F64) return;
    const struct heads x = make_heads(t, 5);
    struct forward f = {.op = OP_HEAD_NORM,
                        .params = &x.p,
                        .in = {x.in[0], x.in[1], x.in[2]},
                        .out = {ELEMS(x.n, x.columns)},
                        .dout = {x.dy}};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < test_count(&x.out[1 + k]); i++)
            test_set(t, &x.out[1 + k], i,
                     test_get(t, &x.out[1 + k], i) - test_get(t, &x.before[k], i));
    for (size_t input = 0; input < 3; input++)
        test_forward_gradient(t, &f, input, &x.out[input]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_are_their_formula),
        cmocka_unit_test(gradients_are_differences_of_the_norm),
    };
    return cmocka_run_group_tests_name("head_norm_backward", tests, NULL, NULL);
}
