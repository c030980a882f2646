#include "kernels/cpu/ops/ops_testing.h"

/* Operands and sizes of one call; query and key are one fused array in some of them. */
struct call {
    struct operand in[4], out[2];
    union op_params p;
    size_t num_queries, num_keys, heads, head_dim;
};

static void random_shape(struct op_test *t, struct call *c)
{
    static const uint32_t head_dims[] = {1, 5, 16, 64, 80, 128, 256};
    struct head_shape *s = &c->p.attention.heads;
    s->groups = (uint32_t)test_between(t, 1, 3);
    s->queries = (uint32_t)test_between(t, 1, 5);
    s->head_dim = head_dims[test_below(&t->seed, 7)];
    c->heads = (size_t)s->groups * s->queries;
    c->head_dim = s->head_dim;
    c->p.attention.scale = 1 / sqrt((double)s->head_dim);
    c->p.attention.causal = test_coin(t);
    c->p.attention.window = test_coin(t) ? 0 : (uint32_t)test_between(t, 1, 60);
    c->p.attention.softcap = test_coin(t) ? 0 : 1.5;
}

/* Queries within rows of query, key and value; keys from the same rows or from a cache. */
static void make_operands(struct op_test *t, struct call *c)
{
    const struct head_shape s = c->p.attention.heads;
    const uint32_t fused = (s.queries + 2) * s.head_dim;
    c->in[0] = ELEMS(c->num_queries, s.groups * fused);
    c->p.attention.q_stride = fused;
    c->in[1] = ELEMS(c->num_keys, s.groups * 2 * s.head_dim);
    c->p.attention.kv_stride = 2 * s.head_dim;
    c->p.attention.v_at = s.head_dim;
    if (test_coin(t)) {
        c->in[1] = ELEMS(c->num_keys, s.groups * fused);
        c->p.attention.kv_stride = fused;
        c->p.attention.k_at = s.queries * s.head_dim;
        c->p.attention.v_at = c->p.attention.k_at + s.head_dim;
    }
    if (test_coin(t)) c->in[3] = ELEMS(c->heads);
    c->out[0] = ELEMS(c->num_queries, c->heads * s.head_dim);
    if (test_coin(t)) c->out[1] = REALS(c->num_queries, c->heads);
}

static double query(const struct op_test *t, const struct call *c, size_t row, size_t head,
                    size_t d)
{
    const uint32_t queries = c->p.attention.heads.queries;
    return test_get(t, c->in,
                    row * c->in[0].shape[1] + head / queries * c->p.attention.q_stride +
                        head % queries * c->head_dim + d);
}

static double key_or_value(const struct op_test *t, const struct call *c, uint32_t at, size_t row,
                           size_t head, size_t d)
{
    const size_t group = head / c->p.attention.heads.queries;
    return test_get(t, c->in + 1,
                    row * c->in[1].shape[1] + group * c->p.attention.kv_stride + at + d);
}

/* The span's field, of (q_begin, q_count, q_position, k_begin, k_count, k_position). */
static int64_t field(const struct op_test *t, const struct call *c, size_t span, size_t i)
{
    return (int64_t)test_get(t, c->in + 2, span * 6 + i);
}

static bool attends(const struct op_test *t, const struct call *c, size_t span, int64_t row,
                    int64_t key)
{
    const int64_t i = row - field(t, c, span, 0), j = key - field(t, c, span, 3);
    const int64_t d = field(t, c, span, 2) + i - field(t, c, span, 5) - j;
    return i >= 0 && i < field(t, c, span, 1) && j >= 0 && j < field(t, c, span, 4) &&
           (d >= 0 || !c->p.attention.causal) &&
           (c->p.attention.window == 0 || d < (int64_t)c->p.attention.window);
}

static double score(const struct op_test *t, const struct call *c, size_t row, size_t key,
                    size_t head)
{
    const double softcap = c->p.attention.softcap;
    double sum = 0;
    for (size_t d = 0; d < c->head_dim; d++)
        sum += query(t, c, row, head, d) * key_or_value(t, c, c->p.attention.k_at, key, head, d);
    sum *= c->p.attention.scale;
    return softcap != 0 ? softcap * tanh(sum / softcap) : sum;
}

/* One query's head after the definition: all scores first (none of them is large), then the sums.
 */
static void check_head(const struct op_test *t, const struct call *c, size_t row, size_t head)
{
    double total = 0, o[256] = {0};
    for (size_t span = 0; span < c->in[2].shape[0] && field(t, c, span, 1) > 0; span++)
        for (size_t key = 0; key < c->num_keys; key++) {
            if (!attends(t, c, span, (int64_t)row, (int64_t)key)) continue;
            const double e = exp(score(t, c, row, key, head));
            total += e;
            for (size_t d = 0; d < c->head_dim; d++)
                o[d] += e * key_or_value(t, c, c->p.attention.v_at, key, head, d);
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

static void set_span(struct op_test *t, struct call *c, size_t span, const size_t fields[6])
{
    for (size_t i = 0; i < 6; i++)
        test_set(t, c->in + 2, span * 6 + i, (double)fields[i]);
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

/* Three sequences behind a gap, the second one's keys in two pieces, the third without any. */
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

/* What a causal mask hides may be NaN; a query that sees it is NaN. */
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

/* Attention over two sets of keys, merged, is attention over both. */
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
