#include "kernels/cpu/digest_sums.h"
#include "kernels/cpu/ops/ops_testing.h"

static size_t elem_bits(const struct op_test *t)
{
    return 8 * operand_bytes_of(OPERAND_ELEM, t->elem);
}

/* Axes from the last to the first, each beyond the span of the one before it,
 * with or without gaps. Returns how many elements of x they reach. */
static uint64_t random_axes(struct op_test *t, union op_params *p, size_t most)
{
    uint64_t span = 1, index_span = 1;
    p->digest.num_axes = (uint32_t)test_between(t, 0, 4);
    p->digest.at = test_between(t, 0, 9);
    p->digest.first = test_coin(t) ? test_between(t, 0, 99) : UINT64_C(1) << test_between(t, 0, 57);
    for (unsigned k = p->digest.num_axes; k-- > 0;) {
        struct digest_axis *axis = &p->digest.axes[k];
        axis->extent = test_between(t, 0, k + 1 == p->digest.num_axes ? most : 5);
        axis->stride = span + (test_coin(t) ? test_between(t, 0, 3) : 0);
        axis->index_stride = index_span + (test_coin(t) ? test_between(t, 0, 300) : 0);
        span += axis->extent * axis->stride;
        index_span += axis->extent * axis->index_stride;
    }
    return p->digest.at + span;
}

/* Element by element, by the definition of axes. */
static void add_axes(const struct op_test *t, struct digest *d, const union op_params *p,
                     const struct operand *x, unsigned k, uint64_t at, uint64_t index)
{
    const struct digest_axis *axis = &p->digest.axes[k];
    if (k == p->digest.num_axes) {
        const char *element = (const char *)x->data + at * elem_bits(t) / 8;
        digest_add_by(DIGEST_PLAIN, d, element, (unsigned)elem_bits(t), 1, index);
        return;
    }
    for (uint64_t i = 0; i < axis->extent; i++)
        add_axes(t, d, p, x, k + 1, at + i * axis->stride, index + i * axis->index_stride);
}

OP_TEST(elements_are_digested_where_axes_say_they_are, 40)
{
    union op_params p = {0};
    struct digest want = {{0}};
    const uint64_t count = random_axes(t, &p, test_coin(t) ? 9 : 900);
    const struct operand in = ELEMS(count), out = INTS(4);
    add_axes(t, &want, &p, &in, 0, p.digest.at, p.digest.first);
    test_op(t, OP_DIGEST, &p, &in, &out);
    assert_memory_equal(out.data, want.d, sizeof want.d);
}

static struct digest digest_columns(struct op_test *t, const struct operand *in, uint64_t rows,
                                    uint64_t first, uint64_t columns)
{
    const uint64_t all = in->shape[0] / rows;
    const union op_params p = {.digest = {first, first, 2, {{rows, all, all}, {columns, 1, 1}}}};
    const struct operand out = INTS(4);
    struct digest d;
    test_op(t, OP_DIGEST, &p, in, &out);
    memcpy(d.d, out.data, sizeof d.d);
    return d;
}

OP_TEST(parts_add_up_to_the_whole_on_many_threads, 3)
{
    const uint64_t rows = test_between(t, 1, 600), columns = test_between(t, 2, 900);
    const uint64_t left = test_between(t, 1, columns - 1);
    const struct operand in = ELEMS(rows * columns);
    struct digest whole = {{0}}, parts = digest_columns(t, &in, rows, 0, left);
    const struct digest rest = digest_columns(t, &in, rows, left, columns - left);
    const struct digest all = digest_columns(t, &in, rows, 0, columns);
    digest_join(&parts, &rest);
    digest_add(&whole, in.data, (unsigned)elem_bits(t), rows * columns, 0);
    assert_memory_equal(&parts, &whole, sizeof whole);
    assert_memory_equal(&all, &whole, sizeof whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(elements_are_digested_where_axes_say_they_are),
        cmocka_unit_test(parts_add_up_to_the_whole_on_many_threads),
    };
    return cmocka_run_group_tests_name("digest", tests, NULL, NULL);
}
