/* results.h - outputs of a model, stored in a safetensors file:
 *
 *   input_ids    [sequences, length]              whole numbers; optional
 *   hidden.N     [sequences, length, hidden_size] input of layer N; last: output of the last layer
 *   final_norm   the same, after the final norm
 *   logits       [sequences, length, vocabulary]
 *   loss         []                               mean cross entropy of input_ids[:, 1:]
 *
 * in any float dtype, as `ferry forward --hidden` writes them, and transformers
 * can. */
#ifndef FERRY_VALIDATE_FORWARD_RESULTS_H
#define FERRY_VALIDATE_FORWARD_RESULTS_H

#include "convert/open.h"

struct results {
    const char *path;
    struct opened opened;
    bool is_open;
};

/* Opens a file of results; *found is false if path is not one. Call
 * results_close() in any case. */
void results_open(struct results *r, const char *path, bool *found);
void results_close(struct results *r);

bool results_have(const struct results *r, const char *name);
/* Whether this is the name of a model's output: "hidden.3", "final_norm",
 * "logits". */
bool results_is_output(const char *name);
/* Sets *out to the dtype of the results' rounding: the stored dtype, or a
 * coarser one that represents all numbers (computed in bf16 and written by
 * .float(), say). Embeddings ("hidden.0") always have the weights' dtype; if
 * any other output needs a finer dtype, all were computed in it. */
MUST_CHECK enum status results_dtype(struct results *r, enum dtype *out, struct error *err);
/* Reads a whole tensor of rows * columns elements, on the heap; unless columns
 * is 1, it must be the last dimension. ERR_UNSUPPORTED for another shape. */
MUST_CHECK enum status results_read(struct results *r, const char *name, uint64_t rows,
                                    uint64_t columns, double **values, struct error *err);

#endif
