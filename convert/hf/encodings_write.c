/* encodings_write.c - weights of a Hugging Face folder become codes again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/encoder.h"
#include "common/json.h"
#include "common/memory.h"
#include "convert/carried.h"
#include "convert/hf/encodings.h"
#include "convert/hf/hf_model.h"
#include "convert/hf_config.h"

struct encoding_writer {
    struct target *t;
    struct native_outputs *outputs;
    const struct quantization *q;
    bool *used; /* [tensors of the source] scales and the like of written codes */
    struct encoder **encoders;
    size_t num_encoders, capacity, num_copied;
    struct quant_export anew;
    struct map fused; /* logical tensor and parent module -> the first encoder of it */
};

/* A tensor that came with the codes of a weight; NULL: not there. */
static const struct tensor *kept(const struct encoding_writer *w, const char *template,
                                 const char *weight)
{
    struct arena *a = &w->t->plan.arena;
    if (!template) return NULL;
    return catalog_find(&w->t->source->catalog,
                        arena_printf(a, "encoding.%s", quant_fill(a, template, weight)));
}

/* Tensors beside codes. */
struct companions {
    const struct tensor *scales, *global, *zeros, *shape;
};

static void use(struct encoding_writer *w, const struct tensor *companion)
{
    if (companion) w->used[companion - w->t->source->catalog.tensors] = true;
}

/* Those that came with a weight. */
static struct companions kept_companions(const struct encoding_writer *w,
                                         const struct quant_row *row, const char *weight)
{
    struct companions c = {.global = kept(w, row->global, weight),
                           .zeros = kept(w, row->zeros, weight),
                           .shape = kept(w, row->shape, weight)};
    for (size_t i = 0; row->scales[i] && !c.scales; i++)
        c.scales = kept(w, row->scales[i], weight);
    return c;
}

/* ---- the form of codes ---- */

/* The encoding of an output by a row and its companions; NULL: these are not
 * all there, or of another shape. */
static struct encoded *form_of(const struct encoding_writer *w, const struct quant_row *row,
                               const struct out_tensor *o, const struct companions *c)
{
    struct arena *a = &w->t->plan.arena;
    struct encoded *e = arena_alloc(a, sizeof *e);
    uint64_t *shape = arena_copy(a, o->shape, o->num_dims * sizeof *shape);
    if (o->num_dims < 2 || !c->scales || !(row->scale_dtypes >> c->scales->dtype & 1)) return NULL;
    if (row->transposed) {
        shape[o->num_dims - 2] = o->shape[o->num_dims - 1];
        shape[o->num_dims - 1] = o->shape[o->num_dims - 2];
    }
    *e = (struct encoded){.name = row->name,
                          .code = row->code,
                          .scales = c->scales,
                          .global = c->global,
                          .zeros = c->zeros,
                          .words = row->words,
                          .zero_words = row->zero_words,
                          .global_divides = row->global_divides};
    encoded_set_grid(e, o->num_dims, shape, row->block);
    const uint64_t per = 8 * dtype_bytes(row->dtype) / quant_infos[row->code].bits;
    const bool whole = row->shape ? c->shape != NULL : e->cols % per == 0;
    e->row_bytes = (e->cols + per - 1) / per * dtype_bytes(row->dtype);
    if (!whole || (row->global && !e->global) || (row->zeros && !e->zeros) ||
        (row->in_blocks && e->cols % e->block[1]) ||
        !encoded_is_grid(e, c->scales->num_dims, c->scales->shape))
        return NULL;
    return e;
}

/* A tensor of codes in the form, without pieces. */
static struct tensor *codes_of_form(const struct encoding_writer *w, const struct quant_row *row,
                                    const struct encoded *e, const char *weight)
{
    struct arena *a = &w->t->plan.arena;
    struct tensor *t = arena_alloc(a, sizeof *t);
    uint64_t *shape = arena_array(a, e->num_dims + 1, sizeof *shape);
    const uint64_t units = e->row_bytes / dtype_bytes(row->dtype);
    memcpy(shape, e->shape, e->num_dims * sizeof *shape);
    shape[e->num_dims - 1] = row->in_blocks ? e->grid[1] : units;
    if (row->in_blocks) shape[e->num_dims] = units / e->grid[1];
    *t = (struct tensor){.name = quant_fill(a, row->codes, weight),
                         .dtype = row->dtype,
                         .num_dims = e->num_dims + row->in_blocks,
                         .shape = shape,
                         .numel = encoded_num_matrices(e) * e->rows * units};
    return t;
}

