#include "train/model/inputs.h"

#include <string.h>

#include "common/checked.h"
#include "train/model/rope.h"

/* ---- filling ---- */

/* Array of a batch for an input; NULL: none. */
static const int32_t *numbers_of(const struct input_data *x, const struct program_value *v)
{
    const uint64_t slice = x->tokens.shape.rows / x->groups->sizes.tp * x->groups->place.tp;
    switch ((enum input_id)v->source) {
    case INPUT_IDS:
        return x->tokens.ids;
    case INPUT_TARGETS:
        return x->tokens.targets;
    case INPUT_POSITIONS:
        return x->tokens.positions;
    case INPUT_SLICE_POSITIONS:
        return x->tokens.positions + slice;
    case INPUT_SPANS:
        return x->tokens.spans[v->step];
    case INPUT_ALL_SPANS:
        return x->tokens.all_spans;
    case INPUT_CACHE_ROWS:
        return x->cache_rows;
    case INPUT_LAST_ROWS:
        return x->last_rows;
    case INPUT_COUNTER:
        return &x->counter;
    case INPUT_ID_ORDER:
        return x->tokens.id_order;
    case INPUT_POSITION_ORDER:
        return x->tokens.position_order;
    case INPUT_SLICE_POSITION_ORDER:
        return x->tokens.slice_position_order;
    case INPUT_TOKENS:
        return x->tokens.numbers;
    case INPUT_SLICE_TOKENS:
        return x->tokens.numbers + 2 * slice;
    case INPUT_ROPE:
    case INPUT_ROW_NUMBERS:
    case INPUT_LOSS_WEIGHTS:
    case INPUT_LOSS_SCALE:
    case INPUT_ROUTER_SCALE:
    case INPUT_STREAM:
    case INPUT_STREAM_GRADIENT:
    case NUM_INPUTS:
        break;
    }
    return NULL;
}

static enum status copy_numbers(const struct input_data *x, const struct program_value *v, void *to,
                                struct error *err)
{
    const int32_t *from = numbers_of(x, v);
    if (!from) return fail(err, ERR_OURS, "input %s has no numbers", v->name);
    memcpy(to, from, v->bytes);
    return OK;
}

static void number_rows(int32_t *to, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        to[i] = (int32_t)i;
}

static enum status copy_reals(const struct input_data *x, const double *from, uint64_t count,
                              void *to)
{
    for (uint64_t i = 0; i < count; i++)
        if (x->wide)
            ((double *)to)[i] = from[i];
        else
            ((float *)to)[i] = (float)from[i];
    return OK;
}

enum status input_fill(const struct input_data *x, const struct program_value *v, void *to,
                       struct error *err)
{
    if (v->source == INPUT_LOSS_SCALE) return copy_reals(x, &x->loss_scale, 1, to);
    if (v->source == INPUT_ROUTER_SCALE) return copy_reals(x, &x->router_scale, 1, to);
    if (v->source == INPUT_LOSS_WEIGHTS) return copy_reals(x, x->tokens.weights, v->shape[0], to);
    if (v->source == INPUT_ROPE)
        return rope_table(x->config, x->positions, v->shape[0], x->wide, to, err);
    if (v->source != INPUT_ROW_NUMBERS) return copy_numbers(x, v, to, err);
    number_rows(to, v->shape[0]);
    return OK;
}

bool input_is_constant(const struct program_value *v, const struct model_config *c)
{
    return v->source == INPUT_ROPE && (!c->rope_type || strcmp(c->rope_type, "dynamic") != 0);
}

/* ---- shapes ---- */

static const struct input_row rows[NUM_INPUTS] = {
#define X(id, name, type, rows, columns) [id] = {name, type, {rows, columns}},
    INPUTS(X)
#undef X
};

const struct input_row *input_row(enum input_id id)
{
    return &rows[id];
}

bool input_is_of_slice(enum input_id id)
{
    return rows[id].dims[0] == SIZE_SLICE;
}

