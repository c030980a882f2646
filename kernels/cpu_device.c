/* cpu_device.c - the host as a device: its memory, and the kernels
 * of kernels/cpu. */
#include <inttypes.h>
#ifdef _OPENMP
#include <omp.h>
#else
#include <cblas.h>
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/clock.h"
#include "common/host_memory.h"
#include "common/progress.h"
#include "kernels/device.h"

/* The page before an allocation holds its size. */
enum { PAGE = 4096 };

static enum status open_host(unsigned number, struct error *err)
{
    (void)number;
    (void)err;
    return OK;
}

static void close_host(void)
{
}

/* Address space that OpenBLAS and malloc reserve for each thread, mostly
 * unused. Without it OpenBLAS retries forever. */
#define THREAD_ADDRESS_SPACE ((uint64_t)256 << 20)

static unsigned count_threads(void)
{
#ifdef _OPENMP
    return (unsigned)omp_get_max_threads();
#else
    return 1;
#endif
}

void cpu_use_threads(unsigned count)
{
#ifdef _OPENMP
    omp_set_num_threads((int)count);
#else
    /* Nobody ends OpenBLAS's threads before a fork: it gets no others. */
    (void)count;
    openblas_set_num_threads(1);
#endif
}

static uint64_t available_bytes(void)
{
    const uint64_t memory = host_memory_available(), space = host_memory_address_space();
    const uint64_t taken = count_threads() * THREAD_ADDRESS_SPACE;
    if (space == UINT64_MAX) return memory;
    return min_u64(memory, space > taken ? space - taken : 0);
}

/* Checks the free memory first: Linux overcommits, then kills the process that
 * touches the memory. */
static enum status allocate_host_memory(void **out, uint64_t bytes, const char *what,
                                        struct error *err)
{
    uint64_t available = available_bytes();
    if (bytes > available)
        return fail(err, ERR_MEMORY,
                    "not enough memory for %s: %.2f GB are needed, %.2f GB are available", what,
                    (double)bytes / 1e9, (double)available / 1e9);
    char *pages = mmap(NULL, bytes + PAGE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return fail_errno(err, ERR_MEMORY, "cannot allocate %" PRIu64 " bytes for %s", bytes, what);
    *(uint64_t *)(void *)pages = bytes + PAGE;
    *out = pages + PAGE;
    return OK;
}

static void release_host_memory(void *memory)
{
    char *pages = (char *)memory - PAGE;
    (void)munmap(pages, *(uint64_t *)(void *)pages);
}

/* A hash of the host's boot id and name. */
static enum status host_identity(uint64_t *id, struct error *err)
{
    char name[256] = "";
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t n = f ? fread(name, 1, sizeof name / 2, f) : 0;
    (void)err;
    if (f) fclose(f);
    (void)gethostname(name + n, sizeof name - n - 1);
    *id = device_hash(name, strlen(name));
    return OK;
}

static enum status host_memory_per_rank(unsigned ranks, uint64_t *bytes, struct error *err)
{
    uint64_t available = available_bytes();
    (void)err;
    *bytes = available == UINT64_MAX ? UINT64_MAX : available / ranks;
    return OK;
}

static enum status copy_bytes(void *to, const void *from, uint64_t bytes, struct error *err)
{
    (void)err;
    if (to != from && bytes) memcpy(to, from, bytes);
    return OK;
}

static enum status synchronize_host(struct error *err)
{
    (void)err;
    return OK;
}

/* ---- timers: calls are synchronous, so marks are reached at once ---- */

static enum status cpu_timer_create(void **timer, size_t num_marks, struct error *err)
{
    *timer = calloc(num_marks + 1, sizeof(double));
    return *timer ? OK : fail(err, ERR_MEMORY, "no memory for a timer");
}

static enum status cpu_timer_mark(void *timer, size_t mark, struct error *err)
{
    (void)err;
    ((double *)timer)[mark] = seconds_now();
    return OK;
}

static enum status cpu_timer_seconds(void *timer, size_t from, size_t to, double *seconds,
                                     struct error *err)
{
    const double *marks = timer;
    (void)err;
    *seconds = marks[to] - marks[from];
    return OK;
}

static const struct device_timers timers = {cpu_timer_create, free, cpu_timer_mark,
                                            cpu_timer_seconds};

const struct device cpu_device = {.name = "cpu",
                                  .is_host = true,
                                  .open = open_host,
                                  .close = close_host,
                                  .allocate = allocate_host_memory,
                                  .release = release_host_memory,
                                  .identity = host_identity,
                                  .free_memory = host_memory_per_rank,
                                  .upload = copy_bytes,
                                  .download = copy_bytes,
                                  .copy = copy_bytes,
                                  .synchronize = synchronize_host,
                                  .ops = cpu_ops,
                                  .describe = cpu_instructions,
                                  .timers = &timers};
