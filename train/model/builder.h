/* builder.h - a transformer as a program: the only code of the engine that knows one.
 *
 * It is driven by features of the model config (norm, biases, q/k norm, rotary positions, window,
 * gate, experts ..), never by a model's name. A new feature of an architecture is a new call here,
 * of an op of kernels/op_list.h. Parallelism is calls, too: this rank's chunk of the model, with
 * its part of every tensor, and the collectives that make one model of all.
 *
 * The residual stream is [rows, hidden_size], with sequence parallelism [rows / TP, hidden_size].
 * The output of a block is added to it by the next norm, in one op. Experts always work on rows /
 * TP: without sequence parallelism each rank takes its slice of the rows, and the results are
 * gathered. */
#ifndef FERRY_TRAIN_MODEL_BUILDER_H
#define FERRY_TRAIN_MODEL_BUILDER_H

#include "ckpt/layout.h"
#include "ckpt/param.h"
#include "train/engine/program.h"
#include "train/model/parameters.h"
#include "train/model/tokens.h"

enum cp_kind { CP_ALL_GATHER, CP_RING };

/* How a token is chosen: kernels/op_list.h, OP_SAMPLE. */
struct sampling {
    double temperature, top_p;
    uint64_t top_k, seed;
};

/* The shapes and outputs of a program. */
struct forward_shape {
    struct token_shape tokens;
    uint64_t num_positions; /* rows of the table of rotary positions */
    bool sequence_parallel;
    enum cp_kind cp;
    uint64_t cache_rows; /* of each layer's cache of keys and values; 0: none */
    bool begins;         /* the cache is empty before: all keys are of these tokens */
    uint64_t last_rows;  /* logits are wanted of so many rows only (input "last_rows"); 0: of all */
    bool logits, loss;   /* outputs at the end; loss: sums over this rank's tokens */
    bool logits_are_elem; /* rounded to ELEM; else REAL. Only without loss and sampling */
    uint64_t head_rows;   /* logits for losses are made of so many tokens at once; 0: of all */
    const struct sampling *sampling; /* tokens are chosen by the logits; NULL: none are */
    bool hidden;                     /* outputs: the input of each layer, and the final norm */
    int trace_layer;                 /* outputs: the results of the ops of this layer; -1: none */
    /* NULL: no training. Else calls also give what backward reads (statistics, lse), and the loss
     * of all tokens is summed up. */
    const struct training_shape *train;
};

/* Of the program of a training step. */
struct training_shape {
    bool accumulates; /* sums (of losses, and gradients) are added to those of micro-batches before
                       */
    double hidden_dropout, attention_dropout; /* probabilities; 0: none */
    uint64_t dropout_seed;
    /* Of the losses of routers, by which gradients see them; 0: none (Megatron-Core's
     * moe_aux_loss_coeff and moe_z_loss_coeff). */
    double balance_coefficient, z_coefficient;
    /* Experts are balanced within each sequence of so many tokens (seq_aux_loss); 0: within the
     * micro-batch (aux_loss). */
    uint64_t balance_length;
    /* Experts are balanced within the micro-batches of the step so far, of all data parallel ranks
     * (global_aux_loss); balance_length is 0. */
    bool balance_is_global;
    /* Megatron-Core's moe_router_bias_update_rate, where routers have a bias; 0: it stays. */
    double bias_update_rate;
};

/* The state [1, num_experts] in which a step counts the tokens of this rank that each expert has:
 * behind the name of the router's bias. */
#define EXPERT_COUNTS ".counts"

/* An output: how ranks share its rows and columns. */
struct output {
    value_id value;
    const char *name; /* "hidden.3", "logits", "layers.3.attention" */
    bool slice;       /* of rows: this rank has its TP part of them */
    bool last;        /* rows are those of last_rows */
    bool shard;       /* of columns: this rank has its TP part of `columns` */
    bool sum;         /* of numbers that are added up, of all ranks with other tokens: in f64 */
    /* The last `copied` columns of a shard are copies: `sharers` TP ranks in turn have the same. 0:
     * no column is. */
    uint64_t copied;
    unsigned sharers;
    uint64_t columns; /* of all ranks together, with padding; copies count once */
};

/* What backward and the optimizer need to know of a program; NO_VALUE: there is none. */
struct training_values {
    value_id loss_sum, balance_sum, z_sum; /* states [1]: sums over tokens, and over layers */
    value_id loss_scale, router_scale;     /* inputs [1]: of the gradients of these losses */
    value_id ids, id_order, positions, position_order; /* inputs [T] */
    /* Calls [head, num_calls) make logits and losses: head_chunks times the same calls, of some
     * rows each. */
    size_t head;
    unsigned head_chunks;
};

/* What a stage has from the ones beside it and gives to them: the residual stream, and the
 * gradients of it. NO_VALUE: it is the first stage, or the last. */
struct stage_ends {
    value_id in, out; /* an input; an output (an input too where it has no layer) */
    value_id in_gradient, out_gradient; /* an output, an input; of training programs */
};

/* The program of one stage, and its outputs. */
struct built {
    struct program program;
    struct stage_ends ends;
    struct output *outputs;
    size_t num_outputs, outputs_capacity;
    /* INT [1], not of training: not 0 where an output is not finite. NO_VALUE: there is no output.
     */
    value_id not_finite;
    /* INT [last_rows]: the tokens that were chosen, -1 where logits are not finite. NO_VALUE: none
     * are. */
    value_id tokens;
    struct training_values train; /* where the shape has it */
};

struct build {
    const struct model_config *config;
    const struct param_table *params; /* of config */
    const struct layout *layout;
    const struct groups *groups;
    struct parameters *parameters; /* missing ones are added */
    struct forward_shape shape;
    enum elem_type elem;
    /* Rows of the vocabulary that the softmax counts, padding of a checkpoint included; 0: those of
     * the config. */
    uint64_t vocab_rows;
};

/* Makes the program of stages [first, first + count) of the layout; what it has from the stage
 * before, and gives to the one behind, are its ends. ERR_UNSUPPORTED if a size does not divide
 * another as it must, or no op computes a feature of the model. Call built_release() afterwards,
 * also after a failure. */
MUST_CHECK enum status builder_make(struct built *out, const struct build *b, uint64_t first,
                                    uint64_t count, struct error *err);
void built_release(struct built *b);

/* Rows of the vocabulary on each TP rank; the last ones may be padding. */
uint64_t builder_vocab_rows(const struct build *b);

#endif
