/* inspect.c - ferry inspect: what is this? */
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/result.h"
#include "convert/commands.h"
#include "convert/inspect.h"
#include "convert/options.h"
#include "convert/record.h"

struct inspect_flags {
    struct source_flags source;
    struct output_flags output;
    const char *tensors;
    bool stored;
};

// clang-format off
#define AT(field) offsetof(struct inspect_flags, field)
static const struct arg inspect_args[] = {
    {"--tensors", ARG_TEXT, AT(tensors), "GLOB", NULL, "list the tensors whose names match, as '*' or '*.linear_fc1.*'; where no logical name does, those of the files"},
    {"--stored", ARG_FLAG, AT(stored), NULL, NULL, "list tensors as the files call and cut them"},
};
static const struct arg_group inspect_groups[] = {
    {"Inspection", inspect_args, sizeof inspect_args / sizeof *inspect_args, 0},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

static void set_defaults(void *options)
{
    ((struct inspect_flags *)options)->source.ckpt_step = UINT64_MAX;
}

/* ---- groups of tensors ---- */

/* The first pattern that fits says the group; the last fits all. */
static const struct {
    const char *pattern, *group;
} groups[] = {
    {"optimizer.*", "optimizer"},
    {"*.padding", "vocabulary padding"},
    {"embedding.*", "embeddings"},
    {"output_layer.*", "output layer"},
    {"*norm*", "norms"},
    {"*.self_attention.*", "attention"},
    {"*.experts.*", "experts"},
    {"*.shared_experts.*", "shared experts"},
    {"*.router.*", "router"},
    {"*.mlp.*", "mlp"},
    {"*", "other"},
};
enum { NUM_GROUPS = sizeof groups / sizeof *groups };

static int group_of(const char *name)
{
    int i = 0;
    while (fnmatch(groups[i].pattern, name, 0))
        i++;
    return i;
}

struct group_sum {
    size_t tensors;
    uint64_t bytes;
};

static void sum_groups(const struct catalog *c, bool stored, struct group_sum sums[NUM_GROUPS])
{
    memset(sums, 0, NUM_GROUPS * sizeof *sums);
    size_t n = stored ? c->stored.num_tensors : c->num_tensors;
    for (size_t i = 0; i < n; i++) {
        const char *name = stored ? c->stored.tensors[i].name : c->tensors[i].name;
        uint64_t bytes = 0;
        if (stored)
            bytes = stored_tensor_bytes(&c->stored.tensors[i]);
        else
            (void)dtype_size_bytes(c->tensors[i].dtype, c->tensors[i].numel, &bytes);
        struct group_sum *sum = &sums[group_of(name)];
        sum->tensors++;
        sum->bytes += bytes;
    }
}

/* ---- text ---- */

static void model_text(struct strbuf *out, const struct model_config *m)
{
    strbuf_printf(out,
                  "model      %" PRIu64 " layers, hidden %" PRIu64 ", %" PRIu64 " heads, %" PRIu64
                  " key/value heads of %" PRIu64 ", ffn %" PRIu64 "\n",
                  m->num_layers, m->hidden_size, m->num_attention_heads, m->num_query_groups,
                  m->kv_channels, m->ffn_hidden_size);
    if (m->num_experts)
        strbuf_printf(out, "experts    %" PRIu64 ", %" PRIu64 " a token, ffn %" PRIu64 "\n",
                      m->num_experts, m->moe_router_topk, m->moe_ffn_hidden_size);
    strbuf_add_text(out, "vocabulary ");
    if (m->vocab_size)
        strbuf_printf(out, "%" PRIu64, m->vocab_size);
    else
        strbuf_add_text(out, "size not known");
    if (m->padded_vocab_size) strbuf_printf(out, ", %" PRIu64 " stored", m->padded_vocab_size);
    strbuf_printf(out, ", embeddings %s, %" PRIu64 " positions\n",
                  m->untie_embeddings_and_output_weights ? "untied" : "tied",
                  m->max_position_embeddings);
}

static void groups_text(struct strbuf *out, const struct catalog *c, bool stored)
{
    struct group_sum sums[NUM_GROUPS];
    sum_groups(c, stored, sums);
    strbuf_add_text(out, "bytes\n");
    for (int i = 0; i < NUM_GROUPS; i++)
        if (sums[i].tensors)
            strbuf_printf(out, "  %-20s %8zu tensors  %10s\n", groups[i].group, sums[i].tensors,
                          bytes_text(sums[i].bytes));
}

static void add_name(struct strbuf *out, const char *name)
{
    strbuf_add_escaped(out, name, strlen(name));
}

static void tensor_row(struct strbuf *out, struct arena *a, const char *name, enum dtype dtype,
                       unsigned num_dims, const uint64_t *shape, size_t num_pieces)
{
    strbuf_add_text(out, "  ");
    add_name(out, name);
    strbuf_printf(out, "  %s %s", dtype_infos[dtype].name, shape_text(a, num_dims, shape));
    if (num_pieces > 1) strbuf_printf(out, "  %zu pieces", num_pieces);
    strbuf_add_char(out, '\n');
}

/* A glob that no logical name matches is taken for one of the files' own names. */
static bool lists_stored(const struct catalog *c, bool stored, const char *glob)
{
    for (size_t i = 0; !stored && i < c->num_tensors; i++)
        if (fnmatch(glob, c->tensors[i].name, 0) == 0) return false;
    return true;
}

static void tensors_text(struct strbuf *out, struct catalog *c, bool stored, const char *glob)
{
    stored = lists_stored(c, stored, glob);
    strbuf_add_text(out, stored ? "tensors, as the files call them\n" : "tensors\n");
    size_t start = out->length;
    for (size_t i = 0; !stored && i < c->num_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        if (fnmatch(glob, t->name, 0) == 0)
            tensor_row(out, &c->arena, t->name, t->dtype, t->num_dims, t->shape, t->num_pieces);
    }
    for (size_t i = 0; stored && i < c->stored.num_tensors; i++) {
        const struct stored_tensor *t = &c->stored.tensors[i];
        if (fnmatch(glob, t->name, 0) == 0)
            tensor_row(out, &c->arena, t->name, t->dtype, t->num_dims, t->shape, t->num_pieces);
    }
    for (size_t i = 0; stored && i < c->stored.num_objects; i++)
        if (fnmatch(glob, c->stored.objects[i].name, 0) == 0) {
            strbuf_add_text(out, "  ");
            add_name(out, c->stored.objects[i].name);
            strbuf_printf(out, "  object, %" PRIu64 " bytes\n", c->stored.objects[i].size_bytes);
        }
    if (out->length == start) strbuf_printf(out, "  none matches \"%s\"\n", glob);
}

static void names_text(struct strbuf *out, const char *what, const char *const *names, size_t count)
{
    if (!count) return;
    strbuf_printf(out, "%s %zu tensors\n", what, count);
    for (size_t i = 0; i < count; i++) {
        strbuf_add_text(out, "  ");
        add_name(out, names[i]);
        strbuf_add_char(out, '\n');
    }
}

static uint64_t all_bytes(const struct catalog *c, bool stored)
{
    struct group_sum sums[NUM_GROUPS];
    uint64_t bytes = 0;
    sum_groups(c, stored, sums);
    for (int i = 0; i < NUM_GROUPS; i++)
        bytes += sums[i].bytes;
    return bytes;
}

static void add_member(struct strbuf *out, const char *before, const cJSON *text)
{
    strbuf_add_text(out, before);
    add_name(out, json_as_text(text) ? json_as_text(text) : "(not told)");
}

/* What ferry.json says; one that cannot be read is said to be there. */
static void record_text(struct strbuf *out, const struct catalog *c)
{
    struct error why;
    cJSON *record = NULL;
    if (!c->folder) return;
    if (record_read(c->folder, &record, &why)) {
        strbuf_printf(out, "record     not readable: %s\n", why.text);
        return;
    }
    if (!record) return;
    add_member(out, "record     written ", json_get(record, "written"));
    add_member(out, " by ferry ", json_get(record, "ferry"));
    add_member(out, " from ", json_get(json_get(record, "source"), "path"));
    add_member(out, "\ndigest     ", json_get(json_get(record, "digest"), "*"));
    strbuf_add_char(out, '\n');
    cJSON_Delete(record);
}

static void inspect_text(struct strbuf *out, struct catalog *c, const struct inspect_flags *f,
                         bool stored_only)
{
    struct parameter_count n;
    bool stored = stored_only || f->stored;
    count_parameters(c, &n);
    strbuf_printf(out, "format     %s, %zu files, %zu stored tensors, %zu objects, %s\n", c->format,
                  c->stored.num_files, c->stored.num_tensors, c->stored.num_objects,
                  bytes_text(all_bytes(c, true)));
    if (!stored_only) {
        strbuf_printf(out, "family     %s\n", c->family ? c->family : "not known");
        if (c->release)
            strbuf_add_text(out, "iteration  release\n");
        else if (c->iteration >= 0)
            strbuf_printf(out, "iteration  %" PRId64 "\n", c->iteration);
        if (strcmp(c->format, "hf"))
            strbuf_printf(out, "layout     %s, names of %s\n", layout_text(&c->layout, &c->arena),
                          c->transformer_engine_names ? "Transformer Engine" : "local layers");
        model_text(out, &c->config);
        strbuf_printf(out, "parameters %" PRIu64 ", %s, ", n.elements, bytes_text(n.bytes));
        print_dtypes(out, &n);
        strbuf_printf(out, "\noptimizer  %s", c->optimizer.present ? c->optimizer.kind : "none");
        if (c->optimizer.present) strbuf_printf(out, ", %s", bytes_text(c->optimizer.size_bytes));
        strbuf_add_char(out, '\n');
        record_text(out, c);
    }
    groups_text(out, c, stored);
    names_text(out, "missing", c->missing, c->num_missing);
    names_text(out, "unexpected", c->unexpected, c->num_unexpected);
    if (f->tensors) tensors_text(out, c, stored, f->tensors);
}

/* ---- JSON ---- */

static void tensor_json(cJSON *list, const char *name, enum dtype dtype, unsigned num_dims,
                        const uint64_t *shape, size_t num_pieces)
{
    cJSON *o = cJSON_CreateObject(), *dims = cJSON_CreateArray();
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddStringToObject(o, "dtype", dtype_infos[dtype].name);
    for (unsigned d = 0; d < num_dims; d++)
        cJSON_AddItemToArray(dims, json_new_u64(shape[d]));
    cJSON_AddItemToObject(o, "shape", dims);
    cJSON_AddItemToObject(o, "shards", json_new_u64(num_pieces));
    cJSON_AddItemToArray(list, o);
}

static void tensors_json(cJSON *o, const struct catalog *c, bool stored, const char *glob)
{
    cJSON *list = cJSON_AddArrayToObject(o, "tensors");
    stored = lists_stored(c, stored, glob);
    for (size_t i = 0; !stored && i < c->num_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        if (fnmatch(glob, t->name, 0) == 0)
            tensor_json(list, t->name, t->dtype, t->num_dims, t->shape, t->num_pieces);
    }
    for (size_t i = 0; stored && i < c->stored.num_tensors; i++) {
        const struct stored_tensor *t = &c->stored.tensors[i];
        if (fnmatch(glob, t->name, 0) == 0)
            tensor_json(list, t->name, t->dtype, t->num_dims, t->shape, t->num_pieces);
    }
}

static void config_json(cJSON *o, const struct model_config *m)
{
    cJSON *config = cJSON_AddObjectToObject(o, "config");
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        const void *at = (const char *)m + f->offset;
        const char *text = f->kind == FIELD_TEXT ? *(const char *const *)at : NULL;
        cJSON *item = f->kind == FIELD_UINT   ? json_new_u64(*(const uint64_t *)at)
                      : f->kind == FIELD_REAL ? json_new_double(*(const double *)at)
                      : f->kind == FIELD_BOOL ? cJSON_CreateBool(*(const bool *)at)
                      : text                  ? cJSON_CreateString(text)
                                              : cJSON_CreateNull();
        cJSON_AddItemToObject(config, f->name, item);
    }
}

