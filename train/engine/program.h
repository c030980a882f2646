/* program.h - a straight-line list of ops over values: what one pipeline chunk of a model computes
 * on one rank, with all shapes known. What stages send to one another goes between programs
 * (collectives_exchange): it is an input here, or an output.
 *
 * The builder (builder.h) makes it, the memory plan (memory_plan.h) gives each value its place, and
 * run.h runs it, without allocating memory.
 *
 * A value is written once, by one call. Only *held* values, which live across programs (parameters,
 * gradients, what the optimizer has, states), are changed in place, and may be written by several
 * calls. A *view* is some rows of another value, its base: calls read and write it as any value,
 * and a base may be written by way of its views, each row once. The program knows shapes, not the
 * meaning of rows and columns.
 *
 * A program may have two *parts*, forward and backward, between which the first part runs for other
 * inputs: what the second part reads of the first is then saved. Inputs and saved values of one run
 * lie in a *slot*: there are as many slots as runs can be between their two parts, and more of
 * inputs where these come earlier. */
#ifndef FERRY_TRAIN_ENGINE_PROGRAM_H
#define FERRY_TRAIN_ENGINE_PROGRAM_H

#include "common/arena.h"
#include "kernels/op_table.h"
#include "train/comm/comm.h"
#include "train/engine/groups.h"

/* Held classes have their places from the model (train/model/parameters.h). A parameter, its
 * gradient, its master and its moments begin at the same element of their regions, unless masters
 * and moments are sharded over ranks; so one value may stand for many parameters at once. */
enum value_class {
    VALUE_PARAMETER, /* of the model; `source` is its number in parameters.h */
    VALUE_GRADIENT,  /* of a parameter, summed over micro-batches */
    VALUE_MASTER,    /* REAL, where parameters are rounded */
    VALUE_MOMENT_1,  /* REAL: of Adam the mean of gradients, of SGD the momentum */
    VALUE_MOMENT_2,  /* REAL: of Adam the mean of their squares */
    VALUE_STATE,     /* kept across runs and programs: a cache of keys and values */
    VALUE_INPUT,     /* set before each run: ids, positions, spans, tables */
    VALUE_OUTPUT,    /* kept until the next run */
    VALUE_SAVED,     /* made by the first part of a program and read by the second */
    VALUE_SCRATCH,   /* lives from the call that writes it to the last that reads it */
    NUM_VALUE_CLASSES,
    VALUE_VIEW = NUM_VALUE_CLASSES /* has no memory of its own: it lies in its base */
};

static inline bool value_is_held(enum value_class class)
{
    return class <= VALUE_STATE;
}

typedef uint32_t value_id;
#define NO_VALUE UINT32_MAX

struct program_value {
    const char *name; /* "layers.3.qkv"; a parameter's logical name */
    enum value_class class;
    enum operand_type type;
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
    uint32_t source;  /* of parameters and states; of inputs their row of inputs.h */
    uint32_t step;    /* of the spans of a ring */
    bool is_partial;  /* rows behind the valid ones are never written */
    value_id base;    /* of a view: the value that has the memory */
    value_id rows_of; /* of a view: the value that it is rows of, which may be a view, too */
    /* Of parameters and inputs: members of the tensor parallel group have different parts. */
    bool is_apart;
    /* Of parameters and their gradients: a bit 1 << enum group_kind for each group over which the
     * members' gradients are summed. */
    unsigned sums;

    uint64_t bytes,
        offset; /* in the region of its class, by the memory plan; of a view in its base */
    uint32_t first, last; /* the calls between which it lives, or a view of it; of a value in no
                             call, first > last */
};

/* Of the ops of COLLECTIVES (kernels/op_list.h). */
struct collective {
    enum group_kind group;
    enum comm_reduction reduction;
    /* Of all_gather: all members compute the same with the result, so each has its whole gradient;
     * else each has a part of it. */
    bool alike;
};

struct call {
    unsigned op; /* enum op */
    union op_params params;
    struct collective collective;
    value_id in[MAX_INPUTS], out[MAX_OUTPUTS]; /* NO_VALUE: absent */
    value_id workspace;
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
    size_t second_part; /* the call that it begins with; 0: the program has one part */
    uint64_t bytes[NUM_VALUE_CLASSES]; /* of each region, or of a slot; set by the memory plan */
};

void program_init(struct program *p, enum elem_type elem, const struct groups *groups);
void program_release(struct program *p);

/* A value that no call has written yet. Names are copied. */
value_id program_add_value(struct program *p, enum value_class class, enum operand_type type,
                           unsigned num_dims, const uint64_t *shape, const char *name);
/* A view of rows [first, first + count) of a value, or of what that is a view of. */
value_id program_add_view(struct program *p, value_id of, uint64_t first, uint64_t count,
                          const char *name);
/* Makes a scratch value that is no view, and has none, rows of another value, from row `first` on:
 * what is written to it, also by calls that are there, is written there. */
void program_make_view(struct program *p, value_id id, value_id base, uint64_t first);
/* The value that has the memory: the base of a view, or the value itself. */
static inline value_id program_home(const struct program *p, value_id id)
{
    return p->values[id].class == VALUE_VIEW ? p->values[id].base : id;
}
/* Adds a call. Wrong operands are a bug of Ferry, which program_check() reports. */
struct call *program_add_call(struct program *p, unsigned op, const char *label, int layer);

/* A call to be added, with the values that it makes. */
struct emission {
    unsigned op;
    const char *label; /* kept, not copied */
    int layer;
    union op_params params;
    struct collective collective;
    value_id in[MAX_INPUTS]; /* NO_VALUE: absent */
    unsigned num_in;
    /* Sizes of outputs that do not follow from the inputs, by the letters of the op's signature. */
    struct {
        char letter;
        uint64_t size;
    } sizes[4];
    enum operand_type type; /* of outputs that may be ELEM or REAL and have no value yet */
    /* Set to the numbers of the outputs. An optional output is made if its pointer is not NULL. */
    value_id *out[MAX_OUTPUTS];
    const value_id *into[MAX_OUTPUTS]; /* the held values and views that outputs are written into;
                                        * NULL or NO_VALUE: values of their own */
};
/* Adds the call, and its outputs as scratch values with the types and shapes of op_infer, called
 * LABEL, or LABEL.OUTPUT where there are several. ERR_OURS where operands do not fit. */
MUST_CHECK enum status program_emit(struct program *p, const struct emission *e, struct error *err);

/* Checks all calls by the list of ops, and that each row of a value is written once, before it is
 * read. */
MUST_CHECK enum status program_check(const struct program *p, struct error *err);

struct op_cost {
    double flops, bytes; /* bytes: read and written, each operand once */
};
struct op_cost program_cost(const struct program *p, const struct call *c);

/* A value as an operand, without its data. */
struct operand program_operand(const struct program *p, value_id id);

#endif
