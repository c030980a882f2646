/* Which masters are taken for remainders, and what they become. */
#include "convert/megatron/optim/remainders.h"

#include "ckpt/panel.h"
#include "convert/megatron/optim/testing_values.h"
#include "kernels/cpu/cast.h"

enum { NUMEL = 200 };

static struct checkpoint c;
static float wholes[NUMEL], fractions[NUMEL], zeros[NUMEL], ones[NUMEL];
static int16_t remainders[NUMEL];
static uint16_t weights[NUMEL], weights_of_wholes[NUMEL], weights_of_ones[NUMEL];

static int begin(void **state)
{
    checkpoint_init(&c, "test");
    for (int i = 0; i < NUMEL; i++) {
        remainders[i] = (int16_t)(i * 331 - 32768);
        wholes[i] = remainders[i];
        fractions[i] = 0.01f * (float)(i - 50);
        ones[i] = 1;
    }
    (void)cast_elements(weights, DT_BF16, fractions, DT_F32, NUMEL);
    (void)cast_elements(weights_of_wholes, DT_BF16, wholes, DT_F32, NUMEL);
    (void)cast_elements(weights_of_ones, DT_BF16, ones, DT_F32, NUMEL);
    return scratch_begin(state);
}

static int end(void **state)
{
    checkpoint_release(&c);
    return scratch_end(state);
}

static void add(const char *name, enum dtype dtype, const void *memory)
{
    const uint64_t shape[] = {NUMEL};
    struct tensor *t;
    assert_ok(catalog_add(&c.catalog, name, dtype, 1, shape, &t, &err));
    t->stored_name = arena_printf(&c.arena, "stored.%s", name);
    const struct piece piece = {.origin = ORIGIN_MEMORY, .dtype = dtype, .memory = memory};
    const struct pair all = pair_whole(0, 0, NUMEL);
    tensor_add_piece(&c.arena, t, &piece, &all);
}

static void add_both(const char *name, const uint16_t *weight, enum dtype dtype, const void *master)
{
    add(name, DT_BF16, weight);
    add(arena_printf(&c.arena, "optimizer.param.%s", name), dtype, master);
}

static size_t joined(void)
{
    assert_ok(remainders_join(&c, &err));
    assert_null(c.training.optimizer.unread);
    assert_int_equal(c.notes.count, c.training.optimizer.remainders > 0);
    return c.training.optimizer.remainders;
}

/* Each element of the master, by Transformer Engine's rule. */
static void check_joined(const char *master, const uint16_t *weight)
{
    double values[NUMEL];
    const struct tensor *t = catalog_find(&c.catalog, master);
    assert_int_equal(t->dtype, DT_F32);
    assert_true(tensor_is_joined(t));
    assert_ok(panel_read_numbers(&c.catalog, t, NUMEL, values, &err));
    for (int i = 0; i < NUMEL; i++) {
        const uint32_t bits =
            (uint32_t)(uint16_t)(weight[i] - (remainders[i] < 0)) << 16 | (uint16_t)remainders[i];
        float expected;
        memcpy(&expected, &bits, sizeof expected);
        assert_true(!(values[i] < (double)expected) && !(values[i] > (double)expected));
    }
}

static void integers_are_remainders(void **state)
{
    (void)state;
    add_both("a", weights, DT_I16, remainders);
    add("b", DT_F32, fractions);
    add("optimizer.param.b", DT_F32, fractions);
    assert_int_equal(joined(), 1);
    check_joined("optimizer.param.a", weights);
    assert_false(tensor_is_joined(catalog_find(&c.catalog, "optimizer.param.b")));
}

static void whole_numbers_are_told_by_all_parameters_together(void **state)
{
    (void)state;
    add_both("a", weights, DT_F32, wholes);
    add_both("norm", weights_of_ones, DT_F32, ones);
    add_both("a.padding", weights, DT_F32, zeros);
    assert_int_equal(joined(), 2);
    check_joined("optimizer.param.a", weights);
}

/* Norms of ones are whole, and masters of zeros are. */
static void masters_with_fractions_stay(void **state)
{
    (void)state;
    add_both("norm", weights_of_ones, DT_F32, ones);
    add_both("zero", weights, DT_F32, zeros);
    add_both("a", weights, DT_F32, fractions);
    assert_int_equal(joined(), 0);
    assert_false(tensor_is_joined(catalog_find(&c.catalog, "optimizer.param.norm")));
}

static void whole_masters_of_their_weights_stay(void **state)
{
    (void)state;
    add_both("norm", weights_of_ones, DT_F32, ones);
    add_both("a", weights_of_wholes, DT_F32, wholes);
    assert_int_equal(joined(), 0);
}

/* Nothing but zeros are lost masters, unless the args say otherwise: remainders
 * of masters that are the weights. */
static void zeros_are_remainders_only_where_args_say_so(void **state)
{
    (void)state;
    add_both("a", weights, DT_F32, zeros);
    assert_int_equal(joined(), 0);
    end(NULL);
    begin(NULL);
    add_both("a", weights, DT_F32, zeros);
    c.training.common = python("{'args': {'use_precision_aware_optimizer': True}}");
    assert_int_equal(joined(), 1);
}

/* Megatron names masters so that are whole. */
static void masters_of_other_optimizers_stay(void **state)
{
    (void)state;
    add_both("a", weights, DT_F32, wholes);
    add_both("b", weights, DT_F32, fractions);
    catalog_find(&c.catalog, "optimizer.param.b")->stored_name = "optimizer.state.fp32_param.b";
    assert_int_equal(joined(), 1);
    check_joined("optimizer.param.a", weights);
}

static void check_unread(const char *why)
{
    assert_ok(remainders_join(&c, &err));
    if (!c.training.optimizer.unread || !strstr(c.training.optimizer.unread, why))
        fail_msg("\"%s\" is not said, but \"%s\"", why, c.training.optimizer.unread);
}

static void remainders_need_their_weights_in_bf16(void **state)
{
    (void)state;
    add("optimizer.param.a", DT_I16, remainders);
    check_unread("stored.optimizer.param.a holds remainders, the lower 16 bits of master weights, "
                 "but the weights with the upper ones are missing");
    end(NULL);
    begin(NULL);
    add("a", DT_F16, weights);
    add("optimizer.param.a", DT_I16, remainders);
    check_unread("but its weight is not of BF16");
}

/* One that the sample does not have. */
static void a_fraction_among_remainders_is_found_when_it_is_read(void **state)
{
    (void)state;
    double values[NUMEL];
    wholes[NUMEL - 1] = 0.5f;
    add_both("a", weights, DT_F32, wholes);
    assert_int_equal(joined(), 1);
    assert_fails(panel_read_numbers(&c.catalog, catalog_find(&c.catalog, "optimizer.param.a"),
                                    NUMEL, values, &err),
                 ERR_CORRUPT,
                 "element 199 of stored.optimizer.param.a is no whole number of 16 bits");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(integers_are_remainders),
        TEST(whole_numbers_are_told_by_all_parameters_together),
        TEST(masters_with_fractions_stay),
        TEST(whole_masters_of_their_weights_stay),
        TEST(zeros_are_remainders_only_where_args_say_so),
        TEST(masters_of_other_optimizers_stay),
        TEST(remainders_need_their_weights_in_bf16),
        TEST(a_fraction_among_remainders_is_found_when_it_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
