/* training_source.h - fills a checkpoint's training state from Megatron's
 * common state and the optimizer's separate values.
 *
 * Unreadable values are no reason to refuse the weights: optimizer states
 * become unread (convert/states.h); without states, a note says so. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_SOURCE_H
#define FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_SOURCE_H

#include "ckpt/checkpoint.h"
#include "convert/megatron/optim/param_groups.h"

struct training_source {
    struct checkpoint *c;
    struct training_reader reader;
    /* The archive of the values being read, for numbers in tensors: bytes of a
     * file. */
    const char *path;
    uint64_t offset, size;
    unsigned num_scalars; /* numbers in its tensors read so far */
};

void training_source_begin(struct training_source *s, struct checkpoint *c);
/* Reads the common state c->training.common (NULL: none) of this archive. */
void training_source_common(struct training_source *s, const char *path, uint64_t offset,
                            uint64_t size);
/* Reads an optimizer's dict, of this number in a chain, or a grad_scaler's, of
 * this archive. */
void training_source_optimizer(struct training_source *s, const struct value *v, unsigned chain,
                               const char *path, uint64_t offset, uint64_t size);
void training_source_scaler(struct training_source *s, const struct value *v, const char *path,
                            uint64_t offset, uint64_t size);
/* Sets the results in c->training. */
void training_source_end(struct training_source *s);

#endif
