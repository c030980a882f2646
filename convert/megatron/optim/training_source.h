/* training_source.h - fills the training state of a checkpoint from Megatron's common state and the
 * separate values of its optimizer. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_SOURCE_H
#define FERRY_CONVERT_MEGATRON_OPTIM_TRAINING_SOURCE_H

#include "ckpt/checkpoint.h"
#include "convert/megatron/optim/param_groups.h"

struct training_source {
    struct checkpoint *c;
    struct training_reader reader;
    /* The archive of the values that are being read, for numbers in tensors: bytes of a file. */
    const char *path;
    uint64_t offset, size;
    unsigned num_scalars; /* numbers in tensors that were read of it */
};

void training_source_begin(struct training_source *s, struct checkpoint *c);
/* Reads the common state c->training.common (NULL: none), from this archive. */
void training_source_common(struct training_source *s, const char *path, uint64_t offset,
                            uint64_t size);
/* Reads an optimizer's dict, or a grad_scaler's, from this archive. */
void training_source_optimizer(struct training_source *s, const struct value *v, const char *path,
                               uint64_t offset, uint64_t size);
void training_source_scaler(struct training_source *s, const struct value *v, const char *path,
                            uint64_t offset, uint64_t size);
/* Sets the results in c->training. */
void training_source_end(struct training_source *s);

/* What cannot be read is no reason to refuse the weights: where there are states of the optimizer,
 * it makes these unread (convert/states.h), else it is noted. */

#endif
