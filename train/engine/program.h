/* program.h - a straight-line list of ops over values: the work of one pipeline
 * chunk of a model on one rank, with all shapes known. Messages between stages
 * go between programs (collectives_exchange): they are inputs or outputs here.
 *
 * The builder (builder.h) makes it, the memory plan (memory_plan.h) places each
 * value, and run.h runs it without allocating memory.
 *
 * A value is written once, by one call. Only *held* values, which live across
 * programs (parameters, gradients, optimizer states, states), are changed in
 * place, and by several calls. A *view* is some rows of another value, its
 * base: calls read and write it as any value, and a base may be written through
 * its views, each row once. The program knows shapes, not the meaning of rows
 * and columns.
 *
 * A program may have two *parts*, forward and backward; between them the first
 * part runs for other inputs. Values of the first part that the second one
 * reads are saved. Inputs and saved values of one run lie in a *slot*. There
 * are as many slots as runs can be between their two parts, and more for inputs
 * that arrive earlier. */
#ifndef FERRY_TRAIN_ENGINE_PROGRAM_H
#define FERRY_TRAIN_ENGINE_PROGRAM_H

#include "common/arena.h"
#include "kernels/op_table.h"
#include "train/comm/comm.h"
#include "train/engine/groups.h"

/* The model (train/model/parameters.h) places held classes. A parameter, its
 * gradient, its master and its moments begin at the same element of their
 * regions, unless masters and moments are sharded over ranks; so one value may
 * stand for many parameters at once. */
enum value_class {
    VALUE_PARAMETER, /* of the model; `source`: its number in parameters.h */
    VALUE_GRADIENT,  /* of a parameter, summed over micro-batches */
    VALUE_MASTER,    /* REAL; if parameters are rounded */
    VALUE_MOMENT_1,  /* REAL: Adam's mean of gradients, SGD's momentum */
    VALUE_MOMENT_2,  /* REAL: Adam's mean of their squares */
    VALUE_STATE,     /* kept across runs and programs: a cache of keys and values */
    VALUE_INPUT,     /* set before each run: ids, positions, spans, tables */
    VALUE_OUTPUT,    /* kept until the next run */
    VALUE_SAVED,     /* written by the first part of a program, read by the second */
    VALUE_SCRATCH,   /* lives from its first call to its last */
    NUM_VALUE_CLASSES,
    VALUE_VIEW = NUM_VALUE_CLASSES /* lies in its base */
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
    uint32_t source;  /* number of a parameter or state; an input's row of inputs.h */
    uint32_t step;    /* of the spans of a ring */
    bool is_partial;  /* rows behind the valid ones stay unwritten */
    value_id base;    /* view: the value that has the memory */
    value_id rows_of; /* view: the value whose rows it is, possibly a view */
    /* Parameters and inputs: tensor parallel ranks hold different parts. */
    bool tp_sharded;
    /* Parameters and gradients: bits 1 << enum group_kind of the groups over
     * which gradients are summed. */
    unsigned sums;
    const struct weight_coding *coding; /* of a parameter; NULL: not coded */

    uint64_t bytes,
        offset; /* bytes in the region of its class, by the memory plan; of a view, in its base */
    uint32_t first, last; /* first and last call of it or of its views; first > last: no call */
};

/* Params of the ops of COLLECTIVES (kernels/op_list.h). */
struct collective {
    enum group_kind group;
    enum comm_reduction reduction;
    /* all_gather: all members compute the same with the result, so each has its
     * whole gradient; else each has a part of it. */
    bool replicated;
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
    size_t second_part;                /* its first call; 0: the program has one part */
    uint64_t bytes[NUM_VALUE_CLASSES]; /* of each region, or of a slot; by the memory plan */
};

void program_init(struct program *p, enum elem_type elem, const struct groups *groups);
void program_release(struct program *p);

/* Adds a value that no call has written yet. Names are copied. */
value_id program_add_value(struct program *p, enum value_class class, enum operand_type type,
                           unsigned num_dims, const uint64_t *shape, const char *name);
/* Adds a view of rows [first, first + count) of a value or view. */
value_id program_add_view(struct program *p, value_id of, uint64_t first, uint64_t count,
                          const char *name);
/* Turns a scratch value that is no view and has none into rows first.. of
 * another value: calls that write it, earlier ones too, write there. */
void program_make_view(struct program *p, value_id id, value_id base, uint64_t first);
/* The value with the memory: a view's base, or the value itself. */
static inline value_id program_home(const struct program *p, value_id id)
{
    return p->values[id].class == VALUE_VIEW ? p->values[id].base : id;
}
/* Adds a call. program_check() reports wrong operands, a bug of Ferry. */
struct call *program_add_call(struct program *p, unsigned op, const char *label, int layer);

/* A call to be added, and its outputs. */
struct emission {
    unsigned op;
    const char *label; /* kept, not copied */
    int layer;
    union op_params params;
    struct collective collective;
    value_id in[MAX_INPUTS]; /* NO_VALUE: absent */
    unsigned num_in;
    /* Sizes of outputs that inputs do not determine, by the letters of the op's
     * signature. */
    struct {
        char letter;
        uint64_t size;
    } sizes[4];
    enum operand_type type; /* of new outputs that may be ELEM or REAL */
    /* Set to the outputs. An optional output is made if its pointer is not
     * NULL. */
    value_id *out[MAX_OUTPUTS];
    const value_id *into[MAX_OUTPUTS]; /* held values and views to write outputs into; NULL or
                                          NO_VALUE: new values */
};
/* Adds the call, and its outputs as scratch values with types and shapes by
 * op_infer. Their names: LABEL, or LABEL.OUTPUT if there are several. ERR_OURS
 * if operands do not fit. */
MUST_CHECK enum status program_emit(struct program *p, const struct emission *e, struct error *err);

/* Checks all calls against the list of ops, and that each row of a value is
 * written once, before it is read. */
MUST_CHECK enum status program_check(const struct program *p, struct error *err);

struct op_cost {
    double flops, bytes; /* read and written, each operand once */
};
struct op_cost program_cost(const struct program *p, const struct call *c);

/* A value as an operand, without its data. */
struct operand program_operand(const struct program *p, value_id id);

#endif
