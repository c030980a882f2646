#include "convert/cli/models_scaffold.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/checkpoint.h"
#include "common/json.h"
#include "convert/hf_config.h"
#include "convert/map/model_fit.h"
#include "formats/hf_folder.h"

struct scaffold {
    const struct model_maps *maps;
    const char *folder;
    struct checkpoint c; /* its stored tensors */
    cJSON *config;
    const struct model_map *base;
    struct model_config model;
    bool *taken; /* [stored tensors] a row of the base takes it */
    cJSON *map, *fields, *rows, *sizes, *parameters, *tensors;
    size_t num_missing;
};

/* ---- what the base explains ---- */

static bool find(const void *context, const char *name, unsigned *num_dims, const uint64_t **shape)
{
    const struct stored_tensor *t = stored_find(context, name);
    if (!t) return false;
    *num_dims = t->num_dims;
    *shape = t->shape;
    return true;
}

static bool has(const void *context, const char *name)
{
    return stored_find(context, name) != NULL;
}

static bool fits(const void *context, const char *name, unsigned num_dims, const uint64_t *shape)
{
    const struct stored_tensor *t = stored_find(context, name);
    return !t || (t->num_dims == num_dims && !memcmp(t->shape, shape, num_dims * sizeof *shape));
}

static enum status take_parts(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct scaffold *x = context;
    const struct stored *s = &x->c.catalog.stored;
    (void)err;
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct mapped_part *p = &t->parts[i];
        const struct stored_tensor *there = stored_find(s, p->hf_name);
        if (there && fits(s, p->hf_name, p->num_dims, p->shape))
            x->taken[there - s->tensors] = true;
        else if (x->num_missing++ < 5)
            fprintf(stderr, "note: %s of %s is %s: add a row with \"when\"\n", p->hf_name,
                    model_map_family(x->base), there ? "there in another shape" : "missing");
    }
    return OK;
}

/* ---- fields ---- */

static const char *type_of(const cJSON *item)
{
    uint64_t n;
    if (cJSON_IsBool(item)) return "bool";
    if (json_as_text(item)) return "text";
    if (json_as_u64(item, &n)) return "whole";
    return json_is_number(item) ? "real" : NULL;
}

/* A name that no other field has. */
static const char *field_name(struct scaffold *x, const char *name)
{
    char *out = arena_copy_text(&x->c.arena, name);
    for (char *p = out; *p; p++)
        *p = isalnum((unsigned char)*p) ? (char)tolower((unsigned char)*p) : '_';
    return model_field_find(out) ? arena_printf(&x->c.arena, "own_%s", out) : out;
}

static void add_field(void *context, const char *name, const char *value)
{
    struct scaffold *x = context;
    const cJSON *item = json_get(x->config, name);
    const char *type = item ? type_of(item) : NULL;
    if (!type) {
        fprintf(stderr, "note: %s %.60s of config.json: read it by an expression\n", name, value);
        return;
    }
    cJSON *field = cJSON_CreateObject(), *row = cJSON_CreateObject();
    const char *own = field_name(x, name);
    json_add_text(field, "name", own);
    json_add_text(field, "type", type);
    json_add_text(row, "megatron", own);
    json_add_text(row, "hf", name);
    cJSON_AddItemToObject(row, "default",
                          strcmp(type, "text") == 0   ? cJSON_CreateString("")
                          : strcmp(type, "bool") == 0 ? cJSON_CreateFalse()
                                                      : json_new_u64(0));
    cJSON_AddItemToArray(x->fields, field);
    cJSON_AddItemToArray(x->rows, row);
}

/* ---- tensors ---- */

/* The name with {l} and {e} for its numbers. */
static const char *pattern_of(struct arena *a, const char *name, uint64_t *layer)
{
    static const char *const lists[] = {"layers.", "h.", "blocks.", "experts."};
    struct strbuf out = {0};
    bool has_layer = false, has_expert = false;
    *layer = 0;
    for (const char *p = name; *p;) {
        size_t digits = strspn(p, "0123456789");
        bool listed = false, expert = false;
        for (size_t i = 0; digits && i < 4; i++) {
            const size_t n = strlen(lists[i]);
            if ((size_t)(p - name) < n || memcmp(p - n, lists[i], n)) continue;
            listed = true;
            expert = i == 3;
        }
        const bool counts = listed && p[digits] == '.' && !(expert ? has_expert : has_layer);
        if (counts) strbuf_add_text(&out, expert ? "{e}" : "{l}");
        if (counts && !expert) *layer = strtoull(p, NULL, 10);
        has_layer |= counts && !expert;
        has_expert |= counts && expert;
        if (!counts) strbuf_add(&out, p, digits ? digits : 1);
        p += digits ? digits : 1;
    }
    const char *text = arena_text(a, out.data, out.length);
    strbuf_release(&out);
    return text;
}

/* Megatron's name for a pattern: in the layer, behind the layer's number. */
static const char *logical_of(struct arena *a, const char *pattern)
{
    const char *layer = strstr(pattern, "{l}."), *expert = strstr(pattern, "{e}.");
    if (layer && expert)
        return arena_printf(a, "decoder.layers.{l}.mlp.experts.experts.{e}.%s", expert + 4);
    if (layer) return arena_printf(a, "decoder.layers.{l}.%s", layer + 4);
    return arena_printf(a, "own.%s", pattern);
}

