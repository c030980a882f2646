/* target_hf.c - a Hugging Face folder: safetensors shards, their index, config.json and what
 * travels with it. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"
#include "convert/format.h"
#include "convert/megatron_args.h"
#include "convert/source.h"
#include "convert/target.h"
#include "formats/hf_folder.h"
#include "formats/safetensors.h"

/* One tensor of the output, made of parts of one or more logical tensors. */
struct out_tensor {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    uint64_t numel, filled, bytes; /* filled: elements that parts give */
    uint32_t shard, segment;
};

struct part {
    const struct tensor *logical;
    size_t out;
    struct pair pair; /* a: logical, b: output tensor */
};

struct hf_target {
    struct target *t;
    struct out_tensor *out;
    size_t num_out, out_capacity;
    struct map names; /* -> out */
    struct part *parts;
    size_t num_parts, parts_capacity;
    size_t num_shards;
    uint64_t total_bytes;
    bool *carried; /* [tensors of the source] */
    cJSON *config; /* made here; NULL: the source's own goes on */
};

static enum status same_dtype(const struct out_tensor *o, enum dtype dtype, struct error *err)
{
    if (o->dtype == dtype) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s would be part %s, part %s; --torch-dtype casts both",
                o->name, dtype_infos[o->dtype].name, dtype_infos[dtype].name);
}

static enum status out_of_part(struct hf_target *x, const struct mapped_part *part,
                               enum dtype dtype, size_t *index, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    uint64_t numel = 1;
    if (map_get(&x->names, part->hf_name, index)) return same_dtype(&x->out[*index], dtype, err);
    for (unsigned d = 0; d < part->num_dims; d++)
        numel *= part->shape[d];
    *index = x->num_out;
    struct out_tensor *o = ARENA_PUSH(a, x->out, x->num_out, x->out_capacity);
    *o = (struct out_tensor){
        .name = arena_text(a, part->hf_name, strlen(part->hf_name)),
        .dtype = dtype,
        .num_dims = part->num_dims,
        .shape = arena_copy(a, part->shape, part->num_dims * sizeof *part->shape),
        .numel = numel,
        .bytes = numel * dtype_bytes(dtype),
    };
    (void)map_add(&x->names, o->name, *index, NULL);
    x->total_bytes += o->bytes;
    return OK;
}

/* Whether a logical tensor that is not there may be missing, by its own name or that of a part. */
static bool may_be_missing(const struct target *t, const struct mapped_tensor *m)
{
    bool allowed = globs_match(t->options.allow_missing, m->name);
    for (size_t i = 0; i < m->num_parts; i++)
        allowed |= globs_match(t->options.allow_missing, m->parts[i].hf_name);
    return allowed;
}

static enum status add_mapped(void *context, const struct mapped_tensor *m, struct error *err)
{
    struct hf_target *x = context;
    struct arena *a = &x->t->plan.arena;
    const struct tensor *logical = catalog_find(&x->t->source->catalog, m->name);
    if (!logical)
        return may_be_missing(x->t, m) ? OK : gaps_add_missing(&x->t->gaps, a, m->name, err);
    if (logical->num_dims != m->num_dims ||
        memcmp(logical->shape, m->shape, m->num_dims * sizeof *m->shape))
        return fail(err, ERR_UNSUPPORTED, "%s (%s) is %s; by the config it should be %s",
                    logical->stored_name ? logical->stored_name : m->name, m->name,
                    shape_text(a, logical->num_dims, logical->shape),
                    shape_text(a, m->num_dims, m->shape));
    x->carried[logical - x->t->source->catalog.tensors] = true;
    for (size_t i = 0; i < m->num_parts; i++) {
        size_t out;
        TRY(out_of_part(x, &m->parts[i], target_dtype(x->t, logical), &out, err));
        x->out[out].filled += pair_count(&m->parts[i].pair);
        *ARENA_PUSH(a, x->parts, x->num_parts, x->parts_capacity) =
            (struct part){logical, out, m->parts[i].pair};
    }
    return OK;
}

