/* quant.h - codes of low-precision encodings, as numbers and back.
 *
 * An element is (code - zero) * scale in F32, rounded once to another dtype.
 * Elements of a row share a scale in groups.
 *
 *   e4m3  F8_E4M3 (fn): no infinities, 0x7F and 0xFF are NaN, largest 448
 *   e2m1  two in a byte, the lower half first: 0 .5 1 1.5 2 3 4 6, from 8 on
 *         negative (8 is -0)
 *   i8    a signed byte
 *   i4    two in a byte, the lower half first: the number + 8
 *   u8    a byte: the number + 128
 *   table two in a byte: the place of the number among 16; no quant_encode
 *
 * Sources: OCP Microscaling Formats 1.0; compressed-tensors 0.20.0,
 * compressors/pack_quantized. */
#ifndef FERRY_KERNELS_CPU_QUANT_H
#define FERRY_KERNELS_CPU_QUANT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/dtype.h"

enum quant_code {
    QUANT_E4M3,
    QUANT_E2M1,
    QUANT_I8,
    QUANT_I4,
    QUANT_U8,
    QUANT_TABLE,
    NUM_QUANT_CODES
};
enum {
    QUANT_SLOTS = 8,    /* most codes of a word */
    QUANT_NUMBERS = 16, /* of a table */
};

struct quant_info {
    const char *name;
    unsigned bits;
    float least, largest; /* numbers of its codes */
};
extern const struct quant_info quant_infos[NUM_QUANT_CODES];
/* False if no code has the name. */
bool quant_code_find(const char *name, enum quant_code *out);

/* A run of elements of one row. */
struct quant_run {
    enum quant_code code;
    size_t first, count; /* codes to skip, and to take */
    size_t group, phase; /* elements of a scale; those of scales[0] before the run */
    const float *scales;
    const float *zeros;   /* one for each scale; NULL: all 0 */
    const float *numbers; /* of QUANT_TABLE */
    float factor;         /* each product is multiplied by; 0: none */
    /* quant_decode: the distance to the next code in size, of a table the larger one
     * to its neighbours, times |scale|. */
    bool steps;
    /* For quant_encode. */
    bool multiplies;     /* by scales, instead of dividing */
    enum dtype quotient; /* is rounded to BF16 or F16; others: it stays F32 */
};

/* The distance from a number of a code to the next larger one in size, for
 * finite ones; not of tables. */
float quant_step(enum quant_code code, float number);
/* Writes the run's elements to to[count] of dtype F16, BF16, F32 or F64. */
void quant_decode(const struct quant_run *run, const void *codes, enum dtype dtype, void *to);
/* Writes the codes nearest to from[count], F32, / scale + zero:
 *
 * - ties go to the even code, others stay within least and largest;
 * - NaN becomes NaN, or 0 if no code is NaN;
 * - codes beside the run stay. */
void quant_encode(const struct quant_run *run, const float *from, void *codes);
/* The largest of numbers[n] and `amax`, each by the share of its side's codes:
 * negative ones times -largest / least. NaN does not count. */
float quant_amax(enum quant_code code, const float *numbers, size_t n, float amax);
/* Whether a code of the run is not 0, nor the first of a table, which
 * bitsandbytes writes for 0 / 0. */
bool quant_has_numbers(const struct quant_run *run, const void *codes);

/* Words of codes, rows x cols of them in each; one of both is 1. 0 x 0: codes of
 * a row follow one another. */
struct quant_words {
    unsigned rows, cols;
    unsigned char slots[QUANT_SLOTS]; /* of its elements, from the lowest bits up */
};
/* Writes codes [first, first + count) of a row one after another. words: those
 * of the row, from element 0 on. */
void quant_gather(const struct quant_words *w, enum quant_code code, const void *words,
                  uint64_t row, size_t first, size_t count, void *codes);

/* F8_E8M0: 2^(code - 127); 255 is NaN. */
float quant_e8m0(unsigned code);

#endif
