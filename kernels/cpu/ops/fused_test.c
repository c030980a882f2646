/* A fused op equals its two ops bit by bit. */
#include "kernels/cpu/ops/ops_testing.h"

static const union op_params product = {.matmul = {.transpose_b = true, .alpha = 1}};

OP_TEST(a_product_of_normed_rows_is_that_of_the_norm, 20)
{
    const size_t rows = test_between(t, 1, 18), h = test_between(t, 1, 70),
                 n = test_between(t, 1, 70);
    const union op_params p = {
        .norm = {.layer_norm = test_coin(t), .epsilon = 1e-5, .shift = test_coin(t)}};
    const bool adds = test_coin(t);
    const struct operand in[7] = {ELEMS(rows, h),
                                  adds ? ELEMS(rows, h) : ABSENT,
                                  adds && test_coin(t) ? ELEMS(h) : ABSENT,
                                  ELEMS(h),
                                  test_coin(t) ? ELEMS(h) : ABSENT,
                                  ELEMS(n, h),
                                  test_coin(t) ? ELEMS(n) : ABSENT};
    const struct operand out[2] = {ELEMS(rows, n), adds ? ELEMS(rows, h) : ABSENT};
    const struct operand sum = ELEMS(rows, h), a = ELEMS(rows, h), y = ELEMS(rows, n);
    const struct operand alone[3] = {in[0], in[3], in[4]}, normed[2] = {a};
    const struct operand added[3] = {sum, a}, factors[4] = {a, in[5], in[6]};
    test_op(t, OP_NORM_MATMUL, &p, in, out);
    if (adds)
        test_op(t, OP_ADD_NORM, &p, in, added);
    else
        test_op(t, OP_NORM, &p, alone, normed);
    test_op(t, OP_MATMUL, &product, factors, &y);
    assert_memory_equal(out[0].data, y.data, test_bytes(t, &y));
    if (adds) assert_memory_equal(out[1].data, sum.data, test_bytes(t, &sum));
}

OP_TEST(a_product_of_activated_rows_is_that_of_the_activation, 20)
{
    const size_t rows = test_between(t, 1, 18), n = test_between(t, 1, 70),
                 m = test_between(t, 1, 70);
    const bool gated = test_coin(t);
    const union op_params p = {
        .activation = {.kind = (enum activation)test_below(&t->seed, NUM_ACTIVATIONS),
                       .gated = gated}};
    const struct operand in[3] = {ELEMS(rows, n * (gated ? 2 : 1)), ELEMS(m, n),
                                  test_coin(t) ? ELEMS(m) : ABSENT};
    const struct operand out = ELEMS(rows, m), a = ELEMS(rows, n), y = ELEMS(rows, m);
    const struct operand x[2] = {in[0]}, factors[4] = {a, in[1], in[2]};
    test_op(t, OP_ACTIVATION_MATMUL, &p, in, &out);
    test_op(t, OP_ACTIVATION, &p, x, &a);
    test_op(t, OP_MATMUL, &product, factors, &y);
    assert_memory_equal(out.data, y.data, test_bytes(t, &y));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_of_normed_rows_is_that_of_the_norm),
        cmocka_unit_test(a_product_of_activated_rows_is_that_of_the_activation),
    };
    return cmocka_run_group_tests_name("fused", tests, NULL, NULL);
}
