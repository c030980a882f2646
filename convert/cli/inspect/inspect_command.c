/* inspect_command.c - ferry inspect: prints the format, model, config and
 * tensors of a checkpoint or file. */
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/tensor_stats.h"
#include "common/checked.h"
#include "common/count.h"
#include "common/json.h"
#include "common/numbers.h"
#include "common/result.h"
#include "convert/cli/convert_commands.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/cli/options.h"
#include "convert/cli/record_write.h"
#include "convert/cli/report_training.h"
#include "convert/format.h"
#include "convert/states.h"
#include "convert/tensor_names.h"

enum { LISTED_OF_FILE = 40, MAX_PARTNERS = 4 };

struct inspect_flags {
    struct source_flags source;
    struct output_flags output;
    struct run_flags run;
    const char *tensors;
    bool stored, args, stats;
};

// clang-format off
#define AT(field) offsetof(struct inspect_flags, field)
static const struct arg inspect_args[] = {
    {"--tensors", ARG_TEXT, AT(tensors), "GLOB", NULL, "list tensors by name, such as '*' or '*.linear_fc1.*'; matches logical names, else names in the files, else Hugging Face's names. Exit code 2 if no tensor matches"},
    {"--stored", ARG_FLAG, AT(stored), NULL, NULL, "list tensors with the names and shards of the files"},
    {"--stats", ARG_FLAG, AT(stats), NULL, NULL, "print statistics of the listed tensors (all without --tensors): min, max, mean and standard deviation (numpy.std) of the finite elements, counts of NaN, infinities and zeros"},
    {"--args", ARG_FLAG, AT(args), NULL, NULL, "list the args of a Megatron checkpoint, or the values of its run_config.yaml"},
};
static const struct arg_group inspect_groups[] = {
    {"Inspection", inspect_args, COUNT(inspect_args), 0},
    {"Source", source_args, NUM_SOURCE_ARGS, AT(source)},
    {"Work of --stats", run_args, NUM_READ_ARGS, AT(run)},
    {"Output", output_args, NUM_OUTPUT_ARGS, AT(output)},
};
// clang-format on

static void set_inspect_defaults(void *options)
{
    struct inspect_flags *f = options;
    f->source.ckpt_step = UINT64_MAX;
    f->run.max_memory = DEFAULT_MAX_MEMORY;
}

/* The result before printing. */
struct inspection {
    struct checkpoint *c;
    const struct inspect_flags *f;
    bool stored_only, stored; /* stored_only: no model; stored: sums count stored tensors */
    struct named_tensor *tensors;
    size_t num_tensors;
    size_t more;           /* tensors that are not listed */
    bool is_listed;        /* tensors were requested, or PATH is a file */
    struct moments *stats; /* [num_tensors]; NULL: not requested */
    cJSON *args;           /* NULL: not requested */
    cJSON *record;         /* ferry.json; NULL: none */
    struct error record_error;
};

/* ---- groups of tensors ---- */

/* The first matching pattern gives the group; the last matches all. */
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
enum { NUM_GROUPS = COUNT(groups) };

static int group_of(const char *name)
{
    int i = 0;
    while (fnmatch(groups[i].pattern, name, 0))
        i++;
    return i;
}

struct sum {
    size_t tensors;
    uint64_t bytes;
};

/* Tensors and bytes by group, by dtype, and by kind of optimizer state. */
enum { NUM_MOMENTS = 3 };
static const char *const moments[NUM_MOMENTS] = {"param", "exp_avg", "exp_avg_sq"};
struct sums {
    struct sum groups[NUM_GROUPS], dtypes[NUM_DTYPES], moments[NUM_MOMENTS], all;
};

static void add_to_sums(struct sums *s, const char *name, enum dtype dtype, uint64_t bytes)
{
    struct sum *of_moment = NULL;
    for (int i = 0; name_is_optimizer(name) && i < NUM_MOMENTS; i++) {
        const char *rest = name + strlen("optimizer.");
        size_t n = strlen(moments[i]);
        if (strncmp(rest, moments[i], n) == 0 && rest[n] == '.') of_moment = &s->moments[i];
    }
    struct sum *sums[] = {&s->groups[group_of(name)], &s->dtypes[dtype], &s->all, of_moment};
    for (size_t i = 0; i < COUNT(sums); i++) {
        if (!sums[i]) continue;
        sums[i]->tensors++;
        sums[i]->bytes += bytes;
    }
}

