/* gpu_ops_bench - times ops at the shapes of Llama-3.1-8B, against the GPU's
 * ceilings: the rates of a large copy and of a large product. Random operands,
 * warmed up, medians.
 *
 * A line has name, milliseconds, TFLOP/s, GB/s, share of the nearer ceiling.
 * NAME/KERNEL is one of the kernels that the op chooses from. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "tests/gpu/trial.h"

enum { HIDDEN = 4096, FFN = 14336, VOCAB = 128256, GROUPS = 8, QUERIES = 4, HEAD_DIM = 128 };
enum { QKV = GROUPS * (QUERIES + 2) * HEAD_DIM, PREFILL = 8192, CONTEXT = 8192, BATCH = 64 };
enum { EXPERTS = 128, EXPERT_FFN = 768, MOE_HIDDEN = 2048, TOPK = 8 }; /* Qwen3-30B-A3B */
enum { BATCHES = 7, CHUNK = 1 << 20 };

static const struct device *device;
static void *timer;                            /* with two marks */
static double copy_rate = 1, product_rate = 1; /* bytes, FLOP per second */

static void must(enum status st, const struct error *err)
{
    if (!st) return;
    (void)fprintf(stderr, "gpu_ops_bench: %s\n", err->text);
    exit(1);
}

/* ---- operands on the device alone ---- */

static uint64_t bytes_of(const struct trial *t, const struct operand *o)
{
    return o->data ? operand_numel(o) * operand_bytes_of(o->type, t->elem) : 0;
}

/* Fills a chunk with random numbers, then doubles it by copies until all
 * is full. */
static void fill(const struct trial *t, const struct operand *o)
{
    const uint64_t bytes = bytes_of(t, o), size = operand_bytes_of(o->type, t->elem);
    struct trial chunk = {.elem = t->elem};
    struct error err;
    trial_make(&chunk, &chunk.in[0], o->type, 1, (uint64_t[]){CHUNK});
    const uint64_t first = bytes < CHUNK * size ? bytes : CHUNK * size;
    must(device->upload(o->data, chunk.in[0].data, first, &err), &err);
    for (uint64_t done = first, n; done < bytes; done += n) {
        n = bytes - done < done ? bytes - done : done;
        must(device->copy((char *)o->data + done, o->data, n, &err), &err);
    }
    free(chunk.in[0].data);
}

#define MAKE(operand, type, ...)                                                                   \
    make(t, &(operand), type, sizeof((uint64_t[]){__VA_ARGS__}) / sizeof(uint64_t),                \
         (uint64_t[]){__VA_ARGS__})

static void make(const struct trial *t, struct operand *o, enum operand_type type, size_t num_dims,
                 const uint64_t *shape)
{
    struct error err;
    *o = (struct operand){.data = o, .type = type, .num_dims = (unsigned)num_dims};
    memcpy(o->shape, shape, num_dims * sizeof *shape);
    must(device->allocate(&o->data, bytes_of(t, o), "an operand", &err), &err);
    if (type != OPERAND_INT) fill(t, o);
}

static void set_ints(const struct operand *o, int32_t (*value)(size_t i))
{
    struct error err;
    const size_t n = operand_numel(o);
    int32_t *values = malloc(n * sizeof *values);
    if (!values) abort();
    for (size_t i = 0; i < n; i++)
        values[i] = value(i);
    must(device->upload(o->data, values, n * sizeof *values, &err), &err);
    free(values);
}

/* ---- time ---- */

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of one run, from `count` runs between two marks. */
static double time_batch(void (*run)(void *), void *of, unsigned count)
{
    struct error err;
    double seconds;
    must(device->timers->mark(timer, 0, &err), &err);
    for (unsigned i = 0; i < count; i++)
        run(of);
    must(device->timers->mark(timer, 1, &err), &err);
    must(device->synchronize(&err), &err);
    must(device->timers->seconds(timer, 0, 1, &seconds, &err), &err);
    return seconds / count;
}

/* Batches of about 30 ms each: their first launches, which the device waits
 * for, are a small part. */
