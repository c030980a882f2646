/* op_list.h - the list of ops. The enum, the table of op_table.c, the tables of
 * kernels of CPU and GPU and the checks of devices derive from it.
 *
 *   X(id, name, params, signature, sizes, flops, flags, tolerance, cpu, cuda)
 *
 *   name       of its kernels, and in messages
 *   params     its member of union op_params, below; `none`: no parameters
 *   signature  inputs "->" outputs, each NAME[DIMENSIONS] or NAME:TYPE[DIMENSIONS]
 *   sizes      finds letters from params and other letters; NULL: not needed
 *   flops      counts floating-point operations; NULL: one an output element
 *   flags      enum op_flags
 *   tolerance  a device's largest deviation from the CPU, in roundings of ELEM
 *              at the result's largest magnitude
 *   cpu, cuda  PLAIN; WORKSPACE, if the kernel asks for one; NONE: no kernel
 *
 * TYPE: elem (default), real, int; float: elem or real; any; weight: elem, which
 * may be coded (ops.h). A dimension is a
 * letter (one number within a signature), a number, or ".." (last: further
 * dimensions, equal wherever they stand). Suffixes, in this order: "?"
 * optional; "=INPUT" may take this input's place; "-inf" may hold -infinity.
 *
 * Tested groundwork that no builder uses yet: OP_SIGMOID_SCALE (forward only);
 * sinks (forward only) and softcap of attention; groups of route; shift of
 * norms. */
#ifndef FERRY_KERNELS_OP_LIST_H
#define FERRY_KERNELS_OP_LIST_H

#include <stdbool.h>
#include <stdint.h>

