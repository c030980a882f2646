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

static bool find(const char *name, size_t field, enum dtype *dtype)
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
    return find(name, offsetof(struct dtype_info, safetensors), dtype);
}

bool dtype_from_torch(const char *name, enum dtype *dtype)
{
    return find(name, offsetof(struct dtype_info, torch), dtype);
}

bool dtype_from_storage(const char *name, enum dtype *dtype)
{
    return find(name, offsetof(struct dtype_info, storage), dtype);
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

/* A small float of `exponent` and `mantissa` bits below its sign, subnormals included. */
static double small_float(unsigned bits, int exponent, int mantissa, int bias)
{
    int e = (int)(bits >> mantissa) & ((1 << exponent) - 1);
    double m = bits & ((1u << mantissa) - 1);
    double scale = ldexp(1.0, -mantissa);
    double value = e ? ldexp(1 + m * scale, e - bias) : ldexp(m * scale, 1 - bias);
    return bits >> (exponent + mantissa) & 1 ? -value : value;
}

/* IEEE-like 8-bit floats differ in what they spend on infinities and NaN; see the table of types in
 * onnx/docs/docsgen/source/technical/float8.md. */
static double load_f8(enum dtype dtype, uint8_t b)
{
    switch (dtype) {
    case DT_F8_E4M3:
        return (b & 0x7F) == 0x7F ? NAN : small_float(b, 4, 3, 7);
    case DT_F8_E5M2:
        if ((b & 0x7C) == 0x7C) return b & 3 ? NAN : b & 0x80 ? -INFINITY : INFINITY;
        return small_float(b, 5, 2, 15);
    case DT_F8_E4M3FNUZ:
        return b == 0x80 ? NAN : small_float(b, 4, 3, 8);
    case DT_F8_E5M2FNUZ:
        return b == 0x80 ? NAN : small_float(b, 5, 2, 16);
    default:
        return b == 0xFF ? NAN : ldexp(1.0, b - 127); /* F8_E8M0 */
    }
}

static double load_f16(uint16_t b)
{
    if ((b & 0x7C00) == 0x7C00) return b & 0x3FF ? NAN : b & 0x8000 ? -INFINITY : INFINITY;
    return small_float(b, 5, 10, 15);
}

static float bits_to_float(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

double dtype_load(enum dtype dtype, const void *elements, uint64_t index)
{
    const uint8_t *bytes = elements;
    unsigned bits = dtype_infos[dtype].bits;
    if (bits < 8) {
        uint64_t at = index * bits;
        unsigned two = bytes[at / 8];
        if (at % 8 + bits > 8) two |= (unsigned)bytes[at / 8 + 1] << 8;
        unsigned e = two >> at % 8 & ((1u << bits) - 1);
        if (dtype == DT_F4) return small_float(e, 2, 1, 1);
        return dtype == DT_F6_E2M3 ? small_float(e, 2, 3, 1) : small_float(e, 3, 2, 3);
    }
    bytes += index * (bits / 8);
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
        float f32;
        double f64;
    } x = {0};
    memcpy(&x, bytes, bits == 128 ? 8 : bits / 8);
    switch (dtype) {
    case DT_BOOL:
    case DT_U8:
        return x.u8;
    case DT_I8:
        return x.i8;
    case DT_I16:
        return x.i16;
    case DT_U16:
        return x.u16;
    case DT_F16:
        return load_f16(x.u16);
    case DT_BF16:
        return bits_to_float((uint32_t)x.u16 << 16);
    case DT_I32:
        return x.i32;
    case DT_U32:
        return x.u32;
    case DT_F32:
    case DT_C64:
        return x.f32;
    case DT_F64:
    case DT_C128:
        return x.f64;
    case DT_I64:
        return (double)x.i64;
    case DT_U64:
        return (double)x.u64;
    default:
        return load_f8(dtype, x.u8);
    }
}
