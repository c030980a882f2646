/* cpu_device.c - the host as a device: its memory, and the kernels of kernels/cpu. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"

enum { ALIGNMENT = 256 };

static enum status open_host(unsigned number, struct error *err)
{
    (void)number;
    (void)err;
    return OK;
}

static void close_host(void)
{
}

static enum status allocate(void **out, uint64_t bytes, const char *what, struct error *err)
{
    uint64_t size = (bytes / ALIGNMENT + 1) * ALIGNMENT;
    *out = aligned_alloc(ALIGNMENT, size);
    if (!*out) return fail(err, ERR_MEMORY, "no memory for %" PRIu64 " bytes of %s", bytes, what);
    memset(*out, 0, size);
    return OK;
}

static enum status copy(void *to, const void *from, uint64_t bytes, struct error *err)
{
    (void)err;
    if (to != from && bytes) memcpy(to, from, bytes);
    return OK;
}

static enum status synchronize(struct error *err)
{
    (void)err;
    return OK;
}

static const char *describe(void)
{
    return "CPU";
}

const struct device cpu_device = {.name = "cpu",
                                  .is_host = true,
                                  .open = open_host,
                                  .close = close_host,
                                  .allocate = allocate,
                                  .release = free,
                                  .upload = copy,
                                  .download = copy,
                                  .copy = copy,
                                  .synchronize = synchronize,
                                  .ops = cpu_ops,
                                  .describe = describe};
