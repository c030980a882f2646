/* model.h - a model of a checkpoint or of a config alone that can run: this rank's part of it in
 * memory, and its programs.
 *
 *   model_open      config and layout; nothing is read yet
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
    struct layout_options layout; /* default of etp: tp; of dp: the smallest possible */
    bool sequence_parallel;
    enum cp_kind cp_kind;
    enum elem_type elem;
    enum collectives_way collectives;
    /* For a model without a checkpoint, whose programs can be made and measured, but not run. NULL:
     * the checkpoint's config. */
    const struct model_config *config;
};

struct model {
    struct arena arena;
    const struct checkpoint *checkpoint; /* the caller's; NULL: there is no checkpoint */
    struct model_config config;          /* its vocabulary is the rows that the checkpoint has */
    const struct param_table *params;    /* of config */
    struct model_options options;
    struct layout layout;
    struct groups groups;
    struct collectives collectives;
    struct parameters parameters;
    const struct device *device;
    const struct op_kernel *kernels;
    void *memory;     /* of the device: parameters and states; NULL until model_load */
    bool is_imagined; /* its passes are measured and never run */
};

/* The number of learned positions; 0: the model has another kind of positions. */
uint64_t model_learned_positions(const struct model_config *c);

/* The sizes of the options, with defaults for those that are not given. */
struct group_sizes model_group_sizes(const struct model_options *o);

/* c: NULL if o has a config. */
MUST_CHECK enum status model_open(struct model *m, const struct checkpoint *c,
                                  const struct model_options *o, struct comm *comm,
                                  struct error *err);
/* The same as any rank of a job that does not exist, for passes that are measured and never run. */
MUST_CHECK enum status model_imagine(struct model *m, const struct checkpoint *c,
                                     const struct model_options *o, unsigned rank,
                                     struct error *err);
void model_close(struct model *m);

MUST_CHECK enum status model_load(struct model *m, const struct load_options *o, struct error *err);

/* The outputs of a pass, and how it runs. */
struct pass_options {
    bool logits, loss, hidden; /* loss: the sum over all tokens, in f64 */
    /* Of the logits as they are given: F32, BF16 or F16; of a program in f64 F64. 0: of the
     * program's sums. */
    enum dtype logits_dtype;
    int trace_layer;     /* the results of its ops are outputs, too; -1: none */
    uint64_t head_rows;  /* tokens whose logits are made at once for losses; 0: 256 MiB of them */
    uint64_t cache_rows; /* positions that a sequence's cache has room for; 0: none */
    bool begins;         /* the cache is empty before: all sequences begin here */
    bool last_only;      /* logits of each sequence's last token only */
    bool graphs;         /* it runs many times: run.h */
    const struct sampling *sampling; /* of each sequence's next token; NULL: none is chosen */
};

struct pass {
    struct model *model;
    struct arena arena;
    struct pass_options options;
    struct batch batch; /* its shape; ids and targets are those of the last pass_set */
    struct built *chunks;
    size_t num_chunks;
    struct run *runs; /* [num_chunks] */
    bool has_tables;  /* constant inputs are filled */
};

/* Makes programs for batches of b's shape. ids are not read; starts are, and hold for all batches.
 */
MUST_CHECK enum status pass_make(struct pass *p, struct model *m, const struct batch *b,
                                 const struct pass_options *o, struct error *err);
void pass_release(struct pass *p);
void pass_release_graphs(struct pass *p);

/* Bytes that pass_allocate() allocates. */
uint64_t pass_bytes(const struct pass *p);

/* Allocates memory for the values of all programs; then the pass can run. */
MUST_CHECK enum status pass_allocate(struct pass *p, struct error *err);

/* Sets the tokens of the next run. */
MUST_CHECK enum status pass_set(struct pass *p, const struct batch *b, struct error *err);

/* In front of the chunks of a run: all ranks call it. */
MUST_CHECK enum status pass_prepare(struct pass *p, struct error *err);
/* Chunk i alone, with what it has from the stage before and gives to the one behind. */
MUST_CHECK enum status pass_run_chunk(struct pass *p, size_t i, struct error *err);

/* ERR_NUMERIC, on all ranks, if an output has NaN or infinities: the message names the op that made
 * them first, its layer and its rank. */
MUST_CHECK enum status pass_run(struct pass *p, struct error *err);
/* Runs it again as it is set, and checks every op: never OK. */
MUST_CHECK enum status pass_run_checked(struct pass *p, struct error *err);

/* ---- passes with sampling ---- */

/* The tokens that the last run chose, of all sequences, on all ranks; -1 where logits are not
 * finite. */
MUST_CHECK enum status pass_tokens(const struct pass *p, int32_t *tokens, struct error *err);

/* Whether runs can be started before the tokens of the one before are known to the host: the next
 * ids are those tokens, on the device. */
bool pass_runs_ahead(const struct pass *p);
/* Starts a run without ids in the batch of pass_set: they are what the last run of `before` chose.
 * NULL: there are ids. `number` is 0 or 1, of one run at a time, until pass_wait_tokens(). */
MUST_CHECK enum status pass_start(struct pass *p, const struct pass *before, unsigned number,
                                  struct error *err);
MUST_CHECK enum status pass_wait_tokens(const struct pass *p, unsigned number, int32_t *tokens,
                                        struct error *err);

/* Whether all outputs of the last run are finite, on every rank; all ranks call it. */
MUST_CHECK enum status pass_is_finite(const struct pass *p, bool *finite, struct error *err);

/* An output, put together from all ranks; or a piece of it, of whole rows. */
struct collected {
    const char *name;
    uint64_t rows, columns;       /* of the whole; rows: sequence by sequence; without padding */
    uint64_t first_row, num_rows; /* of data; pieces come one behind the other */
    enum dtype dtype;
    const void *data; /* [num_rows, columns]; until the visitor returns */
};
typedef enum status pass_visit(void *context, const struct collected *c, struct error *err);

enum { PASS_PIECE_BYTES = 64 << 20 };

/* How a visitor takes outputs. All 0: whole, from memory that is given to it. */
struct pass_taking {
    /* The most bytes of a piece, but for a single row. Outputs that one rank has, and that must be
     * copied, are given in pieces of whole rows. 0: outputs are whole. */
    uint64_t piece_bytes;
    bool keeps;         /* the visitor keeps copies of all outputs */
    bool puts_together; /* it copies the pieces of an output, and keeps them until the last */
    /* Memory for the next piece, of the visitor, with its context. NULL: pass_collect() has its
     * own. */
    enum status (*room)(void *context, uint64_t bytes, void **memory, struct error *err);
};

/* Of data. */
static inline uint64_t collected_bytes(const struct collected *c)
{
    return c->num_rows * c->columns * dtype_bytes(c->dtype);
}

/* Calls visit on rank 0, for one output after the other, in the order of the model. */
MUST_CHECK enum status pass_collect(struct pass *p, const struct pass_taking *how,
                                    pass_visit *visit, void *context, struct error *err);

/* Memory of the host that pass_collect() and the visitor allocate on this rank, without outputs of
 * trace_layer, which are about as large as activations. */
uint64_t pass_collect_bytes(const struct pass *p, const struct pass_taking *how);

/* The parts of a pass's memory, as text. */
void pass_print_memory(const struct pass *p, struct strbuf *out);

#endif
