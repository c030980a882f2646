/* target_hf.c - writes a Hugging Face folder: safetensors shards, their index, config.json and its
 * companions. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"
#include "convert/companions.h"
#include "convert/format.h"
#include "convert/hf_config.h"
#include "convert/map/model_fit.h"
#include "convert/megatron/megatron_args.h"
#include "convert/naming.h"
#include "formats/hf_folder.h"
#include "formats/safetensors.h"

/* The part of an output tensor whose elements come from one logical tensor. */
struct part {
    size_t out;
    struct own_source source;
};

struct hf_target {
    struct target *t;
    struct out_tensors out;
    uint32_t *shards, *segments; /* [out.count] */
    struct part *parts;
    size_t num_parts, parts_capacity;
    size_t num_shards;
    cJSON *config; /* made here; NULL: the source's config.json is copied */
};

static uint64_t bytes_of(const struct out_tensor *o)
{
    return o->numel * dtype_bytes(o->dtype);
}

static enum status add_output(void *context, const struct own_output *own, struct error *err)
{
    struct hf_target *x = context;
    struct arena *a = &x->t->plan.arena;
    size_t at = out_tensors_add(&x->out, a, own->name, own);
    struct out_tensor *o = &x->out.items[at];
    if (o->dtype != own->dtype)
        return fail(err, ERR_UNSUPPORTED, "%s would be part %s, part %s; --torch-dtype casts both",
                    o->name, dtype_infos[o->dtype].name, dtype_infos[own->dtype].name);
    for (unsigned i = 0; i < own->num_parts; i++) {
        o->filled += pair_count(&own->parts[i].pair);
        *ARENA_PUSH(a, x->parts, x->num_parts, x->parts_capacity) =
            (struct part){at, own->parts[i]};
    }
    return OK;
}

/* Rows of vocabulary padding are not written. */
static void count_cut_rows(struct target *t)
{
    const char *const name = "embedding.word_embeddings.weight.padding";
    const struct tensor *padding = catalog_find(&t->source->catalog, name);
    if (padding) t->facts.cut_rows = padding->shape[0];
}

/* A tensor of which some parts are missing (a stack of experts) cannot be written. */
static enum status check_filled(const struct hf_target *x, struct error *err)
{
    for (size_t i = 0; i < x->out.count; i++) {
        const struct out_tensor *o = &x->out.items[i];
        if (o->filled < o->numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: of its %" PRIu64 " elements the source has %" PRIu64, o->name,
                        o->numel, o->filled);
    }
    return OK;
}

/* ---- shards ---- */

static enum status emit_head(const struct plan *plan, uint32_t file, void *context,
                             const struct file_writer *writer, struct error *err)
{
    const struct strbuf *head = context;
    (void)plan, (void)file;
    return writer->put(writer->context, 0, head->data, head->length, err);
}

/* Lays out the shard whose tensors are out[of[0..n)]. */
static enum status lay_out_shard(struct hf_target *x, size_t shard, const size_t *of, size_t n,
                                 struct error *err)
{
    struct plan *plan = &x->t->plan;
    struct safetensors_out *tensors = arena_array(&plan->arena, n, sizeof *tensors);
    uint32_t file =
        plan_add_file(plan, hf_shard_name(&plan->arena, hf_model, shard, x->num_shards));
    for (size_t i = 0; i < n; i++) {
        const struct out_tensor *o = &x->out.items[of[i]];
        tensors[i] = (struct safetensors_out){o->name, o->dtype, o->num_dims, o->shape, 0};
    }
    struct strbuf head = {0};
    enum status st = safetensors_layout(tensors, n, &head, &plan->files[file].size_bytes, err);
    if (!st) {
        struct strbuf *kept = arena_alloc(&plan->arena, sizeof *kept);
        *kept = (struct strbuf){arena_copy(&plan->arena, head.data, head.length), head.length, 0};
        plan->files[file].finish = emit_head;
        plan->files[file].finish_context = kept;
    }
    for (size_t i = 0; i < n && !st; i++) {
        size_t out = 0;
        (void)map_get(&x->out.names, tensors[i].name, &out);
        const struct out_tensor *o = &x->out.items[out];
        x->segments[out] = plan_add_segment(plan, file, o->dtype, o->numel, false);
        plan->segments[x->segments[out]].offset_bytes = tensors[i].offset_bytes;
    }
    strbuf_release(&head);
    return st;
}

