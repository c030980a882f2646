#include "kernels/ops.h"
#include "common/count.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

/* from kernels/cpu/ops/table.c, once for each of OP_VARIANTS */
extern const struct op_kernel ops_f32_v1[NUM_OPS], ops_f64_v1[NUM_OPS], ops_bf16_v1[NUM_OPS],
    ops_f16_v1[NUM_OPS];

static bool any(void)
{
    return true;
}

#if defined(__x86_64__)
extern const struct op_kernel ops_f32_v3[NUM_OPS], ops_f64_v3[NUM_OPS], ops_bf16_v3[NUM_OPS],
    ops_f16_v3[NUM_OPS];
extern const struct op_kernel ops_bf16_v4[NUM_OPS];

static bool has_v3(void)
{
    /* AVX2 implies F16C on all processors */
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_v4(void)
{
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bf16");
}

#ifdef HAVE_AMX
extern const struct op_kernel ops_bf16_amx[NUM_OPS];

/* Linux grants a process AMX tiles on request, since 5.16. */
static bool has_amx(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned wanted = 1u << 22 | 1u << 24; /* AMX-BF16, AMX-TILE */
    unsigned a, b, c, d;
    return has_v4() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & wanted) == wanted &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}
#endif
#define INSTRUCTIONS_OF_ALL "CPU, SSE2, no bf16 instructions"
#elif defined(__aarch64__)
#define INSTRUCTIONS_OF_ALL "CPU, NEON, no bf16 instructions"
#else
#define INSTRUCTIONS_OF_ALL "CPU, no bf16 instructions"
#endif

/* An instruction set that ops are compiled for. */
struct level {
    const char *name; /* as in FERRY_CPU */
    const char *description;
    bool (*is_here)(void);
    const struct op_kernel *tables[NUM_ELEM_TYPES]; /* NULL: those of the level below */
};

/* From the lowest to the highest. */
static const struct level levels[] = {
    /* f32, f64, bf16, f16 */
    {"v1", INSTRUCTIONS_OF_ALL, any, {ops_f32_v1, ops_f64_v1, ops_bf16_v1, ops_f16_v1}},
#if defined(__x86_64__)
    {"v3",
     "CPU, AVX2, no bf16 instructions",
     has_v3,
     {ops_f32_v3, ops_f64_v3, ops_bf16_v3, ops_f16_v3}},
    {"v4", "CPU, AVX2, AVX-512 BF16 for bf16", has_v4, {NULL, NULL, ops_bf16_v4, NULL}},
#ifdef HAVE_AMX
    {"amx", "CPU, AVX2, AMX for bf16", has_amx, {NULL, NULL, ops_bf16_amx, NULL}},
#endif
#endif
};

/* The highest level that this machine has and FERRY_CPU allows. */
static const struct level *level(void)
{
    const char *most = getenv("FERRY_CPU");
    const struct level *best = levels;
    for (size_t i = 1; i < COUNT(levels); i++) {
        if (most && strcmp(most, levels[i - 1].name) == 0) break;
        if (levels[i].is_here()) best = &levels[i];
    }
    return best;
}

const struct op_kernel *cpu_ops(enum elem_type elem)
{
    const struct level *l = level();
    while (!l->tables[elem])
        l--;
    return l->tables[elem];
}

const char *cpu_instructions(void)
{
    return level()->description;
}

const char *cpu_level_name(size_t number, bool *is_here)
{
    if (number >= COUNT(levels)) return NULL;
    *is_here = levels[number].is_here();
    return levels[number].name;
}

const char *cpu_level_in_use(void)
{
    return level()->name;
}
