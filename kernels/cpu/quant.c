#include "kernels/cpu/quant.h"

#include <math.h>
#include <string.h>

#include "common/half.h"
#include "kernels/cpu/cast.h"

enum { TILE = 512 };

const struct quant_info quant_infos[NUM_QUANT_CODES] = {
    [QUANT_E4M3] = {"e4m3", 8, -448, 448}, [QUANT_E2M1] = {"e2m1", 4, -6, 6},
    [QUANT_I8] = {"i8", 8, -128, 127},     [QUANT_I4] = {"i4", 4, -8, 7},
    [QUANT_U8] = {"u8", 8, -128, 127},     [QUANT_TABLE] = {"table", 4, -1, 1},
};

bool quant_code_find(const char *name, enum quant_code *out)
{
    for (unsigned i = 0; i < NUM_QUANT_CODES; i++)
        if (strcmp(quant_infos[i].name, name) == 0) {
            *out = (enum quant_code)i;
            return true;
        }
    return false;
}

float quant_e8m0(unsigned code)
{
    return code == 0xFF ? NAN : half_float_of(code ? code << 23 : 1u << 22);
}

/* ---- codes as numbers ----
 *
 * A normal small float is F32 with another bias, a subnormal one a whole number
 * of steps. Arithmetic on subnormal F32 would be slow. */

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* c ? a : b, without a branch, so that loops are vectorised. */
ALWAYS_INLINE uint32_t pick(bool c, uint32_t a, uint32_t b)
{
    return b ^ ((a ^ b) & -(uint32_t)c);
}

ALWAYS_INLINE void load_e4m3(float *to, const uint8_t *codes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint32_t code = codes[i], rest = code & 0x7F;
        const uint32_t normal = (rest << 20) + 0x3C000000;
        const uint32_t subnormal = half_bits_of((float)(int32_t)rest * 0x1p-9f);
        const uint32_t finite = pick(rest < 8, subnormal, normal);
        to[i] = half_float_of(pick(rest == 0x7F, 0x7FC00000, finite) | (code & 0x80) << 24);
    }
}

ALWAYS_INLINE float number_of_e2m1(uint32_t code)
{
    const uint32_t rest = code & 7, normal = (rest << 22) + 0x3F000000;
    const uint32_t subnormal = rest * 0x3F000000; /* .5 or 0 */
    return half_float_of(pick(rest < 2, subnormal, normal) | (code & 8) << 28);
}

ALWAYS_INLINE void load_e2m1(float *to, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        to[2 * i] = number_of_e2m1(bytes[i] & 15u);
        to[2 * i + 1] = number_of_e2m1(bytes[i] >> 4);
    }
}

ALWAYS_INLINE void load_i4(float *to, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n / 2; i++) {
        to[2 * i] = (float)((bytes[i] & 15) - 8);
        to[2 * i + 1] = (float)((bytes[i] >> 4) - 8);
    }
}

ALWAYS_INLINE void load_table(float *to, const uint8_t *bytes, size_t n, const float *numbers)
{
    for (size_t i = 0; i < n / 2; i++) {
        to[2 * i] = numbers[bytes[i] & 15];
        to[2 * i + 1] = numbers[bytes[i] >> 4];
    }
}

ALWAYS_INLINE void load_i8(float *to, const uint8_t *codes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (float)(int8_t)codes[i];
}

ALWAYS_INLINE void load_u8(float *to, const uint8_t *codes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = (float)(codes[i] - 128);
}

/* Codes [first, first + n), n <= TILE; returns the number of `first`. to: room
 * for TILE + 2. */
ALWAYS_INLINE const float *load_codes(const struct quant_run *run, const uint8_t *codes,
                                      size_t first, size_t n, float *to)
{
    const size_t odd = first % 2, pairs = (odd + n + 1) / 2 * 2;
    switch (run->code) {
    case QUANT_E4M3:
        load_e4m3(to, codes + first, n);
        return to;
    case QUANT_E2M1:
        load_e2m1(to, codes + first / 2, pairs);
        return to + odd;
    case QUANT_I8:
        load_i8(to, codes + first, n);
        return to;
    case QUANT_I4:
        load_i4(to, codes + first / 2, pairs);
        return to + odd;
    case QUANT_TABLE:
        load_table(to, codes + first / 2, pairs, run->numbers);
        return to + odd;
    default:
        load_u8(to, codes + first, n);
        return to;
    }
}

ALWAYS_INLINE float step_of(float number, float least, float fraction)
{
    const uint32_t exponent = half_bits_of(number) & 0x7F800000, floor = half_bits_of(least);
    return half_float_of(pick(exponent > floor, exponent, floor)) * fraction;
}

