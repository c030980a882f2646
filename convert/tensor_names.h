/* tensor_names.h - the tensors of an opened checkpoint by any of their names: the logical one, that
 * of the files, and on a Megatron checkpoint that of Hugging Face, where the family has a map. */
#ifndef FERRY_CONVERT_TENSOR_NAMES_H
#define FERRY_CONVERT_TENSOR_NAMES_H

#include "ckpt/checkpoint.h"
#include "convert/map/model_map.h"

enum name_kind { NAME_LOGICAL, NAME_STORED, NAME_HF };

struct named_tensor {
    enum name_kind kind;
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    size_t num_shards;
    /* Of a logical tensor: the stored ones that it is made of. Of the others: the logical ones that
     * they are, or are a part of. */
    const char *const *partners;
    size_t num_partners;
    const struct stored_tensor *stored; /* of NAME_STORED */
    const struct hf_tensor *hf;         /* of NAME_HF */
};

struct tensor_names {
    const struct checkpoint *checkpoint;
    const struct model_maps *maps;
    bool stored_only;
    struct arena arena;
    const char **partners; /* of all stored tensors: names of logical ones */
    size_t *first_partner; /* [stored tensors + 1] into partners; NULL: not made yet */
};

/* stored_only: names are those of the files. The checkpoint must outlive it. */
void tensor_names_init(struct tensor_names *n, const struct checkpoint *c,
                       const struct model_maps *maps, bool stored_only);
void tensor_names_release(struct tensor_names *n);

/* Those whose names match a glob: logical tensors; where there is none, stored ones; where there is
 * none, Hugging Face's. ERR_USAGE "no tensor matches", with the nearest name, where nothing does.
 * Everything is in n's arena. */
MUST_CHECK enum status tensor_names_match(struct tensor_names *n, const char *glob,
                                          struct named_tensor **out, size_t *count,
                                          struct error *err);
/* The one of exactly this name, whatever characters it has; false where there is none. */
bool tensor_names_find(struct tensor_names *n, const char *name, struct named_tensor *out);

/* As a tensor to read: the catalog's own, or one in n's arena that is no part of it. */
MUST_CHECK enum status tensor_names_open(struct tensor_names *n, const struct named_tensor *named,
                                         const struct tensor **out, struct error *err);

/* How far a name is from a glob: characters to be put in, left out or changed until it matches. */
size_t glob_distance(const char *glob, const char *name);

#endif
