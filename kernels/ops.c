#include "kernels/ops.h"

#include <stdlib.h>
#include <string.h>

/* kernels/cpu/ops/table.c, once for each of OP_VARIANTS */
extern const struct op_kernel ops_f32_v1[NUM_OPS], ops_f64_v1[NUM_OPS], ops_bf16_v1[NUM_OPS];
extern const struct op_kernel ops_f32_v3[NUM_OPS], ops_f64_v3[NUM_OPS], ops_bf16_v3[NUM_OPS];

static bool have_v3(void)
{
    const char *wanted = getenv("FERRY_CPU");
    if (wanted && strcmp(wanted, "v1") == 0) return false;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const struct op_kernel *cpu_ops(enum elem_type elem)
{
    static const struct op_kernel *const tables[NUM_ELEM_TYPES][2] = {
        [ELEM_F32] = {ops_f32_v1, ops_f32_v3},
        [ELEM_F64] = {ops_f64_v1, ops_f64_v3},
        [ELEM_BF16] = {ops_bf16_v1, ops_bf16_v3},
    };
    return tables[elem][have_v3()];
}
