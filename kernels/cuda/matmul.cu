// clang-format off
/* matmul.cu - dense products: by cuBLASLt, by our kernels for few rows, or in
 * plain tiles.
 *
 * 1. cuBLASLt is column-major: a row-major [m, n] is its [n, m]. So c^T [n, m]
 *    = op(b)^T op(a)^T, and its A is our b.
 * 2. A plan is made once for each shape and kept. Its choice is the first of
 *    find_choices() that can run. FERRY_CUDA_TUNE=1 times all of them on the
 *    first call's operands, and writes the fastest to the cache file, which is
 *    always read.
 * 3. cuBLASLt adds the bias if it supports that pair of types. Otherwise a
 *    kernel adds it afterwards: nothing is rounded twice if c is REAL. If
 *    cuBLASLt has an algorithm only without bias, an ELEM c is rounded twice.
 * 4. If cuBLASLt has no algorithm that can run, tiles.cu computes the product.
 * 5. A coded b is decoded by tiles.cu, slice by slice.
 * 6. few_rows_mma.cu and few_rows_sm90.cu are among the timed ones. Untimed,
 *    the first is taken if cuBLASLt has no algorithm, the second if
 *    FERRY_CUDA_SM90=first asks for it, whatever the file says. */
// clang-format on
#include <algorithm>
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cold.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/products.h"
#include "kernels/device.h"

#define MATMUL_WORKSPACE_BYTES ((size_t)32 << 20)
enum { BUCKETS = 256, MAX_ALGORITHMS = 16, MAX_CHOICES = MAX_ALGORITHMS + 3 };

struct plan {
    struct plan_key key;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    struct choice choice;
    struct plan *next;
};

/* One call. alpha and beta have the type of the arithmetic. */
struct call {
    struct product x;
    void *workspace;
    double alpha_f64, beta_f64;
    float alpha_f32, beta_f32;
    const void *alpha, *beta;
    /* For the call's ELEM: the whole product by one of our kernels; c
     * += bias. */
    enum status (*multiply_own)(uint64_t way, const struct product &x, struct error *err);
    enum status (*add_bias)(const struct product &x, struct error *err);
};

static cublasLtHandle_t handle;
static struct plan *plans[BUCKETS];
static bool tune;

static enum status lt_status(const char *what, cublasStatus_t code, struct error *err)
{
    if (code == CUBLAS_STATUS_SUCCESS) return OK;
    (void)cudaGetLastError(); /* not reported again by the next call */
    return fail(err, ERR_DEVICE, "matmul: %s: %s", what, cublasLtGetStatusString(code));
}

#define LT_TRY(call, what) TRY(lt_status(what, call, err))

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

static enum status set_attribute(const struct plan *plan, cublasLtMatmulDescAttributes_t attribute,
                                 const void *value, size_t bytes, struct error *err)
{
    return lt_status("an attribute",
                     cublasLtMatmulDescSetAttribute(plan->product, attribute, value, bytes), err);
}

/* Whether the product adds the bias itself. */
static enum status set_epilogue(const struct plan *plan, bool adds_bias, const void *bias,
                                struct error *err)
{
    const cublasLtEpilogue_t epilogue =
        adds_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    TRY(set_attribute(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue, err));
    if (!adds_bias) return OK;
    return set_attribute(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias, err);
}

/* A row-major [rows, columns] is cuBLASLt's [columns, rows]. */
static enum status make_layout(cublasLtMatrixLayout_t *out, uint64_t type, uint64_t rows,
                               uint64_t columns, struct error *err)
{
    return lt_status(
        "a layout",
        cublasLtMatrixLayoutCreate(out, (cudaDataType_t)type, columns, rows, (int64_t)columns),
        err);
}

static enum status describe_product(struct plan *plan, struct error *err)
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
    /* Adds sums of parts in REAL. */
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

/* ---- a product ---- */

static bool is_cublaslt(const struct choice *choice)
{
    return choice->way == BY_CUBLASLT || choice->way == BY_CUBLASLT_BIAS_APART;
}

static enum status multiply(const struct plan *plan, const struct call *c,
                            const struct choice *choice, struct error *err)
{
    const bool adds_bias = plan->key.has_bias && choice->way == BY_CUBLASLT;
    if (!is_cublaslt(choice)) return c->multiply_own(choice->way, c->x, err);
    TRY(set_epilogue(plan, adds_bias, c->x.bias, err));
    LT_TRY(cublasLtMatmul(handle, plan->product, c->alpha, c->x.b, plan->a, c->x.a, plan->b,
                          c->beta, c->x.c, plan->c, c->x.c, plan->c, &choice->algorithm,
                          c->workspace, MATMUL_WORKSPACE_BYTES, cuda_stream),
           "the product");
    return c->x.bias && !adds_bias ? c->add_bias(c->x, err) : OK;
}

