/* gpt_data.c - data of indexed datasets: for each split a GPTDataset, or a
 * blend, as by Megatron-LM's BlendedMegatronDatasetBuilder. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/memory.h"
#include "train/data/data_internal.h"
#include "train/data/description.h"
#include "train/data/index_cache.h"
#include "train/data/paths.h"

/* One split. */
struct gpt_split {
    struct gpt_dataset *datasets; /* [num_datasets] on the heap */
    size_t num_datasets;
    bool is_blend;
    struct blend blend;
};

struct gpt_data {
    struct indexed_dataset **files; /* open, in the order of `paths`; pointers stay */
    const char **paths;
    size_t num_files;
    struct gpt_split splits[NUM_SPLITS];
    struct split_shares shares;
    bool has_shares; /* false: each split has paths of its own */
    struct index_cache cache;
    cJSON *tokenizer;
};

/* ---- files ---- */

static enum status open_dataset_file(struct gpt_data *g, const char *path,
                                     struct indexed_dataset **out, struct error *err)
{
    for (size_t i = 0; i < g->num_files; i++)
        if (strcmp(g->paths[i], path) == 0) {
            *out = g->files[i];
            return OK;
        }
    g->files = must_realloc(g->files, (g->num_files + 1) * sizeof(struct indexed_dataset *));
    g->paths = must_realloc(g->paths, (g->num_files + 1) * sizeof *g->paths);
    struct indexed_dataset *file = must_calloc(1, sizeof *file);
    enum status st = indexed_dataset_open(file, path, err);
    if (st) {
        free(file);
        return st;
    }
    g->files[g->num_files] = *out = file;
    g->paths[g->num_files++] = path;
    return OK;
}

/* ---- one dataset ---- */

static enum status set_request(struct data *d, enum data_split split, const char *path,
                               uint64_t num_samples, struct gpt_request *q, struct error *err)
{
    struct gpt_data *g = d->state;
    struct indexed_dataset *file = NULL;
    TRY(open_dataset_file(g, path, &file, err));
    *q = (struct gpt_request){.file = file,
                              .path = path,
                              .split = split,
                              .past = file->num_sequences,
                              .num_samples = num_samples,
                              .seq_length = d->options.seq_length,
                              .seed = d->options.seed,
                              .no_extra_token = d->options.no_extra_token,
                              .keep_partial =
                                  split == SPLIT_VALID && d->options.keep_partial_validation};
    if (g->has_shares) split_range(&g->shares, split, file->num_sequences, &q->first, &q->past);
    return OK;
}

static cJSON *describe_dataset(const struct data *d, const struct gpt_dataset *x)
{
    const struct gpt_data *g = d->state;
    return describe_gpt(&x->request, g->has_shares ? d->options.split : NULL,
                        g->has_shares ? &g->shares : NULL, g->tokenizer);
}

static enum status add_dataset(struct data *d, enum data_split split, const char *path,
                               uint64_t num_samples, struct error *err)
{
    struct gpt_data *g = d->state;
    struct gpt_split *s = &g->splits[split];
    struct gpt_request q;
    TRY(set_request(d, split, path, num_samples, &q, err));
    struct gpt_dataset *x = &s->datasets[s->num_datasets++];
    TRY(gpt_dataset_prepare(x, &q, err));
    if (d->options.only_counts) return OK;
    cJSON *description = describe_dataset(d, x);
    enum status st = index_cache_gpt(&g->cache, x, description, err);
    cJSON_Delete(description);
    return st;
}

/* ---- a blend ---- */

static void store_blend(struct data *d, enum data_split split, const double *weights,
                        const uint64_t *lengths)
{
    const struct gpt_data *g = d->state;
    const struct gpt_split *s = &g->splits[split];
    cJSON **descriptions = must_calloc(s->num_datasets, sizeof(cJSON *));
    for (size_t k = 0; k < s->num_datasets; k++)
        descriptions[k] = describe_dataset(d, &s->datasets[k]);
    cJSON *description =
        describe_blend(descriptions, s->num_datasets, split, weights, lengths, s->blend.size);
    index_cache_blend(&g->cache, &s->blend, split, description);
    cJSON_Delete(description);
    free(descriptions);
}

/* After rounding of shares, a dataset may have fewer samples than the blend
 * needs. */
static enum status check_blend(const struct gpt_split *s, struct error *err)
{
    for (uint64_t i = 0; i < s->blend.size; i++) {
        const struct gpt_dataset *x = &s->datasets[s->blend.dataset_index[i]];
        if ((uint64_t)s->blend.dataset_sample_index[i] >= x->num_samples)
            return fail(err, ERR_UNSUPPORTED,
                        "%s for %s: blend sample %" PRIu64 " is its sample %" PRId64
                        ", but it has %" PRIu64 " samples",
                        x->request.path, split_names[x->request.split], i,
                        s->blend.dataset_sample_index[i], x->num_samples);
    }
    return OK;
}

