/* builder.h - a transformer as a program: the only code of the engine that knows one.
 *
 * It is driven by features of the model config (norm, biases, q/k norm, rotary positions, window,
 * gate, experts ..), never by a model's name. A new feature of an architecture is a new call here,
 * of an op of kernels/op_list.h. Parallelism is calls, too: this rank's chunk of the model, with
 * its part of every tensor, and the collectives that make one model of all.
 *
 * The residual stream is [rows, hidden_size], with sequence parallelism [rows / TP, hidden_size].
 * What a block adds to it is added by the next norm, in one op. Experts always work on rows / TP:
 * without sequence parallelism each rank takes its slice of them, and all gather what comes out. */
#ifndef FERRY_TRAIN_MODEL_BUILDER_H
#define FERRY_TRAIN_MODEL_BUILDER_H

#include "ckpt/layout.h"
#include "ckpt/param.h"
#include "train/engine/program.h"
#include "train/model/parameters.h"
#include "train/model/tokens.h"

enum cp_kind { CP_ALL_GATHER, CP_RING };

/* What a program is for. */
struct forward_shape {
    struct token_shape tokens;
    uint64_t num_positions; /* rows of the table of rotary positions */
    bool sequence_parallel;
    enum cp_kind cp;
    uint64_t cache_rows; /* of each layer's cache of keys and values; 0: none */
    uint64_t last_rows;  /* logits are wanted of so many rows only (input "last_rows"); 0: of all */
    bool logits, loss;   /* what comes out at the end */
    bool hidden;         /* and what enters each layer, and the final norm */
    int trace_layer; /* and what each op of this layer makes, where it means something; -1: none */
};

/* How the rows and columns of an output lie over ranks. */
struct output {
    value_id value;
    const char *name; /* "hidden.3", "logits", "layers.3.attention" */
    bool slice;       /* of rows: this rank has its TP part of them */
    bool last;        /* rows are those of last_rows */
    bool shard;       /* of columns: this rank has its TP part of `columns` */
    /* The last columns of a shard that so many TP ranks in turn have a copy of; 0: none are. */
    uint64_t copied;
    unsigned sharers;
    uint64_t columns; /* of all ranks together, padding included, copies once */
};

/* The program of one stage, and what it gives. */
struct built {
    struct program program;
    struct output *outputs;
    size_t num_outputs, outputs_capacity;
};

struct build {
    const struct model_config *config;
    const struct param_table *params; /* of config */
    const struct layout *layout;
    const struct groups *groups;
    struct parameters *parameters; /* those that are not there are added */
    struct forward_shape shape;
    enum elem_type elem;
};

/* Stages [first, first + count) of the layout, one behind the other, receiving from the stage
 * before and sending to the one behind. ERR_UNSUPPORTED where a size does not divide what it must,
 * or the model has what no op does. built_release afterwards, after a failure too. */
MUST_CHECK enum status builder_make(struct built *out, const struct build *b, uint64_t first,
                                    uint64_t count, struct error *err);
void built_release(struct built *b);

/* Rows of the vocabulary that each TP rank has: the last ones are padding. */
uint64_t builder_vocab_rows(const struct build *b);

#endif
