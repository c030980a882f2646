/* In place of the kernels of *_sm90.cu, which are not for the host: nothing, or where EMULATED_SM90
 * is set, one that is `right` or `wrong`. It shows who uses such a kernel, and when. */
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
    if (emulated_sm90_is("wrong")) y.alpha *= 1.0625;
    return multiply_few_rows<bf16>(y, err);
}

static const struct entry {
    entry()
    {
        if (getenv("EMULATED_SM90")) sm90_kernels.few_rows = multiply;
    }
} entry_of_this_file;