/* Rows of padding stay behind. */
static void count_cut_rows(struct target *t)
{
    const char *const name = "embedding.word_embeddings.weight.padding";
    const struct tensor *padding = catalog_find(&t->source->catalog, name);
    if (padding) t->facts.cut_rows = padding->shape[0];
}

/* Parameters that the family has no name for must not get lost. */
static void list_left_over(struct hf_target *x)
{
    const struct checkpoint *c = x->t->source;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        if (x->carried[i] || !is_parameter(t)) continue;
        if (!globs_match(x->t->options.allow_unexpected, t->name))
            gaps_add_unexpected(&x->t->gaps, &x->t->plan.arena, t->name);
    }
}

/* A tensor of which some parts are missing (a stack of experts) cannot be written. */
static enum status check_filled(const struct hf_target *x, struct error *err)
{
    for (size_t i = 0; i < x->num_out; i++)
        if (x->out[i].filled < x->out[i].numel)
            return fail(err, ERR_UNSUPPORTED,
                        "%s: of its %" PRIu64 " elements the source has %" PRIu64, x->out[i].name,
                        x->out[i].numel, x->out[i].filled);
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
    uint32_t file = plan_add_file(plan, hf_shard_name(&plan->arena, shard, x->num_shards));
    for (size_t i = 0; i < n; i++) {
        const struct out_tensor *o = &x->out[of[i]];
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
        (void)map_get(&x->names, tensors[i].name, &out);
        uint64_t numel = x->out[out].bytes / dtype_bytes(x->out[out].dtype);
        x->out[out].segment = plan_add_segment(plan, file, x->out[out].dtype, numel, false);
        plan->segments[x->out[out].segment].offset_bytes = tensors[i].offset_bytes;
    }
    strbuf_release(&head);
    return st;
}

static enum status lay_out_shards(struct hf_target *x, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    uint64_t *bytes = arena_array(a, x->num_out, sizeof *bytes);
    uint32_t *shard = arena_array(a, x->num_out, sizeof *shard);
    size_t *of = arena_array(a, x->num_out, sizeof *of);
    for (size_t i = 0; i < x->num_out; i++)
        bytes[i] = x->out[i].bytes;
    x->num_shards = hf_split_shards(bytes, x->num_out, x->t->options.max_shard_bytes, shard);
    size_t *first = arena_array(a, x->num_shards + 1, sizeof *first);
    for (size_t i = 0; i < x->num_out; i++)
        first[(x->out[i].shard = shard[i]) + 1]++;
    for (size_t k = 0; k < x->num_shards; k++)
        first[k + 1] += first[k];
    size_t *next = arena_copy(a, first, x->num_shards * sizeof *next);
    for (size_t i = 0; i < x->num_out; i++)
        of[next[shard[i]]++] = i;
    for (size_t k = 0; k < x->num_shards; k++)
        TRY(lay_out_shard(x, k, of + first[k], first[k + 1] - first[k], err));
    return OK;
}

/* ---- the plan ---- */

/* One message for all that config.json needs and nobody said. */
static enum status need_config(const struct target *t, struct arena *a, struct error *err)
{
    const struct checkpoint *c = t->source;
    const char *lacks = t->map ? model_config_lacks(t->map, &c->config, a) : NULL;
    bool vocab = lacks && strcmp(lacks, "vocab_size") == 0;
    if (c->hf_folder && t->map && c->config.vocab_size) return OK;
    if (!t->map)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: neither its args nor run_config.yaml tell which family of models it is: "
                    "--hf-config DIR takes all from a config.json, --model FAMILY names it where "
                    "args say the rest (see `ferry models`)",
                    c->path);
    if (vocab)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: it does not say how large the vocabulary is without its padding (%" PRIu64
                    " rows are stored): give --true-vocab-size N, or --hf-config DIR",
                    c->path, c->config.padded_vocab_size);
    if (!lacks) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: for config.json these are wanted, which neither its args nor run_config.yaml "
                "say: %s; --hf-config DIR takes all from a config.json",
                c->path, lacks);
}

