/* target_hf.c - writes a Hugging Face folder: safetensors shards of weights and
 * of optimizer states, their indexes, config.json and its companions. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "convert/format.h"
#include "convert/hf/encodings.h"
#include "convert/hf/hf_model.h"
#include "convert/hf/states_hf.h"
#include "convert/native_outputs.h"
#include "formats/hf_folder.h"
#include "formats/safetensors.h"

/* The tensors of one set of files, split into shards. */
struct shard_set {
    struct target *t;
    const char *base; /* of the files' names */
    struct native_outputs native;
    uint32_t *shards, *segments; /* [native.out.count] */
    size_t num_shards;
};

struct hf_target {
    struct target *t;
    struct shard_set model, optimizer;
    cJSON *config;                     /* made here; NULL: the source's config.json is copied */
    enum dtype main_dtype;             /* of most weights, decoded */
    struct encoding_writer *encodings; /* NULL: weights are written decoded */
};

static enum status add_hf_output(void *context, const struct native_output *native,
                                 struct error *err)
{
    struct hf_target *x = context;
    struct arena *a = &x->t->plan.arena;
    if (!native->state)
        return native_outputs_add(&x->model.native, native->name, native, NULL, err);
    return native_outputs_add(&x->optimizer.native, hf_state_name(a, native->state, native->name),
                              native, NULL, err);
}

/* ---- shards ---- */

/* The bytes of a shard outside of tensors of the source: its header and, for
 * the optimizer, the step. */
struct own_bytes {
    struct strbuf head;
    bool has_step;
    uint64_t step_offset;
    int64_t step;
};

static enum status emit_own(const struct plan *plan, uint32_t file, void *context,
                            const struct file_writer *writer, struct error *err)
{
    const struct own_bytes *own = context;
    (void)plan, (void)file;
    TRY(writer->put(writer->context, 0, own->head.data, own->head.length, err));
    if (!own->has_step) return OK;
    return writer->put(writer->context, own->step_offset, &own->step, sizeof own->step, err);
}

/* Adds a tensor of a shard: a segment, or the step. */
static void place_tensor(struct shard_set *set, uint32_t file, struct own_bytes *own,
                         const struct safetensors_out *tensor)
{
    struct plan *plan = &set->t->plan;
    size_t at = 0;
    (void)map_get(&set->native.out.names, tensor->name, &at);
    const struct out_tensor *o = &set->native.out.items[at];
    if (strcmp(set->base, hf_optimizer) == 0 && strcmp(o->name, hf_step) == 0) {
        own->has_step = true;
        own->step_offset = tensor->offset_bytes;
        own->step = (int64_t)set->t->source->training.run.step;
        return;
    }
    set->segments[at] = plan_add_segment(plan, file, o->dtype, o->numel, false);
    plan->segments[set->segments[at]].offset_bytes = tensor->offset_bytes;
}

/* Lays out the shard of the tensors out[of[0..n)]. */
static enum status lay_out_shard(struct shard_set *set, size_t shard, const size_t *of, size_t n,
                                 struct error *err)
{
    struct plan *plan = &set->t->plan;
    struct arena *a = &plan->arena;
    struct safetensors_out *tensors = arena_array(a, n, sizeof *tensors);
    struct own_bytes *own = arena_alloc(a, sizeof *own);
    uint32_t file = plan_add_file(plan, hf_shard_name(a, set->base, shard, set->num_shards));
    for (size_t i = 0; i < n; i++) {
        const struct out_tensor *o = &set->native.out.items[of[i]];
        tensors[i] = (struct safetensors_out){o->name, o->dtype, o->num_dims, o->shape, 0};
    }
    struct strbuf head = {0};
    enum status st = safetensors_layout(tensors, n, &head, &plan->files[file].size_bytes, err);
    if (!st) own->head = (struct strbuf){arena_copy(a, head.data, head.length), head.length, 0};
    strbuf_release(&head);
    TRY(st);
    plan->files[file].finish = emit_own;
    plan->files[file].finish_context = own;
    for (size_t i = 0; i < n; i++)
        place_tensor(set, file, own, &tensors[i]);
    return OK;
}

