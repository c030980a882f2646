/* encoding.h - tensors stored as codes and scales.
 *
 * An *encoded tensor* is made of stored tensors: codes, and companions that
 * give them scales. Its elements are a row-major stack of matrices
 * [..., rows, cols]:
 *
 *   (code - zero) * scale           scale: the group's, or it times the global
 *                                   one, or it / the global one
 *   (code - zero) * scale * factor  if there is a factor
 *
 * A group is block[0] x block[1] elements of one matrix; its last groups may be
 * smaller. Operations are of F32; the result is rounded once. */
#ifndef FERRY_CKPT_ENCODING_H
#define FERRY_CKPT_ENCODING_H

#include "ckpt/panel.h"
#include "kernels/cpu/quant.h"

/* Mistakes of programs that decode, to recognise their results. */
enum encoded_mistake {
    MISTAKE_NONE,
    MISTAKE_NO_SCALE,
    MISTAKE_INVERSE_SCALE,
    MISTAKE_HALVES_SWAPPED,  /* the upper half of a byte first */
    MISTAKE_GRID_TRANSPOSED, /* the scale of group (j, i) for group (i, j) */
    NUM_MISTAKES
};

/* Scales that are codes, too: numbers[byte] * scales[i / block] + offset. */
struct encoded_nested {
    const float *numbers;        /* [256] */
    const struct tensor *scales; /* F32 */
    uint64_t block;
    float offset;
};

struct encoded {
    const char *name; /* of the encoding, as "fp8-block" */
    enum quant_code code;
    const float *numbers; /* of QUANT_TABLE */
    float factor;
    unsigned num_dims;
    const uint64_t *shape; /* of the elements; the last two are rows and cols */
    uint64_t rows, cols;
    uint64_t block[2];
    uint64_t grid[2];           /* groups of a matrix: rows / block[0] and cols / block[1], up */
    struct quant_words words;   /* of codes */
    uint64_t row_bytes;         /* codes of a line of words, with what fills the last */
    const struct tensor *codes; /* row_bytes for each line, in any dtype */
    /* One for each group: F32, F16, BF16, F8_E4M3, F8_E8M0, or U8, which are
     * E8M0. */
    const struct tensor *scales;
    const struct encoded_nested *nested; /* of scales; NULL: they are numbers */
    const struct tensor *global;         /* one F32; NULL: none */
    bool global_divides;
    /* [grid] in words: codes, to which zero_offset is added; NULL: all 0. Only of
     * one matrix. */
    const struct tensor *zeros;
    struct quant_words zero_words;
    float zero_offset;
    /* [rows] lines of groups; NULL: row / block[0]. Only of one matrix. */
    const uint32_t *lines;
    enum encoded_mistake mistake; /* of elements that are read */
    bool steps;                   /* elements are read as steps: quant.h */
};

/* Sets rows, cols and grid from shape and block, where 0 stands for all rows or
 * cols. */
void encoded_set_grid(struct encoded *e, unsigned num_dims, const uint64_t *shape,
                      const uint64_t block[2]);
uint64_t encoded_num_matrices(const struct encoded *e);
/* Whether a tensor of this shape has one element for each group: [..., grid];
 * for whole rows also without the last dim, for one row without the first but
 * one, for one group also [1] and []. */
bool encoded_is_grid(const struct encoded *e, unsigned num_dims, const uint64_t *shape);
/* From flat in a tensor whose matrices are transposed, to elements of e. */
struct pair encoded_transposed(const struct encoded *e);

/* Whether the mistake can be made: it changes what is decoded. */
bool encoded_may_be(const struct encoded *e, enum encoded_mistake mistake);

/* Whether elements of a tensor are decoded. */
bool tensor_is_decoded(const struct tensor *t);
/* The tensor with the steps between codes in place of elements, in F32, in
 * arena a; NULL if some elements are not decoded. */
struct tensor *tensor_steps(const struct tensor *t, struct arena *a);
/* The catalog with stored codes in place of tensors that are decoded, in arena
 * a. */
struct catalog catalog_undecoded(const struct catalog *c, struct arena *a);

/* Decodes elements [low, low + count), in order, to out[count] of a float dtype.
 * r->cast must be there. ERR_CORRUPT names a scale that is NaN or infinite, or
 * is 0 though its group's codes are not. */
MUST_CHECK enum status encoded_read(struct panel_reader *r, const struct encoded *e, uint64_t low,
                                    uint64_t count, enum dtype dtype, void *out, struct error *err);

#endif
