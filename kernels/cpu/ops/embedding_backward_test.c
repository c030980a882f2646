#include "kernels/cpu/ops/gradient_testing.h"

/* Indices of all tokens, sorted by id, then by index. */
static void sort_tokens(struct op_test *t, const struct operand *ids, const struct operand *order)
{
    const size_t n = test_count(ids);
    for (size_t i = 0; i < n; i++) {
        size_t place = 0;
        for (size_t k = 0; k < n; k++) {
            const double a = test_get(t, ids, k), b = test_get(t, ids, i);
            place += a < b || (a == b && k < i);
        }
        test_set(t, order, place, (double)i);
    }
}

/* Ids from `low` to `high`, most of them equal if `skewed`. */
static void make_ids(struct op_test *t, const struct operand in[2], size_t low, size_t high,
                     bool skewed)
{
    for (size_t i = 0; i < test_count(in); i++) {
        const bool common = skewed && test_below(&t->seed, 8);
        test_set(t, in, i, common ? (double)low + 2 : (double)test_between(t, low, high));
    }
    sort_tokens(t, in, in + 1);
}

/* in: dx, ids, order, dtable_sum */
static void check_table(struct op_test *t, const union op_params *p, const struct operand *in,
                        const struct operand *before, const struct operand *table)
{
    const size_t rows = table->shape[0], h = table->shape[1];
    double *want = test_alloc(t, rows * h * sizeof *want);
    double *size = test_alloc(t, rows * h * sizeof *size);
    for (size_t i = 0; i < rows * h; i++) {
        want[i] = test_get(t, before, i);
        size[i] = 0.1;
    }
    for (size_t i = 0; i < test_count(in + 1); i++) {
        const double row = test_get(t, in + 1, i) - (double)p->embedding.first_row;
        if (row < 0 || row >= (double)rows) continue;
        for (size_t c = 0; c < h; c++) {
            const double x = p->embedding.scale * test_get(t, in, i * h + c);
            want[(size_t)row * h + c] += x;
            size[(size_t)row * h + c] += fabs(x) / 8;
        }
    }
    for (size_t i = 0; i < rows * h; i++)
        test_near(t, table, i, want[i], size[i]);
}

OP_TEST(rows_get_the_sum_of_their_tokens, 20)
{
    const size_t n = test_between(t, 1, 400), rows = 7;
    const size_t h = test_between(t, 1, test_coin(t) ? 30 : 600);
    const union op_params p = {.embedding = {.first_row = 10, .scale = 1.75}};
    const struct operand table = FLOATS(rows, h);
    struct operand before, in[] = {ELEMS(n, h), INTS(n), INTS(n), test_sum(t, &table, &before)};
    make_ids(t, in + 1, 6, 22, test_coin(t)); /* this rank has 10 to 16 */
    test_op(t, OP_EMBEDDING_BACKWARD, &p, in, &table);
    check_table(t, &p, in, &before, &table);
}

OP_TEST(a_row_that_most_tokens_read_is_exact, 2)
{
    const size_t n = 3000, rows = 5, h = 3;
    const union op_params p = {.embedding = {.scale = 1}};
    const struct operand table = REALS(rows, h);
    struct operand before, in[] = {ELEMS(n, h), INTS(n), INTS(n), test_sum(t, &table, &before)};
    for (size_t i = 0; i < n * h; i++)
        test_set(t, in, i, 1 + fabs(test_get(t, in, i)));
    make_ids(t, in + 1, 0, rows - 1, true);
    test_op(t, OP_EMBEDDING_BACKWARD, &p, in, &table);
    check_table(t, &p, in, &before, &table);
}

OP_TEST(gradients_are_differences_of_the_embedding, 4)
{
    const size_t n = test_between(t, 1, 40), h = test_between(t, 1, 9), rows = 7;
    const union op_params p = {.embedding = {.first_row = 3, .scale = 1.75}};
    if (t->elem != ELEM_F64) return;
    struct forward f = {.op = OP_EMBEDDING,
                        .params = &p,
                        .in = {INTS(n), ELEMS(rows, h)},
                        .out = {ELEMS(n, h)},
                        .dout = {ELEMS(n, h)}};
    struct operand in[] = {f.dout[0], f.in[0], INTS(n), ABSENT}, table = ELEMS(rows, h);
    make_ids(t, in + 1, 1, 12, false);
    test_op(t, OP_EMBEDDING_BACKWARD, &p, in, &table);
    test_forward_gradient(t, &f, 1, &table);
}

/* ids = positions */
OP_TEST(gradients_are_differences_of_positions, 4)
{
    const size_t n = test_between(t, 1, 40), h = test_between(t, 1, 9), rows = 12;
    const union op_params p = {.embedding = {.scale = 1}};
    if (t->elem != ELEM_F64) return;
    struct forward f = {.op = OP_POSITIONS,
                        .params = &p,
                        .in = {ELEMS(n, h), ELEMS(rows, h), INTS(n)},
                        .out = {ELEMS(n, h)},
                        .dout = {ELEMS(n, h)}};
    struct operand in[] = {f.dout[0], f.in[2], INTS(n), ABSENT}, table = ELEMS(rows, h);
    make_ids(t, in + 1, 0, rows - 1, false);
    test_op(t, OP_EMBEDDING_BACKWARD, &p, in, &table);
    test_forward_gradient(t, &f, 1, &table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_get_the_sum_of_their_tokens),
        cmocka_unit_test(a_row_that_most_tokens_read_is_exact),
        cmocka_unit_test(gradients_are_differences_of_the_embedding),
        cmocka_unit_test(gradients_are_differences_of_positions),
    };
    return cmocka_run_group_tests_name("embedding_backward", tests, NULL, NULL);
}
