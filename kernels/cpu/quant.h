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
 *
 * Sources: OCP Microscaling Formats 1.0; compressed-tensors 0.20.0,
 * compressors/pack_quantized. */
#ifndef FERRY_KERNELS_CPU_QUANT_H
#define FERRY_KERNELS_CPU_QUANT_H

#include <stdbool.h>
#include <stddef.h>

#include "common/dtype.h"

enum quant_code { QUANT_E4M3, QUANT_E2M1, QUANT_I8, QUANT_I4, QUANT_U8, NUM_QUANT_CODES };

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
    const float *zeros; /* one for each scale; NULL: all 0 */
    bool steps;         /* quant_decode: the distance to the next code in size, times |scale| */
    /* For quant_encode. */
    bool multiplies;     /* by scales, instead of dividing */
    enum dtype quotient; /* is rounded to BF16 or F16; others: it stays F32 */
};

/* The distance from a number of a code to the next larger one in size, for
 * finite ones. */
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
/* Whether a code of the run is not 0. */
bool quant_has_numbers(const struct quant_run *run, const void *codes);

/* F8_E8M0: 2^(code - 127); 255 is NaN. */
float quant_e8m0(unsigned code);

#endif