static double median_time(void (*run)(void *), void *of)
{
    double seconds[BATCHES];
    (void)time_batch(run, of, 2);
    const double once = time_batch(run, of, 3);
    const unsigned count = once > 0.03 ? 1 : (unsigned)(0.03 / once) + 1;
    for (unsigned i = 0; i < BATCHES; i++)
        seconds[i] = time_batch(run, of, count);
    qsort(seconds, BATCHES, sizeof *seconds, by_value);
    return seconds[BATCHES / 2];
}

/* One op on several sets of operands in turn, larger together than any cache:
 * as in a model, whose layers have their own weights. */
enum { MAX_SETS = 16 };
#define SETS_BYTES 256e6
struct rotation {
    struct trial sets[MAX_SETS];
    unsigned count, next;
};

static void run_trial(void *of)
{
    struct rotation *r = of;
    struct error err;
    must(trial_run(&r->sets[r->next++ % r->count], device, &err), &err);
}

/* ---- ops ---- */

static double matmul_of(struct trial *t, uint64_t m, uint64_t n, uint64_t k, enum operand_type type)
{
    t->op = OP_MATMUL;
    t->params.matmul.transpose_b = true;
    t->params.matmul.alpha = 1;
    MAKE(t->device_in[0], OPERAND_ELEM, m, k);
    MAKE(t->device_in[1], OPERAND_ELEM, n, k);
    MAKE(t->device_out[0], type, m, n);
    return 2.0 * (double)m * (double)n * (double)k;
}

static double make_square(struct trial *t)
{
    return matmul_of(t, 8192, 8192, 8192, OPERAND_ELEM);
}

#define MATMUL(name, m, n, k, type)                                                                \
    static double make_##name(struct trial *t)                                                     \
    {                                                                                              \
        return matmul_of(t, m, n, k, type);                                                        \
    }
MATMUL(qkv, PREFILL, QKV, HIDDEN, OPERAND_ELEM)
MATMUL(projection, PREFILL, HIDDEN, HIDDEN, OPERAND_ELEM)
MATMUL(gate_up, PREFILL, 2 * FFN, HIDDEN, OPERAND_ELEM)
MATMUL(down, PREFILL, HIDDEN, FFN, OPERAND_ELEM)
MATMUL(head, PREFILL, VOCAB, HIDDEN, OPERAND_REAL)
MATMUL(qkv_1, 1, QKV, HIDDEN, OPERAND_ELEM)
MATMUL(gate_up_1, 1, 2 * FFN, HIDDEN, OPERAND_ELEM)
MATMUL(down_1, 1, HIDDEN, FFN, OPERAND_ELEM)
MATMUL(head_1, 1, VOCAB, HIDDEN, OPERAND_REAL)
MATMUL(qkv_16, 16, QKV, HIDDEN, OPERAND_ELEM)
MATMUL(gate_up_16, 16, 2 * FFN, HIDDEN, OPERAND_ELEM)
MATMUL(down_16, 16, HIDDEN, FFN, OPERAND_ELEM)
MATMUL(gate_up_64, BATCH, 2 * FFN, HIDDEN, OPERAND_ELEM)
MATMUL(down_64, BATCH, HIDDEN, FFN, OPERAND_ELEM)

static int32_t any_id(size_t i)
{
    (void)i;
    return (int32_t)random_between(0, VOCAB - 1);
}

static int32_t position_of(size_t i)
{
    return (int32_t)(i % CONTEXT);
}

static double make_embedding(struct trial *t)
{
    t->op = OP_EMBEDDING;
    t->params.embedding.scale = 1;
    MAKE(t->device_in[0], OPERAND_INT, PREFILL);
    MAKE(t->device_in[1], OPERAND_ELEM, VOCAB, HIDDEN);
    MAKE(t->device_out[0], OPERAND_ELEM, PREFILL, HIDDEN);
    set_ints(&t->device_in[0], any_id);
    return 0;
}

static double make_norm(struct trial *t)
{
    t->op = OP_NORM;
    t->params.norm.epsilon = 1e-5;
    MAKE(t->device_in[0], OPERAND_ELEM, PREFILL, HIDDEN);
    MAKE(t->device_in[1], OPERAND_ELEM, HIDDEN);
    MAKE(t->device_out[0], OPERAND_ELEM, PREFILL, HIDDEN);
    return 0;
}

