/* inputs.h - the inputs of programs: a row each, with name, type and shape.
 * They are numbers of a batch, set before each run (ids, positions, spans ..),
 * and constant tables. */
#ifndef FERRY_TRAIN_MODEL_INPUTS_H
#define FERRY_TRAIN_MODEL_INPUTS_H

#include "train/model/builder.h"

// clang-format off
#define INPUTS(X) /* id              name             type          sizes of its dimensions */ \
    X(INPUT_IDS,             "ids",             OPERAND_INT,  SIZE_ROWS, SIZE_NONE)           \
    X(INPUT_TARGETS,         "targets",         OPERAND_INT,  SIZE_LOGIT_ROWS, SIZE_NONE)     \
    X(INPUT_POSITIONS,       "positions",       OPERAND_INT,  SIZE_ROWS, SIZE_NONE)           \
    /* of this rank's part of the rows */                                                      \
    X(INPUT_SLICE_POSITIONS, "positions.slice", OPERAND_INT,  SIZE_SLICE, SIZE_NONE)          \
    X(INPUT_ROPE,            "rope",            OPERAND_REAL, SIZE_POSITIONS, SIZE_ROPE)      \
    /* which keys each query attends to: of one step of a ring; of all CP ranks */        \
    X(INPUT_SPANS,           "spans",           OPERAND_INT,  SIZE_SPANS, SIZE_SPAN)          \
    X(INPUT_ALL_SPANS,       "all_spans",       OPERAND_INT,  SIZE_SPANS, SIZE_SPAN)          \
    X(INPUT_ROW_NUMBERS,     "row_numbers",     OPERAND_INT,  SIZE_ROWS, SIZE_NONE)           \
    /* where each token's key and value go in the cache */                                     \
    X(INPUT_CACHE_ROWS,      "cache_rows",      OPERAND_INT,  SIZE_ROWS, SIZE_NONE)           \
    /* each sequence's last token */                                                           \
    X(INPUT_LAST_ROWS,       "last_rows",       OPERAND_INT,  SIZE_LAST_ROWS, SIZE_NONE)       \
    /* what is drawn before: of OP_SAMPLE */                                                   \
    X(INPUT_COUNTER,         "counter",         OPERAND_INT,  SIZE_ONE, SIZE_NONE)             \
    /* of training: what each token's loss counts; what gradients are multiplied by */         \
    X(INPUT_LOSS_WEIGHTS,    "loss_weights",    OPERAND_REAL, SIZE_ROWS, SIZE_NONE)            \
    X(INPUT_LOSS_SCALE,      "loss_scale",      OPERAND_REAL, SIZE_ONE, SIZE_NONE)             \
    X(INPUT_ROUTER_SCALE,    "router_scale",    OPERAND_REAL, SIZE_ONE, SIZE_NONE)             \
    /* rows sorted by id, and by position */                                                   \
    X(INPUT_ID_ORDER,        "id_order",        OPERAND_INT,  SIZE_ROWS, SIZE_NONE)            \
    X(INPUT_POSITION_ORDER,  "position_order",  OPERAND_INT,  SIZE_ROWS, SIZE_NONE)            \
    X(INPUT_SLICE_POSITION_ORDER, "position_order.slice", OPERAND_INT, SIZE_SLICE, SIZE_NONE)  \
    /* a number of each token of the run, low word first, for dropout */                       \
    X(INPUT_TOKENS,          "tokens",          OPERAND_INT,  SIZE_ROWS, SIZE_TWO)             \
    X(INPUT_SLICE_TOKENS,    "tokens.slice",    OPERAND_INT,  SIZE_SLICE, SIZE_TWO)            \
    /* of a pipeline stage, from the one before it and the one behind: no numbers of a batch */ \
    X(INPUT_STREAM,          "stream",          OPERAND_ELEM, SIZE_STREAM, SIZE_HIDDEN)        \
    X(INPUT_STREAM_GRADIENT, "gradient of stream", OPERAND_ELEM, SIZE_STREAM, SIZE_HIDDEN)
// clang-format on

enum input_id {
#define X(id, ...) id,
    INPUTS(X)
#undef X
        NUM_INPUTS
};

enum input_size {
    SIZE_NONE,
    SIZE_ROWS,       /* tokens of this rank */
    SIZE_SLICE,      /* of its part of them, with sequence parallelism */
    SIZE_LOGIT_ROWS, /* rows with logits */
    SIZE_LAST_ROWS,
    SIZE_SPANS,
    SIZE_SPAN,      /* the numbers of a span */
    SIZE_POSITIONS, /* rows of the table of rotary positions */
    SIZE_ROPE,      /* its columns */
    SIZE_ONE,
    SIZE_TWO,
    SIZE_STREAM, /* rows of the residual stream, and its columns */
    SIZE_HIDDEN
};

struct input_row {
    const char *name;
    enum operand_type type;
    enum input_size dims[2];
};
const struct input_row *input_row(enum input_id id);

/* Sets the shape of an input; returns its number of dimensions. */
unsigned input_shape(enum input_id id, const struct build *b, uint64_t shape[2]);

/* Numbers of a batch for the inputs of this rank's programs. */
struct input_data {
    const struct model_config *config;
    const struct groups *groups;
    bool wide; /* REAL is double */
    struct tokens tokens;
    uint64_t positions;              /* of the longest sequence, cache included */
    uint64_t room;                   /* positions of a sequence's cache; 0: none */
    bool begins;                     /* the cache is empty: all keys are the batch's */
    int32_t *cache_rows, *last_rows; /* [rows], [sequences]; NULL: unused */
    int32_t counter;                 /* of this rank's first sequence */
    double loss_scale, router_scale;
};
/* Fills it, in arena a; set config, wide, room and begins before. with_cache:
 * also cache_rows and last_rows. */
void input_data_make(struct input_data *x, struct arena *a, const struct batch *b,
                     const struct groups *g, bool with_cache);

/* Writes an input, v->bytes at `to` in host memory. */
MUST_CHECK enum status input_fill(const struct input_data *x, const struct program_value *v,
                                  void *to, struct error *err);
/* Whether an input is the same for all batches. */
bool input_is_constant(const struct program_value *v, const struct model_config *c);
/* Whether another pipeline stage sends it. */
bool input_is_of_stage(const struct program_value *v);
/* Whether it has the tensor parallel rank's slice of the rows. */
bool input_is_of_slice(enum input_id id);

#endif