static struct sums sum_tensors(const struct checkpoint *c, bool stored)
{
    struct sums s = {.all = {0, 0}};
    for (size_t i = 0; stored && i < c->catalog.stored.num_tensors; i++) {
        const struct stored_tensor *t = &c->catalog.stored.tensors[i];
        add_to_sums(&s, t->name, t->dtype, stored_tensor_bytes(t));
    }
    for (size_t i = 0; !stored && i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        uint64_t bytes = 0;
        if (t->same_as) continue; /* stored once, as a weight */
        (void)dtype_size_bytes(t->dtype, t->numel, &bytes);
        add_to_sums(&s, t->name, t->dtype, bytes);
    }
    return s;
}

/* ---- text ---- */

static void sum_line(struct strbuf *out, const char *name, const struct sum *s)
{
    if (s->tensors)
        strbuf_printf(out, "  %-20s %10s %-7s  %10s\n", name, grouped_text(s->tensors),
                      s->tensors == 1 ? "tensor" : "tensors", bytes_text(s->bytes));
}

static void sums_text(struct strbuf *out, const struct sums *s)
{
    strbuf_add_text(out, "dtypes\n");
    for (int d = NUM_DTYPES - 1; d >= 0; d--)
        sum_line(out, dtype_infos[d].name, &s->dtypes[d]);
    strbuf_add_text(out, "groups\n");
    for (int i = 0; i < NUM_GROUPS; i++)
        sum_line(out, groups[i].group, &s->groups[i]);
}

static void partners_text(struct strbuf *out, const struct named_tensor *t)
{
    if (t->num_partners == 1 && strcmp(t->name, t->partners[0]) == 0) return;
    for (size_t i = 0; i < t->num_partners && i < MAX_PARTNERS; i++) {
        strbuf_add_text(out, i ? ", " : t->kind == NAME_LOGICAL ? "  <- " : "  -> ");
        add_escaped_name(out, t->partners[i]);
    }
    if (t->num_partners > MAX_PARTNERS)
        strbuf_printf(out, " and %s more", grouped_text(t->num_partners - MAX_PARTNERS));
}

/* For a listed master: the weight that is this master; NULL: it is stored. */
static const char *same_as(const struct checkpoint *c, const struct named_tensor *t)
{
    const struct tensor *logical =
        t->kind == NAME_LOGICAL ? catalog_find(&c->catalog, t->name) : NULL;
    return logical ? logical->same_as : NULL;
}

static void tensor_line(struct strbuf *out, struct checkpoint *c, const struct named_tensor *t)
{
    const char *weight = same_as(c, t);
    strbuf_add_text(out, "  ");
    add_escaped_name(out, t->name);
    strbuf_printf(out, "  %s %s", dtype_infos[t->dtype].name,
                  shape_text(&c->arena, t->num_dims, t->shape));
    if (t->num_shards > 1 && !weight) strbuf_printf(out, "  %zu shards", t->num_shards);
    if (weight) strbuf_add_text(out, "  = ");
    if (weight)
        add_escaped_name(out, weight);
    else
        partners_text(out, t);
    strbuf_add_char(out, '\n');
}

