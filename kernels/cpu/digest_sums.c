/* How the vector kinds work; the code refers to these numbers.
 *
 * 1. A column is two adjacent 16-bit numbers x, y: two elements, or the halves
 *    of one of 32 bits. Elements of 4 and 8 bits are widened when loaded. A row
 *    is 16 columns. Each row counts R times the one before, so the sum is
 *
 *        sum over columns c of
 *            w_c * sum over rows b of (x_bc * R^b + y_bc * q * R^b)
 *
 *    with w_c = r^2c and q = r, or for 32 bits w_c = r^c and q = 2^16. The
 *    factors R^b and q * R^b are equal in all columns: they are broadcast, and
 *    their table stays small.
 * 2. Tables hold factors as signed digits, small enough that one
 *    instruction, pmaddwd, makes the 32-bit x * (a digit of R^b) + y * (the
 *    same digit of q * R^b) in every column, and that FOLD_ROWS of these add
 *    up without overflow.
 * 3. pmaddwd reads signed numbers, so x and y of 16 bits lose 2^15. The sum's
 *    deficit is a geometric series, added at the end.
 * 4. Each FOLD_ROWS rows are added to struct sums, which holds more than 32
 *    bits a column without widening. */
#include "kernels/cpu/digest_sums.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

__extension__ typedef unsigned __int128 u128;
__extension__ typedef __int128 i128;

/* ---- numbers modulo p ---- */

#define P DIGEST_MODULUS
static const uint64_t roots[2] = {DIGEST_ROOT_1, DIGEST_ROOT_2};

static uint64_t add_mod(uint64_t a, uint64_t b)
{
    return a + b >= P ? a + b - P : a + b;
}

/* Adds two parts instead of dividing, since 2^61 is 1. v < 2^122 - 1, so not
 * both are P. */
static uint64_t reduce(u128 v)
{
    return add_mod((uint64_t)v & P, (uint64_t)(v >> 61));
}

static uint64_t mul_mod(uint64_t a, uint64_t b)
{
    return reduce((u128)a * b);
}

static uint64_t pow_mod(uint64_t base, uint64_t exponent)
{
    uint64_t power = 1;
    for (; exponent; exponent >>= 1, base = mul_mod(base, base))
        if (exponent & 1) power = mul_mod(power, base);
    return power;
}

/* ---- tables ---- */

enum {
    COLUMNS = 16,
    FOLD_ROWS = 13,
    BLOCK_ROWS = 128 * FOLD_ROWS, /* are added before their columns are: 104 KiB or less */
    MAX_DIGITS = 5,
    PLAIN_BLOCK = 256,
    FEW_ELEMENTS = 128, /* fewer are added faster without vectors */
};

/* How elements become rows, and factors digits. The base is the smallest odd
 * one whose power exceeds p; an odd base has digits from -base / 2 to base /
 * 2. */
struct layout {
    unsigned row_elements;
    unsigned num_digits; /* fewest possible, see 2. */
    int base;
    bool is_biased; /* see 3. */
};

enum layout_id { BYTES, HALVES, WORDS, NUM_LAYOUTS };
enum { BASE_OF_4 = 38969, BASE_OF_5 = 4707 };
static_assert(255 * 2ll * (BASE_OF_4 / 2) * FOLD_ROWS < 1ll << 31, "a column overflows");
static_assert(32768 * 2ll * (BASE_OF_5 / 2) * FOLD_ROWS < 1ll << 31, "a column overflows");

static const struct layout layouts[NUM_LAYOUTS] = {
    [BYTES] = {32, 4, BASE_OF_4, false},
    [HALVES] = {32, 5, BASE_OF_5, true},
    [WORDS] = {16, 5, BASE_OF_5, true},
};

static inline enum layout_id layout_of(unsigned bits)
{
    return bits <= 8 ? BYTES : bits == 16 ? HALVES : WORDS;
}

static inline size_t vector_row_bytes(unsigned bits)
{
    return layouts[layout_of(bits)].row_elements * bits / 8;
}

/* Digits of R^b in the lower halves, of q * R^b in the upper, for each root. */
struct factors {
    int32_t digits[2][MAX_DIGITS];
};

struct table {
    struct factors rows[BLOCK_ROWS];
    int64_t weights[2][MAX_DIGITS][COLUMNS]; /* base^digit * w_c */
    uint64_t bias[2];                        /* n rows lack bias * (R^n - 1) */
};

static struct table tables[NUM_LAYOUTS];
static uint64_t powers_of_16[2][16][16];      /* [k][i][n] is r^(n * 16^i) */
static uint64_t first_powers[2][PLAIN_BLOCK]; /* [k][i] is r^i */
static enum digest_kind best_kind;

