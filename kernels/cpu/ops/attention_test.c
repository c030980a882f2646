#include "kernels/cpu/ops/attention_testing.h"

/* One query's head by definition: all scores first (none is large), then
 * the sums. */
static void check_head(const struct op_test *t, const struct call *c, size_t row, size_t head)
{
    double total = 0, o[256] = {0};
    for (size_t span = 0; span < c->in[2].shape[0] && field(t, c, span, 1) > 0; span++)
        for (size_t key = 0; key < c->num_keys; key++) {
            if (!attends(t, c, span, (int64_t)row, (int64_t)key)) continue;
            const double e = exp(score(t, c, row, key, head));
            const double kept = dropout(t, c, span, row, key, head);
            total += e;
            for (size_t d = 0; d < c->head_dim; d++)
                o[d] += kept * e * key_or_value(t, c, c->p.attention.v_at, key, head, d);
        }
    if (total != 0 && c->in[3].data) total += exp(test_get(t, c->in + 3, head));
    for (size_t d = 0; d < c->head_dim; d++)
        test_near(t, c->out, (row * c->heads + head) * c->head_dim + d,
                  total == 0 ? 0 : o[d] / total, 0.5);
    if (c->out[1].data) test_near(t, c->out + 1, row * c->heads + head, log(total), 1);
}

static void run_and_check(struct op_test *t, struct call *c)
{
    test_op(t, OP_ATTENTION, &c->p, c->in, c->out);
    for (size_t row = 0; row < c->num_queries; row++)
        for (size_t head = 0; head < c->heads; head++)
            check_head(t, c, row, head);
}

OP_TEST(a_sequence_attends_to_itself, 12)
{
    struct call c = {0};
    random_shape(t, &c);
    c.num_queries = c.num_keys = test_coin(t) ? test_between(t, 1, 20) : test_between(t, 90, 300);
    make_operands(t, &c);
    c.in[2] = INTS(1, 6);
    set_span(t, &c, 0, (const size_t[]){0, c.num_queries, 0, 0, c.num_keys, 0});
    run_and_check(t, &c);
}

/* Three sequences behind a gap: the second's keys in two pieces, the third
 * without keys. */
OP_TEST(spans_of_a_range_are_one_softmax, 20)
{
    struct call c = {0};
    random_shape(t, &c);
    const size_t a = test_between(t, 1, 9), b = test_between(t, 1, 140);
    const size_t b_keys = test_between(t, 1, 30), gap = test_between(t, 0, 2);
    c.num_queries = gap + a + b + 2;
    c.num_keys = a + b_keys + b + 4;
    make_operands(t, &c);
    c.in[2] = INTS(7, 6);
    set_span(t, &c, 0, (const size_t[]){gap, a, 7, 0, a, 7});
    set_span(t, &c, 1, (const size_t[]){gap + a, b, b_keys, a + b + 1, b_keys, 0});
    set_span(t, &c, 2, (const size_t[]){gap + a, b, b_keys, a, b, b_keys});
    set_span(t, &c, 3, (const size_t[]){gap + a + b, 1, 5, 0, 0, 0});
    set_span(t, &c, 4, (const size_t[]){0, 0, 0, 0, 0, 0});
    set_span(t, &c, 5, (const size_t[]){gap, a, 0, 0, 1, 0}); /* behind the end */
    run_and_check(t, &c);
}

OP_TEST(keys_of_the_future_leave_rows_empty, 4)
{
    struct call c = {0};
    random_shape(t, &c);
    c.p.attention.causal = true;
    c.num_queries = 30, c.num_keys = 150;
    make_operands(t, &c);
    c.in[2] = INTS(1, 6);
    set_span(t, &c, 0, (const size_t[]){0, 30, 0, 0, 150, 12});
    run_and_check(t, &c);
}

OP_TEST(one_query_attends_to_a_long_cache, 4)
{
    struct call c = {0};
    random_shape(t, &c);
    c.num_queries = 1, c.num_keys = 700;
    make_operands(t, &c);
    c.in[2] = INTS(1, 6);
    set_span(t, &c, 0, (const size_t[]){0, 1, 650, 11, 651, 0});
    run_and_check(t, &c);
}

