/* Models with experts at many layouts. */
#ifdef _OPENMP
#include <omp.h>
#endif

#include "train/trainer/testing_layouts.h"

static void models_with_experts_train_alike(void **state)
{
    (void)state;
    train_layouts("mixtral", true);
}

int main(void)
{
#ifdef _OPENMP
    omp_set_num_threads(1); /* ranks are forked */
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_with_experts_train_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
