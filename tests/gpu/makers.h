/* makers.h - random operands of every op: small, odd and large shapes, with and
 * without optional operands, outputs in place. makers.c makes those of
 * inference, makers_training.c those of training. */
#ifndef FERRY_TESTS_GPU_MAKERS_H
#define FERRY_TESTS_GPU_MAKERS_H

#include "tests/gpu/trial.h"

/* Parameters of shapes. */
extern struct making {
    bool small;     /* for an emulated GPU, which is slow */
    unsigned trial; /* the trial's number */
} making;

/* Declares a maker for every op that a GPU has. */
#define X(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)                  \
    void make_##name(struct trial *t);
OPS(X)
#undef X

/* ---- for makers ---- */

#define DIMS(...)                                                                                  \
    (sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t)), (uint64_t[])                           \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }
#define MAKE(operand, type, ...) trial_make(t, &(operand), type, DIMS(__VA_ARGS__))
#define ELEM OPERAND_ELEM
#define REAL OPERAND_REAL
#define INT OPERAND_INT

bool coin(void);
/* Every third size is odd, every third a multiple of 64. */
uint64_t size_up_to(uint64_t most_small, uint64_t most_large);
uint64_t tokens(void);
struct head_shape some_heads(void);
uint64_t columns_of(struct head_shape s);
void set_ints(struct operand *o, int64_t low, int64_t high);
/* 0 .. n - 1 in random order. */
void set_permutation(int32_t *to, size_t n);
/* An output of an input's shape, every other time in its place. */
void make_like(struct trial *t, struct operand *out, struct operand *in);
/* rows INT [T, k]: a permutation of T * k rows, some of them dropped. */
void make_rows(struct trial *t, struct operand *o, uint64_t num_tokens, uint64_t k);
/* Parameters of route, for k distinct experts a token. Returns the number
 * of experts. */
uint64_t make_route_params(struct trial *t);
struct dropout some_dropout(void);
/* tokens INT [T, 2] of dropout. */
void make_token_numbers(struct trial *t, struct operand *o, uint64_t num_tokens);
/* q, kv, spans and parameters of attention, sometimes with dropout. */
void make_attention_inputs(struct trial *t);
void make_attention_dropout(struct trial *t, struct operand *token_numbers);
/* Spans of attention. Returns their number. */
size_t make_spans(int32_t (*spans)[6], size_t most, int64_t num_queries, int64_t num_keys);

#endif