/* ---- one weight ---- */

/* The encoded tensor that a source's weight was decoded from; NULL: none. */
static const struct encoded *stored_form(const struct encoding_writer *w, const char *weight)
{
    const struct native_tensor *n = catalog_find_native(&w->t->source->catalog, weight, NULL);
    return n && n->num_parts ? n->parts[0].encoded : NULL;
}

static enum status add_companion(struct encoding_writer *w, const char *name,
                                 const struct tensor *t, struct error *err)
{
    const struct native_output native = {.name = name,
                                         .dtype = t->dtype,
                                         .num_dims = t->num_dims,
                                         .shape = t->shape,
                                         .parts = {{t, pair_whole(0, 0, t->numel)}},
                                         .num_parts = 1};
    return native_outputs_add(w->outputs, native.name, &native, NULL, err);
}

static void add_hole(struct arena *a, struct tensor *t)
{
    const struct piece hole = {.origin = ORIGIN_HOLE, .dtype = t->dtype};
    const struct pair whole = pair_whole(0, 0, t->numel);
    tensor_add_piece(a, t, &hole, &whole);
}

/* Encodes output `at`. *out (may be NULL) becomes the encoder. */
static enum status encode(struct encoding_writer *w, size_t at, const struct quant_row *row,
                          const struct encoded *form, enum encoder_rule rule, struct encoder **out,
                          struct error *err)
{
    struct arena *a = &w->t->plan.arena;
    struct tensor *weight = arena_alloc(a, sizeof *weight),
                  *scales = arena_alloc(a, sizeof *scales);
    const char *name = w->outputs->out.items[at].name;
    struct tensor *codes = codes_of_form(w, row, form, name);
    const struct pair order = row->transposed ? encoded_transposed(form)
                                              : pair_whole(0, 0, w->outputs->out.items[at].numel);
    *weight = (struct tensor){.name = name, .num_dims = form->num_dims, .shape = form->shape};
    TRY(native_outputs_join(w->outputs, at, &order, weight, err));
    TRY(tensor_check(weight, err));
    struct encoder *e = encoder_create(form, weight, rule);
    if (out) *out = e;
    *ARENA_PUSH(a, w->encoders, w->num_encoders, w->capacity) = e;
    *scales = *form->scales;
    scales->pieces = NULL;
    scales->num_pieces = scales->pieces_capacity = 0;
    if (tensor_is_hole(weight)) {
        add_hole(a, codes);
        add_hole(a, scales);
    } else {
        encoder_add_codes(e, a, codes);
        encoder_add_scales(e, a, scales);
    }
    native_outputs_replace(w->outputs, at, codes->name, codes);
    return add_companion(w, carried_name(form->scales), scales, err);
}

/* Whether a weight had codes of this label, if the source says. */
static bool had(const struct encoding_writer *w, const char *label, const char *weight)
{
    const struct published_names *p = w->t->source->published;
    struct arena *a = &w->t->plan.arena;
    const char *const names[] = {weight, encodings_pattern(a, weight)};
    bool says = false;
    for (size_t i = 0; p && i < p->count; i++) {
        const char *name = strchr(p->spellings[i], ' ');
        const bool is_label = name && name > p->spellings[i] && name[-1] == ']';
        if (!is_label || (strcmp(name + 1, names[0]) && strcmp(name + 1, names[1]))) continue;
        says = true;
        if (strncmp(p->spellings[i], label, (size_t)(name - p->spellings[i])) == 0) return true;
    }
    return !says;
}

/* Whether codes as stored are of the form. */
static bool is_form_of(const struct encoded *form, const struct encoded *stored)
{
    return form->code == stored->code && strcmp(form->name, stored->name) == 0 &&
           form->block[0] == stored->block[0] && form->block[1] == stored->block[1];
}