/* Definitions of OPS, in its order. T is the number of tokens (all sequences
 * concatenated), h the hidden size.
 *
 * embedding: x[t] = scale * table[ids[t] - first_row], or 0 where the table has
 *     no such row.
 * positions: y[t] = x[t] + table[positions[t]].
 * norm: y = (x - mean) * r * (weight + shift) + bias, with r = 1 /
 *     sqrt(variance + epsilon). RMS takes the mean as 0. stats: mean, r.
 * add_norm: sum = stream + branch + branch_bias, rounded; y = norm of sum.
 * add: c = a + b + bias. c may take b's place, too.
 * matmul: y = alpha op(a) op(b) + bias + c, where c has y's type. op(a) is [m,
 *     k]: a, or the transpose of a [k, m]. op(b) is [k, n]; a coded b is [n, k].
 * norm_matmul: norm and matmul fused, for few rows: y = a w^T + product_bias,
 *     where a is the norm of stream, or of sum = stream + branch + branch_bias.
 *     sum and a are rounded as in add_norm and norm. sum is present where
 *     branch is.
 * head_norm: y = qkv with an RMS norm of each query and key head.
 * rotary: A row of the table is rotary_dim / 2 cosines, then as many sines. The
 *     first rotary_dim elements of each query and key head are pairs (x, y):
 *     elements i and i + rotary_dim / 2, or 2i and 2i + 1 if interleaved. A
 *     pair becomes (x cos - y sin, y cos + x sin), or is rotated back if
 *     inverse. y copies the rest of qkv.
 * attention: The query heads of group g begin at element g * q_stride of a row
 *     of q, its key head at g * kv_stride + k_at of a row of kv, its value head
 *     at g * kv_stride + v_at. c = heads * head_dim.
 *     A span (q_begin, q_count, q_position, k_begin, k_count, k_position) lets
 *     queries attend to keys. Row q_begin + i of q has position q_position + i,
 *     row k_begin + j of kv position k_position + j. With d = query's position
 *     - key's position, a pair attends where 0 <= d (if causal) and d < window
 *     (if window is not 0). Spans with one q_begin are adjacent, have one
 *     q_count and share one softmax. Other query ranges do not overlap. A span
 *     with q_count 0 ends the list.
 *     score = scale * q.k, then softcap * tanh(score / softcap) if softcap is
 *     not 0. A sink is one more score, without a value. lse is the natural log
 *     of the sum of exp(score). A row of q in no span, or without any key,
 *     gives 0 (lse -INFINITY), with sinks too.
 *     If dropout is not 0, a weight exp(score - lse) is multiplied by the
 *     factor of op_dropout.h for tokens[query], first_head + head and the key's
 *     position.
 * attention_merge: merges attention over two sets of keys. lse may take lse_a's
 *     place, too.
 * cache_write: row rows[t] of the cache becomes key and value of token t,
 *     unless rows[t] is negative. Other rows stay.
 * rotary_cache: y of rotary, and cache_write of y.
 * activation: y = f(x), or f(gate) * up if gated, where x holds gate, then up.
 *     With counts, only the first sum(counts) rows are valid.
 * activation_matmul: activation and matmul fused, for few rows: y = a weight^T
 *     + bias, where a is the activation of x, rounded as in activation.
 * route: weights and experts in the order of choice. Scores are softmax or
 *     sigmoid of the logits; with after_choice, the logits, with a softmax over
 *     the chosen. The largest score + correction is chosen first, the lower
 *     number of equals; weights exclude the correction. If num_groups > 1, only
 *     the topk_groups best groups take part; a group's score is the sum of its
 *     two best corrected scores. normalize divides weights by their sum (+
 *     1e-20); scaling multiplies them last.
 * sort_by_expert: rows[t][j]: position of slot (t, j) after sorting slots by
 *     expert, then t, then j. counts: slots of each expert.
 * sort_received: counts: rows received from each of S senders for each of E
 *     experts, in that order. Rows of senders_per_block senders are contiguous;
 *     each block of senders begins at a multiple of rows_per_block. rows:
 *     position of each row after sorting by expert, then sender; -1 for rows
 *     that nobody sent. R is an upper bound.
 * permute: y[rows[t][j]] = x[t], unless rows[t][j] is negative.
 * unpermute: x[t] = sum over j, in order, of weights[t][j] * y[rows[t][j]].
 *     Absent weights are 1; a negative row counts as 0.
 * grouped_matmul: y = x w[e]^T for the counts[e] rows of expert e, which follow
 *     those of e - 1.
 * sigmoid_scale: y[t] = sigmoid(gate[t]) * x[t].
 * gather_rows: y[i] = x[rows[i]], or 0 where rows[i] < 0.
 *
 * Cross entropy over columns that several ranks hold. A rank has columns
 * [first_column, first_column + valid) of all; its own from `valid` on are
 * padding.
 *
 * vocab_max: max of each row.
 * vocab_sum: max is over all ranks. sums: sum of exp(logit - max); logit - max
 *     of the target, or 0 if another rank has it.
 * token_loss: sums are over all ranks. loss is 0 where target < 0.
 *
 * Sampling and results.
 *
 * sample: temperature 0 takes the largest logit, the lowest id of equals.
 *     Otherwise ids are drawn from softmax(logits / temperature) of the top_k
 *     largest (0: all), of these the fewest whose probabilities reach top_p (1:
 *     all). The drawn id is the first, in ascending order, at which the sum of
 *     probabilities exceeds random_uniform() of (seed, counter + i),
 *     kernels/cpu/random.h. ids[i] is -1 if a logit is NaN, or, for a draw, the
 *     largest is infinite; all are -1 if bad is not 0.
 * join_columns: x holds the [n, c] of S / n members, one after another. y
 *     places the columns of a row side by side. Columns beyond y's are padding.
 * not_finite: bad = 1 if an element of x is NaN or infinite or before is not 0,
 *     else 0.
 *
 * Training. "Of X" is the backward of X, dNAME the gradient of NAME. An input
 * NAME_sum, where present, has the gradient's type and is added to it.
 *
 * dropout: y = (x + bias) times the factor of op_dropout.h for tokens[t] and
 *     first_column + column. Its own backward, without bias. tokens: low and
 *     high word of a number unique to each token of a run.
 * cast: y = x, in another type.
 * column_sum: y[c] = sum over rows of x.
 * norm_backward: of norm, and of add_norm, whose x is its sum. dx includes
 *     `other`, the gradient that reaches x by other paths.
 * head_norm_backward: of head_norm.
 * attention_backward: o and lse are those of the whole softmax. Without dkv, q
 *     and kv are one array, and dq has the gradients of keys and values where q
 *     has keys and values. Elements of dq and dkv outside all heads are 0.
 *     Sinks get no gradient.
 * activation_backward: of activation.
 * route_backward: experts are those that route chose. With counts, adds scale
 *     times the gradient of balance_loss; where z is not 0, scale times that of
 *     z_loss.
 * count_experts: counts[s][e]: number of tokens of sequence s with expert e.
 *     Token t is of sequence (first_token + t) / sequence_length, or of the
 *     only one if sequence_length is 0.
 * update_expert_bias: new[e] = bias[e] + rate * sign(mean of all counts -
 *     counts[e]): Megatron-Core's get_updated_expert_bias (moe_utils.py).
 * balance_loss: loss = balance * sum over t and e of counts[s][e] * p[t][e], s
 *     being the sequence of t as in count_experts. p[t] is softmax(logits[t]);
 *     for sigmoid routers, the scores divided by their sum (+ 1e-20).
 *     Megatron-Core's losses (moe_utils.py: switch_load_balancing_loss_func),
 *     without coefficient:
 *         aux_loss         balance = E / (k T^2), T = number of counted tokens
 *         seq_aux_loss     balance = E / (k T^2 S), T = tokens of a sequence
 *         global_aux_loss  balance = E / T, T = tokens of all ranks' micro-batches;
 *                          S = 1; of_share divides counts by their sum
 * z_loss: loss = z * sum over t of logsumexp(logits[t])^2: Megatron-Core's
 *     z_loss_func (moe_utils.py) without its coefficient, where z is 1 / T.
 * unpermute_backward: of unpermute. y is its input, for dweights.
 * grouped_dgrad: of grouped_matmul: dx = dy w[e].
 * grouped_wgrad: of grouped_matmul: dw[e] = dy^T x over the rows of expert e.
 * embedding_backward: of embedding, and of positions with ids = positions.
 *     dtable[ids[t] - first_row] = sum of scale * dx[t]. order: indices of all
 *     tokens sorted by id, then by index.
 * vocab_backward: of token_loss, each loss times dloss[t] * scale. 0 in columns
 *     from `valid` on, and where the target is negative. In place only if ELEM
 *     is REAL.
 * weighted_sum: y = sum of x[t] * weights[t]. Absent weights are 1.
 * square_sum: sums: of squares of the finite elements; count of non-finite
 *     elements; count of zeros.
 * step_scalars: factors of an optimizer step. control: learning rate, weight
 *     decay, 1 / (1 - beta1^t), 1 / (1 - beta2^t), factor of the gradients,
 *     largest norm (0: any). sums: square_sum over all gradients. scalars: the
 *     first four of control; factor * min(1, largest / (norm + 1e-6)); 1 if a
 *     gradient is not finite, else 0; norm = factor * sqrt(sums[0]); sums[2].
 *     Megatron-Core's clip_grads.py.
 * adam: a step of torch.optim.AdamW, by scalars of step_scalars: g = factor *
 *     grad; w = master, or weight if absent; m = beta1 m + (1 - beta1) g; v =
 *     beta2 v + (1 - beta2) g^2; w = w (1 - lr * lr_mult * wd * wd_mult) - lr *
 *     lr_mult * (m c1) / (sqrt(v c2) + epsilon), where c1 and c2 are scalars 2
 *     and 3. Nothing changes if a gradient is not finite.
 * sgd: a step of torch.optim.SGD: g = factor * grad + wd * wd_mult * w; m =
 *     momentum m + g; w = w - lr * lr_mult * m (g if m is absent). Nothing
 *     changes if a gradient is not finite.
 *
 * Checks.
 *
 * digest: x is a part of a tensor. Element (i0, i1, ..) of its axes is element
 *     `at` + sum of i[k] * stride[k] of x, and element `first` + sum of i[k] *
 *     index_stride[k] of the tensor. sums: its share of the two sums of
 *     kernels/cpu/digest_sums.h, the low word of each first. Fastest if both
 *     strides of the last axis are 1. */
