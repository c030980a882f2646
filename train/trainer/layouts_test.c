/* Dense models at many layouts, and messages that are too large to be sent ahead. */
#include "train/trainer/testing_layouts.h"

static void dense_models_train_alike(void **state)
{
    (void)state;
    train_layouts("qwen3", false);
}

/* More than is sent ahead, both ways between two stages. */
static void large_messages_cross(void **state)
{
    static const struct layout_case cases[] = {
        {.options = {.elem = ELEM_F64, .layout = {.tp = 1, .pp = 2, .dp = 1}}},
        {.options = {.elem = ELEM_F64, .layout = {.tp = 1, .pp = 2, .dp = 1, .virtual_stages = 2}}},
    };
    const struct size size = {1500, 16, 1};
    struct reference *r = make_reference("qwen3", &size);
    (void)state;
    for (size_t i = 0; i < (test_fewest() ? 1 : COUNT(cases)); i++)
        assert_true(train_layout(r, "qwen3", &size, &cases[i]));
    reference_release(r);
    free(r);
}

int main(void)
{
    cpu_use_threads(1); /* ranks are forked */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_models_train_alike),
        cmocka_unit_test(large_messages_cross),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
