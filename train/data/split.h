/* split.h - train, valid and test as parts of one dataset: "969,30,1".
 *
 * As Megatron-LM's parse_and_normalize_split and
 * convert_split_vector_to_split_matrix: numbers are divided by their sum and
 * added up; part k of n sequences is [round(f[k] * n), round(f[k + 1] * n)),
 * rounded half to even. */
#ifndef FERRY_TRAIN_DATA_SPLIT_H
#define FERRY_TRAIN_DATA_SPLIT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum data_split { SPLIT_TRAIN, SPLIT_VALID, SPLIT_TEST, NUM_SPLITS };

/* "train", "valid", "test", as in Megatron-LM's file names. */
extern const char *const split_names[NUM_SPLITS];

struct split_shares {
    double bounds[NUM_SPLITS + 1]; /* from 0 to about 1; split k is [bounds[k], bounds[k + 1]) */
};

/* text: up to three numbers, separated by commas, blanks or slashes. ERR_USAGE,
 * naming the text: not a number, more than three, only zeros. */
MUST_CHECK enum status split_parse(struct split_shares *out, const char *text, struct error *err);

/* Whether a split has a share; if not, its data are not read. */
bool split_has_share(const struct split_shares *s, enum data_split split);

/* The sequences [*first, *past) of a split of num_sequences. */
void split_range(const struct split_shares *s, enum data_split split, uint64_t num_sequences,
                 uint64_t *first, uint64_t *past);

#endif
