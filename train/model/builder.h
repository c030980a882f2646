/* builder.h - a transformer as a program: the only code of the engine that
 * knows one.
 *
 * Features of the model config drive it (norm, biases, q/k norm, rotary
 * positions, window, gate, experts ..), never a model's name. A new feature of
 * an architecture is a new call here, of an op of kernels/op_list.h.
 * Parallelism is calls, too: this rank's chunk of the model, its shard of every
 * tensor, and the collectives that make one model of all.
 *
 * The residual stream is [rows, hidden_size], with sequence parallelism [rows /
 * TP, hidden_size]. The next norm adds a block's output to it, in one op.
 * Experts always work on rows / TP: without sequence parallelism each rank
 * takes its slice of the rows, and the results are gathered. */
#ifndef FERRY_TRAIN_MODEL_BUILDER_H
#define FERRY_TRAIN_MODEL_BUILDER_H

#include "ckpt/layout.h"
#include "ckpt/param.h"
#include "train/engine/program.h"
#include "train/model/parameters.h"
#include "train/model/tokens.h"

enum cp_kind { CP_ALL_GATHER, CP_RING };

/* Parameters of OP_SAMPLE (kernels/op_list.h). */
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
    uint64_t cache_rows;  /* of each layer's cache of keys and values; 0: no cache */
    bool begins;          /* the cache is empty: all keys are of these tokens */
    uint64_t last_rows;   /* number of rows with logits (input "last_rows"); 0: all */
    bool logits, loss;    /* outputs at the end; loss: sums over this rank's tokens */
    bool logits_are_elem; /* rounded to ELEM; else REAL. Without loss and sampling */
    uint64_t head_rows;   /* tokens whose logits for losses are computed at once; 0: all */
    const struct sampling *sampling; /* chooses tokens by the logits; NULL: none */
    bool hidden;                     /* outputs: the input of each layer, and the final norm */
    int trace_layer;                 /* outputs: results of the ops of this layer; -1: none */
    /* NULL: no training. Else calls also write statistics and lse for backward,
     * and sum the loss of all tokens. */
    const struct training_shape *train;
};

/* Options of the program of a training step. */
struct training_shape {
    bool accumulates; /* adds losses and gradients to those of earlier micro-batches */
    double hidden_dropout, attention_dropout; /* probabilities; 0: none */
    uint64_t dropout_seed;
    /* Coefficients of router losses in gradients; 0: none (Megatron-Core's
     * moe_aux_loss_coeff and moe_z_loss_coeff). */
    double balance_coefficient, z_coefficient;
    /* Sequence length within which experts are balanced (seq_aux_loss); 0: the
     * micro-batch (aux_loss). */
    uint64_t balance_length;
    /* Balances experts over the step's micro-batches so far, of all data
     * parallel ranks (global_aux_loss); balance_length is 0. */
    bool balance_is_global;
    /* Megatron-Core's moe_router_bias_update_rate, if routers have a bias; 0:
     * fixed. */
    double bias_update_rate;
};

/* Name, behind that of the router's bias, of the state [1, num_experts] in
 * which a step counts this rank's tokens for each expert. */
#define EXPERT_COUNTS ".counts"

/* An output: how ranks share its rows and columns. */
struct output {
    value_id value;
    const char *name; /* "hidden.3", "logits", "layers.3.attention" */
    bool slice;       /* this rank has its TP slice of the rows */
    bool last;        /* rows are those of last_rows */
    bool shard;       /* this rank has its TP shard of `columns` */
    bool sum;         /* sum in f64 over all ranks with other tokens */
    /* The last `copied` columns of a shard are copies, the same on `sharers`
     * successive TP ranks; 0: none. */
    uint64_t copied;
    unsigned sharers;
    uint64_t columns; /* of all ranks, with padding; copies count once */
};

/* Values for backward and the optimizer; NO_VALUE: absent. */
struct training_values {
    value_id loss_sum, balance_sum, z_sum; /* states [1]: sums over tokens and layers */
    value_id loss_scale, router_scale;     /* inputs [1]: scales of the gradients of these losses */
    value_id ids, id_order, positions, position_order; /* inputs [T] */
    /* Calls [head, num_calls) make logits and losses: the same calls for each
     * of head_chunks chunks of rows. */
    size_t head;
    unsigned head_chunks;
};

/* The residual stream and its gradients at the ends of a stage. NO_VALUE: first
 * or last stage. */
struct stage_ends {
    value_id in, out;                   /* input; output (of a stage without layers: its input) */
    value_id in_gradient, out_gradient; /* output, input; of training programs */
};

/* The program of one stage, and its outputs. */
struct built {
    struct program program;
    struct stage_ends ends;
    struct output *outputs;
    size_t num_outputs, outputs_capacity;
    /* INT [1], without training: nonzero if an output is not finite. NO_VALUE:
     * no output. */
    value_id not_finite;
    /* INT [last_rows]: chosen tokens, -1 if logits are not finite. NO_VALUE:
     * none. */
    value_id tokens;
    struct training_values train; /* where the shape has it */
};

struct build {
    const struct model_config *config;
    const struct param_table *params; /* of config */
    const struct layout *layout;
    const struct groups *groups;
    struct parameters *parameters;  /* missing ones are added */
    const struct checkpoint *coded; /* weights of products stay coded as in it; NULL: none do */
    struct forward_shape shape;
    enum elem_type elem;
    /* Vocabulary rows of the softmax, a checkpoint's padding included; 0: the
     * config's. */
    uint64_t vocab_rows;
};

/* Makes the program of stages [first, first + count) of the layout; `ends`
 * connect it to the stages before and behind. ERR_UNSUPPORTED if a size is not
 * divisible as it must be, or no op computes a feature of the model. Call
 * built_release() afterwards, after a failure too. */
MUST_CHECK enum status builder_make(struct built *out, const struct build *b, uint64_t first,
                                    uint64_t count, struct error *err);
void built_release(struct built *b);
/* The checks of builder_make() alone, before there are ranks. train: for
 * training. */
MUST_CHECK enum status builder_check_model(const struct model_config *c,
                                           const struct group_sizes *sizes, bool train,
                                           struct error *err);

/* Vocabulary rows on each TP rank; the last ones may be padding. */
uint64_t builder_vocab_rows(const struct build *b);

#endif
