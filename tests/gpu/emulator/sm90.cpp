/* In place of the kernels of *_sm90.cu, which are not for the host: nothing, or where EMULATED_SM90
 * is set, one that is `right` or `wrong`, that `fails`, or that `traps`: then all that follows on
 * the GPU fails; `traps-64`: it does so for a k of 64. It shows who uses such a kernel, and when.
 */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/products.h"

static bool emulated_sm90_is(const char *what)
{
    const char *given = getenv("EMULATED_SM90");
    return given && strcmp(given, what) == 0;
}

static enum status multiply(const struct product &x, struct error *err)
{
    struct product y = x;
    const bool traps = emulated_sm90_is("traps") || (emulated_sm90_is("traps-64") && x.k == 64);
    if (traps) emulated_trap();
    if (traps || emulated_sm90_is("fails"))
        return cuda_status("matmul", cudaErrorLaunchFailure, err);
    if (emulated_sm90_is("wrong")) y.alpha *= 1.0625;
    return y.elem == ELEM_F16 ? multiply_few_rows<f16>(y, err) : multiply_few_rows<bf16>(y, err);
}

static const struct entry {
    entry()
    {
        if (getenv("EMULATED_SM90")) sm90_kernels.few_rows = multiply;
    }
} entry_of_this_file;