/* ---- the ways to compute it ---- */

/* The likeliest first. */
struct choices {
    struct choice all[MAX_CHOICES];
    int count;
};

static void add_own(struct choices *choices, enum way way)
{
    choices->all[choices->count++] = {(uint64_t)way, {}};
}

static bool can_be_few_rows_sm90(const struct product &x)
{
    return few_rows_sm90_takes(x) && few_rows_sm90_is_trusted(x);
}

static void add_few_rows(const struct product &x, struct choices *choices)
{
    const bool first = sm90_has_word("first");
    if (!few_rows_takes(x)) return;
    if (first && can_be_few_rows_sm90(x)) add_own(choices, BY_FEW_ROWS_SM90);
    add_own(choices, BY_FEW_ROWS);
    if (!first && tune && can_be_few_rows_sm90(x)) add_own(choices, BY_FEW_ROWS_SM90);
}

/* The algorithms of cuBLASLt; none if it returns an error. Those whose state is
 * not success cannot run. */
static enum status add_algorithms(const struct plan *plan, const struct call *c, enum way way,
                                  struct choices *choices, struct error *err)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[MAX_ALGORITHMS];
    int num_found = 0;
    TRY(set_epilogue(plan, plan->key.has_bias && way == BY_CUBLASLT, c->x.bias, err));
    TRY(make_preference(&preference, &plan->key, err));
    const cublasStatus_t code =
        cublasLtMatmulAlgoGetHeuristic(handle, plan->product, plan->a, plan->b, plan->c, plan->c,
                                       preference, MAX_ALGORITHMS, found, &num_found);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < num_found && !code; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            choices->all[choices->count++] = {(uint64_t)way, found[i].algo};
    return OK;
}

static enum status find_choices(const struct plan *plan, const struct call *c,
                                struct choices *choices, struct error *err)
{
    choices->count = 0;
    add_few_rows(c->x, choices);
    TRY(add_algorithms(plan, c, BY_CUBLASLT, choices, err));
    if (choices->count == 0 && plan->key.has_bias)
        TRY(add_algorithms(plan, c, BY_CUBLASLT_BIAS_APART, choices, err));
    if (few_rows_mma_takes(c->x) && (tune || choices->count == 0))
        add_own(choices, BY_FEW_ROWS_MMA);
    if (choices->count == 0) add_own(choices, BY_TILES);
    return OK;
}

/* ---- the fastest of them ---- */

/* A plan's product, in one of the ways. */
struct attempt {
    const struct plan *plan;
    const struct call *call;
    const struct choice *choice;
};

static enum status run_attempt(const void *context, struct error *err)
{
    const struct attempt *a = static_cast<const struct attempt *>(context);
    return multiply(a->plan, a->call, a->choice, err);
}

/* Prints to stderr, if FERRY_CUDA_SM90 has "say" and rows are few. */
static void say_way(const struct plan *plan, const struct choice *choice, const char *what,
                    double seconds)
{
    static const char *const names[] = {
        "cuBLASLt", "few_rows", "few_rows_sm90", "cuBLASLt, bias apart", "tiles", "few_rows_mma"};
    const struct plan_key *k = &plan->key;
    if (k->m > MAX_MMA_ROWS || !sm90_has_word("say")) return;
    (void)fprintf(stderr, "matmul [%llu, %llu, %llu]: %s %s", (unsigned long long)k->m,
                  (unsigned long long)k->n, (unsigned long long)k->k, names[choice->way], what);
    if (seconds > 0) (void)fprintf(stderr, " %.1f us", seconds * 1e6);
    (void)fprintf(stderr, "\n");
}

/* A failing way is not chosen. If all others fail, tiles are: they take
 * every product. */
