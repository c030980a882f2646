#include "kernels/cpu/ops/ops_internal.h"

#define RUN_PLAIN(op, kernel)                                                                      \
    static enum status run_##kernel(const union op_params *p, const struct operand *in,            \
                                    const struct operand *out, void *workspace, struct error *err) \
    {                                                                                              \
        (void)workspace, (void)err;                                                                \
        NAME(kernel)(p, in, out);                                                                  \
        return OK;                                                                                 \
    }
#define NOTHING(op, kernel)
KERNELS(RUN_PLAIN, NOTHING)

extern const struct op_kernel NAME(ops)[NUM_OPS];

#define PLAIN_ROW(op, kernel) [op] = {run_##kernel, NULL},
#define ROW_WITH_WORKSPACE(op, kernel) [op] = {NAME(kernel), NAME(kernel##_workspace)},
const struct op_kernel NAME(ops)[NUM_OPS] = {KERNELS(PLAIN_ROW, ROW_WITH_WORKSPACE)};
