/* values.h - transforms of single elements that may turn one side's values into the other's: casts,
 * one added, a factor.
 *
 * All of them work for F16, BF16, F32 and F64. Arithmetic is in F32, or in F64 if a side is F64 or
 * there is a factor; the result is rounded to the other side's dtype and must then have its bits
 * (any NaN equals any NaN). */
#ifndef FERRY_VALIDATE_HINTS_VALUES_H
#define FERRY_VALIDATE_HINTS_VALUES_H

#include "validate/compare/statistics.h"

enum transform {
    CAST,    /* only a cast; between equal dtypes, of any kind: the same bits */
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

/* Whether the transform is defined between the dtypes and is not the same as a plain cast. */
bool transform_exists(enum transform t, enum dtype from, enum dtype to);

/* Whether the transform turns the elements `from` into `to`. factor: for SCALE. Not for
 * SCALE_ROWS. */
bool transform_holds(enum transform t, double factor, struct elements from, struct elements to,
                     uint64_t count);

/* All factors. factors_narrow() keeps those that, in real numbers, turn each element of `from` into
 * a number that is rounded to the element of `to`; call it for each run. low > high: there are
 * none. */
struct factors factors_all(void);
void factors_narrow(struct factors *f, struct elements from, struct elements to, uint64_t count);
/* Number `number` of the factors to try, the simplest first; 0: there is no such factor, which also
 * ends the list. Numbers near the ends of the range may be rounded the other way, so the first is
 * not always right. */
double factors_candidate(const struct factors *f, unsigned number);

/* Whether each row of `row` elements has its own factor. The elements are [first, first + count) of
 * the tensor; a row that is only partly there is judged by that part. *seen grows to contain all
 * factors found. */
bool rows_hold(struct elements from, struct elements to, uint64_t first, uint64_t count,
               uint64_t row, struct factors *seen);

#endif