bool input_is_of_stage(const struct program_value *v)
{
    return v->source == INPUT_STREAM || v->source == INPUT_STREAM_GRADIENT;
}

unsigned input_shape(enum input_id id, const struct build *b, uint64_t shape[2])
{
    const struct forward_shape *s = &b->shape;
    const uint64_t tokens = s->tokens.rows;
    const uint64_t sizes[] = {
        [SIZE_ROWS] = tokens,
        [SIZE_SLICE] = tokens / b->groups->sizes.tp,
        [SIZE_LOGIT_ROWS] = s->last_rows ? s->last_rows : tokens,
        [SIZE_LAST_ROWS] = s->last_rows,
        [SIZE_SPANS] = s->tokens.num_spans,
        [SIZE_SPAN] = 6,
        [SIZE_POSITIONS] = s->num_positions,
        [SIZE_ROPE] = rope_dim(b->config),
        [SIZE_ONE] = 1,
        [SIZE_TWO] = 2,
        [SIZE_STREAM] = s->sequence_parallel ? tokens / b->groups->sizes.tp : tokens,
        [SIZE_HIDDEN] = b->config->hidden_size,
    };
    unsigned n = 0;
    for (; n < 2 && rows[id].dims[n] != SIZE_NONE; n++)
        shape[n] = sizes[rows[id].dims[n]];
    return n;
}

/* ---- numbers of a batch ---- */

/* A sequence's tokens in the batch, and positions in the cache. */
struct stretch {
    uint64_t length, past;
};

static struct stretch stretch_of(const struct input_data *x, const struct batch *b, uint64_t s)
{
    const uint64_t first = tokens_first_sequence(b, &x->groups->place, &x->tokens.shape);
    const uint64_t at = min_u64(first + s, b->num_sequences - 1); /* filled up with the last one */
    return (struct stretch){b->lengths ? b->lengths[at] : b->length, b->past ? b->past[at] : 0};
}

/* Tokens of sequence s follow those in the cache. */
static void set_sequence(struct input_data *x, const struct batch *b, uint64_t s)
{
    const uint64_t first = s * b->length;
    const struct stretch own = stretch_of(x, b, s);
    const uint64_t keys = x->begins ? first : s * x->room;
    const uint64_t span[6] = {first, own.length, own.past, keys, own.past + own.length, 0};
    for (unsigned k = 0; k < 6 && x->room; k++)
        x->tokens.spans[0][s * 6 + k] = (int32_t)span[k];
    for (uint64_t i = 0; i < own.length; i++) {
        x->cache_rows[first + i] = (int32_t)(s * x->room + own.past + i);
        x->tokens.positions[first + i] += (int32_t)own.past;
    }
    x->last_rows[s] = (int32_t)(first + own.length - 1);
}

static void set_cache_inputs(struct input_data *x, struct arena *a, const struct batch *b)
{
    const struct token_shape *shape = &x->tokens.shape;
    x->cache_rows = arena_array(a, shape->rows, sizeof *x->cache_rows);
    x->last_rows = arena_array(a, shape->sequences, sizeof *x->last_rows);
    for (uint64_t i = 0; i < shape->rows; i++)
        x->cache_rows[i] = -1;
    for (uint64_t s = 0; s < shape->sequences; s++)
        set_sequence(x, b, s);
}

static uint64_t count_positions(const struct batch *b)
{
    uint64_t most = 0;
    for (uint64_t i = 0; b->past && i < b->num_sequences; i++)
        most = max_u64(most, b->past[i]);
    return most + b->length;
}

void input_data_make(struct input_data *x, struct arena *a, const struct batch *b,
                     const struct groups *g, bool with_cache)
{
    x->groups = g;
    x->positions = count_positions(b);
    tokens_make(&x->tokens, a, b, &g->sizes, &g->place, g->sizes.tp);
    x->counter = (int32_t)(b->counter + tokens_first_sequence(b, &g->place, &x->tokens.shape));
    if (with_cache) set_cache_inputs(x, a, b);
}
