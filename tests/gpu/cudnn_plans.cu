/* cudnn_plans - whether cuDNN has plans for our shapes of attention on an H200,
 * which need not be present. TAP.
 *
 * cuDNN makes plans without a GPU, but looks for the driver's
 * functions: emulator/driver.cpp. */
#include <stdio.h>

#include "kernels/cuda/cudnn_plan.h"

/* An H200 as cuDNN describes it. */
static const char h200[] =
    "{\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],"
    "\"regsPerBlock\":65536,\"multiProcessorCount\":132,\"smCountOrigin\":0,\"warpSize\":32,"
    "\"maxSharedMemoryPerBlock\":49152,\"maxSharedMemoryPerBlockOptin\":232448,"
    "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
    "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"pciDeviceId\":0,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":150120497152,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,\"cudaDeviceId\":0,\"deviceVer\":900,"
    "\"driverVer\":13000,\"deviceName\":\"NVIDIA H200\"}";

/* How fused rows of groups (each: query heads, key, value) become a batch. */
enum kind {
    ALL_HEADS,    /* all sequences at once; one query head a group */
    ONE_SEQUENCE, /* one sequence, its groups are the batch */
    ONE_GROUP     /* one group, its sequences are the batch */
};

static const struct shape_row {
    const char *what;
    enum kind kind;
    int64_t sequences, groups, queries, length, head_dim;
} shapes[] = {
    // clang-format off
    {"GPT-2 large",                 ALL_HEADS,    32, 20, 1, 1024,   64},
    {"heads of 8",                  ALL_HEADS,    1,  1,  1, 64,     8},
    {"heads of 40",                 ALL_HEADS,    2,  3,  1, 200,    40},
    {"heads of 80",                 ALL_HEADS,    3,  4,  1, 777,    80},
    {"heads of 96",                 ALL_HEADS,    3,  4,  1, 1000,   96},
    {"heads of 128",                ALL_HEADS,    2,  16, 1, 2048,   128},
    {"heads of 256",                ALL_HEADS,    2,  4,  1, 512,    256},
    {"Llama 3.2 1B, by sequence",   ONE_SEQUENCE, 4,  8,  4, 2048,   64},
    {"Llama 3.2 1B, by group",      ONE_GROUP,    16, 8,  4, 2048,   64},
    {"Llama 3.1 8B, by sequence",   ONE_SEQUENCE, 1,  8,  4, 131072, 128},
    {"Llama 3.1 8B, by group",      ONE_GROUP,    16, 8,  4, 8192,   128},
    {"nine heads of 80, by group",  ONE_GROUP,    5,  2,  9, 333,    80},
    // clang-format on
};

static struct cudnn_shape shape_of(const struct shape_row *r)
{
    const int64_t d = r->head_dim, group = (r->queries + 2) * d, row = r->groups * group;
    const int64_t o_group = r->queries * d, o_row = r->groups * o_group;
    const bool by_sequence = r->kind == ONE_SEQUENCE, all = r->kind == ALL_HEADS;
    struct cudnn_shape s = {};
    s.batch = by_sequence ? r->groups : r->sequences;
    s.heads = all ? r->groups : r->queries;
    s.kv_heads = all ? r->groups : 1;
    s.length = r->length;
    s.head_dim = d;
    s.q = {by_sequence ? group : r->length * row, all ? group : d, row};
    s.kv = {by_sequence ? group : r->length * row, group, row};
    s.o = {by_sequence ? o_group : r->length * o_row, d, o_row};
    return s;
}

/* For a forward pass, for training, and with the other mask. */
static const struct variant {
    const char *what;
    int64_t f16, causal, stats;
} variants[] = {
    {"bf16, causal", 0, 1, 0},
    {"f16, causal, with stats", 1, 1, 1},
    {"bf16, all to all, with stats", 0, 0, 1},
};

static enum status make_plans(const struct shape_row *r, struct error *err)
{
    for (const struct variant &v : variants) {
        struct cudnn_shape s = shape_of(r);
        struct cudnn_plan p;
        s.f16 = v.f16;
        s.causal = v.causal;
        s.stats = v.stats;
        const enum status st = cudnn_plan_make(&p, &s, h200, err);
        cudnn_plan_release(&p);
        if (st) return fail_in(err, "%s", v.what);
    }
    return OK;
}

int main(void)
{
    struct error err;
    unsigned number = 0, failed = 0;
    if (cudnn_load(&err)) {
        printf("ok 1 - plans of cuDNN # SKIP %s\n", err.text);
        return 0;
    }
    for (const struct shape_row &r : shapes) {
        const enum status st = make_plans(&r, &err);
        failed += st != OK;
        printf("%s %u - cuDNN %u has plans for %s\n", st ? "not ok" : "ok", ++number,
               cudnn_version(), r.what);
        if (st) printf("# %s\n", err.text);
    }
    return failed ? 1 : 0;
}
