/* cuda_load.c - loads libferry_cuda.so and returns its device. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/device.h"

enum { PATH_BYTES = 4096 };

/* The folder of this code's file: libferry_engine.so, or a program that
 * links it. */
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

/* Loads the library that FERRY_CUDA_LIBRARY names, else the one beside the
 * program (in a build) or in ../lib/ferry (installed). On failure dlerror()
 * describes the file that exists. */
static void *load_library(void)
{
    char folder[PATH_BYTES], path[PATH_BYTES + 64];
    const char *given = getenv("FERRY_CUDA_LIBRARY");
    if (given) return dlopen(given, RTLD_NOW);
    own_folder(folder);
    (void)snprintf(path, sizeof path, "%s/libferry_cuda.so", folder);
    if (access(path, F_OK))
        (void)snprintf(path, sizeof path, "%s/../lib/ferry/libferry_cuda.so", folder);
    return dlopen(path, RTLD_NOW);
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
