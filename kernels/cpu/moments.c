#include "kernels/cpu/moments.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cast.h"
#include "kernels/cpu/finite.h"

/* Elements become F32, or F64 if F32 cannot hold their values, in blocks that
 * fit the L1 cache. */
enum { BLOCK = 2048, LANES = 16 };

/* ---- elements as numbers ---- */

#define LOAD_INTEGERS(name, type, to_type)                                                         \
    static void name(to_type *to, const void *from, size_t n)                                      \
    {                                                                                              \
        type e;                                                                                    \
        for (size_t i = 0; i < n; i++) {                                                           \
            memcpy(&e, (const char *)from + i * sizeof e, sizeof e);                               \
            to[i] = (to_type)e;                                                                    \
        }                                                                                          \
    }
LOAD_INTEGERS(load_i16, int16_t, float)
LOAD_INTEGERS(load_u16, uint16_t, float)
LOAD_INTEGERS(load_i32, int32_t, double)
LOAD_INTEGERS(load_u32, uint32_t, double)
LOAD_INTEGERS(load_i64, int64_t, double)
LOAD_INTEGERS(load_u64, uint64_t, double)

static void load_bytes(float *to, enum dtype dtype, const uint8_t *from, size_t n)
{
    float values[256];
    for (unsigned i = 0; i < 256; i++) {
        uint8_t byte = (uint8_t)i;
        values[i] = (float)dtype_load(dtype, &byte, 0);
    }
    for (size_t i = 0; i < n; i++)
        to[i] = values[from[i]];
}

/* Whether its blocks are F64. */
static bool is_double(enum dtype dtype)
{
    return dtype == DT_F64 || dtype == DT_I32 || dtype == DT_U32 || dtype == DT_I64 ||
           dtype == DT_U64;
}

bool moments_exist(enum dtype dtype)
{
    return dtype != DT_C64 && dtype != DT_C128;
}

static void load_floats(float *to, enum dtype dtype, const void *from, size_t n)
{
    if (dtype_bytes(dtype) == 0)
        for (size_t i = 0; i < n; i++)
            to[i] = (float)dtype_load(dtype, from, i);
    else if (dtype_bytes(dtype) == 1)
        load_bytes(to, dtype, from, n);
    else if (dtype == DT_I16)
        load_i16(to, from, n);
    else if (dtype == DT_U16)
        load_u16(to, from, n);
    else
        (void)cast_elements(to, DT_F32, from, dtype, n);
}

static void load_doubles(double *to, enum dtype dtype, const void *from, size_t n)
{
    if (dtype == DT_I32)
        load_i32(to, from, n);
    else if (dtype == DT_U32)
        load_u32(to, from, n);
    else if (dtype == DT_I64)
        load_i64(to, from, n);
    else if (dtype == DT_U64)
        load_u64(to, from, n);
    else
        memcpy(to, from, n * sizeof *to);
}

/* ---- a block ---- */

/* Removes non-finite elements; returns how many are left. */
#define KEEP_FINITE(name, type)                                                                    \
    static size_t name(struct moments *m, type *x, size_t n)                                       \
    {                                                                                              \
        size_t kept = 0;                                                                           \
        for (size_t i = 0; i < n; i++) {                                                           \
            m->nan += isnan(x[i]) != 0;                                                            \
            m->infinite += isinf(x[i]) != 0;                                                       \
            if (isfinite(x[i])) x[kept++] = x[i];                                                  \
        }                                                                                          \
        return kept;                                                                               \
    }
KEEP_FINITE(keep_finite_f32, float)
KEEP_FINITE(keep_finite_f64, double)

