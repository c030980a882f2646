#include "convert/cli/report.h"

#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/file.h"
#include "common/host_memory.h"
#include "common/json.h"
#include "common/numbers.h"
#include "common/progress.h"
#include "convert/cli/options.h"
#include "convert/cli/report_training.h"
#include "convert/format.h"
#include "convert/map/config_lines.h"
#include "convert/megatron/megatron_target.h"

/* ---- counting ---- */

void count_parameters(const struct checkpoint *c, struct parameter_count *out)
{
    *out = (struct parameter_count){0};
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        uint64_t bytes = 0;
        if (!is_parameter(t)) continue;
        (void)dtype_size_bytes(t->dtype, t->numel, &bytes);
        out->elements += t->numel;
        out->bytes += bytes;
        out->bytes_by_dtype[t->dtype] += bytes;
    }
}

void print_dtypes(struct strbuf *out, const struct parameter_count *n)
{
    const char *separator = "";
    for (int d = NUM_DTYPES - 1; d >= 0; d--) {
        uint64_t bytes = n->bytes_by_dtype[d];
        if (!bytes) continue;
        strbuf_printf(out, "%s%s", separator, dtype_infos[d].name);
        if (bytes != n->bytes)
            strbuf_printf(out, " %.3g %%", 100.0 * (double)bytes / (double)n->bytes);
        separator = ", ";
    }
}

void print_count(struct strbuf *out, uint64_t n)
{
    static const char *const units[] = {"", " K", " M", " B", " T"};
    double x = (double)n;
    int unit = 0;
    while (x >= 999.5 && unit < 4)
        x /= 1000, unit++;
    strbuf_printf(out,
                  unit && x < 9.995   ? "%.2f%s"
                  : unit && x < 99.95 ? "%.1f%s"
                                      : "%.0f%s",
                  x, units[unit]);
}

/* A weight that is its own master is stored once. */
static size_t count_pieces(const struct catalog *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (!c->tensors[i].same_as) n += c->tensors[i].num_pieces;
    return n;
}

/* Pieces of the source's tensors and of the tensors that the target makes. */
static size_t count_all_pieces(const struct conversion *c)
{
    size_t made = c->begun ? count_pieces(&c->begun->plan.made) : 0;
    return count_pieces(&c->source->catalog) + made;
}

/* ---- the plan as text ---- */

void report_ranks(struct strbuf *out, uint64_t dp, const unsigned *zero)
{
    if (dp) strbuf_printf(out, "  dp %" PRIu64, dp);
    if (zero) strbuf_printf(out, "  ZeRO %u", *zero);
}

static void source_line(struct strbuf *out, const struct conversion *x)
{
    const struct checkpoint *c = x->source;
    struct arena a;
    struct parameter_count n;
    arena_init(&a);
    count_parameters(c, &n);
    strbuf_printf(out, "source   %s  %s", c->format->name,
                  c->family        ? c->family
                  : c->names_alone ? "(by names alone, without a config.json)"
                                   : "(family not known)");
    if (c->training.release)
        strbuf_add_text(out, "  release");
    else if (c->training.iteration >= 0)
        strbuf_printf(out, "  iteration %" PRId64, c->training.iteration);
    if (c->format->has & FORMAT_LAYOUT) strbuf_printf(out, "  %s", layout_text(&c->layout, &a));
    report_ranks(out, c->dp, c->has_zero ? &c->zero : NULL);
    strbuf_add_text(out, "  ");
    print_count(out, n.elements);
    strbuf_printf(out, " parameters  %s  ", bytes_text(n.bytes));
    print_dtypes(out, &n);
    if (c->training.optimizer.present)
        strbuf_printf(out, "  optimizer: %s (%s%s)", c->training.optimizer.kind,
                      bytes_text(c->training.optimizer.size_bytes),
                      x->target && optimizer_is_left_out(x->target) ? ", left out" : "");
    strbuf_add_char(out, '\n');
    arena_release(&a);
}