static uint64_t power_of_root(int k, uint64_t exponent)
{
    uint64_t power = 1;
    for (int i = 0; exponent; i++, exponent >>= 4)
        if (exponent & 15) power = mul_mod(power, powers_of_16[k][i][exponent & 15]);
    return power;
}

static void fill_powers(int k)
{
    uint64_t power = roots[k];
    for (int i = 0; i < 16; i++) {
        powers_of_16[k][i][0] = 1;
        for (int n = 1; n < 16; n++)
            powers_of_16[k][i][n] = mul_mod(powers_of_16[k][i][n - 1], power);
        power = mul_mod(powers_of_16[k][i][15], power);
    }
    for (unsigned i = 0; i < PLAIN_BLOCK; i++)
        first_powers[k][i] = power_of_root(k, i);
}

static void split_factor(int16_t digits[MAX_DIGITS], uint64_t factor, const struct layout *layout)
{
    int64_t rest = factor > P / 2 ? (int64_t)factor - (int64_t)P : (int64_t)factor;
    for (unsigned d = 0; d < layout->num_digits; d++) {
        int64_t digit = rest % layout->base;
        if (digit > layout->base / 2) digit -= layout->base;
        if (digit < -(layout->base / 2)) digit += layout->base;
        digits[d] = (int16_t)digit;
        rest = (rest - digit) / layout->base;
    }
    assert(rest == 0);
}

static void fill_rows(struct table *table, const struct layout *layout, int k, uint64_t q)
{
    const uint64_t step = pow_mod(roots[k], layout->row_elements);
    uint64_t factor = 1;
    for (size_t row = 0; row < BLOCK_ROWS; row++, factor = mul_mod(factor, step)) {
        int16_t lower[MAX_DIGITS], upper[MAX_DIGITS];
        split_factor(lower, factor, layout);
        split_factor(upper, mul_mod(factor, q), layout);
        for (unsigned d = 0; d < layout->num_digits; d++)
            table->rows[row].digits[k][d] =
                (int32_t)((uint32_t)(uint16_t)upper[d] << 16 | (uint16_t)lower[d]);
    }
}

static void fill_weights(struct table *table, const struct layout *layout, int k)
{
    for (unsigned c = 0; c < COLUMNS; c++) {
        uint64_t weight = power_of_root(k, layout->row_elements / COLUMNS * c);
        for (unsigned d = 0; d < layout->num_digits; d++) {
            table->weights[k][d][c] = (int64_t)weight;
            weight = mul_mod(weight, (uint64_t)layout->base);
        }
    }
}

static void fill_table(enum layout_id id, int k)
{
    const struct layout *layout = &layouts[id];
    struct table *table = &tables[id];
    fill_rows(table, layout, k, id == WORDS ? 1 << 16 : roots[k]);
    fill_weights(table, layout, k);
    if (layout->is_biased) {
        /* m elements lack 2^15 * (1 + r + ... + r^(m - 1)) = 2^15 * (r^m - 1) /
         * (r - 1); those with an upper half lack 2^16 times that, too */
        uint64_t bias = mul_mod(1 << 15, pow_mod(roots[k] - 1, P - 2));
        table->bias[k] = id == WORDS ? mul_mod(bias, 1 + (1 << 16)) : bias;
    }
}

static void fill_all(void)
{
    for (int k = 0; k < 2; k++) {
        fill_powers(k);
        for (enum layout_id id = 0; id < NUM_LAYOUTS; id++)
            fill_table(id, k);
    }
    for (enum digest_kind kind = 0; kind < NUM_DIGEST_KINDS; kind++)
        if (digest_kind_works(kind)) best_kind = kind;
}

static void fill_all_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, fill_all);
}

/* ---- the plain kind ---- */

static inline uint32_t load_element(const unsigned char *x, unsigned bits, size_t i)
{
    uint16_t half;
    uint32_t word;
    switch (bits) {
    case 4:
        return x[i / 2] >> i % 2 * 4 & 15;
    case 8:
        return x[i];
    case 16:
        memcpy(&half, x + 2 * i, sizeof half);
        return half;
    default:
        memcpy(&word, x + 4 * i, sizeof word);
        return word;
    }
}

/* The sums of n <= PLAIN_BLOCK elements, below 2^101. The first factor is 1. */
static inline void sum_elements(u128 sums[2], const unsigned char *x, unsigned bits, size_t n)
{
    u128 sum_0 = 0, sum_1 = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t e = load_element(x, bits, i);
        sum_0 += (u128)e * first_powers[0][i];
        sum_1 += (u128)e * first_powers[1][i];
    }
    sums[0] = sum_0;
    sums[1] = sum_1;
}