static double add_norm_of(struct trial *t, uint64_t rows)
{
    t->op = OP_ADD_NORM;
    t->params.norm.epsilon = 1e-5;
    MAKE(t->device_in[0], OPERAND_ELEM, rows, HIDDEN);
    MAKE(t->device_in[1], OPERAND_ELEM, rows, HIDDEN);
    MAKE(t->device_in[3], OPERAND_ELEM, HIDDEN);
    MAKE(t->device_out[0], OPERAND_ELEM, rows, HIDDEN);
    MAKE(t->device_out[1], OPERAND_ELEM, rows, HIDDEN);
    return 0;
}

static double make_add_norm(struct trial *t)
{
    return add_norm_of(t, PREFILL);
}

static double make_add_norm_1(struct trial *t)
{
    return add_norm_of(t, 1);
}

static double make_add_norm_16(struct trial *t)
{
    return add_norm_of(t, 16);
}

/* A token's sum and norm, and their product. */
static double norm_matmul_of(struct trial *t, uint64_t n)
{
    t->op = OP_NORM_MATMUL;
    t->params.norm.epsilon = 1e-5;
    MAKE(t->device_in[0], OPERAND_ELEM, 1, HIDDEN);
    MAKE(t->device_in[1], OPERAND_ELEM, 1, HIDDEN);
    MAKE(t->device_in[3], OPERAND_ELEM, HIDDEN);
    MAKE(t->device_in[5], OPERAND_ELEM, n, HIDDEN);
    MAKE(t->device_out[0], OPERAND_ELEM, 1, n);
    MAKE(t->device_out[1], OPERAND_ELEM, 1, HIDDEN);
    return 2.0 * HIDDEN * (double)n;
}

static double make_norm_qkv_1(struct trial *t)
{
    return norm_matmul_of(t, QKV);
}

static double make_norm_gate_up_1(struct trial *t)
{
    return norm_matmul_of(t, (uint64_t)2 * FFN);
}

static double make_silu_down_1(struct trial *t)
{
    t->op = OP_ACTIVATION_MATMUL;
    t->params.activation.kind = ACTIVATION_SILU;
    t->params.activation.gated = true;
    MAKE(t->device_in[0], OPERAND_ELEM, 1, 2 * FFN);
    MAKE(t->device_in[1], OPERAND_ELEM, HIDDEN, FFN);
    MAKE(t->device_out[0], OPERAND_ELEM, 1, HIDDEN);
    return 2.0 * HIDDEN * FFN;
}

static struct head_shape llama_heads(void)
{
    return (struct head_shape){GROUPS, QUERIES, HEAD_DIM};
}

static double make_rotary(struct trial *t)
{
    t->op = OP_ROTARY;
    t->params.rotary.heads = llama_heads();
    t->params.rotary.rotary_dim = HEAD_DIM;
    MAKE(t->device_in[0], OPERAND_ELEM, PREFILL, QKV);
    MAKE(t->device_in[1], OPERAND_REAL, CONTEXT, HEAD_DIM);
    MAKE(t->device_in[2], OPERAND_INT, PREFILL);
    t->device_out[0] = t->device_in[0];
    set_ints(&t->device_in[2], position_of);
    return 0;
}

static void set_spans(const struct operand *o, int32_t num_spans, int32_t q_count, int32_t k_count)
{
    struct error err;
    for (int32_t i = 0; i < num_spans; i++) {
        const int32_t s[] = {i * q_count, q_count, k_count - q_count, i * k_count, k_count, 0};
        must(device->upload((int32_t *)o->data + (size_t)i * 6, s, sizeof s, &err), &err);
    }
}

static double attention_of(struct trial *t, uint64_t sequences, uint64_t q_count, uint64_t k_count)
{
    const double pairs =
        (double)sequences * (double)q_count * ((double)k_count - ((double)q_count - 1) / 2);
    t->op = OP_ATTENTION;
    t->params.attention.heads = llama_heads();
    t->params.attention.q_stride = (QUERIES + 2) * HEAD_DIM;
    t->params.attention.kv_stride = 2 * HEAD_DIM;
    t->params.attention.v_at = HEAD_DIM;
    t->params.attention.scale = 0.08838834764831845;
    t->params.attention.causal = true;
    MAKE(t->device_in[0], OPERAND_ELEM, sequences * q_count, QKV);
    MAKE(t->device_in[1], OPERAND_ELEM, sequences * k_count, GROUPS * 2 * HEAD_DIM);
    MAKE(t->device_in[2], OPERAND_INT, sequences, 6);
    MAKE(t->device_out[0], OPERAND_ELEM, sequences * q_count, GROUPS * QUERIES * HEAD_DIM);
    set_spans(&t->device_in[2], (int32_t)sequences, (int32_t)q_count, (int32_t)k_count);
    return 4 * pairs * GROUPS * QUERIES * HEAD_DIM;
}

