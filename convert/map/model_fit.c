#include "convert/map/model_fit.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/map/model_map_internal.h"
#include "convert/map/params.h"

/* ---- fields that a map can express ---- */

/* Whether a row reads a field of the file into `field`; a constant does not. */
static bool row_reads(const struct config_row *row, const char *field)
{
    const char *const *fields = row->how->fields;
    if (!(row->directions & IMPORT) || row->value) return false;
    for (size_t i = 0; i < row->num_reads; i++)
        if (strcmp(row->reads[i].name, field) == 0) return true;
    if (row->field) return strcmp(row->megatron, field) == 0;
    for (size_t i = 0; i < COUNT(row->how->fields) && fields[i]; i++)
        if (fnmatch(fields[i], field, 0) == 0) return true;
    return false;
}

static bool map_reads(const struct model_map *map, const char *field)
{
    for (size_t i = 0; i < map->config.num_rows; i++)
        if (row_reads(&map->config.rows[i], field)) return true;
    return false;
}

static bool field_matters(const struct model_field *f, const struct model_config *c)
{
    return f->role == FIELD_MODEL && f->matters(c);
}

static bool named_field_matters(const char *name, const struct model_config *c)
{
    return field_matters(model_field_find(name), c);
}

/* The config after the map wrote and read it: 0 for fields without a row, and
 * the map's constants. */
static struct model_config round_trip(const struct model_map *map, const struct model_config *c,
                                      struct arena *a)
{
    static const struct model_config usual = {.rotary_percent = 1, .rope_type = "default"};
    struct model_config said = *c;
    struct error none;
    for (size_t i = 0; i < num_model_fields; i++)
        if (!map_reads(map, model_fields[i].field.name))
            model_field_copy(&model_fields[i], &said, &usual);
    for (size_t i = 0; i < map->config.num_rows; i++) {
        const struct config_row *row = &map->config.rows[i];
        struct config_context x = {&map->config, row, NULL, a};
        bool applies;
        if (!row->value || !row->field || !(row->directions & IMPORT)) continue;
        if (config_row_applies(&x, &said, &applies, &none) || !applies) continue;
        if (row->how->from_file(&x, &said, &none)) /* an expression over unknown sizes */
            field_copy(row->field, &said, c);
    }
    if (!map_reads(map, "moe_layers")) said.moe_layers = NULL;
    if (!map_reads(map, "window_layers")) said.window_layers = NULL;
    model_config_join_biases(&said);
    return said;
}

/* ---- the distance of a map ---- */

struct distance {
    struct strbuf fields; /* "num_experts 8, qk_layernorm true" */
    size_t count;
};

static void add_differing_field(struct distance *d, const struct model_config *c,
                                const struct field *f, struct arena *a)
{
    enum { MAX_NAMED = 5 };
    if (d->count++ >= MAX_NAMED) return;
    const char *text = model_config_text(c, f->name, a);
    strbuf_printf(&d->fields, "%s%s %.60s", d->fields.length ? ", " : "", f->name, text);
}

static void add_differing_layers(struct distance *d, const char *name)
{
    d->count++;
    strbuf_printf(&d->fields, "%s%s", d->fields.length ? ", " : "", name);
}

/* Another row of the map that reads the same name of config.json into another
 * field. */
static const struct config_row *partner_of(const struct model_map *map,
                                           const struct config_row *row)
{
    for (const struct config_row *p = map->config.rows; p < row; p++)
        if (p->field && p->key && row->field && row->key && p->how == row->how && !p->value &&
            !p->num_reads && !row->value && p->directions & row->directions & IMPORT &&
            strcmp(p->key, row->key) == 0)
            return p;
    return NULL;
}

/* Counts fields that differ but share a name in config.json, which has one
 * value. */
static void compare_partners(struct distance *d, const struct model_map *map,
                             const struct model_config *c, struct arena *a)
{
    for (size_t i = 0; i < map->config.num_rows; i++) {
        const struct config_row *row = &map->config.rows[i], *partner = partner_of(map, row);
        if (!partner || !named_field_matters(row->megatron, c) ||
            !named_field_matters(partner->megatron, c))
            continue;
        const struct scalar x = field_get(row->field, c), y = field_get(partner->field, c);
        if (scalar_is_given(x) && scalar_is_given(y) && !scalar_equal(x, y))
            add_differing_field(d, c, row->field, a);
    }
}