/* Two passes over n >= 1 finite elements in LANES lanes, which fill vectors. */
#define ADD_FUNCTION(name, type, count_type, attribute)                                            \
    attribute static void name(struct moments *m, const type *x, size_t n)                         \
    {                                                                                              \
        type low[LANES], high[LANES];                                                              \
        double sum[LANES] = {0}, squares[LANES] = {0}, mean = 0;                                   \
        count_type zeros[LANES] = {0};                                                             \
        size_t whole = n - n % LANES;                                                              \
        for (size_t k = 0; k < LANES; k++)                                                         \
            low[k] = high[k] = x[0];                                                               \
        for (size_t i = 0; i < whole; i += LANES)                                                  \
            for (size_t k = 0; k < LANES; k++) {                                                   \
                type e = x[i + k];                                                                 \
                low[k] = e < low[k] ? e : low[k];                                                  \
                high[k] = e > high[k] ? e : high[k];                                               \
                zeros[k] += e == 0;                                                                \
                sum[k] += (double)e;                                                               \
            }                                                                                      \
        for (size_t i = whole; i < n; i++) {                                                       \
            low[0] = x[i] < low[0] ? x[i] : low[0];                                                \
            high[0] = x[i] > high[0] ? x[i] : high[0];                                             \
            zeros[0] += x[i] == 0;                                                                 \
            sum[0] += (double)x[i];                                                                \
        }                                                                                          \
        for (size_t k = 0; k < LANES; k++)                                                         \
            mean += sum[k];                                                                        \
        mean /= (double)n;                                                                         \
        for (size_t i = 0; i < whole; i += LANES)                                                  \
            for (size_t k = 0; k < LANES; k++) {                                                   \
                double d = (double)x[i + k] - mean;                                                \
                squares[k] += d * d;                                                               \
            }                                                                                      \
        for (size_t i = whole; i < n; i++)                                                         \
            squares[0] += ((double)x[i] - mean) * ((double)x[i] - mean);                           \
        m->finite = n;                                                                             \
        m->min = (double)low[0], m->max = (double)high[0], m->mean = mean;                         \
        for (size_t k = 0; k < LANES; k++) {                                                       \
            m->min = fmin(m->min, (double)low[k]);                                                 \
            m->max = fmax(m->max, (double)high[k]);                                                \
            m->zeros += (uint64_t)zeros[k];                                                        \
            m->squares += squares[k];                                                              \
        }                                                                                          \
    }

/* Each plain function has a twin for wider vectors, chosen at run time. */
#if defined(__x86_64__)
#define ADD_FUNCTIONS(name, type, count_type)                                                      \
    ADD_FUNCTION(name##_plain, type, count_type, )                                                 \
    ADD_FUNCTION(name##_avx2, type, count_type, __attribute__((target("avx2,fma"))))               \
    static void name(struct moments *m, const type *x, size_t n)                                   \
    {                                                                                              \
        (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? name##_avx2             \
                                                                         : name##_plain)(m, x, n); \
    }
#else
#define ADD_FUNCTIONS(name, type, count_type) ADD_FUNCTION(name, type, count_type, )
#endif
ADD_FUNCTIONS(add_f32, float, uint32_t)
ADD_FUNCTIONS(add_f64, double, uint64_t)

static void add_block(struct moments *m, enum dtype dtype, const void *from, size_t n)
{
    float floats[BLOCK];
    double doubles[BLOCK];
    bool wide = is_double(dtype), all_finite = count_non_finite(dtype, from, n) == 0;
    if (wide)
        load_doubles(doubles, dtype, from, n);
    else
        load_floats(floats, dtype, from, n);
    if (!all_finite) n = wide ? keep_finite_f64(m, doubles, n) : keep_finite_f32(m, floats, n);
    if (n && wide)
        add_f64(m, doubles, n);
    else if (n)
        add_f32(m, floats, n);
}

void moments_add(struct moments *m, enum dtype dtype, const void *elements, size_t n)
{
    const char *from = elements;
    for (size_t low = 0; low < n; low += BLOCK) {
        struct moments block = {0};
        add_block(&block, dtype, from + dtype_run_bytes(dtype, low),
                  n - low < BLOCK ? n - low : BLOCK);
        moments_join(m, &block);
    }
}

void moments_join(struct moments *m, const struct moments *other)
{
    double a = (double)m->finite, b = (double)other->finite, both = a + b;
    double distance = other->mean - m->mean;
    m->nan += other->nan;
    m->infinite += other->infinite;
    m->zeros += other->zeros;
    if (!other->finite) return;
    m->min = m->finite ? fmin(m->min, other->min) : other->min;
    m->max = m->finite ? fmax(m->max, other->max) : other->max;
    m->squares += other->squares + distance * distance * (a * b / both);
    m->mean = m->finite ? m->mean + distance * (b / both) : other->mean;
    m->finite += other->finite;
}

double moments_std(const struct moments *m)
{
    return m->finite ? sqrt(m->squares / (double)m->finite) : NAN;
}
