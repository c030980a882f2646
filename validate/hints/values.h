/* values.h - what may have been done to the elements of one side, one by one, so that they became
 * those of the other: casts, one added, a factor.
 *
 * All of it for F16, BF16, F32 and F64. Arithmetic is in F32, in F64 where one side is F64 or there
 * is a factor; the result is rounded to the dtype of the other side and must then have its bits
 * (NaN for NaN). */
#ifndef FERRY_VALIDATE_HINTS_VALUES_H
#define FERRY_VALIDATE_HINTS_VALUES_H

#include "validate/compare/statistics.h"

enum transform {
    CAST,    /* no more than a cast; of one dtype: the same bits, of any dtype */
    VIA_F32, /* a cast to another type, and from there to that of the other side */
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

/* Factors that are possible: all numbers in between, both ends included. */
struct factors {
    double low, high;
};

/* Whether the transform is defined between the dtypes and is not the same as a plain cast. */
bool transform_exists(enum transform t, enum dtype from, enum dtype to);

/* Whether the transform makes the count elements `from` those of `to`. factor: for SCALE. Not for
 * SCALE_ROWS. */
bool transform_holds(enum transform t, double factor, struct elements from, struct elements to,
                     uint64_t count);

/* The factors that, as far as real numbers are concerned, take each element of `from` to what is
 * rounded to that of `to`. Start with all, narrow with each run; low > high: there are none. */
struct factors factors_all(void);
void factors_narrow(struct factors *f, struct elements from, struct elements to, uint64_t count);
/* Some of them to be tried, the simplest first: 0 for none, and past the last. Numbers next to the
 * ends may be rounded the other way than they should, so the first is not always the right one. */
double factors_candidate(const struct factors *f, unsigned number);

/* Whether each row of `row` elements has a factor of its own. The elements are [first, first +
 * count) of the tensor; the part of a row that is there is taken for the row. *seen grows to hold
 * all factors that were found. */
bool rows_hold(struct elements from, struct elements to, uint64_t first, uint64_t count,
               uint64_t row, struct factors *seen);

#endif
