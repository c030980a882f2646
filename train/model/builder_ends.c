/* builder_ends.c - embedding, final norm, head and loss: parts of the first and
 * last stages. */
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "train/model/builder_internal.h"

/* ---- both ends ---- */

void builder_embedding(struct builder *x)
{
    const char *type = x->c->position_embedding_type;
    value_id w = builder_parameter(x, "embedding.word_embeddings.weight");
    value_id y =
        emit(x, OP_EMBEDDING, "embedding", IN(builder_input(x, INPUT_IDS, 0), w),
             .params.embedding = {.first_row = x->b->groups->place.tp * builder_vocab_rows(x->b),
                                  .scale = 1});
    x->stream = builder_reduced(x, y);
    if (type && strcmp(type, "learned_absolute") == 0) {
        bool sliced = x->shape->sequence_parallel && x->tp > 1;
        value_id table = builder_parameter(x, "embedding.position_embeddings.weight");
        value_id at = builder_input(x, sliced ? INPUT_SLICE_POSITIONS : INPUT_POSITIONS, 0);
        x->stream = emit(x, OP_POSITIONS, "positions", IN(x->stream, table, at));
    }
    value_id none = NO_VALUE;
    x->stream = builder_dropped(x, x->stream, &none, DROPOUT_AFTER_MLP);
}

/* Loss of each token. into: value to write; NO_VALUE: a new one. */
static value_id losses_of(struct builder *x, value_id logits, value_id targets, value_id into)
{
    uint64_t all = x->b->vocab_rows ? x->b->vocab_rows : x->c->vocab_size,
             first = x->b->groups->place.tp * builder_vocab_rows(x->b);
    union op_params vocab = {
        .vocab = {first, first < all ? min_u64(all - first, builder_columns_of(x, logits)) : 0}};
    value_id max = emit(x, OP_VOCAB_MAX, "max", IN(logits), .params = vocab);
    if (x->tp > 1)
        max = emit(x, OP_ALL_REDUCE, "max", IN(max),
                   .collective = {.group = GROUP_TP, .reduction = COMM_MAX});
    value_id sums = emit(x, OP_VOCAB_SUM, "sums", IN(logits, max, targets), .params = vocab);
    sums = builder_collective(x, OP_ALL_REDUCE, GROUP_TP, sums, "sums");
    return emit(x, OP_TOKEN_LOSS, "loss", IN(sums, targets), .into = {&into});
}

static value_id logits_of(struct builder *x, value_id in)
{
    bool untied = x->c->untie_embeddings_and_output_weights;
    value_id w = untied ? builder_weight(x, "output_layer.weight")
                        : builder_parameter(x, "embedding.word_embeddings.weight");
    const enum operand_type type = x->shape->logits_are_elem ? OPERAND_ELEM : OPERAND_REAL;
    return builder_product(x, type, in, w, NO_VALUE, "logits");
}

/* Logits and losses of rows [first, first + count), and the sum of these
 * losses. */
static void train_rows(struct builder *x, value_id in, value_id losses, uint64_t first,
                       uint64_t count)
{
    const value_id whole[] = {in, builder_input(x, INPUT_TARGETS, 0), losses,
                              builder_input(x, INPUT_LOSS_WEIGHTS, 0)};
    value_id rows[4], sum = builder_sum(x, "loss");
    for (unsigned i = 0; i < 4; i++)
        rows[i] = program_add_view(x->p, whole[i], first, count, x->p->values[whole[i]].name);
    losses_of(x, logits_of(x, rows[0]), rows[1], rows[2]);
    const bool adds = first > 0 || x->shape->train->accumulates;
    x->out->train.loss_sum = emit(x, OP_WEIGHTED_SUM, "loss_sum",
                                  IN(rows[2], rows[3], adds ? sum : NO_VALUE), .into = {&sum});
}

/* Limits the tokens whose logits are in memory at once: all logits may be
 * larger than all activations. */
static uint64_t rows_at_once(const struct builder *x, uint64_t rows)
{
    const uint64_t most = x->shape->head_rows;
    return most && most < rows ? most : rows;
}

