/* inspect_text.c - what ferry inspect prints. */
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/numbers.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/cli/report_training.h"
#include "convert/format.h"
#include "convert/states.h"

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
        sum_line(out, inspect_group(i), &s->groups[i]);
}

static void partners_text(struct strbuf *out, const struct named_tensor *t)
{
    if (t->num_partners == 1 && strcmp(t->name, t->partners[0]) == 0) return;
    for (size_t i = 0; i < t->num_partners && i < SHOWN_PARTNERS; i++) {
        strbuf_add_text(out, i ? ", " : t->kind == NAME_LOGICAL ? "  <- " : "  -> ");
        add_escaped_name(out, t->partners[i]);
    }
    if (t->num_partners > SHOWN_PARTNERS)
        strbuf_printf(out, " and %s more", grouped_text(t->num_partners - SHOWN_PARTNERS));
}

const char *inspect_same_as(const struct checkpoint *c, const struct named_tensor *t)
{
    const struct tensor *logical =
        t->kind == NAME_LOGICAL ? catalog_find(&c->catalog, t->name) : NULL;
    return logical ? logical->same_as : NULL;
}

static void tensor_line(struct strbuf *out, struct checkpoint *c, const struct named_tensor *t)
{
    const char *weight = inspect_same_as(c, t);
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
    for (size_t i = 0; i < x->num_tensors - x->more; i++)
        width = (int)max_u64((uint64_t)width, strlen(x->tensors[i].name));
    strbuf_printf(out, "  %-*s  %-5s %12s %12s %12s %12s %9s %9s %12s\n", width, "tensor", "dtype",
                  "min", "max", "mean", "std", "NaN", "Inf", "zeros");
    for (size_t i = 0; i < x->num_tensors - x->more; i++) {
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
    for (size_t i = 0; !x->stats && i < x->num_tensors - x->more; i++)
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
    strbuf_printf(out, "%s\n", bytes_text(inspect_sums(c, true).all.bytes));
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
        strbuf_printf(out, "layout     %s, parameter naming of the %s spec%s\n",
                      layout_text(&c->layout, &c->arena),
                      c->transformer_engine_names ? "TE" : "local",
                      c->hybrid_model ? ", HybridModel" : "");
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

static void encodings_line(struct strbuf *out, const struct checkpoint *c)
{
    cJSON *all = encodings_json(c);
    for (const cJSON *i = all->child; i; i = i->next) {
        uint64_t count = 0;
        (void)json_as_u64(i, &count);
        strbuf_printf(out, "%s%" PRIu64 " %s", i == all->child ? "encoded    " : ", ", count,
                      i->string);
    }
    if (all->child) strbuf_add_text(out, ": read as numbers\n");
    cJSON_Delete(all);
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

size_t inspect_witnesses(struct checkpoint *c)
{
    const struct optimizer_info *o = &c->training.optimizer;
    return o->inferred && !o->unread ? count_masters(c) : 0;
}

static void optimizer_line(struct strbuf *out, struct checkpoint *c)
{
    const struct optimizer_info *o = &c->training.optimizer;
    const struct state_sums states = states_of_catalog(&c->catalog, &c->arena);
    const size_t witnesses = inspect_witnesses(c);
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

void inspection_origin(struct strbuf *out, const struct inspection *x)
{
    format_line(out, x->c);
    if (!x->stored_only) origin_lines(out, x->c);
}

void inspection_model(struct strbuf *out, const struct inspection *x)
{
    if (x->stored_only) return;
    if (x->c->names_alone)
        strbuf_add_text(out, "model      not known without a config.json (--hf-config DIR)\n");
    else
        config_lines(out, &x->c->config);
}

void inspection_state(struct strbuf *out, const struct inspection *x)
{
    if (x->stored_only) return;
    parameters_line(out, x->c);
    encodings_line(out, x->c);
    optimizer_line(out, x->c);
    training_text(out, x->c);
    record_text(out, x);
}

void inspection_text(struct strbuf *out, const struct inspection *x)
{
    struct checkpoint *c = x->c;
    struct sums sums = inspect_sums(c, x->stored);
    inspection_origin(out, x);
    inspection_model(out, x);
    inspection_state(out, x);
    sums_text(out, &sums);
    names_text(out, "missing", c->gaps.missing, c->gaps.num_missing);
    names_text(out, "unexpected", c->gaps.unexpected, c->gaps.num_unexpected);
    if (x->f->output.verbose && !x->stored_only && !c->names_alone)
        config_field_lines(out, &c->config);
    if (x->f->output.verbose) files_text(out, &c->catalog.stored);
    if (x->args) args_lines(out, x->args);
    if (x->is_listed) tensors_text(out, x);
}
