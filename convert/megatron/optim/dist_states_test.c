#include "convert/megatron/optim/dist_states.h"

#include <inttypes.h>
#include <string.h>

#include "common/count.h"
#include "tests/testing.h"

static struct error err;
static struct checkpoint c;

static int begin(void **state)
{
    (void)state;
    checkpoint_init(&c, "test");
    return 0;
}

static int end(void **state)
{
    (void)state;
    checkpoint_release(&c);
    return 0;
}

static void add(const char *key, enum dtype dtype, unsigned num_dims, const uint64_t *shape)
{
    struct stored_tensor *t;
    assert_ok(
        stored_add_tensor(&c.catalog.stored, key, strlen(key), dtype, num_dims, shape, &t, &err));
}

static enum status add_states(void)
{
    return dist_states_add(&c, NULL, &err);
}

/* ---- keys ---- */

static void keys_are_told_apart(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        bool optimizer, flat;
    } cases[] = {
        {"decoder.layers.mlp.linear_fc1.weight", false, false},
        {"optimizer", false, false},
        {"optimizer.state.exp_avg.w", true, false},
        {"chained_0.optimizer.state.exp_avg.w", true, false},
        {"chained_x.optimizer.state.exp_avg.w", false, false},
        {"optimizer.distributed.dp_group_idx_0.x", true, true},
        {"chained_1.optimizer.distributed.dp_group_idx_0.x", true, true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(dist_key_is_optimizer(cases[i].key), cases[i].optimizer);
        assert_int_equal(dist_key_is_flat(cases[i].key), cases[i].flat);
    }
    assert_int_equal(dist_key_chain("chained_1.optimizer.distributed.dp_group_idx_0.x"), 1);
    assert_int_equal(dist_key_chain("optimizer.distributed.dp_group_idx_0.x"), 0);
    assert_string_equal(dist_state_key(&c.arena, "param", "w", false, -1),
                        "optimizer.state.param.w");
    assert_string_equal(dist_state_key(&c.arena, "param", "w", true, -1),
                        "optimizer.state.fp32_param.w");
    assert_string_equal(dist_state_key(&c.arena, "exp_avg", "a.w", true, -1),
                        "optimizer.state.exp_avg.a.w");
    assert_string_equal(dist_state_key(&c.arena, "exp_avg", "a.w", true, 0),
                        "chained_0.optimizer.state.exp_avg.a.w");
    assert_string_equal(dist_state_key(&c.arena, "param", "a.w", true, 1),
                        "chained_1.optimizer.state.fp32_param.a.w");
}

static void whole_states_have_their_parameters_key(void **state)
{
    (void)state;
    const uint64_t shape[] = {2, 3};
    add("a.w", DT_BF16, 2, shape);
    add("optimizer.state.exp_avg.a.w", DT_F32, 2, shape);
    add("chained_0.optimizer.state.fp32_param.a.w", DT_F32, 2, shape);
    add("chained_1.optimizer.state.param.b.w", DT_F32, 2, shape); /* of no stored parameter */
    assert_ok(add_states());
    assert_null(c.training.optimizer.unread);
    assert_int_equal(c.catalog.num_native, 3);
    assert_int_equal(catalog_find_native(&c.catalog, "a.w", "exp_avg")->parts[0].stored, 1);
    assert_int_equal(catalog_find_native(&c.catalog, "a.w", "param")->parts[0].stored, 2);
    assert_int_equal(catalog_find_native(&c.catalog, "b.w", "param")->parts[0].stored, 3);
}

static void other_keys_are_unread(void **state)
{
    (void)state;
    static const char *const keys[] = {"optimizer.step", "optimizer.state.exp_avg",
                                       "optimizer.state..w", "chained_0.optimizer.x.exp_avg.w"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        add(keys[i], DT_F32, 0, NULL);
        assert_ok(add_states());
        assert_string_equal(c.training.optimizer.unread,
                            arena_printf(&c.arena, "%s is not a parameter's state", keys[i]));
        assert_int_equal(c.catalog.num_native, 0);
        end(NULL);
        begin(NULL);
    }
    add("optimizer.distributed.dp_group_idx_0.x", DT_F32, 0, NULL); /* of flat_states */
    assert_ok(add_states());
    assert_null(c.training.optimizer.unread);
}

/* ---- flattened states ---- */

enum { ROWS = 4, COLUMNS = 6, DEPTH = 2, NUMEL = ROWS * COLUMNS * DEPTH };
static const uint64_t whole[] = {ROWS, COLUMNS, DEPTH};

