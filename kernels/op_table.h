/* op_table.h - the list of ops (op_list.h) as data: each op's operands, and how
 * their shapes follow from one another and from parameters. */
#ifndef FERRY_KERNELS_OP_TABLE_H
#define FERRY_KERNELS_OP_TABLE_H

#include <string.h>

#include "common/dtype.h"
#include "kernels/ops.h"

enum op_flags {
    OP_FEW_ROWS = 1,     /* of each operand, at most as many rows are read or written as the last
                          * INT input has; with OP_IS_COPY as many bytes are read as written */
    OP_PARTIAL_ROWS = 2, /* with `counts`, only its rows are written */
    OP_PARTIAL_OF_PARTIAL = 4, /* rows unwritten in the first input stay unwritten in the output */
    OP_WAITS_FOR_HOST = 8,     /* the host needs numbers computed by the device */
    OP_IS_LOCAL = 16,          /* a collective without communication */
    OP_IS_ALIAS = 32,          /* the output is a view of the first input: nothing runs */
    OP_IS_COPY = 64            /* moves numbers only: backward recomputes its outputs */
};

/* One operand of a signature. */
enum signature_type { TYPE_ELEM, TYPE_REAL, TYPE_INT, TYPE_FLOAT, TYPE_ANY, TYPE_WEIGHT };
struct op_operand {
    char name[16];
    enum signature_type type; /* the first three equal enum operand_type */
    unsigned num_dims;        /* before ".." */
    char dims[OPERAND_DIMS];  /* letters and digits */
    bool has_tail;            /* ".." */
    bool optional, may_be_infinite;
    int in_place; /* outputs: the input whose place it may take; -1: none */
};

/* The sizes of letters. */
struct op_sizes {
    uint64_t of[128];
    bool known[128];
    bool tail_known;
    unsigned num_tail;
    uint64_t tail[OPERAND_DIMS];
    enum operand_type any; /* type of the first operand of type `any` */
};
/* false if the letter has another size already. */
bool op_size_set(struct op_sizes *s, char letter, uint64_t size);

struct op_row {
    const char *name, *signature;
    bool (*sizes)(const union op_params *p,
                  struct op_sizes *s); /* may be NULL; false: sizes contradict */
    double (*flops)(const union op_params *p, const struct operand *in, const struct operand *out);
    unsigned flags;
    double tolerance;
    unsigned num_in, num_out;
    struct op_operand in[MAX_INPUTS], out[MAX_OUTPUTS];
};

#ifdef __cplusplus
extern "C" {
#endif

/* op is below NUM_ALL_OPS. */
const struct op_row *op_row(unsigned op);

/* Checks the operands of a call. An operand without dimensions is absent;
 * data is not read. s has the known letters (G of collectives, or none)
 * before the call, all letters after it. ERR_OURS names the operand, its
 * shape and the signature. */
MUST_CHECK enum status op_check(unsigned op, const union op_params *p, const struct operand *in,
                                const struct operand *out, struct op_sizes *s, struct error *err);

/* Sets types and shapes of the outputs in `wanted` (one bit each) and of all
 * required outputs. If the list leaves a type open, out[i].type holds it before
 * the call. ERR_OURS if inputs do not fit, or an output's size does not follow
 * from them. */
MUST_CHECK enum status op_infer(unsigned op, const union op_params *p, const struct operand *in,
                                unsigned wanted, struct op_sizes *s, struct operand *out,
                                struct error *err);

/* Elements of an operand of the call that are read or written. */
double op_moved(unsigned op, const struct operand *in, const struct operand *o);

/* Floating-point operations. */
double op_flops(unsigned op, const union op_params *p, const struct operand *in,
                const struct operand *out);

/* The share of op_moved's elements of input i that must be read, 0 to 1: of a
 * cache, the keys that a query sees. in_place: the output takes input 0's
 * place, so it is written as far as it is read. If two inputs are one value,
 * the second is passed as absent. */
double op_share_read(unsigned op, const union op_params *p, const struct operand *in, unsigned i,
                     bool in_place);

#ifdef __cplusplus
}
#endif

/* ELEM from its --dtype name: f32, f64, bf16, fp16. */
static inline enum elem_type elem_of(const char *name)
{
    return strcmp(name, "f64") == 0    ? ELEM_F64
           : strcmp(name, "bf16") == 0 ? ELEM_BF16
           : strcmp(name, "fp16") == 0 ? ELEM_F16
                                       : ELEM_F32;
}

/* The dtype of ELEM. */
static inline enum dtype elem_dtype(enum elem_type elem)
{
    return elem == ELEM_F64    ? DT_F64
           : elem == ELEM_BF16 ? DT_BF16
           : elem == ELEM_F16  ? DT_F16
                               : DT_F32;
}

#endif