static enum status lay_out_shards(struct hf_target *x, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const size_t count = x->out.count;
    uint64_t *bytes = arena_array(a, count, sizeof *bytes);
    size_t *of = arena_array(a, count, sizeof *of);
    x->shards = arena_array(a, count, sizeof *x->shards);
    x->segments = arena_array(a, count, sizeof *x->segments);
    for (size_t i = 0; i < count; i++)
        bytes[i] = bytes_of(&x->out.items[i]);
    x->num_shards = hf_split_shards(bytes, count, x->t->options.max_shard_bytes, x->shards);
    size_t *first = arena_array(a, x->num_shards + 1, sizeof *first);
    for (size_t i = 0; i < count; i++)
        first[x->shards[i] + 1]++;
    for (size_t k = 0; k < x->num_shards; k++)
        first[k + 1] += first[k];
    size_t *next = arena_copy(a, first, x->num_shards * sizeof *next);
    for (size_t i = 0; i < count; i++)
        of[next[x->shards[i]]++] = i;
    for (size_t k = 0; k < x->num_shards; k++)
        TRY(lay_out_shard(x, k, of + first[k], first[k + 1] - first[k], err));
    return OK;
}

/* ---- the plan ---- */

/* One message that names all fields that config.json needs and no source gives. */
static enum status need_config(const struct target *t, struct arena *a, struct error *err)
{
    const struct checkpoint *c = t->source;
    const char *lacks = t->map ? model_config_lacks(t->map, &c->config, a) : NULL;
    bool vocab = lacks && strcmp(lacks, "vocab_size") == 0;
    if (c->hf_folder && t->map && c->config.vocab_size) return OK;
    if (!t->map)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its args or run_config.yaml fit no family of models; the nearest is %s; "
                    "--hf-config DIR takes the config from a config.json, --model FAMILY names the "
                    "family if args have everything else (see `ferry models`)",
                    c->path, model_fit_nearest(t->maps, &c->config, a));
    if (vocab)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: it does not say how large the vocabulary is without its padding (%" PRIu64
                    " rows are stored): give --true-vocab-size N, or --hf-config DIR",
                    c->path, c->config.padded_vocab_size);
    if (!lacks) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: config.json needs fields that neither its args nor run_config.yaml have: %s; "
                "--hf-config DIR takes the config from a config.json",
                c->path, lacks);
}

/* Makes a config.json from the config of the model if the source has none. This comes before
 * anything is written, since the family may have no words for the config. */
static enum status make_config(struct hf_target *x, struct error *err)
{
    const struct target *t = x->t;
    if (t->source->hf_folder) return OK;
    cJSON *config = x->config = cJSON_CreateObject();
    cJSON *architectures = cJSON_AddArrayToObject(config, "architectures");
    cJSON_AddItemToArray(architectures, cJSON_CreateString(model_map_architecture(t->map)));
    cJSON_AddStringToObject(config, "model_type", model_map_model_type(t->map));
    if (model_config_to_hf(t->map, &t->source->config, config, err))
        return fail_in(err, "%s", t->source->path);
    return OK;
}

/* Plans a segment for each output tensor. */
static enum status fill_segments(struct hf_target *x, struct error *err)
{
    for (size_t i = 0; i < x->num_parts; i++) {
        const struct part *part = &x->parts[i];
        const struct own_output own = {.parts = {part->source}, .num_parts = 1};
        const struct pair whole = pair_whole(0, 0, x->out.items[part->out].numel);
        TRY(target_fill(x->t, &own, &whole, x->segments[part->out], err));
    }
    return OK;
}

static enum status plan_hf(struct target *t, struct error *err)
{
    struct hf_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    x->t = t;
    t->own = x;
    TRY(source_check_exports(t->source, err));
    TRY(need_config(t, &t->plan.arena, err));
    TRY(make_config(x, err));
    TRY(t->format->naming->export(&(struct naming_export){.t = t}, add_output, x, err));
    count_cut_rows(t);
    TRY(gaps_check(&t->gaps, t->source->path, err));
    TRY(check_filled(x, err));
    TRY(lay_out_shards(x, err));
    t->facts.num_target_tensors = x->out.count;
    t->facts.num_weight_files = x->num_shards;
    return fill_segments(x, err);
}

/* ---- small files ---- */