static void target_line(struct strbuf *out, const struct conversion *c)
{
    struct arena a;
    const struct target *t = c->target;
    arena_init(&a);
    strbuf_printf(out, "target   %s", t->format->name);
    if (t->unit) strbuf_printf(out, "  %s", t->unit);
    if (t->format->has & FORMAT_LAYOUT)
        strbuf_printf(out, "  %s  %s names%s", layout_text(&t->layout, &a),
                      t->options.transformer_engine ? "Transformer-Engine" : "local",
                      t->hybrid                  ? " of HybridModel"
                      : t->facts.per_layer_names ? ", layer by layer"
                                                 : "");
    report_ranks(out, t->facts.dp, t->facts.has_zero ? &t->facts.zero : NULL);
    strbuf_printf(out, "  %zu file%s  %s  -> %s\n", t->facts.num_weight_files,
                  t->facts.num_weight_files == 1 ? "" : "s", bytes_text(t->plan.target_bytes),
                  c->destination);
    arena_release(&a);
}

static void vocab_line(struct strbuf *out, const struct target *t)
{
    const struct model_config *m = &t->source->config;
    const struct target_facts *f = &t->facts;
    strbuf_add_text(out, "vocab    ");
    if (m->vocab_size)
        strbuf_printf(out, "%" PRIu64 " true", m->vocab_size);
    else
        strbuf_add_text(out, "true size not known: all stored rows are kept");
    if (f->padded_vocab)
        strbuf_printf(out,
                      ", %" PRIu64 " with padding (%" PRIu64 " rows from the source, %" PRIu64
                      " new, zero)",
                      f->padded_vocab, f->carried_rows, f->new_rows);
    if (f->cut_rows) strbuf_printf(out, ", %" PRIu64 " padding rows removed", f->cut_rows);
    strbuf_printf(out, "   embeddings %s\n",
                  m->untie_embeddings_and_output_weights ? "untied" : "tied");
}

void report_unknown(struct strbuf *out, const struct checkpoint *c, int width)
{
    struct arena a;
    arena_init(&a);
    const char *fields = unknown_fields_text(&c->unknown, true, &a);
    if (fields)
        strbuf_printf(out, "%-*s%s: %s may change what the model computes\n", width, "unknown",
                      fields, c->unknown.count == 1 ? "it" : "these");
    arena_release(&a);
}

/* Casts, encodings, the optimizer, shifted states, states not read, weight
 * decay, and parts of the training state. */
enum { MAX_LOSSES = 6 + NUM_TRAINING_PARTS };

/* Writes a sentence for each loss of the conversion; returns their number. */
static size_t lossy_steps(const struct target *t, struct arena *a, const char *steps[MAX_LOSSES])
{
    size_t n = 0;
    if (t->facts.cast_tensors)
        steps[n++] = arena_printf(a, "%" PRIu64 " tensors are cast to %s", t->facts.cast_tensors,
                                  dtype_infos[t->options.dtype].name);
    if (t->facts.encoded_tensors)
        steps[n++] = arena_printf(a, "%" PRIu64 " tensors are rounded to %s",
                                  t->facts.encoded_tensors, t->options.encoding);
    if (optimizer_is_left_out(t)) steps[n++] = "the optimizer is left out";
    if (t->num_states && t->source->training.optimizer.shifted)
        steps[n++] = arena_printf(a, "%s, are shifted, and written so",
                                  t->source->training.optimizer.shifted);
    if (t->facts.passed_over) steps[n++] = t->facts.passed_over;
    if (t->facts.changed_decay) steps[n++] = t->facts.changed_decay;
    return n + training_losses(t, a, steps + n);
}

static void flags_line(struct strbuf *out, const struct target *t)
{
    if (t->facts.flags && *t->facts.flags)
        strbuf_printf(out, "flags    %s (for Megatron-LM, with --use-checkpoint-args)\n",
                      t->facts.flags);
}

static void lossy_line(struct strbuf *out, const struct target *t)
{
    struct arena a;
    const char *steps[MAX_LOSSES];
    arena_init(&a);
    size_t n = lossy_steps(t, &a, steps);
    strbuf_add_text(out, "lossy    ");
    for (size_t i = 0; i < n; i++)
        strbuf_printf(out, "%s%s", i ? "; " : "", steps[i]);
    strbuf_add_text(out, n ? "\n" : "nothing\n");
    arena_release(&a);
}