/* By cuDNN, if installed. */
static double make_attention(struct trial *t)
{
    t->params.attention.uniform_sequences = 1;
    return attention_of(t, 1, PREFILL, PREFILL);
}

static double make_attention_own(struct trial *t)
{
    return attention_of(t, 1, PREFILL, PREFILL);
}

static double make_attention_1(struct trial *t)
{
    return attention_of(t, 1, 1, CONTEXT);
}

static double make_attention_1_of_1024(struct trial *t)
{
    return attention_of(t, 1, 1, 1024);
}

static double make_attention_16(struct trial *t)
{
    return attention_of(t, 16, 1, CONTEXT);
}

static double make_attention_64(struct trial *t)
{
    return attention_of(t, BATCH, 1, CONTEXT);
}

static double silu_of(struct trial *t, uint64_t rows)
{
    t->op = OP_ACTIVATION;
    t->params.activation.kind = ACTIVATION_SILU;
    t->params.activation.gated = true;
    MAKE(t->device_in[0], OPERAND_ELEM, rows, 2 * FFN);
    MAKE(t->device_out[0], OPERAND_ELEM, rows, FFN);
    return 0;
}

static double make_silu(struct trial *t)
{
    return silu_of(t, PREFILL);
}

static double make_silu_1(struct trial *t)
{
    return silu_of(t, 1);
}

static double make_silu_16(struct trial *t)
{
    return silu_of(t, 16);
}

static double make_vocab_sum(struct trial *t)
{
    t->op = OP_VOCAB_SUM;
    t->params.vocab.valid = VOCAB;
    MAKE(t->device_in[0], OPERAND_REAL, PREFILL, VOCAB);
    MAKE(t->device_in[1], OPERAND_REAL, PREFILL);
    MAKE(t->device_in[2], OPERAND_INT, PREFILL);
    MAKE(t->device_out[0], OPERAND_REAL, PREFILL, 2);
    set_ints(&t->device_in[2], any_id);
    return 0;
}

static int32_t prefill_count(size_t i)
{
    (void)i;
    return PREFILL * TOPK / EXPERTS;
}

static int32_t decode_count(size_t i)
{
    return i % 4 == 0 ? BATCH * TOPK / EXPERTS * 4 : 0;
}

static double grouped_of(struct trial *t, uint64_t rows, int32_t (*count)(size_t))
{
    t->op = OP_GROUPED_MATMUL;
    MAKE(t->device_in[0], OPERAND_ELEM, rows, MOE_HIDDEN);
    MAKE(t->device_in[1], OPERAND_ELEM, EXPERTS, 2 * EXPERT_FFN, MOE_HIDDEN);
    MAKE(t->device_in[2], OPERAND_INT, EXPERTS);
    MAKE(t->device_out[0], OPERAND_ELEM, rows, 2 * EXPERT_FFN);
    set_ints(&t->device_in[2], count);
    return 2.0 * (double)rows * MOE_HIDDEN * 2 * EXPERT_FFN;
}

static double make_grouped(struct trial *t)
{
    return grouped_of(t, PREFILL * TOPK, prefill_count);
}

static double make_grouped_64(struct trial *t)
{
    return grouped_of(t, BATCH * TOPK, decode_count);
}

static double sample_of(struct trial *t, uint64_t rows, double temperature, double top_p)
{
    t->op = OP_SAMPLE;
    t->params.sample.temperature = temperature;
    t->params.sample.top_p = top_p;
    MAKE(t->device_in[0], OPERAND_REAL, rows, VOCAB);
    MAKE(t->device_in[1], OPERAND_INT, 1);
    MAKE(t->device_out[0], OPERAND_INT, rows);
    return 0;
}

static double make_greedy(struct trial *t)
{
    return sample_of(t, BATCH, 0, 1);
}

