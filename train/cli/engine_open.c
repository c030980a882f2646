/* engine_open.c - loads libferry_engine.so; joins a job before a command's
 * work, leaves it after. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/host_memory.h"
#include "common/library.h"
#include "common/ranks.h"
#include "common/result.h"
#include "common/threads.h"
#include "common/version.h"
#include "train/loop/engine.h"

static const char ENGINE_FILE[] = "libferry_engine.so";

/* OpenBLAS reserves this much address space per CPU on loading, and retries
 * forever if that fails. */
#define CPU_ADDRESS_SPACE ((uint64_t)128 << 20)

static enum status check_address_space(struct error *err)
{
    const uint64_t left = host_memory_address_space(),
                   least = (threads_available() + 1) * CPU_ADDRESS_SPACE;
    if (left >= least) return OK;
    return fail(
        err, ERR_MEMORY,
        "ulimit -v leaves %.2f GB of address space; the engine's libraries reserve %.2f GB and use "
        "little of it",
        (double)left / 1e9, (double)least / 1e9);
}

/* GNU OpenMP reads the variable on loading. By default its threads spin for
 * milliseconds before they sleep, which takes CPU time from other ranks. */
static void spin_briefly(void)
{
    if (!getenv("OMP_WAIT_POLICY")) (void)setenv("GOMP_SPINCOUNT", "20000", false);
}

/* OpenBLAS reads the variable on loading. It knows Intel's CPUs by model
 * number, and runs one newer than itself with the instructions of 2004, so this
 * names the kernels that fit. It detects the instructions of AMD's CPUs, but
 * only up to AVX2. Its AVX-512 kernels have Intel's names, so they are named
 * for CPUs of any vendor. */
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
    char path[LIBRARY_PATH];
    TRY(check_address_space(err));
    spin_briefly();
    name_instructions();
    if (!library_find(path, ENGINE_FILE, NULL))
        return fail(err, ERR_UNSUPPORTED,
                    "%s is neither beside ferry nor in ../lib/ferry: build it with make",
                    ENGINE_FILE);
    void *library = dlopen(path, RTLD_NOW);
    if (!library) return fail(err, ERR_UNSUPPORTED, "cannot load the engine: %s", dlerror());
    *out = dlsym(library, ENGINE_SYMBOL);
    const char *const *version = dlsym(library, ENGINE_VERSION_SYMBOL);
    if (*out && version && strcmp(*version, ferry_version) == 0) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s has version %s, ferry has version %s", ENGINE_FILE,
                version ? *version : "(none)", ferry_version);
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
