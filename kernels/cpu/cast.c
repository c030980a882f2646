#include "kernels/cpu/cast.h"

#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/half.h"
#include "kernels/cpu/finite.h"

/* Elements pass through blocks of F32 or F64 that fit the L1 cache. */
enum { BLOCK = 512 };

static void bf16_to_f32(float *to, const uint16_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_load(from[i]);
}

static void f32_to_bf16(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = bf16_store(from[i]);
}

/* For processors without F16C, and for less than a vector. */
static void f16_to_f32_plain(float *to, const uint16_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = half_load(from[i]);
}

static void f32_to_f16_plain(uint16_t *to, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = half_store(from[i]);
}

#if defined(__x86_64__)
__attribute__((target("avx,f16c"))) static size_t f16_to_f32_f16c(float *to, const uint16_t *from,
                                                                  size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
    return i;
}

__attribute__((target("avx,f16c"))) static size_t f32_to_f16_f16c(uint16_t *to, const float *from,
                                                                  size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(to + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
    return i;
}

static bool have_f16c(void)
{
    return __builtin_cpu_supports("avx2"); /* implies F16C on all processors */
}
#else
#define f16_to_f32_f16c(to, from, n) 0
#define f32_to_f16_f16c(to, from, n) 0
static bool have_f16c(void)
{
    return false;
}
#endif

static void f16_to_f32(float *to, const uint16_t *from, size_t n)
{
    size_t done = have_f16c() ? f16_to_f32_f16c(to, from, n) : 0;
    f16_to_f32_plain(to + done, from + done, n - done);
}

static void f32_to_f16(uint16_t *to, const float *from, size_t n)
{
    size_t done = have_f16c() ? f32_to_f16_f16c(to, from, n) : 0;
    f32_to_f16_plain(to + done, from + done, n - done);
}

/* n <= BLOCK elements at a (any alignment) as F32. */
static void load_f32(float *to, enum dtype dtype, const char *from, size_t n)
{
    uint16_t half[BLOCK];
    double wide[BLOCK];
    switch (dtype) {
    case DT_F32:
        memcpy(to, from, n * sizeof *to);
        break;
    case DT_F64:
        memcpy(wide, from, n * sizeof *wide);
        for (size_t i = 0; i < n; i++)
            to[i] = (float)wide[i];
        break;
    default:
        memcpy(half, from, n * sizeof *half);
        (dtype == DT_F16 ? f16_to_f32 : bf16_to_f32)(to, half, n);
    }
}

static void store_f32(char *to, enum dtype dtype, const float *from, size_t n)
{
    uint16_t half[BLOCK];
    double wide[BLOCK];
    switch (dtype) {
    case DT_F32:
        memcpy(to, from, n * sizeof *from);
        break;
    case DT_F64:
        for (size_t i = 0; i < n; i++)
            wide[i] = (double)from[i];
        memcpy(to, wide, n * sizeof *wide);
        break;
    default:
        (dtype == DT_F16 ? f32_to_f16 : f32_to_bf16)(half, from, n);
        memcpy(to, half, n * sizeof *half);
    }
}

/* Counts elements that changed value: after a cast from F64, against
 * the F64. */
static uint64_t count_changed(enum dtype from_dtype, const char *from, const float *through,
                              enum dtype to_dtype, const char *to, size_t n)
{
    float back[BLOCK];
    double exact[BLOCK];
    uint64_t changed = 0;
    load_f32(back, to_dtype, to, n);
    if (from_dtype == DT_F64) {
        memcpy(exact, from, n * sizeof *exact);
        for (size_t i = 0; i < n; i++)
            changed += (double)back[i] != exact[i] && !(back[i] != back[i] && exact[i] != exact[i]);
    } else {
        for (size_t i = 0; i < n; i++)
            changed += back[i] != through[i] && !(back[i] != back[i] && through[i] != through[i]);
    }
    return changed;
}

bool cast_exists(enum dtype to, enum dtype from)
{
    return to == from || (dtype_is_float(to) && dtype_is_float(from));
}

uint64_t cast_elements(void *to, enum dtype to_dtype, const void *from, enum dtype from_dtype,
                       size_t n)
{
    size_t to_bytes = dtype_bytes(to_dtype), from_bytes = dtype_bytes(from_dtype);
    uint64_t changed = 0;
    if (to_dtype == from_dtype) {
        memcpy(to, from, n * to_bytes);
        return 0;
    }
    bool widens = to_bytes > from_bytes; /* F16 and BF16 into F32, all into F64: exact */
    for (size_t i = 0; i < n; i += BLOCK) {
        float block[BLOCK];
        size_t count = n - i < BLOCK ? n - i : BLOCK;
        const char *in = (const char *)from + i * from_bytes;
        char *out = (char *)to + i * to_bytes;
        load_f32(block, from_dtype, in, count);
        store_f32(out, to_dtype, block, count);
        if (!widens) changed += count_changed(from_dtype, in, block, to_dtype, out, count);
    }
    return changed;
}

uint64_t cast_overflows(const void *to, enum dtype to_dtype, const void *from,
                        enum dtype from_dtype, size_t n)
{
    /* non-finite elements stay non-finite, and mostly there are none */
    uint64_t after = count_non_finite(to_dtype, to, n);
    return after ? after - count_non_finite(from_dtype, from, n) : 0;
}
