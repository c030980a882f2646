/* engine_open.c - loads libferry_engine.so; joins and leaves a job around a command's work. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/arena.h"
#include "common/file.h"
#include "common/host_memory.h"
#include "common/ranks.h"
#include "common/result.h"
#include "common/threads.h"
#include "common/version.h"
#include "train/loop/engine.h"

/* Beside the program, where it is built; in ../lib/ferry, where it is installed. */
static void *load_library(struct arena *a)
{
    char own[4096];
    ssize_t n = readlink("/proc/self/exe", own, sizeof own - 1);
    if (n < 0) return NULL;
    own[n] = '\0';
    const char *folder = path_parent(a, own);
    const char *beside = path_join(a, folder, "libferry_engine.so");
    if (path_exists(beside)) return dlopen(beside, RTLD_NOW);
    return dlopen(path_join(a, folder, "../lib/ferry/libferry_engine.so"), RTLD_NOW);
}

/* OpenBLAS reserves this much address space per CPU when it is loaded, and retries forever if the
 * reservation fails. */
#define CPU_ADDRESS_SPACE ((uint64_t)128 << 20)

static enum status check_address_space(struct error *err)
{
    const uint64_t left = host_memory_address_space(),
                   least = (threads_available() + 1) * CPU_ADDRESS_SPACE;
    if (left >= least) return OK;
    return fail(
        err, ERR_MEMORY,
        "ulimit -v leaves %.2f GB of address space; the engine's libraries take %.2f GB, of "
        "which they use little",
        (double)left / 1e9, (double)least / 1e9);
}

/* GNU OpenMP reads the variable when it is loaded. By default its threads spin for milliseconds
 * before they sleep, and so take CPU time from other ranks on the machine. */
static void spin_briefly(void)
{
    if (!getenv("OMP_WAIT_POLICY")) (void)setenv("GOMP_SPINCOUNT", "20000", false);
}

/* OpenBLAS reads the variable when it is loaded. It knows Intel's CPUs by their model numbers, and
 * computes on one that is newer than itself with the instructions of 2004: it is told the kernels
 * for those that are there. Of AMD's it goes by their instructions, as far as AVX2. Kernels
 * with AVX-512 have Intel's names only, so they are named for CPUs of any vendor that have it. */
static void name_instructions(void)
{
#ifdef __x86_64__
    const char *core = NULL;
    if (__builtin_cpu_is("intel") && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("fma"))
        core = "Haswell";
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl"))
        core = "SkylakeX";
    if (core) (void)setenv("OPENBLAS_CORETYPE", core, false);
#endif
}

enum status engine_open(const struct engine **out, struct error *err)
{
    struct arena a;
    TRY(check_address_space(err));
    spin_briefly();
    name_instructions();
    arena_init(&a);
    void *library = load_library(&a);
    arena_release(&a);
    if (!library) return fail(err, ERR_UNSUPPORTED, "the engine cannot be loaded: %s", dlerror());
    *out = dlsym(library, ENGINE_SYMBOL);
    const char *const *version = dlsym(library, ENGINE_VERSION_SYMBOL);
    if (*out && version && strcmp(*version, FERRY_VERSION) == 0) return OK;
    return fail(err, ERR_UNSUPPORTED, "libferry_engine.so is of version %s, this is %s",
                version ? *version : "(none)", FERRY_VERSION);
}

enum status engine_run(engine_work *work, void *context, struct error *err)
{
    const struct engine *e;
    unsigned rank;
    TRY(engine_open(&e, err));
    enum status st = e->join(&rank, err);
    if (rank) result_silence();
    if (!st) st = work(context, e, rank == 0, err);
    return e->leave(st, err);
}

enum status engine_is_alone(bool *works, struct error *err)
{
    const struct engine *e;
    struct ranks ranks;
    unsigned rank;
    *works = true;
    TRY(ranks_from_environment(&ranks, err));
    if (ranks.size == 1 || !ranks.share_output) return OK;
    TRY(engine_open(&e, err));
    enum status st = e->join(&rank, err);
    if (!st) st = engine_agree_on_words(e, err);
    *works = rank == 0;
    if (rank) result_silence();
    return e->leave(st, err);
}
