/* Dense models at many layouts, and messages that are too large to be sent
 * ahead. */
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
    enum { HIDDEN = 48 }; /* of the model */
    const struct size size = {1400, 16, 1};
    (void)state;
    if (SANITIZED) skip(); /* comm_test sends large messages, too */
    assert_true(size.sequences * size.length * HIDDEN * sizeof(double) > COMM_SENT_AHEAD);
    for (size_t i = 0; i < COUNT(cases); i++) {
        if (!test_takes(i, COUNT(cases))) continue;
        num_layers = 2 + 2 * i; /* one for each stage */
        struct reference *r = make_reference("qwen3", &size);
        assert_true(train_layout(r, "qwen3", &size, &cases[i]));
        reference_release(r);
        free(r);
    }
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