struct share {
    size_t files;
    uint64_t bytes;
};

static struct share share_of(const struct conversion *c)
{
    struct share s = {0, 0};
    for (size_t i = 0; i < c->target->plan.num_files; i++) {
        const struct output_file *f = &c->target->plan.files[i];
        if (f->rank != c->ranks.rank) continue;
        s.files++;
        s.bytes += f->size_bytes;
    }
    return s;
}

static void ranks_line(struct strbuf *out, const struct conversion *c)
{
    struct share s = share_of(c);
    if (c->ranks.size > 1)
        strbuf_printf(out, "ranks    %u of %u writes %zu file%s, %s\n", c->ranks.rank,
                      c->ranks.size, s.files, s.files == 1 ? "" : "s", bytes_text(s.bytes));
}

static void left_line(struct strbuf *out, const struct conversion *c)
{
    if (c->finishes)
        strbuf_add_text(out, "finishing an interrupted run: only its last files are missing\n");
    if (!c->left.found) return;
    if (c->discards) {
        strbuf_printf(out, "discarding %s of an interrupted run%s\n", bytes_text(c->left.bytes),
                      c->left_difference);
    } else if (c->left.same_work) {
        strbuf_add_text(out, "continuing an interrupted run: ");
        progress_bytes(out, c->left.bytes, c->target->plan.target_bytes);
        strbuf_add_text(out, " are done\n");
    }
}

/* The conversion may change the iteration that readers of the root load, even
 * to a lower one. */
static void tracker_line(struct strbuf *out, const struct conversion *c)
{
    struct arena a;
    struct strbuf before = {0};
    struct error why;
    if (!(c->target->format->has & FORMAT_ARGS)) return;
    arena_init(&a);
    const char *name = "latest_checkpointed_iteration.txt",
               *after = megatron_tracker(c->target, &a);
    if (!file_read_all(path_join(&a, c->destination, name), 64, &before, &why)) {
        before.data[strcspn(before.data, "\r\n")] = '\0';
        if (strcmp(before.data, after))
            strbuf_printf(out, "tracker  %s -> %s (%s of %s)\n", before.data, after, name,
                          c->destination);
    }
    strbuf_release(&before);
    arena_release(&a);
}

void report_plan(struct strbuf *out, const struct conversion *c)
{
    source_line(out, c);
    if (!c->target) return;
    target_line(out, c);
    ranks_line(out, c);
    tracker_line(out, c);
    if (c->replaces.folder)
        strbuf_printf(out, "replaces %zu file%s  %s  of %s\n", c->replaces.num_files,
                      c->replaces.num_files == 1 ? "" : "s", bytes_text(c->replaces.bytes),
                      c->replaces.folder);
    strbuf_printf(out,
                  "mapping  %zu target tensors <- %zu logical <- %zu source pieces   missing %zu   "
                  "unexpected %zu   ignored %zu\n",
                  c->target->facts.num_target_tensors, c->target->plan.num_copies,
                  count_all_pieces(c), c->gaps->num_missing, c->gaps->num_unexpected,
                  c->source->num_ignored);
    if (!c->source->names_alone) {
        vocab_line(out, c->target);
        config_lines_add(out, &c->source->config, true, 9);
    }
    report_unknown(out, c->source, 9);
    report_training(out, c->target);
    flags_line(out, c->target);
    strbuf_printf(out, "memory   %s %s %s\n", bytes_text(c->peak_memory),
                  c->peak_memory > c->max_memory ? "needed, more than" : "of",
                  bytes_text(c->max_memory));
    strbuf_printf(out, "disk     %s needed, %s free\n", bytes_text(c->disk_needed),
                  bytes_text(c->disk_free));
    lossy_line(out, c->target);
    left_line(out, c);
}

/* ---- non-finite elements ---- */

static uint64_t count_of(const struct copy_result *r, enum report_count which)
{
    return which == REPORT_NON_FINITE ? r->non_finite : r->overflowed;
}