static double make_greedy_1(struct trial *t)
{
    return sample_of(t, 1, 0, 1);
}

static double make_top_p(struct trial *t)
{
    return sample_of(t, BATCH, 0.8, 0.9);
}

static double make_top_p_1(struct trial *t)
{
    return sample_of(t, 1, 0.8, 0.9);
}

/* A shard whose rows are runs of the tensor. */
static double make_digest(struct trial *t)
{
    t->op = OP_DIGEST;
    t->params.digest.num_axes = 2;
    t->params.digest.axes[0] = (struct digest_axis){HIDDEN * 8, FFN / 8, FFN};
    t->params.digest.axes[1] = (struct digest_axis){FFN / 8, 1, 1};
    MAKE(t->device_in[0], OPERAND_ELEM, HIDDEN * FFN);
    MAKE(t->device_out[0], OPERAND_INT, 4);
    return 0;
}

/* ---- training ---- */

static double make_norm_backward(struct trial *t)
{
    t->op = OP_NORM_BACKWARD;
    MAKE(t->device_in[0], OPERAND_ELEM, PREFILL, HIDDEN);
    MAKE(t->device_in[1], OPERAND_ELEM, HIDDEN);
    MAKE(t->device_in[2], OPERAND_REAL, PREFILL, 2);
    MAKE(t->device_in[3], OPERAND_ELEM, PREFILL, HIDDEN);
    MAKE(t->device_in[4], OPERAND_ELEM, PREFILL, HIDDEN);
    MAKE(t->device_out[0], OPERAND_ELEM, PREFILL, HIDDEN);
    MAKE(t->device_out[1], OPERAND_REAL, HIDDEN);
    return 0;
}

static double make_silu_backward(struct trial *t)
{
    t->op = OP_ACTIVATION_BACKWARD;
    t->params.activation.kind = ACTIVATION_SILU;
    t->params.activation.gated = true;
    MAKE(t->device_in[0], OPERAND_ELEM, PREFILL, 2 * FFN);
    MAKE(t->device_in[1], OPERAND_ELEM, PREFILL, FFN);
    MAKE(t->device_out[0], OPERAND_ELEM, PREFILL, 2 * FFN);
    return 0;
}

/* Five products, of which our kernels make two twice. */
static double make_attention_backward(struct trial *t)
{
    const double forward = attention_of(t, 1, PREFILL, PREFILL);
    t->op = OP_ATTENTION_BACKWARD;
    t->device_in[4] = t->device_out[0];
    MAKE(t->device_in[5], OPERAND_REAL, PREFILL, GROUPS * QUERIES);
    MAKE(t->device_in[6], OPERAND_ELEM, PREFILL, GROUPS * QUERIES * HEAD_DIM);
    MAKE(t->device_out[0], OPERAND_ELEM, PREFILL, QKV);
    MAKE(t->device_out[1], OPERAND_ELEM, PREFILL, GROUPS * 2 * HEAD_DIM);
    return 2.5 * forward;
}

static double make_vocab_backward(struct trial *t)
{
    t->op = OP_VOCAB_BACKWARD;
    t->params.vocab.valid = VOCAB;
    MAKE(t->device_in[0], OPERAND_REAL, PREFILL, VOCAB);
    MAKE(t->device_in[1], OPERAND_REAL, PREFILL);
    MAKE(t->device_in[2], OPERAND_REAL, PREFILL, 2);
    MAKE(t->device_in[3], OPERAND_INT, PREFILL);
    MAKE(t->device_in[4], OPERAND_REAL, PREFILL);
    MAKE(t->device_in[5], OPERAND_REAL, 1);
    MAKE(t->device_out[0], OPERAND_ELEM, PREFILL, VOCAB);
    set_ints(&t->device_in[3], any_id);
    return 0;
}

static double make_grouped_dgrad(struct trial *t)
{
    const uint64_t rows = PREFILL * TOPK;
    t->op = OP_GROUPED_DGRAD;
    MAKE(t->device_in[0], OPERAND_ELEM, rows, 2 * EXPERT_FFN);
    MAKE(t->device_in[1], OPERAND_ELEM, EXPERTS, 2 * EXPERT_FFN, MOE_HIDDEN);
    MAKE(t->device_in[2], OPERAND_INT, EXPERTS);
    MAKE(t->device_out[0], OPERAND_ELEM, rows, MOE_HIDDEN);
    set_ints(&t->device_in[2], prefill_count);
    return 2.0 * (double)rows * MOE_HIDDEN * 2 * EXPERT_FFN;
}

