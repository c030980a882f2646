#include "convert/wrapper_names.h"

#include "common/count.h"
#include "tests/testing.h"

static struct checkpoint c;
static struct wrapper_names w;
static struct error err;

static int setup(void **state)
{
    (void)state;
    checkpoint_init(&c, "folder");
    wrapper_names_init(&w, &c);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    wrapper_names_release(&w);
    checkpoint_release(&c);
    return 0;
}

static void wrappers_are_taken_out_wherever_they_stand(void **state)
{
    (void)state;
    static const char *const rows[][2] = {
        {"a.weight", "a.weight"},
        {"module.b.weight", "b.weight"},
        {"_orig_mod.module.c.weight", "c.weight"},
        {"_fsdp_wrapped_module.layers.0._fsdp_wrapped_module.d", "layers.0.d"},
        {"layers.0._checkpoint_wrapped_module.e", "layers.0.e"},
        /* a model may have such names of its own */
        {"layers.0.module.f", "layers.0.module.f"},
        {"my_orig_mod.g", "my_orig_mod.g"},
        {"module", "module"},
        {"", ""},
        {"a..b.", "a..b."},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *out;
        assert_ok(wrapper_names_strip(&w, rows[i][0], &out, &err));
        assert_string_equal(out, rows[i][1]);
    }
    assert_int_equal(w.num_stripped, 4);
    wrapper_names_note(&w);
    assert_non_null(
        strstr(c.notes.lines[0], "4 names have modules that wrap the model, stripped (module.b."));
}

static void a_name_may_come_again_but_not_for_another(void **state)
{
    (void)state;
    const char *out;
    assert_ok(wrapper_names_strip(&w, "module.a", &out, &err));
    assert_ok(wrapper_names_strip(&w, "module.a", &out, &err));
    assert_int_equal(w.num_stripped, 1);
    assert_int_equal(wrapper_names_strip(&w, "a", &out, &err), ERR_UNSUPPORTED);
    assert_string_equal(err.text, "folder: module.a and a become the same name without the "
                                  "modules that wrap the model");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(wrappers_are_taken_out_wherever_they_stand, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_name_may_come_again_but_not_for_another, setup, teardown),
    };
    return cmocka_run_group_tests_name("wrapper_names", tests, NULL, NULL);
}
