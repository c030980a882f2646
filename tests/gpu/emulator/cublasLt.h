/* cublasLt.h - the products of cuBLASLt that kernels/cuda/matmul.cu asks for,
 * as in its manual: D = alpha op(A) op(B) + beta C + bias, column-major.
 *
 * EMULATED_CUBLASLT limits it:
 *   nothing   no algorithm
 *   no-bias   no algorithm that adds a bias
 *   refuses   the first algorithm cannot run, and its check says so
 *   errs      no algorithm, reported by another error
 *   fails     the first algorithm cannot run, but its check passes; stderr
 *             reports each run */
#ifndef FERRY_TESTS_GPU_EMULATOR_CUBLASLT_H
#define FERRY_TESTS_GPU_EMULATOR_CUBLASLT_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

typedef enum { CUDA_R_32F, CUDA_R_64F, CUDA_R_16BF, CUDA_R_16F } cudaDataType_t;
typedef enum {
    CUBLAS_STATUS_SUCCESS,
    CUBLAS_STATUS_EXECUTION_FAILED,
    CUBLAS_STATUS_NOT_SUPPORTED
} cublasStatus_t;
typedef enum { CUBLAS_OP_N, CUBLAS_OP_T } cublasOperation_t;
typedef enum {
    CUBLAS_COMPUTE_32F,
    CUBLAS_COMPUTE_64F,
    CUBLAS_COMPUTE_32F_FAST_TF32
} cublasComputeType_t;
typedef enum { CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS } cublasLtEpilogue_t;
typedef enum {
    CUBLASLT_MATMUL_DESC_TRANSA,
    CUBLASLT_MATMUL_DESC_TRANSB,
    CUBLASLT_MATMUL_DESC_EPILOGUE,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER
} cublasLtMatmulDescAttributes_t;
typedef enum {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
} cublasLtMatmulPreferenceAttributes_t;

enum { CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };

typedef void *cublasLtHandle_t, *cublasLtMatmulPreference_t;
struct emulated_product {
    cublasComputeType_t compute;
    cublasOperation_t transa, transb;
    cublasLtEpilogue_t epilogue;
    const void *bias;
};
struct emulated_layout {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};
typedef emulated_product *cublasLtMatmulDesc_t;
typedef emulated_layout *cublasLtMatrixLayout_t;
typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;
typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
} cublasLtMatmulHeuristicResult_t;

static inline const char *cublasLtGetStatusString(cublasStatus_t)
{
    return "an emulated status";
}

static inline size_t cublasLtGetVersion()
{
    return 130100;
}

#define DONE(name, ...)                                                                            \
    static inline cublasStatus_t name(__VA_ARGS__)                                                 \
    {                                                                                              \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    }
DONE(cublasLtDestroy, cublasLtHandle_t)
DONE(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t *)
DONE(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)
DONE(cublasLtMatmulPreferenceSetAttribute, cublasLtMatmulPreference_t,
     cublasLtMatmulPreferenceAttributes_t, const void *, size_t)

static inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    static int handle;
    *out = &handle;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out,
                                                      cublasComputeType_t compute, cudaDataType_t)
{
    *out = new emulated_product{compute, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL};
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t x)
{
    delete x;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t x,
                                                            cublasLtMatmulDescAttributes_t what,
                                                            const void *value, size_t bytes)
{
    void *const places[] = {&x->transa, &x->transb, &x->epilogue, &x->bias};
    memcpy(places[what], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out,
                                                        cudaDataType_t type, uint64_t rows,
                                                        uint64_t columns, int64_t ld)
{
    *out = new emulated_layout{type, rows, columns, ld};
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t x)
{
    delete x;
    return CUBLAS_STATUS_SUCCESS;
}

static inline bool emulated_cublaslt_is(const char *what)
{
    const char *given = getenv("EMULATED_CUBLASLT");
    return given && strcmp(given, what) == 0;
}

static inline bool emulated_has_algorithm(const emulated_product *p)
{
    return !emulated_cublaslt_is("nothing") &&
           !(emulated_cublaslt_is("no-bias") && p->epilogue == CUBLASLT_EPILOGUE_BIAS);
}

/* The first word of an algorithm tells whether it can run. */
enum { EMULATED_WORKS, EMULATED_CANNOT_RUN };

static inline cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t p, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int,
                               cublasLtMatmulHeuristicResult_t *found, int *count)
{
    const bool refuses = emulated_cublaslt_is("refuses"), fails = emulated_cublaslt_is("fails");
    *count = 0;
    if (emulated_cublaslt_is("errs")) return CUBLAS_STATUS_EXECUTION_FAILED;
    if (!emulated_has_algorithm(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
    memset(found, 0, 2 * sizeof *found);
    if (refuses) found[0].state = CUBLAS_STATUS_NOT_SUPPORTED;
    if (refuses || fails) found[(*count)++].algo.data[0] = EMULATED_CANNOT_RUN;
    (*count)++;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t p,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                     const cublasLtMatmulAlgo_t *,
                                                     cublasLtMatmulHeuristicResult_t *result)
{
    memset(result, 0, sizeof *result);
    return emulated_has_algorithm(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static inline double emulated_load(const void *x, cudaDataType_t type, uint64_t i)
{
    if (type == CUDA_R_64F) return static_cast<const double *>(x)[i];
    if (type == CUDA_R_32F) return static_cast<const float *>(x)[i];
    if (type == CUDA_R_16F) return __half2float(static_cast<const __half *>(x)[i]);
    return __bfloat162float(static_cast<const __nv_bfloat16 *>(x)[i]);
}

static inline void emulated_store(void *x, cudaDataType_t type, uint64_t i, double value)
{
    if (type == CUDA_R_64F)
        static_cast<double *>(x)[i] = value;
    else if (type == CUDA_R_32F)
        static_cast<float *>(x)[i] = (float)value;
    else if (type == CUDA_R_16F)
        static_cast<__half *>(x)[i] = __float2half_rn((float)value);
    else
        static_cast<__nv_bfloat16 *>(x)[i] = __float2bfloat16_rn((float)value);
}

/* Element (row, column) of op(x). */
static inline double emulated_element(const void *x, const emulated_layout *l, cublasOperation_t op,
                                      uint64_t row, uint64_t column)
{
    const uint64_t ld = (uint64_t)l->ld;
    return emulated_load(x, l->type, op == CUBLAS_OP_N ? column * ld + row : row * ld + column);
}

/* A product with all its arguments: the host's numbers are read when it
 * is queued. */
struct emulated_matmul {
    emulated_product product;
    emulated_layout a_layout, b_layout, c_layout, d_layout;
    const void *a, *b, *c;
    void *d;
    double alpha, beta;
};

static inline void emulated_multiply(const emulated_matmul &x)
{
    const emulated_product *p = &x.product;
    const emulated_layout *la = &x.a_layout, *lb = &x.b_layout;
    const uint64_t k = p->transa == CUBLAS_OP_N ? la->columns : la->rows;
    for (uint64_t j = 0; j < x.d_layout.columns; j++)
        for (uint64_t i = 0; i < x.d_layout.rows; i++) {
            double sum = 0;
            for (uint64_t l = 0; l < k; l++)
                sum += emulated_element(x.a, la, p->transa, i, l) *
                       emulated_element(x.b, lb, p->transb, l, j);
            sum *= x.alpha;
            if (x.beta != 0) sum += x.beta * emulated_element(x.c, &x.c_layout, CUBLAS_OP_N, i, j);
            if (p->epilogue == CUBLASLT_EPILOGUE_BIAS)
                sum += emulated_load(p->bias, x.d_layout.type, i);
            emulated_store(x.d, x.d_layout.type, j * (uint64_t)x.d_layout.ld + i, sum);
        }
}

static inline cublasStatus_t
cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t p, const void *alpha, const void *a,
               cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb,
               const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *d,
               cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algorithm, void *, size_t,
               cudaStream_t)
{
    const cudaDataType_t scale = p->compute == CUBLAS_COMPUTE_64F ? CUDA_R_64F : CUDA_R_32F;
    const bool a_is_plain = p->transa == CUBLAS_OP_N, b_is_plain = p->transb == CUBLAS_OP_N;
    if ((a_is_plain ? la->columns : la->rows) != (b_is_plain ? lb->rows : lb->columns) ||
        (a_is_plain ? la->rows : la->columns) != ld->rows ||
        (b_is_plain ? lb->columns : lb->rows) != ld->columns)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (algorithm->data[0] == EMULATED_CANNOT_RUN)
        (void)fprintf(stderr, "emulated cuBLASLt: an algorithm that cannot be run\n");
    if (!emulated_has_algorithm(p) || algorithm->data[0] == EMULATED_CANNOT_RUN ||
        emulated_sticky_error())
        return CUBLAS_STATUS_EXECUTION_FAILED;
    const emulated_matmul x = {*p,
                               *la,
                               *lb,
                               *lc,
                               *ld,
                               a,
                               b,
                               c,
                               d,
                               emulated_load(alpha, scale, 0),
                               emulated_load(beta, scale, 0)};
    emulated_enqueue([=] { emulated_multiply(x); });
    return CUBLAS_STATUS_SUCCESS;
}

#endif
