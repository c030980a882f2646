/* difference.h - the difference of two arrays of results, and the part
 * explained by rounding. */
#ifndef FERRY_VALIDATE_FORWARD_DIFFERENCE_H
#define FERRY_VALIDATE_FORWARD_DIFFERENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/dtype.h"
#include "kernels/ops.h"

struct array {
    const void *data; /* [rows, columns] */
    bool wide;        /* of double, else of float */
    uint64_t rows, columns;
};

static inline double array_at(const struct array *a, uint64_t i)
{
    return a->wide ? ((const double *)a->data)[i] : (double)((const float *)a->data)[i];
}

/* Differences explained by rounding: of one element (max), and the root mean
 * square (rms). Up to `outliers` rows may exceed max: tokens that rounding
 * routed to other experts. */
struct rounding {
    double max, rms;
    uint64_t outliers;
};

struct difference {
    uint64_t different;    /* elements with different bits */
    uint64_t not_finite;   /* elements of b that are NaN or infinite */
    double max, rms;       /* of |a - b|; infinite if b is not finite */
    double largest, rms_a; /* of |a| */
    uint64_t at;           /* the element with the distance max */
    uint64_t rows;
    uint64_t rows_beyond;          /* rows with a distance above the rounding's max */
    uint64_t first_row;            /* the first of these rows */
    double max_within, rms_within; /* of all other rows */
};

/* The difference of two arrays of the same shape, counted with rounding r. */
struct difference difference_of(const struct array *a, const struct array *b,
                                const struct rounding *r);
/* The larger of max / largest and rms / rms_a; 0 if nothing differs. */
double difference_relative(const struct difference *d);
double difference_relative_rms(const struct difference *d);

enum agreement { AGREE_BIT_FOR_BIT, AGREE_BUT_FOR_ROUNDING, DISAGREE };
/* Judges a difference; r: the rounding that d was counted with. */
enum agreement agreement_of(const struct difference *d, const struct rounding *r);

/* ---- rounding ---- */

/* The measure of rounding: A runs a second time with another element type. The
 * rounding is the distance of the two runs, times `max` and `rms`, and at least
 * `least` times the largest element, or the root mean square of all elements. */
struct yardstick {
    enum elem_type elem; /* of the second run */
    double max, rms, least;
    bool experts;   /* rounding may route tokens to other experts, in the second run and in B */
    char text[512]; /* a sentence that describes it */
};

extern const char *const elem_names[NUM_ELEM_TYPES]; /* "f32" */

/* Half the distance between numbers next to 1: 2^-11 for F16. 0 if the dtype is
 * not a float, or results are not rounded to it. */
double dtype_unit(enum dtype d);

/* Properties of two sides that determine their rounding. */
struct sides_rounding {
    enum elem_type computed; /* element type of both computations */
    /* If the sides are stored in two dtypes, the coarser one; else any dtype
     * not coarser than `computed`. */
    enum dtype stored;
    bool by_another; /* B was computed by another program, which rounds differently */
    bool experts;    /* rounding may route a token to another expert */
};
struct yardstick yardstick_choose(const struct sides_rounding *s);

/* The difference between A and its second run, of the same shape. With experts,
 * rows with several times the difference of the median row count as outliers
 * (rows_beyond). */
struct difference difference_of_second_run(const struct yardstick *y, const struct array *a,
                                           const struct array *second_run);
/* The allowed distance of B from A. */
struct rounding rounding_of(const struct yardstick *y, const struct difference *second_run);

/* ---- logits ---- */

/* logits [sequences * length, vocabulary]. Sums are of doubles. */
struct logits_statistics {
    uint64_t rows, same_top; /* same_top: rows with the largest logit at the same token */
    double kl_mean, kl_max;  /* KL(A||B) of a row, in nats */
};
struct logits_statistics logits_compare(const struct array *a, const struct array *b);

/* Mean cross entropy of all tokens except the first of each sequence; NaN: no
 * tokens. */
double logits_loss(const struct array *logits, const int32_t *ids, uint64_t num_sequences,
                   uint64_t length);

#endif