static void groups_json(cJSON *o, const struct catalog *c, bool stored)
{
    struct group_sum sums[NUM_GROUPS];
    cJSON *list = cJSON_AddObjectToObject(o, "groups");
    sum_groups(c, stored, sums);
    for (int i = 0; i < NUM_GROUPS; i++) {
        if (!sums[i].tensors) continue;
        cJSON *group = cJSON_AddObjectToObject(list, groups[i].group);
        cJSON_AddItemToObject(group, "tensors", json_new_u64(sums[i].tensors));
        cJSON_AddItemToObject(group, "bytes", json_new_u64(sums[i].bytes));
    }
}

/* ferry.json without the digests of single tensors. */
static void record_json(cJSON *o, const struct catalog *c)
{
    struct error why;
    cJSON *record = NULL;
    if (!c->folder || record_read(c->folder, &record, &why) || !record) return;
    cJSON_DeleteItemFromObjectCaseSensitive(record, "tensors");
    cJSON_DeleteItemFromObjectCaseSensitive(record, "source_tensors");
    cJSON_AddItemToObject(o, "record", record);
}

static void inspect_json(struct catalog *c, const struct inspect_flags *f, bool stored_only)
{
    cJSON *o = cJSON_CreateObject();
    bool stored = stored_only || f->stored;
    struct conversion report = {.source = c};
    report_plan_json(o, &report);
    cJSON_AddItemToObject(o, "stored_tensors", json_new_u64(c->stored.num_tensors));
    cJSON_AddItemToObject(o, "stored_bytes", json_new_u64(all_bytes(c, true)));
    cJSON_AddItemToObject(o, "files", json_new_u64(c->stored.num_files));
    cJSON_AddItemToObject(o, "optimizer",
                          c->optimizer.present ? cJSON_CreateString(c->optimizer.kind)
                                               : cJSON_CreateNull());
    if (!stored_only) config_json(o, &c->config);
    record_json(o, c);
    groups_json(o, c, stored);
    if (f->tensors) tensors_json(o, c, stored, f->tensors);
    result_set(o);
}

static enum status inspect(void *options, const char *const *positional, size_t num_positional,
                           struct error *err)
{
    const struct inspect_flags *f = options;
    struct opened o;
    struct strbuf text = {0};
    (void)num_positional;
    enum status st = opened_open(&o, positional[0], &f->source, true, f->output.quiet, err);
    if (!st) {
        if (f->output.json)
            inspect_json(&o.catalog, f, o.stored_only);
        else
            inspect_text(&text, &o.catalog, f, o.stored_only);
        if (text.length) fputs(text.data, stdout);
    }
    strbuf_release(&text);
    opened_close(&o);
    return st;
}

const struct command command_inspect = {
    .name = "inspect",
    .summary = "say what a checkpoint is: format, model, layout, tensors, optimizer",
    .positional = "PATH",
    .text =
        "PATH is whatever convert can read, or one .safetensors or torch.save file, or a folder of "
        "torch.distributed.checkpoint.\n\n"
        "  ferry inspect ckpt --tensors '*.layers.0.*'",
    .groups = inspect_groups,
    .num_groups = sizeof inspect_groups / sizeof *inspect_groups,
    .options_bytes = sizeof(struct inspect_flags),
    .defaults = set_defaults,
    .run = inspect,
};
