/* ops.h - what programs of the engine are made of: operations on buffers, one row each, for every
 * device.
 *
 * An op takes *operands*: dense row-major arrays of one of three types.
 *
 *   ELEM  what parameters and activations are stored as: f32, f64 or bf16, one for a whole program
 *   REAL  what is computed in: f64 where ELEM is f64, else f32
 *   INT   int32_t
 *
 * Every op computes in REAL and rounds once, where it stores an ELEM. T is the number of tokens
 * (all sequences one behind the other), h the hidden size. An operand in [] may be absent: its data
 * is NULL. Where two operands may be one buffer it says so; all others do not overlap. Sizes that
 * depend on data are bounds: how many rows count is in an INT operand, rows behind them are neither
 * read nor written. Nothing allocates: what an op needs beside its operands it says by its
 * workspace.
 *
 * Query, key and value of a token lie as Megatron has them: for each of `groups` groups its
 * `queries` query heads, its key head and its value head, of head_dim elements: [T, groups *
 * (queries + 2) * head_dim]. A cache of keys and values is [rows, groups * 2 * head_dim]: for each
 * group key, then value. */
#ifndef FERRY_KERNELS_OPS_H
#define FERRY_KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum operand_type { OPERAND_ELEM, OPERAND_REAL, OPERAND_INT };

enum { OPERAND_DIMS = 4, MOST_INPUTS = 6, MOST_OUTPUTS = 3 };

struct operand {
    void *data; /* NULL: absent */
    enum operand_type type;
    unsigned num_dims;
    uint64_t shape[OPERAND_DIMS];
};