size_t report_counts(struct strbuf *out, const struct conversion *c, enum report_count which)
{
    const struct plan *p = &c->target->plan;
    enum { MAX_NAMED = 5 };
    size_t tensors = 0;
    for (size_t i = 0; i < p->num_copies; i++) {
        uint64_t n = count_of(&c->copies[i], which);
        if (!n || tensors++ >= MAX_NAMED) continue;
        strbuf_printf(out, "%s%s (%" PRIu64 ")", tensors > 1 ? ", " : "", p->copies[i].source->name,
                      n);
    }
    if (tensors > MAX_NAMED) strbuf_printf(out, " and %zu more", tensors - MAX_NAMED);
    return tensors;
}

static void counts_line(struct strbuf *out, const struct conversion *c, enum report_count which,
                        const char *what)
{
    struct strbuf names = {0};
    size_t n = report_counts(&names, c, which);
    if (n)
        strbuf_printf(out, "note: %zu tensor%s %s: %s\n", n, n == 1 ? "" : "s", what, names.data);
    strbuf_release(&names);
}

/* --torch-dtype casts weights; optimizer states are widened to F32. */
static void cast_line(struct strbuf *out, const struct target *t, const struct executor_result *r)
{
    const char *dtype = t->options.casts ? dtype_infos[t->options.dtype].name : "F32";
    const bool both = t->options.casts && t->facts.widened_states && t->options.dtype != DT_F32;
    if (!r->cast_elements) return;
    if (!t->options.casts && !t->facts.widened_states) {
        strbuf_printf(out, "rounded %" PRIu64 " elements of weights%s\n", r->cast_elements,
                      t->facts.masters_alone || t->facts.cast_masters ? " from their masters" : "");
        return;
    }
    strbuf_printf(out, "cast %" PRIu64 " elements to %s%s; %" PRIu64 " of them changed in value\n",
                  r->cast_elements, dtype, both ? ", states to F32" : "", r->changed_elements);
}

void report_result(struct strbuf *out, const struct conversion *c, const struct executor_result *r)
{
    const bool is_job = c->ranks.size > 1 && !c->ranks.rank; /* rank 0 waited for all */
    const bool continued = c->left.found && c->left.same_work && !c->discards;
    const uint64_t whole = c->target->plan.target_bytes;
    const uint64_t kept = !is_job     ? r->resumed_bytes
                          : continued ? min_u64(c->left.bytes, whole)
                                      : 0;
    const uint64_t bytes = is_job ? whole - kept : r->written_bytes;
    strbuf_printf(out, "converted %s", bytes_text(bytes));
    if (is_job)
        strbuf_printf(out, " by %u processes, %s by rank 0,", c->ranks.size,
                      bytes_text(r->written_bytes));
    strbuf_printf(out, " in %.2f s (", c->seconds);
    progress_rate(out, (double)bytes / c->seconds);
    strbuf_printf(out, "), peak memory %s", bytes_text(host_memory_peak()));
    if (c->ranks.rank) strbuf_printf(out, ", as rank %u of %u", c->ranks.rank, c->ranks.size);
    strbuf_printf(out, ": %s\n", c->destination);
    if (c->replaces.folder)
        strbuf_printf(out, "replaced %zu file%s, %s of %s\n", c->replaces.num_files,
                      c->replaces.num_files == 1 ? "" : "s", bytes_text(c->replaces.bytes),
                      c->replaces.folder);
    if (kept) strbuf_printf(out, "%s were kept from an interrupted run\n", bytes_text(kept));
    cast_line(out, c->target, r);
    if (c->target->facts.renewed_groups)
        strbuf_printf(out,
                      "%" PRIu64 " groups of %" PRIu64
                      " weights have outgrown their kept scales and got new ones\n",
                      c->target->facts.renewed_groups, c->target->facts.renewed_weights);
    if (c->ranks.rank) return; /* rank 0 has the counts of all ranks */
    counts_line(out, c, REPORT_NON_FINITE, "with NaN or Inf in the source");
    counts_line(out, c, REPORT_OVERFLOWED, "with finite elements that the cast made infinite");
}

/* ---- JSON ---- */

static void add_names(cJSON *object, const char *name, const char *const *names, size_t count)
{
    cJSON *list = cJSON_AddArrayToObject(object, name);
    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(names[i]));
}