static void sum_block(u128 sums[2], const unsigned char *x, unsigned bits, size_t n)
{
    switch (bits) { /* one loop each */
    case 4:
        sum_elements(sums, x, 4, n);
        break;
    case 8:
        sum_elements(sums, x, 8, n);
        break;
    case 16:
        sum_elements(sums, x, 16, n);
        break;
    default:
        sum_elements(sums, x, 32, n);
        break;
    }
}

static void add_plain(struct digest *digest, const unsigned char *x, unsigned bits, uint64_t count,
                      uint64_t first)
{
    const uint64_t step[2] = {power_of_root(0, PLAIN_BLOCK), power_of_root(1, PLAIN_BLOCK)};
    uint64_t power[2] = {power_of_root(0, first), power_of_root(1, first)};
    for (uint64_t done = 0, n; done < count; done += n) {
        u128 sums[2];
        n = count - done < PLAIN_BLOCK ? count - done : PLAIN_BLOCK;
        sum_block(sums, x + done * bits / 8, bits, (size_t)n);
        for (int k = 0; k < 2; k++) {
            digest->d[k] = add_mod(digest->d[k], mul_mod(reduce(sums[k]), power[k]));
            power[k] = mul_mod(power[k], step[k]);
        }
    }
}

/* ---- the vector kinds ---- */

/* The sums of columns, by digit. The sum s of up to FOLD_ROWS rows goes into
 * low modulo 2^32 and into high as s >> 16. The rest, the lower 16 bits of
 * every s, is below 2^32 in a block; modulo 2^32 it is low - 2^16 * high. */
struct sums {
    _Alignas(64) int32_t low[2][MAX_DIGITS][COLUMNS];
    _Alignas(64) int32_t high[2][MAX_DIGITS][COLUMNS];
};
static_assert(BLOCK_ROWS / FOLD_ROWS + 2 < 1 << 16, "high, or what it lacks, overflows");

static uint64_t total_of_sums(const struct sums *sums, enum layout_id id, int k)
{
    i128 total = 0;
    for (unsigned d = 0; d < layouts[id].num_digits; d++) {
        for (unsigned c = 0; c < COLUMNS; c++) {
            int32_t high = sums->high[k][d][c];
            uint32_t rest = (uint32_t)sums->low[k][d][c] - ((uint32_t)high << 16);
            total += (i128)(high * (1ll << 16) + rest) * tables[id].weights[k][d][c];
        }
    }
    return reduce((u128)(total + ((i128)P << 60))); /* |total| < 80 * 2^39 * 2^61 */
}

/* Adds 1 to FOLD_ROWS rows for both roots, from the first row's factors on. */
typedef void add_fold_fn(struct sums *sums, const struct factors *factors, const unsigned char *x,
                         size_t rows, unsigned bits);

#if defined(__x86_64__)
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni")))
#define ALWAYS_INLINE inline __attribute__((always_inline))

/* The bytes of 4-bit elements, of which x holds 16. */
AVX2 static ALWAYS_INLINE __m256i unpack_4_bits(__m128i x)
{
    const __m128i mask = _mm_set1_epi8(15);
    __m128i even = _mm_and_si128(x, mask), odd = _mm_and_si128(_mm_srli_epi16(x, 4), mask);
    return _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
}

/* Columns 8 * half to 8 * half + 7 of the row at x. */
AVX2 static ALWAYS_INLINE __m256i load_avx2(const unsigned char *x, unsigned bits, int half)
{
    const void *at = x + half * (bits == 32 ? 32 : 2 * (int)bits);
    switch (bits) {
    case 4:
        return _mm256_cvtepu8_epi16(_mm256_castsi256_si128(unpack_4_bits(_mm_loadl_epi64(at))));
    case 8:
        return _mm256_cvtepu8_epi16(_mm_loadu_si128(at));
    default:
        return _mm256_xor_si256(_mm256_loadu_si256(at), _mm256_set1_epi16(INT16_MIN));
    }
}

AVX2 static ALWAYS_INLINE void fold_avx2(int32_t low[8], int32_t high[8], __m256i s)
{
    __m256i *l = (void *)low, *h = (void *)high;
    *l = _mm256_add_epi32(*l, s);
    *h = _mm256_add_epi32(*h, _mm256_srai_epi32(s, 16));
}

