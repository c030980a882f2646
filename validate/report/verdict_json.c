/* verdict_json.c - the verdict as JSON: JSON.md describes its members. */
#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "common/json.h"
#include "convert/cli/report.h"
#include "convert/format.h"
#include "validate/compare/stored_names.h"
#include "validate/hints/hints.h"
#include "validate/report/verdict.h"

static cJSON *shape_json(const struct tensor *t)
{
    cJSON *shape = cJSON_CreateArray();
    for (unsigned d = 0; d < t->num_dims; d++)
        cJSON_AddItemToArray(shape, json_new_u64(t->shape[d]));
    return shape;
}

static void notes_json(cJSON *o, const char *const *notes, size_t count)
{
    cJSON *list = cJSON_AddArrayToObject(o, "notes");
    for (size_t i = 0; i < count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(notes[i]));
}

/* ---- sides ---- */

static cJSON *field_json(const struct field *f, const struct model_config *m)
{
    const struct scalar s = field_get(f, m);
    return s.kind == FIELD_REAL && !isfinite(s.real) ? cJSON_CreateNull() : scalar_json(s);
}

static void side_json(cJSON *o, const char *name, const struct side *s, uint64_t bytes)
{
    const struct checkpoint *c = &s->checkpoint;
    cJSON *side = cJSON_AddObjectToObject(o, name);
    json_add_text(side, "path", c->path);
    json_add_text(side, "format", c->format->name);
    json_add_text(side, "family", c->family);
    cJSON_AddBoolToObject(side, "compared_by_stored_names", s->stored_only);
    if (c->training.iteration >= 0)
        json_add_u64(side, "iteration", (uint64_t)c->training.iteration);
    json_add_u64(side, "tensors", s->num_tensors);
    json_add_u64(side, "bytes", bytes);
    json_add_u64(side, "padding_tensors", s->num_padding);
    json_add_u64(side, "optimizer_tensors_left_out", s->num_optimizer);
    if (!s->stored_only) {
        report_layout_json(side, &c->layout);
        cJSON *config = cJSON_AddObjectToObject(side, "config");
        for (size_t i = 0; i < num_model_fields; i++)
            if (!model_field_is_unused(&model_fields[i], &c->config))
                cJSON_AddItemToObject(config, model_fields[i].field.name,
                                      field_json(&model_fields[i].field, &c->config));
    }
    report_unknown_json(side, c);
    notes_json(side, c->notes.lines, c->notes.count);
}

/* ---- tensors ---- */

static void two_json(cJSON *o, const char *name, uint64_t a, uint64_t b)
{
    cJSON *two = cJSON_AddArrayToObject(o, name);
    cJSON_AddItemToArray(two, json_new_u64(a));
    cJSON_AddItemToArray(two, json_new_u64(b));
}

static void coordinates_json(cJSON *o, const char *name, unsigned num_dims, const uint64_t *shape,
                             uint64_t index)
{
    cJSON *list = cJSON_AddArrayToObject(o, name);
    uint64_t stride = 1;
    for (unsigned d = 0; d < num_dims; d++)
        stride *= shape[d];
    for (unsigned d = 0; d < num_dims; d++) {
        stride /= shape[d];
        cJSON_AddItemToArray(list, json_new_u64(index / stride));
        index %= stride;
    }
}

static void first_json(cJSON *o, const struct compared *t)
{
    const struct tensor *x = t->read[0];
    if (t->statistics.first > t->statistics.last || x != t->tensors[0]) return;
    coordinates_json(o, "first", x->num_dims, x->shape, t->statistics.first);
}

static const char *const side_ids[] = {"a", "b"};

static void stored_names_json(cJSON *o, const struct compared *t)
{
    cJSON *both = cJSON_AddObjectToObject(o, "stored_names");
    for (unsigned side = 0; side < 2; side++) {
        const struct tensor *x = t->tensors[side];
        cJSON *list = cJSON_AddArrayToObject(both, side_ids[side]);
        for (size_t i = 0; x && i < x->num_stored_names; i++)
            cJSON_AddItemToArray(list, cJSON_CreateString(x->stored_names[i]));
    }
}

