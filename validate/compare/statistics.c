#include "validate/compare/statistics.h"

#include <math.h>
#include <string.h>

#include "common/checked.h"
#include "kernels/cpu/cast.h"

enum { BLOCK = 512 }; /* elements handled at once; they fit the first-level cache */

/* Two lanes fit all supported processors; a comparison gives all ones or zeros. */
typedef double two_values __attribute__((vector_size(2 * sizeof(double))));
typedef int64_t two_masks __attribute__((vector_size(2 * sizeof(int64_t))));
enum { NUM_TWOS = NUM_LANES / 2 };

/* Up to BLOCK elements of both sides. */
struct block {
    size_t count;
    uint64_t first; /* index in the tensor */
    const char *at[2];
    enum dtype dtype[2];
    size_t num_different; /* different elements; those with a distance, if any has one */
    double value[2][BLOCK];
    uint64_t ulps[BLOCK], max_ulp;
    bool has_distances, has_ulps, some_taken_out;
    bool taken_out[BLOCK]; /* elements that have no distance; both are 0 then */
};

bool statistics_have_distances(enum dtype a, enum dtype b)
{
    return dtype_is_float(a) && dtype_is_float(b);
}

bool statistics_exist(enum dtype a, enum dtype b)
{
    return a == b || statistics_have_distances(a, b);
}

void statistics_init(struct statistics *s)
{
    *s = (struct statistics){.first = UINT64_MAX};
}

/* ---- bits ---- */

/* Counts and sums over the bits of a block. */
struct bit_counts {
    uint64_t equal, both_zero, zeros[2], bits[2];
};

/* The sum distinguishes sets of elements, modulo the size of the type; it is
 * kept in the upper bits. */
#define MIX(x) ((x) * ((x) + 0x5B))

/* 16 bytes at once, then the rest of the block; counts fit the type, as a block
 * is small. */