static double make_grouped_wgrad(struct trial *t)
{
    const uint64_t rows = PREFILL * TOPK;
    t->op = OP_GROUPED_WGRAD;
    MAKE(t->device_in[0], OPERAND_ELEM, rows, 2 * EXPERT_FFN);
    MAKE(t->device_in[1], OPERAND_ELEM, rows, MOE_HIDDEN);
    MAKE(t->device_in[2], OPERAND_INT, EXPERTS);
    MAKE(t->device_out[0], OPERAND_REAL, EXPERTS, 2 * EXPERT_FFN, MOE_HIDDEN);
    set_ints(&t->device_in[2], prefill_count);
    return 2.0 * (double)rows * MOE_HIDDEN * 2 * EXPERT_FFN;
}

static double make_square_sum(struct trial *t)
{
    t->op = OP_SQUARE_SUM;
    MAKE(t->device_in[0], OPERAND_REAL, HIDDEN * FFN);
    MAKE(t->device_out[0], OPERAND_REAL, 3);
    return 0;
}

/* bf16 weights, a master and a gradient of f32. */
static double make_adam(struct trial *t)
{
    t->op = OP_ADAM;
    t->params.optimizer.beta1 = t->params.optimizer.beta2 = 0.9;
    t->params.optimizer.epsilon = t->params.optimizer.lr_mult = t->params.optimizer.wd_mult = 1;
    MAKE(t->device_in[0], OPERAND_REAL, HIDDEN * FFN);
    MAKE(t->device_in[1], OPERAND_REAL, 8);
    MAKE(t->device_in[2], OPERAND_ELEM, HIDDEN * FFN);
    MAKE(t->device_out[0], OPERAND_ELEM, HIDDEN * FFN);
    for (unsigned i = 0; i < 3; i++) {
        MAKE(t->device_in[3 + i], OPERAND_REAL, HIDDEN * FFN);
        MAKE(t->device_out[1 + i], OPERAND_REAL, HIDDEN * FFN);
    }
    const float scalars[] = {1e-3f, 0.1f, 1, 1, 1, 0, 1, 0};
    struct error err;
    must(device->upload(t->device_in[1].data, scalars, sizeof scalars, &err), &err);
    return 0;
}