/* A table; a tensor without moments has dashes. */
static void stats_text(struct strbuf *out, const struct inspection *x)
{
    int width = 6;
    for (size_t i = 0; i < x->num_tensors; i++)
        width = (int)max_u64((uint64_t)width, strlen(x->tensors[i].name));
    strbuf_printf(out, "  %-*s  %-5s %12s %12s %12s %12s %9s %9s %12s\n", width, "tensor", "dtype",
                  "min", "max", "mean", "std", "NaN", "Inf", "zeros");
    for (size_t i = 0; i < x->num_tensors; i++) {
        const struct named_tensor *t = &x->tensors[i];
        const struct moments *m = &x->stats[i];
        add_row_name(out, t->name, width + 4);
        strbuf_printf(out, "%-5s ", dtype_infos[t->dtype].name);
        if (m->finite)
            strbuf_printf(out, "%12.5g %12.5g %12.5g %12.5g", m->min, m->max, m->mean,
                          moments_std(m));
        else
            strbuf_printf(out, "%12s %12s %12s %12s", "-", "-", "-", "-");
        if (moments_exist(t->dtype))
            strbuf_printf(out, " %9s %9s %12s\n", grouped_text(m->nan), grouped_text(m->infinite),
                          grouped_text(m->zeros));
        else
            strbuf_printf(out, " %9s %9s %12s\n", "-", "-", "-");
    }
}

static void tensors_text(struct strbuf *out, const struct inspection *x)
{
    static const char *const titles[] = {[NAME_LOGICAL] = "tensors\n",
                                         [NAME_STORED] = "tensors, as the files name them\n",
                                         [NAME_HF] = "tensors, as Hugging Face names them\n"};
    strbuf_add_text(out, titles[x->num_tensors ? x->tensors[0].kind : NAME_STORED]);
    for (size_t i = 0; !x->stats && i < x->num_tensors; i++)
        tensor_line(out, x->c, &x->tensors[i]);
    if (x->stats) stats_text(out, x);
    const struct stored *s = &x->c->catalog.stored;
    for (size_t i = 0; x->f->tensors && x->stored && i < s->num_objects; i++) {
        if (fnmatch(x->f->tensors, s->objects[i].name, 0)) continue;
        strbuf_add_text(out, "  ");
        add_escaped_name(out, s->objects[i].name);
        strbuf_printf(out, "  not a tensor, %s\n", bytes_text(s->objects[i].size_bytes));
    }
    if (x->more)
        strbuf_printf(out, "  ... and %s more, --tensors '*' lists all\n", grouped_text(x->more));
}

static void names_text(struct strbuf *out, const char *what, const char *const *names, size_t count)
{
    if (!count) return;
    strbuf_printf(out, "%s ", what);
    add_count(out, count, "tensor\n", "tensors\n");
    for (size_t i = 0; i < count; i++) {
        strbuf_add_text(out, "  ");
        add_escaped_name(out, names[i]);
        strbuf_add_char(out, '\n');
    }
}

static void add_member(struct strbuf *out, const char *before, const cJSON *text)
{
    strbuf_add_text(out, before);
    add_escaped_name(out, json_as_text(text) ? json_as_text(text) : "(not known)");
}

/* The content of ferry.json, or a line with the error. */
static void record_text(struct strbuf *out, const struct inspection *x)
{
    if (x->record_error.code)
        strbuf_printf(out, "record     not readable: %s\n", x->record_error.text);
    if (!x->record) return;
    add_member(out, "record     written ", json_get(x->record, "written"));
    add_member(out, " by ferry ", json_get(x->record, "ferry"));
    add_member(out, " from ", json_get(json_get(x->record, "source"), "path"));
    add_member(out, "\ndigest     ", json_get(json_get(x->record, "digest"), "*"));
    strbuf_add_char(out, '\n');
}

static void format_line(struct strbuf *out, const struct checkpoint *c)
{
    strbuf_printf(out, "format     %s, ", c->format->name);
    add_count(out, c->catalog.stored.num_files, "file, ", "files, ");
    add_count(out, c->catalog.stored.num_tensors, "stored tensor, ", "stored tensors, ");
    if (c->catalog.stored.num_objects)
        add_count(out, c->catalog.stored.num_objects, "non-tensor entry, ", "non-tensor entries, ");
    strbuf_printf(out, "%s\n", bytes_text(sum_tensors(c, true).all.bytes));
}

