/* rank_write.h - makes a rank file's value `optimizer` for an optimizer that is
 * not distributed (rank_states.h has its layout). */
#ifndef FERRY_CONVERT_MEGATRON_LEGACY_RANK_WRITE_H
#define FERRY_CONVERT_MEGATRON_LEGACY_RANK_WRITE_H

#include "convert/megatron/megatron_target.h"
#include "convert/torch_archive.h"

/* The states of a rank file's parameters. */
struct rank_write {
    struct rank_written {
        const char *name; /* logical; of a tied head's copy, output_layer.weight */
        struct param param;
        enum dtype dtype; /* of the weight */
        unsigned num_dims;
        uint64_t chunk;
        bool is_tied_head;     /* the last of its chunk */
        bool is_trained;       /* it has states, so is in a group */
        size_t added;          /* its place among the weights as they were added */
        struct value **states; /* [t->num_states]; NULL: none */
    } * items;
    size_t count, capacity;
};

/* Adds a weight of the file, in the model's order of registration except for a
 * tied head. Add its states next, with rank_write_state(). */
void rank_write_weight(struct rank_write *w, struct target *t, const char *name,
                       const struct megatron_part *p, uint64_t chunk, bool is_tied_head);
/* state: index in t->states. tensor NULL: a master that is the weight
 * itself. */
void rank_write_state(struct rank_write *w, size_t state, struct value *tensor);

/* Makes a list of a chain by 0, 1, ..., as in torch_dist's common state; other
 * values unchanged. In arena a. */
struct value *rank_write_chain(struct value *optimizer, struct arena *a);
/* The value, from the groups of the common state's `optimizer`. archive: of the
 * file, for numbers that are tensors. In the plan's arena. */
struct value *rank_write_value(struct rank_write *w, struct target *t, struct value *optimizer,
                               struct torch_archive *archive);

#endif