AVX2 static ALWAYS_INLINE void add_product_avx2(__m256i *s, bool is_first, __m256i x,
                                                __m256i factors)
{
    const __m256i product = _mm256_madd_epi16(x, factors);
    *s = is_first ? product : _mm256_add_epi32(*s, product);
    /* without this gcc makes all products of a row before adding, and runs out
     * of registers */
    __asm__("" : "+x"(*s));
}

AVX2 static ALWAYS_INLINE void add_row_avx2(__m256i s[2][MAX_DIGITS], bool is_first,
                                            const int32_t *digits, const unsigned char *x,
                                            unsigned bits)
{
    const __m256i left = load_avx2(x, bits, 0), right = load_avx2(x, bits, 1);
    for (unsigned d = 0; d < layouts[layout_of(bits)].num_digits; d++) {
        const __m256i factors = _mm256_set1_epi32(digits[d]);
        add_product_avx2(&s[0][d], is_first, left, factors);
        add_product_avx2(&s[1][d], is_first, right, factors);
    }
}

/* 1 to FOLD_ROWS rows, one root at a time: both would need too
 * many registers. */
AVX2 static ALWAYS_INLINE void add_rows_avx2(struct sums *sums, const struct factors *factors,
                                             const unsigned char *x, size_t rows, unsigned bits)
{
    for (int k = 0; k < 2; k++) {
        __m256i s[2][MAX_DIGITS];
        add_row_avx2(s, true, factors[0].digits[k], x, bits);
        for (size_t row = 1; row < rows; row++)
            add_row_avx2(s, false, factors[row].digits[k], x + row * vector_row_bytes(bits), bits);
        for (unsigned d = 0; d < layouts[layout_of(bits)].num_digits; d++) {
            fold_avx2(sums->low[k][d], sums->high[k][d], s[0][d]);
            fold_avx2(sums->low[k][d] + 8, sums->high[k][d] + 8, s[1][d]);
        }
    }
}

AVX2 static void add_fold_avx2(struct sums *sums, const struct factors *factors,
                               const unsigned char *x, size_t rows, unsigned bits)
{
    switch (bits) { /* one loop each */
    case 4:
        add_rows_avx2(sums, factors, x, rows, 4);
        break;
    case 8:
        add_rows_avx2(sums, factors, x, rows, 8);
        break;
    case 16:
        add_rows_avx2(sums, factors, x, rows, 16);
        break;
    default:
        add_rows_avx2(sums, factors, x, rows, 32);
        break;
    }
}

AVX512 static ALWAYS_INLINE __m512i load_avx512(const unsigned char *x, unsigned bits)
{
    const void *at = x;
    switch (bits) {
    case 4:
        return _mm512_cvtepu8_epi16(unpack_4_bits(_mm_loadu_si128(at)));
    case 8:
        return _mm512_cvtepu8_epi16(_mm256_loadu_si256(at));
    default:
        return _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi16(INT16_MIN));
    }
}

AVX512 static ALWAYS_INLINE void fold_avx512(int32_t low[COLUMNS], int32_t high[COLUMNS], __m512i s)
{
    __m512i *l = (void *)low, *h = (void *)high;
    *l = _mm512_add_epi32(*l, s);
    *h = _mm512_add_epi32(*h, _mm512_srai_epi32(s, 16));
}

/* vpdpwssd is pmaddwd with the addition. */
AVX512 static ALWAYS_INLINE void add_product_avx512(__m512i *s, __m512i x, __m512i factors)
{
    *s = _mm512_dpwssd_epi32(*s, x, factors);
    __asm__("" : "+v"(*s)); /* without this gcc copies all sums in each row */
}

/* 1 to FOLD_ROWS rows, both roots at a time. */
AVX512 static ALWAYS_INLINE void add_rows_avx512(struct sums *sums, const struct factors *factors,
                                                 const unsigned char *x, size_t rows, unsigned bits)
{
    const unsigned num_digits = layouts[layout_of(bits)].num_digits;
    __m512i s[2][MAX_DIGITS];
    for (int k = 0; k < 2; k++)
        for (unsigned d = 0; d < num_digits; d++)
            s[k][d] = _mm512_setzero_si512();
    for (size_t row = 0; row < rows; row++) {
        const __m512i all = load_avx512(x + row * vector_row_bytes(bits), bits);
        for (int k = 0; k < 2; k++)
            for (unsigned d = 0; d < num_digits; d++)
                add_product_avx512(&s[k][d], all, _mm512_set1_epi32(factors[row].digits[k][d]));
    }
    for (int k = 0; k < 2; k++)
        for (unsigned d = 0; d < num_digits; d++)
            fold_avx512(sums->low[k][d], sums->high[k][d], s[k][d]);
}

