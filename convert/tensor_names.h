/* tensor_names.h - finds tensors of an opened checkpoint by any name: the
 * logical name, the name in the files, or, for a Megatron checkpoint of a known
 * family, the Hugging Face name. */
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
    /* Other names: stored tensors of a logical tensor; logical tensors with
     * elements of a stored or Hugging Face tensor. */
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
    const char **partners; /* of all stored tensors: logical names */
    size_t *first_partner; /* [stored tensors + 1] into partners; NULL: not made */
};

/* stored_only: only names in the files are known. The checkpoint must outlive
 * n. */
void tensor_names_init(struct tensor_names *n, const struct checkpoint *c,
                       const struct model_maps *maps, bool stored_only);
void tensor_names_release(struct tensor_names *n);

/* Lists tensors whose names match a glob: logical tensors, else stored tensors,
 * else Hugging Face's. ERR_USAGE "no tensor matches", with the nearest name. In
 * n's arena. */
MUST_CHECK enum status tensor_names_match(struct tensor_names *n, const char *glob,
                                          struct named_tensor **out, size_t *count,
                                          struct error *err);
/* Finds the tensor of exactly this name, without globbing; false: none. */
bool tensor_names_find(struct tensor_names *n, const char *name, struct named_tensor *out);

/* Sets *out to a readable tensor: the catalog's, or a new one in n's arena
 * outside the catalog. */
MUST_CHECK enum status tensor_names_open(struct tensor_names *n, const struct named_tensor *named,
                                         const struct tensor **out, struct error *err);

/* Edit distance of a name and a glob: characters to insert, delete or change
 * until the name matches. */
size_t glob_distance(const char *glob, const char *name);

#endif