static enum status lay_out_shards(struct shard_set *set, struct error *err)
{
    struct arena *a = &set->t->plan.arena;
    const size_t count = set->native.out.count;
    uint64_t *bytes = arena_array(a, count, sizeof *bytes);
    size_t *of = arena_array(a, count, sizeof *of);
    set->shards = arena_array(a, count, sizeof *set->shards);
    set->segments = arena_array(a, count, sizeof *set->segments);
    for (size_t i = 0; i < count; i++)
        bytes[i] = out_tensor_bytes(&set->native.out.items[i]);
    set->num_shards = hf_split_shards(bytes, count, set->t->options.max_shard_bytes, set->shards);
    size_t *first = arena_array(a, set->num_shards + 1, sizeof *first);
    for (size_t i = 0; i < count; i++)
        first[set->shards[i] + 1]++;
    for (size_t k = 0; k < set->num_shards; k++)
        first[k + 1] += first[k];
    size_t *next = arena_copy(a, first, set->num_shards * sizeof *next);
    for (size_t i = 0; i < count; i++)
        of[next[set->shards[i]]++] = i;
    for (size_t k = 0; k < set->num_shards; k++)
        TRY(lay_out_shard(set, k, of + first[k], first[k + 1] - first[k], err));
    return OK;
}

/* ---- the plan ---- */

/* Plans the elements of each output tensor. */
static enum status fill_segments(struct shard_set *set, struct error *err)
{
    for (size_t i = 0; i < set->native.out.count; i++) {
        const struct pair whole = pair_whole(0, 0, set->native.out.items[i].numel);
        TRY(native_outputs_fill(&set->native, i, &whole, set->segments[i], err));
    }
    return OK;
}

static enum status plan_set(struct shard_set *set, struct error *err)
{
    TRY(lay_out_shards(set, err));
    set->t->facts.num_target_tensors += set->native.out.count;
    set->t->facts.num_weight_files += set->num_shards;
    return fill_segments(set, err);
}

/* Adds the step, if the source knows it, as the first tensor of the optimizer's
 * files. */
static void add_step(struct hf_target *x)
{
    const struct native_output step = {.dtype = DT_I64};
    const uint64_t number = x->t->source->training.run.step;
    if (!x->t->num_states || !number || number > INT64_MAX) return;
    size_t at = out_tensors_add(&x->optimizer.native.out, &x->t->plan.arena, hf_step, &step);
    x->optimizer.native.out.items[at].filled = 1; /* by emit_own() */
}

/* Sets the outcomes of the training state: training.json holds all but states
 * of random number generators. */
static void set_hf_training_outcomes(struct target *t)
{
    const struct training *had = &t->source->training.run;
    const bool from_hf = t->source->format->has & FORMAT_CONFIG_JSON;
    if (!t->num_states) return;
    for (unsigned p = 0; p < NUM_TRAINING_PARTS; p++)
        if (training_has(had, (enum training_part)p))
            t->outcomes[p].outcome = from_hf ? OUTCOME_COPIED : OUTCOME_TRANSLATED;
    if (had->has_rng)
        t->outcomes[TRAINING_RNG] =
            (struct training_outcome){OUTCOME_DROPPED, "a Hugging Face folder has no place for it"};
}