static size_t measure_distance(const struct model_map *map, const struct model_config *config,
                               struct distance *d, struct arena *a)
{
    struct model_config c = *config;
    model_config_join_biases(&c);
    const struct model_config said = round_trip(map, &c, a);
    *d = (struct distance){.count = 0};
    for (size_t i = 0; i < num_model_fields; i++)
        if (field_matters(&model_fields[i], &c) && !model_field_equal(&model_fields[i], &said, &c))
            add_differing_field(d, &c, &model_fields[i].field, a);
    compare_partners(d, map, &c, a);
    if (!said.moe_layers && model_layers_differ(&c)) add_differing_layers(d, "moe_layers");
    if (!said.window_layers && c.window_layers) add_differing_layers(d, "window_layers");
    return d->count;
}

/* Whether the map refuses models with this config, whatever their file says. */
static bool map_refuses(const struct model_map *map, const struct model_config *c)
{
    const struct map_names names = {.map = map, .config = c, .layer = -1, .expert = -1};
    struct error none;
    for (size_t i = 0; i < map->num_unsupported; i++) {
        bool holds;
        if (!map_condition(&names, map->unsupported[i].when, &holds, &none) && holds) return true;
    }
    return false;
}

static bool map_fits(const struct model_map *map, const struct model_config *c, struct arena *a)
{
    if (map_refuses(map, c)) return false;
    struct distance d;
    size_t count = measure_distance(map, c, &d, a);
    strbuf_release(&d.fields);
    return count == 0;
}

/* Counts features with rows in the map that the model does not use. */
static size_t count_unused_features(const struct model_map *map, const struct model_config *c)
{
    size_t n = 0;
    for (size_t i = 0; i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        n += f->role == FIELD_MODEL && (f->zero == ZERO_VALUE || f->declared) &&
             map_reads(map, f->field.name) && model_field_is_zero(f, c);
    }
    return n;
}

/* ---- the best of them ---- */

/* Whether a user's map replaces this one. */
static bool is_replaced(const struct model_maps *m, const struct model_map *map)
{
    return model_map_of_family(m, map->family) != map;
}

static bool extends_one_that_fits(const struct model_maps *m, const struct model_map *map,
                                  const struct model_config *c, struct arena *a)
{
    for (size_t steps = 0; map->extends && steps < m->num_maps; steps++) {
        const struct model_map *base = model_map_of_family(m, map->extends);
        if (!base || base == map) return false;
        if (map_fits(base, c, a)) return true;
        map = base;
    }
    return false;
}

/* The maps that fit best, and how many they are. names: "llama, ernie4_5"; NULL:
 * not needed. */
static const struct model_map *find_best(const struct model_maps *m, const struct model_config *c,
                                         size_t *count, struct strbuf *names)
{
    const struct model_map *best = NULL;
    size_t fewest = SIZE_MAX;
    struct arena a;
    *count = 0;
    arena_init(&a);
    for (size_t i = 0; i < m->num_maps; i++) {
        const struct model_map *map = model_maps_at(m, i);
        if (is_replaced(m, map) || !map_fits(map, c, &a) || extends_one_that_fits(m, map, c, &a))
            continue;
        const size_t n = count_unused_features(map, c);
        if (n > fewest) continue;
        if (n < fewest && names) strbuf_clear(names);
        *count = n < fewest ? 1 : *count + 1;
        fewest = n;
        best = map;
        if (names) strbuf_printf(names, "%s%s", *count > 1 ? ", " : "", map->family);
    }
    arena_release(&a);
    return best;
}

const struct model_map *model_fit(const struct model_maps *m, const struct model_config *c)
{
    size_t count;
    const struct model_map *best = find_best(m, c, &count, NULL);
    return count == 1 ? best : NULL;
}

const char *model_fit_alike(const struct model_maps *m, const struct model_config *c,
                            struct arena *a)
{
    struct strbuf names = {0};
    size_t count;
    (void)find_best(m, c, &count, &names);
    const char *out = count > 1 ? arena_copy_text(a, names.data) : NULL;
    strbuf_release(&names);
    return out;
}

/* How many maps a map extends, one by the other: of equally near ones the
 * plainest is named. */
static unsigned depth_of(const struct model_maps *m, const struct model_map *map)
{
    unsigned depth = 0;
    while (map && map->extends && depth < m->num_maps) {
        const struct model_map *base = model_map_of_family(m, map->extends);
        map = base == map ? NULL : base;
        depth++;
    }
    return depth;
}

