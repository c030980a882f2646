/* difference.h - how far two arrays of results are apart, and how much of that rounding explains.
 *
 * An array is [rows, columns], a row for each token. Nothing here runs a model. */
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

/* The differences that rounding explains: of one element (max), and the root of the mean square. Up
 * to `outliers` rows may exceed max: rows of tokens that a rounding has routed to other experts. */
struct rounding {
    double max, rms;
    uint64_t outliers;
};

struct difference {
    uint64_t different;    /* elements whose bits are not the same */
    uint64_t not_finite;   /* elements of b that are NaN or infinite */
    double max, rms;       /* of |a - b|; infinite where b is not finite */
    double largest, rms_a; /* of |a| */
    uint64_t at;           /* the element that max is of */
    uint64_t rows;
    uint64_t rows_beyond;          /* rows with an element further apart than the rounding, */
    uint64_t first_row;            /* the first of them */
    double max_within, rms_within; /* of all other rows */
};

/* Both arrays have one shape. */
struct difference difference_of(const struct array *a, const struct array *b,
                                const struct rounding *r);
/* max and rms as parts of what a has; 0 where nothing differs. */
double difference_relative(const struct difference *d);
double difference_relative_rms(const struct difference *d);

enum agreement { AGREE_BIT_FOR_BIT, AGREE_BUT_FOR_ROUNDING, DISAGREE };
/* r: the same that d was counted by. */
enum agreement agreement_of(const struct difference *d, const struct rounding *r);

/* ---- what rounding explains ---- */

/* A is run a second time in another type of element. Its distance from its first run, times `max`
 * and `rms`, is what rounding explains; and never less than `least` times the largest element, or
 * the root of the mean square of all. */
struct yardstick {
    enum elem_type elem; /* of the second run */
    double max, rms, least;
    bool experts;   /* rounding may route tokens to other experts, in the second run and in B */
    char text[512]; /* the same in a sentence */
};

extern const char *const elem_names[NUM_ELEM_TYPES]; /* "f32" */

/* Half a step of numbers at 1, relatively: 2^-11 of F16. 0: no floats, or not rounded to. */
double dtype_unit(enum dtype d);

/* Properties of two sides on which their rounding depends. */
struct sides_rounding {
    enum elem_type computed; /* both */
    /* Where they are stored in two dtypes, the coarser one; else anything that is not coarser than
     * `computed`. */
    enum dtype stored;
    bool by_another; /* B was computed by another program, whose roundings are its own */
    bool experts;    /* a rounding may send a token to another one */
};
struct yardstick yardstick_choose(const struct sides_rounding *s);

/* The difference between A and its second run, of the same shape. With experts, rows that differ
 * several times as much as the median row are counted as outliers (rows_beyond). */
struct difference difference_of_second_run(const struct yardstick *y, const struct array *a,
                                           const struct array *second_run);
/* How far B may be from A. The outliers of A's second run, and an allowance for chance, limit those
 * of B. */
struct rounding rounding_of(const struct yardstick *y, const struct difference *second_run);

/* ---- logits ---- */

/* logits [sequences * length, vocabulary]. Sums are of doubles. */
struct logits_statistics {
    uint64_t rows, same_top; /* rows whose largest logit is of the same token */
    double kl_mean, kl_max;  /* KL(A||B) of a row, in nats */
};
struct logits_statistics logits_compare(const struct array *a, const struct array *b);

/* The mean cross entropy of each token behind the first of its sequence. NaN where there is none.
 */
double logits_loss(const struct array *logits, const int32_t *ids, uint64_t num_sequences,
                   uint64_t length);

#endif
