#include "validate/hints/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "kernels/cpu/axes.h"
#include "kernels/cpu/cast.h"

enum { BLOCK = 512, MAX_BYTES = 16 };

/* ---- making elements ---- */

/* n <= BLOCK elements of one side, and the buffer for the transformed ones. */
struct making {
    enum dtype from, to;
    const void *in;
    void *out;
    size_t n;
    double factor;
};

static void make_cast(const struct making *m)
{
    cast_elements(m->out, m->to, m->in, m->from, m->n);
}

static void make_via(const struct making *m, enum dtype middle)
{
    double buffer[BLOCK];
    cast_elements(buffer, middle, m->in, m->from, m->n);
    cast_elements(m->out, m->to, buffer, middle, m->n);
}

static void make_via_f32(const struct making *m)
{
    make_via(m, DT_F32);
}

static void make_via_bf16(const struct making *m)
{
    make_via(m, DT_BF16);
}

static void make_via_f16(const struct making *m)
{
    make_via(m, DT_F16);
}

static void make_cut(const struct making *m)
{
    uint32_t bits[BLOCK];
    memcpy(bits, m->in, m->n * sizeof *bits);
    for (size_t i = 0; i < m->n; i++)
        bits[i] &= 0xFFFF0000;
    cast_elements(m->out, m->to, bits, DT_F32, m->n);
}

static void make_sum(const struct making *m, float term)
{
    double wide[BLOCK];
    float single[BLOCK];
    if (m->from == DT_F64 || m->to == DT_F64) {
        cast_elements(wide, DT_F64, m->in, m->from, m->n);
        for (size_t i = 0; i < m->n; i++)
            wide[i] += (double)term;
        cast_elements(m->out, m->to, wide, DT_F64, m->n);
    } else {
        cast_elements(single, DT_F32, m->in, m->from, m->n);
        for (size_t i = 0; i < m->n; i++)
            single[i] += term;
        cast_elements(m->out, m->to, single, DT_F32, m->n);
    }
}

static void make_plus_one(const struct making *m)
{
    make_sum(m, 1);
}

static void make_minus_one(const struct making *m)
{
    make_sum(m, -1);
}

static void make_scaled(const struct making *m)
{
    double wide[BLOCK];
    cast_elements(wide, DT_F64, m->in, m->from, m->n);
    for (size_t i = 0; i < m->n; i++)
        wide[i] *= m->factor;
    cast_elements(m->out, m->to, wide, DT_F64, m->n);
}

static void make_swapped(const struct making *m)
{
    memcpy(m->out, m->in, dtype_run_bytes(m->from, m->n));
    swap_bytes(m->out, dtype_bytes(m->from), m->n);
}

static void (*const makers[NUM_TRANSFORMS])(const struct making *) = {
    [CAST] = make_cast,
    [VIA_F32] = make_via_f32,
    [VIA_BF16] = make_via_bf16,
    [VIA_F16] = make_via_f16,
    [CUT_TO_BF16] = make_cut,
    [ADD_ONE] = make_plus_one,
    [SUBTRACT_ONE] = make_minus_one,
    [SCALE] = make_scaled,
    [SWAP_BYTES] = make_swapped,
};

bool transform_exists(enum transform t, enum dtype from, enum dtype to)
{
    bool floats = dtype_is_float(from) && dtype_is_float(to);
    switch (t) {
    case CAST:
        return from == to || floats;
    case VIA_F32:
        return from == DT_F64 && to == DT_F64;
    case VIA_BF16:
        return floats && from != DT_BF16 && to != DT_BF16;
    case VIA_F16:
        return floats && from != DT_F16 && to != DT_F16;
    case CUT_TO_BF16:
        return from == DT_F32 && (to == DT_F32 || to == DT_BF16);
    case SWAP_BYTES:
        return from == to && floats;
    default:
        return floats;
    }
}

/* ---- comparing them ---- */

static bool both_nan(enum dtype dtype, const char *x, const char *y, size_t i)
{
    return isnan(dtype_load(dtype, x, i)) && isnan(dtype_load(dtype, y, i));
}

/* Equal bits, or NaN in the same places. */
static bool same_values(enum dtype dtype, const char *x, const char *y, size_t n)
{
    size_t bytes = dtype_bytes(dtype);
    if (memcmp(x, y, n * bytes) == 0) return true;
    for (size_t i = 0; i < n; i++)
        if (memcmp(x + i * bytes, y + i * bytes, bytes) && !both_nan(dtype, x, y, i)) return false;
    return true;
}

static const char *element(struct elements e, uint64_t i)
{
    return (const char *)e.at + dtype_run_bytes(e.dtype, i);
}

static struct elements elements_from(struct elements e, uint64_t from)
{
    return (struct elements){e.dtype, element(e, from)};
}

bool transform_holds(enum transform t, double factor, struct elements from, struct elements to,
                     uint64_t count)
{
    uint64_t out[BLOCK * MAX_BYTES / sizeof(uint64_t)];
    if (t == CAST && from.dtype == to.dtype)
        return memcmp(from.at, to.at, dtype_run_bytes(to.dtype, count)) == 0;
    for (uint64_t i = 0; i < count; i += BLOCK) {
        struct making m = {from.dtype, to.dtype, element(from, i), out, min_u64(BLOCK, count - i),
                           factor};
        makers[t](&m);
        if (!same_values(to.dtype, (const char *)out, element(to, i), m.n)) return false;
    }
    return true;
}