static enum status keep_fastest(struct plan *plan, const struct call *c,
                                const struct choices *choices, struct error *err)
{
    double best = INFINITY, seconds;
    struct cold_clock clock;
    TRY(cold_clock_open(&clock, err));
    for (int i = 0; i < choices->count; i++) {
        const struct choice *choice = &choices->all[i];
        const struct attempt attempt = {plan, c, choice};
        const enum status st = cold_time(&clock, run_attempt, &attempt, &seconds, NULL);
        say_way(plan, choice, st ? "fails" : "takes", st ? 0 : seconds);
        if (st || seconds >= best) continue;
        best = seconds;
        plan->choice = *choice;
    }
    cold_clock_close(&clock);
    if (best < INFINITY) matmul_cache_add(&plan->key, &plan->choice);
    return OK;
}

/* Keeps the first way that can run. */
static void keep_first(struct plan *plan, const struct call *c, const struct choices *choices)
{
    for (int i = 0; i < choices->count; i++) {
        if (multiply(plan, c, &choices->all[i], NULL)) continue;
        plan->choice = choices->all[i];
        return;
    }
}

static bool sm90_is_first(const struct product &x)
{
    return sm90_has_word("first") && can_be_few_rows_sm90(x);
}

/* A product that adds to c can run only once, and one recorded into a graph
 * would be there twice: these get the likeliest way, untried. */
static bool can_try(const struct plan *plan)
{
    return !plan->key.accumulate && !cuda_is_capturing();
}

static enum status choose_way(struct plan *plan, const struct call *c, struct error *err)
{
    struct choices choices;
    TRY(find_choices(plan, c, &choices, err));
    plan->choice = choices.all[0];
    if (!can_try(plan)) return OK;
    plan->choice = {BY_TILES, {}}; /* takes everything: if it fails, the product does */
    if (tune && !sm90_is_first(c->x)) return keep_fastest(plan, c, &choices, err);
    keep_first(plan, c, &choices);
    return OK;
}

/* Whether a file's choice suits this product and this GPU. */
static bool can_be(const struct plan *plan, const struct call *c, const struct choice *choice)
{
    cublasLtMatmulHeuristicResult_t result;
    if (choice->way == BY_TILES) return true;
    if (choice->way == BY_FEW_ROWS) return few_rows_takes(c->x);
    if (choice->way == BY_FEW_ROWS_SM90) return can_be_few_rows_sm90(c->x);
    if (choice->way == BY_FEW_ROWS_MMA) return few_rows_mma_takes(c->x);
    if (!is_cublaslt(choice)) return false;
    if (set_epilogue(plan, plan->key.has_bias && choice->way == BY_CUBLASLT, c->x.bias, NULL))
        return false;
    return !cublasLtMatmulAlgoCheck(handle, plan->product, plan->a, plan->b, plan->c, plan->c,
                                    &choice->algorithm, &result) &&
           result.workspaceSize <= MATMUL_WORKSPACE_BYTES;
}

static bool take_cached(struct plan *plan, const struct call *c)
{
    const struct choice *choice = matmul_cache_find(&plan->key);
    if (!choice || !can_be(plan, c, choice)) return false;
    plan->choice = *choice;
    return !can_try(plan) || !multiply(plan, c, choice, NULL);
}

/* ---- plans ---- */

enum status matmul_start(struct error *err)
{
    const char *wanted = getenv("FERRY_CUDA_TUNE");
    if (handle) return OK;
    LT_TRY(cublasLtCreate(&handle), "cuBLASLt");
    tune = wanted && strcmp(wanted, "1") == 0;
    matmul_cache_read();
    return OK;
}

bool matmul_searches(void)
{
    return tune;
}

static unsigned bucket_of(const struct plan_key *key)
{
    return (unsigned)((key->m * 31 + key->n) * 31 + key->k) % BUCKETS;
}

static void release_plan(struct plan *plan)
{
    (void)cublasLtMatmulDescDestroy(plan->product);
    (void)cublasLtMatrixLayoutDestroy(plan->a);
    (void)cublasLtMatrixLayoutDestroy(plan->b);
    (void)cublasLtMatrixLayoutDestroy(plan->c);
    free(plan);
}

static enum status add_matmul_plan(struct plan **out, const struct plan_key *key,
                                   const struct call *c, struct error *err)
{
    struct plan *plan = static_cast<struct plan *>(calloc(1, sizeof *plan));
    if (!plan) return fail(err, ERR_MEMORY, "matmul: no memory for a plan");
    plan->key = *key;
    enum status st = describe_product(plan, err);
    if (!st && (sm90_is_first(c->x) || !take_cached(plan, c))) st = choose_way(plan, c, err);
    if (st) {
        release_plan(plan);
        return st;
    }
    say_way(plan, &plan->choice, "is used", 0);
    plan->next = plans[bucket_of(key)];
    plans[bucket_of(key)] = *out = plan;
    return OK;
}

