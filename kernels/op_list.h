/* op_list.h - the one list of ops: what programs of the engine are made of. The enum, the table of
 * op_table.c, the CPU's and the GPU's tables of kernels and the check of devices derive from it.
 *
 *   X(id, name, params, signature, sizes, flops, rebuild, flags, tolerance, cpu, cuda)
 *
 *   name       of its kernels, and for people
 *   params     its member of union op_params, below; `none`: it has none
 *   signature  its operands, inputs "->" outputs, each NAME[DIMENSIONS] or NAME:TYPE[DIMENSIONS].
 *              TYPE: elem (not written), real, int; float: elem or real; any. A dimension is a
 *              letter (the same number wherever it stands), a number, or ".." (last: further
 *              dimensions, the same wherever they stand). Behind it, in this order:
 *              "?" may be absent; "=INPUT" may lie where this input does; "-inf" may hold -infinity
 *   sizes      the function that finds letters from params and other letters; NULL: none
 *   flops      the function that counts floating-point operations; NULL: one an element of outputs
 *   rebuild    how backward gets outputs that it needs (enum op_rebuild of op_table.h)
 *   flags      of enum op_flags
 *   tolerance  of a device's result against the CPU's, in roundings of ELEM at its largest
 *   cpu, cuda  PLAIN, or WORKSPACE where the kernel asks for one; NONE: there is no kernel
 *
 * T is the number of tokens (all sequences one behind the other), h the hidden size.
 *
 * Tested groundwork that no builder uses yet: OP_SIGMOID_SCALE; sinks and softcap of attention;
 * sigmoid, correction, groups, normalize and scaling of route; shift of norms. */
#ifndef FERRY_KERNELS_OP_LIST_H
#define FERRY_KERNELS_OP_LIST_H

#include <stdbool.h>
#include <stdint.h>

