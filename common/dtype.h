/* dtype.h - the element types: one row each, everything else is read off the
 * rows.
 *
 * Elements are little-endian. Sub-byte types (F4, F6_*) are packed from the
 * lowest bit of each byte up; a tensor of them must fill whole bytes, and its
 * shape counts elements. A complex element is its real part, then its imaginary
 * part.
 *
 * Columns: the name in safetensors (tensor.rs:Dtype; its writer sorts tensors
 * by the order of these rows, descending); the name in torch (`torch.NAME`);
 * the legacy storage class of module `torch`, NULL if torch saves the dtype
 * through UntypedStorage and _rebuild_tensor_v3
 * (torch/storage.py:_dtype_to_storage_type_map). */
#ifndef FERRY_COMMON_DTYPE_H
#define FERRY_COMMON_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// clang-format off
#define DTYPES(X)                                                                    \
    /* id            bits  safetensors      torch               storage           */ \
    X(BOOL,             8, "BOOL",          "bool",             "BoolStorage")       \
    X(F4,               4, "F4",            "float4_e2m1fn_x2", NULL)                \
    X(F6_E2M3,          6, "F6_E2M3",       NULL,               NULL)                \
    X(F6_E3M2,          6, "F6_E3M2",       NULL,               NULL)                \
    X(U8,               8, "U8",            "uint8",            "ByteStorage")       \
    X(I8,               8, "I8",            "int8",             "CharStorage")       \
    X(F8_E5M2,          8, "F8_E5M2",       "float8_e5m2",      NULL)                \
    X(F8_E4M3,          8, "F8_E4M3",       "float8_e4m3fn",    NULL)                \
    X(F8_E8M0,          8, "F8_E8M0",       "float8_e8m0fnu",   NULL)                \
    X(F8_E4M3FNUZ,      8, "F8_E4M3FNUZ",   "float8_e4m3fnuz",  NULL)                \
    X(F8_E5M2FNUZ,      8, "F8_E5M2FNUZ",   "float8_e5m2fnuz",  NULL)                \
    X(I16,             16, "I16",           "int16",            "ShortStorage")      \
    X(U16,             16, "U16",           "uint16",           NULL)                \
    X(F16,             16, "F16",           "float16",          "HalfStorage")       \
    X(BF16,            16, "BF16",          "bfloat16",         "BFloat16Storage")   \
    X(I32,             32, "I32",           "int32",            "IntStorage")        \
    X(U32,             32, "U32",           "uint32",           NULL)                \
    X(F32,             32, "F32",           "float32",          "FloatStorage")      \
    X(C64,             64, "C64",           "complex64",        "ComplexFloatStorage") \
    X(F64,             64, "F64",           "float64",          "DoubleStorage")     \
    X(I64,             64, "I64",           "int64",            "LongStorage")       \
    X(U64,             64, "U64",           "uint64",           NULL)                \
    /* no safetensors name from here on */                                           \
    X(C128,           128, NULL,            "complex128",       "ComplexDoubleStorage")
// clang-format on

enum dtype {
#define X(id, bits, safetensors, torch, storage) DT_##id,
    DTYPES(X)
#undef X
        NUM_DTYPES
};

struct dtype_info {
    unsigned bits;
    const char *name; /* the id as text; equal to `safetensors` if that is set */
    const char *safetensors, *torch, *storage; /* NULL: no name there */
};
extern const struct dtype_info dtype_infos[NUM_DTYPES];

/* Find a dtype by name; false if no row has it. Case-sensitive. */
bool dtype_from_safetensors(const char *name, enum dtype *dtype);
bool dtype_from_torch(const char *name, enum dtype *dtype);   /* "bfloat16" */
bool dtype_from_storage(const char *name, enum dtype *dtype); /* "BFloat16Storage" */
/* A name from a user, in upper or lower case: a safetensors or torch name, or
 * fp16, half, fp32, float, fp64, double, fp8; "torch." in front is ignored. */
bool dtype_from_user(const char *name, enum dtype *dtype);

/* Whether the type can be cast to other floats: F16, BF16, F32, F64. */
bool dtype_is_float(enum dtype dtype);

/* Elements of a block, the fewest in whole bytes: 1, 2 of F4, 4 of F6. */
static inline unsigned dtype_block(enum dtype dtype)
{
    const unsigned bits = dtype_infos[dtype].bits;
    return bits % 8 == 0 ? 1 : bits % 4 == 0 ? 2 : 4;
}

/* Bytes of one element; 0 for sub-byte types. */
static inline size_t dtype_bytes(enum dtype dtype)
{
    return dtype_infos[dtype].bits / 8;
}

/* Bytes of `count` elements, whole blocks. Must not overflow. */
static inline uint64_t dtype_run_bytes(enum dtype dtype, uint64_t count)
{
    const unsigned block = dtype_block(dtype);
    return count / block * (block * dtype_infos[dtype].bits / 8);
}

/* Bytes of numel elements; false on overflow or for a fraction of a byte. */
bool dtype_size_bytes(enum dtype dtype, uint64_t numel, uint64_t *bytes);

/* Element `index` of packed elements as a number, for printing and comparing.
 * Exact except for 64-bit integers past 2^53 and complex types (their real
 * part). */
double dtype_load(enum dtype dtype, const void *elements, uint64_t index);

#endif
