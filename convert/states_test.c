#include "convert/states.h"

#include <string.h>

#include "kernels/cpu/cast.h"
#include "tests/testing.h"

enum { NUMEL = 40 };

static struct error err;
static struct checkpoint c;
static float numbers[NUMEL];
static uint16_t rounded[NUMEL];

static int begin(void **state)
{
    (void)state;
    checkpoint_init(&c, "test");
    for (int i = 0; i < NUMEL; i++)
        numbers[i] = 0.1f * (float)(i + 1);
    return cast_elements(rounded, DT_BF16, numbers, DT_F32, NUMEL) ? 0 : -1;
}

static int end(void **state)
{
    (void)state;
    checkpoint_release(&c);
    return 0;
}

/* Adds a tensor of the numbers, rounded if dtype is BF16. */
static void add(const char *name, enum dtype dtype)
{
    const uint64_t shape[] = {4, NUMEL / 4};
    struct tensor *t;
    assert_ok(catalog_add(&c.catalog, name, dtype, 2, shape, &t, &err));
    t->stored_name = "stored";
    const struct piece piece = {.origin = ORIGIN_MEMORY,
                                .dtype = dtype,
                                .memory = dtype == DT_BF16 ? (const void *)rounded : numbers};
    const struct pair all = pair_whole(0, 0, NUMEL);
    tensor_add_piece(&c.arena, t, &piece, &all);
}

static const char *listed(void)
{
    const char **states, *out = "";
    const size_t count = states_list(&c.catalog, &c.arena, &states);
    for (size_t i = 0; i < count; i++)
        out = arena_printf(&c.arena, "%s%s%s", out, i ? " " : "", states[i]);
    return out;
}

/* ---- lists ---- */

static void states_are_listed_once_the_master_first(void **state)
{
    (void)state;
    assert_string_equal(listed(), "");
    add("a", DT_BF16);
    add("optimizer.exp_avg_sq.a", DT_F32);
    add("optimizer.exp_avg.a", DT_F32);
    add("optimizer.z.a.padding", DT_F32);
    add("optimizer.param.a", DT_F32);
    add("optimizer.exp.a", DT_F32);
    add("optimizer.exp_avg.b.c", DT_F32);
    assert_string_equal(listed(), "param exp exp_avg exp_avg_sq z");
    assert_string_equal(state_name(&c.arena, "exp_avg", "b.c"), "optimizer.exp_avg.b.c");
}

static void names_of_states_have_no_dot_and_few_bytes(void **state)
{
    (void)state;
    const char long_name[] = "0123456789012345678901234567890123456789012345678901234567890123";
    assert_true(state_is_valid("exp_avg") && state_is_valid(long_name));
    assert_false(state_is_valid(arena_printf(&c.arena, "%s4", long_name)));
    assert_false(state_is_valid("") || state_is_valid("a.b"));
}

static void the_first_reason_is_kept(void **state)
{
    (void)state;
    states_unread(&c, "%d", 1);
    states_unread(&c, "%d", 2);
    assert_string_equal(c.training.optimizer.unread, "1");
}

/* ---- completing ---- */

static void a_weight_of_f32_with_states_is_its_own_master(void **state)
{
    (void)state;
    add("a", DT_F32);
    add("a.padding", DT_F32);
    add("b", DT_BF16);
    add("frozen", DT_F32);
    add("mastered", DT_F32);
    add("optimizer.exp_avg.a", DT_F32);
    add("optimizer.exp_avg.a.padding", DT_F32);
    add("optimizer.exp_avg.b", DT_F32);
    add("optimizer.exp_avg.mastered", DT_F32);
    add("optimizer.param.mastered", DT_F32);
    assert_ok(states_complete(&c, &err));
    const struct tensor *master = catalog_find(&c.catalog, "optimizer.param.a");
    assert_string_equal(master->same_as, "a");
    assert_string_equal(master->stored_name, "stored");
    assert_int_equal(master->num_dims, 2);
    assert_int_equal(master->shape[1], NUMEL / 4);
    assert_int_equal(master->num_pieces, 1);
    assert_ptr_equal(master->pieces[0].memory, numbers);
    assert_string_equal(catalog_find(&c.catalog, "optimizer.param.a.padding")->same_as,
                        "a.padding");
    assert_null(catalog_find(&c.catalog, "optimizer.param.b"));
    assert_null(catalog_find(&c.catalog, "optimizer.param.frozen"));
    assert_null(catalog_find(&c.catalog, "optimizer.param.mastered")->same_as);
    assert_int_equal(c.catalog.num_tensors, 12);
    assert_int_equal(c.notes.count, 1);
    assert_string_equal(
        c.notes.lines[0],
        "1 tensor has no optimizer state, like frozen parameters and buffers: frozen");
}

