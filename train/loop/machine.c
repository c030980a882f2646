/* machine.c - what this host computes with, for `ferry doctor`: CPU, BLAS, MPI,
 * GPUs and their libraries. */
#include <cblas.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/library.h"
#include "common/numbers.h"
#include "kernels/device.h"
#include "kernels/gpu_driver.h"
#include "train/comm/comm.h"
#include "train/loop/engine_internal.h"

/* ---- the CPU ---- */

static void describe_cpu(struct facts *f)
{
    char has[64] = "";
    bool is_here;
    const char *name;
    for (size_t i = 0; (name = cpu_level_name(i, &is_here)); i++)
        if (is_here) strcat(strcat(has, *has ? " " : ""), name);
    facts_add(f, "CPU", FACT_OK, NULL, "%s; %s in use: %s", has, cpu_level_in_use(),
              cpu_instructions());
    const char *config = openblas_get_config(), *version = strchr(config, ' '); /* its name */
    version = version ? version + 1 : config;
    facts_add(f, "OpenBLAS", FACT_OK, NULL, "%.*s, kernels for %s", (int)strcspn(version, " "),
              version, openblas_get_corename());
}

static void describe_mpi(struct facts *f)
{
    char text[128];
    struct error err;
    if (comm_mpi_version(text, sizeof text, &err))
        facts_add(f, "MPI", FACT_MISSING,
                  "for ranks on several hosts: apt install libopenmpi-dev openmpi-bin; make", "%s",
                  err.text);
    else
        facts_add(f, "MPI", FACT_OK, NULL, "%s", text);
}

/* ---- GPUs ---- */

enum { LEAST_CAPABILITY = 8 };

static void describe_gpus(struct facts *f)
{
    static struct gpu_driver driver;
    struct error err;
    if (gpu_driver_read(&driver, &err)) {
        facts_add(f, "GPU driver", FACT_MISSING,
                  "to use a GPU, install NVIDIA's driver; in a container: docker run --gpus all",
                  "%s", err.text);
        return;
    }
    facts_add(f, "GPU driver", driver.num_gpus ? FACT_OK : FACT_MISSING,
              driver.num_gpus ? NULL : "see nvidia-smi, and CUDA_VISIBLE_DEVICES",
              "CUDA %d.%d, %d GPU%s", driver.version / 1000, driver.version % 1000 / 10,
              driver.num_gpus, driver.num_gpus == 1 ? "" : "s");
    for (int i = 0; i < driver.num_gpus; i++) {
        const struct gpu *g = &driver.gpus[i];
        const bool is_new = g->major >= LEAST_CAPABILITY;
        facts_add(f, arena_printf(f->arena, "GPU %d", i), is_new ? FACT_OK : FACT_WARNING,
                  is_new ? NULL : "Ferry runs on compute capability 8.0 or newer",
                  "%s, %s, compute capability %d.%d", g->name, bytes_text(g->bytes), g->major,
                  g->minor);
    }
}

static void describe_gpu_libraries(struct facts *f, const struct device *device)
{
    struct device_library l;
    for (unsigned i = 0; device->library && device->library(i, &l); i++)
        if (l.version)
            facts_add(f, l.name, FACT_OK, NULL, "%u.%u.%u", l.version / 10000,
                      l.version / 100 % 100, l.version % 100);
        else
            facts_add(f, l.name, FACT_MISSING, "make cuda-libs; make", "%s", l.missing.text);
}

/* Opens the first GPU, as every command
 * with --device cuda does. */
static void describe_cuda(struct facts *f)
{
    static const char name[] = "CUDA", file[] = "libferry_cuda.so";
    char path[LIBRARY_PATH];
    const struct device *device;
    struct error err;
    if (!getenv("FERRY_CUDA_LIBRARY") && !library_find(path, file, file)) {
        facts_add(f, name, FACT_MISSING, "make cuda-libs; make", "this build has no %s", file);
        return;
    }
    enum status st = cuda_device_load(&device, &err);
    if (!st) describe_gpu_libraries(f, device);
    if (!st) st = device->open(0, &err);
    if (st) {
        facts_add(f, name, FACT_WARNING, "models run on the CPU: --device cpu", "%s", err.text);
        return;
    }
    facts_add(f, name, FACT_OK, NULL, "%s", device->describe());
    device->close();
}

void describe_machine(struct facts *f)
{
    describe_cpu(f);
    describe_mpi(f);
    describe_gpus(f);
    describe_cuda(f);
}