float quant_step(enum quant_code code, float number)
{
    if (code == QUANT_E4M3) return step_of(number, 0x1p-6f, 0x1p-3f);
    if (code == QUANT_E2M1) return step_of(number, 1, .5f);
    return 1;
}

/* The larger distance from a number of a table to its neighbours. */
static float table_step(const float *numbers, float number)
{
    float above = INFINITY, below = INFINITY;
    for (int i = 0; i < QUANT_NUMBERS; i++) {
        if (numbers[i] > number) above = fminf(above, numbers[i] - number);
        if (numbers[i] < number) below = fminf(below, number - numbers[i]);
    }
    return isinf(above) || (!isinf(below) && below > above) ? below : above;
}

/* Makes steps of numbers. */
ALWAYS_INLINE void make_steps(const struct quant_run *run, size_t at, size_t n, const float *from,
                              float *to)
{
    for (size_t i = 0; i < n; i++) {
        const float scale = run->scales[(run->phase + at + i) / run->group];
        const float step = run->code == QUANT_TABLE ? table_step(run->numbers, from[i])
                                                    : quant_step(run->code, from[i]);
        to[i] = step * fabsf(scale);
    }
}

/* Multiplies the numbers of elements [at, at + n) of a run. */
ALWAYS_INLINE void scale_tile(const struct quant_run *run, size_t at, size_t n, const float *from,
                              float *to)
{
    size_t within = run->phase + at;
    const bool is_each = run->group == 1 && run->zeros;
    for (size_t i = 0; is_each && i < n; i++)
        to[i] = (from[i] - run->zeros[within + i]) * run->scales[within + i];
    for (size_t i = 0, count; !is_each && i < n; i += count, within += count) {
        const size_t group = within / run->group, left = run->group - within % run->group;
        const float scale = run->scales[group], zero = run->zeros ? run->zeros[group] : 0;
        count = left < n - i ? left : n - i;
        for (size_t k = 0; k < count; k++)
            to[i + k] = (from[i + k] - zero) * scale;
    }
}

ALWAYS_INLINE void decode(const struct quant_run *run, const uint8_t *codes, enum dtype dtype,
                          char *to)
{
    float numbers[TILE + 2], scaled[TILE];
    uint16_t bf16[TILE];
    for (size_t at = 0, n; at < run->count; at += n) {
        n = run->count - at < TILE ? run->count - at : TILE;
        const float *loaded = load_codes(run, codes, run->first + at, n, numbers);
        if (run->steps)
            make_steps(run, at, n, loaded, scaled);
        else
            scale_tile(run, at, n, loaded, scaled);
        for (size_t i = 0; run->factor != 0 && i < n; i++)
            scaled[i] *= run->factor;
        char *out = to + dtype_run_bytes(dtype, at);
        if (dtype != DT_BF16) {
            (void)cast_elements(out, dtype, scaled, DT_F32, n);
            continue;
        }
        for (size_t i = 0; i < n; i++)
            bf16[i] = bf16_store(scaled[i]);
        memcpy(out, bf16, n * sizeof *bf16);
    }
}

bool quant_has_numbers(const struct quant_run *run, const void *codes)
{
    float numbers[TILE + 2];
    for (size_t at = 0, n; at < run->count; at += n) {
        n = run->count - at < TILE ? run->count - at : TILE;
        const float *loaded = load_codes(run, codes, run->first + at, n, numbers);
        for (size_t i = 0; i < n; i++) {
            const float zero = run->zeros ? run->zeros[(run->phase + at + i) / run->group] : 0;
            const bool is_first =
                run->numbers && memcmp(&loaded[i], run->numbers, sizeof zero) == 0;
            if (!is_first && (loaded[i] < zero || loaded[i] > zero || isnan(loaded[i])))
                return true;
        }
    }
    return false;
}

/* ---- codes in words ---- */

void quant_gather(const struct quant_words *w, enum quant_code code, const void *words,
                  uint64_t row, size_t first, size_t count, void *codes)
{
    const unsigned bits = quant_infos[code].bits, mask = (1u << bits) - 1;
    const size_t word_bytes = (size_t)w->rows * w->cols * bits / 8;
    const unsigned char *slots = w->slots + row % w->rows * w->cols;
    const uint8_t *word = (const uint8_t *)words + first / w->cols * word_bytes;
    uint8_t *to = codes;
    memset(to, 0, (count * bits + 7) / 8);
    for (size_t i = 0, k = first % w->cols; i < count; word += word_bytes, k = 0)
        for (; k < w->cols && i < count; k++, i++) {
            const unsigned from = slots[k] * bits, at = (unsigned)(i * bits % 8);
            to[i * bits / 8] |= (uint8_t)((word[from / 8] >> from % 8 & mask) << at);
        }
}

