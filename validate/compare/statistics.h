/* statistics.h - statistics of two runs of elements: equal elements, and
 * distances of the others.
 *
 * Elements of one dtype are equal if their bits are; elements of two
 * floating-point dtypes if their values are. Distances are counted for F16,
 * BF16, F32 and F64, in F64, over elements finite on both sides; other dtypes
 * have only equality.
 *
 * A NaN, or an infinity against anything but the same infinity, has no
 * distance: it counts as `unpaired` and is outside of any tolerance. NaN
 * against NaN is within any. +0 and -0 differ in bits and have distance 0.
 *
 * Sums are kept in lanes by element index. So they do not depend on the
 * division of a tensor into runs, if the runs of one struct come in order. */
#ifndef FERRY_VALIDATE_COMPARE_STATISTICS_H
#define FERRY_VALIDATE_COMPARE_STATISTICS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/dtype.h"

/* A difference passes if it is within either bound. */
struct tolerance {
    bool by_ulps, by_bounds;
    uint64_t max_ulp;  /* of one dtype only */
    double atol, rtol; /* |a - b| <= atol + rtol * |b| */
};

enum { NUM_LANES = 8 };

struct statistics {
    uint64_t elements, equal;
    uint64_t outside;     /* elements outside of the tolerance */
    uint64_t first, last; /* indices of the first and last different element; first > last: none */
    uint64_t nan[2], infinite[2]; /* elements of a, of b */
    uint64_t unpaired;
    uint64_t zeros[2]; /* different elements that are zero in a (b) and not in the other */
    uint64_t zero_signs, nan_bits; /* different elements that are both 0; that are both NaN */
    uint64_t both_zero;
    uint64_t max_ulp; /* if both sides have one floating-point dtype */
    double max_difference;
    double max_steps; /* largest |a - b| / step, by statistics_add_steps() */
    uint64_t max_at;  /* index of the element with the largest distance */
    uint64_t finite;  /* elements that have a distance */
    double value[2];  /* value of the first element */
    bool varies[2];   /* some element has another value, or values are not known */
    uint64_t bits[2]; /* sum over the bits of all elements, independent of their order */
    double differences[NUM_LANES], products[NUM_LANES], squares[2][NUM_LANES];
};

/* A run of elements. */
struct elements {
    enum dtype dtype;
    const void *at;
};

/* Whether elements of the two dtypes have distances. */
bool statistics_have_distances(enum dtype a, enum dtype b);
/* Whether elements of the two dtypes can be equal at all. */
bool statistics_exist(enum dtype a, enum dtype b);

void statistics_init(struct statistics *s);
/* Adds elements [first, first + count) of a tensor: a's and b's. tolerance may
 * be NULL. */
void statistics_add(struct statistics *s, struct elements a, struct elements b, uint64_t first,
                    uint64_t count, const struct tolerance *tolerance);
/* Adds the distances of the same elements in steps of an encoding, F32; those
 * with a step that is 0, and elements that are infinite or NaN, have none. */
void statistics_add_steps(struct statistics *s, struct elements a, struct elements b,
                          const float *steps, uint64_t count);
/* Adds statistics of a later part of the same tensor. */
void statistics_join(struct statistics *s, const struct statistics *later);

/* Whether the largest distance, the relative error and the cosine cover all
 * elements. */
static inline bool statistics_cover_all(const struct statistics *s)
{
    return s->unpaired == 0;
}

static inline uint64_t statistics_different(const struct statistics *s)
{
    return s->elements - s->equal;
}

/* norm(a - b) / norm(b); 0 if both are 0, infinite if only norm(b) is 0, NaN if
 * no element was finite or the sums overflowed. */
double statistics_relative_error(const struct statistics *s);
/* Cosine of a and b; NaN if a norm is 0 or not known. */
double statistics_cosine(const struct statistics *s);
/* Whether both sides may hold the same elements in another order. */
bool statistics_same_elements(const struct statistics *s);
/* Whether all elements of side a (0) or b (1) have one value. */
bool statistics_constant(const struct statistics *s, unsigned side);

#endif
