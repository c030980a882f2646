/* table.c - this folder's kernels by op, from the list of
 * ops (kernels/op_list.h). */
#include "kernels/cpu/ops/ops_internal.h"

#define RUN_PLAIN(kernel)                                                                          \
    static enum status run_##kernel(const union op_params *p, const struct operand *in,            \
                                    const struct operand *out, void *workspace, struct error *err) \
    {                                                                                              \
        (void)workspace, (void)err;                                                                \
        NAME(kernel)(p, in, out);                                                                  \
        return OK;                                                                                 \
    }
#define RUN_WORKSPACE(kernel)
#define RUN_NONE(kernel)
#define RUN(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda) RUN_##cpu(name)
OPS(RUN)

extern const struct op_kernel NAME(ops)[NUM_OPS];

#define ROW_PLAIN(kernel)                                                                          \
    {                                                                                              \
        run_##kernel, NULL                                                                         \
    }
#define ROW_WORKSPACE(kernel)                                                                      \
    {                                                                                              \
        NAME(kernel), NAME(kernel##_workspace)                                                     \
    }
#define ROW_NONE(kernel)                                                                           \
    {                                                                                              \
        NULL, NULL                                                                                 \
    }
#define ROW(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)                \
    [id] = ROW_##cpu(name),
const struct op_kernel NAME(ops)[NUM_OPS] = {OPS(ROW)};
