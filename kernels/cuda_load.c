#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "kernels/device.h"

enum { PATH_BYTES = 4096 };

/* The file that this code is in: libferry_engine.so, or a program that it was linked into. */
static void own_folder(char folder[PATH_BYTES])
{
    static const char here;
    Dl_info info;
    folder[0] = '\0';
    if (!dladdr(&here, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    (void)snprintf(folder, PATH_BYTES, "%.*s", slash ? (int)(slash - info.dli_fname) : 1,
                   slash ? info.dli_fname : ".");
}

/* Beside it, where it was built; in ../lib/ferry, where it is installed. */
static void *load_library(void)
{
    static const char *const places[] = {"", "/../lib/ferry"};
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    void *library = NULL;
    own_folder(folder);
    for (unsigned i = 0; i < 2 && !library; i++) {
        (void)snprintf(path, sizeof path, "%s%s/libferry_cuda.so", folder, places[i]);
        library = dlopen(path, RTLD_NOW);
    }
    return library;
}

enum status cuda_device_load(const struct device **out, struct error *err)
{
    void *library = load_library();
    if (!library) return fail(err, ERR_DEVICE, "no GPU can be used: %s", dlerror());
    const struct device *const *device = dlsym(library, CUDA_DEVICE_SYMBOL);
    if (!device) return fail(err, ERR_DEVICE, "no GPU can be used: %s", dlerror());
    *out = *device;
    return OK;
}
