/* rank_write.h - the value `optimizer` of a rank file for an optimizer that is not distributed
 * (rank_states.h has its layout). */
#ifndef FERRY_CONVERT_MEGATRON_LEGACY_RANK_WRITE_H
#define FERRY_CONVERT_MEGATRON_LEGACY_RANK_WRITE_H

#include "convert/megatron/megatron_target.h"
#include "convert/torch_archive.h"

/* The states of the parameters of one rank file. */
struct rank_write {
    struct rank_written {
        const char *name; /* logical; of the copy of a tied head, output_layer.weight */
        struct param param;
        enum dtype dtype; /* of the weight */
        unsigned num_dims;
        uint64_t chunk;
        bool is_tied_head;     /* the last of its chunk */
        bool is_trained;       /* it has states: a group has it */
        size_t told;           /* its number as it was told */
        struct value **states; /* [t->num_states]; NULL: none */
    } * items;
    size_t count, capacity;
};

/* Tells of a weight of the file, in the order in which its model registers them but for a tied
 * head. Its states follow, with rank_write_state(). */
void rank_write_weight(struct rank_write *w, struct target *t, const char *name,
                       const struct megatron_part *p, uint64_t chunk, bool is_tied_head);
/* state: its index in t->states. tensor: NULL for a master that is the weight itself. */
void rank_write_state(struct rank_write *w, size_t state, struct value *tensor);

/* A chain by 0, 1, ..., as the common state of torch_dist has it, as a list; another value as it
 * is. In arena a. */
struct value *rank_write_chain(struct value *optimizer, struct arena *a);
/* The value, from the groups of the common state's `optimizer`. archive: of the file, for numbers
 * that are tensors. In the plan's arena. */
struct value *rank_write_value(struct rank_write *w, struct target *t, struct value *optimizer,
                               struct torch_archive *archive);

#endif