// clang-format off
#define OPS(X) /* id             name, which members of op_params have, too                            */ \
    /* in: ids INT [T], table [rows, h]                                                               \
     * out: x [T, h]: row ids[t] - first_row of the table, times scale; 0 where it has no such row */ \
    X(OP_EMBEDDING,          embedding)                                                               \
    /* in: x [T, h], table [P, h], positions INT [T]                                                  \
     * out: y [T, h] = x[t] + table[positions[t]]; y may be x */                                      \
    X(OP_POSITIONS,          positions)                                                               \
    /* in: x [T, h], weight [h], [bias [h]]                                                           \
     * out: y [T, h]; [stats REAL [T, 2]: mean (0 for RMS) and 1 / sqrt(variance + epsilon)] */       \
    X(OP_NORM,               norm)                                                                    \
    /* in: stream [T, h], branch [T, h], [branch_bias [h]], weight [h], [bias [h]]                    \
     * out: sum [T, h] = stream + branch + branch_bias, rounded; y [T, h] = the norm of sum;          \
     *      [stats]. sum may be stream */                                                             \
    X(OP_ADD_NORM,           norm)                                                                    \
    /* in: a [T, h], b [T, h], [bias [h]]. out: c [T, h] = a + b + bias; may be a or b */             \
    X(OP_ADD,                add)                                                                     \
    /* in: a, b, [bias [n]]. out: c [m, n], ELEM or REAL, = alpha op(a) op(b) + bias (+ c where       \
     *      accumulate); op(a) is [m, k]: a, or a [k, m] transposed; op(b) is [k, n] */               \
    X(OP_MATMUL,             matmul)                                                                  \
    /* in: qkv [T, ..], q_weight [head_dim], k_weight [head_dim]                                      \
     * out: the same with each query and key head RMS-normed by itself; may be qkv */                 \
    X(OP_HEAD_NORM,          head_norm)                                                               \
    /* in: qkv [T, ..], table REAL [P, rotary_dim], positions INT [T]. A row of the table is          \
     *     rotary_dim / 2 cosines, then as many sines.                                                \
     * out: the same with the first rotary_dim elements (x, y in pairs i and i + rotary_dim / 2;      \
     *      2i and 2i + 1 where interleaved) of each query and key head made (x cos - y sin, y cos +  \
     *      x sin); the other way round where inverse; may be qkv */                                  \
    X(OP_ROTARY,             rotary)                                                                  \
    /* in: q [Tq, ..], kv [Tk, ..], spans INT [n, 6], [sinks [groups * queries]]                      \
     * out: o [Tq, groups * queries * head_dim]; [lse REAL [Tq, groups * queries]]                    \
     * The query heads of group g lie in q from element g * q_stride of a row, its key head in kv     \
     * from g * kv_stride + k_at, its value head from g * kv_stride + v_at. A span (q_begin, q_count, \
     * q_position, k_begin, k_count, k_position) says that queries may attend to keys: the query at   \
     * row q_begin + i has position q_position + i, the key at row k_begin + j position k_position +  \
     * j; of position distance d = q - k those with 0 <= d (where causal), d < window (where window   \
     * is not 0) attend. Spans of the same q_begin stand one behind the other, have the same q_count, \
     * and are one softmax; other query ranges do not overlap; the first span with q_count 0 ends     \
     * them. Rows of q in no span, or with no key at all, give 0 (lse -INFINITY), sinks or not.       \
     * score = scale * q.k, then softcap * tanh(score / softcap) where softcap is not 0; a sink is    \
     * one more score without a value. lse is the natural log of the sum of exp(score). */            \
    X(OP_ATTENTION,          attention)                                                               \
    /* in: o_a [T, heads * head_dim], lse_a REAL [T, heads], o_b, lse_b: attention over two sets of   \
     *     keys. out: o, lse: over both; may be o_a, lse_a */                                         \
    X(OP_ATTENTION_MERGE,    attention_merge)                                                         \
    /* in: qkv [T, ..], rows INT [T]                                                                  \
     * out: cache [rows, groups * 2 * head_dim]: key and value of token t in row rows[t] (not where   \
     *      that is negative); all other rows stay */                                                 \
    X(OP_CACHE_WRITE,        cache_write)                                                             \
    /* in: x [T, n], or [T, 2n] where gated: gate, then up; [counts INT [E]: only the first            \
     *     sum(counts) rows count]. out: y [T, n] = f(x), or f(gate) * up */                          \
    X(OP_ACTIVATION,         activation)                                                              \
    /* in: logits REAL [T, E], [correction REAL [E]]                                                  \
     * out: weights REAL [T, topk], experts INT [T, topk], in the order of choice. Scores: softmax or \
     *      sigmoid of the logits before the choice; or the logits, and softmax of the chosen after   \
     *      it (after_choice). Experts are chosen by score + correction, the largest first, the lower \
     *      number of equals; the correction is not in the weights. Where num_groups > 1 only experts \
     *      of the topk_groups best groups are chosen; a group's score is the sum of its two best,    \
     *      corrected. normalize: weights divided by their sum (+ 1e-20); then times scaling */       \
    X(OP_ROUTE,              route)                                                                   \
    /* in: experts INT [T, k]                                                                         \
     * out: rows INT [T, k]: where slot (t, j) goes when slots are sorted by expert, then t, then j;  \
     *      counts INT [E]: how many slots each expert has */                                         \
    X(OP_SORT_BY_EXPERT,     sort_by_expert)                                                          \
    /* in: counts INT [S * E]: rows that came from each of S senders, for each of E experts, in that  \
     *     order; those of senders_per_block senders one behind the other, each block of senders from \
     *     a multiple of rows_per_block on                                                            \
     * out: rows INT [R, 1]: where each row goes when they are sorted by expert, then by sender, -1   \
     *      for rows that nobody sent; totals INT [E]. R is a bound */                                \
    X(OP_SORT_RECEIVED,      sort_received)                                                           \
    /* in: x [T, h], rows INT [T, k]. out: y [R, h]: y[rows[t, j]] = x[t], where that is not negative */ \
    X(OP_PERMUTE,            permute)                                                                 \
    /* in: y [R, h], rows INT [T, k], [weights REAL [T, k]]                                           \
     * out: x [T, h]: x[t] = sum over j of weights[t, j] * y[rows[t, j]] (in that order; weight 1     \
     *      where absent; 0 for negative rows) */                                                     \
    X(OP_UNPERMUTE,          unpermute)                                                               \
    /* in: x [R, k], w [E, n, k], counts INT [E]. out: y [R, n]: of the counts[e] rows of expert e,   \
     *     which follow those of e - 1, y = x w[e]^T */                                               \
    X(OP_GROUPED_MATMUL,     grouped_matmul)                                                          \
    /* in: x [T, n], gate [T, 1]. out: y [T, n] = sigmoid(gate[t]) * x; may be x */                   \
    X(OP_SIGMOID_SCALE,      sigmoid_scale)                                                           \
    /* in: x [T, h], rows INT [n]. out: y [n, h] = x[rows[i]], 0 where rows[i] < 0 */                 \
    X(OP_GATHER_ROWS,        gather_rows)                                                             \
    /* Cross entropy over columns that several ranks hold: a rank has columns first_column..          \
     * first_column + valid of all; columns behind `valid` are padding.                               \
     * in: logits REAL [T, V]. out: max REAL [T] */                                                   \
    X(OP_VOCAB_MAX,          vocab)                                                                   \
    /* in: logits REAL [T, V], max REAL [T] (of all ranks), targets INT [T]                           \
     * out: sums REAL [T, 2]: sum of exp(logit - max); logit - max of the target, 0 if not ours */    \
    X(OP_VOCAB_SUM,          vocab)                                                                   \
    /* in: sums REAL [T, 2] (of all ranks), targets INT [T]. out: loss REAL [T], 0 where target < 0 */ \
    X(OP_TOKEN_LOSS,         token_loss)                                                              \
    /* in: logits REAL [n, V], counter INT [1]. out: ids INT [n]. temperature 0: the largest (the     \
     *     lowest id of equals); else drawn from softmax(logits / temperature) of the top_k largest   \
     *     (0: all), of these the fewest whose probabilities reach top_p (1: all): the first id, in   \
     *     ascending order, up to which they sum to more than the number in [0, 1) that (seed,        \
     *     counter + i) gives: random_uniform() of kernels/cpu/random.h. ERR_NUMERIC where a logit is \
     *     NaN, or the largest of them infinite */                                                    \
    X(OP_SAMPLE,             sample)                                                                  \
    /* in: x [n], of which a part is some elements of a larger tensor: element (i0, i1, ..) of its    \
     *     axes lies in x at `at` + sum of i[k] * stride[k], and is the tensor's element `first` +    \
     *     sum of i[k] * index_stride[k]. Fastest where both are 1 for the last axis.                 \
     * out: sums INT [4]: what these elements add to the two sums of kernels/cpu/digest.h, the low    \
     *      word of each first */                                                                     \
    X(OP_DIGEST,             digest)
