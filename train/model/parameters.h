/* parameters.h - the parameters of a model on one rank, and its states, shared
 * by all its programs.
 *
 * Config and layout determine a parameter: an array in the rank's memory, the
 * logical tensor that it is a shard of (or the tensors of all its experts,
 * stacked), and their split. Later parameters_bind() (bind.h) finds its tensors
 * in a checkpoint.
 *
 * A buffer has tensors too, but is a state for programs: it has no gradient. */
#ifndef FERRY_TRAIN_MODEL_PARAMETERS_H
#define FERRY_TRAIN_MODEL_PARAMETERS_H

#include "ckpt/checkpoint.h"
#include "ckpt/load.h"
#include "ckpt/param.h"
#include "kernels/device.h"
#include "kernels/op_table.h"
#include "train/engine/groups.h"

/* A rank's shard of a tensor. */
struct cut {
    unsigned rank, size; /* of the group that splits it */
    uint64_t rows;       /* of all ranks, with padding of the vocabulary */
};

/* A tensor for some elements of a parameter. */
struct parameter_part {
    const struct tensor *tensor;
    struct pair part; /* a: flat in the tensor; b: element of the parameter */
};

/* Elements of a coded parameter in a tensor of the checkpoint. */
struct coded_part {
    const struct encoded *encoded;
    struct pair part; /* a: its elements, nested; b: element of the parameter */
};

struct parameter {
    const char *name;
    enum operand_type type; /* parameters: ELEM; buffers: REAL */
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
    uint64_t numel, offset;     /* offset: bytes, in the region */
    const char *const *tensors; /* [num_tensors] logical names; NULL: a state */
    uint64_t num_tensors;
    const struct param_spec *spec; /* of each tensor, of numel / num_tensors elements; borrowed */
    unsigned sums; /* bits 1 << enum group_kind: groups that sum its gradients; set by the trainer
                      (backward.h) */
    const struct param_parts *cut; /* pairs: (flat in the padded tensor, flat in the shard) */
    struct parameter_part *parts;  /* of bound parameters that are not coded */
    size_t num_parts, capacity;
    const struct weight_coding *coding; /* NULL: not coded */
    struct coded_part *coded_parts;
    size_t num_coded_parts, coded_capacity;
    const char *why_decoded; /* though the checkpoint has codes; NULL: no reason yet */
};

struct parameters {
    struct arena arena;
    enum elem_type elem;
    struct parameter *items;
    size_t count, capacity;
    struct map names;
    size_t num_bound; /* number of bound items, the first ones */
    uint64_t bytes;   /* of the region; a multiple of MEMORY_ALIGNMENT for each parameter */
    /* Most bytes of a buffer of parameters_load(); a multiple of 8. Tests make
     * it small. */
    uint64_t load_bytes;
};

/* Whether it is neither buffer nor state. */
bool parameter_is_trained(const struct parameter *x);
/* Dtype of its elements in memory. */
enum dtype parameter_dtype(const struct parameters *p, const struct parameter *x);

/* Bits 1 << enum group_kind of the groups whose members have the same elements
 * of a parameter; whether a rank is the first of each of these groups, and so
 * counts. apart: groups whose members differ nevertheless. */
unsigned parameter_copies(const struct parameter *x);
bool parameter_counts(const struct parameter *x, const struct groups *g, unsigned apart);

void parameters_init(struct parameters *p, enum elem_type elem);
void parameters_release(struct parameters *p);

/* Sets *out to the number of parameter `name`, and adds it if it is missing:
 * this rank's shard of the logical tensor, by its spec. ERR_UNSUPPORTED if the
 * config does not give its shape, or the shape cannot be split. A stack is an
 * array [count, shape..] of shards of `count` tensors. Names are copied. */
MUST_CHECK enum status parameters_add(struct parameters *p, const char *name,
                                      const struct param_spec *spec, const struct cut *cut,
                                      uint32_t *out, struct error *err);
MUST_CHECK enum status parameters_add_stack(struct parameters *p, const char *name,
                                            const char *const *tensors, uint64_t count,
                                            const struct param_spec *spec, const struct cut *cut,
                                            uint32_t *out, struct error *err);

/* Adds a state without parts, unless one has that name; returns its number. */
uint32_t parameters_add_state(struct parameters *p, const char *name, enum operand_type type,
                              unsigned num_dims, const uint64_t *shape);

/* Renumbers and places all parameters: those of rank 0, then of rank 1 .., each
 * in order of addition, then buffers and states. Invalidates earlier programs.
 *
 * Parameter i begins at element offset / (bytes of ELEM) of its region, and at
 * the same element of regions of other types. Those of each rank, and what
 * follows the last, begin at a multiple of `unit` bytes. */
void parameters_arrange(struct parameters *p, unsigned (*rank)(const struct parameter *x),
                        uint64_t unit);

/* Bytes of a parameter in the region. */
uint64_t parameter_bytes(const struct parameters *p, const struct parameter *x);

/* Loads all parameters into `region` [bytes] of the device, which is zeroed;
 * states stay zero. On another device than the host, parameters go through two
 * of its buffers in turn, larger ones in parts. */
MUST_CHECK enum status parameters_load(struct parameters *p, const struct checkpoint *c,
                                       const struct device *device, void *region,
                                       const struct load_options *o, struct error *err);

/* Host memory that parameters_load() allocates until it ends, beside the
 * region. */
MUST_CHECK enum status parameters_load_bytes(const struct parameters *p,
                                             const struct device *device,
                                             const struct load_options *o, uint64_t *bytes,
                                             struct error *err);

#endif
