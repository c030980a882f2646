/* Products by cuBLASLt, which counts in columns: a row-major [m, n] is its [n, m]. So c^T [n, m] =
 * op(b)^T op(a)^T, and what it calls A is our b.
 *
 * 1. A plan is made once for each shape and kept. Its algorithm is the first of cuBLASLt's
 *    heuristics, or our own kernel (few_rows.h) where a has few rows; FERRY_CUDA_TUNE=1 times all
 * of them on the operands of the first call, and writes the best one to the cache file, which is
 *    read whenever it is there.
 * 2. Bias is added by cuBLASLt where it knows that pair of types, else by a kernel behind it: c is
 *    REAL there, so that nothing is rounded twice. */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/few_rows.h"

#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)
enum { BUCKETS = 256, MOST_ALGORITHMS = 8, TIMED_RUNS = 5, PATH_BYTES = 1024 };

/* What an algorithm depends on. */
struct plan_key {
    uint64_t m, n, k;
    uint64_t elem_type, c_type; /* cudaDataType_t */
    uint64_t c_is_real;
    uint64_t transpose_a, transpose_b, has_bias, accumulate;
    uint64_t align_a, align_b, align_c; /* bytes */
    uint64_t compute_type, version;     /* of cuBLASLt: its algorithms are its own */
};

/* How it is computed. */
struct choice {
    uint64_t own; /* 1: by few_rows.h; 0: by cuBLASLt's algorithm */
    cublasLtMatmulAlgo_t algorithm;
};

struct plan {
    struct plan_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    struct choice choice;
    struct plan *next;
};

/* One call. alpha and beta are of the type that is computed in. */
struct call {
    const void *a, *b, *bias;
    void *c, *workspace;
    double alpha_f64, beta_f64;
    float alpha_f32, beta_f32;
    const void *alpha, *beta;
};

/* A line of the cache file. */
struct cached {
    struct plan_key key;
    struct choice choice;
    struct cached *next;
};

static cublasLtHandle_t handle;
static struct plan *plans[BUCKETS];
static struct cached *cache;
static bool tune;

static enum status lt_status(const char *what, cublasStatus_t code, struct error *err)
{
    if (code == CUBLAS_STATUS_SUCCESS) return OK;
    return fail(err, ERR_DEVICE, "matmul: %s: %s", what, cublasLtGetStatusString(code));
}

#define LT_TRY(call, what) TRY(lt_status(what, call, err))

/* ---- the cache file ---- */

static void cache_path(char path[PATH_BYTES])
{
    cudaDeviceProp properties;
    const char *given = getenv("FERRY_CUDA_CACHE"), *home = getenv("HOME");
    int device = 0;
    path[0] = '\0';
    if (given) {
        (void)snprintf(path, PATH_BYTES, "%s", given);
        return;
    }
    if (!home || cudaGetDevice(&device) || cudaGetDeviceProperties(&properties, device)) return;
    for (char *c = properties.name; *c; c++)
        if (*c == ' ' || *c == '/') *c = '-';
    (void)snprintf(path, PATH_BYTES, "%s/.cache/ferry/matmul-%s-%zu.txt", home, properties.name,
                   cublasLtGetVersion());
}

enum { KEY_WORDS = sizeof(struct plan_key) / 8, CHOICE_WORDS = sizeof(struct choice) / 8 };

/* A line is the key's numbers, then the choice's, in hexadecimal. */
static bool read_words(FILE *f, uint64_t *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        unsigned long long word;
        if (fscanf(f, "%llx", &word) != 1) return false;
        words[i] = word;
    }
    return true;
}

static void write_words(FILE *f, const void *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, (const char *)words + i * 8, 8);
        (void)fprintf(f, "%llx ", (unsigned long long)word);
    }
}

/* What cannot be read is not known: the heuristics' choice is good too. */
static void cache_read(void)
{
    char path[PATH_BYTES];
    uint64_t words[KEY_WORDS + CHOICE_WORDS];
    cache_path(path);
    FILE *f = path[0] ? fopen(path, "r") : NULL;
    while (f && read_words(f, words, KEY_WORDS + CHOICE_WORDS)) {
        struct cached *c = static_cast<struct cached *>(malloc(sizeof *c));
        if (!c) break;
        memcpy(&c->key, words, sizeof c->key);
        memcpy(&c->choice, words + KEY_WORDS, sizeof c->choice);
        c->next = cache;
        cache = c;
    }
    if (f) (void)fclose(f);
}

static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0777);
        *slash = '/';
    }
}