/* FLOP of an op with operands; 0 if bytes are its only cost. */
static const struct row {
    const char *name;
    enum elem_type elem;
    double (*make)(struct trial *t);
} rows[] = {
    {"embedding", ELEM_BF16, make_embedding},
    {"norm", ELEM_BF16, make_norm},
    {"add_norm", ELEM_BF16, make_add_norm},
    {"rotary", ELEM_BF16, make_rotary},
    {"silu", ELEM_BF16, make_silu},
    {"attention", ELEM_BF16, make_attention},
    {"attention_own", ELEM_BF16, make_attention_own},
    {"matmul_qkv", ELEM_BF16, make_qkv},
    {"matmul_projection", ELEM_BF16, make_projection},
    {"matmul_gate_up", ELEM_BF16, make_gate_up},
    {"matmul_down", ELEM_BF16, make_down},
    {"matmul_head", ELEM_BF16, make_head},
    {"vocab_sum", ELEM_BF16, make_vocab_sum},
    {"grouped_matmul", ELEM_BF16, make_grouped},
    {"digest", ELEM_BF16, make_digest},
    {"decode_1_matmul_qkv", ELEM_BF16, make_qkv_1},
    {"decode_1_matmul_gate_up", ELEM_BF16, make_gate_up_1},
    {"decode_1_matmul_down", ELEM_BF16, make_down_1},
    {"decode_1_matmul_head", ELEM_BF16, make_head_1},
    {"decode_1_attention", ELEM_BF16, make_attention_1},
    {"decode_1_attention_1024", ELEM_BF16, make_attention_1_of_1024},
    {"decode_1_norm_qkv", ELEM_BF16, make_norm_qkv_1},
    {"decode_1_norm_gate_up", ELEM_BF16, make_norm_gate_up_1},
    {"decode_1_silu_down", ELEM_BF16, make_silu_down_1},
    {"decode_1_add_norm", ELEM_BF16, make_add_norm_1},
    {"decode_1_silu", ELEM_BF16, make_silu_1},
    {"decode_1_greedy", ELEM_BF16, make_greedy_1},
    {"decode_1_top_p", ELEM_BF16, make_top_p_1},
    {"decode_16_matmul_qkv", ELEM_BF16, make_qkv_16},
    {"decode_16_matmul_gate_up", ELEM_BF16, make_gate_up_16},
    {"decode_16_matmul_down", ELEM_BF16, make_down_16},
    {"decode_16_attention", ELEM_BF16, make_attention_16},
    {"decode_16_add_norm", ELEM_BF16, make_add_norm_16},
    {"decode_16_silu", ELEM_BF16, make_silu_16},
    {"decode_64_matmul_gate_up", ELEM_BF16, make_gate_up_64},
    {"decode_64_matmul_down", ELEM_BF16, make_down_64},
    {"decode_64_attention", ELEM_BF16, make_attention_64},
    {"decode_64_grouped_matmul", ELEM_BF16, make_grouped_64},
    {"decode_64_greedy", ELEM_BF16, make_greedy},
    {"decode_64_top_p", ELEM_BF16, make_top_p},
    {"norm_backward", ELEM_BF16, make_norm_backward},
    {"silu_backward", ELEM_BF16, make_silu_backward},
    {"attention_backward", ELEM_BF16, make_attention_backward},
    {"vocab_backward", ELEM_BF16, make_vocab_backward},
    {"grouped_dgrad", ELEM_BF16, make_grouped_dgrad},
    {"grouped_wgrad", ELEM_BF16, make_grouped_wgrad},
    {"square_sum", ELEM_BF16, make_square_sum},
    {"adam", ELEM_BF16, make_adam},
    {"f16_attention", ELEM_F16, make_attention},
    {"f16_attention_own", ELEM_F16, make_attention_own},
    {"f16_matmul_gate_up", ELEM_F16, make_gate_up},
    {"f16_grouped_matmul", ELEM_F16, make_grouped},
    {"f16_decode_1_matmul_gate_up", ELEM_F16, make_gate_up_1},
    {"f16_attention_backward", ELEM_F16, make_attention_backward},
    {"f16_grouped_wgrad", ELEM_F16, make_grouped_wgrad},
};

/* Bytes read and written at least: of tables and experts only the used rows. */
static double traffic(const struct trial *t)
{
    double bytes = 0;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        bytes += (double)bytes_of(t, &t->device_in[i]);
    for (unsigned i = 0; i < MAX_OUTPUTS; i++)
        bytes += (double)bytes_of(t, &t->device_out[i]);
    if (t->op == OP_EMBEDDING)
        bytes -= (double)bytes_of(t, &t->device_in[1]) - (double)bytes_of(t, &t->device_out[0]);
    if (t->op == OP_GROUPED_MATMUL && t->device_in[0].shape[0] == BATCH * TOPK)
        bytes -= 0.75 * (double)bytes_of(t, &t->device_in[1]);
    return bytes;
}

static void release(struct trial *t)
{
    const bool in_place = t->device_out[0].data == t->device_in[0].data;
    for (unsigned i = 0; i < MAX_INPUTS; i++)
        device->release(t->device_in[i].data);
    for (unsigned i = 0; i < MAX_OUTPUTS && !in_place; i++)
        device->release(t->device_out[i].data);
    device->release(t->device_workspace);
}

static void make_set(struct trial *t, const struct row *row, double *flops)
{
    struct error err;
    t->elem = row->elem;
    *flops = row->make(t);
    const struct op_kernel *kernel = &device->ops(t->elem)[t->op];
    if (kernel->workspace)
        must(device->allocate(&t->device_workspace,
                              kernel->workspace(&t->params, t->device_in, t->device_out),
                              "workspace", &err),
             &err);
}

static void make_rotation(struct rotation *r, const struct row *row, double *flops, double *bytes)
{
    do {
        make_set(&r->sets[r->count++], row, flops);
        *bytes = traffic(&r->sets[0]);
    } while (r->count < MAX_SETS && r->count * *bytes < SETS_BYTES);
}

