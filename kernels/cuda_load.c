/* cuda_load.c - loads libferry_cuda.so and returns its device. */
#include <dlfcn.h>
#include <stdlib.h>

#include "common/library.h"
#include "kernels/device.h"

static const char CUDA_FILE[] = "libferry_cuda.so";

/* FERRY_CUDA_LIBRARY, or the library of
 * this build; NULL: it has none. */
static const char *find_library(char path[LIBRARY_PATH])
{
    const char *given = getenv("FERRY_CUDA_LIBRARY");
    if (given) return given;
    return library_find(path, CUDA_FILE, CUDA_FILE) ? path : NULL;
}

enum status cuda_device_load(const struct device **out, struct error *err)
{
    char found[LIBRARY_PATH];
    const char *path = find_library(found);
    if (!path)
        return fail(
            err, ERR_DEVICE,
            "no GPU can be used: this build has no CUDA support (%s): make cuda-libs; make; "
            "see ferry doctor",
            CUDA_FILE);
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return fail(err, ERR_DEVICE, "no GPU can be used: %s", dlerror());
    const struct device *const *device = dlsym(library, CUDA_DEVICE_SYMBOL);
    if (!device) return fail(err, ERR_DEVICE, "no GPU can be used: %s", dlerror());
    *out = *device;
    return OK;
}