static void cache_append(const struct plan *plan)
{
    char path[PATH_BYTES];
    cache_path(path);
    if (!path[0]) return;
    make_folders(path);
    FILE *f = fopen(path, "a");
    if (!f) return;
    write_words(f, &plan->key, KEY_WORDS);
    write_words(f, &plan->choice, CHOICE_WORDS);
    (void)fprintf(f, "\n");
    (void)fclose(f);
}

static bool same_key(const struct plan_key *a, const struct plan_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* ---- making a plan ---- */

static cublasComputeType_t compute_type(uint64_t elem_type)
{
    const char *tf32 = getenv("FERRY_CUDA_TF32");
    if (elem_type == CUDA_R_64F) return CUBLAS_COMPUTE_64F;
    if (elem_type == CUDA_R_32F && tf32 && strcmp(tf32, "1") == 0)
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    return CUBLAS_COMPUTE_32F;
}

static enum status set_attribute(struct plan *plan, cublasLtMatmulDescAttributes_t attribute,
                                 const void *value, size_t bytes, struct error *err)
{
    return lt_status("an attribute",
                     cublasLtMatmulDescSetAttribute(plan->product, attribute, value, bytes), err);
}

static enum status set_bias(struct plan *plan, const void *bias, struct error *err)
{
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    if (!plan->key.has_bias) return OK;
    TRY(set_attribute(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err));
    return set_attribute(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, err);
}

/* What lies row-major as [rows, columns] is cuBLASLt's [columns, rows]. */
static enum status make_layout(cublasLtMatrixLayout_t *out, uint64_t type, uint64_t rows,
                               uint64_t columns, struct error *err)
{
    return lt_status(
        "a layout",
        cublasLtMatrixLayoutCreate(out, (cudaDataType_t)type, columns, rows, (int64_t)columns),
        err);
}

static enum status describe(struct plan *plan, struct error *err)
{
    const struct plan_key *k = &plan->key;
    const cublasOperation_t transa = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t transb = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t scale = k->elem_type == CUDA_R_64F ? CUDA_R_64F : CUDA_R_32F;
    LT_TRY(cublasLtMatmulDescCreate(&plan->product, (cublasComputeType_t)k->compute_type, scale),
           "a product");
    TRY(set_attribute(plan, CUBLASLT_MATMUL_DESC_TRANSA, &transa, sizeof transa, err));
    TRY(set_attribute(plan, CUBLASLT_MATMUL_DESC_TRANSB, &transb, sizeof transb, err));
    TRY(make_layout(&plan->a, k->elem_type, k->transpose_b ? k->n : k->k,
                    k->transpose_b ? k->k : k->n, err));
    TRY(make_layout(&plan->b, k->elem_type, k->transpose_a ? k->k : k->m,
                    k->transpose_a ? k->m : k->k, err));
    return make_layout(&plan->c, k->c_type, k->m, k->n, err);
}

static enum status make_preference(cublasLtMatmulPreference_t *out, const struct plan_key *key,
                                   struct error *err)
{
    const size_t bytes = MATMUL_WORKSPACE_BYTES;
    /* What is added up from parts is added up in REAL. */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        uint32_t bytes;
    } alignments[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, (uint32_t)key->align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, (uint32_t)key->align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, (uint32_t)key->align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, (uint32_t)key->align_c},
    };
    LT_TRY(cublasLtMatmulPreferenceCreate(out), "a preference");
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                &bytes, sizeof bytes),
           "a preference");
    LT_TRY(cublasLtMatmulPreferenceSetAttribute(*out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                &reductions, sizeof reductions),
           "a preference");
    for (const auto &a : alignments)
        LT_TRY(cublasLtMatmulPreferenceSetAttribute(*out, a.attribute, &a.bytes, sizeof a.bytes),
               "a preference");
    return OK;
}

static bool has_few_rows(const struct plan_key *k)
{
    return k->m <= MOST_FEW_ROWS && k->transpose_b && !k->transpose_a && !k->accumulate;
}

static enum status multiply_by_rows(const struct plan *plan, const struct call *c,
                                    struct error *err)
{
    const struct plan_key *k = &plan->key;
    const struct few_rows x = {c->a, c->b, c->bias, c->c,        k->c_is_real != 0,
                               k->m, k->n, k->k,    c->alpha_f64};
    if (k->elem_type == CUDA_R_64F) return multiply_few_rows<double>(x, err);
    if (k->elem_type == CUDA_R_32F) return multiply_few_rows<float>(x, err);
    return multiply_few_rows<bf16>(x, err);
}