// clang-format off
#define OPS(X) \
    /* x: row ids[t] - first_row of the table, times scale; 0 where the table has none */ \
    X(OP_EMBEDDING, embedding, embedding, "ids:int[T] table[R,h] -> x[T,h]", \
      NULL, NULL, REBUILD_NEVER, OP_READS_FEW_ROWS, 0.5, PLAIN, PLAIN) \
    /* y = x[t] + table[positions[t]] */ \
    X(OP_POSITIONS, positions, none, "x[T,h] table[P,h] positions:int[T] -> y[T,h]=x", \
      NULL, NULL, REBUILD_NEVER, 0, 1, PLAIN, PLAIN) \
    /* stats: mean (0 for RMS) and 1 / sqrt(variance + epsilon) */ \
    X(OP_NORM, norm, norm, "x[T,h] weight[h] bias[h]? -> y[T,h] stats:real[T,2]?", \
      NULL, NULL, REBUILD_SELECTIVE, 0, 2, PLAIN, PLAIN) \
    /* sum = stream + branch + branch_bias, rounded; y = the norm of sum */ \
    X(OP_ADD_NORM, add_norm, norm, \
      "stream[T,h] branch[T,h] branch_bias[h]? weight[h] bias[h]? -> sum[T,h]=stream y[T,h] stats:real[T,2]?", \
      NULL, NULL, REBUILD_SELECTIVE, 0, 2, PLAIN, PLAIN) \
    /* c = a + b + bias; c may lie where b does, too */ \
    X(OP_ADD, add, none, "a[T,h] b[T,h] bias[h]? -> c[T,h]=a", \
      NULL, NULL, REBUILD_NEVER, 0, 1, PLAIN, PLAIN) \
    /* c = alpha op(a) op(b) + bias (+ c where accumulate); op(a) is [m, k]: a, or a [k, \
     * m] transposed; op(b) is [k, n] */ \
    X(OP_MATMUL, matmul, matmul, "a[i,j] b[k,l] bias[n]? -> c:float[m,n]", \
      matmul_sizes, matmul_flops, REBUILD_NEVER, 0, 2, WORKSPACE, WORKSPACE) \
    /* y = qkv with each query and key head RMS-normed by itself */ \
    X(OP_HEAD_NORM, head_norm, head_norm, "qkv[T,w] q_weight[d] k_weight[d] -> y[T,w]=qkv", \
      head_norm_sizes, NULL, REBUILD_SELECTIVE, 0, 2, PLAIN, PLAIN) \
    /* A row of the table is rotary_dim / 2 cosines, then as many sines. y = qkv with \
     * the first rotary_dim elements (x, y in pairs i and i + rotary_dim / 2; 2i and 2i \
     * + 1 where interleaved) of each query and key head made (x cos - y sin, y cos + x \
     * sin); the other way round where inverse */ \
    X(OP_ROTARY, rotary, rotary, "qkv[T,w] table:real[P,d] positions:int[T] -> y[T,w]=qkv", \
      rotary_sizes, NULL, REBUILD_NEVER, 0, 2, PLAIN, PLAIN) \
    /* The query heads of group g lie in q from element g * q_stride of a row, its key \
     * head in kv from g * kv_stride + k_at, its value head from g * kv_stride + v_at. A \
     * span (q_begin, q_count, q_position, k_begin, k_count, k_position) says that \
     * queries may attend to keys: the query at row q_begin + i has position q_position \
     * + i, the key at row k_begin + j position k_position + j; of position distance d = \
     * q - k those with 0 <= d (where causal), d < window (where window is not 0) \
     * attend. Spans of the same q_begin stand one behind the other, have the same \
     * q_count, and are one softmax; other query ranges do not overlap; the first span \
     * with q_count 0 ends them. Rows of q in no span, or with no key at all, give 0 \
     * (lse -INFINITY), sinks or not. score = scale * q.k, then softcap * tanh(score / \
     * softcap) where softcap is not 0; a sink is one more score without a value. lse is \
     * the natural log of the sum of exp(score). c = heads * head_dim */ \
    X(OP_ATTENTION, attention, attention, \
      "q[T,q] kv[K,k] spans:int[S,6] sinks[n]? -> o[T,c] lse:real[T,n]?-inf", \
      attention_sizes, attention_flops, REBUILD_SELECTIVE, 0, 4, WORKSPACE, WORKSPACE) \
    /* attention over two sets of keys, merged; lse may lie where lse_a does, too */ \
    X(OP_ATTENTION_MERGE, attention_merge, attention_merge, \
      "o_a[T,c] lse_a:real[T,n] o_b[T,c] lse_b:real[T,n] -> o[T,c]=o_a lse:real[T,n]", \
      attention_merge_sizes, NULL, REBUILD_SELECTIVE, 0, 2, PLAIN, PLAIN) \
    /* key and value of token t in row rows[t] of the cache (not where that is \
     * negative); all other rows stay */ \
    X(OP_CACHE_WRITE, cache_write, cache_write, "qkv[T,w] rows:int[T] -> cache[R,c]", \
      cache_write_sizes, NULL, REBUILD_ALWAYS, 0, 0, PLAIN, PLAIN) \
    /* y = f(x), or f(gate) * up where gated: x is gate, then up. counts: only the first \
     * sum(counts) rows count */ \
    X(OP_ACTIVATION, activation, activation, "x[T,w] counts:int[E]? -> y[T,n]", \
      activation_sizes, NULL, REBUILD_SELECTIVE, OP_PARTIAL_ROWS, 2, PLAIN, PLAIN) \
    /* In the order of choice. Scores: softmax or sigmoid of the logits before the \
     * choice; or the logits, and softmax of the chosen after it (after_choice). Experts \
     * are chosen by score + correction, the largest first, the lower number of equals; \
     * the correction is not in the weights. Where num_groups > 1 only experts of the \
     * topk_groups best groups are chosen; a group's score is the sum of its two best, \
     * corrected. normalize: weights divided by their sum (+ 1e-20); then times scaling */ \
    X(OP_ROUTE, route, route, \
      "logits:real[T,E] correction:real[E]? -> weights:real[T,k] experts:int[T,k]", \
      route_sizes, NULL, REBUILD_NEVER, 0, 2, WORKSPACE, PLAIN) \
    /* rows: where slot (t, j) goes when slots are sorted by expert, then t, then j; \
     * counts: how many slots each expert has */ \
    X(OP_SORT_BY_EXPERT, sort_by_expert, none, "experts:int[T,k] -> rows:int[T,k] counts:int[E]", \
      NULL, NULL, REBUILD_NEVER, 0, 0, PLAIN, PLAIN) \
    /* counts: rows that came from each of S senders, for each of E experts, in that \
     * order; those of senders_per_block senders one behind the other, each block of \
     * senders from a multiple of rows_per_block on. rows: where each row goes when they \
     * are sorted by expert, then by sender, -1 for rows that nobody sent. R is a bound */ \
    X(OP_SORT_RECEIVED, sort_received, sort_received, \
      "counts:int[S] -> rows:int[R,1] totals:int[E]", \
      NULL, NULL, REBUILD_NEVER, 0, 0, PLAIN, PLAIN) \
    /* y[rows[t, j]] = x[t], where that is not negative */ \
    X(OP_PERMUTE, permute, none, "x[T,h] rows:int[T,k] -> y[R,h]", \
      NULL, NULL, REBUILD_ALWAYS, OP_PARTIAL_ROWS, 0, PLAIN, PLAIN) \
    /* x[t] = sum over j of weights[t, j] * y[rows[t, j]] (in that order; weight 1 where \
     * absent; 0 for negative rows) */ \
    X(OP_UNPERMUTE, unpermute, none, "y[R,h] rows:int[T,k] weights:real[T,k]? -> x[T,h]", \
      NULL, NULL, REBUILD_NEVER, 0, 2, PLAIN, PLAIN) \
    /* of the counts[e] rows of expert e, which follow those of e - 1, y = x w[e]^T */ \
    X(OP_GROUPED_MATMUL, grouped_matmul, none, "x[R,k] w[E,n,k] counts:int[E] -> y[R,n]", \
      NULL, grouped_matmul_flops, REBUILD_NEVER, OP_PARTIAL_ROWS, 2, WORKSPACE, PLAIN) \
    /* y = sigmoid(gate[t]) * x */ \
    X(OP_SIGMOID_SCALE, sigmoid_scale, none, "x[T,n] gate[T,1] -> y[T,n]=x", \
      NULL, NULL, REBUILD_SELECTIVE, 0, 2, PLAIN, PLAIN) \
    /* y[i] = x[rows[i]], 0 where rows[i] < 0 */ \
    X(OP_GATHER_ROWS, gather_rows, none, "x[T,h] rows:int[n] -> y[n,h]", \
      NULL, NULL, REBUILD_ALWAYS, OP_READS_FEW_ROWS, 0, PLAIN, PLAIN) \
    /* Cross entropy over columns that several ranks hold: a rank has columns \
     * first_column.. first_column + valid of all; columns behind `valid` are padding. \
     * max: of each row */ \
    X(OP_VOCAB_MAX, vocab_max, vocab, "logits:real[T,V] -> max:real[T]-inf", \
      NULL, NULL, REBUILD_NEVER, 0, 0, PLAIN, PLAIN) \
    /* max: of all ranks. sums: sum of exp(logit - max); logit - max of the target, 0 if \
     * not ours */ \
    X(OP_VOCAB_SUM, vocab_sum, vocab, \
      "logits:real[T,V] max:real[T] targets:int[T] -> sums:real[T,2]", \
      NULL, NULL, REBUILD_NEVER, 0, 4, PLAIN, PLAIN) \
    /* sums: of all ranks. loss: 0 where target < 0 */ \
    X(OP_TOKEN_LOSS, token_loss, none, "sums:real[T,2] targets:int[T] -> loss:real[T]", \
      NULL, NULL, REBUILD_NEVER, 0, 2, PLAIN, PLAIN) \
    /* temperature 0: the largest (the lowest id of equals); else drawn from \
     * softmax(logits / temperature) of the top_k largest (0: all), of these the fewest \
     * whose probabilities reach top_p (1: all): the first id, in ascending order, up to \
     * which they sum to more than the number in [0, 1) that (seed, counter + i) gives: \
     * random_uniform() of kernels/cpu/random.h. ERR_NUMERIC where a logit is NaN, or \
     * the largest of them infinite */ \
    X(OP_SAMPLE, sample, sample, "logits:real[n,V] counter:int[1] -> ids:int[n]", \
      NULL, NULL, REBUILD_NEVER, 0, 0, WORKSPACE, WORKSPACE) \
    /* Of x a part is some elements of a larger tensor: element (i0, i1, ..) of its axes \
     * lies in x at `at` + sum of i[k] * stride[k], and is the tensor's element `first` \
     * + sum of i[k] * index_stride[k]. Fastest where both are 1 for the last axis. \
     * sums: what these elements add to the two sums of kernels/cpu/digest_sums.h, the low \
     * word of each first */ \
    X(OP_DIGEST, digest, digest, "x[n] -> sums:int[4]", \
      NULL, NULL, REBUILD_NEVER, 0, 0, PLAIN, WORKSPACE)

