/* parameters.h - the parameters that one rank holds, and the states that live beside them: what all
 * programs of a model share.
 *
 * A parameter is an array in the rank's memory and the parts of logical tensors that fill it: one
 * shard of one tensor, or of all of its experts, one behind the other. */
#ifndef FERRY_TRAIN_PARAMETERS_H
#define FERRY_TRAIN_PARAMETERS_H

#include "ckpt/catalog.h"
#include "ckpt/load.h"
#include "kernels/device.h"

struct parameter_part {
    const struct tensor *tensor;
    struct pair part; /* a: flat in the tensor; b: element of the parameter */
};

struct parameter {
    const char *name;
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
    uint64_t numel, offset; /* offset: bytes, in the region */
    struct parameter_part *parts;
    size_t num_parts, capacity;
};

struct parameters {
    struct arena arena;
    const struct catalog *catalog; /* the caller's */
    enum elem_type elem;
    struct parameter *items;
    size_t count, capacity;
    struct map names;
    uint64_t bytes; /* of the region; of each parameter a multiple of MEMORY_ALIGNMENT */
};

void parameters_init(struct parameters *p, const struct catalog *catalog, enum elem_type elem);
void parameters_release(struct parameters *p);

/* How a tensor is cut for this rank. */
struct shard {
    unsigned rank, size; /* of tensor parallelism, or of that of experts */
    bool gated;          /* [gate; up] are cut separately */
    uint64_t vocab_rows; /* rows that a rank has of a vocabulary; behind its end they are 0 */
    /* Of query, key and value where there are more ranks than groups: what one rank has of them,
     * one group of `queries` heads. Ranks of one group have its key and value each. groups 0: it is
     * cut as any other. */
    struct head_shape heads;
};

/* The parameter that is this shard of tensor `name`, added if it is not there; *out is its number.
 * ERR_UNSUPPORTED where the checkpoint has no such tensor, or its shard is not of this shape. */
MUST_CHECK enum status parameters_add(struct parameters *p, const char *name, const struct shard *s,
                                      unsigned num_dims, const uint64_t *shape, uint32_t *out,
                                      struct error *err);
/* The same for `count` tensors, whose shards [shape..] lie one behind the other: [count, shape..]
 */
MUST_CHECK enum status parameters_add_stack(struct parameters *p, const char *name,
                                            const char *const *tensors, uint64_t count,
                                            const struct shard *s, unsigned num_dims,
                                            const uint64_t *shape, uint32_t *out,
                                            struct error *err);

/* Room for a state of these elements behind what is there; the number of one that is there already.
 * States have no parts. */
uint32_t parameters_add_state(struct parameters *p, const char *name, unsigned num_dims,
                              const uint64_t *shape);

/* Fills all parameters in `region` [bytes] of the device, which is zeroed: states stay so. To
 * another device than the host they go through a buffer, as many at a time as fit it. */
MUST_CHECK enum status parameters_load(struct parameters *p, struct catalog *c,
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