/* A config.json of what is known of the model, where none came with it. Made before anything is
 * written, since the family may not be able to say it. */
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

static enum status plan_hf(struct target *t, struct error *err)
{
    struct hf_target *x = arena_alloc(&t->plan.arena, sizeof *x);
    x->t = t;
    t->own = x;
    TRY(source_check_beyond(t->source, err));
    TRY(need_config(t, &t->plan.arena, err));
    TRY(make_config(x, err));
    x->carried = arena_array(&t->plan.arena, t->source->catalog.num_tensors, sizeof *x->carried);
    enum status st = model_map_expand(t->map, &t->source->config, NULL, add_mapped, x, err);
    if (!st) list_left_over(x);
    if (!st) count_cut_rows(t);
    if (!st && (t->gaps.num_missing || t->gaps.num_unexpected))
        st = fail(err, ERR_UNSUPPORTED, "%s", "");
    if (!st) st = check_filled(x, err);
    if (!st) st = lay_out_shards(x, err);
    for (size_t i = 0; i < x->num_parts && !st; i++)
        plan_add_piece(&t->plan, x->parts[i].logical, x->out[x->parts[i].out].segment,
                       &x->parts[i].pair);
    map_release(&x->names);
    t->facts.num_target_tensors = x->num_out;
    t->facts.num_weight_files = x->num_shards;
    return st;
}

/* ---- small files ---- */

static int by_name(const void *a, const void *b, void *out)
{
    const struct out_tensor *all = out;
    return strcmp(all[*(const size_t *)a].name, all[*(const size_t *)b].name);
}

/* As transformers writes it: keys sorted, indented by 2. */
static enum status write_index(const struct hf_target *x, const char *path, struct error *err)
{
    struct arena a;
    struct strbuf text = {0};
    arena_init(&a);
    size_t *order = arena_array(&a, x->num_out, sizeof *order);
    for (size_t i = 0; i < x->num_out; i++)
        order[i] = i;
    qsort_r(order, x->num_out, sizeof *order, by_name, x->out);
    strbuf_printf(
        &text, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {",
        x->total_bytes);
    for (size_t i = 0; i < x->num_out; i++) {
        const struct out_tensor *o = &x->out[order[i]];
        strbuf_add_text(&text, i ? ",\n    " : "\n    ");
        json_print_text(&text, o->name);
        strbuf_printf(&text, ": \"%s\"", hf_shard_name(&a, o->shard, x->num_shards));
    }
    strbuf_add_text(&text, "\n  }\n}\n");
    enum status st = file_write_all(path, text.data, text.length, x->t->options.durable, err);
    strbuf_release(&text);
    arena_release(&a);
    return st;
}

/* The dtype that most bytes have. */
static enum dtype main_dtype(const struct hf_target *x)
{
    uint64_t bytes[NUM_DTYPES] = {0};
    int most = DT_F32;
    for (size_t i = 0; i < x->num_out; i++)
        bytes[x->out[i].dtype] += x->out[i].bytes;
    for (int i = 0; i < NUM_DTYPES; i++)
        if (bytes[i] > bytes[most]) most = i;
    return (enum dtype)most;
}

/* Whether a config.json says a dtype that weights are not of, or a quantisation that they lost. */
static bool says_other_weights(const cJSON *config, enum dtype dtype)
{
    const char *now = json_as_text(json_get(config, "dtype"));
    if (!now) now = json_as_text(json_get(config, "torch_dtype"));
    return json_get(config, "quantization_config") ||
           (now && strcmp(now, "auto") && strcmp(now, dtype_infos[dtype].torch));
}

/* The config.json that came with the model is copied byte for byte, with its companions, unless it
 * describes other weights. */
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
}

const struct target_kind target_hf = {plan_hf, write_small_files, NULL, release_hf};
