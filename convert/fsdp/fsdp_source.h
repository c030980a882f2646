/* fsdp_source.h - shared by the modules that read FSDP's torch.save files:
 * source_fsdp.c the weights, fsdp_states.c optimizer states and groups. */
#ifndef FERRY_CONVERT_FSDP_FSDP_SOURCE_H
#define FERRY_CONVERT_FSDP_FSDP_SOURCE_H

#include "convert/fsdp/fsdp_join.h"
#include "convert/wrapper_names.h"

struct fsdp_source {
    struct checkpoint *c;
    struct fsdp_files files;
    struct fsdp_join join;
    struct wrapper_names names;
    const char **params; /* in the first file's order, each storage once; the optimizer's numbers
                            count them */
    size_t num_params, params_capacity;
    struct map storages; /* of the first file */
    const char *prefix;  /* of the model's names, for shapes of flattened parameters */
    bool combined;       /* the weights' files have the optimizer's dict too */
    size_t num_unread;   /* values of the first file that are no tensors */
    const char *first_unread;
};

/* An optimizer's dict {state, param_groups}, at a file's root or below a key;
 * NULL: none. */
const struct value *fsdp_find_optimizer(const struct value *root);
/* Reads the optimizer's states into x->join, and groups into c->training. What
 * cannot be read makes the states unread (convert/states.h). */
void fsdp_states_read(struct fsdp_source *x);

#endif
