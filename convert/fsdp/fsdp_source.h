/* fsdp_source.h - what the modules of the reader of FSDP's torch.save files share.
 *
 * source_fsdp.c reads the weights; fsdp_states.c the optimizer's states and groups. */
#ifndef FERRY_CONVERT_FSDP_FSDP_SOURCE_H
#define FERRY_CONVERT_FSDP_FSDP_SOURCE_H

#include "convert/fsdp/fsdp_join.h"
#include "convert/wrapper_names.h"

struct fsdp_source {
    struct checkpoint *c;
    struct fsdp_files files;
    struct fsdp_join join;
    struct wrapper_names names;
    const char **params; /* in the order of the first file, each storage once; then the optimizer's
                            numbers count them */
    size_t num_params, params_capacity;
    struct map storages; /* of the first file */
    bool combined;       /* the files of the weights have the optimizer's dict too */
    size_t num_unread;   /* values of the first file that are no tensors */
    const char *first_unread;
};

/* The dict {state, param_groups} of an optimizer, which may be below a key of a file's root; NULL:
 * there is none. */
const struct value *fsdp_find_optimizer(const struct value *root);
/* Reads the states of the optimizer's files into x->join, and groups into c->training. What cannot
 * be read makes the states unread (convert/states.h). */
void fsdp_states_read(struct fsdp_source *x);

#endif