// clang-format on

enum op {
#define X(id, params) id,
    OPS(X)
#undef X
        NUM_OPS
};

enum activation {
    ACTIVATION_SILU,
    ACTIVATION_GELU,      /* erf */
    ACTIVATION_GELU_TANH, /* its approximation by tanh */
    ACTIVATION_RELU,
    ACTIVATION_SQUARED_RELU,
    ACTIVATION_QUICK_GELU, /* x sigmoid(1.702 x) */
    NUM_ACTIVATIONS
};

struct head_shape {
    uint32_t groups, queries, head_dim; /* queries: a group */
};

enum { DIGEST_AXES = 8 };

struct digest_axis {
    uint64_t extent, stride, index_stride;
};

union op_params {
    struct {
        uint64_t first_row;
        double scale;
    } embedding;
    struct {
        bool layer_norm;       /* else RMS */
        double epsilon, shift; /* shift is added to the weight: 1 where it is stored less one */
    } norm;
    struct {
        bool transpose_a, transpose_b, accumulate;
        double alpha;
    } matmul;
    struct {
        struct head_shape heads;
        double epsilon, shift;
    } head_norm;
    struct {
        struct head_shape heads;
        uint32_t rotary_dim;
        bool interleaved, inverse;
    } rotary;
    struct {
        struct head_shape heads;
        uint32_t q_stride, kv_stride, k_at, v_at;
        double scale, softcap;
        uint32_t window;
        bool causal;
        /* What the spans are known to be, for who cannot read them: not 0 where Tq is Tk, the rows
         * of q and kv are those of so many sequences of one length, one behind the other, and the
         * spans are one a sequence: all its queries, all its keys, both from one position on. */
        uint32_t uniform_sequences;
    } attention;
    struct {
        uint32_t head_dim;
    } attention_merge;
    struct {
        struct head_shape heads;
    } cache_write;
    struct {
        enum activation kind;
        bool gated;
    } activation;
    struct {
        uint32_t topk, num_groups, topk_groups;
        bool sigmoid, after_choice, normalize;
        double scaling;
    } route;
    struct {
        uint64_t senders_per_block, rows_per_block;
    } sort_received;
    struct {
        uint64_t first_column, valid;
    } vocab;
    struct {
        double temperature, top_p;
        uint32_t top_k;
        uint64_t seed;
    } sample;
    struct {
        uint64_t at, first;
        uint32_t num_axes; /* 0: one element */
        struct digest_axis axes[DIGEST_AXES];
    } digest;
};

/* One op on one device, for one type of ELEM. */
struct op_kernel {
    /* ERR_NUMERIC, ERR_DEVICE or ERR_OURS. workspace is as large as asked for. */
    enum status (*run)(const union op_params *p, const struct operand *in,
                       const struct operand *out, void *workspace, struct error *err);
    /* Bytes, from shapes alone (data is not looked at, but for whether it is there). NULL: 0 */
    size_t (*workspace)(const union op_params *p, const struct operand *in,
                        const struct operand *out);
};

enum elem_type { ELEM_F32, ELEM_F64, ELEM_BF16, NUM_ELEM_TYPES };

static inline size_t operand_bytes_of(enum operand_type type, enum elem_type program)
{
    if (type == OPERAND_INT) return 4;
    if (program == ELEM_F64) return 8;
    return type == OPERAND_ELEM && program == ELEM_BF16 ? 2 : 4;
}

static inline uint64_t operand_numel(const struct operand *o)
{
    uint64_t n = 1;
    for (unsigned d = 0; d < o->num_dims; d++)
        n *= o->shape[d];
    return n;
}

#ifdef __cplusplus
extern "C" {
#endif

/* The CPU's: [NUM_OPS], with the instructions that this machine has. */
const struct op_kernel *cpu_ops(enum elem_type elem);
/* Which these are, for people: "CPU, AVX2, AVX-512 BF16 for bf16". */
const char *cpu_instructions(void);

#ifdef __cplusplus
}
#endif

#endif