void report_layout_json(cJSON *object, const struct layout *l)
{
    cJSON *o = cJSON_AddObjectToObject(object, "layout");
#define ADD(kind, name)                                                                            \
    json_add_u64(o, #name, max_u64(l->name, 1)); /* 0: the format has no layout */
    LAYOUT_SIZES(ADD)
#undef ADD
}

void report_ranks_json(cJSON *object, uint64_t dp, const unsigned *zero)
{
    if (dp) json_add_u64(object, "data_parallel_size", dp);
    if (zero) json_add_u64(object, "zero_stage", *zero);
}

/* The source's notes, then the target's. */
static void notes_json(cJSON *o, const struct conversion *x)
{
    const struct notes none = {0}, *of[] = {&x->source->notes, x->begun ? &x->begun->notes : &none};
    cJSON *all = cJSON_AddArrayToObject(o, "notes");
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < of[k]->count; i++)
            cJSON_AddItemToArray(all, cJSON_CreateString(of[k]->lines[i]));
}

void report_unknown_json(cJSON *object, const struct checkpoint *c)
{
    cJSON *list = cJSON_AddArrayToObject(object, "unknown");
    for (size_t i = 0; i < c->unknown.count; i++) {
        const struct unknown_field *f = &c->unknown.items[i];
        cJSON *o = cJSON_CreateObject();
        json_add_text(o, "file", f->file);
        json_add_text(o, "name", f->name);
        json_add_text(o, "value", f->value);
        cJSON_AddBoolToObject(o, "allowed", f->allowed);
        json_add_text(o, "other", f->other);
        json_add_text(o, "other_value", f->other_value);
        cJSON_AddItemToArray(list, o);
    }
}

static void source_json(cJSON *object, const struct conversion *x)
{
    const struct checkpoint *c = x->source;
    struct parameter_count n;
    cJSON *o = cJSON_AddObjectToObject(object, "source");
    count_parameters(c, &n);
    json_add_text(o, "path", c->path);
    json_add_text(o, "format", c->format->name);
    json_add_text(o, "family", c->family);
    if (c->training.iteration >= 0) json_add_u64(o, "iteration", (uint64_t)c->training.iteration);
    report_layout_json(o, &c->layout);
    report_ranks_json(o, c->dp, c->has_zero ? &c->zero : NULL);
    json_add_u64(o, "parameters", n.elements);
    json_add_u64(o, "bytes", n.bytes);
    json_add_u64(o, "shards", count_all_pieces(x));
    add_names(o, "missing", x->gaps->missing, x->gaps->num_missing);
    add_names(o, "unexpected", x->gaps->unexpected, x->gaps->num_unexpected);
    report_unknown_json(o, c);
    notes_json(o, x);
}

void report_target_json(cJSON *object, const struct conversion *c)
{
    const struct target *t = c->target;
    cJSON *o = cJSON_AddObjectToObject(object, "target");
    json_add_text(o, "path", c->destination);
    json_add_text(o, "format", t->format->name);
    json_add_text(o, "unit", t->unit);
    report_layout_json(o, &t->layout);
    report_ranks_json(o, t->facts.dp, t->facts.has_zero ? &t->facts.zero : NULL);
    json_add_u64(o, "files", t->facts.num_weight_files);
    json_add_u64(o, "bytes", t->plan.target_bytes);
    json_add_u64(o, "tensors", t->facts.num_target_tensors);
    json_add_u64(o, "logical_tensors", t->plan.num_copies);
    cJSON_AddBoolToObject(o, "per_layer_names", t->facts.per_layer_names);
    json_add_u64(o, "vocab_size", t->source->config.vocab_size);
    json_add_u64(o, "padded_vocab_size", t->facts.padded_vocab);
    json_add_u64(o, "vocab_rows_new", t->facts.new_rows);
    json_add_u64(o, "vocab_rows_copied", t->facts.carried_rows);
    json_add_u64(o, "vocab_rows_cut", t->facts.cut_rows);
    cJSON_AddBoolToObject(o, "tied", !t->source->config.untie_embeddings_and_output_weights);
    json_add_u64(o, "cast_tensors", t->facts.cast_tensors);
}