/* Keys hidden by a causal mask may be NaN; a query that sees one is NaN. */
OP_TEST(masked_nan_stays_hidden, 4)
{
    struct call c = {0};
    random_shape(t, &c);
    c.p.attention.causal = true;
    c.p.attention.window = 0;
    c.num_queries = c.num_keys = 50;
    make_operands(t, &c);
    for (size_t i = 33 * c.in[1].shape[1]; i < 34 * c.in[1].shape[1]; i++)
        test_set(t, c.in + 1, i, (double)NAN);
    c.in[2] = INTS(1, 6);
    set_span(t, &c, 0, (const size_t[]){0, 50, 0, 0, 50, 0});
    run_and_check(t, &c);
}

/* Merged attention over two sets of keys equals attention over both. */
OP_TEST(merged_halves_are_the_whole, 6)
{
    struct call c = {0};
    random_shape(t, &c);
    c.num_queries = 20, c.num_keys = 40;
    make_operands(t, &c);
    c.in[3] = ABSENT;
    c.in[2] = INTS(1, 6);
    c.out[1] = REALS(c.num_queries, c.heads);
    set_span(t, &c, 0, (const size_t[]){0, 20, 20, 0, 15, 0});
    test_op(t, OP_ATTENTION, &c.p, c.in, c.out);
    const struct operand first[] = {test_copy(t, c.out), test_copy(t, c.out + 1)};
    set_span(t, &c, 0, (const size_t[]){0, 20, 20, 15, 25, 15});
    test_op(t, OP_ATTENTION, &c.p, c.in, c.out);
    const struct operand parts[] = {first[0], first[1], c.out[0], c.out[1]};
    const union op_params merge = {.attention_merge = {.head_dim = c.p.attention.heads.head_dim}};
    test_op(t, OP_ATTENTION_MERGE, &merge, parts, first);
    set_span(t, &c, 0, (const size_t[]){0, 20, 20, 0, 40, 0});
    test_op(t, OP_ATTENTION, &c.p, c.in, c.out);
    for (size_t i = 0; i < test_count(c.out); i++)
        test_near(t, first, i, test_get(t, c.out, i), 2);
    for (size_t i = 0; i < test_count(c.out + 1); i++)
        test_near(t, first + 1, i, test_get(t, c.out + 1, i), 1);
}

OP_TEST(nothing_merged_with_nothing_is_nothing, 1)
{
    struct operand parts[] = {ELEMS(1, 6), REALS(1, 3), ELEMS(1, 6), REALS(1, 3)};
    const union op_params p = {.attention_merge = {.head_dim = 2}};
    const double lse[3][2] = {{-INFINITY, -INFINITY}, {-INFINITY, 0.5}, {(double)NAN, -INFINITY}};
    const double o[3][2] = {{0, 0}, {0, 0.25}, {0.5, 0}};
    for (size_t i = 0; i < 6; i++)
        for (size_t part = 0; part < 2; part++) {
            test_set(t, parts + 2 * part, i, o[i / 2][part]);
            test_set(t, parts + 2 * part + 1, i / 2, lse[i / 2][part]);
        }
    test_op(t, OP_ATTENTION_MERGE, &p, parts, parts);
    const double want_o[] = {0, 0.25, (double)NAN}, want_lse[] = {-INFINITY, 0.5, (double)NAN};
    for (size_t i = 0; i < 6; i++)
        test_near(t, parts, i, want_o[i / 2], 0);
    for (size_t i = 0; i < 3; i++)
        test_near(t, parts + 1, i, want_lse[i], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sequence_attends_to_itself),
        cmocka_unit_test(spans_of_a_range_are_one_softmax),
        cmocka_unit_test(keys_of_the_future_leave_rows_empty),
        cmocka_unit_test(one_query_attends_to_a_long_cache),
        cmocka_unit_test(masked_nan_stays_hidden),
        cmocka_unit_test(merged_halves_are_the_whole),
        cmocka_unit_test(nothing_merged_with_nothing_is_nothing),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}
