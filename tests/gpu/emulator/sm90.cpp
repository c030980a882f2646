/* Makes the kernels of *_sm90.cu available if EMULATED_SM90 is set: `right`;
 * `wrong` results; each `fails`; each `traps`, so that all later GPU calls
 * fail; `traps-64`: products with a k of 64 do. It shows which code uses such a
 * kernel, and when. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/products.h"

static struct sm90_kernels kernels; /* from their files */

static bool emulated_sm90_is(const char *what)
{
    const char *given = getenv("EMULATED_SM90");
    return given && strcmp(given, what) == 0;
}

/* Injects failures before a kernel starts. */
static enum status start(const char *op, bool traps, struct error *err)
{
    if (traps) emulated_trap();
    if (traps || emulated_sm90_is("fails")) return cuda_status(op, cudaErrorLaunchFailure, err);
    return OK;
}

static enum status multiply(const struct product &x, struct error *err)
{
    struct product y = x;
    const bool traps_at_64 = emulated_sm90_is("traps-64") && x.k == 64;
    TRY(start("matmul", emulated_sm90_is("traps") || traps_at_64, err));
    if (emulated_sm90_is("wrong")) y.alpha *= 1.0625;
    return kernels.few_rows(y, err);
}

static enum status attend(enum elem_type elem, const union op_params *p, const struct operand *in,
                          const struct operand *out, struct error *err)
{
    union op_params q = *p;
    TRY(start("attention", emulated_sm90_is("traps"), err));
    if (emulated_sm90_is("wrong")) q.attention.scale *= 1.25;
    return kernels.attention(elem, &q, in, out, err);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult *)
{
    const bool is_known = strcmp(name, "cuTensorMapEncodeTiled") == 0;
    *function = is_known ? reinterpret_cast<void *>(cuTensorMapEncodeTiled) : NULL;
    return is_known ? cudaSuccess : cudaErrorInvalidValue;
}

/* This file is linked after those of the kernels, so its constructor runs
 * after theirs. */
static const struct entry {
    entry()
    {
        kernels = sm90_kernels;
        sm90_kernels = {};
        if (getenv("EMULATED_SM90")) sm90_kernels = {multiply, attend};
    }
} entry_of_this_file;
