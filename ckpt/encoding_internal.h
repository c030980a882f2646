/* encoding_internal.h - what reading and writing of encoded tensors share. */
#ifndef FERRY_CKPT_ENCODING_INTERNAL_H
#define FERRY_CKPT_ENCODING_INTERNAL_H

#include "ckpt/encoding.h"

enum { LARGEST_SCALE = 4 }; /* bytes */

/* The codes and scales of a run of elements. Rows and lines of groups count
 * through all matrices. */
struct encoded_span {
    uint64_t low, count;          /* elements */
    uint64_t first_row, last_row; /* with elements of the run */
    uint64_t first_byte, bytes;   /* of codes */
    uint64_t first_line, lines;   /* of groups, through all matrices */
    uint64_t first_group, groups; /* of each line; all of it if there are several rows */
};
struct encoded_span encoded_span_of(const struct encoded *e, uint64_t low, uint64_t count);

/* The line of groups of a row. */
uint64_t encoded_line(const struct encoded *e, uint64_t row);

/* A stored scale as a number; beside the global one. */
float encoded_scale(enum dtype dtype, const void *raw, uint64_t i);
float encoded_with_global(const struct encoded *e, float scale, float global);
/* Reads e->global; 1 if there is none. ERR_CORRUPT if it is 0 or no number. */
MUST_CHECK enum status encoded_read_global(struct panel_reader *r, const struct encoded *e,
                                           float *out, struct error *err);
/* Reads the zeros of a span: zeros[lines, groups]. raw: room for their words. */
MUST_CHECK enum status encoded_read_zeros(struct panel_reader *r, const struct encoded *e,
                                          const struct encoded_span *s, char *raw, float *zeros,
                                          struct error *err);

#endif
