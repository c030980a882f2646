#include "kernels/cpu/ops/attention_testing.h"
#include "kernels/cpu/ops/gradient_testing.h"

/* Gradients by the formula, with the sums of magnitudes in each. */
struct gradients {
    double *dq, *dkv, *q_sizes, *kv_sizes;
};

/* Operands of backward, in the order of the list. */
struct backward {
    struct operand in[7], out[2];
};

static double *zeros(struct op_test *t, size_t n)
{
    double *x = test_alloc(t, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = 0;
    return x;
}

static size_t query_at(const struct call *c, size_t row, size_t head)
{
    const uint32_t queries = c->p.attention.heads.queries;
    return row * c->in[0].shape[1] + head / queries * c->p.attention.q_stride +
           head % queries * c->head_dim;
}

static size_t key_at(const struct call *c, uint32_t at, size_t row, size_t head)
{
    return row * c->in[1].shape[1] +
           head / c->p.attention.heads.queries * c->p.attention.kv_stride + at;
}

static void add(double *sum, double *size, double x, double magnitude)
{
    *sum += x;
    *size += magnitude;
}

/* Adds the contribution of one pair of query and key to all three gradients. */
static void add_pair(const struct op_test *t, const struct call *c, const struct backward *b,
                     const struct gradients *g, size_t span, size_t row, size_t key, size_t head)
{
    const size_t o_at = (row * c->heads + head) * c->head_dim, q_at = query_at(c, row, head);
    const size_t k_at = key_at(c, c->p.attention.k_at, key, head);
    const size_t v_at = key_at(c, c->p.attention.v_at, key, head);
    const double kept = dropout(t, c, span, row, key, head), s = score(t, c, row, key, head);
    const double w = exp(s - test_get(t, b->in + 5, row * c->heads + head));
    double dw = 0, delta = 0, size = 0;
    for (size_t d = 0; d < c->head_dim; d++) {
        const double d_o = test_get(t, b->in + 6, o_at + d);
        const double v = kept * test_get(t, c->in + 1, v_at + d);
        dw += d_o * v;
        delta += d_o * test_get(t, b->in + 4, o_at + d);
        size += fabs(d_o * v) + fabs(d_o * test_get(t, b->in + 4, o_at + d));
        add(g->dkv + v_at + d, g->kv_sizes + v_at + d, w * kept * d_o, w * kept * fabs(d_o));
    }
    const double softcap = c->p.attention.softcap;
    const double slope = softcap != 0 ? 1 - s / softcap * (s / softcap) : 1;
    const double factor = w * slope * c->p.attention.scale;
    for (size_t d = 0; d < c->head_dim; d++) {
        const double q = test_get(t, c->in, q_at + d), k = test_get(t, c->in + 1, k_at + d);
        add(g->dq + q_at + d, g->q_sizes + q_at + d, factor * (dw - delta) * k,
            w * size * c->p.attention.scale * fabs(k));
        add(g->dkv + k_at + d, g->kv_sizes + k_at + d, factor * (dw - delta) * q,
            w * size * c->p.attention.scale * fabs(q));
    }
}

/* If q and kv are one array, so are their gradients. */
static void check(struct op_test *t, const struct call *c, const struct backward *b)
{
    const size_t num_q = test_count(c->in), num_kv = test_count(c->in + 1);
    struct gradients g = {.dq = zeros(t, num_q), .q_sizes = zeros(t, num_q)};
    g.dkv = b->out[1].data ? zeros(t, num_kv) : g.dq;
    g.kv_sizes = b->out[1].data ? zeros(t, num_kv) : g.q_sizes;
    for (size_t span = 0; span < c->in[2].shape[0] && field(t, c, span, 1) > 0; span++)
        for (size_t row = 0; row < c->num_queries; row++)
            for (size_t key = 0; key < c->num_keys; key++)
                for (size_t head = 0; head < c->heads; head++)
                    if (attends(t, c, span, (int64_t)row, (int64_t)key))
                        add_pair(t, c, b, &g, span, row, key, head);
    for (size_t i = 0; i < num_q; i++)
        test_near(t, b->out, i, g.dq[i], g.q_sizes[i]);
    for (size_t i = 0; b->out[1].data && i < num_kv; i++)
        test_near(t, b->out + 1, i, g.dkv[i], g.kv_sizes[i]);
}

/* Makes operands of backward from those of the forward. */
static struct backward run(struct op_test *t, struct call *c)
{
    c->out[1] = REALS(c->num_queries, c->heads);
    test_op(t, OP_ATTENTION, &c->p, c->in, c->out);
    struct backward b = {.in = {c->in[0], c->in[1], c->in[2], c->in[4], test_copy(t, c->out),
                                test_copy(t, c->out + 1)}};
    b.in[6] = ELEMS(c->num_queries, c->heads * c->head_dim);
    b.out[0] = test_copy(t, c->in);
    if (c->in[0].data != c->in[1].data) b.out[1] = test_copy(t, c->in + 1);
    test_op(t, OP_ATTENTION_BACKWARD, &c->p, b.in, b.out);
    return b;
}

static void run_and_check(struct op_test *t, struct call *c)
{
    const struct backward b = run(t, c);
    check(t, c, &b);
    if (c->num_queries * c->num_keys > 3000) return; /* finite differences would take too long */
    test_set_threads(1);
    struct forward f = {.op = OP_ATTENTION, .params = &c->p};
    memcpy(f.in, c->in, sizeof c->in);
    memcpy(f.out, c->out, sizeof c->out);
    f.dout[0] = b.in[6];
    test_forward_gradient(t, &f, 0, b.out);
    if (b.out[1].data) test_forward_gradient(t, &f, 1, b.out + 1);
}

/* Sequences in one array of queries, keys and values, or in separate arrays. */
OP_TEST(sequences_attend_to_themselves, 8)
{
    struct call c = {0};
    random_shape(t, &c);
    const size_t a = test_between(t, 1, 20), n = test_coin(t) ? 1 : test_between(t, 90, 150);
    c.num_queries = c.num_keys = a + n;
    make_operands(t, &c);
    if (c.in[0].shape[1] == c.in[1].shape[1]) c.in[1] = c.in[0];
    c.in[2] = INTS(2, 6);
    set_span(t, &c, 0, (const size_t[]){0, a, 0, 0, a, 0});
    set_span(t, &c, 1, (const size_t[]){a, n, 3, a, n, 3});
    run_and_check(t, &c);
}

/* Sequences behind a gap: the second's keys in two pieces, the third without
 * keys, the fourth with masked keys only. Nobody attends to the last keys. */
OP_TEST(queries_have_several_ranges_of_keys, 8)
{
    struct call c = {0};
    random_shape(t, &c);
    c.p.attention.causal = true;
    const size_t a = test_between(t, 1, 9), b = test_between(t, 1, 60);
    const size_t b_keys = test_between(t, 1, 150), gap = test_between(t, 0, 2);
    c.num_queries = gap + a + b + 5;
    c.num_keys = a + b_keys + b + 4;
    make_operands(t, &c);
    c.in[2] = INTS(7, 6);
    set_span(t, &c, 0, (const size_t[]){gap, a, 7, 0, a, 7});
    set_span(t, &c, 1, (const size_t[]){gap + a, b, b_keys, a, b_keys, 0});
    set_span(t, &c, 2, (const size_t[]){gap + a, b, b_keys, a + b_keys + 2, b, b_keys});
    set_span(t, &c, 3, (const size_t[]){gap + a + b, 1, 0, 0, 0, 0});
    set_span(t, &c, 4, (const size_t[]){gap + a + b + 1, 2, 0, a + b_keys, 2, 9});
    set_span(t, &c, 5, (const size_t[]){0, 0, 0, 0, 0, 0});
    set_span(t, &c, 6, (const size_t[]){gap, a, 0, 0, 1, 0}); /* behind the end */
    run_and_check(t, &c);
}

/* Two ranges of queries share keys; the second attends to some of
 * them twice. */
OP_TEST(keys_belong_to_several_spans, 6)
{
    struct call c = {0};
    random_shape(t, &c);
    const size_t n = test_between(t, 1, 40), keys = test_between(t, 3, 300);
    c.num_queries = 2 * n, c.num_keys = keys;
    make_operands(t, &c);
    c.in[2] = INTS(3, 6);
    set_span(t, &c, 0, (const size_t[]){0, n, keys, 0, keys, 0});
    set_span(t, &c, 1, (const size_t[]){n, n, keys, 1, keys - 1, 1});
    set_span(t, &c, 2, (const size_t[]){n, n, keys, 0, keys - 2, 0});
    run_and_check(t, &c);
}

/* A long sequence in one group: threads add to the same tiles. */
OP_TEST(threads_take_turns, 3)
{
    struct call c = {0};
    random_shape(t, &c);
    c.p.attention.heads.groups = 1;
    c.heads = c.p.attention.heads.queries;
    c.num_queries = c.num_keys = 700;
    make_operands(t, &c);
    c.in[2] = INTS(1, 6);
    set_span(t, &c, 0, (const size_t[]){0, 700, 0, 0, 700, 0});
    (void)run(t, &c);
}

/* If each query attends to its own key only, NaN in one key stays in
 * its row. */
OP_TEST(masked_nan_stays_hidden, 3)
{
    struct call c = {0};
    random_shape(t, &c);
    c.p.attention.causal = true;
    c.p.attention.window = 1;
    c.num_queries = c.num_keys = 50;
    make_operands(t, &c);
    for (size_t i = 33 * c.in[1].shape[1]; i < 34 * c.in[1].shape[1]; i++)
        test_set(t, c.in + 1, i, (double)NAN);
    c.in[2] = INTS(1, 6);
    c.out[1] = REALS(c.num_queries, c.heads);
    set_span(t, &c, 0, (const size_t[]){0, 50, 0, 0, 50, 0});
    test_op(t, OP_ATTENTION, &c.p, c.in, c.out);
    struct operand in[] = {c.in[0], c.in[1], c.in[2], c.in[4], c.out[0], c.out[1], c.out[0]};
    const struct operand out[] = {test_copy(t, c.in), test_copy(t, c.in + 1)};
    in[6] = ELEMS(c.num_queries, c.heads * c.head_dim);
    test_op(t, OP_ATTENTION_BACKWARD, &c.p, in, out);
    for (size_t i = 0; i < 2; i++)
        for (size_t j = 0; j < test_count(out + i); j++)
            assert_true(!isnan(test_get(t, out + i, j)) || j / out[i].shape[1] == 33);
    assert_true(isnan(test_get(t, out, query_at(&c, 33, 0))) != 0);
    assert_true(isnan(test_get(t, out + 1, key_at(&c, c.p.attention.k_at, 33, 0))) != 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_attend_to_themselves),
        cmocka_unit_test(queries_have_several_ranges_of_keys),
        cmocka_unit_test(keys_belong_to_several_spans),
        cmocka_unit_test(threads_take_turns),
        cmocka_unit_test(masked_nan_stays_hidden),
    };
    return cmocka_run_group_tests_name("attention_backward", tests, NULL, NULL);
}