#define DEFINE_COUNT_BITS(name, type)                                                              \
    typedef type name##_vector __attribute__((vector_size(16)));                                   \
    static void name(const struct block *k, struct bit_counts *out)                                \
    {                                                                                              \
        enum { PER_VECTOR = 16 / sizeof(type) };                                                   \
        name##_vector equal = {0}, both = {0}, only[2] = {{0}, {0}}, bits[2] = {{0}, {0}};         \
        size_t end = k->count - k->count % PER_VECTOR;                                             \
        for (size_t i = 0; i < end; i += PER_VECTOR) {                                             \
            name##_vector x, y;                                                                    \
            memcpy(&x, k->at[0] + i * sizeof(type), sizeof x);                                     \
            memcpy(&y, k->at[1] + i * sizeof(type), sizeof y);                                     \
            name##_vector x_zero = (name##_vector)(x == 0), y_zero = (name##_vector)(y == 0);      \
            equal -= (name##_vector)(x == y);                                                      \
            both -= x_zero & y_zero;                                                               \
            only[0] -= x_zero & ~y_zero;                                                           \
            only[1] -= y_zero & ~x_zero;                                                           \
            bits[0] += MIX(x);                                                                     \
            bits[1] += MIX(y);                                                                     \
        }                                                                                          \
        type sums[2] = {0, 0};                                                                     \
        for (unsigned i = 0; i < PER_VECTOR; i++) {                                                \
            out->equal += equal[i];                                                                \
            out->both_zero += both[i];                                                             \
            for (unsigned side = 0; side < 2; side++) {                                            \
                out->zeros[side] += only[side][i];                                                 \
                sums[side] = (type)(sums[side] + bits[side][i]);                                   \
            }                                                                                      \
        }                                                                                          \
        for (size_t i = end; i < k->count; i++) {                                                  \
            type x[2];                                                                             \
            for (unsigned side = 0; side < 2; side++) {                                            \
                memcpy(&x[side], k->at[side] + i * sizeof(type), sizeof(type));                    \
                sums[side] = (type)(sums[side] + MIX((uint64_t)x[side]));                          \
            }                                                                                      \
            out->equal += x[0] == x[1];                                                            \
            out->both_zero += x[0] == 0 && x[1] == 0;                                              \
            out->zeros[0] += x[0] == 0 && x[1] != 0;                                               \
            out->zeros[1] += x[0] != 0 && x[1] == 0;                                               \
        }                                                                                          \
        out->bits[0] += (uint64_t)sums[0] << (64 - 8 * sizeof(type));                              \
        out->bits[1] += (uint64_t)sums[1] << (64 - 8 * sizeof(type));                              \
    }

DEFINE_COUNT_BITS(count_bits_8, uint8_t)
DEFINE_COUNT_BITS(count_bits_16, uint16_t)
DEFINE_COUNT_BITS(count_bits_32, uint32_t)
DEFINE_COUNT_BITS(count_bits_64, uint64_t)

/* Does not count zeros of complex numbers of 16 bytes. */
static void count_bits_128(const struct block *k, struct bit_counts *out)
{
    for (size_t i = 0; i < k->count; i++) {
        uint64_t x[2][2];
        for (unsigned side = 0; side < 2; side++) {
            memcpy(x[side], k->at[side] + i * sizeof *x, sizeof *x);
            out->bits[side] += MIX(x[side][0] + 3 * x[side][1]);
        }
        out->equal += memcmp(x[0], x[1], sizeof *x) == 0;
    }
}

/* Maps floats of one dtype to integers in their order, both zeros at 0, and
 * takes distances. */
#define DEFINE_LOAD_ULPS(name, type, wide)                                                         \
    static void name(struct block *k)                                                              \
    {                                                                                              \
        uint64_t largest = 0;                                                                      \
        const unsigned sign_at = 8 * sizeof(type) - 1;                                             \
        for (size_t i = 0; i < k->count; i++) {                                                    \
            wide place[2];                                                                         \
            for (unsigned side = 0; side < 2; side++) {                                            \
                type bits;                                                                         \
                memcpy(&bits, k->at[side] + i * sizeof bits, sizeof bits);                         \
                wide sign = (wide)(bits >> sign_at);                                               \
                wide rest = (wide)(bits & (type) ~((type)1 << sign_at));                           \
                place[side] = (rest ^ -sign) + sign;                                               \
            }                                                                                      \
            uint64_t up = (uint64_t)place[0] - (uint64_t)place[1];                                 \
            up = place[0] < place[1] ? 0 - up : up;                                                \
            largest = up > largest ? up : largest;                                                 \
            k->ulps[i] = up;                                                                       \
        }                                                                                          \
        k->max_ulp = largest;                                                                      \
    }

DEFINE_LOAD_ULPS(load_ulps_16, uint16_t, int32_t)
DEFINE_LOAD_ULPS(load_ulps_32, uint32_t, int64_t)
DEFINE_LOAD_ULPS(load_ulps_64, uint64_t, int64_t)

static void count_bits(const struct block *k, struct bit_counts *out)
{
    switch (dtype_bytes(k->dtype[0])) {
    case 1:
        count_bits_8(k, out);
        break;
    case 2:
        count_bits_16(k, out);
        break;
    case 4:
        count_bits_32(k, out);
        break;
    case 8:
        count_bits_64(k, out);
        break;
    default:
        count_bits_128(k, out);
    }
}

static bool is_nan(double x)
{
    return x != x;
}

/* Compares element i by bits; by value for two dtypes. */
static bool differs_at(const struct block *k, size_t i)
{
    size_t bytes = dtype_bytes(k->dtype[0]);
    if (k->dtype[0] == k->dtype[1])
        return memcmp(k->at[0] + i * bytes, k->at[1] + i * bytes, bytes) != 0;
    double x = k->value[0][i], y = k->value[1][i];
    return x != y && !(is_nan(x) && is_nan(y));
}

static void count_values(const struct block *k, struct bit_counts *out)
{
    for (size_t i = 0; i < k->count; i++) {
        double x = k->value[0][i], y = k->value[1][i];
        out->equal += !differs_at(k, i);
        out->both_zero += x == 0 && y == 0;
        out->zeros[0] += x == 0 && y != 0;
        out->zeros[1] += x != 0 && y == 0;
    }
}

static void load_ulps(struct block *k)
{
    switch (dtype_bytes(k->dtype[0])) {
    case 2:
        load_ulps_16(k);
        break;
    case 4:
        load_ulps_32(k);
        break;
    default:
        load_ulps_64(k);
    }
}

static void load_elements(struct block *k, struct bit_counts *counts)
{
    bool one_dtype = k->dtype[0] == k->dtype[1];
    k->has_distances = statistics_have_distances(k->dtype[0], k->dtype[1]);
    k->has_ulps = k->has_distances && one_dtype;
    for (unsigned side = 0; side < 2 && k->has_distances; side++)
        cast_elements(k->value[side], DT_F64, k->at[side], k->dtype[side], k->count);
    if (one_dtype)
        count_bits(k, counts);
    else
        count_values(k, counts);
    k->num_different = k->count - counts->equal;
    k->max_ulp = 0;
    if (k->has_ulps && k->num_different) load_ulps(k);
}

/* Moves zeros of two signs, counted as zero against nonzero by their bits, to
 * zero_signs. */
static void take_out_zero_signs(struct statistics *s, const struct block *k)
{
    uint64_t found[2] = {0, 0};
    for (size_t i = 0; i < k->count; i++) {
        double x = k->value[0][i], y = k->value[1][i];
        bool zeros = x == 0 && y == 0, minus_x = signbit(x), minus_y = signbit(y);
        found[0] += zeros && !minus_x && minus_y;
        found[1] += zeros && minus_x && !minus_y;
    }
    for (unsigned side = 0; side < 2; side++) {
        s->zeros[side] -= found[side];
        s->zero_signs += found[side];
    }
}

static void add_counts(struct statistics *s, const struct block *k, const struct bit_counts *counts)
{
    s->elements += k->count;
    s->equal += counts->equal;
    s->both_zero += counts->both_zero;
    for (unsigned side = 0; side < 2; side++) {
        s->zeros[side] += counts->zeros[side];
        s->bits[side] += counts->bits[side];
    }
    if (!k->num_different) return;
    if (k->has_ulps) take_out_zero_signs(s, k);
    size_t first = 0, last = k->count - 1;
    while (!differs_at(k, first))
        first++;
    while (!differs_at(k, last))
        last--;
    s->first = min_u64(s->first, k->first + first);
    s->last = max_u64(s->last, k->first + last);
}

/* ---- distances ---- */

static void look_for_another_value(struct statistics *s, const struct block *k)
{
    for (unsigned side = 0; side < 2; side++) {
        if (s->elements == 0) s->value[side] = k->value[side][0];
        for (size_t i = 0; i < k->count && !s->varies[side]; i++)
            s->varies[side] = k->value[side][i] != s->value[side];
    }
}

/* Takes an element without a distance out of the block: both become 0. */
static void take_out(struct statistics *s, struct block *k, size_t i)
{
    double *x = &k->value[0][i], *y = &k->value[1][i];
    s->nan[0] += is_nan(*x);
    s->nan[1] += is_nan(*y);
    s->infinite[0] += isinf(*x) != 0;
    s->infinite[1] += isinf(*y) != 0;
    bool both_nan = is_nan(*x) && is_nan(*y), paired = *x == *y || both_nan;
    bool differs = differs_at(k, i);
    s->unpaired += !paired;
    s->outside += !paired;
    s->finite--;
    s->nan_bits += both_nan && differs;
    k->num_different -= differs;
    k->taken_out[i] = true;
    *x = *y = 0;
    k->ulps[i] = 0;
}

/* Takes all elements without a distance out of a block that has infinities or
 * NaN. */
static void take_out_all(struct statistics *s, struct block *k)
{
    k->some_taken_out = true;
    memset(k->taken_out, 0, k->count);
    for (size_t i = 0; i < k->count; i++)
        if (!isfinite(k->value[0][i]) || !isfinite(k->value[1][i])) take_out(s, k, i);
    k->max_ulp = 0;
    for (size_t i = 0; i < k->count && k->has_ulps && k->num_different; i++)
        k->max_ulp = max_u64(k->max_ulp, k->ulps[i]);
}

/* Sums of each lane, and the largest distance. */
struct lane_sums {
    double differences[NUM_LANES], products[NUM_LANES], squares[2][NUM_LANES], largest;
};

static void load_two(two_values *to, const double *values)
{
    memcpy(to, values, sizeof *to);
}

static void keep_larger(two_values *largest, two_values x)
{
    two_masks mask = x > *largest;
    *largest = (two_values)((mask & (two_masks)x) | (~mask & (two_masks)*largest));
}

static void add_to_lane(struct lane_sums *s, const struct block *k, size_t i, size_t lane)
{
    double x = k->value[0][i], y = k->value[1][i], d = x - y;
    s->differences[lane] += d * d;
    s->products[lane] += x * y;
    s->squares[0][lane] += x * x;
    s->squares[1][lane] += y * y;
    s->largest = fmax(s->largest, fabs(d));
}

/* Adds elements [i, end); both i and end belong to lane 0. */
static void add_to_lanes(struct lane_sums *s, const struct block *k, size_t i, size_t end)
{
    const two_masks magnitude = {INT64_MAX, INT64_MAX};
    two_values differences[NUM_TWOS], products[NUM_TWOS], squares[2][NUM_TWOS], largest = {0};
    memcpy(differences, s->differences, sizeof differences);
    memcpy(products, s->products, sizeof products);
    memcpy(squares, s->squares, sizeof squares);
    for (; i < end; i += NUM_LANES)
        for (unsigned two = 0; two < NUM_TWOS; two++) {
            two_values x, y, d;
            load_two(&x, &k->value[0][i + 2 * two]);
            load_two(&y, &k->value[1][i + 2 * two]);
            d = x - y;
            differences[two] += d * d;
            products[two] += x * y;
            squares[0][two] += x * x;
            squares[1][two] += y * y;
            keep_larger(&largest, (two_values)((two_masks)d & magnitude));
        }
    memcpy(s->differences, differences, sizeof differences);
    memcpy(s->products, products, sizeof products);
    memcpy(s->squares, squares, sizeof squares);
    s->largest = fmax(s->largest, fmax(largest[0], largest[1]));
}

static struct lane_sums add_lanes(const struct statistics *s, const struct block *k)
{
    struct lane_sums sums = {.largest = 0};
    memcpy(sums.differences, s->differences, sizeof sums.differences);
    memcpy(sums.products, s->products, sizeof sums.products);
    memcpy(sums.squares, s->squares, sizeof sums.squares);
    size_t i = 0;
    for (; i < k->count && (k->first + i) % NUM_LANES; i++)
        add_to_lane(&sums, k, i, (k->first + i) % NUM_LANES);
    size_t end = i + (k->count - i) / NUM_LANES * NUM_LANES;
    add_to_lanes(&sums, k, i, end);
    for (size_t lane = 0; end + lane < k->count; lane++)
        add_to_lane(&sums, k, end + lane, lane);
    return sums;
}

/* Whether all sums are finite, so no element was infinite or NaN. */
static bool is_finite(const struct lane_sums *sums)
{
    double sum = sums->largest;
    for (unsigned i = 0; i < NUM_LANES; i++)
        sum += sums->squares[0][i] + sums->squares[1][i];
    return isfinite(sum);
}

/* Records the block's largest distance, which exceeds all earlier ones. */
static void keep_largest(struct statistics *s, const struct block *k, double largest)
{
    size_t at = 0;
    while (at + 1 < k->count && fabs(k->value[0][at] - k->value[1][at]) != largest)
        at++;
    s->max_difference = largest;
    s->max_at = k->first + at;
}

static void add_distances(struct statistics *s, struct block *k)
{
    struct lane_sums sums = add_lanes(s, k);
    s->finite += k->count;
    if (!is_finite(&sums)) { /* or a square overflowed */
        take_out_all(s, k);
        sums = add_lanes(s, k);
    }
    memcpy(s->differences, sums.differences, sizeof sums.differences);
    memcpy(s->products, sums.products, sizeof sums.products);
    memcpy(s->squares, sums.squares, sizeof sums.squares);
    s->max_ulp = max_u64(s->max_ulp, k->max_ulp);
    if (sums.largest > s->max_difference) keep_largest(s, k, sums.largest);
}

/* ---- tolerance ---- */

static bool is_within(const struct tolerance *t, const struct block *k, size_t i)
{
    if (t->by_ulps && k->has_ulps && k->ulps[i] <= t->max_ulp) return true;
    double a = k->value[0][i], b = k->value[1][i];
    return t->by_bounds && fabs(a - b) <= t->atol + t->rtol * fabs(b);
}

static void add_tolerance(struct statistics *s, const struct block *k, const struct tolerance *t)
{
    if (!k->has_distances || !t || !(t->by_ulps || t->by_bounds)) {
        s->outside += k->num_different;
        return;
    }
    for (size_t i = 0; i < k->count; i++)
        if (!(k->some_taken_out && k->taken_out[i]) && differs_at(k, i) && !is_within(t, k, i))
            s->outside++;
}

static void add_block(struct statistics *s, struct block *k, const struct tolerance *t)
{
    struct bit_counts counts = {0};
    k->some_taken_out = false;
    load_elements(k, &counts);
    if (k->has_distances) look_for_another_value(s, k);
    add_counts(s, k, &counts);
    if (k->has_distances) add_distances(s, k); /* also takes out elements without a distance */
    if (k->num_different) add_tolerance(s, k, t);
}

void statistics_add(struct statistics *s, struct elements a, struct elements b, uint64_t first,
                    uint64_t count, const struct tolerance *tolerance)
{
    struct block k = {.dtype = {a.dtype, b.dtype}};
    for (uint64_t i = 0; i < count; i += BLOCK) {
        k.at[0] = (const char *)a.at + dtype_run_bytes(a.dtype, i);
        k.at[1] = (const char *)b.at + dtype_run_bytes(b.dtype, i);
        k.count = min_u64(BLOCK, count - i);
        k.first = first + i;
        add_block(s, &k, tolerance);
    }
}

void statistics_add_steps(struct statistics *s, struct elements a, struct elements b,
                          const float *steps, uint64_t count)
{
    double x[BLOCK], y[BLOCK];
    for (uint64_t i = 0, n; i < count; i += n) {
        n = min_u64(BLOCK, count - i);
        cast_elements(x, DT_F64, (const char *)a.at + dtype_run_bytes(a.dtype, i), a.dtype, n);
        cast_elements(y, DT_F64, (const char *)b.at + dtype_run_bytes(b.dtype, i), b.dtype, n);
        for (uint64_t k = 0; k < n; k++) {
            const double distance = fabs(x[k] - y[k]) / (double)steps[i + k];
            if (distance > s->max_steps && isfinite(distance)) s->max_steps = distance;
        }
    }
}

static void join_values(struct statistics *s, const struct statistics *later)
{
    for (unsigned side = 0; side < 2; side++) {
        if (s->elements == 0) s->value[side] = later->value[side];
        s->varies[side] |=
            later->varies[side] || (later->elements && later->value[side] != s->value[side]);
    }
}

void statistics_join(struct statistics *s, const struct statistics *later)
{
    join_values(s, later);
    s->finite += later->finite;
    s->elements += later->elements;
    s->equal += later->equal;
    s->outside += later->outside;
    s->first = min_u64(s->first, later->first);
    s->last = max_u64(s->last, later->last);
    s->unpaired += later->unpaired;
    s->both_zero += later->both_zero;
    s->zero_signs += later->zero_signs;
    s->nan_bits += later->nan_bits;
    s->max_ulp = max_u64(s->max_ulp, later->max_ulp);
    s->max_steps = fmax(s->max_steps, later->max_steps);
    if (later->max_difference > s->max_difference) {
        s->max_difference = later->max_difference;
        s->max_at = later->max_at;
    }
    for (unsigned side = 0; side < 2; side++) {
        s->nan[side] += later->nan[side];
        s->infinite[side] += later->infinite[side];
        s->zeros[side] += later->zeros[side];
        s->bits[side] += later->bits[side];
    }
    for (unsigned i = 0; i < NUM_LANES; i++) {
        s->differences[i] += later->differences[i];
        s->products[i] += later->products[i];
        s->squares[0][i] += later->squares[0][i];
        s->squares[1][i] += later->squares[1][i];
    }
}

/* ---- results ---- */

static double sum_of(const double values[NUM_LANES])
{
    double sum = 0;
    for (unsigned i = 0; i < NUM_LANES; i++)
        sum += values[i];
    return sum;
}

double statistics_relative_error(const struct statistics *s)
{
    double error = sum_of(s->differences), norm = sum_of(s->squares[1]);
    if (!s->finite || !isfinite(error) || !isfinite(norm)) return NAN;
    if (error == 0) return 0;
    return norm == 0 ? INFINITY : sqrt(error / norm);
}

double statistics_cosine(const struct statistics *s)
{
    double norms = sqrt(sum_of(s->squares[0])) * sqrt(sum_of(s->squares[1]));
    double cosine = sum_of(s->products) / norms;
    return norms > 0 && isfinite(norms) ? fmax(-1, fmin(1, cosine)) : NAN;
}

bool statistics_same_elements(const struct statistics *s)
{
    return s->bits[0] == s->bits[1];
}

bool statistics_constant(const struct statistics *s, unsigned side)
{
    return s->elements > 0 && s->finite == s->elements && !s->varies[side];
}