/* What ranks of a group do together. G is the number of members; rows (the first dimension) are what
 * is gathered and scattered. Programs alone have them: train/engine/collectives.h. */
#define COLLECTIVES(X) \
    /* of all members' x */ \
    X(OP_ALL_REDUCE, all_reduce, none, "x:any[..] -> y:any[..]=x", \
      NULL, NULL, REBUILD_NEVER, 0, 0, NONE, NONE) \
    /* member by member */ \
    X(OP_ALL_GATHER, all_gather, none, "x:any[R,..] -> y:any[S,..]", \
      gathered_sizes, NULL, REBUILD_ALWAYS, OP_PARTIAL_OF_PARTIAL, 0, NONE, NONE) \
    /* one's own rows of the sum */ \
    X(OP_REDUCE_SCATTER, reduce_scatter, none, "x:any[S,..] -> y:any[R,..]", \
      scattered_sizes, NULL, REBUILD_NEVER, 0, 0, NONE, NONE) \
    /* x has the rows for each member (and each of its E experts), in the order of \
     * counts, y and came likewise what comes from each member. R and Q are bounds */ \
    X(OP_ALL_TO_ALL, all_to_all, none, "x[R,h] counts:int[S] -> y[Q,h] came:int[U]", \
      NULL, NULL, REBUILD_NEVER, OP_PARTIAL_ROWS | OP_WAITS_FOR_HOST, 0, NONE, NONE) \
    /* y: x of the member before, while ours goes to the one behind */ \
    X(OP_SHIFT, shift, none, "x:any[..] -> y:any[..]", \
      NULL, NULL, REBUILD_NEVER, 0, 0, NONE, NONE) \
    /* to a member of the group */ \
    X(OP_SEND, send, none, "x:any[..] ->", \
      NULL, NULL, REBUILD_NEVER, 0, 0, NONE, NONE) \
    /* from a member of the group */ \
    X(OP_RECEIVE, receive, none, "-> y[R,h]", \
      NULL, NULL, REBUILD_NEVER, 0, 0, NONE, NONE) \
    /* x is the same for all members; y: one's own rows. No communication */ \
    X(OP_SLICE, slice, none, "x:any[S,..] -> y:any[R,..]", \
      scattered_sizes, NULL, REBUILD_ALWAYS, OP_IS_LOCAL, 0, NONE, NONE)
// clang-format on

/* ---- parameters ---- */

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
        double epsilon, shift; /* shift is added to the weight: 1 if weights are stored minus one */
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
        /* For kernels that do not read spans. Not 0: the rows of q and kv are this many sequences
         * of one length, one after the other, and each sequence has one span, of all its queries
         * and all its keys, both from the same position on. */
        uint32_t uniform_sequences;
        double pairs; /* about how many pairs of query and key attend: for the cost only */
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

#endif