const char *model_fit_nearest(const struct model_maps *m, const struct model_config *c,
                              struct arena *a)
{
    const char *nearest = NULL;
    size_t fewest = SIZE_MAX;
    unsigned depth = 0;
    for (size_t i = 0; i < m->num_maps; i++) {
        const struct model_map *map = model_maps_at(m, i);
        struct distance d;
        if (is_replaced(m, map)) continue;
        const size_t count = measure_distance(map, c, &d, a);
        if (count < fewest || (count == fewest && depth_of(m, map) < depth)) {
            fewest = d.count;
            depth = depth_of(m, map);
            nearest = arena_printf(a, "%s, except for %s", map->family,
                                   d.fields.data ? d.fields.data : "a setting that it refuses");
        }
        strbuf_release(&d.fields);
    }
    return nearest;
}

enum status model_fit_params(const struct model_config *c, struct arena *a,
                             const struct param_table **out, struct error *err)
{
    struct model_maps maps;
    enum status st = model_maps_load(&maps, NULL, err);
    if (!st) st = params_make(model_fit(&maps, c), c, a, out, err);
    model_maps_release(&maps);
    return st;
}

/* ---- by tensors ---- */

struct tensor_count {
    const struct hf_shapes *tensors;
    size_t asked, found;
};

static bool is_there(const void *context, const char *name)
{
    const struct hf_shapes *t = context;
    unsigned num_dims;
    const uint64_t *shape;
    return t->find(t->context, name, &num_dims, &shape);
}

/* Counts expected and matching tensors. Stops at twice the existing tensors: a
 * config may ask for millions of missing ones. */
static enum status count_parts(void *context, const struct mapped_tensor *t, struct error *err)
{
    struct tensor_count *n = context;
    for (size_t i = 0; i < t->num_parts; i++) {
        const struct mapped_part *p = &t->parts[i];
        unsigned num_dims;
        const uint64_t *shape;
        n->asked++;
        n->found += n->tensors->find(n->tensors->context, p->hf_name, &num_dims, &shape) &&
                    num_dims == p->num_dims &&
                    memcmp(shape, p->shape, num_dims * sizeof *shape) == 0;
    }
    if (n->asked <= 2 * n->tensors->count + 100) return OK;
    return fail(err, DIFFERENT, "more tensors than there are");
}

/* The tensors of a map: those that match, and those that are not there as it
 * expects them. */
struct tensor_match {
    size_t found, missing;
    unsigned depth;
};

static struct tensor_match match_tensors(const struct model_maps *m, const struct model_map *map,
                                         const cJSON *hf_config, const struct hf_shapes *tensors,
                                         struct arena *a)
{
    struct tensor_count n = {.tensors = tensors};
    const struct hf_names names = {.has = is_there, .context = tensors};
    struct model_config c;
    struct error none;
    if (model_config_from_hf(map, hf_config, a, &c, &none)) return (struct tensor_match){0};
    model_map_find_mtp(map, &c, &names);
    if (model_map_expand(map, &c, &names, count_parts, &n, &none) > DIFFERENT)
        return (struct tensor_match){0};
    /* each expert asks for a packed tensor */
    const size_t found = n.found < tensors->count ? n.found : tensors->count;
    return (struct tensor_match){found, n.asked - n.found, depth_of(m, map)};
}

/* Whether x is nearer: more tensors match, then fewer are missing, then fewer
 * maps lie below it. */
static bool is_nearer(const struct tensor_match *x, const struct tensor_match *y)
{
    if (x->found != y->found) return x->found > y->found;
    if (x->missing != y->missing) return x->missing < y->missing;
    return x->depth < y->depth;
}

const char *model_fit_tensors(const struct model_maps *m, const cJSON *hf_config,
                              const struct hf_shapes *tensors, const char **family, struct arena *a)
{
    struct tensor_match best = {0};
    *family = NULL;
    for (size_t i = 0; i < m->num_maps; i++) {
        const struct model_map *map = model_maps_at(m, i);
        const struct tensor_match one = match_tensors(m, map, hf_config, tensors, a);
        if (!one.found || (*family && !is_nearer(&one, &best))) continue;
        best = one;
        *family = map->family;
    }
    if (!best.found) return NULL;
    return arena_printf(a, "%s, which matches %zu of %zu tensors by name and shape", *family,
                        best.found, tensors->count);
}