static enum status find_plan(struct plan **out, const struct plan_key *key, const struct call *c,
                             struct error *err)
{
    TRY(matmul_start(err));
    for (struct plan *p = plans[bucket_of(key)]; p; p = p->next)
        if (same_key(&p->key, key)) {
            *out = p;
            return OK;
        }
    return add_matmul_plan(out, key, c, err);
}

void matmul_close(void)
{
    for (unsigned i = 0; i < BUCKETS; i++)
        for (struct plan *p = plans[i], *next; p; p = next) {
            next = p->next;
            release_plan(p);
        }
    memset(plans, 0, sizeof plans);
    matmul_cache_free();
    few_rows_close();
    fused_close();
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
template <> struct lt_type<f16> {
    static const cudaDataType_t value = CUDA_R_16F;
};

static uint64_t alignment_of(const void *place)
{
    const uint64_t at = (uint64_t)(uintptr_t)place, low = at & (~at + 1);
    return low > 0 && low < 256 ? low : 256;
}

template <typename E> static struct plan_key key_of(const struct product &x)
{
    struct plan_key k = {};
    k.m = x.m;
    k.n = x.n;
    k.k = x.k;
    k.elem_type = lt_type<E>::value;
    k.c_is_real = x.c_is_real;
    k.c_type = x.c_is_real ? lt_type<real_of<E>>::value : lt_type<E>::value;
    k.transpose_a = x.transpose_a;
    k.transpose_b = x.transpose_b;
    k.has_bias = x.bias && k.c_type == k.elem_type && k.elem_type != CUDA_R_64F;
    k.accumulate = x.accumulate;
    k.align_a = alignment_of(x.a);
    k.align_b = alignment_of(x.b);
    k.align_c = alignment_of(x.c);
    k.compute_type = compute_type(k.elem_type);
    k.version = cublasLtGetVersion();
    return k;
}

template <typename E>
static struct product matmul_product(const union op_params *p, const struct operand *in,
                                     const struct operand *out)
{
    struct product x = {};
    x.elem = ELEM_OF<E>;
    x.a = in[0].data;
    x.b = in[1].data;
    x.bias = in[2].data;
    x.c = out[0].data;
    x.c_is_real = out[0].type == OPERAND_REAL;
    x.transpose_a = p->matmul.transpose_a;
    x.transpose_b = p->matmul.transpose_b;
    x.accumulate = in[3].data != nullptr;
    x.m = out[0].shape[0];
    x.n = out[0].shape[1];
    x.k = in[0].shape[!x.transpose_a];
    x.alpha = p->matmul.alpha;
    return x;
}

static void set_scales(struct call *c, bool f64)
{
    c->alpha_f64 = c->x.alpha;
    c->beta_f64 = c->x.accumulate ? 1 : 0;
    c->alpha_f32 = (float)c->alpha_f64;
    c->beta_f32 = (float)c->beta_f64;
    c->alpha = f64 ? (const void *)&c->alpha_f64 : &c->alpha_f32;
    c->beta = f64 ? (const void *)&c->beta_f64 : &c->beta_f32;
}

template <typename E, typename C> __global__ void add_to_rows(C *c, const E *bias, size_t n)
{
    for (size_t i = threadIdx.x; i < n; i += blockDim.x) {
        C *const to = c + blockIdx.x * n + i;
        *to = from_real<C>(to_real(*to) + to_real(bias[i]));
    }
}

template <typename E, typename C>
static enum status launch_add(const struct product &x, struct error *err)
{
    return launch("matmul", err, add_to_rows<E, C>, dim3((unsigned)x.m), threads_for(x.n, 256), 0,
                  static_cast<C *>(x.c), static_cast<const E *>(x.bias), x.n);
}

template <typename E> static enum status add_bias(const struct product &x, struct error *err)
{
    return x.c_is_real ? launch_add<E, real_of<E>>(x, err) : launch_add<E, E>(x, err);
}

template <typename E>
static enum status multiply_own(uint64_t way, const struct product &x, struct error *err)
{
    if (way == BY_FEW_ROWS_SM90) return sm90_kernels.few_rows(x, err);
    if (way == BY_FEW_ROWS_MMA) return multiply_few_rows_mma(x, err);
    return way == BY_FEW_ROWS ? multiply_few_rows<E>(x, err) : multiply_tiles<E>(x, err);
}

/* Copies the addend to the result's place. */
template <typename E>
static enum status place_c(const struct operand *in, const struct operand *out, struct error *err)
{
    const size_t bytes =
        operand_numel(&out[0]) * (out[0].type == OPERAND_REAL ? sizeof(real_of<E>) : sizeof(E));
    if (!in[3].data || in[3].data == out[0].data) return OK;
    return cuda_status(
        "matmul",
        cudaMemcpyAsync(out[0].data, in[3].data, bytes, cudaMemcpyDeviceToDevice, cuda_stream),
        err);
}

template <typename E> enum status op_matmul(OP_ARGUMENTS)
{
    struct plan *plan;
    struct call c = {};
    c.x = matmul_product<E>(p, in, out);
    c.workspace = workspace;
    c.multiply_own = multiply_own<E>;
    c.add_bias = add_bias<E>;
    if (c.x.m == 0 || c.x.n == 0) return OK;
    TRY(place_c<E>(in, out, err));
    if (in[1].coding) return multiply_coded<E>(c.x, in[1], err);
    const struct plan_key key = key_of<E>(c.x);
    set_scales(&c, key.elem_type == CUDA_R_64F);
    TRY(find_plan(&plan, &key, &c, err));
    return multiply(plan, &c, &plan->choice, err);
}

template <typename E> size_t op_matmul_workspace(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)in, (void)out;
    return MATMUL_WORKSPACE_BYTES;
}