/* A shape as axes of constant sizes: "n24a n24b". */
static const char *axes_of(struct scaffold *x, const struct stored_tensor *t)
{
    struct strbuf out = {0};
    strbuf_add_text(&out, "");
    for (unsigned d = 0; d < t->num_dims; d++) {
        const char *name =
            arena_printf(&x->c.arena, "n%llu%c", (unsigned long long)t->shape[d], (char)('a' + d));
        if (!json_get(x->sizes, name))
            json_add_text(x->sizes, name,
                          arena_printf(&x->c.arena, "%llu", (unsigned long long)t->shape[d]));
        strbuf_printf(&out, d ? " %s" : "%s", name);
    }
    const char *text = arena_text(&x->c.arena, out.data, out.length);
    strbuf_release(&out);
    return text;
}

/* The layers whose tensors have this pattern, as a list: "[0, 2]"; NULL: all. */
static const char *layers_of(struct scaffold *x, const char *pattern)
{
    const struct stored *s = &x->c.catalog.stored;
    struct strbuf out = {0};
    uint64_t layer, count = 0, last = UINT64_MAX;
    for (uint64_t l = 0; l < x->model.num_layers; l++)
        for (size_t i = 0; i < s->num_tensors && last != l; i++) {
            if (strcmp(pattern_of(&x->c.arena, s->tensors[i].name, &layer), pattern)) continue;
            if (layer != l) continue;
            strbuf_printf(&out, count++ ? ", %llu" : "[%llu", (unsigned long long)l);
            last = l;
        }
    const char *text = count && count < x->model.num_layers
                           ? arena_printf(&x->c.arena, "l in %s]", out.data)
                           : NULL;
    strbuf_release(&out);
    return text;
}

static void add_row(struct scaffold *x, const struct stored_tensor *t, const char *pattern)
{
    const char *logical = logical_of(&x->c.arena, pattern), *shape = axes_of(x, t),
               *layers = strstr(pattern, "{l}") ? layers_of(x, pattern) : NULL;
    cJSON *parameter = cJSON_CreateObject(), *row = cJSON_CreateObject();
    json_add_text(parameter, "name", logical);
    if (!strstr(pattern, "{l}")) json_add_text(parameter, "place", "embedding");
    json_add_text(parameter, "shape", shape);
    cJSON_AddItemToArray(x->parameters, parameter);
    json_add_text(row, "megatron", logical);
    json_add_text(row, "shape", shape);
    if (layers) json_add_text(row, "when", layers);
    json_add_text(row, "hf", pattern);
    cJSON_AddItemToArray(x->tensors, row);
}

static void add_rows(struct scaffold *x)
{
    const struct stored *s = &x->c.catalog.stored;
    struct map seen = {0};
    for (size_t i = 0; i < s->num_tensors; i++) {
        uint64_t layer;
        const char *pattern = pattern_of(&x->c.arena, s->tensors[i].name, &layer);
        if (x->taken[i] || model_map_ignores(x->base, s->tensors[i].name)) continue;
        if (map_add(&seen, pattern, 0, NULL)) add_row(x, &s->tensors[i], pattern);
    }
    map_release(&seen);
}

/* ---- all ---- */

static const char *own_text(const cJSON *item, const char *fallback)
{
    return json_as_text(item) ? json_as_text(item) : fallback;
}

static void begin_map(struct scaffold *x)
{
    const char *type = own_text(json_get(x->config, "model_type"), "own");
    x->map = cJSON_CreateObject();
    json_add_text(x->map, "family", type);
    json_add_text(x->map, "about", "made by ferry models --scaffold");
    json_add_text(x->map, "extends", model_map_family(x->base));
    json_add_text(x->map, "model_type", type);
    json_add_text(x->map, "architecture",
                  own_text(cJSON_GetArrayItem(json_get(x->config, "architectures"), 0), "Own"));
    x->fields = cJSON_AddArrayToObject(x->map, "fields");
    x->sizes = cJSON_AddObjectToObject(x->map, "sizes");
    x->rows = cJSON_AddArrayToObject(x->map, "config");
    x->parameters = cJSON_AddArrayToObject(x->map, "parameters");
    x->tensors = cJSON_AddArrayToObject(x->map, "tensors");
}

static enum status make_map(struct scaffold *x, struct error *err)
{
    struct checkpoint *c = &x->c;
    const char *family;
    TRY(hf_folder_open(&c->catalog.stored, x->folder, NULL, err));
    TRY(hf_config_read(x->folder, &x->config, err));
    const struct stored *s = &c->catalog.stored;
    const struct hf_shapes shapes = {find, s, s->num_tensors};
    const char *nearest = model_fit_tensors(x->maps, x->config, &shapes, &family, &c->arena);
    if (!nearest)
        return fail(err, ERR_UNSUPPORTED, "%s: no map fits any of its tensors", x->folder);
    fprintf(stderr, "note: the nearest is %s\n", nearest);
    x->base = model_map_of_family(x->maps, family);
    x->taken = arena_array(&c->arena, s->num_tensors + 1, sizeof *x->taken);
    TRY(model_config_from_hf(x->base, x->config, &c->arena, &x->model, err));
    begin_map(x);
    model_config_unknown(x->base, x->config, add_field, x);
    const struct hf_names names = {.has = has, .context = s, .fits = fits};
    model_map_find_mtp(x->base, &x->model, &names);
    TRY(model_map_expand(x->base, &x->model, &names, take_parts, x, err));
    if (x->num_missing > 5)
        fprintf(stderr, "note: and %zu more tensors of %s\n", x->num_missing - 5, family);
    add_rows(x);
    return OK;
}

enum status models_scaffold(const struct model_maps *m, const char *folder, cJSON **out,
                            struct error *err)
{
    struct scaffold x = {.maps = m, .folder = folder};
    checkpoint_init(&x.c, folder);
    enum status st = make_map(&x, err);
    if (st) cJSON_Delete(x.map);
    *out = st ? NULL : x.map;
    cJSON_Delete(x.config);
    checkpoint_release(&x.c);
    return st;
}