static enum status plan_hf(struct target *t, struct error *err)
{
    struct hf_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    x->t = x->model.t = x->optimizer.t = t;
    native_outputs_init(&x->model.native, t);
    native_outputs_init(&x->optimizer.native, t);
    x->model.base = hf_model;
    x->optimizer.base = hf_optimizer;
    t->state = x;
    if (t->source->names_alone)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: a Hugging Face folder needs a config.json, and the source has none; "
                    "--hf-config DIR gives one",
                    t->source->path);
    TRY(hf_model_check_export(t, err));
    TRY(hf_model_make_config(t, &x->config, err));
    TRY(target_take_states(t, false, err));
    set_hf_training_outcomes(t);
    add_step(x);
    TRY(hf_model_export(t, add_hf_output, x, err));
    TRY(native_outputs_check(&x->model.native, err));
    x->main_dtype = native_outputs_main_dtype(&x->model.native);
    if (t->options.encoding) TRY(encodings_write(t, &x->model.native, &x->encodings, err));
    TRY(native_outputs_check(&x->optimizer.native, err));
    TRY(plan_set(&x->model, err));
    return plan_set(&x->optimizer, err);
}

/* ---- small files ---- */

static int by_tensor_name(const void *a, const void *b, void *out)
{
    const struct out_tensor *all = out;
    return strcmp(all[*(const size_t *)a].name, all[*(const size_t *)b].name);
}

/* Written like transformers: keys sorted, indented by 2. */
static void index_text(const struct shard_set *set, struct arena *a, struct strbuf *text)
{
    const struct out_tensors *out = &set->native.out;
    uint64_t total = 0;
    size_t *order = arena_array(a, out->count, sizeof *order);
    for (size_t i = 0; i < out->count; i++)
        order[i] = i;
    qsort_r(order, out->count, sizeof *order, by_tensor_name, out->items);
    for (size_t i = 0; i < out->count; i++)
        total += out_tensor_bytes(&out->items[i]);
    strbuf_printf(
        text, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {",
        total);
    for (size_t i = 0; i < out->count; i++) {
        const char *file = hf_shard_name(a, set->base, set->shards[order[i]], set->num_shards);
        strbuf_add_text(text, i ? ",\n    " : "\n    ");
        json_print_text(text, out->items[order[i]].name);
        strbuf_printf(text, ": \"%s\"", file);
    }
    strbuf_add_text(text, "\n  }\n}\n");
}

/* Writes the index, unless there is only one file. */
static enum status write_index(const struct shard_set *set, const char *folder, struct error *err)
{
    struct arena a;
    struct strbuf text = {0};
    if (set->num_shards <= 1) return OK;
    arena_init(&a);
    index_text(set, &a, &text);
    enum status st = file_write_all(path_join(&a, folder, hf_index_name(&a, set->base)), text.data,
                                    text.length, set->t->options.durable, err);
    strbuf_release(&text);
    arena_release(&a);
    return st;
}

/* Writes the training state, only together with states of the optimizer. */
static enum status write_training(const struct hf_target *x, const char *path, struct error *err)
{
    const struct target *t = x->t;
    if (!t->num_states) return OK;
    cJSON *tree = training_json(&t->source->training.run);
    enum status st = tree->child ? json_write_file(path, tree, t->options.durable, err) : OK;
    cJSON_Delete(tree);
    return st;
}

static enum status write_hf_small_files(struct target *t, const char *folder, struct error *err)
{
    const struct hf_target *x = t->state;
    struct arena a;
    arena_init(&a);
    encoding_writer_count(x->encodings, &t->facts);
    enum status st = hf_model_write_config(t, x->config, encoding_writer_config(x->encodings),
                                           x->main_dtype, folder, err);
    if (!st) st = write_training(x, path_join(&a, folder, hf_training_file), err);
    if (!st) st = write_index(&x->model, folder, err);
    if (!st) st = write_index(&x->optimizer, folder, err);
    arena_release(&a);
    return st;
}

static void release_hf(struct target *t)
{
    struct hf_target *x = t->state;
    cJSON_Delete(x->config);
    native_outputs_release(&x->model.native);
    native_outputs_release(&x->optimizer.native);
    encoding_writer_free(x->encodings);
}

const struct target_kind target_hf = {plan_hf, write_hf_small_files, NULL, release_hf};
