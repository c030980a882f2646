/* tensor_names.h - finds the tensors of an opened checkpoint by any of their names: the logical
 * name, the name in the files, and, for a Megatron checkpoint of a known family, the Hugging Face
 * name. */
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
    /* Other names: for a logical tensor, the stored tensors that it is made of; for a stored or
     * Hugging Face tensor, the logical tensors that have elements of it. */
    const char *const *partners;
    size_t num_partners;
    const struct stored_tensor *stored; /* for NAME_STORED */
    const struct hf_tensor *hf;         /* for NAME_HF */
};

struct tensor_names {
    const struct checkpoint *checkpoint;
    const struct model_maps *maps;
    bool stored_only;
    struct arena arena;
    const char **partners; /* the partners of all stored tensors: logical names */
    size_t *first_partner; /* [stored tensors + 1] into partners; NULL: not made yet */
};

/* stored_only: only the names in the files are known. The checkpoint must outlive n. */
void tensor_names_init(struct tensor_names *n, const struct checkpoint *c,
                       const struct model_maps *maps, bool stored_only);
void tensor_names_release(struct tensor_names *n);

/* Lists the tensors whose names match a glob: logical tensors; if no logical name matches, stored
 * tensors; if none matches either, Hugging Face's. ERR_USAGE "no tensor matches", with the nearest
 * name, if no name matches. Everything is in n's arena. */
MUST_CHECK enum status tensor_names_match(struct tensor_names *n, const char *glob,
                                          struct named_tensor **out, size_t *count,
                                          struct error *err);
/* Finds the tensor with exactly this name, glob characters taken literally; false if there is
 * none. */
bool tensor_names_find(struct tensor_names *n, const char *name, struct named_tensor *out);

/* Sets *out to a tensor that can be read: the catalog's own, or a new one in n's arena that is not
 * added to the catalog. */
MUST_CHECK enum status tensor_names_open(struct tensor_names *n, const struct named_tensor *named,
                                         const struct tensor **out, struct error *err);

/* The edit distance between a name and a glob: the number of characters to insert, delete or change
 * until the name matches. */
size_t glob_distance(const char *glob, const char *name);

#endif