/* Differing stored tensors and the first position in each; none if not known. */
static void stored_differences_json(cJSON *o, struct comparison *c, const struct compared *t)
{
    cJSON *both = cJSON_AddObjectToObject(o, "stored_differences");
    for (unsigned side = 0; side < 2; side++) {
        size_t n;
        const struct stored_difference *d = stored_differences(&c->arena, c, t, side, &n);
        cJSON *list = cJSON_AddArrayToObject(both, side_ids[side]);
        for (size_t i = 0; i < n; i++) {
            const struct stored_tensor *s = d[i].stored;
            cJSON *part = cJSON_CreateObject();
            json_add_text(part, "name", s->name);
            coordinates_json(part, "first", s->num_dims, s->shape, d[i].first);
            cJSON_AddItemToArray(list, part);
        }
    }
}

static void statistics_json(cJSON *o, const struct compared *t)
{
    const struct statistics *s = &t->statistics;
    json_add_u64(o, "elements", s->elements);
    json_add_u64(o, "different", statistics_different(s));
    if (t->read[0] != t->tensors[0]) cJSON_AddBoolToObject(o, "counted_in_bytes", true);
    first_json(o, t);
    if (!statistics_have_distances(t->read[0]->dtype, t->read[1]->dtype)) return;
    json_add_u64(o, "outside_tolerance", s->outside);
    bool all = statistics_cover_all(s);
    json_add_number(o, "max_difference", all ? s->max_difference : NAN);
    if (t->read[0]->dtype == t->read[1]->dtype)
        cJSON_AddItemToObject(o, "max_ulp", all ? json_new_u64(s->max_ulp) : cJSON_CreateNull());
    if (t->has_steps) json_add_number(o, "max_steps", all ? s->max_steps : NAN);
    json_add_number(o, "relative_error", all ? statistics_relative_error(s) : NAN);
    json_add_number(o, "cosine", all ? statistics_cosine(s) : NAN);
    json_add_u64(o, "unpaired", s->unpaired);
    two_json(o, "nan", s->nan[0], s->nan[1]);
    two_json(o, "infinite", s->infinite[0], s->infinite[1]);
}

/* Added only if there are several. */
static void stored_dtypes_json(cJSON *o, const char *name, const struct tensor *t)
{
    uint64_t dtypes = stored_dtypes(t);
    if ((dtypes & (dtypes - 1)) == 0) return;
    cJSON *list = cJSON_AddArrayToObject(o, name);
    for (int d = 0; d < NUM_DTYPES; d++)
        if (dtypes >> d & 1) cJSON_AddItemToArray(list, cJSON_CreateString(dtype_infos[d].name));
}

static cJSON *tensor_json(struct comparison *c, const struct compared *t)
{
    static const char *const dtypes[] = {"dtype_a", "dtype_b"}, *const shapes[] = {"shape_a",
                                                                                   "shape_b"};
    static const char *const stored[] = {"stored_dtypes_a", "stored_dtypes_b"};
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "name", t->name);
    json_add_text(o, "outcome", outcome_ids[t->outcome]);
    for (unsigned side = 0; side < 2; side++) {
        if (!t->tensors[side]) continue;
        json_add_text(o, dtypes[side], dtype_infos[t->tensors[side]->dtype].name);
        stored_dtypes_json(o, stored[side], t->tensors[side]);
        cJSON_AddItemToObject(o, shapes[side], shape_json(t->tensors[side]));
    }
    stored_names_json(o, t);
    if (t->counted) statistics_json(o, t);
    if (t->first_in[0] || t->first_in[1]) stored_differences_json(o, c, t);
    if (t->hint) {
        json_add_text(o, "hint", t->hint->id);
        json_add_text(o, "hint_text", t->hint->text);
    }
    return o;
}