/* ---- numbers as codes ---- */

/* x rounded to `mantissa` bits, or to the step of the least normal 2^e, `least`.
 * Adding a number whose last bit counts what x may keep rounds it. */
ALWAYS_INLINE float rounded_to(float x, unsigned mantissa, float least)
{
    const uint32_t exponent = half_bits_of(x) & 0x7F800000, floor = half_bits_of(least);
    const uint32_t highest = pick(exponent > floor, exponent, floor);
    const float magic = half_float_of(highest + ((23 - mantissa) << 23));
    return x + magic - magic;
}

/* A number without its sign, at most `largest`. */
ALWAYS_INLINE float size_within(float x, float largest)
{
    const uint32_t size = half_bits_of(x) & 0x7FFFFFFF, most = half_bits_of(largest);
    return half_float_of(pick(size > most, most, size));
}

ALWAYS_INLINE bool is_nan(float x)
{
    return (half_bits_of(x) & 0x7FFFFFFF) > 0x7F800000;
}

ALWAYS_INLINE uint32_t code_e4m3(float x)
{
    const uint32_t sign = half_bits_of(x) >> 24 & 0x80;
    const float rounded = rounded_to(size_within(x, 448), 3, 0x1p-6f);
    const uint32_t bits = half_bits_of(rounded), normal = (bits - 0x3C000000) >> 20;
    const uint32_t subnormal = (uint32_t)(int32_t)(rounded * 0x1p9f);
    const uint32_t finite = pick(bits < half_bits_of(0x1p-6f), subnormal, normal);
    return sign | pick(is_nan(x), 0x7F, finite);
}

ALWAYS_INLINE uint32_t code_e2m1(float x)
{
    const uint32_t sign = half_bits_of(x) >> 28 & 8;
    const float rounded = rounded_to(size_within(x, 6), 1, 1);
    const uint32_t bits = half_bits_of(rounded), normal = (bits - 0x3F000000) >> 22;
    const uint32_t subnormal = (uint32_t)(int32_t)(rounded * 2);
    const uint32_t finite = sign | pick(bits < half_bits_of(1), subnormal, normal);
    return pick(is_nan(x), 0, finite);
}

ALWAYS_INLINE uint32_t code_whole(float x, float least, float largest, int offset)
{
    const float magic = 0x1.8p23f;
    const uint32_t number = pick(is_nan(x), 0, half_bits_of(x));
    const uint32_t above = pick(half_float_of(number) < least, half_bits_of(least), number);
    const uint32_t kept = pick(half_float_of(above) > largest, half_bits_of(largest), above);
    const float rounded = half_float_of(kept) + magic - magic;
    return (uint32_t)((int32_t)rounded + offset) & 0xFF;
}

ALWAYS_INLINE void codes_of(enum quant_code code, const float *x, size_t n, uint8_t *to)
{
    switch (code) {
    case QUANT_E4M3:
        for (size_t i = 0; i < n; i++)
            to[i] = (uint8_t)code_e4m3(x[i]);
        break;
    case QUANT_E2M1:
        for (size_t i = 0; i < n; i++)
            to[i] = (uint8_t)code_e2m1(x[i]);
        break;
    case QUANT_I8:
        for (size_t i = 0; i < n; i++)
            to[i] = (uint8_t)code_whole(x[i], -128, 127, 0);
        break;
    case QUANT_I4:
        for (size_t i = 0; i < n; i++)
            to[i] = (uint8_t)code_whole(x[i], -8, 7, 8);
        break;
    default:
        for (size_t i = 0; i < n; i++)
            to[i] = (uint8_t)code_whole(x[i], -128, 127, 128);
    }
}

/* Divides elements [at, at + n) of a run by their scales. */
ALWAYS_INLINE void divide_tile(const struct quant_run *run, size_t at, size_t n, const float *from,
                               float *to)
{
    size_t within = run->phase + at;
    for (size_t i = 0, count; i < n; i += count, within += count) {
        const size_t group = within / run->group, left = run->group - within % run->group;
        const float scale = run->scales[group];
        count = left < n - i ? left : n - i;
        for (size_t k = 0; run->multiplies && k < count; k++)
            to[i + k] = from[i + k] * scale;
        for (size_t k = 0; !run->multiplies && k < count; k++)
            to[i + k] = scale != 0 ? from[i + k] / scale : 0;
    }
}