static int by_name(const void *a, const void *b, void *out)
{
    const struct out_tensor *all = out;
    return strcmp(all[*(const size_t *)a].name, all[*(const size_t *)b].name);
}

/* Written as transformers does: keys sorted, indented by 2. */
static enum status write_index(const struct hf_target *x, const char *path, struct error *err)
{
    struct arena a;
    struct strbuf text = {0};
    arena_init(&a);
    size_t *order = arena_array(&a, x->out.count, sizeof *order);
    for (size_t i = 0; i < x->out.count; i++)
        order[i] = i;
    qsort_r(order, x->out.count, sizeof *order, by_name, x->out.items);
    uint64_t total = 0;
    for (size_t i = 0; i < x->out.count; i++)
        total += bytes_of(&x->out.items[i]);
    strbuf_printf(
        &text, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {",
        total);
    for (size_t i = 0; i < x->out.count; i++) {
        strbuf_add_text(&text, i ? ",\n    " : "\n    ");
        json_print_text(&text, x->out.items[order[i]].name);
        strbuf_printf(&text, ": \"%s\"",
                      hf_shard_name(&a, hf_model, x->shards[order[i]], x->num_shards));
    }
    strbuf_add_text(&text, "\n  }\n}\n");
    enum status st = file_write_all(path, text.data, text.length, x->t->options.durable, err);
    strbuf_release(&text);
    arena_release(&a);
    return st;
}

/* The dtype of most bytes. */
static enum dtype main_dtype(const struct hf_target *x)
{
    uint64_t bytes[NUM_DTYPES] = {0};
    int most = DT_F32;
    for (size_t i = 0; i < x->out.count; i++)
        bytes[x->out.items[i].dtype] += bytes_of(&x->out.items[i]);
    for (int i = 0; i < NUM_DTYPES; i++)
        if (bytes[i] > bytes[most]) most = i;
    return (enum dtype)most;
}

/* Whether a config.json says another dtype than the weights have, or a quantisation that they
 * lost. */
static bool says_other_weights(const cJSON *config, enum dtype dtype)
{
    const char *now = json_as_text(json_get(config, "dtype"));
    if (!now) now = json_as_text(json_get(config, "torch_dtype"));
    return json_get(config, "quantization_config") ||
           (now && strcmp(now, "auto") && strcmp(now, dtype_infos[dtype].torch));
}

/* The source's config.json is copied byte for byte, with its companions, unless it says another
 * dtype or a quantisation. */
static enum status write_config(const struct hf_target *x, const char *path, struct error *err)
{
    const struct target *t = x->t;
    enum dtype dtype = t->options.casts ? t->options.dtype : main_dtype(x);
    struct strbuf text = {0};
    cJSON *read = NULL;
    if (t->source->hf_folder) {
        TRY(hf_config_read(t->source->hf_folder, &read, err));
        bool other =
            says_other_weights(read, dtype) && !(t->source->format->has & FORMAT_CONFIG_JSON);
        if (!other && !t->options.casts) {
            cJSON_Delete(read);
            return OK;
        }
        if (!(t->source->format->has & FORMAT_CONFIG_JSON))
            cJSON_DeleteItemFromObjectCaseSensitive(read, "quantization_config");
    }
    cJSON *config = read ? read : x->config;
    hf_config_set_dtype(config, dtype);
    json_print(&text, config, 2);
    strbuf_add_char(&text, '\n');
    enum status st = file_write_all(path, text.data, text.length, t->options.durable, err);
    strbuf_release(&text);
    cJSON_Delete(read);
    return st;
}

static enum status write_small_files(struct target *t, const char *folder, struct error *err)
{
    const struct hf_target *x = t->own;
    struct arena a;
    arena_init(&a);
    enum status st = write_config(x, path_join(&a, folder, "config.json"), err);
    if (!st && t->source->hf_folder)
        st = copy_companions(t->source->hf_folder, folder, t->options.durable, err);
    if (!st && x->num_shards > 1)
        st = write_index(x, path_join(&a, folder, "model.safetensors.index.json"), err);
    arena_release(&a);
    return st;
}

static void release_hf(struct target *t)
{
    struct hf_target *x = t->own;
    cJSON_Delete(x->config);
    map_release(&x->out.names);
}

const struct target_kind target_hf = {plan_hf, write_small_files, NULL, release_hf};
