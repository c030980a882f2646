/* model.h - a model that runs, of a checkpoint or of a config alone: this rank's part of it, in
 * memory, and the programs over it.
 *
 *   model_open      config and layout; nothing is read yet
 *   pass_make       a program for a batch of some shape; it may be several
 *   model_load      the parameters that the passes want
 *   pass_run        computes
 *   pass_collect    brings what came out to rank 0
 *
 * All ranks make the same calls. */
#ifndef FERRY_TRAIN_MODEL_MODEL_H
#define FERRY_TRAIN_MODEL_MODEL_H

#include "common/strbuf.h"
#include "train/engine/run.h"
#include "train/model/builder.h"

struct model_options {
    const struct device *device;  /* NULL: cpu_device */
    struct layout_options layout; /* etp not given is tp; dp: as few as there can be */
    bool sequence_parallel;
    enum cp_kind cp_kind;
    enum elem_type elem;
    enum collectives_way collectives;
    /* Of a model without a checkpoint: its programs can be made and measured, and nothing fills its
     * parameters. NULL: the checkpoint's. */
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

/* Positions that a model has learned, and there are no others; 0: it has another kind. */
uint64_t model_learned_positions(const struct model_config *c);

/* The sizes that the options ask for, with what they leave open. */
struct group_sizes model_group_sizes(const struct model_options *o);

/* c: NULL where there is options.config. */
MUST_CHECK enum status model_open(struct model *m, const struct checkpoint *c,
                                  const struct model_options *o, struct comm *comm,
                                  struct error *err);
/* The same of a rank of a job that there need not be: for passes that are made to be measured. */
MUST_CHECK enum status model_imagine(struct model *m, const struct checkpoint *c,
                                     const struct model_options *o, unsigned rank,
                                     struct error *err);
void model_close(struct model *m);

MUST_CHECK enum status model_load(struct model *m, const struct load_options *o, struct error *err);

/* What is computed for a batch. */
struct pass_options {
    bool logits, loss, hidden;
    int trace_layer;     /* whose ops' results come out, too; -1: none */
    uint64_t cache_rows; /* positions that a sequence's cache has room for; 0: none */
    bool last_only;      /* logits of each sequence's last token only */
    bool graphs;         /* it runs many times: run.h */
};

struct pass {
    struct model *model;
    struct arena arena;
    struct pass_options options;
    struct batch batch; /* its shape; ids and targets are those of the last pass_set */
    struct built *chunks;
    size_t num_chunks;
    struct run *runs; /* [num_chunks] */
    bool has_tables;  /* inputs that stay the same are filled */
};

/* Programs for batches of b's shape (its ids are not looked at; starts are, and hold for all). */
MUST_CHECK enum status pass_make(struct pass *p, struct model *m, const struct batch *b,
                                 const struct pass_options *o, struct error *err);
void pass_release(struct pass *p);
void pass_release_graphs(struct pass *p);

/* What pass_allocate allocates. */
uint64_t pass_bytes(const struct pass *p);

/* Memory for the values of all programs; after it the pass can run. */
MUST_CHECK enum status pass_allocate(struct pass *p, struct error *err);

/* The tokens of the next run. */
MUST_CHECK enum status pass_set(struct pass *p, const struct batch *b, struct error *err);

/* ERR_NUMERIC, on all ranks, where an output has NaN or infinities: the message names the op that
 * made them first, its layer and its rank. */
MUST_CHECK enum status pass_run(struct pass *p, struct error *err);

/* Whether all outputs of the last run are finite, on every rank; all ranks call it. */
MUST_CHECK enum status pass_is_finite(const struct pass *p, bool *finite, struct error *err);

/* An output of all ranks, put together. */
struct collected {
    const char *name;
    uint64_t rows, columns; /* rows: sequence by sequence; without padding */
    bool wide;              /* data is double, else float */
    const void *data;       /* [rows, columns]; until the visitor returns */
};
typedef enum status pass_visit(void *context, const struct collected *c, struct error *err);

/* Calls visit on rank 0, for one output after the other, in the order of the model. */
MUST_CHECK enum status pass_collect(struct pass *p, pass_visit *visit, void *context,
                                    struct error *err);

/* Memory of the host that this rank takes for it, beside where the outputs lie; on rank 0 with what
 * the visitor takes where it keeps a copy of each output. Without those of trace_layer, which are
 * about as large as activations. */
uint64_t pass_collect_bytes(const struct pass *p, bool visitor_keeps);

/* What the memory of a pass holds, for people. */
void pass_print_memory(const struct pass *p, struct strbuf *out);

#endif