static void release_rotation(struct rotation *r)
{
    for (unsigned i = 0; i < r->count; i++)
        release(&r->sets[i]);
}

static void report(const char *name, const char *kernel, double seconds, double flops, double bytes)
{
    const double of_copy = bytes / seconds / copy_rate, of_product = flops / seconds / product_rate;
    char whole[64];
    (void)snprintf(whole, sizeof whole, "%s%s%s", name, kernel ? "/" : "", kernel ? kernel : "");
    printf("%-37s %10.4f %8.1f %8.0f %5.1f\n", whole, seconds * 1e3, flops / seconds * 1e-12,
           bytes / seconds * 1e-9, 100 * (of_copy > of_product ? of_copy : of_product));
    (void)fflush(stdout);
}

/* The op's choices, except tiles, which would take seconds. */
static bool is_timed(const struct device_kernel *k, const struct trial *t)
{
    return k->elem == t->elem && strcmp(k->name, "tiles") != 0 &&
           k->takes(&t->params, t->device_in, t->device_out);
}

static void bench_kernels(const char *name, struct rotation *r, double flops, double bytes)
{
    const struct device_kernel *k = device->kernels(r->sets[0].op);
    for (; k && k->name; k++) {
        if (!is_timed(k, &r->sets[0])) continue;
        for (unsigned i = 0; i < r->count; i++)
            r->sets[i].kernel = &k->kernel;
        report(name, k->name, median_time(run_trial, r), flops, bytes);
    }
}

/* Benches the op, then each of the kernels that it chooses from. */
static void bench_op(const struct row *row)
{
    struct rotation r = {.count = 0};
    double flops, bytes;
    make_rotation(&r, row, &flops, &bytes);
    report(row->name, NULL, median_time(run_trial, &r), flops, bytes);
    bench_kernels(row->name, &r, flops, bytes);
    release_rotation(&r);
}

/* ---- ceilings ---- */

struct two_buffers {
    void *to, *from;
    uint64_t bytes;
};

static void run_copy(void *of)
{
    const struct two_buffers *b = of;
    struct error err;
    must(device->copy(b->to, b->from, b->bytes, &err), &err);
}

static void measure_ceilings(void)
{
    struct two_buffers b = {.bytes = (uint64_t)2 << 30};
    struct rotation r = {.count = 0};
    struct error err;
    double flops, bytes;
    must(device->allocate(&b.to, b.bytes, "a copy", &err), &err);
    must(device->allocate(&b.from, b.bytes, "a copy", &err), &err);
    copy_rate = 2 * (double)b.bytes / median_time(run_copy, &b);
    device->release(b.to);
    device->release(b.from);
    make_rotation(&r, &(struct row){"a product", ELEM_BF16, make_square}, &flops, &bytes);
    product_rate = flops / median_time(run_trial, &r);
    release_rotation(&r);
    printf("# copy %.0f GB/s (read and written), 8192^3 product %.0f TFLOP/s\n", copy_rate * 1e-9,
           product_rate * 1e-12);
}

static bool is_wanted(const char *name, int count, char **names)
{
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return true;
    return count == 0;
}

static bool is_known(const char *name)
{
    for (size_t i = 0; i < COUNT(rows); i++)
        if (strcmp(rows[i].name, name) == 0) return true;
    return false;
}

int main(int argc, char **argv)
{
    struct error err;
    for (int i = 1; i < argc; i++)
        if (!is_known(argv[i])) {
            fprintf(stderr, "gpu_ops_bench: there is no row %s\n", argv[i]);
            return 2;
        }
    if (cuda_device_load(&device, &err) || device->open(0, &err)) {
        printf("skipped: %s\n", err.text);
        return 0;
    }
    must(device->timers->create(&timer, 2, &err), &err);
    random_start(1);
    printf("# %s, bf16 (f16 where a name says so): name, ms, TFLOP/s, GB/s, %% of the ceiling\n",
           device->describe());
    measure_ceilings();
    for (size_t i = 0; i < COUNT(rows); i++)
        if (is_wanted(rows[i].name, argc - 1, argv + 1)) bench_op(&rows[i]);
    device->timers->free(timer);
    device->close();
    return 0;
}
