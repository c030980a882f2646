/* op_table.h - what the list of ops (op_list.h) says of each: its operands, and how their shapes
 * follow from one another and from the op's parameters. */
#ifndef FERRY_KERNELS_OP_TABLE_H
#define FERRY_KERNELS_OP_TABLE_H

#include "kernels/ops.h"

/* How the backward pass gets an output that it needs. Megatron-Core's --recompute-granularity
 * selective names core attention, norms and activations. */
enum op_rebuild {
    REBUILD_NEVER,     /* it is saved */
    REBUILD_SELECTIVE, /* it is computed again where selective recomputation is on */
    REBUILD_ALWAYS     /* it is only moved data: it is made again from what it was moved from */
};

enum op_flags {
    OP_READS_FEW_ROWS = 1, /* of what may be large: counted as what is written */
    OP_PARTIAL_ROWS = 2,   /* rows of outputs behind those that counts say are not written; where
                              `counts` may be absent: where it is there */
    OP_PARTIAL_OF_PARTIAL = 4, /* such rows of the first input are such rows of the output */
    OP_WAITS_FOR_HOST = 8,     /* the host must know numbers that only the device has */
    OP_IS_LOCAL = 16           /* of collectives: nobody talks */
};

/* One operand of a signature. */
enum signature_type { TYPE_ELEM, TYPE_REAL, TYPE_INT, TYPE_FLOAT, TYPE_ANY };
struct op_operand {
    char name[16];
    enum signature_type type; /* the first three are those of enum operand_type */
    unsigned num_dims;        /* before ".." */
    char dims[OPERAND_DIMS];  /* letters and digits */
    bool has_tail;            /* ".." */
    bool optional, may_be_infinite;
    int in_place; /* of outputs: the input that it may lie where; -1: none */
};

/* The sizes that letters stand for. */
struct op_sizes {
    uint64_t of[128];
    bool known[128];
    bool tail_known;
    unsigned num_tail;
    uint64_t tail[OPERAND_DIMS];
    enum operand_type any; /* what the first operand of any type is */
};
/* false: the letter stands for another size already. */
bool op_size_set(struct op_sizes *s, char letter, uint64_t size);

struct op_row {
    const char *name, *signature;
    bool (*sizes)(const union op_params *p, struct op_sizes *s); /* NULL; false: they do not fit */
    double (*flops)(const union op_params *p, const struct operand *in, const struct operand *out);
    enum op_rebuild rebuild;
    unsigned flags;
    double tolerance;
    unsigned num_in, num_out;
    struct op_operand in[MAX_INPUTS], out[MAX_OUTPUTS];
};

#ifdef __cplusplus
extern "C" {
#endif

/* op: below NUM_ALL_OPS. */
const struct op_row *op_row(unsigned op);

/* An operand without dimensions is absent; data is not looked at. s: letters that are known
 * beforehand (G of collectives, or none), and all of them afterwards. ERR_OURS names the operand,
 * what it is and what it should be. */
MUST_CHECK enum status op_check(unsigned op, const union op_params *p, const struct operand *in,
                                const struct operand *out, struct op_sizes *s, struct error *err);

/* Types and shapes of the outputs that `wanted` (a bit each) names, and of all that may not be
 * absent. out[i].type says which, where the list leaves it open. ERR_OURS where inputs do not fit,
 * or nothing says how large an output is. */
MUST_CHECK enum status op_infer(unsigned op, const union op_params *p, const struct operand *in,
                                unsigned wanted, struct op_sizes *s, struct operand *out,
                                struct error *err);

/* Floating-point operations. */
double op_flops(unsigned op, const union op_params *p, const struct operand *in,
                const struct operand *out);

#ifdef __cplusplus
}
#endif

#endif