// clang-format off
#define OPS(X) \
    X(OP_EMBEDDING, embedding, embedding, "ids:int[T] table[R,h] -> x[T,h]", \
      NULL, NULL, OP_FEW_ROWS, 0.5, PLAIN, PLAIN) \
    X(OP_POSITIONS, positions, none, "x[T,h] table[P,h] positions:int[T] -> y[T,h]=x", \
      NULL, NULL, OP_FEW_ROWS, 1, PLAIN, PLAIN) \
    X(OP_NORM, norm, norm, "x[T,h] weight[h] bias[h]? -> y[T,h] stats:real[T,2]?", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    X(OP_ADD_NORM, add_norm, norm, \
      "stream[T,h] branch[T,h] branch_bias[h]? weight[h] bias[h]? -> sum[T,h]=stream y[T,h] stats:real[T,2]?", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    X(OP_ADD, add, none, "a[T,h] b[T,h] bias[h]? -> c[T,h]=a", \
      NULL, NULL, 0, 1, PLAIN, PLAIN) \
    X(OP_MATMUL, matmul, matmul, "a[i,j] b:weight[k,l] bias[n]? c:float[m,n]? -> y:float[m,n]=c", \
      matmul_sizes, matmul_flops, 0, 2, WORKSPACE, WORKSPACE) \
    X(OP_NORM_MATMUL, norm_matmul, norm, \
      "stream[T,h] branch[T,h]? branch_bias[h]? weight[h] bias[h]? w[n,h] product_bias[n]? -> y[T,n] sum[T,h]?", \
      NULL, norm_matmul_flops, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_HEAD_NORM, head_norm, head_norm, "qkv[T,w] q_weight[d] k_weight[d] -> y[T,w]=qkv", \
      head_norm_sizes, NULL, 0, 2, PLAIN, PLAIN) \
    X(OP_ROTARY, rotary, rotary, "qkv[T,w] table:real[P,d] positions:int[T] -> y[T,w]=qkv", \
      rotary_sizes, NULL, OP_FEW_ROWS, 2, PLAIN, PLAIN) \
    X(OP_ATTENTION, attention, attention, \
      "q[T,q] kv[K,k] spans:int[S,6] sinks[n]? tokens:int[T,2]? -> o[T,c] lse:real[T,n]?-inf", \
      attention_sizes, attention_flops, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_ATTENTION_MERGE, attention_merge, attention_merge, \
      "o_a[T,c] lse_a:real[T,n] o_b[T,c] lse_b:real[T,n] -> o[T,c]=o_a lse:real[T,n]", \
      attention_merge_sizes, NULL, 0, 2, PLAIN, PLAIN) \
    X(OP_CACHE_WRITE, cache_write, cache_write, "qkv[T,w] rows:int[T] -> cache[R,c]", \
      cache_write_sizes, NULL, OP_IS_COPY | OP_FEW_ROWS, 0, PLAIN, PLAIN) \
    X(OP_ROTARY_CACHE, rotary_cache, rotary, \
      "qkv[T,w] table:real[P,d] positions:int[T] rows:int[T] -> y[T,w]=qkv cache[R,c]", \
      rotary_cache_sizes, NULL, OP_FEW_ROWS, 2, PLAIN, PLAIN) \
    X(OP_ACTIVATION, activation, activation, "x[T,w] counts:int[E]? -> y[T,n]", \
      activation_sizes, NULL, OP_PARTIAL_ROWS, 2, PLAIN, PLAIN) \
    X(OP_ACTIVATION_MATMUL, activation_matmul, activation, "x[T,w] weight[m,n] bias[m]? -> y[T,m]", \
      activation_sizes, activation_matmul_flops, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_ROUTE, route, route, "logits:real[T,E] correction:real[E]? -> weights:real[T,k] experts:int[T,k]", \
      route_sizes, NULL, 0, 2, WORKSPACE, PLAIN) \
    X(OP_SORT_BY_EXPERT, sort_by_expert, none, "experts:int[T,k] -> rows:int[T,k] counts:int[E]", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    X(OP_SORT_RECEIVED, sort_received, sort_received, "counts:int[S] -> rows:int[R,1] totals:int[E]", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    X(OP_PERMUTE, permute, none, "x[T,h] rows:int[T,k] -> y[R,h]", \
      NULL, NULL, OP_IS_COPY | OP_PARTIAL_ROWS, 0, PLAIN, PLAIN) \
    X(OP_UNPERMUTE, unpermute, none, "y[R,h] rows:int[T,k] weights:real[T,k]? -> x[T,h]", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    X(OP_GROUPED_MATMUL, grouped_matmul, none, "x[R,k] w:weight[E,n,k] counts:int[E] -> y[R,n]", \
      NULL, grouped_matmul_flops, OP_PARTIAL_ROWS, 2, WORKSPACE, PLAIN) \
    X(OP_SIGMOID_SCALE, sigmoid_scale, none, "x[T,n] gate[T,1] -> y[T,n]=x", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    X(OP_GATHER_ROWS, gather_rows, none, "x[T,h] rows:int[n] -> y[n,h]", \
      NULL, NULL, OP_IS_COPY | OP_FEW_ROWS, 0, PLAIN, PLAIN) \
    X(OP_VOCAB_MAX, vocab_max, vocab, "logits:real[T,V] -> max:real[T]-inf", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    X(OP_VOCAB_SUM, vocab_sum, vocab, "logits:real[T,V] max:real[T] targets:int[T] -> sums:real[T,2]", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    X(OP_TOKEN_LOSS, token_loss, none, "sums:real[T,2] targets:int[T] -> loss:real[T]", \
      NULL, NULL, 0, 2, PLAIN, PLAIN) \
    X(OP_SAMPLE, sample, sample, "logits:real[n,V] counter:int[1] bad:int[1]? -> ids:int[n]", \
      NULL, NULL, 0, 0, WORKSPACE, WORKSPACE) \
    X(OP_JOIN_COLUMNS, join_columns, none, "x:real[S,c] -> y:real[n,V]", \
      NULL, NULL, OP_IS_COPY, 0, PLAIN, PLAIN) \
    X(OP_NOT_FINITE, not_finite, none, "x:float[..] before:int[1]? -> bad:int[1]=before", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    /* training */ \
    X(OP_DROPOUT, dropout, dropout, "x[T,h] bias[h]? tokens:int[T,2] -> y[T,h]=x", \
      NULL, NULL, 0, 1, PLAIN, PLAIN) \
    X(OP_CAST, cast, none, "x:float[n] -> y:float[n]", \
      NULL, NULL, 0, 0.5, PLAIN, PLAIN) \
    X(OP_COLUMN_SUM, column_sum, none, "x[T,h] y_sum:float[h]? -> y:float[h]=y_sum", \
      NULL, NULL, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_NORM_BACKWARD, norm_backward, norm, \
      "x[T,h] weight[h] stats:real[T,2] dy[T,h] other[T,h]? dweight_sum:float[h]? dbias_sum:float[h]? -> " \
      "dx[T,h]=dy dweight:float[h] dbias:float[h]?", \
      NULL, norm_backward_flops, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_HEAD_NORM_BACKWARD, head_norm_backward, head_norm, \
      "qkv[T,w] q_weight[d] k_weight[d] dy[T,w] dq_sum:float[d]? dk_sum:float[d]? -> " \
      "dqkv[T,w]=dy dq_weight:float[d] dk_weight:float[d]", \
      head_norm_sizes, NULL, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_ATTENTION_BACKWARD, attention_backward, attention, \
      "q[T,q] kv[K,k] spans:int[S,6] tokens:int[T,2]? o[T,c] lse:real[T,n] do[T,c] -> dq[T,q] dkv[K,k]?", \
      attention_sizes, attention_backward_flops, 0, 8, WORKSPACE, WORKSPACE) \
    X(OP_ACTIVATION_BACKWARD, activation_backward, activation, "x[T,w] dy[T,n] counts:int[E]? -> dx[T,w]=x", \
      activation_sizes, NULL, OP_PARTIAL_ROWS, 2, PLAIN, PLAIN) \
    X(OP_ROUTE_BACKWARD, route_backward, route, \
      "logits:real[T,E] experts:int[T,k] dweights:real[T,k] counts:int[S,E]? scale:real[1]? -> dlogits[T,E]", \
      route_sizes, NULL, 0, 4, WORKSPACE, PLAIN) \
    X(OP_COUNT_EXPERTS, count_experts, route, "experts:int[T,k] counts_sum:int[S,E]? -> counts:int[S,E]=counts_sum", \
      NULL, NULL, 0, 0, PLAIN, PLAIN) \
    X(OP_UPDATE_EXPERT_BIAS, update_expert_bias, expert_bias, "counts:int[1,E] bias:real[E] -> new:real[E]=bias", \
      NULL, NULL, 0, 1, PLAIN, PLAIN) \
    X(OP_BALANCE_LOSS, balance_loss, route, \
      "logits:real[T,E] counts:int[S,E] loss_sum:real[1]? -> loss:real[1]=loss_sum", \
      NULL, NULL, 0, 4, WORKSPACE, WORKSPACE) \
    X(OP_Z_LOSS, z_loss, route, "logits:real[T,E] loss_sum:real[1]? -> loss:real[1]=loss_sum", \
      NULL, NULL, 0, 8, WORKSPACE, WORKSPACE) \
    X(OP_UNPERMUTE_BACKWARD, unpermute_backward, none, \
      "dx[T,h] rows:int[T,k] weights:real[T,k]? y[R,h]? -> dy[R,h] dweights:real[T,k]?", \
      NULL, NULL, OP_PARTIAL_ROWS, 2, PLAIN, PLAIN) \
    X(OP_GROUPED_DGRAD, grouped_dgrad, none, "dy[R,n] w[E,n,k] counts:int[E] -> dx[R,k]", \
      NULL, grouped_dgrad_flops, OP_PARTIAL_ROWS, 2, WORKSPACE, PLAIN) \
    X(OP_GROUPED_WGRAD, grouped_wgrad, none, \
      "dy[R,n] x[R,k] counts:int[E] dw_sum:float[E,n,k]? -> dw:float[E,n,k]=dw_sum", \
      NULL, grouped_wgrad_flops, 0, 2, WORKSPACE, PLAIN) \
    X(OP_EMBEDDING_BACKWARD, embedding_backward, embedding, \
      "dx[T,h] ids:int[T] order:int[T] dtable_sum:float[R,h]? -> dtable:float[R,h]=dtable_sum", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    X(OP_VOCAB_BACKWARD, vocab_backward, vocab, \
      "logits:real[T,V] max:real[T] sums:real[T,2] targets:int[T] dloss:real[T] scale:real[1] -> dlogits[T,V]=logits", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    X(OP_WEIGHTED_SUM, weighted_sum, none, "x:real[T] weights:real[T]? y_sum:real[1]? -> y:real[1]=y_sum", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    X(OP_SQUARE_SUM, square_sum, none, "x:float[n] sums_sum:real[3]? -> sums:real[3]=sums_sum", \
      NULL, NULL, 0, 4, PLAIN, WORKSPACE) \
    X(OP_STEP_SCALARS, step_scalars, none, "sums:real[3] control:real[6] -> scalars:real[8]", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    X(OP_ADAM, adam, optimizer, \
      "grad:float[n] scalars:real[8] weight[n] m:real[n] v:real[n] master:real[n]? -> " \
      "new_weight[n]=weight new_m:real[n]=m new_v:real[n]=v new_master:real[n]?=master", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    X(OP_SGD, sgd, optimizer, \
      "grad:float[n] scalars:real[8] weight[n] m:real[n]? master:real[n]? -> " \
      "new_weight[n]=weight new_m:real[n]?=m new_master:real[n]?=master", \
      NULL, NULL, 0, 4, PLAIN, PLAIN) \
    /* for checks */ \
    X(OP_DIGEST, digest, digest, "x[n] -> sums:int[4]", \
      NULL, NULL, 0, 0, PLAIN, WORKSPACE)
// clang-format on

/* Collectives of a group of G members. Rows (the first dimension) are gathered
 * and scattered. Only programs have them: train/engine/collectives.h.
 *
 * all_reduce: y = the sum or maximum of all members' x.
 * all_gather: y = all members' rows, in the order of members.
 * reduce_scatter: y = this member's rows of the sum.
 * all_to_all: x has the rows for each member (and each of its E experts), in
 *     the order of counts. y and came have the rows from each member, likewise.
 *     R and Q are upper bounds.
 * shift: y = x of the previous member; x goes to the next one.
 * replicate: y is x, which is equal on all members. Each continues separately
 *     from here, so each has a part of the gradient of y. Neither communicates
 *     nor copies.
 * slice: y = this member's rows of x, which is equal on all members. Does not
 *     communicate. */
// clang-format off
#define COLLECTIVES(X) \
    X(OP_ALL_REDUCE, all_reduce, none, "x:any[..] -> y:any[..]=x", \
      NULL, NULL, 0, 0, NONE, NONE) \
    X(OP_ALL_GATHER, all_gather, none, "x:any[R,..] -> y:any[S,..]", \
      gathered_sizes, NULL, OP_IS_COPY | OP_PARTIAL_OF_PARTIAL, 0, NONE, NONE) \
    X(OP_REDUCE_SCATTER, reduce_scatter, none, "x:any[S,..] -> y:any[R,..]", \
      scattered_sizes, NULL, 0, 0, NONE, NONE) \
    X(OP_ALL_TO_ALL, all_to_all, none, "x[R,h] counts:int[S] -> y[Q,h] came:int[U]", \
      NULL, NULL, OP_PARTIAL_ROWS | OP_WAITS_FOR_HOST, 0, NONE, NONE) \
    X(OP_SHIFT, shift, none, "x:any[..] -> y:any[..]", \
      NULL, NULL, 0, 0, NONE, NONE) \
    X(OP_REPLICATE, replicate, none, "x:any[..] -> y:any[..]", \
      NULL, NULL, OP_IS_LOCAL | OP_IS_ALIAS, 0, NONE, NONE) \
    X(OP_SLICE, slice, none, "x:any[S,..] -> y:any[R,..]", \
      scattered_sizes, NULL, OP_IS_LOCAL, 0, NONE, NONE)
// clang-format on

/* ---- parameters ---- */

enum activation {
    ACTIVATION_SILU,
    ACTIVATION_GELU,      /* erf */
    ACTIVATION_GELU_TANH, /* tanh approximation */
    ACTIVATION_RELU,
    ACTIVATION_SQUARED_RELU,
    ACTIVATION_QUICK_GELU, /* x sigmoid(1.702 x) */
    NUM_ACTIVATIONS
};

struct head_shape {
    uint32_t groups, queries, head_dim; /* queries: of each group */
};

/* op_dropout.h computes which elements dropout keeps. */
struct dropout {
    double probability; /* that an element becomes 0; 0: no dropout */
    uint64_t seed;
    uint32_t stream; /* one for each place of a model */
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
        bool layer_norm;       /* false: RMS norm */
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
        /* For kernels that cannot read spans. If not 0, rows of q and kv
         * are this many sequences of one length, concatenated. Each
         * sequence has one span, of all its queries and keys, both from the
         * same position on. */
        uint32_t uniform_sequences;
        double pairs; /* estimated pairs of query and key that attend, for the cost only */
        struct dropout dropout;
        uint64_t first_head; /* index of this rank's head 0 among all ranks' heads */
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
        bool of_share; /* for balance_loss: divide counts by their sum */
        double scaling;
        double balance; /* factor of balance_loss, including its coefficient */
        double z;       /* factor of z_loss, including its coefficient; 0: no z_loss */
        uint64_t first_token, sequence_length; /* for count_experts and balance_loss */
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
        uint64_t first_column; /* index of this rank's column 0 among all ranks' columns */
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
