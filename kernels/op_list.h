/* op_list.h - the one list of ops: what programs of the engine are made of. The enum, the table of
 * op_table.c, the CPU's and the GPU's tables of kernels and the check of devices derive from it.
 *
 *   X(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)
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
 *   flags      of enum op_flags
 *   tolerance  of a device's result against the CPU's, in roundings of ELEM at its largest
 *   cpu, cuda  PLAIN, or WORKSPACE where the kernel asks for one; NONE: there is no kernel
 *
 * T is the number of tokens (all sequences one behind the other), h the hidden size.
 *
 * Tested groundwork that no builder uses yet: OP_SIGMOID_SCALE; sinks and softcap of attention;
 * groups of route; shift of norms. */
#ifndef FERRY_KERNELS_OP_LIST_H
#define FERRY_KERNELS_OP_LIST_H

#include <stdbool.h>
#include <stdint.h>

// clang-format off
#define OPS(X) \
    /* x: row ids[t] - first_row of the table, times scale; 0 where the table has none */ \
    X(OP_EMBEDDING, embedding, embedding, "ids:int[T] table[R,h] -> x[T,h]", \
      NULL, NULL, OP_FEW_ROWS, 0.5, PLAIN, PLAIN) \
    /* y = x[t] + table[positions[t]] */ \
    X(OP_POSITIONS, positions, none, "x[T,h] table[P,h] positions:int[T] -> y[T,h]=x", \
      NULL, NULL, OP_FEW_ROWS, 1, PLAIN, PLAIN) \
    /* stats: mean (0 for RMS) and 1 / sqrt(variance + epsilon) */ \
    X(OP_NORM, norm, norm, "x[T,h] weight[h] bias[h]? -> y[T,h] stats:real[T,2]?", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    /* sum = stream + branch + branch_bias, rounded; y = the norm of sum */ \
    X(OP_ADD_NORM, add_norm, norm, \
      "stream[T,h] branch[T,h] branch_bias[h]? weight[h] bias[h]? -> sum[T,h]=stream y[T,h] stats:real[T,2]?", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    /* c = a + b + bias; c may lie where b does, too */ \
    X(OP_ADD, add, none, "a[T,h] b[T,h] bias[h]? -> c[T,h]=a", \
      NULL, NULL, 0, 1, PLAIN, PLAIN) \
    /* y = alpha op(a) op(b) + bias + c, which is of y's type; op(a) is [m, k]: a, or a \
     * [k, m] transposed; op(b) is [k, n] */ \
    X(OP_MATMUL, matmul, matmul, "a[i,j] b[k,l] bias[n]? c:float[m,n]? -> y:float[m,n]=c", \
      matmul_sizes, matmul_flops, 0, 2, WORKSPACE, WORKSPACE) \
    /* For few rows: norm and matmul in one. y = a w^T + product_bias, where a is the norm of \
     * stream, or of sum = stream + branch + branch_bias. sum and a are rounded as those of \
     * add_norm and norm; sum is there where branch is */ \
    X(OP_NORM_MATMUL, norm_matmul, norm, \
      "stream[T,h] branch[T,h]? branch_bias[h]? weight[h] bias[h]? w[n,h] product_bias[n]? -> y[T,n] sum[T,h]?", \
      NULL, norm_matmul_flops, 0, 4, WORKSPACE, WORKSPACE) \
    /* y = qkv with each query and key head RMS-normed by itself */ \
    X(OP_HEAD_NORM, head_norm, head_norm, "qkv[T,w] q_weight[d] k_weight[d] -> y[T,w]=qkv", \
      head_norm_sizes, NULL, 0, 2, PLAIN, PLAIN) \
    /* A row of the table is rotary_dim / 2 cosines, then as many sines. y = qkv with \
     * the first rotary_dim elements (x, y in pairs i and i + rotary_dim / 2; 2i and 2i \
     * + 1 where interleaved) of each query and key head made (x cos - y sin, y cos + x \
     * sin); the other way round where inverse */ \
    X(OP_ROTARY, rotary, rotary, "qkv[T,w] table:real[P,d] positions:int[T] -> y[T,w]=qkv", \
      rotary_sizes, NULL, OP_FEW_ROWS, 2, PLAIN, PLAIN) \
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
     * the natural log of the sum of exp(score). c = heads * head_dim. Where dropout is \
     * not 0, a weight exp(score - lse) is multiplied by what op_dropout.h gives for \
     * tokens[query], first_head + head and the position of the key */ \
    X(OP_ATTENTION, attention, attention, \
      "q[T,q] kv[K,k] spans:int[S,6] sinks[n]? tokens:int[T,2]? -> o[T,c] lse:real[T,n]?-inf", \
      attention_sizes, attention_flops, 0, 4, WORKSPACE, WORKSPACE) \
    /* attention over two sets of keys, merged; lse may lie where lse_a does, too */ \
    X(OP_ATTENTION_MERGE, attention_merge, attention_merge, \
      "o_a[T,c] lse_a:real[T,n] o_b[T,c] lse_b:real[T,n] -> o[T,c]=o_a lse:real[T,n]", \
      attention_merge_sizes, NULL, 0, 2, PLAIN, PLAIN) \
    /* key and value of token t in row rows[t] of the cache (not where that is \
     * negative); all other rows stay */ \
    X(OP_CACHE_WRITE, cache_write, cache_write, "qkv[T,w] rows:int[T] -> cache[R,c]", \
      cache_write_sizes, NULL, OP_IS_COPY | OP_FEW_ROWS, 0, PLAIN, PLAIN) \
    /* y of rotary, and cache_write of it */ \
    X(OP_ROTARY_CACHE, rotary_cache, rotary, \
      "qkv[T,w] table:real[P,d] positions:int[T] rows:int[T] -> y[T,w]=qkv cache[R,c]", \
      rotary_cache_sizes, NULL, OP_FEW_ROWS, 2, PLAIN, PLAIN) \
    /* y = f(x), or f(gate) * up where gated: x is gate, then up. counts: only the first \
     * sum(counts) rows count */ \
    X(OP_ACTIVATION, activation, activation, "x[T,w] counts:int[E]? -> y[T,n]", \
      activation_sizes, NULL, OP_PARTIAL_ROWS, 2, PLAIN, PLAIN) \
    /* For few rows: activation and matmul in one. y = a weight^T + bias, where a is what \
     * activation makes of x, rounded as there */ \
    X(OP_ACTIVATION_MATMUL, activation_matmul, activation, "x[T,w] weight[m,n] bias[m]? -> y[T,m]", \
      activation_sizes, activation_matmul_flops, 0, 4, WORKSPACE, WORKSPACE) \
    /* In the order of choice. Scores: softmax or sigmoid of the logits before the \
     * choice; or the logits, and softmax of the chosen after it (after_choice). Experts \
     * are chosen by score + correction, the largest first, the lower number of equals; \
     * the correction is not in the weights. Where num_groups > 1 only experts of the \
     * topk_groups best groups are chosen; a group's score is the sum of its two best, \
     * corrected. normalize: weights divided by their sum (+ 1e-20); then times scaling */ \
    X(OP_ROUTE, route, route, \
      "logits:real[T,E] correction:real[E]? -> weights:real[T,k] experts:int[T,k]", \
      route_sizes, NULL, 0, 2, WORKSPACE, PLAIN) \
    /* rows: where slot (t, j) goes when slots are sorted by expert, then t, then j; \
     * counts: how many slots each expert has */ \
    X(OP_SORT_BY_EXPERT, sort_by_expert, none, "experts:int[T,k] -> rows:int[T,k] counts:int[E]", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    /* counts: rows that came from each of S senders, for each of E experts, in that \
     * order; those of senders_per_block senders one behind the other, each block of \
     * senders from a multiple of rows_per_block on. rows: where each row goes when they \
     * are sorted by expert, then by sender, -1 for rows that nobody sent. R is a bound */ \
    X(OP_SORT_RECEIVED, sort_received, sort_received, \
      "counts:int[S] -> rows:int[R,1] totals:int[E]", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    /* y[rows[t, j]] = x[t], where that is not negative */ \
    X(OP_PERMUTE, permute, none, "x[T,h] rows:int[T,k] -> y[R,h]", \
      NULL, NULL, OP_IS_COPY | OP_PARTIAL_ROWS, 0, PLAIN, PLAIN) \
    /* x[t] = sum over j of weights[t, j] * y[rows[t, j]] (in that order; weight 1 where \
     * absent; 0 for negative rows) */ \
    X(OP_UNPERMUTE, unpermute, none, "y[R,h] rows:int[T,k] weights:real[T,k]? -> x[T,h]", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    /* of the counts[e] rows of expert e, which follow those of e - 1, y = x w[e]^T */ \
    X(OP_GROUPED_MATMUL, grouped_matmul, none, "x[R,k] w[E,n,k] counts:int[E] -> y[R,n]", \
      NULL, grouped_matmul_flops, OP_PARTIAL_ROWS, 2, WORKSPACE, PLAIN) \
    /* y = sigmoid(gate[t]) * x */ \
    X(OP_SIGMOID_SCALE, sigmoid_scale, none, "x[T,n] gate[T,1] -> y[T,n]=x", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    /* y[i] = x[rows[i]], 0 where rows[i] < 0 */ \
    X(OP_GATHER_ROWS, gather_rows, none, "x[T,h] rows:int[n] -> y[n,h]", \
      NULL, NULL, OP_IS_COPY | OP_FEW_ROWS, 0, PLAIN, PLAIN) \
    /* Cross entropy over columns that several ranks hold: a rank has columns \
     * first_column.. first_column + valid of all; columns behind `valid` are padding. \
     * max: of each row */ \
    X(OP_VOCAB_MAX, vocab_max, vocab, "logits:real[T,V] -> max:real[T]-inf", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    /* max: of all ranks. sums: sum of exp(logit - max); logit - max of the target, 0 if \
     * not ours */ \
    X(OP_VOCAB_SUM, vocab_sum, vocab, \
      "logits:real[T,V] max:real[T] targets:int[T] -> sums:real[T,2]", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* sums: of all ranks. loss: 0 where target < 0 */ \
    X(OP_TOKEN_LOSS, token_loss, none, "sums:real[T,2] targets:int[T] -> loss:real[T]", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    /* temperature 0: the largest (the lowest id of equals); else drawn from \
     * softmax(logits / temperature) of the top_k largest (0: all), of these the fewest \
     * whose probabilities reach top_p (1: all): the first id, in ascending order, up to \
     * which they sum to more than the number in [0, 1) that (seed, counter + i) gives: \
     * random_uniform() of kernels/cpu/random.h. -1 where a logit is NaN, or, for a \
     * draw, the largest of them infinite; of all rows where bad is not 0 */ \
    X(OP_SAMPLE, sample, sample, "logits:real[n,V] counter:int[1] bad:int[1]? -> ids:int[n]", \
      NULL, NULL, 0, 0, WORKSPACE, WORKSPACE) \
    /* Each of S / n members has c columns of n rows, member by member in x: in y the columns of \
     * a row lie side by side. Columns of x that y has no room for are padding */ \
    X(OP_JOIN_COLUMNS, join_columns, none, "x:real[S,c] -> y:real[n,V]", \
      NULL, NULL, OP_IS_COPY, 0, PLAIN, PLAIN) \
    /* bad: 1 where an element of x is NaN or infinite, or before is not 0; else 0 */ \
    X(OP_NOT_FINITE, not_finite, none, "x:float[..] before:int[1]? -> bad:int[1]=before", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    /* ---- training ---- \
     * \
     * Gradients of what NAME holds are called dNAME. Where an input NAME_sum is there, the \
     * gradient is added to it; it has the type of the gradient. */ \
    /* y = (x + bias) times what op_dropout.h gives for tokens[t] and first_column + \
     * column. Its own backward, without the bias. tokens: the low and the high word of a \
     * number that each token of a run has for itself */ \
    X(OP_DROPOUT, dropout, dropout, "x[T,h] bias[h]? tokens:int[T,2] -> y[T,h]=x", \
      NULL, NULL, 0, 1, PLAIN, PLAIN) \
    /* y = x, in another type */ \
    X(OP_CAST, cast, none, "x:float[n] -> y:float[n]", \
      NULL, NULL, 0, 0.5, PLAIN, PLAIN) \
    /* y[c] = the sum over rows of x */ \
    X(OP_COLUMN_SUM, column_sum, none, "x[T,h] y_sum:float[h]? -> y:float[h]=y_sum", \
      NULL, NULL, 0, 4, WORKSPACE, WORKSPACE) \
    /* of norm, and of add_norm, whose x is its sum. dx: plus the gradient that reaches x \
     * on other ways */ \
    X(OP_NORM_BACKWARD, norm_backward, norm, \
      "x[T,h] weight[h] stats:real[T,2] dy[T,h] other[T,h]? dweight_sum:float[h]? dbias_sum:float[h]? -> " \
      "dx[T,h]=dy dweight:float[h] dbias:float[h]?", \
      NULL, norm_backward_flops, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_HEAD_NORM_BACKWARD, head_norm_backward, head_norm, \
      "qkv[T,w] q_weight[d] k_weight[d] dy[T,w] dq_sum:float[d]? dk_sum:float[d]? -> " \
      "dqkv[T,w]=dy dq_weight:float[d] dk_weight:float[d]", \
      head_norm_sizes, NULL, 0, 4, WORKSPACE, WORKSPACE) \
    /* o and lse: of the whole softmax. Where dkv is absent, q and kv are one array, and the \
     * gradients of keys and values lie in dq where keys and values lie in q. Elements of dq \
     * and dkv that belong to no query, key or value head are 0. The gradient of sinks is \
     * not made */ \
    X(OP_ATTENTION_BACKWARD, attention_backward, attention, \
      "q[T,q] kv[K,k] spans:int[S,6] tokens:int[T,2]? o[T,c] lse:real[T,n] do[T,c] -> dq[T,q] dkv[K,k]?", \
      attention_sizes, attention_backward_flops, 0, 8, WORKSPACE, WORKSPACE) \
    X(OP_ACTIVATION_BACKWARD, activation_backward, activation, \
      "x[T,w] dy[T,n] counts:int[E]? -> dx[T,w]=x", \
      activation_sizes, NULL, OP_PARTIAL_ROWS, 2, PLAIN, PLAIN) \
    /* experts: those that route chose. Where counts are there, scale times the gradient of \
     * balance_loss is added; where z is not 0, scale times that of z_loss */ \
    X(OP_ROUTE_BACKWARD, route_backward, route, \
      "logits:real[T,E] experts:int[T,k] dweights:real[T,k] counts:int[S,E]? scale:real[1]? -> dlogits[T,E]", \
      route_sizes, NULL, 0, 4, WORKSPACE, PLAIN) \
    /* counts[s][e]: how many tokens of sequence s have expert e; token t is of sequence \
     * (first_token + t) / sequence_length, or of the only one where that length is 0 */ \
    X(OP_COUNT_EXPERTS, count_experts, route, \
      "experts:int[T,k] counts_sum:int[S,E]? -> counts:int[S,E]=counts_sum", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    /* new[e] = bias[e] + rate * sign(mean of all counts - counts[e]): Megatron-Core's \
     * get_updated_expert_bias (moe_utils.py) */ \
    X(OP_UPDATE_EXPERT_BIAS, update_expert_bias, expert_bias, \
      "counts:int[1,E] bias:real[E] -> new:real[E]=bias", NULL, NULL, 0, 1, PLAIN, PLAIN) \
    /* loss = balance * sum over t and e of counts[s][e] * p[t][e], s being the sequence of t as \
     * in count_experts. p[t]: softmax(logits[t]); where routers score by sigmoid, these scores \
     * divided by their sum (+ 1e-20). Megatron-Core's aux_loss (moe_utils.py: \
     * switch_load_balancing_loss_func) without its coefficient, where balance is E / (k T^2) and \
     * T the tokens that are counted; its seq_aux_loss, where balance is E / (k T^2 S) and T the \
     * tokens of a sequence. With of_share, where S is 1, counts are divided by their sum: its \
     * global_aux_loss, where balance is E / T and T the tokens of all ranks' micro-batches */ \
    X(OP_BALANCE_LOSS, balance_loss, route, \
      "logits:real[T,E] counts:int[S,E] loss_sum:real[1]? -> loss:real[1]=loss_sum", \
      NULL, NULL, 0, 4, WORKSPACE, WORKSPACE) \
    /* loss = z * sum over t of logsumexp(logits[t])^2: Megatron-Core's z_loss_func (moe_utils.py) \
     * without its coefficient, where z is 1 / T */ \
    X(OP_Z_LOSS, z_loss, route, \
      "logits:real[T,E] loss_sum:real[1]? -> loss:real[1]=loss_sum", \
      NULL, NULL, 0, 8, WORKSPACE, WORKSPACE) \
    /* of unpermute. y: its input, for dweights */ \
    X(OP_UNPERMUTE_BACKWARD, unpermute_backward, none, \
      "dx[T,h] rows:int[T,k] weights:real[T,k]? y[R,h]? -> dy[R,h] dweights:real[T,k]?", \
      NULL, NULL, OP_PARTIAL_ROWS, 2, PLAIN, PLAIN) \
    /* of grouped_matmul: dx = dy w[e]; dw[e] = dy^T x over the rows of expert e */ \
    X(OP_GROUPED_DGRAD, grouped_dgrad, none, "dy[R,n] w[E,n,k] counts:int[E] -> dx[R,k]", \
      NULL, grouped_dgrad_flops, OP_PARTIAL_ROWS, 2, WORKSPACE, PLAIN) \
    X(OP_GROUPED_WGRAD, grouped_wgrad, none, \
      "dy[R,n] x[R,k] counts:int[E] dw_sum:float[E,n,k]? -> dw:float[E,n,k]=dw_sum", \
      NULL, grouped_wgrad_flops, 0, 2, WORKSPACE, PLAIN) \
    /* of embedding, and of positions with ids = positions: dtable[ids[t] - first_row] is the \
     * sum of scale * dx[t]. order: the numbers of all tokens sorted by id, of equal ids the \
     * lower number first */ \
    X(OP_EMBEDDING_BACKWARD, embedding_backward, embedding, \
      "dx[T,h] ids:int[T] order:int[T] dtable_sum:float[R,h]? -> dtable:float[R,h]=dtable_sum", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* of the losses of token_loss, each times dloss[t] * scale. 0 in columns behind valid, and \
     * where the target is negative. In place only where ELEM is REAL */ \
    X(OP_VOCAB_BACKWARD, vocab_backward, vocab, \
      "logits:real[T,V] max:real[T] sums:real[T,2] targets:int[T] dloss:real[T] scale:real[1] -> dlogits[T,V]=logits", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* the sum of x[t] * weights[t] (weight 1 where absent) */ \
    X(OP_WEIGHTED_SUM, weighted_sum, none, "x:real[T] weights:real[T]? y_sum:real[1]? -> y:real[1]=y_sum", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* sums: of squares of the finite elements; how many are not finite; how many are 0 */ \
    X(OP_SQUARE_SUM, square_sum, none, "x:float[n] sums_sum:real[3]? -> sums:real[3]=sums_sum", \
      NULL, NULL, 0, 4, PLAIN, WORKSPACE) \
    /* What a step of the optimizer multiplies with. control: learning rate, weight decay, \
     * 1 / (1 - beta1^t), 1 / (1 - beta2^t), factor of the gradients, largest norm (0: any). \
     * sums: of square_sum over all gradients. scalars: the first four of control; factor * \
     * min(1, largest / (norm + 1e-6)); 1 where a gradient is not finite, else 0; norm = factor \
     * * sqrt(sums[0]); sums[2]. Megatron-Core's clip_grads.py */ \
    X(OP_STEP_SCALARS, step_scalars, none, "sums:real[3] control:real[6] -> scalars:real[8]", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* A step of AdamW as torch.optim.AdamW has it, by scalars of step_scalars: g = factor * \
     * grad; w = master, or weight where that is absent; m = beta1 m + (1 - beta1) g; v = beta2 v \
     * + (1 - beta2) g^2; w = w (1 - lr * lr_mult * wd * wd_mult) - lr * lr_mult * (m c1) / \
     * (sqrt(v c2) + epsilon), c1 and c2 being scalars 2 and 3. Nothing changes where a gradient \
     * is not finite. */ \
    X(OP_ADAM, adam, optimizer, \
      "grad:float[n] scalars:real[8] weight[n] m:real[n] v:real[n] master:real[n]? -> " \
      "new_weight[n]=weight new_m:real[n]=m new_v:real[n]=v new_master:real[n]?=master", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* A step of torch.optim.SGD: g = factor * grad + wd * wd_mult * w; m = momentum m + g; w = w - \
     * lr * lr_mult * m (g where m is absent). Nothing changes where a gradient is not finite */ \
    X(OP_SGD, sgd, optimizer, \
      "grad:float[n] scalars:real[8] weight[n] m:real[n]? master:real[n]? -> " \
      "new_weight[n]=weight new_m:real[n]?=m new_master:real[n]?=master", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* ---- for checks ---- */ \
    /* Of x a part is some elements of a larger tensor: element (i0, i1, ..) of its axes \
     * lies in x at `at` + sum of i[k] * stride[k], and is the tensor's element `first` \
     * + sum of i[k] * index_stride[k]. Fastest where both are 1 for the last axis. \
     * sums: what these elements add to the two sums of kernels/cpu/digest_sums.h, the low \
     * word of each first */ \
    X(OP_DIGEST, digest, digest, "x[n] -> sums:int[4]", \
      NULL, NULL, 0, 0, PLAIN, WORKSPACE)

/* What ranks of a group do together. G is the number of members; rows (the first dimension) are what
 * is gathered and scattered. Programs alone have them: train/engine/collectives.h. */
#define COLLECTIVES(X) \
    /* of all members' x */ \
    X(OP_ALL_REDUCE, all_reduce, none, "x:any[..] -> y:any[..]=x", \
      NULL, NULL, 0, 0, NONE, NONE) \
    /* member by member */ \
    X(OP_ALL_GATHER, all_gather, none, "x:any[R,..] -> y:any[S,..]", \
      gathered_sizes, NULL, OP_IS_COPY | OP_PARTIAL_OF_PARTIAL, 0, NONE, NONE) \
    /* one's own rows of the sum */ \
    X(OP_REDUCE_SCATTER, reduce_scatter, none, "x:any[S,..] -> y:any[R,..]", \
      scattered_sizes, NULL, 0, 0, NONE, NONE) \
    /* x has the rows for each member (and each of its E experts), in the order of \
     * counts, y and came likewise what comes from each member. R and Q are bounds */ \
    X(OP_ALL_TO_ALL, all_to_all, none, "x[R,h] counts:int[S] -> y[Q,h] came:int[U]", \
      NULL, NULL, OP_PARTIAL_ROWS | OP_WAITS_FOR_HOST, 0, NONE, NONE) \
    /* y: x of the member before, while ours goes to the one behind */ \
    X(OP_SHIFT, shift, none, "x:any[..] -> y:any[..]", \
      NULL, NULL, 0, 0, NONE, NONE) \
    /* y is x, which is the same for all members, each of which goes on by itself from here: so \
     * each has a part of the gradient of y. No communication, and no copy */ \
    X(OP_REPLICATE, replicate, none, "x:any[..] -> y:any[..]", \
      NULL, NULL, OP_IS_LOCAL | OP_IS_ALIAS, 0, NONE, NONE) \
    /* x is the same for all members; y: one's own rows. No communication */ \
    X(OP_SLICE, slice, none, "x:any[S,..] -> y:any[R,..]", \
      scattered_sizes, NULL, OP_IS_LOCAL, 0, NONE, NONE)
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

/* Which elements dropout keeps: op_dropout.h. */
struct dropout {
    double probability; /* of being 0; 0: there is no dropout */
    uint64_t seed;
    uint32_t stream; /* each place of a model has its own */
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
        bool transpose_a, transpose_b;
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
        struct dropout dropout;
        uint64_t first_head; /* of all ranks' heads: the number of head 0 here */
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
        bool of_share; /* of balance_loss */
        double scaling;
        double balance; /* of balance_loss, times its coefficient */
        double z;       /* of z_loss, times its coefficient; 0: there is none */
        uint64_t first_token, sequence_length; /* of count_experts and balance_loss */
    } route;
    struct {
        double rate;
    } expert_bias;
    struct {
        uint64_t senders_per_block, rows_per_block;
    } sort_received;
    struct {
        uint64_t first_column, valid;
    } vocab;
    struct {
        struct dropout dropout;
        uint64_t first_column; /* of all ranks' columns: the number of column 0 here */
    } dropout;
    struct {
        double beta1, beta2, epsilon, momentum;
        double lr_mult, wd_mult;
    } optimizer;
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