/* Writes output `at` as codes if the source keeps scales for it. */
static enum status write_codes(struct encoding_writer *w, size_t at, struct error *err)
{
    const struct out_tensor *o = &w->outputs->out.items[at];
    const struct encoded *stored = stored_form(w, o->name);
    struct arena *a = &w->t->plan.arena;
    for (size_t k = 0; k < w->q->num_rows; k++) {
        const struct quant_row *row = &w->q->rows[k];
        const struct companions c = kept_companions(w, row, o->name);
        const char *label = quant_label(a, row);
        if (!c.scales || !(stored ? strcmp(stored->name, row->name) == 0 : had(w, label, o->name)))
            continue;
        if (!quant_row_can_write(row, stored != NULL))
            return fail(err, ERR_UNSUPPORTED,
                        "%s was encoded as %s, which Ferry reads and does not write; without "
                        "--export-weight-dtype weights are written decoded",
                        o->name, row->name);
        const struct encoded *form = row->state ? stored : form_of(w, row, o, &c);
        if (!form || (stored && !is_form_of(form, stored))) continue;
        use(w, c.global);
        use(w, c.zeros);
        use(w, c.shape);
        use(w, c.scales);
        use(w, kept(w, row->groups, o->name));
        use(w, kept(w, row->table, o->name));
        use(w, kept(w, row->state, o->name));
        use(w, kept(w, row->nested_scales, o->name));
        use(w, kept(w, row->nested_table, o->name));
        if (!stored) return encode(w, at, row, form, ENCODER_KEEPS, NULL, err);
        w->num_copied++;
        native_outputs_replace(w->outputs, at, quant_fill(a, row->codes, o->name), stored->codes);
        return add_companion(w, carried_name(c.scales), c.scales, err);
    }
    return OK;
}

/* ---- as they came ---- */

/* Adds what is neither codes nor scales; refuses scales of no output. */
static enum status add_others(struct encoding_writer *w, struct error *err)
{
    const struct catalog *all = &w->t->source->catalog;
    for (size_t i = 0; i < all->num_tensors; i++) {
        const struct tensor *t = &all->tensors[i];
        if (!name_is_of_encoding(t->name)) continue;
        if (!w->used[i] && !quantization_is_activation(w->q, carried_name(t)))
            return fail(err, ERR_UNSUPPORTED,
                        "%s %s came with codes, but the weight that it belongs to has another name "
                        "or shape now; without --export-weight-dtype weights are written decoded",
                        carried_name(t), shape_text(&w->t->plan.arena, t->num_dims, t->shape));
        size_t at;
        if (map_get(&w->outputs->out.names, carried_name(t), &at)) continue; /* the scales */
        TRY(add_companion(w, carried_name(t), t, err));
    }
    return OK;
}

static enum status read_quantization(struct encoding_writer *w, struct error *err)
{
    const struct checkpoint *c = w->t->source;
    struct quantization *q = NULL;
    cJSON *config = NULL;
    enum status st = c->hf_folder ? hf_config_read(c->hf_folder, &config, err) : OK;
    if (!st && config) st = quantization_read(config, c->hf_folder, &w->t->plan.arena, &q, err);
    cJSON_Delete(config);
    w->q = q;
    if (st || q) return st;
    return fail(err, ERR_UNSUPPORTED,
                "--export-weight-dtype as-source: %s keeps no config.json with a quantisation",
                c->path);
}

static enum status write_as_source(struct encoding_writer *w, struct error *err)
{
    struct target *t = w->t;
    TRY(read_quantization(w, err));
    w->used = arena_array(&t->plan.arena, t->source->catalog.num_tensors + 1, sizeof *w->used);
    const size_t count = w->outputs->out.count;
    for (size_t i = 0; i < count; i++)
        if (!w->outputs->out.items[i].state) TRY(write_codes(w, i, err));
    if (!w->num_encoders && !w->num_copied)
        return fail(err, ERR_UNSUPPORTED,
                    "--export-weight-dtype as-source: %s keeps no scales of encoded weights",
                    t->source->path);
    notes_add(&t->notes, &t->plan.arena,
              "%zu weights are encoded again by their kept scales, %zu copied as codes",
              w->num_encoders, w->num_copied);
    return add_others(w, err);
}

/* ---- anew ---- */

/* Whether a weight is of a layer that Megatron calls linear: no head, no router.
 * GPT-2's are Conv1D, which readers leave. */
static bool is_linear(const struct encoding_writer *w, const struct out_tensor *o)
{
    const char *linear = o->logical ? strstr(o->logical, ".linear_") : NULL;
    const char *end = linear ? strchr(linear + 1, '.') : NULL;
    if (o->state || !end || strcmp(end, ".weight")) return false;
    return !pair_is_transposed(&w->outputs->parts[o->first_part].source.pair);
}