/* Format, files, and the program that wrote them. */
static void origin_lines(struct strbuf *out, struct checkpoint *c)
{
    strbuf_printf(out, "family     %s\n", c->family ? c->family : "not known");
    report_unknown(out, c, 11);
    if (c->training.release)
        strbuf_add_text(out, "iteration  release\n");
    else if (c->training.iteration >= 0)
        strbuf_printf(out, "iteration  %" PRId64 "\n", c->training.iteration);
    if (c->dp) {
        strbuf_add_text(out, "ranks    ");
        report_ranks(out, c->dp, c->has_zero ? &c->zero : NULL);
        strbuf_add_char(out, '\n');
    }
    if (c->format->has & FORMAT_LAYOUT)
        strbuf_printf(out, "layout     %s, parameter naming of the %s spec\n",
                      layout_text(&c->layout, &c->arena),
                      c->transformer_engine_names ? "TE" : "local");
}

static void parameters_line(struct strbuf *out, const struct checkpoint *c)
{
    struct parameter_count n;
    count_parameters(c, &n);
    strbuf_add_text(out, "parameters ");
    print_count(out, n.elements);
    if (n.elements >= 1000) strbuf_printf(out, " (%s)", grouped_text(n.elements));
    strbuf_printf(out, ", %s, ", bytes_text(n.bytes));
    print_dtypes(out, &n);
    strbuf_add_char(out, '\n');
}

/* Weights with a separate master. */
static size_t count_masters(struct checkpoint *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        if (!is_parameter(t) || !t->numel) continue;
        const char *name = state_name(&c->arena, master_state, t->name);
        const struct tensor *master = catalog_find(&c->catalog, name);
        n += master && !master->same_as && !tensor_is_joined(master);
    }
    return n;
}

/* If the places of state elements were inferred and all states were read: the
 * number of weights that equal their rounded masters, which proves the places. */
static size_t num_witnesses(struct checkpoint *c)
{
    const struct optimizer_info *o = &c->training.optimizer;
    return o->inferred && !o->unread ? count_masters(c) : 0;
}

static void optimizer_line(struct strbuf *out, struct checkpoint *c)
{
    const struct optimizer_info *o = &c->training.optimizer;
    const struct state_sums states = states_of_catalog(&c->catalog, &c->arena);
    const size_t witnesses = num_witnesses(c);
    strbuf_printf(out, "optimizer  %s", o->present ? o->kind : "none");
    if (o->present) strbuf_printf(out, ", %s", bytes_text(o->size_bytes));
    if (states.count) strbuf_add_text(out, ", ");
    states_text(out, &states);
    if (states.own_masters) {
        strbuf_add_text(out, "; ");
        add_count(out, states.own_masters, "weight is its own master",
                  "weights are their own masters");
    }
    if (o->remainders) {
        strbuf_add_text(out, "; ");
        add_count(out, o->remainders, "master is stored as remainders",
                  "masters are stored as remainders");
    }
    if (o->remainders && o->inferred && !o->unread)
        strbuf_add_text(out,
                        "; their places are inferred, and proved by where they begin in files");
    else if (witnesses) {
        strbuf_add_text(out, "; their places are inferred, and proved by ");
        add_count(out, witnesses, "weight", "weights");
    }
    if (o->shifted) strbuf_printf(out, "; shifted: %s", o->shifted);
    if (o->unread) strbuf_printf(out, "; not read: %s", o->unread);
    strbuf_add_char(out, '\n');
}

static void training_text(struct strbuf *out, struct checkpoint *c)
{
    const char **lines;
    const size_t count = training_lines(&c->training.run, &c->arena, &lines);
    for (size_t i = 0; i < count; i++) {
        strbuf_printf(out, "%-11s", i ? "" : "training");
        add_escaped_name(out, lines[i]);
        strbuf_add_char(out, '\n');
    }
}

static void files_text(struct strbuf *out, const struct stored *s)
{
    strbuf_add_text(out, "files\n");
    for (size_t i = 0; i < s->num_files; i++) {
        if (s->files[i].coding) continue;
        add_row_name(out, s->files[i].path, 60);
        strbuf_printf(out, "%10s\n", bytes_text(s->files[i].stamp.size_bytes));
    }
}