/* Megatron-LM's BlendedDataset normalises the weights a second time. */
static enum status blend_weighted(struct data *d, enum data_split split,
                                  const struct blend_paths *p, struct error *err)
{
    struct gpt_split *s = &((struct gpt_data *)d->state)->splits[split];
    const uint64_t asked = d->options.samples[split];
    uint64_t size = 0;
    if (asked == ONE_EPOCH)
        return fail(err, ERR_USAGE,
                    "%s data: weights need a number of samples; omit the weights to read all",
                    split_names[split]);
    for (size_t k = 0; k < p->count; k++) {
        size += blend_share(asked, p->weights[k]);
        TRY(add_dataset(d, split, p->prefixes[k], blend_share_to_build(asked, p->weights[k]), err));
    }
    double *weights = must_calloc(p->count, sizeof *weights);
    memcpy(weights, p->weights, p->count * sizeof *weights);
    blend_normalize(weights, p->count);
    enum status st = blend_by_weight(&s->blend, weights, p->count, size, err);
    if (!st) store_blend(d, split, weights, NULL);
    free(weights);
    return st;
}

/* Makes a blend by the lengths of its datasets, of the requested samples or of
 * all. */
static enum status blend_lengths(struct data *d, enum data_split split, const uint64_t *lengths,
                                 double *weights, struct error *err)
{
    struct gpt_split *s = &((struct gpt_data *)d->state)->splits[split];
    const uint64_t asked = d->options.samples[split];
    uint64_t all = 0;
    if (asked == ONE_EPOCH) {
        TRY(blend_exhaustive(&s->blend, lengths, s->num_datasets, err));
        store_blend(d, split, NULL, lengths);
        return OK;
    }
    for (size_t k = 0; k < s->num_datasets; k++) {
        weights[k] = (double)lengths[k];
        all += lengths[k];
    }
    blend_normalize(weights, s->num_datasets);
    TRY(blend_by_weight(&s->blend, weights, s->num_datasets, min_u64(asked, all), err));
    store_blend(d, split, weights, NULL);
    return OK;
}

static enum status blend_unweighted(struct data *d, enum data_split split,
                                    const struct blend_paths *p, struct error *err)
{
    struct gpt_split *s = &((struct gpt_data *)d->state)->splits[split];
    for (size_t k = 0; k < p->count; k++)
        TRY(add_dataset(d, split, p->prefixes[k], ONE_EPOCH, err));
    uint64_t *lengths = must_calloc(p->count, sizeof *lengths);
    double *weights = must_calloc(p->count, sizeof *weights);
    for (size_t k = 0; k < p->count; k++)
        lengths[k] = s->datasets[k].num_samples;
    enum status st = blend_lengths(d, split, lengths, weights, err);
    free(lengths);
    free(weights);
    return st;
}

/* ---- splits ---- */

/* Whether a split has data at all. */
static enum status has_data(const struct data *d, enum data_split split, bool *yes,
                            struct error *err)
{
    const struct gpt_data *g = d->state;
    const struct data_options *o = &d->options;
    *yes = o->samples[split] &&
           (g->has_shares ? split_has_share(&g->shares, split) : o->split_paths[split].count > 0);
    if (*yes || split != SPLIT_TRAIN || !o->samples[split]) return OK;
    return fail(err, ERR_USAGE, "--split %s leaves no training data", o->split);
}

static enum status open_split(struct data *d, enum data_split split, struct error *err)
{
    struct gpt_data *g = d->state;
    struct gpt_split *s = &g->splits[split];
    struct blend_paths p;
    bool yes;
    TRY(has_data(d, split, &yes, err));
    if (!yes) return OK;
    TRY(blend_paths_parse(&p, g->has_shares ? &d->options.paths : &d->options.split_paths[split],
                          &d->arena, err));
    s->datasets = must_calloc(p.count, sizeof *s->datasets);
    s->is_blend = p.count > 1 || (p.weights && g->has_shares);
    if (!s->is_blend)
        TRY(add_dataset(d, split, p.prefixes[0], d->options.samples[split], err));
    else
        TRY(p.weights ? blend_weighted(d, split, &p, err) : blend_unweighted(d, split, &p, err));
    if (s->is_blend) TRY(check_blend(s, err));
    d->num_samples[split] = s->is_blend ? s->blend.size : s->datasets[0].num_samples;
    return OK;
}

