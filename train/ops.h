/* ops.h - the table of ops as programs see them: one row each, for those of kernels/ops.h and for
 * collectives. What a row says of an op: how many operands it has and which may be absent, how
 * their shapes depend on one another, what it costs, which output may take an input's place. */
#ifndef FERRY_TRAIN_OPS_H
#define FERRY_TRAIN_OPS_H

#include "train/program.h"

struct op_cost {
    double flops, bytes; /* bytes: read and written, each operand once */
};

struct op_row {
    unsigned op;
    const char *name;
    /* The shapes of all operands in a small language: operands separated by a blank, " -> " before
     * outputs; of each its type (e ELEM, r REAL, i INT, x ELEM or REAL) and its dimensions: a
     * letter is the same number wherever it stands, * any number, a digit itself. "?" behind an
     * operand: may be absent. "... |": rows and all. */
    const char *shapes;
    int in_place[2]; /* output [0] may be where input [1] is; -1: none */
    /* Floating-point operations; NULL: as many as the outputs have elements. */
    double (*flops)(const struct program *p, const struct call *c);
    /* Of a device's result against the CPU's, in roundings of ELEM at its largest. */
    double tolerance;
};

const struct op_row *op_row(unsigned op);

/* Operands against the row: ERR_OURS names the call, the operand and both shapes. */
MUST_CHECK enum status op_check(const struct program *p, const struct call *c, struct error *err);

struct op_cost op_cost(const struct program *p, const struct call *c);

#endif
