#include "kernels/cpu/ops/ops_testing.h"

static struct head_shape random_heads(struct op_test *t)
{
    static const uint32_t head_dims[] = {2, 6, 64, 80, 128};
    return (struct head_shape){.groups = (uint32_t)test_between(t, 1, 3),
                               .queries = (uint32_t)test_between(t, 1, 4),
                               .head_dim = head_dims[test_below(&t->seed, 5)]};
}

static size_t columns_of(struct head_shape s)
{
    return (size_t)s.groups * (s.queries + 2) * s.head_dim;
}

/* Which head of its group an element belongs to: queries, then key,
 * then value. */
static size_t head_of(struct head_shape s, size_t at)
{
    return at / s.head_dim % (s.queries + 2);
}

OP_TEST(queries_and_keys_are_normed_by_head, 15)
{
    const struct head_shape s = random_heads(t);
    const size_t n = test_between(t, 1, 30), columns = columns_of(s);
    const union op_params p = {
        .head_norm = {.heads = s, .epsilon = 1e-6, .shift = test_coin(t) ? 1 : 0}};
    struct operand in[] = {ELEMS(n, columns), ELEMS(s.head_dim), ELEMS(s.head_dim)};
    const struct operand x = test_copy(t, in), out = test_coin(t) ? in[0] : ELEMS(n, columns);
    test_op(t, OP_HEAD_NORM, &p, in, &out);
    for (size_t i = 0; i < n * columns; i++) {
        const size_t head = head_of(s, i), begin = i / s.head_dim * s.head_dim;
        const struct operand *weight = in + (head < s.queries ? 1 : 2);
        double square = 0, want = test_get(t, &x, i);
        for (size_t d = 0; d < s.head_dim; d++)
            square += pow(test_get(t, &x, begin + d), 2) / s.head_dim;
        if (head <= s.queries)
            want *= (test_get(t, weight, i % s.head_dim) + p.head_norm.shift) / sqrt(square + 1e-6);
        test_near(t, &out, i, want, 0);
    }
}

/* Element i of a head, the other of its pair, and which of the two it is. */
struct pair {
    size_t index, other;
    bool second;
};

static struct pair pair_of(const union op_params *p, size_t i)
{
    const size_t half = p->rotary.rotary_dim / 2;
    if (p->rotary.interleaved) return (struct pair){i / 2, i ^ 1, i % 2};
    return (struct pair){i % half, i < half ? i + half : i - half, i >= half};
}

static double rotated(const struct op_test *t, const union op_params *p, const struct operand *in,
                      const struct operand *x, size_t at, size_t token)
{
    const size_t rotary_dim = p->rotary.rotary_dim, i = at % p->rotary.heads.head_dim;
    const struct pair pair = pair_of(p, i);
    const size_t row = (size_t)test_get(t, in + 2, token) * rotary_dim;
    const double c = test_get(t, in + 1, row + pair.index);
    const double s = test_get(t, in + 1, row + rotary_dim / 2 + pair.index);
    const double other = test_get(t, x, at - i + pair.other);
    return test_get(t, x, at) * c + other * (pair.second == p->rotary.inverse ? -s : s);
}

OP_TEST(queries_and_keys_are_rotated, 20)
{
    const struct head_shape s = random_heads(t);
    const size_t n = test_between(t, 1, 60), columns = columns_of(s), positions = 11;
    union op_params p = {.rotary = {.heads = s, .interleaved = test_coin(t)}};
    p.rotary.inverse = test_coin(t);
    p.rotary.rotary_dim = (uint32_t)(2 * test_between(t, 1, s.head_dim / 2));
    struct operand in[] = {ELEMS(n, columns), REALS(positions, p.rotary.rotary_dim), INTS(n)};
    const struct operand x = test_copy(t, in), out = test_coin(t) ? in[0] : ELEMS(n, columns);
    for (size_t i = 0; i < n; i++)
        test_set(t, in + 2, i, (double)test_below(&t->seed, positions));
    test_op(t, OP_ROTARY, &p, in, &out);
    for (size_t i = 0; i < n * columns; i++) {
        const bool turns = head_of(s, i) <= s.queries && i % s.head_dim < p.rotary.rotary_dim;
        test_near(t, &out, i, turns ? rotated(t, &p, in, &x, i, i / columns) : test_get(t, &x, i),
                  1);
    }
}

OP_TEST(keys_and_values_are_written_to_their_rows, 10)
{
    const struct head_shape s = random_heads(t);
    const size_t n = test_between(t, 1, 20), columns = columns_of(s), rows = n + 5;
    const size_t pair = 2 * (size_t)s.head_dim, width = s.groups * pair;
    const union op_params p = {.cache_write = {.heads = s}};
    struct operand in[] = {ELEMS(n, columns), INTS(n)}, out[] = {ELEMS(rows, width)};
    const struct operand want = test_copy(t, out);
    for (size_t i = 0; i < n; i++) {
        const bool written = test_coin(t);
        test_set(t, in + 1, i, written ? (double)(rows - 1 - i) : -1);
        for (size_t j = 0; written && j < width; j++)
            test_set(t, &want, (rows - 1 - i) * width + j,
                     test_get(t, in, i * columns + (j / pair + 1) * s.queries * s.head_dim + j));
    }
    test_op(t, OP_CACHE_WRITE, &p, in, out);
    for (size_t i = 0; i < rows * width; i++)
        assert_true(test_get(t, out, i) == test_get(t, &want, i));
}

/* Equals the two ops one after the other, bit by bit. */
OP_TEST(rotated_keys_are_written_with_their_values, 11)
{
    const struct head_shape s = random_heads(t);
    const size_t n = test_between(t, 1, 20), columns = columns_of(s), positions = 11;
    const size_t rows = n + 5, width = 2 * (size_t)s.groups * s.head_dim;
    union op_params p = {.rotary = {.heads = s, .interleaved = test_coin(t)}};
    p.rotary.rotary_dim = (uint32_t)(2 * test_between(t, 1, s.head_dim / 2));
    struct operand in[] = {ELEMS(n, columns), REALS(positions, p.rotary.rotary_dim), INTS(n),
                           INTS(n)};
    const bool in_place = test_coin(t);
    const struct operand y = ELEMS(n, columns), cache = ELEMS(rows, width);
    const struct operand out[] = {in_place ? in[0] : ELEMS(n, columns), test_copy(t, &cache)};
    const struct operand written[] = {y, in[3]};
    const union op_params write = {.cache_write = {.heads = s}};
    for (size_t i = 0; i < n; i++) {
        test_set(t, in + 2, i, (double)test_below(&t->seed, positions));
        test_set(t, in + 3, i, test_coin(t) ? (double)(rows - 1 - i) : -1);
    }
    test_op(t, OP_ROTARY, &p, in, &y);
    test_op(t, OP_CACHE_WRITE, &write, written, &cache);
    test_op(t, OP_ROTARY_CACHE, &p, in, out);
    for (size_t i = 0; i < n * columns; i++)
        assert_true(test_get(t, out, i) == test_get(t, &y, i));
    for (size_t i = 0; i < rows * width; i++)
        assert_true(test_get(t, out + 1, i) == test_get(t, &cache, i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(queries_and_keys_are_normed_by_head),
        cmocka_unit_test(queries_and_keys_are_rotated),
        cmocka_unit_test(keys_and_values_are_written_to_their_rows),
        cmocka_unit_test(rotated_keys_are_written_with_their_values),
    };
    return cmocka_run_group_tests_name("heads", tests, NULL, NULL);
}
