#include "common/count.h"
#include "kernels/cpu/cast.h"
#include "kernels/cpu/coded_testing.h"
#include "kernels/cpu/ops/gradient_testing.h"

struct matrices {
    struct operand in[4], out[1], before;
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
    if (test_coin(t)) x.in[3] = test_coin(t) ? x.out[0] : x.before;
    if (x.in[3].data != x.out[0].data) /* y must not be read: NaN */
        memset(x.out[0].data, 0xFF, test_bytes(t, x.out));
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
    if (x->in[3].data) sum += test_get(t, &x->before, i * x->n + j);
    return sum;
}

static union op_params random_params(struct op_test *t)
{
    union op_params p = {.matmul = {.alpha = test_coin(t) ? 1 : -0.375}};
    p.matmul.transpose_a = test_coin(t);
    p.matmul.transpose_b = test_coin(t);
    return p;
}

/* Elements are in [-1, 1), so a sum of k products grows to about sqrt(k) / 3.
 * Its roundings are random, with a standard deviation of 6e-9 k in f32.
 * test_tolerance() times sqrt(k) / 4 is five deviations at k = 1030; so is k /
 * 128, which exceeds it from there on. */
static void check(struct op_test *t, const union op_params *p, const struct matrices *x, size_t i,
                  size_t j)
{
    const double k = (double)x->k;
    test_near(t, x->out, i * x->n + j, formula(t, p, x, i, j), fmax(sqrt(k) / 4, k / 128));
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

/* Sizes around the units of kernels: 14 rows, 16 or 32 columns, pairs; blocks
 * and tiles of 256. */
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

/* Cut along k; the last part is shorter and of odd length. */
OP_TEST(long_sums_of_few_elements, 4)
{
    const union op_params p = random_params(t);
    const struct matrices x =
        matrices_of(t, &p, test_between(t, 5, 12), test_between(t, 1, 20), 8192 + edge(t));
    test_op(t, OP_MATMUL, &p, x.in, x.out);
    check_all(t, &p, &x);
}

OP_TEST(any_number_of_threads_gives_the_same_bits, 4)
{
    const union op_params p = random_params(t);
    const struct matrices x = matrices_of(t, &p, edge(t), 300, t->seed % 2 ? 300 : 8200);
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

/* x, w, counts and dy of grouped_matmul: `bound` rows, of which `rows`
 * are valid. */
struct groups {
    struct operand x, w, counts, dy;
    size_t num_experts, n, k, bound, rows;
};

static struct groups groups_of(struct op_test *t, size_t most_rows)
{
    struct groups g = {.num_experts = test_between(t, 1, 5)};
    g.n = test_between(t, 1, 40), g.k = test_between(t, 1, 40);
    g.counts = INTS(g.num_experts);
    for (size_t e = 0; e < g.num_experts; e++) {
        const size_t count = test_coin(t) ? test_below(&t->seed, most_rows) : e % 2;
        test_set(t, &g.counts, e, (double)count);
        g.rows += count;
    }
    g.bound = g.rows + 2;
    g.x = ELEMS(g.bound, g.k), g.w = ELEMS(g.num_experts, g.n, g.k), g.dy = ELEMS(g.bound, g.n);
    return g;
}

static size_t expert_of(const struct op_test *t, const struct groups *g, size_t row)
{
    size_t e = 0;
    for (double end = test_get(t, &g->counts, 0); (double)row >= end;)
        end += test_get(t, &g->counts, ++e);
    return e;
}

static void check_gradient(struct op_test *t, const struct groups *g, size_t input,
                           const struct operand *gradient)
{
    struct forward f = {.op = OP_GROUPED_MATMUL,
                        .in = {g->x, g->w, g->counts},
                        .out = {ELEMS(g->bound, g->n)},
                        .dout = {test_copy(t, &g->dy)}};
    const union op_params p = {0};
    f.params = &p;
    for (size_t i = 0; i < test_count(&g->dy); i++) {
        if (i < g->rows * g->n) continue;
        test_set(t, f.out, i, 0);
        test_set(t, f.dout, i, 0);
    }
    test_forward_gradient(t, &f, input, gradient);
}

OP_TEST(gradients_of_rows_by_their_experts, 8)
{
    const struct groups g = groups_of(t, 30);
    const union op_params p = {0};
    const struct operand in[] = {g.dy, g.w, g.counts}, dx = ELEMS(g.bound, g.k);
    struct operand before = test_copy(t, &dx);
    test_op(t, OP_GROUPED_DGRAD, &p, in, &dx);
    for (size_t i = 0; i < g.rows * g.k; i++) {
        const size_t row = i / g.k, e = expert_of(t, &g, row);
        double sum = 0;
        for (size_t j = 0; j < g.n; j++)
            sum += test_get(t, &g.dy, row * g.n + j) *
                   test_get(t, &g.w, (e * g.n + j) * g.k + i % g.k);
        test_near(t, &dx, i, sum, 2);
        test_set(t, &before, i, 0);
    }
    for (size_t i = g.rows * g.k; i < g.bound * g.k; i++) {
        assert_true(test_get(t, &dx, i) == test_get(t, &before, i));
        test_set(t, &dx, i, 0);
    }
    check_gradient(t, &g, 0, &dx);
}

OP_TEST(gradients_of_experts_by_their_rows, 10)
{
    const struct groups g = groups_of(t, t->seed % 4 ? 20 : 700);
    const union op_params p = {0};
    const struct operand dw = FLOATS(g.num_experts, g.n, g.k);
    struct operand before;
    const struct operand in[] = {g.dy, g.x, g.counts, test_sum(t, &dw, &before)};
    double *want = test_alloc(t, test_count(&dw) * sizeof *want);
    for (size_t i = 0; i < test_count(&dw); i++)
        want[i] = test_get(t, &before, i);
    test_op(t, OP_GROUPED_WGRAD, &p, in, &dw);
    for (size_t row = 0; row < g.rows; row++) {
        const size_t first = expert_of(t, &g, row) * g.n * g.k;
        for (size_t i = 0; i < g.n * g.k; i++)
            want[first + i] +=
                test_get(t, &g.dy, row * g.n + i / g.k) * test_get(t, &g.x, row * g.k + i % g.k);
    }
    for (size_t i = 0; i < test_count(&dw); i++)
        test_near(t, &dw, i, want[i], 1 + sqrt((double)g.rows) / 4);
    if (!in[3].data) check_gradient(t, &g, 1, &dw);
}

/* ---- coded weights ---- */

struct coded_weight {
    struct weight_coding coding;
    struct operand coded, decoded;
};

static void round_to(enum dtype dtype, float *x)
{
    uint16_t rounded;
    if (dtype == DT_F32) return;
    (void)cast_elements(&rounded, dtype, x, DT_F32, 1);
    (void)cast_elements(x, DT_F32, &rounded, dtype, 1);
}

/* A random weight, in both forms. */
static void make_coded(struct op_test *t, struct coded_weight *w, uint64_t matrices, uint64_t rows,
                       uint64_t cols)
{
    static const enum dtype dtypes[] = {DT_BF16, DT_F32, DT_F16};
    static const uint64_t sizes[] = {32, 128, 7, 1, 5000};
    w->coding = (struct weight_coding){.code = (enum quant_code)test_below(&t->seed, QUANT_TABLE),
                                       .dtype = dtypes[test_below(&t->seed, COUNT(dtypes))],
                                       .group = sizes[test_below(&t->seed, COUNT(sizes))],
                                       .scales_are_e8m0 = test_coin(t)};
    if (cols % 2) w->coding.code = QUANT_E4M3;
    w->decoded = matrices ? ELEMS(matrices, rows, cols) : ELEMS(rows, cols);
    w->coded = w->decoded;
    w->coded.coding = &w->coding;
    rows *= matrices ? matrices : 1;
    assert_true(coding_place(&w->coding, rows, cols));
    w->coded.data = test_alloc(t, w->coding.bytes);
    coded_fill_random(&w->coding, rows, cols, &t->seed, w->coded.data);
    for (uint64_t i = 0; i < rows * cols; i++) {
        float x = coded_element(&w->coded, i / cols, i % cols);
        round_to(w->coding.dtype, &x);
        (void)cast_elements((char *)w->decoded.data + i * operand_bytes_of(OPERAND_ELEM, t->elem),
                            elem_dtype(t->elem), &x, DT_F32, 1);
    }
}

/* Both forms of input 1 give the same bits. */
static void check_coded(struct op_test *t, enum op op, const union op_params *p,
                        const struct coded_weight *w, struct operand *in, const struct operand *out)
{
    const struct operand start = test_copy(t, out);
    struct operand decoded;
    in[1] = w->decoded;
    test_op(t, op, p, in, out);
    decoded = test_copy(t, out);
    memcpy(out->data, start.data, test_bytes(t, out));
    in[1] = w->coded;
    test_op(t, op, p, in, out);
    assert_memory_equal(decoded.data, out->data, test_bytes(t, out));
}

OP_TEST(a_coded_weight_gives_the_bits_of_its_elements, 30)
{
    union op_params p = random_params(t);
    p.matmul.transpose_b = true;
    const size_t k = test_coin(t) ? test_between(t, 1, 300) : edge(t);
    struct matrices x =
        matrices_of(t, &p, test_coin(t) ? test_between(t, 1, 4) : edge(t), edge(t), k);
    struct coded_weight w;
    if (x.in[3].data) x.in[3] = x.before;
    make_coded(t, &w, 0, x.n, k);
    check_coded(t, OP_MATMUL, &p, &w, x.in, x.out);
}

OP_TEST(coded_weights_of_long_sums, 3)
{
    union op_params p = random_params(t);
    p.matmul.transpose_b = true;
    const size_t k = 8192 + edge(t);
    struct matrices x = matrices_of(t, &p, test_between(t, 3, 9), test_between(t, 1, 20), k);
    struct coded_weight w;
    if (x.in[3].data) x.in[3] = x.before;
    make_coded(t, &w, 0, x.n, k);
    check_coded(t, OP_MATMUL, &p, &w, x.in, x.out);
}

OP_TEST(experts_with_coded_weights, 12)
{
    struct groups g = groups_of(t, t->seed % 2 ? 30 : 5);
    struct coded_weight w;
    const union op_params p = {0};
    const size_t k = test_between(t, 1, 300), n = edge(t);
    struct operand in[] = {ELEMS(g.bound, k), ABSENT, g.counts}, out[] = {ELEMS(g.bound, n)};
    make_coded(t, &w, g.num_experts, n, k);
    check_coded(t, OP_GROUPED_MATMUL, &p, &w, in, out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_coded_weight_gives_the_bits_of_its_elements),
        cmocka_unit_test(coded_weights_of_long_sums),
        cmocka_unit_test(experts_with_coded_weights),
        cmocka_unit_test(products_have_every_shape),
        cmocka_unit_test(products_end_at_every_edge),
        cmocka_unit_test(products_are_larger_than_a_block),
        cmocka_unit_test(long_sums_of_few_elements),
        cmocka_unit_test(any_number_of_threads_gives_the_same_bits),
        cmocka_unit_test(nan_reaches_its_row_only),
        cmocka_unit_test(subnormal_numbers_do_no_harm),
        cmocka_unit_test(each_expert_multiplies_its_rows),
        cmocka_unit_test(gradients_of_rows_by_their_experts),
        cmocka_unit_test(gradients_of_experts_by_their_rows),
    };
    return cmocka_run_group_tests_name("matmul", tests, NULL, NULL);
}