static void inspection_text(struct strbuf *out, const struct inspection *x)
{
    struct checkpoint *c = x->c;
    struct sums sums = sum_tensors(c, x->stored);
    format_line(out, c);
    if (!x->stored_only) {
        origin_lines(out, c);
        if (c->names_alone)
            strbuf_add_text(out, "model      not known without a config.json (--hf-config DIR)\n");
        else
            config_lines(out, &c->config);
        parameters_line(out, c);
        optimizer_line(out, c);
        training_text(out, c);
        record_text(out, x);
    }
    sums_text(out, &sums);
    names_text(out, "missing", c->gaps.missing, c->gaps.num_missing);
    names_text(out, "unexpected", c->gaps.unexpected, c->gaps.num_unexpected);
    if (x->f->output.verbose && !x->stored_only && !c->names_alone)
        config_field_lines(out, &c->config);
    if (x->f->output.verbose) files_text(out, &c->catalog.stored);
    if (x->args) args_lines(out, x->args);
    if (x->is_listed) tensors_text(out, x);
}

/* ---- JSON ---- */

static cJSON *names_json(const char *const *names, size_t count)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(names[i]));
    return list;
}

static cJSON *tensor_json(const struct checkpoint *c, const struct named_tensor *t)
{
    const char *weight = same_as(c, t);
    cJSON *o = cJSON_CreateObject(), *dims = cJSON_CreateArray();
    const char *own[] = {t->name};
    json_add_text(o, "name", t->name);
    if (t->kind != NAME_HF)
        cJSON_AddItemToObject(o, "stored_names",
                              t->kind == NAME_STORED ? names_json(own, 1)
                                                     : names_json(t->partners, t->num_partners));
    if (t->kind != NAME_LOGICAL)
        cJSON_AddItemToObject(o, "logical_names", names_json(t->partners, t->num_partners));
    json_add_text(o, "dtype", dtype_infos[t->dtype].name);
    for (unsigned d = 0; d < t->num_dims; d++)
        cJSON_AddItemToArray(dims, json_new_u64(t->shape[d]));
    cJSON_AddItemToObject(o, "shape", dims);
    json_add_u64(o, "shards", weight ? 0 : t->num_shards);
    if (weight) json_add_text(o, "same_as", weight);
    return o;
}

static cJSON *stats_json(enum dtype dtype, const struct moments *m)
{
    if (!moments_exist(dtype)) return cJSON_CreateNull();
    cJSON *o = cJSON_CreateObject();
    json_add_number(o, "min", m->finite ? m->min : NAN);
    json_add_number(o, "max", m->finite ? m->max : NAN);
    json_add_number(o, "mean", m->finite ? m->mean : NAN);
    json_add_number(o, "std", moments_std(m));
    json_add_u64(o, "nan", m->nan);
    json_add_u64(o, "inf", m->infinite);
    json_add_u64(o, "zeros", m->zeros);
    return o;
}

static void sum_json(cJSON *list, const char *name, const struct sum *s)
{
    if (!s->tensors) return;
    cJSON *o = cJSON_AddObjectToObject(list, name);
    json_add_u64(o, "tensors", s->tensors);
    json_add_u64(o, "bytes", s->bytes);
}

static void sums_json(cJSON *o, const struct sums *s)
{
    cJSON *of_dtypes = cJSON_AddObjectToObject(o, "dtypes");
    for (int d = NUM_DTYPES - 1; d >= 0; d--)
        sum_json(of_dtypes, dtype_infos[d].name, &s->dtypes[d]);
    cJSON *of_groups = cJSON_AddObjectToObject(o, "groups");
    for (int i = 0; i < NUM_GROUPS; i++)
        sum_json(of_groups, groups[i].group, &s->groups[i]);
}

static cJSON *optimizer_json(struct checkpoint *c)
{
    const struct optimizer_info *info = &c->training.optimizer;
    if (!info->present) return cJSON_CreateNull();
    struct sums s = sum_tensors(c, false);
    const struct state_sums states = states_of_catalog(&c->catalog, &c->arena);
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "kind", info->kind);
    json_add_u64(o, "bytes", info->size_bytes);
    json_add_text(o, "not_read", info->unread);
    states_json(o, "states", &states);
    json_add_u64(o, "own_masters", states.own_masters);
    json_add_u64(o, "remainders", info->remainders);
    json_add_text(o, "shifted", info->shifted);
    cJSON_AddBoolToObject(o, "inferred", info->inferred);
    json_add_u64(o, "proved_by", num_witnesses(c));
    for (int i = 0; i < NUM_MOMENTS; i++)
        sum_json(o, moments[i], &s.moments[i]);
    return o;
}

