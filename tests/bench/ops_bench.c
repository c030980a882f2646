/* Times each op of a model's forward pass on the CPU: what all layers together spend in it.
 *
 *   ops_bench [f32|f64|bf16|f16] [tokens] [keys]
 *
 * keys, if there are more than tokens, are those of a cache that the last `tokens` attend to. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/count.h"
#include "kernels/ops.h"

enum { ROUNDS = 5 };

struct model {
    const char *name;
    size_t layers, h, ffn, vocab;
    struct head_shape heads;
    bool gated;
};

static const struct model models[] = {
    {"GPT-2 124M", 12, 768, 3072, 50257, {12, 1, 64}, false},
    {"Llama 0.5B", 24, 896, 4864, 151936, {2, 7, 64}, true},
};

struct bench {
    enum elem_type elem;
    size_t tokens, keys;
    double total;
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* An operand filled with bytes that are small numbers in every type. */
static struct operand make(const struct bench *b, enum operand_type type, unsigned num_dims,
                           size_t rows, size_t columns)
{
    struct operand o = {.type = type, .num_dims = num_dims, .shape = {rows, columns}};
    const size_t bytes = rows * (num_dims > 1 ? columns : 1) * operand_bytes_of(type, b->elem);
    o.data = malloc(bytes);
    if (!o.data) abort();
    memset(o.data, type == OPERAND_INT ? 0 : 0x3C, bytes);
    return o;
}

/* The fastest of some rounds, times `count`; frees the operands. */
static void time_op(struct bench *b, const char *name, enum op op, size_t count,
                    const union op_params *p, struct operand in[MAX_INPUTS],
                    struct operand out[MAX_OUTPUTS])
{
    const struct op_kernel *kernel = cpu_ops(b->elem) + op;
    void *workspace = malloc(kernel->workspace ? kernel->workspace(p, in, out) + 1 : 1);
    struct error err;
    double best = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        const double start = now();
        if (!workspace || kernel->run(p, in, out, workspace, &err)) abort();
        const double took = now() - start;
        if (took < best) best = took;
    }
    printf("  %-12s %9.3f ms\n", name, best * 1e3 * (double)count);
    b->total += best * (double)count;
    free(workspace);
    for (int i = 0; i < MAX_INPUTS; i++)
        free(in[i].data);
    for (int i = 0; i < MAX_OUTPUTS; i++)
        free(out[i].data);
}

static void time_matmul(struct bench *b, const char *name, size_t count, size_t n, size_t k,
                        enum operand_type result)
{
    const union op_params p = {.matmul = {.transpose_b = true, .alpha = 1}};
    struct operand in[MAX_INPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, k),
                                     make(b, OPERAND_ELEM, 2, n, k),
                                     make(b, OPERAND_ELEM, 1, n, 1)};
    struct operand out[MAX_OUTPUTS] = {make(b, result, 2, b->tokens, n)};
    time_op(b, name, OP_MATMUL, count, &p, in, out);
}

static void time_norm(struct bench *b, const struct model *m)
{
    const union op_params p = {.norm = {.layer_norm = !m->gated, .epsilon = 1e-5}};
    struct operand in[MAX_INPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, m->h),
                                     make(b, OPERAND_ELEM, 2, b->tokens, m->h),
                                     {0},
                                     make(b, OPERAND_ELEM, 1, m->h, 1),
                                     make(b, OPERAND_ELEM, 1, m->h, 1)};
    struct operand out[MAX_OUTPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, m->h),
                                       make(b, OPERAND_ELEM, 2, b->tokens, m->h)};
    time_op(b, "add, norm", OP_ADD_NORM, 2 * m->layers + 1, &p, in, out);
}

static void time_rotary(struct bench *b, const struct model *m, size_t columns)
{
    const union op_params p = {.rotary = {.heads = m->heads, .rotary_dim = m->heads.head_dim}};
    struct operand in[MAX_INPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, columns),
                                     make(b, OPERAND_REAL, 2, 1, m->heads.head_dim),
                                     make(b, OPERAND_INT, 1, b->tokens, 1)};
    struct operand out[MAX_OUTPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, columns)};
    time_op(b, "rotary", OP_ROTARY, m->layers, &p, in, out);
}

static void time_attention(struct bench *b, const struct model *m, size_t columns)
{
    const struct head_shape s = m->heads;
    union op_params p = {.attention = {.heads = s, .scale = 0.125, .causal = true}};
    p.attention.q_stride = p.attention.kv_stride = (s.queries + 2) * s.head_dim;
    p.attention.k_at = s.queries * s.head_dim;
    p.attention.v_at = p.attention.k_at + s.head_dim;
    struct operand in[MAX_INPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, columns),
                                     make(b, OPERAND_ELEM, 2, b->keys, columns),
                                     make(b, OPERAND_INT, 2, 1, 6)};
    const int32_t span[] = {0, (int32_t)b->tokens, (int32_t)(b->keys - b->tokens),
                            0, (int32_t)b->keys,   0};
    memcpy(in[2].data, span, sizeof span);
    struct operand out[MAX_OUTPUTS] = {
        make(b, OPERAND_ELEM, 2, b->tokens, (size_t)s.groups * s.queries * s.head_dim)};
    time_op(b, "attention", OP_ATTENTION, m->layers, &p, in, out);
}

static void time_activation(struct bench *b, const struct model *m)
{
    const union op_params p = {
        .activation = {.kind = m->gated ? ACTIVATION_SILU : ACTIVATION_GELU_TANH,
                       .gated = m->gated}};
    struct operand in[MAX_INPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, m->ffn * (1 + m->gated))};
    struct operand out[MAX_OUTPUTS] = {make(b, OPERAND_ELEM, 2, b->tokens, m->ffn)};
    time_op(b, "activation", OP_ACTIVATION, m->layers, &p, in, out);
}

static void time_model(struct bench *b, const struct model *m)
{
    const struct head_shape s = m->heads;
    const size_t heads = (size_t)s.groups * s.queries * s.head_dim;
    const size_t columns = heads + 2 * (size_t)s.groups * s.head_dim;
    printf("%s, %zu tokens, %zu keys\n", m->name, b->tokens, b->keys);
    b->total = 0;
    time_norm(b, m);
    time_matmul(b, "qkv", m->layers, columns, m->h, OPERAND_ELEM);
    if (m->gated) time_rotary(b, m, columns);
    time_attention(b, m, columns);
    time_matmul(b, "out", m->layers, m->h, heads, OPERAND_ELEM);
    time_matmul(b, "up", m->layers, m->ffn * (1 + m->gated), m->h, OPERAND_ELEM);
    time_activation(b, m);
    time_matmul(b, "down", m->layers, m->h, m->ffn, OPERAND_ELEM);
    time_matmul(b, "logits", 1, m->vocab, m->h, OPERAND_REAL);
    printf("  %-12s %9.3f ms\n", "all", b->total * 1e3);
}

int main(int argc, char **argv)
{
    static const char *const names[] = {"f32", "f64", "bf16", "f16"};
    struct bench b = {.tokens = argc > 2 ? strtoul(argv[2], NULL, 10) : 256};
    b.keys = argc > 3 ? strtoul(argv[3], NULL, 10) : b.tokens;
    for (int i = 0; i < NUM_ELEM_TYPES; i++)
        if (argc > 1 && strcmp(argv[1], names[i]) == 0) b.elem = (enum elem_type)i;
    for (size_t i = 0; i < COUNT(models); i++)
        time_model(&b, models + i);
    return 0;
}