AVX512 static void add_fold_avx512(struct sums *sums, const struct factors *factors,
                                   const unsigned char *x, size_t rows, unsigned bits)
{
    switch (bits) { /* one loop each */
    case 4:
        add_rows_avx512(sums, factors, x, rows, 4);
        break;
    case 8:
        add_rows_avx512(sums, factors, x, rows, 8);
        break;
    case 16:
        add_rows_avx512(sums, factors, x, rows, 16);
        break;
    default:
        add_rows_avx512(sums, factors, x, rows, 32);
        break;
    }
}

static bool have_avx2(void)
{
    return __builtin_cpu_supports("avx2");
}

static bool have_avx512(void)
{
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni");
}
#else
#define add_fold_avx2 NULL
#define add_fold_avx512 NULL
static bool have_avx2(void)
{
    return false;
}

static bool have_avx512(void)
{
    return false;
}
#endif

static bool have_plain(void)
{
    return true;
}

static const struct {
    bool (*works)(void);
    add_fold_fn *add_fold;
} kinds[NUM_DIGEST_KINDS] = {
    [DIGEST_PLAIN] = {have_plain, NULL},
    [DIGEST_AVX2] = {have_avx2, add_fold_avx2},
    [DIGEST_AVX512] = {have_avx512, add_fold_avx512},
};

/* The sums of up to BLOCK_ROWS rows; elements missing in the last are 0. */
static void sum_rows(struct sums *sums, enum digest_kind kind, const unsigned char *x,
                     unsigned bits, size_t elements)
{
    const enum layout_id id = layout_of(bits);
    const size_t rows = elements / layouts[id].row_elements;
    const size_t rest = elements % layouts[id].row_elements;
    const struct factors *factors = tables[id].rows;
    memset(sums, 0, sizeof *sums);
    for (size_t row = 0; row < rows; row += FOLD_ROWS)
        kinds[kind].add_fold(sums, factors + row, x + row * vector_row_bytes(bits),
                             rows - row < FOLD_ROWS ? rows - row : FOLD_ROWS, bits);
    if (rest) {
        unsigned char last[64] = {0};
        memcpy(last, x + (elements - rest) * bits / 8, (rest * bits + 7) / 8);
        if (bits == 4 && rest % 2) last[rest / 2] &= 15;
        kinds[kind].add_fold(sums, factors + rows, last, 1, bits);
    }
}

static void add_vectors(enum digest_kind kind, struct digest *digest, const unsigned char *x,
                        unsigned bits, uint64_t count, uint64_t first)
{
    const enum layout_id id = layout_of(bits);
    const uint64_t row_elements = layouts[id].row_elements;
    uint64_t power[2] = {power_of_root(0, first), power_of_root(1, first)};
    for (uint64_t done = 0, n; done < count; done += n) {
        struct sums sums;
        n = count - done < BLOCK_ROWS * row_elements ? count - done : BLOCK_ROWS * row_elements;
        sum_rows(&sums, kind, x + done * bits / 8, bits, (size_t)n);
        const uint64_t rows = (n + row_elements - 1) / row_elements;
        for (int k = 0; k < 2; k++) {
            const uint64_t step = power_of_root(k, rows * row_elements);
            const uint64_t lacking = mul_mod(tables[id].bias[k], add_mod(step, P - 1));
            const uint64_t total = add_mod(total_of_sums(&sums, id, k), lacking);
            digest->d[k] = add_mod(digest->d[k], mul_mod(total, power[k]));
            power[k] = mul_mod(power[k], step);
        }
    }
}

/* ---- the interface ---- */

int digest_kind_works(enum digest_kind kind)
{
    return kinds[kind].works();
}

void digest_add_by(enum digest_kind kind, struct digest *d, const void *elements,
                   unsigned element_bits, uint64_t count, uint64_t first)
{
    fill_all_once();
    if (element_bits == 64) element_bits = 32, count *= 2, first *= 2;
    if (kinds[kind].add_fold)
        add_vectors(kind, d, elements, element_bits, count, first);
    else
        add_plain(d, elements, element_bits, count, first);
}

void digest_add(struct digest *d, const void *elements, unsigned element_bits, uint64_t count,
                uint64_t first)
{
    fill_all_once();
    digest_add_by(count < FEW_ELEMENTS ? DIGEST_PLAIN : best_kind, d, elements, element_bits, count,
                  first);
}

void digest_join(struct digest *d, const struct digest *other)
{
    for (int k = 0; k < 2; k++)
        d->d[k] = add_mod(d->d[k], other->d[k]);
}