/* The training state; null if nothing is known of it. */
static cJSON *run_json(const struct checkpoint *c)
{
    cJSON *o = training_json(&c->training.run);
    if (o->child) return o;
    cJSON_Delete(o);
    return cJSON_CreateNull();
}

static cJSON *files_json(const struct stored *s)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < s->num_files; i++) {
        if (s->files[i].coding) continue;
        cJSON *o = cJSON_CreateObject();
        json_add_text(o, "path", s->files[i].path);
        json_add_u64(o, "bytes", s->files[i].stamp.size_bytes);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

/* ferry.json without the digests of single tensors. */
static void record_json(cJSON *o, const cJSON *record)
{
    if (!record) return;
    cJSON *whole = cJSON_AddObjectToObject(o, "record");
    for (const cJSON *i = record->child; i; i = i->next)
        if (strcmp(i->string, "tensors") && strcmp(i->string, "source_tensors"))
            cJSON_AddItemToObject(whole, i->string, cJSON_Duplicate(i, true));
}

/* Stored objects that match and are not tensors. */
static cJSON *entries_json(const struct inspection *x)
{
    cJSON *list = cJSON_CreateArray();
    const struct stored *s = &x->c->catalog.stored;
    for (size_t i = 0; x->f->tensors && i < s->num_objects; i++) {
        if (fnmatch(x->f->tensors, s->objects[i].name, 0)) continue;
        cJSON *o = cJSON_CreateObject();
        json_add_text(o, "name", s->objects[i].name);
        json_add_u64(o, "bytes", s->objects[i].size_bytes);
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *inspection_json(const struct inspection *x)
{
    static const char *const origins[] = {[CONFIG_OF_TENSORS] = "tensors",
                                          [CONFIG_OF_ARGS] = "args",
                                          [CONFIG_OF_JSON] = "config.json"};
    cJSON *o = cJSON_CreateObject();
    struct checkpoint *c = x->c;
    struct conversion report = {.source = c, .gaps = &c->gaps};
    struct sums sums = sum_tensors(c, x->stored);
    report_plan_json(o, &report);
    json_add_u64(o, "stored_tensors", c->catalog.stored.num_tensors);
    json_add_u64(o, "stored_bytes", sum_tensors(c, true).all.bytes);
    json_add_u64(o, "non_tensor_entries", c->catalog.stored.num_objects);
    json_add_u64(o, "files", c->catalog.stored.num_files);
    cJSON_AddItemToObject(o, "file_list", files_json(&c->catalog.stored));
    cJSON_AddItemToObject(o, "optimizer", optimizer_json(c));
    cJSON_AddItemToObject(o, "training", run_json(c));
    json_add_text(o, "config_of", x->stored_only ? NULL : origins[c->config_origin]);
    cJSON_AddItemToObject(o, "config",
                          x->stored_only ? cJSON_CreateNull() : config_json(&c->config));
    sums_json(o, &sums);
    record_json(o, x->record);
    if (x->args) cJSON_AddItemToObject(o, "args", cJSON_Duplicate(x->args, true));
    if (!x->is_listed) return o;
    if (x->stored) cJSON_AddItemToObject(o, "entries", entries_json(x));
    cJSON *list = cJSON_AddArrayToObject(o, "tensors");
    for (size_t i = 0; i < x->num_tensors; i++) {
        cJSON *t = tensor_json(c, &x->tensors[i]);
        if (x->stats)
            cJSON_AddItemToObject(t, "stats", stats_json(x->tensors[i].dtype, &x->stats[i]));
        cJSON_AddItemToArray(list, t);
    }
    return o;
}

/* ---- the command ---- */

/* Whether a glob without a matching tensor matches another stored object. */
static bool matches_object(const struct inspection *x)
{
    for (size_t i = 0; x->stored && i < x->c->catalog.stored.num_objects; i++)
        if (fnmatch(x->f->tensors, x->c->catalog.stored.objects[i].name, 0) == 0) return true;
    return false;
}

/* A file lists its tensors by default; a folder only on request. */
static enum status find_tensors(struct inspection *x, struct tensor_names *n, bool is_file,
                                struct error *err)
{
    const char *glob = x->f->tensors ? x->f->tensors : is_file || x->f->stats ? "*" : NULL;
    if (!glob || (is_file && !x->c->catalog.stored.num_tensors)) return OK;
    x->is_listed = true;
    enum status st = tensor_names_match(n, glob, &x->tensors, &x->num_tensors, err);
    if (st && x->f->tensors && matches_object(x)) return OK;
    if (!x->f->tensors && !x->f->stats && !x->f->output.json && x->num_tensors > LISTED_OF_FILE) {
        x->more = x->num_tensors - LISTED_OF_FILE;
        x->num_tensors = LISTED_OF_FILE;
    }
    return st;
}

static enum status find_stats(struct inspection *x, struct tensor_names *n, struct error *err)
{
    struct executor_options run = executor_options_of(&x->f->run, &x->f->output);
    struct stats_options o = {run.threads, run.max_memory, run.direct_io, run.progress};
    const struct tensor **tensors = arena_array(&n->arena, x->num_tensors, sizeof *tensors);
    for (size_t i = 0; i < x->num_tensors; i++)
        TRY(tensor_names_open(n, &x->tensors[i], &tensors[i], err));
    x->stats = arena_array(&n->arena, x->num_tensors, sizeof *x->stats);
    return tensor_stats(&x->c->catalog, tensors, x->num_tensors, &o, x->stats, err);
}

static void print_inspection(const struct inspection *x)
{
    struct strbuf text = {0};
    if (x->f->output.json) {
        result_set(inspection_json(x));
        return;
    }
    inspection_text(&text, x);
    fputs(text.data, stdout);
    strbuf_release(&text);
}

static enum status inspect_opened(struct opened *o, const struct inspect_flags *f,
                                  struct error *err)
{
    bool stored = o->stored_only || f->stored;
    struct inspection x = {
        .c = &o->checkpoint, .f = f, .stored_only = o->stored_only, .stored = stored};
    struct tensor_names names;
    tensor_names_init(&names, x.c, &o->maps, stored);
    if (x.c->folder && record_read(x.c->folder, &x.record, &x.record_error)) x.record = NULL;
    enum status st = find_tensors(&x, &names, o->reading == AS_FILE, err);
    if (!st && f->stats) st = find_stats(&x, &names, err);
    if (!st && f->args) st = args_json(x.c, &x.args, err);
    if (!st) print_inspection(&x);
    cJSON_Delete(x.args);
    cJSON_Delete(x.record);
    tensor_names_release(&names);
    return st;
}

static enum status run_inspect(void *options, const char *const *positional, size_t num_positional,
                               struct error *err)
{
    const struct inspect_flags *f = options;
    struct opened o;
    (void)num_positional;
    const struct source_options source = source_options_of(&f->source);
    enum status st =
        opened_open(&o, positional[0], &source, f->source.model_map, true, f->output.quiet, err);
    if (!st) st = inspect_opened(&o, f, err);
    opened_close(&o);
    return st;
}

const struct command command_inspect = {
    .name = "inspect",
    .summary = "describe a checkpoint: format, model, layout, tensors, optimizer",
    .positional = "PATH",
    .text =
        "PATH is any source of ferry convert, one .safetensors or torch.save file, or a folder of "
        "torch.distributed.checkpoint. The tensors of a single file are listed even without "
        "--tensors. In a list, <- precedes the stored names of a logical tensor, -> the logical "
        "name of a stored one.\n\n"
        "  ferry inspect ckpt --tensors '*.layers.0.*'\n"
        "  ferry inspect ckpt --stats --tensors '*norm*'",
    .groups = inspect_groups,
    .num_groups = COUNT(inspect_groups),
    .options_bytes = sizeof(struct inspect_flags),
    .defaults = set_inspect_defaults,
    .run = run_inspect,
};
