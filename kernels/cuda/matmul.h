/* matmul.h - how a dense product is computed, what that depends on, and the file that keeps what a
 * search found. */
#ifndef FERRY_KERNELS_CUDA_MATMUL_H
#define FERRY_KERNELS_CUDA_MATMUL_H

#include <cublasLt.h>
#include <stdint.h>

#include "common/status.h"

struct plan_key {
    uint64_t m, n, k;
    uint64_t elem_type, c_type; /* cudaDataType_t */
    uint64_t c_is_real;
    uint64_t transpose_a, transpose_b, has_bias, accumulate; /* has_bias: for cuBLASLt to add */
    uint64_t align_a, align_b, align_c;                      /* bytes */
    uint64_t compute_type, version; /* of cuBLASLt: its algorithms are its own */
    uint64_t made_by;               /* of fused.cu: which op makes a. 0: a is there */
};

/* Who computes it. Files have these numbers. */
enum way {
    BY_CUBLASLT = 0,
    BY_FEW_ROWS = 1,
    BY_FEW_ROWS_SM90 = 2,
    BY_CUBLASLT_BIAS_APART = 3, /* the bias is added behind it: c is rounded twice */
    BY_TILES = 4,
    BY_FEW_ROWS_MMA = 5,
    BY_FUSED = 6, /* one kernel makes a and the product */
    BY_TURNS = 7  /* a kernel makes a; then the product goes its own way */
};

struct choice {
    uint64_t way;
    cublasLtMatmulAlgo_t algorithm; /* where it is cuBLASLt */
};

/* The file is that of FERRY_CUDA_CACHE, or of this GPU and cuBLASLt in the user's home. What cannot
 * be read or written is not kept: the heuristics' choice is good too. */
/* Opens cuBLASLt and reads the file, once; whether FERRY_CUDA_TUNE asks for searches. */
MUST_CHECK enum status matmul_start(struct error *err);
bool matmul_searches(void);

void matmul_cache_read(void);
void matmul_cache_add(const struct plan_key *key, const struct choice *choice);
/* What was read; NULL where that has no such product. */
const struct choice *matmul_cache_find(const struct plan_key *key);
void matmul_cache_free(void);

#endif