/* ---- factors ---- */

struct factors factors_all(void)
{
    return (struct factors){-INFINITY, INFINITY};
}

/* The value `step` places up in the order of the dtype. */
static double neighbour_value(enum dtype dtype, const char *at, int step)
{
    unsigned size = dtype_infos[dtype].bits;
    uint64_t bits = 0, sign = UINT64_C(1) << (size - 1);
    memcpy(&bits, at, dtype_bytes(dtype));
    int64_t place = bits & sign ? -(int64_t)(bits & (sign - 1)) : (int64_t)bits;
    place += step;
    bits = place < 0 ? sign | (uint64_t)-place : (uint64_t)place;
    return dtype_load(dtype, &bits, 0);
}

/* The numbers that round to the finite element at `at`, and a little more:
 * 16-bit elements are rounded from F32, and quotients of these numbers are
 * rounded too. For F64, which cannot express its half steps, the numbers up to
 * its neighbours. */
static struct factors rounded_to(enum dtype dtype, const char *at)
{
    double y = dtype_load(dtype, at, 0), up = neighbour_value(dtype, at, 1),
           down = neighbour_value(dtype, at, -1);
    if (isinf(up)) up = y + (y - down);
    if (isinf(down)) down = y - (up - y);
    if (dtype == DT_F64) return (struct factors){down, up};
    double slack = dtype_bytes(dtype) == 2 ? 0x1p-23 : 0x1p-51;
    down = (y + down) / 2;
    up = (y + up) / 2;
    return (struct factors){down - slack * fabs(down), up + slack * fabs(up)};
}

static void narrow_by(struct factors *f, double x, struct elements to, uint64_t i)
{
    double y = dtype_load(to.dtype, to.at, i);
    if (!isfinite(x) || !isfinite(y)) return; /* the proof checks them */
    if (x == 0) {
        if (y != 0) *f = (struct factors){1, 0};
        return;
    }
    struct factors around = rounded_to(to.dtype, element(to, i));
    double low = around.low / x, high = around.high / x;
    f->low = fmax(f->low, fmin(low, high));
    f->high = fmin(f->high, fmax(low, high));
}

/* Whether factors near both ends fit the elements. Then all factors between do,
 * and the elements hardly narrow the range; after a few elements this holds for
 * most. Avoids the ends themselves, where half of the elements round the other
 * way. */
static bool both_ends_hold(const struct factors *f, struct elements from, struct elements to,
                           uint64_t count)
{
    if (isinf(f->low) || isinf(f->high)) return false;
    double margin = fmin((f->high - f->low) / 4, 0x1p-21 * fmax(fabs(f->low), fabs(f->high)));
    return transform_holds(SCALE, f->low + margin, from, to, count) &&
           transform_holds(SCALE, f->high - margin, from, to, count);
}

void factors_narrow(struct factors *f, struct elements from, struct elements to, uint64_t count)
{
    for (uint64_t i = 0, n; i < count; i += n) {
        n = min_u64(BLOCK, count - i);
        if (both_ends_hold(f, elements_from(from, i), elements_from(to, i), n)) continue;
        for (uint64_t k = i; k < i + n && f->low <= f->high; k++)
            narrow_by(f, dtype_load(from.dtype, from.at, k), to, k);
    }
}

/* The shortest decimal number in [low, high]. */
static double shortest_decimal(double low, double high)
{
    char text[40];
    double middle = low + (high - low) / 2;
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, middle);
        double x = strtod(text, NULL);
        if (x >= low && x <= high) return x;
    }
    return middle;
}

double factors_candidate(const struct factors *f, unsigned number)
{
    if (!(f->low <= f->high) || isinf(f->low) || isinf(f->high)) return 0;
    double middle = f->low + (f->high - f->low) / 2, margin = (f->high - f->low) / 8;
    switch (number) { /* a program that scales a tensor most likely has the factor in F32 */
    case 0:
        return shortest_decimal(f->low + margin, f->high - margin);
    case 1:
        return shortest_decimal(f->low, f->high);
    case 2:
        return (double)(float)middle;
    case 3:
        return (double)nextafterf((float)middle, INFINITY);
    case 4:
        return (double)nextafterf((float)middle, -INFINITY);
    default:
        return 0;
    }
}

/* The factor of one row; 0: none. */
static double factor_of(struct elements from, struct elements to, uint64_t count,
                        const struct factors *possible)
{
    double factor;
    for (unsigned i = 0; (factor = factors_candidate(possible, i)) != 0; i++)
        if (transform_holds(SCALE, factor, from, to, count)) return factor;
    return 0;
}

static bool row_holds(struct elements from, struct elements to, uint64_t count,
                      struct factors *seen)
{
    struct factors f = factors_all();
    factors_narrow(&f, from, to, count);
    if (isinf(f.low) && isinf(f.high)) /* only zeros, which fit any factor */
        return transform_holds(SCALE, 1, from, to, count);
    double factor = factor_of(from, to, count, &f);
    if (factor == 0) return false;
    seen->low = fmin(seen->low, factor);
    seen->high = fmax(seen->high, factor);
    return true;
}

bool rows_hold(struct elements from, struct elements to, uint64_t first, uint64_t count,
               uint64_t row, struct factors *seen)
{
    for (uint64_t i = 0, n; i < count; i += n) {
        n = min_u64(count - i, row - (first + i) % row);
        if (!row_holds(elements_from(from, i), elements_from(to, i), n, seen)) return false;
    }
    return true;
}