static void a_weight_as_wide_as_any_master_is_its_own(void **state)
{
    (void)state;
    add("a", DT_F64);
    add("b", DT_F64);
    add("c", DT_I64);
    add("optimizer.exp_avg.a", DT_F64);
    add("optimizer.exp_avg.b", DT_F64);
    add("optimizer.exp_avg.c", DT_F64);
    add("optimizer.param.b", DT_F32);
    assert_ok(states_complete(&c, &err));
    const struct tensor *master = catalog_find(&c.catalog, "optimizer.param.a");
    assert_string_equal(master->same_as, "a");
    assert_int_equal(master->dtype, DT_F64);
    assert_int_equal(catalog_find(&c.catalog, "optimizer.param.b")->dtype, DT_F32);
    assert_null(catalog_find(&c.catalog, "optimizer.param.c"));
}

static void parameters_without_states_are_counted(void **state)
{
    (void)state;
    add("a", DT_BF16);
    add("b", DT_BF16);
    add("b.padding", DT_BF16);
    assert_ok(states_complete(&c, &err));
    assert_int_equal(c.notes.count, 0);
    add("c", DT_BF16);
    add("optimizer.m.c", DT_F32);
    assert_ok(states_complete(&c, &err));
    assert_string_equal(c.notes.lines[0], "2 tensors have no optimizer state, like frozen "
                                          "parameters and buffers: a, ...");
    states_unread(&c, "why");
    add("d", DT_BF16);
    assert_ok(states_complete(&c, &err)); /* states that are not read are no lack of them */
    assert_int_equal(c.notes.count, 1);
}

static void add_many(unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        add(arena_printf(&c.arena, "optimizer.m%u.a", i), DT_F32);
}

static void more_states_than_any_optimizer_has_are_unread(void **state)
{
    (void)state;
    add("a", DT_F32);
    add_many(MAX_STATES);
    assert_ok(states_complete(&c, &err));
    assert_null(c.training.optimizer.unread);
    assert_non_null(catalog_find(&c.catalog, "optimizer.param.a"));
    end(NULL);
    begin(NULL);
    add("a", DT_F32);
    add_many(20000);
    assert_ok(states_complete(&c, &err));
    assert_non_null(strstr(c.training.optimizer.unread, "more than 32 kinds of state"));
    const char **list;
    assert_int_equal(states_list(&c.catalog, &c.arena, &list), MAX_STATES + 1);
    assert_null(catalog_find(&c.catalog, "optimizer.param.a"));
}

/* ---- proving ---- */

static void weights_that_are_not_their_masters_make_inferred_states_unread(void **state)
{
    (void)state;
    add("a", DT_BF16);
    add("optimizer.param.a", DT_F32);
    c.training.optimizer.inferred = true;
    assert_ok(states_prove(&c, &err));
    assert_null(c.training.optimizer.unread);
    rounded[7] ^= 1;
    c.training.optimizer.inferred = false; /* keys name the parameters */
    assert_ok(states_prove(&c, &err));
    assert_null(c.training.optimizer.unread);
    c.training.optimizer.inferred = true;
    assert_ok(states_prove(&c, &err));
    assert_string_equal(c.training.optimizer.unread,
                        "1 of 1 weights are not their master weights rounded (a at element 7), so "
                        "states cannot be assigned to parameters");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(states_are_listed_once_the_master_first),
        TEST(names_of_states_have_no_dot_and_few_bytes),
        TEST(the_first_reason_is_kept),
        TEST(a_weight_of_f32_with_states_is_its_own_master),
        TEST(a_weight_as_wide_as_any_master_is_its_own),
        TEST(parameters_without_states_are_counted),
        TEST(more_states_than_any_optimizer_has_are_unread),
        TEST(weights_that_are_not_their_masters_make_inferred_states_unread),
    };
    return cmocka_run_group_tests_name("states", tests, NULL, NULL);
}
