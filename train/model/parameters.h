/* parameters.h - the parameters of a model that one rank holds, and the states that live beside
 * them: what all programs of a model share.
 *
 * A parameter is made from config and layout alone: an array in the rank's memory, the logical
 * tensor that it is a shard of (or all of its experts' tensors, one behind the other), and how that
 * is cut. What fills it comes afterwards: parameters_bind (bind.h) finds its tensors in a
 * checkpoint.
 */
#ifndef FERRY_TRAIN_MODEL_PARAMETERS_H
#define FERRY_TRAIN_MODEL_PARAMETERS_H

#include "ckpt/checkpoint.h"
#include "ckpt/load.h"
#include "ckpt/param.h"
#include "kernels/device.h"

/* Which part of a tensor a rank has. */
struct cut {
    unsigned rank, size; /* of the group that splits it */
    uint64_t rows;       /* of all ranks together, of a vocabulary that is padded */
};

/* What fills some elements of a parameter. */
struct parameter_part {
    const struct tensor *tensor;
    struct pair part; /* a: flat in the tensor; b: element of the parameter */
};

struct parameter {
    const char *name;
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
    uint64_t numel, offset;     /* offset: bytes, in the region */
    const char *const *tensors; /* [num_tensors] logical names; NULL: a state, which has none */
    uint64_t num_tensors;
    const struct param_spec *spec; /* of each of them, numel / num_tensors elements; the caller's */
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
    size_t num_bound; /* of items, from the first on */
    uint64_t bytes;   /* of the region; of each parameter a multiple of MEMORY_ALIGNMENT */
};

void parameters_init(struct parameters *p, enum elem_type elem);
void parameters_release(struct parameters *p);

/* The number of the parameter `name`, added if it is not there: a rank's part of the logical tensor
 * of that name, as the spec says. ERR_UNSUPPORTED where the config does not say its shape, or it
 * does not divide. A stack is that of `count` tensors, one behind the other, with a dimension in
 * front: [count, shape..]. Names are copied. */
MUST_CHECK enum status parameters_add(struct parameters *p, const char *name,
                                      const struct param_spec *spec, const struct cut *cut,
                                      uint32_t *out, struct error *err);
MUST_CHECK enum status parameters_add_stack(struct parameters *p, const char *name,
                                            const char *const *tensors, uint64_t count,
                                            const struct param_spec *spec, const struct cut *cut,
                                            uint32_t *out, struct error *err);

/* Room for a state of these elements behind what is there; the number of one that is there already.
 * States have no parts. */
uint32_t parameters_add_state(struct parameters *p, const char *name, unsigned num_dims,
                              const uint64_t *shape);

/* Fills all parameters in `region` [bytes] of the device, which is zeroed: states stay so. To
 * another device than the host they go through a buffer, as many at a time as fit it. */
MUST_CHECK enum status parameters_load(struct parameters *p, const struct checkpoint *c,
                                       const struct device *device, void *region,
                                       const struct load_options *o, struct error *err);

/* Memory of the host that parameters_load takes for a while, beside the region. */
MUST_CHECK enum status parameters_load_bytes(const struct parameters *p,
                                             const struct device *device,
                                             const struct load_options *o, uint64_t *bytes,
                                             struct error *err);

/* What ELEM is in files. */
static inline enum dtype elem_dtype(enum elem_type elem)
{
    return elem == ELEM_F64 ? DT_F64 : elem == ELEM_BF16 ? DT_BF16 : DT_F32;
}

#endif
