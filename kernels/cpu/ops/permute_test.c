#include "kernels/cpu/ops/gradient_testing.h"

OP_TEST(slots_are_sorted_by_expert, 10)
{
    const size_t n = test_between(t, 1, 50), k = test_between(t, 1, 4);
    const size_t num_experts = test_between(t, 1, 9);
    const union op_params p = {0};
    const struct operand in = INTS(n, k), out[] = {INTS(n, k), INTS(num_experts)};
    for (size_t i = 0; i < n * k; i++)
        test_set(t, &in, i, (double)test_below(&t->seed, num_experts));
    test_op(t, OP_SORT_BY_EXPERT, &p, &in, out);
    for (size_t i = 0; i < n * k; i++) {
        const double expert = test_get(t, &in, i);
        double before = 0, count = 0;
        for (size_t j = 0; j < n * k; j++) {
            const double other = test_get(t, &in, j);
            before += other < expert || (other == expert && j < i);
            count += other == expert;
        }
        assert_true(test_get(t, out, i) == before);
        assert_true(test_get(t, out + 1, (size_t)expert) == count);
    }
}

/* Row by row in order of arrival: after the rows of lower experts and of
 * earlier senders. Each block of senders begins at its planned row, whatever
 * the block before it sent. */
OP_TEST(received_rows_are_sorted_by_expert, 10)
{
    const size_t blocks = test_between(t, 1, 3), each = test_between(t, 1, 4);
    const size_t senders = blocks * each, num_experts = test_between(t, 1, 6);
    const size_t of_block = each * num_experts;
    const size_t room = of_block * 4 + test_below(&t->seed, 3);
    const union op_params p = {.sort_received = {each, room}};
    const struct operand in = INTS(senders * num_experts);
    const struct operand out[] = {INTS(blocks * room, 1), INTS(num_experts)};
    for (size_t i = 0; i < senders * num_experts; i++)
        test_set(t, &in, i, (double)test_below(&t->seed, 5));
    test_op(t, OP_SORT_RECEIVED, &p, &in, out);
    for (size_t i = 0, row = 0; i < senders * num_experts; i++) {
        double begin = 0;
        if (i % of_block == 0) row = i / of_block * room;
        for (size_t j = 0; j < senders * num_experts; j++)
            if (j % num_experts < i % num_experts || (j % num_experts == i % num_experts && j < i))
                begin += test_get(t, &in, j);
        for (size_t r = 0; r < (size_t)test_get(t, &in, i); r++, row++)
            assert_true(test_get(t, out, row) == begin + (double)r);
        if ((i + 1) % of_block) continue;
        for (; row < (i / of_block + 1) * room; row++)
            assert_true(test_get(t, out, row) == -1);
    }
    for (size_t e = 0; e < num_experts; e++) {
        double total = 0;
        for (size_t s = 0; s < senders; s++)
            total += test_get(t, &in, s * num_experts + e);
        assert_true(test_get(t, out + 1, e) == total);
    }
}

/* A random order of [0, n) */
static void shuffle(struct op_test *t, const struct operand *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const size_t j = test_below(&t->seed, i + 1);
        test_set(t, rows, i, test_get(t, rows, j));
        test_set(t, rows, j, (double)i);
    }
}

/* Some slots are dropped. */
static void forget_some(struct op_test *t, const struct operand *rows, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (test_below(&t->seed, 4) == 0) test_set(t, rows, i, -1);
}

OP_TEST(rows_are_permuted, 15)
{
    const size_t n = test_between(t, 1, 40), k = test_between(t, 1, 3), h = test_between(t, 1, 90);
    const union op_params p = {0};
    const struct operand in[] = {ELEMS(n, h), INTS(n, k)}, out = ELEMS(n * k, h);
    const struct operand want = test_copy(t, &out);
    shuffle(t, in + 1, n * k);
    forget_some(t, in + 1, n * k);
    for (size_t i = 0; i < n * k * h; i++) {
        const double row = test_get(t, in + 1, i / h);
        if (row >= 0)
            test_set(t, &want, (size_t)row * h + i % h, test_get(t, in, i / h / k * h + i % h));
    }
    test_op(t, OP_PERMUTE, &p, in, &out);
    for (size_t i = 0; i < n * k * h; i++)
        assert_true(test_get(t, &out, i) == test_get(t, &want, i));
}

OP_TEST(rows_are_summed_where_they_came_from, 15)
{
    const size_t n = test_between(t, 1, 40), k = test_between(t, 1, 3), h = test_between(t, 1, 600);
    const union op_params p = {0};
    const struct operand in[] = {ELEMS(n * k, h), INTS(n, k), test_coin(t) ? REALS(n, k) : ABSENT};
    const struct operand out = ELEMS(n, h);
    shuffle(t, in + 1, n * k);
    forget_some(t, in + 1, n * k);
    test_op(t, OP_UNPERMUTE, &p, in, &out);
    for (size_t i = 0; i < n * h; i++) {
        double sum = 0;
        for (size_t slot = i / h * k; slot < (i / h + 1) * k; slot++) {
            const double row = test_get(t, in + 1, slot);
            if (row >= 0)
                sum += (in[2].data ? test_get(t, in + 2, slot) : 1) *
                       test_get(t, in, (size_t)row * h + i % h);
        }
        test_near(t, &out, i, sum, 1);
    }
}

