/* matmul.h - the way a dense product is computed, its key, and the file of
 * search results. */
#ifndef FERRY_KERNELS_CUDA_MATMUL_H
#define FERRY_KERNELS_CUDA_MATMUL_H

#include <cublasLt.h>
#include <stdint.h>

#include "common/status.h"

struct plan_key {
    uint64_t m, n, k;
    uint64_t elem_type, c_type; /* cudaDataType_t */
    uint64_t c_is_real;
    uint64_t transpose_a, transpose_b, has_bias, accumulate; /* has_bias: cuBLASLt adds it */
    uint64_t align_a, align_b, align_c;                      /* bytes */
    uint64_t compute_type, version; /* cuBLASLt's: its algorithms depend on it */
    uint64_t made_by;               /* fused.cu: the op that makes a; 0: a is given */
};

/* Ways of computing it. Files contain these numbers. */
enum way {
    BY_CUBLASLT = 0,
    BY_FEW_ROWS = 1,
    BY_FEW_ROWS_SM90 = 2,
    BY_CUBLASLT_BIAS_APART = 3, /* adds the bias afterwards: c is rounded twice */
    BY_TILES = 4,
    BY_FEW_ROWS_MMA = 5,
    BY_FUSED = 6, /* one kernel makes a and the product */
    BY_TURNS = 7  /* a kernel makes a, then the product goes its own way */
};

struct choice {
    uint64_t way;
    cublasLtMatmulAlgo_t algorithm; /* for cuBLASLt */
};

/* The file is FERRY_CUDA_CACHE, or one for this GPU and cuBLASLt in the user's
 * home. Errors of reading and writing are ignored: the heuristics' choice is
 * good, too. */
/* Opens cuBLASLt and reads the file, once. matmul_searches: FERRY_CUDA_TUNE
 * is 1. */
MUST_CHECK enum status matmul_start(struct error *err);
bool matmul_searches(void);

void matmul_cache_read(void);
void matmul_cache_add(const struct plan_key *key, const struct choice *choice);
/* The choice read from the file; NULL if none. */
const struct choice *matmul_cache_find(const struct plan_key *key);
void matmul_cache_free(void);

#endif