/* Without zeros -0 stays -0. */
ALWAYS_INLINE void add_zeros(const struct quant_run *run, size_t at, size_t n, float *x)
{
    size_t within = run->phase + at;
    for (size_t i = 0, count; run->zeros && i < n; i += count, within += count) {
        const size_t left = run->group - within % run->group;
        const float zero = run->zeros[within / run->group];
        count = left < n - i ? left : n - i;
        for (size_t k = 0; k < count; k++)
            x[i + k] += zero;
    }
}

ALWAYS_INLINE void round_tile(enum dtype dtype, size_t n, float *x)
{
    uint16_t half[TILE];
    if (dtype == DT_BF16)
        for (size_t i = 0; i < n; i++)
            x[i] = bf16_load(bf16_store(x[i]));
    if (dtype != DT_F16) return;
    (void)cast_elements(half, DT_F16, x, DT_F32, n);
    (void)cast_elements(x, DT_F32, half, DT_F16, n);
}

/* Puts codes of half a byte at elements `first` on. */
ALWAYS_INLINE void pack(const uint8_t *codes, size_t n, uint8_t *to, size_t first)
{
    size_t i = 0;
    if (first % 2 && n) {
        to[first / 2] = (uint8_t)((to[first / 2] & 0x0F) | codes[0] << 4);
        i = 1;
    }
    uint8_t *bytes = to + (first + i) / 2;
    for (; i + 2 <= n; i += 2)
        *bytes++ = (uint8_t)(codes[i] | codes[i + 1] << 4);
    if (i < n) *bytes = (uint8_t)((*bytes & 0xF0) | codes[i]);
}

ALWAYS_INLINE void encode(const struct quant_run *run, const float *from, uint8_t *to)
{
    float scaled[TILE];
    uint8_t codes[TILE];
    for (size_t at = 0, n; at < run->count; at += n) {
        n = run->count - at < TILE ? run->count - at : TILE;
        divide_tile(run, at, n, from + at, scaled);
        round_tile(run->quotient, n, scaled);
        add_zeros(run, at, n, scaled);
        codes_of(run->code, scaled, n, codes);
        if (quant_infos[run->code].bits == 4)
            pack(codes, n, to, run->first + at);
        else
            memcpy(to + run->first + at, codes, n);
    }
}

ALWAYS_INLINE float largest_of(const float *numbers, size_t n, float below, float amax)
{
    uint32_t most = half_bits_of(amax);
    for (size_t i = 0; i < n; i++) {
        const float side = half_float_of(
            pick(half_bits_of(numbers[i]) >> 31, half_bits_of(below), half_bits_of(1)));
        const uint32_t bits = half_bits_of(numbers[i] * side) & 0x7FFFFFFF;
        const uint32_t size = pick(bits > 0x7F800000, 0, bits);
        most = pick(size > most, size, most);
    }
    return half_float_of(most);
}

/* ---- for processors with AVX2, and for others ---- */

static void decode_plain(const struct quant_run *run, const uint8_t *codes, enum dtype dtype,
                         char *to)
{
    decode(run, codes, dtype, to);
}

static void encode_plain(const struct quant_run *run, const float *from, uint8_t *to)
{
    encode(run, from, to);
}

static float amax_plain(const float *numbers, size_t n, float below, float amax)
{
    return largest_of(numbers, n, below, amax);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static float amax_avx2(const float *numbers, size_t n, float below,
                                                       float amax)
{
    return largest_of(numbers, n, below, amax);
}

__attribute__((target("avx2"))) static void
decode_avx2(const struct quant_run *run, const uint8_t *codes, enum dtype dtype, char *to)
{
    decode(run, codes, dtype, to);
}

__attribute__((target("avx2"))) static void encode_avx2(const struct quant_run *run,
                                                        const float *from, uint8_t *to)
{
    encode(run, from, to);
}

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}
#else
#define decode_avx2 decode_plain
#define encode_avx2 encode_plain
#define amax_avx2 amax_plain
static bool have_avx2(void)
{
    return false;
}
#endif

void quant_decode(const struct quant_run *run, const void *codes, enum dtype dtype, void *to)
{
    (have_avx2() ? decode_avx2 : decode_plain)(run, codes, dtype, to);
}

void quant_encode(const struct quant_run *run, const float *from, void *codes)
{
    (have_avx2() ? encode_avx2 : encode_plain)(run, from, codes);
}

float quant_amax(enum quant_code code, const float *numbers, size_t n, float amax)
{
    const float below = quant_infos[code].largest / quant_infos[code].least;
    return (have_avx2() ? amax_avx2 : amax_plain)(numbers, n, below, amax);
}