/* Megatron-LM's description of its NullTokenizer. */
static cJSON *null_tokenizer(uint64_t vocab_size)
{
    char text[24];
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "class", "megatron.core.tokenizers.text.text_tokenizer.MegatronTokenizerText");
    cJSON_AddNullToObject(o, "tokenizer_path");
    (void)snprintf(text, sizeof text, "%" PRIu64, vocab_size);
    json_add_text(o, "vocab_size", text);
    return o;
}

static enum status open_gpt(struct data *d, struct error *err)
{
    struct gpt_data *g = d->state = must_calloc(1, sizeof *g);
    const struct data_options *o = &d->options;
    g->has_shares = o->paths.count > 0;
    g->cache = (struct index_cache){.folder = o->cache_path,
                                    .read_only = o->cache_read_only || o->only_counts,
                                    .note = o->note,
                                    .context = o->context};
    if (g->has_shares) TRY(split_parse(&g->shares, o->split, err));
    if (o->tokenizer)
        TRY(json_parse(o->tokenizer, strlen(o->tokenizer), JSON_STRICT, &g->tokenizer, err));
    else
        g->tokenizer = null_tokenizer(o->null_vocab_size);
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        TRY(open_split(d, (enum data_split)k, err));
    return OK;
}

static void close_gpt(struct data *d)
{
    struct gpt_data *g = d->state;
    for (unsigned k = 0; k < NUM_SPLITS; k++) {
        for (size_t i = 0; i < g->splits[k].num_datasets; i++)
            gpt_dataset_release(&g->splits[k].datasets[i]);
        free(g->splits[k].datasets);
        blend_release(&g->splits[k].blend);
    }
    for (size_t i = 0; i < g->num_files; i++) {
        indexed_dataset_close(g->files[i]);
        free(g->files[i]);
    }
    free(g->files);
    free(g->paths);
    cJSON_Delete(g->tokenizer);
    free(g);
}

/* ---- rows ---- */

/* Padding id of tokens; -1: none, which fills short samples. A padding id that
 * also ends documents counts as none. */
static int32_t padding_of(const struct data_options *o)
{
    return o->pad_id >= 0 && o->pad_id <= INT32_MAX && o->pad_id != o->eod_id ? (int32_t)o->pad_id
                                                                              : -1;
}

/* text[seq_length + 1]; without an extra token the last one is unused. */
static void fill_row(const struct data_options *o, const int32_t *text, const bool *parts,
                     struct data_rows *row)
{
    const int32_t padding = padding_of(o);
    const uint64_t n = o->seq_length;
    uint64_t run = 0; /* where positions begin */
    for (uint64_t i = 0; i < n; i++) {
        const bool ends = o->eod_id >= 0 && text[i] == o->eod_id;
        const bool behind_end = i && o->eod_id >= 0 && text[i - 1] == o->eod_id;
        const bool is_part = o->inter_document_masking && parts[i];
        const int32_t label = o->no_extra_token && i + 1 == n ? padding : text[i + 1];
        if (is_part || (o->reset_position_ids && behind_end)) run = i;
        row->positions[i] = (int32_t)(i - run);
        row->starts[i] = i == 0 || is_part || (o->reset_attention_mask && behind_end);
        row->loss_mask[i] = label == padding || (o->eod_mask_loss && ends) ? 0 : 1;
        row->tokens[i] = text[i] == padding ? 0 : text[i];
        row->labels[i] = label == padding ? 0 : label;
    }
}

static enum status read_gpt(const struct data *d, enum data_split split, uint64_t sample,
                            struct data_rows *row, struct error *err)
{
    const struct gpt_split *s = &((const struct gpt_data *)d->state)->splits[split];
    const struct data_options *o = &d->options;
    const struct gpt_dataset *x = s->datasets;
    if (s->is_blend) {
        x += s->blend.dataset_index[sample];
        sample = (uint64_t)s->blend.dataset_sample_index[sample];
    }
    int32_t *text = must_calloc(o->seq_length + 1, sizeof *text);
    bool *parts = must_calloc(o->seq_length + 1, sizeof *parts);
    enum status st = gpt_dataset_read(x, sample, o->vocab_size, padding_of(o), text, parts, err);
    if (!st) fill_row(o, text, parts, row);
    free(text);
    free(parts);
    return st;
}

static void describe_files(const struct data *d, struct strbuf *out)
{
    const struct gpt_data *g = d->state;
    for (size_t i = 0; i < g->num_files; i++)
        data_describe_file(out, g->paths[i], g->files[i]->num_documents, g->files[i]->num_tokens);
}

const struct data_kind data_kind_gpt = {
    .open = open_gpt, .close = close_gpt, .read = read_gpt, .describe = describe_files};