static bool tiles(const struct quant_row *row, const struct out_tensor *o)
{
    bool whole = o->numel && o->num_dims == 2;
    for (int i = 0; i < 2 && whole; i++)
        whole = !row->block[i] || o->shape[i] % row->block[i] == 0;
    return whole;
}

/* The name of what readers fuse: q, k, v; a layer's experts. */
static const char *fused_name(struct arena *a, const char *logical)
{
    const char *experts = strstr(logical, ".experts.");
    return experts ? arena_text(a, logical, (size_t)(experts - logical)) : logical;
}

/* Adds what is fused and has a part that is no whole blocks: all its parts are
 * encoded, or none. */
static void find_untiled(const struct encoding_writer *w, struct map *untiled)
{
    for (size_t i = 0; i < w->outputs->out.count; i++) {
        const struct out_tensor *o = &w->outputs->out.items[i];
        if (is_linear(w, o) && !tiles(w->q->rows, o))
            (void)map_add(untiled, fused_name(&w->t->plan.arena, o->logical), i, NULL);
    }
}

static void add_module(cJSON *list, const char *name)
{
    const char *dot = strrchr(name, '.');
    struct strbuf module = {0};
    strbuf_printf(&module, "%.*s", dot ? (int)(dot - name) : 0, name);
    const cJSON *last = list->child ? list->child->prev : NULL; /* experts: two of one module */
    if (!last || strcmp(json_as_text(last), module.data))
        cJSON_AddItemToArray(list, cJSON_CreateString(module.data));
    strbuf_release(&module);
}

/* Adds the module of a weight that stays as it is: a linear layer, or packed
 * experts. */
static void add_unconverted(cJSON *list, const struct out_tensor *o)
{
    const bool embeds = o->logical && strstr(o->logical, "embedding.");
    const char *dot = strrchr(o->name, '.');
    const bool linear = o->num_dims == 2 && dot && strcmp(dot, ".weight") == 0;
    const bool experts = o->num_dims == 3 && strstr(o->name, "experts.");
    if (!o->state && !embeds && (linear || experts)) add_module(list, o->name);
}

/* A companion without pieces; NULL: the row has none of it. */
static struct tensor *new_companion(const struct encoding_writer *w, const char *template,
                                    const char *weight, enum dtype dtype, unsigned num_dims,
                                    const uint64_t *shape)
{
    struct arena *a = &w->t->plan.arena;
    struct tensor *t = arena_alloc(a, sizeof *t);
    if (!template) return NULL;
    *t = (struct tensor){.name = arena_printf(a, "encoding.%s", quant_fill(a, template, weight)),
                         .dtype = dtype,
                         .num_dims = num_dims,
                         .shape = arena_copy(a, shape, num_dims * sizeof *shape),
                         .numel = 1};
    for (unsigned i = 0; i < num_dims; i++)
        t->numel *= shape[i];
    return t;
}

static enum dtype new_scale_dtype(const struct encoding_writer *w, const struct quant_row *row,
                                  const struct out_tensor *o)
{
    const enum dtype dtype = w->outputs->parts[o->first_part].source.logical->dtype;
    const bool may = w->anew.rule == ENCODER_COMPRESSED_TENSORS && row->scale_dtypes >> dtype & 1;
    return may ? dtype : row->scale_dtype;
}

static void add_shape(struct arena *a, struct tensor *t, const uint64_t *shape)
{
    const struct pair whole = pair_whole(0, 0, t->numel);
    const struct piece piece = {.origin = ORIGIN_MEMORY,
                                .dtype = DT_I64,
                                .memory = arena_copy(a, shape, t->numel * sizeof *shape)};
    tensor_add_piece(a, t, &piece, &whole);
}

/* Modules that readers fuse (q, k, v; an expert's gate and up) get one global
 * scale. */
static void share_global(struct encoding_writer *w, const struct out_tensor *o, struct encoder *e)
{
    const char *end = strrchr(o->name, '.');
    size_t first;
    while (end > o->name && *--end != '.') {
    } /* without .q_proj.weight */
    const char *fused =
        arena_printf(&w->t->plan.arena, "%s %.*s", o->logical, (int)(end - o->name), o->name);
    if (map_get(&w->fused, fused, &first))
        encoder_share_global(w->encoders[first], e);
    else
        (void)map_add(&w->fused, fused, w->num_encoders - 1, NULL);
}

