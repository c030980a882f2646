#include "common/count.h"
#include "kernels/cpu/ops/ops_testing.h"

struct matrices {
    struct operand in[3], out[1], before;
    size_t m, n, k;
};

static struct matrices matrices_of(struct op_test *t, const union op_params *p, size_t m, size_t n,
                                   size_t k)
{
    struct matrices x = {.m = m, .n = n, .k = k};
    x.in[0] = p->matmul.transpose_a ? ELEMS(k, m) : ELEMS(m, k);
    x.in[1] = p->matmul.transpose_b ? ELEMS(n, k) : ELEMS(k, n);
    if (test_coin(t)) x.in[2] = ELEMS(n);
    x.out[0] = test_coin(t) ? REALS(m, n) : ELEMS(m, n);
    x.before = test_copy(t, x.out);
    return x;
}

static double formula(const struct op_test *t, const union op_params *p, const struct matrices *x,
                      size_t i, size_t j)
{
    double sum = 0;
    for (size_t l = 0; l < x->k; l++)
        sum += test_get(t, x->in, p->matmul.transpose_a ? l * x->m + i : i * x->k + l) *
               test_get(t, x->in + 1, p->matmul.transpose_b ? j * x->k + l : l * x->n + j);
    sum *= p->matmul.alpha;
    if (x->in[2].data) sum += test_get(t, x->in + 2, j);
    if (p->matmul.accumulate) sum += test_get(t, &x->before, i * x->n + j);
    return sum;
}

static union op_params random_params(struct op_test *t)
{
    union op_params p = {.matmul = {.alpha = test_coin(t) ? 1 : -0.375}};
    p.matmul.transpose_a = test_coin(t);
    p.matmul.transpose_b = test_coin(t);
    p.matmul.accumulate = test_coin(t);
    return p;
}

/* Elements are in [-1, 1), so the sum of k products grows to about sqrt(k) / 3, and the roundings
 * on the way, which are random, come to a standard deviation of 6e-9 k in f32. test_tolerance()
 * times sqrt(k) / 4 is five of them at k = 1030, the largest here. */
static void check(struct op_test *t, const union op_params *p, const struct matrices *x, size_t i,
                  size_t j)
{
    test_near(t, x->out, i * x->n + j, formula(t, p, x, i, j), sqrt((double)x->k) / 4);
}

static void check_all(struct op_test *t, const union op_params *p, const struct matrices *x)
{
    for (size_t i = 0; i < x->m; i++)
        for (size_t j = 0; j < x->n; j++)
            check(t, p, x, i, j);
}

/* The last row and column, and some between. */
static void check_some(struct op_test *t, const union op_params *p, const struct matrices *x)
{
    for (size_t i = 0; i < x->m; i++)
        check(t, p, x, i, x->n - 1);
    for (size_t j = 0; j < x->n; j++)
        check(t, p, x, x->m - 1, j);
    for (size_t n = 0; n < 200; n++)
        check(t, p, x, test_below(&t->seed, x->m), test_below(&t->seed, x->n));
}

OP_TEST(products_have_every_shape, 20)
{
    const union op_params p = random_params(t);
    const struct matrices x = matrices_of(t, &p, test_between(t, 1, test_coin(t) ? 6 : 70),
                                          test_between(t, 1, 70), test_between(t, 1, 90));
    test_op(t, OP_MATMUL, &p, x.in, x.out);
    check_all(t, &p, &x);
}

/* Around what kernels take at once: 14 rows, 16 or 32 columns, pairs; blocks and tiles of 256. */
static size_t edge(struct op_test *t)
{
    static const size_t edges[] = {2, 14, 16, 28, 32, 48, 64, 128, 256};
    return edges[test_below(&t->seed, COUNT(edges))] + test_below(&t->seed, 3) - 1;
}

OP_TEST(products_end_at_every_edge, 40)
{
    const union op_params p = random_params(t);
    const struct matrices x = matrices_of(t, &p, edge(t), edge(t), edge(t));
    test_op(t, OP_MATMUL, &p, x.in, x.out);
    check_some(t, &p, &x);
}

OP_TEST(products_are_larger_than_a_block, 2)
{
    const union op_params p = random_params(t);
    const struct matrices x = matrices_of(t, &p, 520, 515, 1030);
    test_op(t, OP_MATMUL, &p, x.in, x.out);
    check_some(t, &p, &x);
}

OP_TEST(any_number_of_threads_gives_the_same_bits, 2)
{
    const union op_params p = random_params(t);
    const struct matrices x = matrices_of(t, &p, edge(t), 300, 300);
    const size_t bytes = test_bytes(t, x.out);
    struct operand first = {0};
    struct error err = {0};
    for (int threads = 1; threads <= 4; threads *= 2) {
        memcpy(x.out[0].data, x.before.data, bytes);
        test_set_threads(threads);
        assert_ok(test_try(t, OP_MATMUL, &p, x.in, x.out, &err));
        if (!first.data) first = test_copy(t, x.out);
        assert_memory_equal(first.data, x.out[0].data, bytes);
    }
}

OP_TEST(nan_reaches_its_row_only, 2)
{
    const union op_params p = {.matmul = {.transpose_b = true, .alpha = 1}};
    struct matrices x = matrices_of(t, &p, t->seed % 2 ? 3 : 8, 9, 33);
    test_set(t, x.in, x.k + 5, (double)NAN);
    test_op(t, OP_MATMUL, &p, x.in, x.out);
    check_all(t, &p, &x);
}

/* Some instructions take them as 0. */
OP_TEST(subnormal_numbers_do_no_harm, 2)
{
    const union op_params p = random_params(t);
    const struct matrices x = matrices_of(t, &p, t->seed % 2 ? 3 : 20, 35, 65);
    for (size_t i = 0; i < x.m * x.k; i += 3)
        test_set(t, x.in, i, 0x1p-128);
    test_op(t, OP_MATMUL, &p, x.in, x.out);
    check_all(t, &p, &x);
}

OP_TEST(each_expert_multiplies_its_rows, 10)
{
    const size_t num_experts = test_between(t, 1, 6), n = test_between(t, 1, 40);
    const size_t k = test_between(t, 1, 40), bound = 20 * num_experts + 1;
    struct operand in[] = {ELEMS(bound, k), ELEMS(num_experts, n, k), INTS(num_experts)};
    struct operand out[] = {ELEMS(bound, n)}, before = test_copy(t, out);
    const union op_params p = {0};
    for (size_t e = 0; e < num_experts; e++)
        test_set(t, in + 2, e, (double)test_below(&t->seed, 21));
    test_op(t, OP_GROUPED_MATMUL, &p, in, out);
    size_t row = 0;
    for (size_t e = 0; e < num_experts; e++) {
        const size_t end = row + (size_t)test_get(t, in + 2, e);
        for (; row < end; row++)
            for (size_t j = 0; j < n; j++) {
                double sum = 0;
                for (size_t l = 0; l < k; l++)
                    sum += test_get(t, in, row * k + l) * test_get(t, in + 1, (e * n + j) * k + l);
                test_near(t, out, row * n + j, sum, 2);
            }
    }
    for (size_t i = row * n; i < bound * n; i++)
        assert_true(test_get(t, out, i) == test_get(t, &before, i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_every_shape),
        cmocka_unit_test(products_end_at_every_edge),
        cmocka_unit_test(products_are_larger_than_a_block),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(nan_reaches_its_row_only),
        cmocka_unit_test(subnormal_numbers_do_no_harm),
        cmocka_unit_test(each_expert_multiplies_its_rows),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
