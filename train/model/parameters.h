/* parameters.h - the parameters of a model on one rank, and the states beside them. All programs of
 * a model share them.
 *
 * A parameter follows from config and layout: an array in the rank's memory, the logical tensor
 * that it is a shard of (or the tensors of all its experts, one after the other), and how that is
 * split. Later parameters_bind() (bind.h) finds its tensors in a checkpoint.
 *
 * A buffer has tensors too, and programs take it for a state: it has no gradient. */
#ifndef FERRY_TRAIN_MODEL_PARAMETERS_H
#define FERRY_TRAIN_MODEL_PARAMETERS_H

#include "ckpt/checkpoint.h"
#include "ckpt/load.h"
#include "ckpt/param.h"
#include "kernels/device.h"
#include "kernels/op_table.h"
#include "train/engine/groups.h"

/* The part of a tensor that a rank has. */
struct cut {
    unsigned rank, size; /* of the group that splits it */
    uint64_t rows;       /* of all ranks together, if the vocabulary is padded */
};

/* A tensor that fills some elements of a parameter. */
struct parameter_part {
    const struct tensor *tensor;
    struct pair part; /* a: flat in the tensor; b: element of the parameter */
};

struct parameter {
    const char *name;
    enum operand_type type; /* of parameters ELEM, of buffers REAL */
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
    uint64_t numel, offset;     /* offset: bytes, in the region */
    const char *const *tensors; /* [num_tensors] logical names; NULL: a state, which has none */
    uint64_t num_tensors;
    const struct param_spec *spec; /* of each of them, numel / num_tensors elements; the caller's */
    unsigned sums; /* bits 1 << enum group_kind: over these groups its gradients are summed. Set by
                    * what trains it (backward.h) */
    const struct param_parts *cut; /* pairs: (flat in the padded tensor, flat in the rank's own) */
    struct parameter_part *parts;  /* of parameters that are bound */
    size_t num_parts, capacity;
};

struct parameters {
    struct arena arena;
    enum elem_type elem;
    struct parameter *items;
    size_t count, capacity;
    struct map names;
    size_t num_bound; /* the first so many items are bound */
    uint64_t bytes;   /* of the region; of each parameter a multiple of MEMORY_ALIGNMENT */
    /* Of a buffer of parameters_load(), at most; a multiple of 8. Tests make it small. */
    uint64_t load_bytes;
};

/* Whether it is a parameter: no buffer, no state. */
bool parameter_is_trained(const struct parameter *x);
/* Of its elements in memory. */
enum dtype parameter_dtype(const struct parameters *p, const struct parameter *x);

/* Bits 1 << enum group_kind of the groups whose members all have the same elements of a parameter;
 * and whether a rank at this place counts of those that have the same: the first of each group.
 * apart: groups whose members have different elements nevertheless. */
unsigned parameter_copies(const struct parameter *x);
bool parameter_counts(const struct parameter *x, const struct groups *g, unsigned apart);

void parameters_init(struct parameters *p, enum elem_type elem);
void parameters_release(struct parameters *p);

/* Sets *out to the number of the parameter `name`, and adds it first if it is not there: this
 * rank's part of the logical tensor, by the spec. ERR_UNSUPPORTED if the config does not give its
 * shape, or the shape cannot be split. A stack is an array [count, shape..] of the parts of `count`
 * tensors. Names are copied. */
MUST_CHECK enum status parameters_add(struct parameters *p, const char *name,
                                      const struct param_spec *spec, const struct cut *cut,
                                      uint32_t *out, struct error *err);
MUST_CHECK enum status parameters_add_stack(struct parameters *p, const char *name,
                                            const char *const *tensors, uint64_t count,
                                            const struct param_spec *spec, const struct cut *cut,
                                            uint32_t *out, struct error *err);

/* Adds a state of this shape, unless there is one of that name, and returns its number. States have
 * no parts. */
uint32_t parameters_add_state(struct parameters *p, const char *name, enum operand_type type,
                              unsigned num_dims, const uint64_t *shape);

/* Numbers and places all parameters anew: those of rank 0 first, then those of rank 1 .., in each
 * rank as they were added, and buffers and states behind them. Programs made before are void.
 * Parameter i begins at element offset / (bytes of ELEM) of its region, and at the same element of
 * regions of other types. Those of each rank begin at a multiple of `unit` bytes, as what is behind
 * them. */
void parameters_arrange(struct parameters *p, unsigned (*rank)(const struct parameter *x),
                        uint64_t unit);

/* Loads all parameters into `region` [bytes] of the device, which is zeroed; states stay zero. If
 * the device is not the host, parameters go through two of its buffers in turn, and one that is
 * larger than a buffer goes in parts. */
MUST_CHECK enum status parameters_load(struct parameters *p, const struct checkpoint *c,
                                       const struct device *device, void *region,
                                       const struct load_options *o, struct error *err);

/* Memory of the host that parameters_load() allocates until it ends, beside the region. */
MUST_CHECK enum status parameters_load_bytes(const struct parameters *p,
                                             const struct device *device,
                                             const struct load_options *o, uint64_t *bytes,
                                             struct error *err);

#endif
