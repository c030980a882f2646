#include "kernels/gpu_driver.h"

#include <dlfcn.h>
#include <stddef.h>

#include "common/count.h"

/* From cuda.h of the CUDA Toolkit, which
 * need not be here. */
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, NO_DEVICE = 100 };

static struct {
    int (*init)(unsigned flags);
    int (*version)(int *out);
    int (*count)(int *out);
    int (*device)(int *out, int number);
    int (*name)(char *out, int bytes, int device);
    int (*memory)(size_t *out, int device);
    int (*attribute)(int *out, int attribute, int device);
    int (*error_text)(int code, const char **out);
} cuda;

static enum status load_driver(struct error *err)
{
    const struct {
        const char *name;
        void *function; /* where its address goes */
    } functions[] = {
        {"cuInit", &cuda.init},
        {"cuDriverGetVersion", &cuda.version},
        {"cuDeviceGetCount", &cuda.count},
        {"cuDeviceGet", &cuda.device},
        {"cuDeviceGetName", &cuda.name},
        {"cuDeviceTotalMem_v2", &cuda.memory},
        {"cuDeviceGetAttribute", &cuda.attribute},
        {"cuGetErrorString", &cuda.error_text},
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return fail(err, ERR_DEVICE, "no libcuda.so.1");
    for (size_t i = 0; i < COUNT(functions); i++)
        if (!(*(void **)functions[i].function = dlsym(library, functions[i].name)))
            return fail(err, ERR_DEVICE, "%s", dlerror());
    return OK;
}

static enum status driver_status(const char *what, int code, struct error *err)
{
    const char *text = NULL;
    if (code == 0) return OK;
    (void)cuda.error_text(code, &text);
    return fail(err, ERR_DEVICE, "%s: %s", what, text ? text : "unknown error");
}

#define DRIVER_TRY(what, call) TRY(driver_status(what, call, err))

static enum status read_gpu(struct gpu *out, int number, struct error *err)
{
    int device;
    size_t bytes;
    DRIVER_TRY("cuDeviceGet", cuda.device(&device, number));
    DRIVER_TRY("cuDeviceGetName", cuda.name(out->name, sizeof out->name, device));
    DRIVER_TRY("cuDeviceTotalMem", cuda.memory(&bytes, device));
    DRIVER_TRY("cuDeviceGetAttribute", cuda.attribute(&out->major, CAPABILITY_MAJOR, device));
    DRIVER_TRY("cuDeviceGetAttribute", cuda.attribute(&out->minor, CAPABILITY_MINOR, device));
    out->bytes = bytes;
    return OK;
}

enum status gpu_driver_read(struct gpu_driver *out, struct error *err)
{
    *out = (struct gpu_driver){.num_gpus = 0};
    TRY(load_driver(err));
    DRIVER_TRY("cuDriverGetVersion", cuda.version(&out->version));
    const int code = cuda.init(0);
    if (code == NO_DEVICE) return OK;
    DRIVER_TRY("cuInit", code);
    DRIVER_TRY("cuDeviceGetCount", cuda.count(&out->num_gpus));
    if (out->num_gpus > MAX_GPUS_OF_HOST) out->num_gpus = MAX_GPUS_OF_HOST;
    for (int i = 0; i < out->num_gpus; i++)
        TRY(read_gpu(&out->gpus[i], i, err));
    return OK;
}