static enum status multiply(const struct plan *plan, const struct call *c,
                            const struct choice *choice, struct error *err)
{
    if (choice->own) return multiply_by_rows(plan, c, err);
    return lt_status("the product",
                     cublasLtMatmul(handle, plan->product, c->alpha, c->b, plan->a, c->a, plan->b,
                                    c->beta, c->c, plan->c, c->c, plan->c, &choice->algorithm,
                                    c->workspace, MATMUL_WORKSPACE_BYTES, cuda_stream),
                     err);
}

/* Milliseconds of TIMED_RUNS runs. */
static enum status time_choice(const struct plan *plan, const struct call *c,
                               const struct choice *choice, cudaEvent_t begin, cudaEvent_t end,
                               float *ms, struct error *err)
{
    TRY(multiply(plan, c, choice, err));
    TRY(cuda_status("matmul", cudaEventRecord(begin, cuda_stream), err));
    for (int i = 0; i < TIMED_RUNS; i++)
        TRY(multiply(plan, c, choice, err));
    TRY(cuda_status("matmul", cudaEventRecord(end, cuda_stream), err));
    TRY(cuda_status("matmul", cudaEventSynchronize(end), err));
    return cuda_status("matmul", cudaEventElapsedTime(ms, begin, end), err);
}

/* One that cannot be run is none of the best. */
static void keep_fastest(struct plan *plan, const struct call *c, const struct choice *choices,
                         int count)
{
    cudaEvent_t begin, end;
    float best = INFINITY, ms;
    if (cudaEventCreate(&begin) || cudaEventCreate(&end)) return;
    for (int i = 0; i < count; i++) {
        if (time_choice(plan, c, &choices[i], begin, end, &ms, NULL) || ms >= best) continue;
        best = ms;
        plan->choice = choices[i];
    }
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    cache_append(plan);
}

/* The likeliest first. */
static enum status find_choices(const struct plan *plan, struct choice *choices, int *count,
                                struct error *err)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[MOST_ALGORITHMS];
    int num_found = 0;
    *count = 0;
    if (has_few_rows(&plan->key)) choices[(*count)++] = {1, {}};
    TRY(make_preference(&preference, &plan->key, err));
    const cublasStatus_t code =
        cublasLtMatmulAlgoGetHeuristic(handle, plan->product, plan->a, plan->b, plan->c, plan->c,
                                       preference, MOST_ALGORITHMS, found, &num_found);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < num_found && !code; i++)
        choices[(*count)++] = {0, found[i].algo};
    if (*count > 0) return OK;
    LT_TRY(code, "choosing an algorithm");
    return fail(err, ERR_DEVICE, "matmul: cuBLASLt knows no algorithm");
}

static enum status choose(struct plan *plan, const struct call *c, struct error *err)
{
    struct choice choices[MOST_ALGORITHMS + 1];
    int count;
    TRY(find_choices(plan, choices, &count, err));
    plan->choice = choices[0];
    /* A product that is added to c can be carried out once only. */
    if (tune && !plan->key.accumulate) keep_fastest(plan, c, choices, count);
    return OK;
}

static bool take_cached(struct plan *plan)
{
    cublasLtMatmulHeuristicResult_t result;
    const struct cached *c = cache;
    while (c && !same_key(&c->key, &plan->key))
        c = c->next;
    if (!c) return false;
    plan->choice = c->choice;
    if (c->choice.own) return has_few_rows(&plan->key);
    return !cublasLtMatmulAlgoCheck(handle, plan->product, plan->a, plan->b, plan->c, plan->c,
                                    &c->choice.algorithm, &result) &&
           result.workspaceSize <= MATMUL_WORKSPACE_BYTES;
}

static enum status start(struct error *err)
{
    const char *wanted = getenv("FERRY_CUDA_TUNE");
    if (handle) return OK;
    LT_TRY(cublasLtCreate(&handle), "cuBLASLt");
    tune = wanted && strcmp(wanted, "1") == 0;
    cache_read();
    return OK;
}

static unsigned bucket_of(const struct plan_key *key)
{
    return (unsigned)((key->m * 31 + key->n) * 31 + key->k) % BUCKETS;
}

static void release(struct plan *plan)
{
    (void)cublasLtMatmulDescDestroy(plan->product);
    (void)cublasLtMatrixLayoutDestroy(plan->a);
    (void)cublasLtMatrixLayoutDestroy(plan->b);
    (void)cublasLtMatrixLayoutDestroy(plan->c);
    free(plan);
}

