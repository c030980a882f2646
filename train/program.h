/* program.h - a straight-line list of ops over values: what one pipeline chunk of a model computes
 * on one rank, with all shapes known.
 *
 * The builder (builder.h) makes it, the memory plan (memory_plan.h) gives each value its place, and
 * run.h carries it out. Nothing allocates while it runs.
 *
 * A value is written once, by one call, but for STATE, which lives across programs and is changed
 * in place. Its rows are tokens or whatever the builder means; the program knows shapes only. */
#ifndef FERRY_TRAIN_PROGRAM_H
#define FERRY_TRAIN_PROGRAM_H

#include "common/arena.h"
#include "kernels/ops.h"
#include "train/comm/comm.h"
#include "train/groups.h"

enum value_class {
    VALUE_PARAMETER, /* of the model; `source` is its number in parameters.h */
    VALUE_INPUT,     /* set before each run: ids, positions, spans, tables */
    VALUE_OUTPUT,    /* kept until the next run */
    VALUE_STATE,     /* kept across runs and programs: a cache of keys and values */
    VALUE_SCRATCH,   /* lives from the call that writes it to the last that reads it */
    NUM_VALUE_CLASSES
};

typedef uint32_t value_id;
#define NO_VALUE UINT32_MAX

struct program_value {
    const char *name; /* "layers.3.qkv"; a parameter's logical name */
    enum value_class class;
    enum operand_type type;
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
    uint32_t source; /* of parameters and states */

    uint64_t bytes, offset; /* in the region of its class; offset by the memory plan */
    uint32_t first, last;   /* the calls between which it lives */
};

/* What ranks do together: ops behind those of kernels/ops.h. Rows (the first dimension) are what is
 * gathered and scattered. */
// clang-format off
#define COLLECTIVES(X) \
    /* in: x. out: y, of all members' x; may be x */                                              \
    X(OP_ALL_REDUCE,     "all_reduce")                                                            \
    /* in: x [n, ..]. out: y [size * n, ..], member by member */                                  \
    X(OP_ALL_GATHER,     "all_gather")                                                            \
    /* in: x [size * n, ..]. out: y [n, ..]: one's own rows of the sum */                         \
    X(OP_REDUCE_SCATTER, "reduce_scatter")                                                        \
    /* in: x [R, h], counts INT [size * E]: rows for each member (and each of its E experts), in  \
     * that order. out: y [R', h] likewise from each member; counts of what came INT [size * E'].  \
     * R and R' are bounds */                                                                     \
    X(OP_ALL_TO_ALL,     "all_to_all")                                                            \
    /* in: x. out: y: x of the member before, while ours goes to the one behind */                \
    X(OP_SHIFT,          "shift")                                                                 \
    /* in: x, to a member of the group. out: y, from one */                                       \
    X(OP_SEND,           "send")                                                                  \
    X(OP_RECEIVE,        "receive")                                                               \
    /* in: x [size * n, ..], the same for all. out: y [n, ..]: one's own rows. No communication */  \
    X(OP_SLICE,          "slice")
// clang-format on

enum collective_op {
    OP_COLLECTIVES = NUM_OPS - 1,
#define X(id, name) id,
    COLLECTIVES(X)
#undef X
        NUM_ALL_OPS
};

struct collective {
    enum group_kind group;
    enum comm_reduction reduction;
    unsigned peer; /* of send and receive: a member of the group */
};

struct call {
    unsigned op; /* enum op or enum collective_op */
    union op_params params;
    struct collective collective;
    value_id in[MOST_INPUTS], out[MOST_OUTPUTS]; /* NO_VALUE: absent */
    value_id workspace;
    double pairs;      /* of attention: queries and keys that meet, for its cost */
    const char *label; /* "layers.3.attention", for messages and timings */
    int layer;         /* of the model; -1: none */
};

struct program {
    struct arena arena;
    enum elem_type elem;
    const struct groups *groups; /* the caller's */
    struct program_value *values;
    size_t num_values, values_capacity;
    struct call *calls;
    size_t num_calls, calls_capacity;
    uint64_t bytes[NUM_VALUE_CLASSES]; /* of each region; set by the memory plan */
};

void program_init(struct program *p, enum elem_type elem, const struct groups *groups);
void program_release(struct program *p);

/* A value that no call has written yet. Names are copied. */
value_id program_add_value(struct program *p, enum value_class class, enum operand_type type,
                           unsigned num_dims, const uint64_t *shape, const char *name);
/* Adds a call. A mistake in its operands' number, types or shapes is ours: it is kept and told by
 * program_check. */
struct call *program_add_call(struct program *p, unsigned op, const char *label, int layer);

/* All calls, by the rows of ops.h; each value is written before it is read, and once. ERR_OURS. */
MUST_CHECK enum status program_check(const struct program *p, struct error *err);

/* A value as an operand, without its data. */
struct operand program_operand(const struct program *p, value_id id);

#endif