/* The source's optimizer, if any, and its outcome. */
static void training_of_sides_json(cJSON *object, const struct conversion *c)
{
    const struct optimizer_info *has = &c->source->training.optimizer;
    if (!has->present) return;
    cJSON *o = cJSON_AddObjectToObject(json_get(object, "source"), "optimizer");
    json_add_text(o, "kind", has->kind);
    json_add_u64(o, "bytes", has->size_bytes);
    report_training_json(json_get(object, "target"), c->target);
}

void report_sides_json(cJSON *object, const struct conversion *c)
{
    source_json(object, c);
    if (!c->target) return;
    report_target_json(object, c);
    training_of_sides_json(object, c);
}

void report_lossy_json(cJSON *object, const struct target *t)
{
    struct arena a;
    const char *steps[MAX_LOSSES];
    arena_init(&a);
    add_names(object, "lossy", steps, lossy_steps(t, &a, steps));
    arena_release(&a);
}

void report_replaces_json(cJSON *object, const struct publish_replaced *r)
{
    cJSON *o = cJSON_AddObjectToObject(object, "replaces");
    json_add_text(o, "path", r->folder);
    json_add_u64(o, "files", r->num_files);
    json_add_u64(o, "bytes", r->bytes);
}

static void left_json(cJSON *object, const struct conversion *c)
{
    cJSON *o = cJSON_AddObjectToObject(object, "interrupted_run");
    json_add_u64(o, "bytes", c->left.bytes);
    cJSON_AddBoolToObject(o, "same_plan", c->left.same_work);
    cJSON_AddBoolToObject(o, "discarded", c->discards);
    cJSON_AddBoolToObject(o, "continued", c->left.same_work && !c->discards);
}

void report_plan_json(cJSON *object, const struct conversion *c)
{
    report_sides_json(object, c);
    if (!c->target) return;
    report_lossy_json(object, c->target);
    if (c->replaces.folder) report_replaces_json(object, &c->replaces);
    if (c->left.found) left_json(object, c);
    cJSON *ranks = cJSON_AddObjectToObject(object, "ranks");
    struct share s = share_of(c);
    json_add_u64(ranks, "rank", c->ranks.rank);
    json_add_u64(ranks, "size", c->ranks.size);
    json_add_u64(ranks, "files", s.files);
    json_add_u64(ranks, "bytes", s.bytes);
    cJSON_AddStringToObject(object, "megatron_flags",
                            c->target->facts.flags ? c->target->facts.flags : "");
    json_add_u64(object, "peak_memory_bytes", c->peak_memory);
    json_add_u64(object, "max_memory_bytes", c->max_memory);
    json_add_u64(object, "disk_needed_bytes", c->disk_needed);
    json_add_u64(object, "disk_free_bytes", c->disk_free);
}

static cJSON *counts_json(const struct conversion *c, enum report_count which)
{
    const struct plan *p = &c->target->plan;
    cJSON *o = cJSON_CreateObject();
    for (size_t i = 0; i < p->num_copies; i++) {
        uint64_t n = count_of(&c->copies[i], which);
        if (n) json_add_u64(o, p->copies[i].source->name, n);
    }
    return o;
}

void report_counts_json(cJSON *object, const struct conversion *c)
{
    cJSON_AddItemToObject(object, "non_finite",
                          c->has_digests ? counts_json(c, REPORT_NON_FINITE) : cJSON_CreateNull());
    cJSON_AddItemToObject(object, "overflowed", counts_json(c, REPORT_OVERFLOWED));
}

void report_result_json(cJSON *object, const struct conversion *c, const struct executor_result *r)
{
    cJSON *o = cJSON_AddObjectToObject(object, "result");
    json_add_u64(o, "read_bytes", r->read_bytes);
    json_add_u64(o, "written_bytes", r->written_bytes);
    json_add_u64(o, "resumed_bytes", r->resumed_bytes);
    json_add_u64(o, "cast_elements", r->cast_elements);
    json_add_u64(o, "changed_elements", r->changed_elements);
    if (!c->ranks.rank) report_counts_json(o, c);
    json_add_u64(o, "peak_resident_bytes", host_memory_peak());
}