static enum status make_plan(struct plan **out, const struct plan_key *key, const struct call *c,
                             struct error *err)
{
    struct plan *plan = static_cast<struct plan *>(calloc(1, sizeof *plan));
    if (!plan) return fail(err, ERR_MEMORY, "matmul: no memory for a plan");
    plan->key = *key;
    enum status st = describe(plan, err);
    if (!st) st = set_bias(plan, c->bias, err);
    if (!st && !take_cached(plan)) st = choose(plan, c, err);
    if (st) {
        release(plan);
        return st;
    }
    plan->next = plans[bucket_of(key)];
    plans[bucket_of(key)] = *out = plan;
    return OK;
}

static enum status find_plan(struct plan **out, const struct plan_key *key, const struct call *c,
                             struct error *err)
{
    TRY(start(err));
    for (struct plan *p = plans[bucket_of(key)]; p; p = p->next)
        if (same_key(&p->key, key)) {
            *out = p;
            return set_bias(p, c->bias, err);
        }
    return make_plan(out, key, c, err);
}

void matmul_close(void)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct plan *p = plans[i], *next; p; p = next) {
            next = p->next;
            release(p);
        }
    for (struct cached *c = cache, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    memset(plans, 0, sizeof plans);
    cache = NULL;
    if (handle) (void)cublasLtDestroy(handle);
    handle = NULL;
}

/* ---- the op ---- */

template <typename E> struct lt_type;
template <> struct lt_type<float> {
    static const cudaDataType_t value = CUDA_R_32F;
};
template <> struct lt_type<double> {
    static const cudaDataType_t value = CUDA_R_64F;
};
template <> struct lt_type<bf16> {
    static const cudaDataType_t value = CUDA_R_16BF;
};

static uint64_t alignment_of(const void *place)
{
    const uint64_t at = (uint64_t)(uintptr_t)place, low = at & (~at + 1);
    return low > 0 && low < 256 ? low : 256;
}

template <typename E>
static struct plan_key key_of(const union op_params *p, const struct operand *in,
                              const struct operand *out)
{
    struct plan_key k = {};
    k.m = out[0].shape[0];
    k.n = out[0].shape[1];
    k.k = in[0].shape[!p->matmul.transpose_a];
    k.elem_type = lt_type<E>::value;
    k.c_is_real = out[0].type == OPERAND_REAL;
    k.c_type = k.c_is_real ? lt_type<real_of<E>>::value : lt_type<E>::value;
    k.transpose_a = p->matmul.transpose_a;
    k.transpose_b = p->matmul.transpose_b;
    k.has_bias = in[2].data && k.c_type == k.elem_type && k.elem_type != CUDA_R_64F;
    k.accumulate = p->matmul.accumulate;
    k.align_a = alignment_of(in[0].data);
    k.align_b = alignment_of(in[1].data);
    k.align_c = alignment_of(out[0].data);
    k.compute_type = compute_type(k.elem_type);
    k.version = cublasLtGetVersion();
    return k;
}

static void set_scales(struct call *c, const union op_params *p, bool f64)
{
    c->alpha_f64 = p->matmul.alpha;
    c->beta_f64 = p->matmul.accumulate ? 1 : 0;
    c->alpha_f32 = (float)c->alpha_f64;
    c->beta_f32 = (float)c->beta_f64;
    c->alpha = f64 ? (const void *)&c->alpha_f64 : &c->alpha_f32;
    c->beta = f64 ? (const void *)&c->beta_f64 : &c->beta_f32;
}

template <typename E> __global__ void add_bias(real_of<E> *c, const E *bias, size_t n)
{
    for (size_t i = threadIdx.x; i < n; i += blockDim.x)
        c[blockIdx.x * n + i] += to_real(bias[i]);
}

template <typename E> enum status op_matmul(OP_ARGUMENTS)
{
    const struct plan_key key = key_of<E>(p, in, out);
    struct plan *plan;
    struct call c = {};
    if (key.m == 0 || key.n == 0) return OK;
    c.a = in[0].data;
    c.b = in[1].data;
    c.bias = in[2].data;
    c.c = out[0].data;
    c.workspace = workspace;
    set_scales(&c, p, key.elem_type == CUDA_R_64F);
    TRY(find_plan(&plan, &key, &c, err));
    TRY(multiply(plan, &c, &plan->choice, err));
    if (!c.bias || key.has_bias || plan->choice.own) return OK;
    return launch("matmul", err, add_bias<E>, dim3((unsigned)key.m), threads_for(key.n, 256), 0,
                  data_of<real_of<E>>(out[0]), data_of<E>(in[2]), key.n);
}

template <typename E> size_t op_matmul_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)in, (void)out;
    return MATMUL_WORKSPACE_BYTES;
}

FOR_ALL_TYPES(op_matmul)
WORKSPACE_FOR_ALL_TYPES(op_matmul_workspace)
