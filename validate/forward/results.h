/* results.h - outputs of a model, stored in a safetensors file:
 *
 *   input_ids    [sequences, length]              whole numbers; may be missing
 *   hidden.N     [sequences, length, hidden_size] what enters layer N; of the last, what leaves it
 *   final_norm   the same, behind the final norm
 *   logits       [sequences, length, vocabulary]
 *   loss         []                               mean cross entropy of input_ids[:, 1:]
 *
 * in any float dtype, as `ferry forward --hidden` writes them, and transformers can. */
#ifndef FERRY_VALIDATE_FORWARD_RESULTS_H
#define FERRY_VALIDATE_FORWARD_RESULTS_H

#include "convert/open.h"

struct results {
    const char *path;
    struct opened opened;
    bool is_open;
};

/* Opens a file of results; *found is false if path is no such file. Call results_close() in any
 * case. */
void results_open(struct results *r, const char *path, bool *found);
void results_close(struct results *r);

bool results_have(const struct results *r, const char *name);
/* Whether a tensor of this name is what a model computes: "hidden.3", "final_norm", "logits". */
bool results_is_output(const char *name);
/* What the results were rounded to, by how they are stored or by what the numbers are: computed in
 * bf16 and written by .float(), say. Embeddings ("hidden.0") are numbers of the weights' dtype
 * whatever was computed in; of the others, one that is finer tells that all were computed so. */
MUST_CHECK enum status results_dtype(struct results *r, enum dtype *out, struct error *err);
/* All of it, on the heap. `columns` must be its last dimension, or, where that is 0, it has one
 * element. ERR_UNSUPPORTED where its shape is another. */
MUST_CHECK enum status results_read(struct results *r, const char *name, uint64_t rows,
                                    uint64_t columns, double **values, struct error *err);

#endif