static enum status encode_anew(struct encoding_writer *w, size_t at, struct error *err)
{
    struct arena *a = &w->t->plan.arena;
    const struct quant_row *row = w->q->rows;
    const struct out_tensor o = w->outputs->out.items[at];
    struct encoded grid = {.name = row->name};
    encoded_set_grid(&grid, o.num_dims, o.shape, row->block);
    const bool is_one = grid.grid[0] * grid.grid[1] == 1 && !row->block[0];
    const uint64_t one = 1, rank = o.num_dims;
    struct tensor *scales = new_companion(w, row->scales[0], o.name, new_scale_dtype(w, row, &o),
                                          is_one ? 1 : o.num_dims, is_one ? &one : grid.grid),
                  *global = new_companion(w, row->global, o.name, DT_F32, 1, &one),
                  *shape = new_companion(w, row->shape, o.name, DT_I64, 1, &rank);
    const struct companions c = {.scales = scales, .global = global, .shape = shape};
    struct encoder *e;
    TRY(encode(w, at, row, form_of(w, row, &o, &c), w->anew.rule, &e, err));
    if (shape) {
        add_shape(a, shape, o.shape);
        TRY(add_companion(w, carried_name(shape), shape, err));
    }
    if (!global) return OK;
    share_global(w, &o, e);
    struct tensor *made = arena_copy(a, global, sizeof *made);
    if (tensor_is_hole(encoder_weight(e)))
        add_hole(a, made);
    else
        encoder_add_global(e, a, made);
    return add_companion(w, carried_name(global), made, err);
}

static enum status write_anew(struct encoding_writer *w, struct error *err)
{
    struct target *t = w->t;
    struct quantization *q = NULL;
    struct map untiled = {0};
    size_t left = 0;
    if (!quantization_export(t->options.encoding, &w->anew))
        return fail(err, ERR_USAGE, "%s is no encoding that weights can be written in",
                    t->options.encoding);
    cJSON *config = cJSON_CreateObject();
    cJSON_AddItemToObject(config, "quantization_config", cJSON_Duplicate(w->anew.config, true));
    enum status st = quantization_read(config, NULL, &t->plan.arena, &q, err);
    cJSON_Delete(config);
    w->q = q;
    if (st) return st;
    const char *head, *embedding;
    if (hf_model_tied_head(t, &head, &embedding)) add_module(w->anew.excluded, head);
    find_untiled(w, &untiled);
    const size_t count = w->outputs->out.count;
    for (size_t i = 0; i < count && !st; i++) {
        const struct out_tensor *o = &w->outputs->out.items[i];
        const bool linear = is_linear(w, o);
        const bool whole =
            linear && !map_get(&untiled, fused_name(&t->plan.arena, o->logical), NULL);
        left += linear && !whole;
        t->facts.encoded_tensors += whole;
        if (whole)
            st = encode_anew(w, i, err);
        else
            add_unconverted(w->anew.excluded, o);
    }
    map_release(&untiled);
    notes_add(&t->notes, &t->plan.arena, "%zu weights of linear layers are encoded as %s",
              w->num_encoders, t->options.encoding);
    if (left)
        notes_add(
            &t->notes, &t->plan.arena,
            "%zu weights of linear layers stay as they are, since they or what they are fused "
            "with are no whole blocks of %" PRIu64 " x %" PRIu64,
            left, q->rows->block[0], q->rows->block[1]);
    return st;
}

/* ---- both ---- */

enum status encodings_write(struct target *t, struct native_outputs *outputs,
                            struct encoding_writer **out, struct error *err)
{
    struct encoding_writer *w = *out = must_calloc(1, sizeof *w);
    *w = (struct encoding_writer){.t = t, .outputs = outputs};
    return target_encodes_as_source(t) ? write_as_source(w, err) : write_anew(w, err);
}

const cJSON *encoding_writer_config(const struct encoding_writer *w)
{
    return w ? w->anew.config : NULL;
}

void encoding_writer_free(struct encoding_writer *w)
{
    for (size_t i = 0; w && i < w->num_encoders; i++)
        encoder_free(w->encoders[i]);
    if (w) cJSON_Delete(w->anew.config);
    if (w) map_release(&w->fused);
    free(w);
}

void encoding_writer_count(const struct encoding_writer *w, struct target_facts *facts)
{
    for (size_t i = 0; w && i < w->num_encoders; i++) {
        const uint64_t renewed = encoder_num_renewed(w->encoders[i]);
        facts->renewed_groups += renewed;
        facts->renewed_weights += renewed > 0;
    }
}
