#include "kernels/cpu/ops/ops_testing.h"

OP_TEST(tokens_become_rows_of_the_table, 10)
{
    const size_t n = test_between(t, 1, 300), h = test_between(t, 1, 100), rows = 7;
    const union op_params p = {.embedding = {.first_row = 10, .scale = 1.75}};
    struct operand in[] = {INTS(n), ELEMS(rows, h)}, out[] = {ELEMS(n, h)};
    for (size_t i = 0; i < n; i++)
        test_set(t, in, i, (double)test_below(&t->seed, 30) - 1); /* this rank has 10 to 16 */
    test_op(t, OP_EMBEDDING, &p, in, out);
    for (size_t i = 0; i < n * h; i++) {
        const double row = test_get(t, in, i / h) - 10;
        const bool ours = row >= 0 && row < (double)rows;
        test_near(t, out, i, ours ? 1.75 * test_get(t, in + 1, (size_t)row * h + i % h) : 0, 0);
    }
}

OP_TEST(positions_are_added_in_place, 10)
{
    const size_t n = test_between(t, 1, 300), h = test_between(t, 1, 100), rows = 9;
    const union op_params p = {0};
    struct operand in[] = {ELEMS(n, h), ELEMS(rows, h), INTS(n)}, x = test_copy(t, in);
    for (size_t i = 0; i < n; i++)
        test_set(t, in + 2, i, (double)test_below(&t->seed, rows));
    test_op(t, OP_POSITIONS, &p, in, in);
    for (size_t i = 0; i < n * h; i++) {
        const size_t row = (size_t)test_get(t, in + 2, i / h);
        test_near(t, in, i, test_get(t, &x, i) + test_get(t, in + 1, row * h + i % h), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokens_become_rows_of_the_table),
        cmocka_unit_test(positions_are_added_in_place),
    };
    return cmocka_run_group_tests_name("embedding", tests, NULL, NULL);
}
