/* values.h - transforms of single elements from one side to the other: casts,
 * plus one, a factor.
 *
 * All work for F16, BF16, F32 and F64. Arithmetic is in F32, or in F64 for an
 * F64 side or a factor; the result, rounded to the other side's dtype, must
 * have its bits (any NaN equals any NaN). */
#ifndef FERRY_VALIDATE_HINTS_VALUES_H
#define FERRY_VALIDATE_HINTS_VALUES_H

#include "validate/compare/statistics.h"

enum transform {
    CAST,    /* only a cast; equal dtypes of any kind: equal bits */
    VIA_F32, /* a cast to another type, then to the other side's dtype */
    VIA_BF16,
    VIA_F16,
    CUT_TO_BF16, /* the lower half of an F32 dropped instead of rounded */
    ADD_ONE,
    SUBTRACT_ONE,
    SCALE,      /* times one factor */
    SCALE_ROWS, /* times a factor for each row */
    SWAP_BYTES, /* the other byte order */
    NUM_TRANSFORMS
};

/* A range of possible factors, both ends included. */
struct factors {
    double low, high;
};

/* Whether the transform is defined between the dtypes and differs from a plain
 * cast. */
bool transform_exists(enum transform t, enum dtype from, enum dtype to);

/* Whether the transform turns elements `from` into `to`; not for SCALE_ROWS.
 * factor: for SCALE. */
bool transform_holds(enum transform t, double factor, struct elements from, struct elements to,
                     uint64_t count);

/* All factors. factors_narrow() keeps those that turn each element of `from`,
 * in real numbers, into a number that rounds to the element of `to`; call it
 * for each run. low > high: none. */
struct factors factors_all(void);
void factors_narrow(struct factors *f, struct elements from, struct elements to, uint64_t count);
/* Factor `number` to try, the simplest first; 0 ends the list. Numbers near the
 * ends of the range may round the other way, so the first is not always right. */
double factors_candidate(const struct factors *f, unsigned number);

/* Whether each row of `row` elements has its own factor, for elements [first,
 * first + count) of the tensor. An incomplete row is judged by its part. *seen
 * grows to contain all factors found. */
bool rows_hold(struct elements from, struct elements to, uint64_t first, uint64_t count,
               uint64_t row, struct factors *seen);

#endif
