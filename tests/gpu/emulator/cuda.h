/* cuda.h - the driver's functions that kernels/cuda calls: maps of a matrix,
 * from which tiles are copied into shared memory. */
#ifndef FERRY_TESTS_GPU_EMULATOR_CUDA_H
#define FERRY_TESTS_GPU_EMULATOR_CUDA_H

#include <stdint.h>

typedef uint32_t cuuint32_t;
typedef uint64_t cuuint64_t;
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 } CUresult;
typedef enum {
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
} CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE } CUtensorMapInterleave;
typedef enum { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B } CUtensorMapSwizzle;
typedef enum { CU_TENSOR_MAP_L2_PROMOTION_L2_256B } CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE } CUtensorMapFloatOOBfill;

/* A map of a matrix with elements of two bytes. */
struct alignas(64) CUtensorMap {
    const char *matrix;
    uint64_t columns, rows, row_bytes;
    uint32_t box_columns, box_rows;
    bool swizzles;
};

/* As in its manual, for two dimensions and elements of two bytes. */
static inline CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType,
                                              cuuint32_t dimensions, void *matrix,
                                              const cuuint64_t *sizes, const cuuint64_t *row_bytes,
                                              const cuuint32_t *box, const cuuint32_t *steps,
                                              CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                              CUtensorMapL2promotion, CUtensorMapFloatOOBfill)
{
    const uint64_t most = (uint64_t)1 << 32;
    if ((uintptr_t)map % 64 || dimensions != 2 || (uintptr_t)matrix % 16 || row_bytes[0] % 16 ||
        row_bytes[0] >= (uint64_t)1 << 40 || steps[0] != 1 || steps[1] != 1)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < 2; i++)
        if (sizes[i] == 0 || sizes[i] > most || box[i] == 0 || box[i] > 256)
            return CUDA_ERROR_INVALID_VALUE;
    if (box[0] * 2 % 16 || (swizzle == CU_TENSOR_MAP_SWIZZLE_128B && box[0] * 2 > 128))
        return CUDA_ERROR_INVALID_VALUE;
    *map = {static_cast<const char *>(matrix),    sizes[0], sizes[1], row_bytes[0], box[0], box[1],
            swizzle == CU_TENSOR_MAP_SWIZZLE_128B};
    return CUDA_SUCCESS;
}

#endif
