/* model.h - a runnable model of a checkpoint or of a config alone: this rank's
 * part in memory, and its programs.
 *
 *   model_open      config and layout; reads no tensors
 *   pass_make       the programs for batches of one shape
 *   model_load      loads the parameters of the passes
 *   pass_run        computes
 *   pass_collect    brings the outputs to rank 0
 *
 * All ranks make the same calls. */
#ifndef FERRY_TRAIN_MODEL_MODEL_H
#define FERRY_TRAIN_MODEL_MODEL_H

#include "common/strbuf.h"
#include "train/engine/run.h"
#include "train/model/builder.h"

struct model_options {
    const struct device *device;  /* NULL: cpu_device */
    struct layout_options layout; /* default etp: tp; default dp: the smallest possible */
    bool sequence_parallel;
    enum cp_kind cp_kind;
    enum elem_type elem;
    bool keeps_codes; /* weights of products stay codes, where the checkpoint has these */
    enum collectives_way collectives;
    /* For a model without a checkpoint, to make and measure programs only.
     * NULL: the checkpoint's config. */
    const struct model_config *config;
};

struct model {
    struct arena arena;
    const struct checkpoint *checkpoint; /* borrowed; NULL: none */
    struct model_config config;          /* vocab_size: the checkpoint's rows */
    const struct param_table *params;    /* of config */
    struct model_options options;
    struct layout layout;
    struct groups groups;
    struct collectives collectives;
    struct parameters parameters;
    const struct device *device;
    const struct op_kernel *kernels;
    void *memory;      /* on the device: parameters and states; NULL before model_load */
    bool is_simulated; /* its passes are measured, never run */
};

/* Number of learned positions; 0: another kind of positions. */
uint64_t model_learned_positions(const struct model_config *c);

/* Group sizes of the options, with defaults. */
struct group_sizes model_group_sizes(const struct model_options *o);

/* c: NULL if o has a config. */
MUST_CHECK enum status model_open(struct model *m, const struct checkpoint *c,
                                  const struct model_options *o, struct comm *comm,
                                  struct error *err);
/* The same as any rank of a nonexistent job, for passes to be measured, never
 * run. */
MUST_CHECK enum status model_simulate(struct model *m, const struct checkpoint *c,
                                      const struct model_options *o, unsigned rank,
                                      struct error *err);
void model_close(struct model *m);

MUST_CHECK enum status model_load(struct model *m, const struct load_options *o, struct error *err);

/* Outputs and kind of a pass. */
struct pass_options {
    bool logits, loss, hidden; /* loss: the sum over all tokens, in f64 */
    /* Dtype of given logits: F32, BF16 or F16; F64 for a program in f64. 0:
     * that of the program's sums. */
    enum dtype logits_dtype;
    int trace_layer;     /* also outputs the results of its ops; -1: none */
    uint64_t head_rows;  /* tokens whose logits for losses are computed at once; 0: 256 MiB */
    uint64_t cache_rows; /* positions of a sequence's cache; 0: none */
    bool begins;         /* the cache is empty: all sequences begin here */
    bool last_only;      /* logits of last tokens only */
    bool graphs;         /* runs many times: run.h */
    const struct sampling *sampling; /* of next tokens; NULL: none */
};

struct pass {
    struct model *model;
    struct arena arena;
    struct pass_options options;
    struct batch batch; /* its shape; ids and targets of the last pass_set */
    struct built *chunks;
    size_t num_chunks;
    struct run *runs; /* [num_chunks] */
    bool has_tables;  /* constant inputs are filled */
};

/* Makes programs for batches of b's shape. ids are not read; starts hold for
 * all batches. */
MUST_CHECK enum status pass_make(struct pass *p, struct model *m, const struct batch *b,
                                 const struct pass_options *o, struct error *err);
void pass_release(struct pass *p);
void pass_release_graphs(struct pass *p);

/* Bytes that pass_allocate() allocates. */
uint64_t pass_bytes(const struct pass *p);

/* Allocates memory for the values of all programs, to run the pass. */
MUST_CHECK enum status pass_allocate(struct pass *p, struct error *err);

/* Sets the tokens of the next run. */
MUST_CHECK enum status pass_set(struct pass *p, const struct batch *b, struct error *err);

/* Collective, before the chunks of a run. */
MUST_CHECK enum status pass_prepare(struct pass *p, struct error *err);
/* Runs chunk i, with its messages from and to other stages. */
MUST_CHECK enum status pass_run_chunk(struct pass *p, size_t i, struct error *err);

/* ERR_NUMERIC, on all ranks, if an output has NaN or infinity: the message
 * names the first op that made it, its layer and its rank. */
MUST_CHECK enum status pass_run(struct pass *p, struct error *err);
/* Runs it again with checks of every op: never OK. */
MUST_CHECK enum status pass_run_checked(struct pass *p, struct error *err);

/* ---- passes with sampling ---- */

/* Sets the tokens of all sequences chosen by the last run, on all ranks; -1 if
 * logits are not finite. */
MUST_CHECK enum status pass_tokens(const struct pass *p, int32_t *tokens, struct error *err);

/* Whether a run can start before the host knows the last run's tokens: the next
 * ids are those tokens, on the device. */
bool pass_runs_ahead(const struct pass *p);
/* Starts a run whose ids are the tokens chosen by the last run of `before`;
 * NULL: those of pass_set. number: 0 or 1, of one run at a time, until
 * pass_wait_tokens(). */
MUST_CHECK enum status pass_start(struct pass *p, const struct pass *before, unsigned number,
                                  struct error *err);
MUST_CHECK enum status pass_wait_tokens(const struct pass *p, unsigned number, int32_t *tokens,
                                        struct error *err);

/* Collective. Whether all outputs of the last run are finite, on every rank. */
MUST_CHECK enum status pass_is_finite(const struct pass *p, bool *finite, struct error *err);

/* An output gathered from all ranks, or a piece of whole rows. */
struct collected {
    const char *name;
    uint64_t rows, columns;       /* of the whole; rows: by sequence; without padding */
    uint64_t first_row, num_rows; /* of data; pieces are consecutive */
    enum dtype dtype;
    const void *data; /* [num_rows, columns]; valid until the visitor returns */
};
typedef enum status pass_visit(void *context, const struct collected *c, struct error *err);

enum { PASS_PIECE_BYTES = 64 << 20 };

/* How a visitor takes outputs. All 0: whole, in memory of pass_collect(). */
struct pass_taking {
    /* Most bytes of a piece, except for a single row. Outputs of a single rank
     * that must be copied come in pieces of whole rows. 0: whole outputs. */
    uint64_t piece_bytes;
    bool keeps;         /* the visitor keeps copies of all outputs */
    bool puts_together; /* the visitor assembles the pieces of an output */
    /* Memory for the next piece, by the visitor. NULL: pass_collect()'s own. */
    enum status (*room)(void *context, uint64_t bytes, void **memory, struct error *err);
};

/* Bytes of data. */
static inline uint64_t collected_bytes(const struct collected *c)
{
    return c->num_rows * c->columns * dtype_bytes(c->dtype);
}

/* Calls visit on rank 0 for each output, in the order of the model. */
MUST_CHECK enum status pass_collect(struct pass *p, const struct pass_taking *how,
                                    pass_visit *visit, void *context, struct error *err);

/* Host memory that pass_collect() and the visitor allocate on this rank,
 * without outputs of trace_layer, which are about as large as activations. */
uint64_t pass_collect_bytes(const struct pass *p, const struct pass_taking *how);

/* Appends the parts of a pass's memory as text. */
void pass_print_memory(const struct pass *p, struct strbuf *out);

#endif
