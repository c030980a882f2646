#include "validate/hints/arrange.h"

#include "common/count.h"
#include "tests/testing.h"

static struct error err;

struct checking {
    struct arena arena;
    uint64_t numel;
    size_t count;
    const char *stop_at;
};

/* Each element of A is one of B, and each of B one of A. */
static enum status check_bijection(void *context, const struct arrangement *x, struct error *e)
{
    struct checking *c = context;
    struct pair parts[MAX_AXES];
    size_t bad;
    uint64_t covered;
    c->count++;
    memcpy(parts, x->parts, sizeof parts);
    if (!pairs_tile(parts, x->num_parts, c->numel, &bad, &covered))
        fail_msg("%s (%s) leaves elements of A out", x->id, x->text);
    for (unsigned i = 0; i < x->num_parts; i++) {
        parts[i] = x->parts[i];
        pair_swap(&parts[i]);
        assert_true(pair_nest(&parts[i]));
    }
    if (!pairs_tile(parts, x->num_parts, c->numel, &bad, &covered))
        fail_msg("%s (%s) leaves elements of B out", x->id, x->text);
    if (c->stop_at && strstr(x->text, c->stop_at)) return fail(e, DIFFERENT, "seen");
    return OK;
}

static size_t check_shape(const char *name, unsigned num_dims, const uint64_t *shape,
                          struct heads heads)
{
    struct checking c = {.numel = 1};
    for (unsigned d = 0; d < num_dims; d++)
        c.numel *= shape[d];
    arena_init(&c.arena);
    assert_ok(arrangements(&c.arena, name, num_dims, shape, &heads, check_bijection, &c, &err));
    arena_release(&c.arena);
    return c.count;
}

static void all_arrangements_take_every_element_once(void **state)
{
    static const uint64_t shapes[][3] = {{96, 64}, {192, 16},   {128, 24}, {64, 64},
                                         {48, 5},  {1, 7},      {7, 1},    {13, 17},
                                         {2, 2},   {4, 64, 48}, {3, 5, 7}, {1024, 8}};
    static const struct heads heads[] = {{2, 4, 8, 8}, {4, 2, 8, 4},   {8, 1, 8, 8},
                                         {0, 0, 0, 0}, {1, 8, 16, 16}, {2, 3, 5, 4}};
    (void)state;
    for (size_t i = 0; i < COUNT(shapes); i++)
        for (size_t k = 0; k < COUNT(heads); k++)
            for (unsigned n = 1; n <= 3; n++)
                if (n < 3 || shapes[i][2]) (void)check_shape("w", n, shapes[i], heads[k]);
    const uint64_t fused[] = {96, 64};
    assert_true(check_shape("qkv", 2, fused, heads[0]) > 20);
}

static void tensors_of_no_order_have_none(void **state)
{
    const uint64_t one[] = {1, 1, 1}, empty[] = {0, 5}, many[] = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2};
    const struct heads heads = {2, 4, 8, 8};
    (void)state;
    assert_int_equal(check_shape("w", 0, one, heads), 0);
    assert_int_equal(check_shape("w", 3, one, heads), 0);
    assert_int_equal(check_shape("w", 2, empty, heads), 0);
    assert_int_equal(check_shape("w", 10, many, heads), 0);
}

static void the_name_tells_which_of_two_likely_orders_is_tried_first(void **state)
{
    static const char *const names[] = {"self_attn.q_proj.weight", "mlp.fc1.weight"};
    (void)state;
    const uint64_t shape[] = {64, 16};
    const struct heads heads = {2, 4, 8, 8};
    size_t counts[2];
    for (int i = 0; i < 2; i++) {
        struct checking c = {.numel = 64 * 16, .stop_at = "query heads"};
        arena_init(&c.arena);
        assert_fails(arrangements(&c.arena, names[i], 2, shape, &heads, check_bijection, &c, &err),
                     DIFFERENT, "seen");
        counts[i] = c.count;
        arena_release(&c.arena);
    }
    assert_true(counts[0] < counts[1]);
}

static struct tensor stored_tensor(const uint64_t *shape, struct piece *pieces, size_t num_pieces)
{
    return (struct tensor){.name = "w",
                           .dtype = DT_BF16,
                           .num_dims = 2,
                           .shape = shape,
                           .numel = shape[0] * shape[1],
                           .pieces = pieces,
                           .num_pieces = num_pieces};
}

static void an_arranged_tensor_lies_in_the_same_bytes(void **state)
{
    (void)state;
    const uint64_t shape[] = {4, 6}, turned[] = {6, 4};
    struct piece halves[] = {/* rows 0 and 1, rows 2 and 3 */
                             {.file = 1, .pair = {.b_offset = 100, .count = 12}},
                             {.file = 2, .pair = {.a_offset = 12, .b_offset = 200, .count = 12}}};
    struct tensor t = stored_tensor(shape, halves, 2), out;
    struct pair transpose = {.num_axes = 2, .axes = {{4, 6, 1}, {6, 1, 4}}};
    struct arena a;
    arena_init(&a);
    assert_true(tensor_arranged(&a, &t, &transpose, 1, 2, turned, &out));
    assert_int_equal(out.numel, 24);
    assert_int_equal(out.num_pieces, 2);
    assert_int_equal(out.pieces[0].file, 1);
    assert_int_equal(out.pieces[0].pair.a_offset, 0);
    assert_int_equal(out.pieces[0].pair.b_offset, 100);
    assert_int_equal(out.pieces[1].pair.a_offset, 2);
    assert_int_equal(out.pieces[1].pair.b_offset, 200);

    const uint64_t start[] = {1, 2}, extent[] = {2, 3};
    assert_true(tensor_box(&a, &t, start, extent, &out));
    assert_int_equal(out.numel, 6);
    assert_int_equal(out.num_pieces, 2);
    assert_int_equal(out.pieces[0].pair.b_offset, 108);
    assert_int_equal(out.pieces[1].pair.b_offset, 202);
    arena_release(&a);
}

static void a_tensor_of_too_many_pieces_is_refused(void **state)
{
    enum { N = MAX_ARRANGED_PIECES + 1 };
    (void)state;
    const uint64_t shape[] = {N, 1};
    struct piece whole = {.pair = {.count = N}};
    struct tensor t = stored_tensor(shape, &whole, 1), out;
    struct pair *parts = calloc(N, sizeof *parts);
    struct arena a;
    arena_init(&a);
    for (uint64_t i = 0; i < N; i++)
        parts[i] = pair_whole(i, N - 1 - i, 1);
    assert_false(tensor_arranged(&a, &t, parts, N, 2, shape, &out));
    assert_true(tensor_arranged(&a, &t, parts, N - 1, 2, shape, &out));
    arena_release(&a);
    free(parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_arrangements_take_every_element_once),
        cmocka_unit_test(tensors_of_no_order_have_none),
        cmocka_unit_test(the_name_tells_which_of_two_likely_orders_is_tried_first),
        cmocka_unit_test(an_arranged_tensor_lies_in_the_same_bytes),
        cmocka_unit_test(a_tensor_of_too_many_pieces_is_refused),
    };
    return cmocka_run_group_tests_name("arrange", tests, NULL, NULL);
}