static void hints_json(cJSON *o, const struct comparison *c)
{
    cJSON *list = cJSON_AddArrayToObject(o, "hints");
    for (size_t i = 0; i < c->num_hints; i++) {
        const struct hint_line *h = &c->hints[i];
        cJSON *line = cJSON_CreateObject();
        json_add_text(line, "hint", h->id);
        json_add_text(line, "text", h->text);
        cJSON *tensors = cJSON_AddArrayToObject(line, "tensors");
        for (size_t k = 0; k < h->num_tensors; k++)
            cJSON_AddItemToArray(tensors, cJSON_CreateString(h->tensors[k]->name));
        cJSON_AddItemToArray(list, line);
    }
}

static void tolerance_json(cJSON *o, const struct tolerance *t)
{
    cJSON *tolerance = cJSON_AddObjectToObject(o, "tolerance");
    if (t->by_ulps) json_add_u64(tolerance, "max_ulp", t->max_ulp);
    if (t->by_bounds) {
        json_add_number(tolerance, "atol", t->atol);
        json_add_number(tolerance, "rtol", t->rtol);
    }
}

static void configs_json(cJSON *o, const struct config_comparison *x)
{
    cJSON *list = cJSON_AddArrayToObject(o, "config_differences");
    for (size_t i = 0; i < x->count; i++) {
        const struct config_difference *d = &x->differences[i];
        cJSON *field = cJSON_CreateObject();
        json_add_text(field, "field", d->field);
        json_add_text(field, "a", d->values[0]);
        json_add_text(field, "b", d->values[1]);
        json_add_text(field, "effect", config_effect_ids[d->effect]);
        cJSON_AddItemToArray(list, field);
    }
}

/* Null if the training states are not compared. */
static void training_differences_json(cJSON *o, const char *name, bool compared,
                                      const struct training_difference *all, size_t count)
{
    cJSON *list = compared ? cJSON_CreateArray() : cJSON_CreateNull();
    for (size_t i = 0; i < count; i++) {
        const struct training_difference *d = &all[i];
        cJSON *field = cJSON_CreateObject();
        json_add_text(field, "field", d->field);
        json_add_text(field, "a", d->values[0]);
        json_add_text(field, "b", d->values[1]);
        cJSON_AddItemToArray(list, field);
    }
    cJSON_AddItemToObject(o, name, list);
}

/* The word of the text verdict in small letters. */
static const char *verdict_id(const struct comparison *c)
{
    if (!compare_tensors_pass(c)) return "different";
    if (!compare_configs_pass(c)) return "configs differ";
    return compare_settings_pass(c) ? verdict_word(c) : "training differs";
}

static void comparison_json(cJSON *o, const struct verdict *v)
{
    const struct comparison *c = v->c;
    if (v->forward) json_add_text(o, "weights_verdict", verdict_id(c));
    configs_json(o, &c->configs);
    const struct training_comparison *t = &c->training;
    training_differences_json(o, "training_differences", t->compared, t->differences, t->count);
    training_differences_json(o, "training_ignored", t->compared, t->ignored, t->num_ignored);
    json_add_u64(o, "read_bytes", c->read_bytes);
    side_json(o, "a", &c->sides[0], c->bytes[0]);
    side_json(o, "b", &c->sides[1], c->bytes[1]);
    tolerance_json(o, &c->options.tolerance);
    json_add_u64(o, "num_tensors", c->num_tensors);
    cJSON *counts = cJSON_AddObjectToObject(o, "counts");
    for (int i = 0; i < NUM_OUTCOMES; i++)
        json_add_u64(counts, outcome_ids[i], c->counts[i]);
    notes_json(o, c->notes, c->num_notes);
    hints_json(o, c);
    cJSON *tensors = cJSON_AddArrayToObject(o, "tensors");
    for (size_t i = 0; i < c->num_tensors; i++)
        cJSON_AddItemToArray(tensors, tensor_json(v->c, &c->tensors[i]));
}

cJSON *verdict_json(const struct verdict *v)
{
    cJSON *o = cJSON_CreateObject();
    const bool by_forward = !v->c || verdict_is_by_forward(v);
    json_add_text(o, "verdict", by_forward ? forward_id(v->forward) : verdict_id(v->c));
    if (v->c) comparison_json(o, v);
    if (v->forward) forward_json(o, v->forward);
    return o;
}
