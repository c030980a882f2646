#include "common/dtype.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "common/checked.h"
#include "common/count.h"

const struct dtype_info dtype_infos[NUM_DTYPES] = {
#define X(id, bits, safetensors, torch, storage) {bits, #id, safetensors, torch, storage},
    DTYPES(X)
#undef X
};

static bool find_dtype(const char *name, size_t field, enum dtype *dtype)
{
    for (int i = 0; i < NUM_DTYPES; i++) {
        const char *text;
        memcpy(&text, (const char *)&dtype_infos[i] + field, sizeof text);
        if (text && strcmp(text, name) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    }
    return false;
}

bool dtype_from_safetensors(const char *name, enum dtype *dtype)
{
    return find_dtype(name, offsetof(struct dtype_info, safetensors), dtype);
}

bool dtype_from_torch(const char *name, enum dtype *dtype)
{
    return find_dtype(name, offsetof(struct dtype_info, torch), dtype);
}

bool dtype_from_storage(const char *name, enum dtype *dtype)
{
    return find_dtype(name, offsetof(struct dtype_info, storage), dtype);
}

bool dtype_from_user(const char *name, enum dtype *dtype)
{
    static const struct {
        const char *name;
        enum dtype dtype;
    } also[] = {{"fp16", DT_F16}, {"half", DT_F16},   {"fp32", DT_F32},   {"float", DT_F32},
                {"fp64", DT_F64}, {"double", DT_F64}, {"fp8", DT_F8_E4M3}};
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (int i = 0; i < NUM_DTYPES; i++) {
        const struct dtype_info *row = &dtype_infos[i];
        if ((row->torch && strcasecmp(row->torch, name) == 0) || strcasecmp(row->name, name) == 0) {
            *dtype = (enum dtype)i;
            return true;
        }
    }
    for (size_t i = 0; i < COUNT(also); i++)
        if (strcasecmp(also[i].name, name) == 0) {
            *dtype = also[i].dtype;
            return true;
        }
    return false;
}

bool dtype_is_float(enum dtype dtype)
{
    switch (dtype) {
    case DT_F16:
    case DT_BF16:
    case DT_F32:
    case DT_F64:
        return true;
    default:
        return false;
    }
}

bool dtype_size_bytes(enum dtype dtype, uint64_t numel, uint64_t *bytes)
{
    uint64_t bits;
    if (!mul_u64(numel, dtype_infos[dtype].bits, &bits) || bits % 8) return false;
    *bytes = bits / 8;
    return true;
}

/* A small float with `exponent` and `mantissa` bits, subnormals included. */
static double small_float(unsigned bits, int exponent, int mantissa, int bias)
{
    int e = (int)(bits >> mantissa) & ((1 << exponent) - 1);
    double m = bits & ((1u << mantissa) - 1);
    double scale = ldexp(1.0, -mantissa);
    double value = e ? ldexp(1 + m * scale, e - bias) : ldexp(m * scale, 1 - bias);
    return bits >> (exponent + mantissa) & 1 ? -value : value;
}

/* ---- an element as a number, from the lowest of these bits ---- */

static double load_unsigned(uint64_t bits)
{
    return (double)bits;
}

static double load_i8(uint64_t bits)
{
    return (int8_t)bits;
}

static double load_i16(uint64_t bits)
{
    return (int16_t)bits;
}

static double load_i32(uint64_t bits)
{
    return (int32_t)bits;
}

static double load_i64(uint64_t bits)
{
    return (double)(int64_t)bits;
}

static double load_f4(uint64_t bits)
{
    return small_float((unsigned)bits, 2, 1, 1);
}

static double load_f6_e2m3(uint64_t bits)
{
    return small_float((unsigned)bits, 2, 3, 1);
}

static double load_f6_e3m2(uint64_t bits)
{
    return small_float((unsigned)bits, 3, 2, 3);
}

/* 8-bit floats differ in their codes for infinities and NaN: see the table of
 * types in onnx/docs/docsgen/source/technical/float8.md. */
static double load_f8_e4m3(uint64_t bits)
{
    return (bits & 0x7F) == 0x7F ? NAN : small_float((unsigned)bits, 4, 3, 7);
}

static double load_f8_e5m2(uint64_t bits)
{
    if ((bits & 0x7C) == 0x7C) return bits & 3 ? NAN : bits & 0x80 ? -INFINITY : INFINITY;
    return small_float((unsigned)bits, 5, 2, 15);
}

static double load_f8_e4m3fnuz(uint64_t bits)
{
    return bits == 0x80 ? NAN : small_float((unsigned)bits, 4, 3, 8);
}

static double load_f8_e5m2fnuz(uint64_t bits)
{
    return bits == 0x80 ? NAN : small_float((unsigned)bits, 5, 2, 16);
}

static double load_f8_e8m0(uint64_t bits)
{
    return bits == 0xFF ? NAN : ldexp(1.0, (int)bits - 127);
}

static double load_f16(uint64_t bits)
{
    if ((bits & 0x7C00) == 0x7C00) return bits & 0x3FF ? NAN : bits & 0x8000 ? -INFINITY : INFINITY;
    return small_float((unsigned)bits, 5, 10, 15);
}

static double load_f32(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, sizeof f);
    return f;
}

static double load_bf16(uint64_t bits)
{
    return load_f32(bits << 16);
}

static double load_f64(uint64_t bits)
{
    double f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static double (*const loaders[NUM_DTYPES])(uint64_t bits) = {
    [DT_BOOL] = load_unsigned,
    [DT_F4] = load_f4,
    [DT_F6_E2M3] = load_f6_e2m3,
    [DT_F6_E3M2] = load_f6_e3m2,
    [DT_U8] = load_unsigned,
    [DT_I8] = load_i8,
    [DT_F8_E5M2] = load_f8_e5m2,
    [DT_F8_E4M3] = load_f8_e4m3,
    [DT_F8_E8M0] = load_f8_e8m0,
    [DT_F8_E4M3FNUZ] = load_f8_e4m3fnuz,
    [DT_F8_E5M2FNUZ] = load_f8_e5m2fnuz,
    [DT_I16] = load_i16,
    [DT_U16] = load_unsigned,
    [DT_F16] = load_f16,
    [DT_BF16] = load_bf16,
    [DT_I32] = load_i32,
    [DT_U32] = load_unsigned,
    [DT_F32] = load_f32,
    [DT_C64] = load_f32,
    [DT_F64] = load_f64,
    [DT_I64] = load_i64,
    [DT_U64] = load_unsigned,
    [DT_C128] = load_f64,
};

/* Bits of a sub-byte element, packed from the lowest bit of each byte up. */
static uint64_t packed_bits(unsigned bits, const uint8_t *bytes, uint64_t index)
{
    uint64_t at = index * bits;
    unsigned two = bytes[at / 8];
    if (at % 8 + bits > 8) two |= (unsigned)bytes[at / 8 + 1] << 8;
    return two >> at % 8 & ((1u << bits) - 1);
}

double dtype_load(enum dtype dtype, const void *elements, uint64_t index)
{
    unsigned bits = dtype_infos[dtype].bits;
    if (bits < 8) return loaders[dtype](packed_bits(bits, elements, index));
    uint64_t x = 0;
    memcpy(&x, (const uint8_t *)elements + index * (bits / 8), bits == 128 ? 8 : bits / 8);
    return loaders[dtype](x);
}
