/* Models with experts at many layouts. */
#include "train/trainer/testing_layouts.h"

static void models_with_experts_train_alike(void **state)
{
    (void)state;
    train_layouts("mixtral", true);
}

int main(void)
{
    cpu_use_threads(1); /* ranks are forked */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_with_experts_train_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
