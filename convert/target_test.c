#include "convert/target.h"

#include "tests/testing.h"

static struct error err;
static struct checkpoint c;
static struct target t;

static int begin(void **state)
{
    (void)state;
    checkpoint_init(&c, "test");
    t = (struct target){.options.optimizer = true, .source = &c};
    plan_init(&t.plan, &c.catalog);
    return 0;
}

static int end(void **state)
{
    (void)state;
    plan_release(&t.plan);
    checkpoint_release(&c);
    return 0;
}

static const struct tensor *find(const char *name)
{
    return catalog_find(&c.catalog, name);
}

/* Adds a tensor of zeros. */
static void add(const char *name, enum dtype dtype)
{
    const uint64_t shape[] = {2, 3};
    struct tensor *x;
    assert_ok(catalog_add(&c.catalog, name, dtype, 2, shape, &x, &err));
    x->stored_name = name;
    const struct piece zero = {.origin = ORIGIN_ZERO, .dtype = dtype};
    const struct pair all = pair_whole(0, 0, 6);
    tensor_add_piece(&c.arena, x, &zero, &all);
}

/* "param exp_avg" */
static const char *taken(bool masters)
{
    const char *out = "";
    assert_ok(target_take_states(&t, masters, &err));
    for (size_t i = 0; i < t.num_states; i++)
        out = arena_printf(&c.arena, "%s%s%s", out, i ? " " : "", t.states[i]);
    return out;
}

/* Checks that a tensor was made of another one's elements. */
static void check_made(const struct tensor *made, const char *name, const char *of)
{
    assert_non_null(made);
    assert_string_equal(made->name, name);
    assert_string_equal(made->stored_name, of);
    assert_int_equal(made->dtype, find(of)->dtype);
    assert_int_equal(made->num_pieces, 1);
    assert_int_equal(made->shape[1], 3);
    assert_int_equal(made->pieces[0].pair.count, 6);
}

/* ---- states ---- */

static void states_are_those_of_the_source(void **state)
{
    (void)state;
    add("a", DT_BF16);
    add("optimizer.exp_avg.a", DT_F32);
    add("optimizer.param.a", DT_F32);
    assert_string_equal(taken(true), "param exp_avg");
    assert_int_equal(t.facts.made_masters, 0);
    assert_int_equal(t.plan.made.num_tensors, 0);
    assert_ptr_equal(target_state(&t, find("a"), 0), find("optimizer.param.a"));
    assert_ptr_equal(target_state(&t, find("a"), 1), find("optimizer.exp_avg.a"));
    end(NULL);
    begin(NULL);
    add("a", DT_BF16);
    add("optimizer.exp_avg.a", DT_F32);
    t.options.optimizer = false;
    assert_string_equal(taken(true), "");
}

static void masters_are_made_of_weights_that_lack_them(void **state)
{
    (void)state;
    add("a", DT_BF16);
    add("a.padding", DT_BF16);
    add("frozen", DT_BF16);
    add("optimizer.exp_avg.a", DT_F32);
    add("optimizer.exp_avg.a.padding", DT_F32);
    assert_string_equal(taken(false), "exp_avg");
    assert_int_equal(t.plan.made.num_tensors, 0);
    assert_string_equal(taken(true), "param exp_avg");
    assert_int_equal(t.facts.made_masters, 1);
    assert_int_equal(t.plan.made.num_tensors, 2);
    check_made(target_state(&t, find("a"), 0), "optimizer.param.a", "a");
    check_made(target_state(&t, find("a.padding"), 0), "optimizer.param.a.padding", "a.padding");
    assert_null(target_state(&t, find("frozen"), 0));
    assert_null(target_state(&t, find("frozen"), 1));
    end(NULL);
    begin(NULL);
    add("a", DT_BF16);
    add("b", DT_BF16);
    add("optimizer.exp_avg.a", DT_F32);
    add("optimizer.exp_avg.b", DT_F32);
    add("optimizer.param.b", DT_F32);
    assert_string_equal(taken(true), "param exp_avg");
    assert_int_equal(t.plan.made.num_tensors, 1);
    assert_ptr_equal(target_state(&t, find("b"), 0), find("optimizer.param.b"));
}

/* ---- casts ---- */

static void a_weight_that_is_cast_is_its_master_cast(void **state)
{
    (void)state;
    add("a", DT_BF16);
    add("b", DT_BF16);
    add("f32", DT_F32);
    add("optimizer.param.a", DT_F32);
    add("optimizer.param.f32", DT_F32);
    t.options.casts = true;
    t.options.dtype = DT_F32;
    assert_string_equal(taken(false), "param");
    assert_int_equal(t.facts.cast_masters, 1);
    check_made(target_weight(&t, find("a")), "a", "optimizer.param.a");
    assert_ptr_equal(target_weight(&t, find("b")), find("b"));
    assert_ptr_equal(target_weight(&t, find("f32")), find("f32")); /* stays as it is */
    end(NULL);
    begin(NULL);
    add("a", DT_BF16);
    add("optimizer.param.a", DT_F32);
    assert_string_equal(taken(false), "param");
    assert_ptr_equal(target_weight(&t, find("a")), find("a"));
    assert_int_equal(t.facts.cast_masters, 0);
}

static void weights_are_cast_and_states_widened(void **state)
{
    (void)state;
    add("a", DT_BF16);
    add("ids", DT_I64);
    add("optimizer.exp_avg.a", DT_BF16);
    add("optimizer.wide.a", DT_F64);
    assert_int_equal(target_dtype(&t, find("a")), DT_BF16);
    assert_int_equal(target_dtype(&t, find("optimizer.exp_avg.a")), DT_BF16);
    t.options.casts = true;
    t.options.dtype = DT_F16;
    assert_int_equal(target_dtype(&t, find("a")), DT_F16);
    assert_int_equal(target_dtype(&t, find("ids")), DT_I64);
    assert_int_equal(target_dtype(&t, find("optimizer.exp_avg.a")), DT_BF16);
    t.widens_states = true;
    assert_int_equal(target_dtype(&t, find("optimizer.exp_avg.a")), DT_F32);
    assert_int_equal(target_dtype(&t, find("optimizer.wide.a")), DT_F64);
    assert_int_equal(target_dtype(&t, find("a")), DT_F16);
}

/* ---- names ---- */

static void formats_are_found_by_name(void **state)
{
    (void)state;
    for (unsigned i = 1; i < NUM_OPTIM_FORMATS; i++)
        assert_int_equal(optim_format_find(optim_format_names[i]), i);
    assert_int_equal(optim_format_find("fully_sharded_model_space"),
                     OPTIM_fully_sharded_model_space);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(states_are_those_of_the_source),
        TEST(masters_are_made_of_weights_that_lack_them),
        TEST(a_weight_that_is_cast_is_its_master_cast),
        TEST(weights_are_cast_and_states_widened),
        TEST(formats_are_found_by_name),
    };
    return cmocka_run_group_tests_name("target", tests, NULL, NULL);
}
