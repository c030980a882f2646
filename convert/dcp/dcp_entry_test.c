#include "convert/dcp/dcp_entry.h"
#include "convert/wrapper_names.h"

#include "common/count.h"
#include "tests/testing.h"

static struct arena a;

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    return 0;
}

#define S "\x1f"

static void places_say_what_an_entry_is(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        bool is_tensor;
        enum dcp_entry_kind kind;
        const char *below, *name, *key;
    } rows[] = {
        {"model" S "a.b.weight", true, DCP_PARAMETER, "model", "a.b.weight", NULL},
        {"app" S "model" S "a.b", true, DCP_PARAMETER, "app.model", "a.b", NULL},
        {"a.b", true, DCP_PARAMETER, "", "a.b", NULL},
        {"optim" S "state" S "a.b.weight" S "exp_avg", true, DCP_STATE, "optim", "a.b.weight",
         "exp_avg"},
        {"state" S "a.b" S "step", false, DCP_STATE, "", "a.b", "step"},
        {"optimizer" S "state.a.b.weight.exp_avg_sq", true, DCP_STATE, "optimizer", "a.b.weight",
         "exp_avg_sq"},
        {"app" S "optim" S "param_groups" S "12" S "lr", false, DCP_SETTING, "app.optim", "12",
         "lr"},
        {"optim" S "param_groups.a.b.weight.betas", false, DCP_SETTING, "optim", "a.b.weight",
         "betas"},
        {"optim" S "param_groups", false, DCP_GROUPS, "optim", "param_groups", NULL},
        {"train_state" S "step", false, DCP_OTHER, "train_state", "step", NULL},
        /* not states: the last key has a dot, or nothing is between the dots */
        {"state" S "model" S "a.b", true, DCP_PARAMETER, "state.model", "a.b", NULL},
        {"state.weight", true, DCP_PARAMETER, "", "state.weight", NULL},
        {"state..x", true, DCP_PARAMETER, "", "state..x", NULL},
        {"", true, DCP_PARAMETER, "", "", NULL},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct dcp_entry e = dcp_entry_of(&a, "flat", rows[i].path, rows[i].is_tensor);
        assert_int_equal(e.kind, rows[i].kind);
        assert_string_equal(e.below, rows[i].below);
        assert_string_equal(e.name, rows[i].name);
        if (rows[i].key) assert_string_equal(e.key, rows[i].key);
        assert_int_equal(e.key == NULL, rows[i].key == NULL);
        assert_false(e.unwrapped);
    }
}

static void a_name_without_path_is_one_key(void **state)
{
    (void)state;
    const struct dcp_entry e = dcp_entry_of(&a, "optim.state.a.exp_avg", NULL, true);
    assert_int_equal(e.kind, DCP_PARAMETER);
    assert_string_equal(e.name, "optim.state.a.exp_avg");
}

static void names_lose_their_wrappers(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"a.b", "a.b"},
        {"_orig_mod.a.b", "a.b"},
        {"module.module.a.b", "a.b"},
        {"module._orig_mod.a.b", "a.b"},
        {"a._checkpoint_wrapped_module.b.c", "a.b.c"},
        {"_fsdp_wrapped_module.a._fsdp_wrapped_module._checkpoint_wrapped_module.b", "a.b"},
        {"a.module.b", "a.module.b"}, /* a module of this name is the model's own */
        {"a._orig_mod", "a._orig_mod"},
        {"module.", ""},
        {"", ""},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        assert_string_equal(name_without_wrappers(&a, rows[i][0]), rows[i][1]);
    const struct dcp_entry e =
        dcp_entry_of(&a, "x", "optim" S "state" S "_orig_mod.w" S "exp_avg", true);
    assert_string_equal(e.name, "w");
    assert_true(e.unwrapped);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(places_say_what_an_entry_is),
        TEST(a_name_without_path_is_one_key),
        TEST(names_lose_their_wrappers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