static void train_head(struct builder *x, value_id in)
{
    struct training_values *t = &x->out->train;
    const uint64_t rows = builder_rows_of(x, in), at_once = rows_at_once(x, rows);
    value_id losses = program_add_value(x->p, VALUE_SCRATCH, OPERAND_REAL, 1, &rows, "loss");
    t->head = x->p->num_calls;
    t->head_chunks = 0;
    for (uint64_t first = 0; first < rows && !x->st; first += at_once, t->head_chunks++)
        train_rows(x, in, losses, first, min_u64(at_once, rows - first));
    builder_keep(x, losses, true, (struct output){.columns = 1}, "loss");
}

/* Sums of the losses of head_rows tokens each, on this rank. */
static void loss_head(struct builder *x, value_id in)
{
    const uint64_t rows = builder_rows_of(x, in), at_once = rows_at_once(x, rows),
                   count = ceil_div_u64(rows, at_once);
    const value_id targets = builder_input(x, INPUT_TARGETS, 0);
    const value_id sums =
        program_add_value(x->p, VALUE_SCRATCH, OPERAND_REAL, 1, &count, "loss_sums");
    for (uint64_t i = 0; i < count && !x->st; i++) {
        const uint64_t first = i * at_once, n = min_u64(at_once, rows - first);
        const value_id some = program_add_view(x->p, in, first, n, "head_rows"),
                       wanted = program_add_view(x->p, targets, first, n, "targets"),
                       sum = program_add_view(x->p, sums, i, 1, "loss_sum");
        const value_id losses = losses_of(x, logits_of(x, some), wanted, NO_VALUE);
        emit(x, OP_WEIGHTED_SUM, "loss_sum", IN(losses), .into = {&sum});
    }
    builder_keep(x, sums, true, (struct output){.columns = 1, .sum = true}, "loss");
}

/* All tensor parallel ranks choose the same tokens. */
static void sample_tokens(struct builder *x, value_id logits)
{
    const struct sampling *s = x->shape->sampling;
    const uint64_t rows = builder_rows_of(x, logits), columns = x->c->vocab_size;
    value_id all = builder_collective(x, OP_ALL_GATHER, GROUP_TP, logits, "gather_logits");
    if (x->tp > 1 || builder_columns_of(x, all) > columns)
        all = emit(x, OP_JOIN_COLUMNS, "join_logits", IN(all),
                   .sizes = {{'n', rows}, {'V', columns}});
    builder_watch(x, all);
    x->out->tokens =
        emit(x, OP_SAMPLE, "sample", IN(all, builder_input(x, INPUT_COUNTER, 0), x->not_finite),
             .params.sample = {.temperature = s->temperature,
                               .top_p = s->top_p,
                               .top_k = (uint32_t)min_u64(s->top_k, UINT32_MAX),
                               .seed = s->seed});
    x->p->values[x->out->tokens].class = VALUE_OUTPUT;
}

static void infer_head(struct builder *x, value_id in)
{
    if (x->shape->loss) loss_head(x, in);
    if (!x->shape->logits && !x->shape->sampling) return;
    const value_id logits = logits_of(x, in);
    builder_keep(x, logits, x->shape->logits,
                 (struct output){.shard = x->tp > 1, .last = x->shape->last_rows > 0}, "logits");
    if (x->shape->sampling) sample_tokens(x, logits);
}

/* Rows of sequences of one token are last rows already. */
static value_id only_last_rows(struct builder *x, value_id in)
{
    if (!x->shape->last_rows || builder_rows_of(x, in) == x->shape->last_rows) return in;
    return emit(x, OP_GATHER_ROWS, "last_rows", IN(in, builder_input(x, INPUT_LAST_ROWS, 0)));
}

void builder_head(struct builder *x)
{
    bool sliced = x->shape->sequence_parallel && x->tp > 1;
    value_id y = builder_normed(x, "decoder.final_layernorm.weight", "decoder.final_layernorm.bias",
                                "final_norm");
    builder_keep(x, x->stream, x->shape->hidden, (struct output){.slice = sliced},
                 arena_printf(&x->p->arena, "hidden.%" PRIu64, x->c->num_layers));
    builder_keep(x, y, x->shape->hidden, (struct output){.slice = sliced}, "final_norm");
    if (!x->shape->logits && !x->shape->loss && !x->shape->sampling) return;
    y = only_last_rows(x, builder_gathered(x, y));
    if (x->shape->train)
        train_head(x, y);
    else
        infer_head(x, y);
}