static void find_places(const struct pair *p, unsigned axis, uint64_t a, uint64_t b, uint64_t *out)
{
    if (axis == p->num_axes) {
        assert_int_equal(out[a], UINT64_MAX);
        out[a] = b;
        return;
    }
    for (uint64_t i = 0; i < p->axes[axis].extent; i++)
        find_places(p, axis + 1, a + i * p->axes[axis].a_stride, b + i * p->axes[axis].b_stride,
                    out);
}

/* Where an element lies in the flattened tensor: fragments one after the other,
 * each row-major. */
static uint64_t place_of(const uint64_t *parts, const uint64_t *at)
{
    uint64_t fragment = 0, within = 0, numel = 1;
    for (unsigned d = 0; d < 3; d++) {
        const uint64_t size = whole[d] / parts[d];
        fragment = fragment * parts[d] + at[d] / size;
        within = within * size + at[d] % size;
        numel *= size;
    }
    return fragment * numel + within;
}

static void check_fragments(const uint64_t *parts)
{
    const uint64_t shape[] = {parts[0], parts[1], parts[2], NUMEL / parts[0] / parts[1] / parts[2]};
    uint64_t places[NUMEL];
    memset(places, 0xff, sizeof places);
    add("w", DT_BF16, 3, whole);
    add("optimizer.state.exp_avg.w", DT_F32, 4, shape);
    assert_ok(add_states());
    const struct native_tensor *native = catalog_find_native(&c.catalog, "w", "exp_avg");
    assert_int_equal(native->num_dims, 3);
    assert_int_equal(native->dtype, DT_F32);
    for (size_t i = 0; i < native->num_parts; i++) {
        const struct pair pair = pair_unpack(&native->parts[i].pair);
        find_places(&pair, 0, pair.a_offset, pair.b_offset, places);
    }
    for (uint64_t i = 0; i < NUMEL; i++) {
        const uint64_t at[] = {i / DEPTH / COLUMNS, i / DEPTH % COLUMNS, i % DEPTH};
        assert_int_equal(places[i], place_of(parts, at));
    }
}

static void fragments_of_three_dimensions_are_in_their_places(void **state)
{
    (void)state;
    for (uint64_t x = 1; x <= ROWS; x++)
        for (uint64_t y = 1; y <= COLUMNS; y++)
            for (uint64_t z = 1; z <= DEPTH; z++) {
                if (ROWS % x || COLUMNS % y) continue;
                check_fragments((const uint64_t[]){x, y, z});
                end(NULL);
                begin(NULL);
            }
}

static void a_parameter_without_elements_has_no_fragments(void **state)
{
    (void)state;
    const uint64_t none[] = {0, 3}, flat[] = {1, 1, 0};
    add("w", DT_BF16, 2, none);
    add("optimizer.state.exp_avg.w", DT_F32, 3, flat);
    assert_ok(add_states());
    assert_int_equal(catalog_find_native(&c.catalog, "w", "exp_avg")->num_parts, 0);
}

static void flattened_states_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint64_t shape[4];
        const char *why;
    } cases[] = {
        {{3, 1, 1, 16},
         "has shape [3, 1, 1, 16], which does not divide its parameter of shape [4, 6, 2]"},
        {{1, 1, 4, 12}, "does not divide"},
        {{2, 3, 1, 7}, "does not divide"},
        {{2, 3, 1, 9}, "does not divide"},
        {{0, 1, 1, 0}, "does not divide"},
        {{8, 1, 1, 6}, "does not divide"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        add("w", DT_BF16, 3, whole);
        add("optimizer.state.exp_avg.w", DT_F32, 4, cases[i].shape);
        assert_fails(add_states(), ERR_CORRUPT, "optimizer.state.exp_avg.w has shape [");
        assert_non_null(strstr(err.text, cases[i].why));
        end(NULL);
        begin(NULL);
    }
}

/* A .metadata of a few KiB can claim any shape. */
static void a_fragment_for_each_element_is_refused(void **state)
{
    (void)state;
    const uint64_t large[] = {1 << 20, 1 << 20}, flat[] = {1 << 20, 1 << 20, 1};
    add("w", DT_BF16, 2, large);
    add("optimizer.state.exp_avg.w", DT_F32, 3, flat);
    assert_fails(add_states(), ERR_CORRUPT,
                 "optimizer.state.exp_avg.w: 1099511627776 fragments in 0 chunks");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(keys_are_told_apart),
        TEST(whole_states_have_their_parameters_key),
        TEST(other_keys_are_unread),
        TEST(fragments_of_three_dimensions_are_in_their_places),
        TEST(a_parameter_without_elements_has_no_fragments),
        TEST(flattened_states_that_do_not_fit_are_refused),
        TEST(a_fragment_for_each_element_is_refused),
    };
    return cmocka_run_group_tests_name("dist_states", tests, NULL, NULL);
}