FOR_ALL_TYPES(op_matmul)
WORKSPACE_FOR_ALL_TYPES(op_matmul_workspace)

/* ---- named kernels ---- */

template <typename E> static bool takes_few_rows(WORKSPACE_ARGUMENTS)
{
    return !in[1].coding && few_rows_takes(matmul_product<E>(p, in, out));
}

template <typename E> static bool takes_few_rows_sm90(WORKSPACE_ARGUMENTS)
{
    return !in[1].coding && few_rows_sm90_takes(matmul_product<E>(p, in, out));
}

template <typename E> static bool takes_few_rows_mma(WORKSPACE_ARGUMENTS)
{
    return !in[1].coding && few_rows_mma_takes(matmul_product<E>(p, in, out));
}

static bool takes_elements(WORKSPACE_ARGUMENTS)
{
    (void)p, (void)out;
    return !in[1].coding;
}

template <typename E, enum way W> static enum status multiply_by(OP_ARGUMENTS)
{
    (void)workspace;
    TRY(place_c<E>(in, out, err));
    return multiply_own<E>(W, matmul_product<E>(p, in, out), err);
}

// clang-format off
const struct device_kernel matmul_kernels[] = {
    {"few_rows", ELEM_F32, takes_few_rows<float>, {multiply_by<float, BY_FEW_ROWS>, NULL}},
    {"few_rows", ELEM_F64, takes_few_rows<double>, {multiply_by<double, BY_FEW_ROWS>, NULL}},
    {"few_rows", ELEM_BF16, takes_few_rows<bf16>, {multiply_by<bf16, BY_FEW_ROWS>, NULL}},
    {"few_rows", ELEM_F16, takes_few_rows<f16>, {multiply_by<f16, BY_FEW_ROWS>, NULL}},
    {"few_rows_sm90", ELEM_BF16, takes_few_rows_sm90<bf16>, {multiply_by<bf16, BY_FEW_ROWS_SM90>, NULL}},
    {"few_rows_sm90", ELEM_F16, takes_few_rows_sm90<f16>, {multiply_by<f16, BY_FEW_ROWS_SM90>, NULL}},
    {"few_rows_mma", ELEM_BF16, takes_few_rows_mma<bf16>, {multiply_by<bf16, BY_FEW_ROWS_MMA>, NULL}},
    {"few_rows_mma", ELEM_F16, takes_few_rows_mma<f16>, {multiply_by<f16, BY_FEW_ROWS_MMA>, NULL}},
    {"tiles", ELEM_F32, takes_elements, {multiply_by<float, BY_TILES>, NULL}},
    {"tiles", ELEM_F64, takes_elements, {multiply_by<double, BY_TILES>, NULL}},
    {"tiles", ELEM_BF16, takes_elements, {multiply_by<bf16, BY_TILES>, NULL}},
    {"tiles", ELEM_F16, takes_elements, {multiply_by<f16, BY_TILES>, NULL}},
    {},
};
// clang-format on
