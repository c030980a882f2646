/* libcuda.so.1 for machines without a driver: the functions that cuDNN
 * looks for while it makes a plan. It has no GPU, loads code nowhere, and
 * runs nothing. */
#include <stddef.h>

enum { SUCCESS = 0, ERROR_NO_DEVICE = 100 };

static char nothing[4096];

extern "C" {

int cuInit(unsigned)
{
    return ERROR_NO_DEVICE;
}

int cuDeviceGetCount(int *count)
{
    *count = 0;
    return SUCCESS;
}

int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return SUCCESS;
}

int cuGetErrorName(int, const char **name)
{
    *name = "an emulated error";
    return SUCCESS;
}

int cuGetErrorString(int, const char **text)
{
    *text = "an emulated error";
    return SUCCESS;
}

int cuCtxGetCurrent(void **context)
{
    *context = NULL;
    return SUCCESS;
}

int cuLibraryLoadData(void **library)
{
    *library = nothing;
    return SUCCESS;
}

int cuLibraryGetKernel(void **kernel)
{
    *kernel = nothing;
    return SUCCESS;
}

int cuKernelGetAttribute(int *value)
{
    *value = 0;
    return SUCCESS;
}

#define ONLY_THERE(name)                                                                           \
    int name()                                                                                     \
    {                                                                                              \
        return SUCCESS;                                                                            \
    }
ONLY_THERE(cuCtxGetLimit)
ONLY_THERE(cuCtxPopCurrent)
ONLY_THERE(cuCtxPushCurrent)
ONLY_THERE(cuDeviceGet)
ONLY_THERE(cuKernelSetAttribute)
ONLY_THERE(cuLaunchCooperativeKernel)
ONLY_THERE(cuLaunchKernel)
ONLY_THERE(cuLaunchKernelEx)
ONLY_THERE(cuLibraryLoadFromFile)
ONLY_THERE(cuLibraryUnload)
ONLY_THERE(cuLinkAddData)
ONLY_THERE(cuLinkComplete)
ONLY_THERE(cuLinkCreate)
ONLY_THERE(cuLinkDestroy)
ONLY_THERE(cuOccupancyMaxPotentialClusterSize)
ONLY_THERE(cuStreamGetCtx)
}