/* Rows without a slot keep their contents. */
static void check_unpermute_backward(struct op_test *t, const struct operand *in,
                                     const struct operand *out, const struct operand *before)
{
    const size_t h = in[0].shape[1], k = in[1].shape[1], slots = in[1].shape[0] * k;
    for (size_t i = 0; i < slots; i++) {
        const double row = test_get(t, in + 1, i);
        double sum = 0, size = 0;
        for (size_t j = 0; j < h && row >= 0; j++) {
            const double dx = test_get(t, in, i / k * h + j);
            const double weight = in[2].data ? test_get(t, in + 2, i) : 1;
            test_near(t, out, (size_t)row * h + j, weight * dx, 0);
            test_set(t, before, (size_t)row * h + j, test_get(t, out, (size_t)row * h + j));
            if (out[1].data) sum += dx * test_get(t, in + 3, (size_t)row * h + j);
            if (out[1].data) size += fabs(dx * test_get(t, in + 3, (size_t)row * h + j));
        }
        if (out[1].data) test_near(t, out + 1, i, sum, size);
    }
    for (size_t i = 0; i < test_count(out); i++)
        assert_true(test_get(t, out, i) == test_get(t, before, i));
}

OP_TEST(gradients_go_where_rows_came_from, 15)
{
    const size_t n = test_between(t, 1, 40), k = test_between(t, 1, 3), h = test_between(t, 1, 600);
    const union op_params p = {0};
    struct operand in[] = {ELEMS(n, h), INTS(n, k), test_coin(t) ? REALS(n, k) : ABSENT, ABSENT};
    struct operand out[] = {ELEMS(n * k, h), ABSENT};
    if (test_coin(t)) in[3] = ELEMS(n * k, h);
    if (in[3].data && test_coin(t)) out[1] = REALS(n, k);
    const struct operand before = test_copy(t, out);
    shuffle(t, in + 1, n * k);
    forget_some(t, in + 1, n * k);
    test_op(t, OP_UNPERMUTE_BACKWARD, &p, in, out);
    check_unpermute_backward(t, in, out, &before);
}

OP_TEST(unpermute_has_the_gradients_of_differences, 4)
{
    const size_t n = test_between(t, 1, 20), k = test_between(t, 1, 3), h = test_between(t, 1, 90);
    const union op_params p = {0};
    struct forward f = {.op = OP_UNPERMUTE, .params = &p};
    f.in[0] = ELEMS(n * k, h), f.in[1] = INTS(n, k), f.in[2] = REALS(n, k);
    f.out[0] = ELEMS(n, h), f.dout[0] = ELEMS(n, h);
    shuffle(t, f.in + 1, n * k);
    forget_some(t, f.in + 1, n * k);
    const struct operand in[] = {f.dout[0], f.in[1], f.in[2], f.in[0]};
    const struct operand out[] = {ELEMS(n * k, h), REALS(n, k)};
    memset(out[0].data, 0, test_bytes(t, out));
    test_op(t, OP_UNPERMUTE_BACKWARD, &p, in, out);
    test_forward_gradient(t, &f, 0, out);
    test_forward_gradient(t, &f, 2, out + 1);
}

OP_TEST(rows_are_gathered, 6)
{
    const size_t n = test_between(t, 1, 40), rows = 20, h = test_between(t, 1, 90);
    const union op_params p = {0};
    const struct operand in[] = {ELEMS(rows, h), INTS(n)}, out = ELEMS(n, h);
    for (size_t i = 0; i < n; i++)
        test_set(t, in + 1, i, (double)test_below(&t->seed, rows + 1) - 1);
    test_op(t, OP_GATHER_ROWS, &p, in, &out);
    for (size_t i = 0; i < n * h; i++) {
        const double row = test_get(t, in + 1, i / h);
        assert_true(test_get(t, &out, i) ==
                    (row < 0 ? 0 : test_get(t, in, (size_t)row * h + i % h)));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_are_sorted_by_expert),
        cmocka_unit_test(received_rows_are_sorted_by_expert),
        cmocka_unit_test(rows_are_permuted),
        cmocka_unit_test(rows_are_summed_where_they_came_from),
        cmocka_unit_test(gradients_go_where_rows_came_from),
        cmocka_unit_test(unpermute_has_the_gradients_of_differences),
        cmocka_unit_test(rows_are_gathered),
    };
    return cmocka_run_group_tests_name("permute", tests, NULL, NULL);
}
