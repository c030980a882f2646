/* params.c - evaluates rows of parameters for one config. */
#include <string.h>

#include "common/count.h"
#include "convert/map/params_internal.h"

/* ---- expressions ---- */

void param_row_names(const struct param_rows *rows, const struct param_row *row,
                     const struct model_config *c, struct model_map *map, struct map_names *names)
{
    *map = (struct model_map){.sizes = rows->sizes[row->scope].items,
                              .num_sizes = rows->sizes[row->scope].count};
    *names = (struct map_names){.map = map, .config = c, .layer = -1, .expert = -1};
}

/* The value of an expression; 0 if the config lacks a size. */
static uint64_t size_of(const struct map_names *names, const char *text, size_t length)
{
    const struct expr_names e = map_names_for(names);
    int64_t value;
    return expr_eval(text, length, &e, &value, NULL) || value < 0 ? 0 : (uint64_t)value;
}

static void set_shape(struct param_spec *s, const struct map_names *names, const char *text)
{
    while (text && *text && s->num_dims < MAX_AXES) {
        size_t length = strcspn(text, " ");
        s->shape[s->num_dims++] = size_of(names, text, length);
        text += length + strspn(text + length, " ");
    }
}

static void set_sections(struct param_spec *s, const struct param_row *row,
                         const struct map_names *names)
{
    bool applies;
    if (map_condition(names, row->sections_when, &applies, NULL) || !applies) return;
    if (row->repeat) s->repeat = size_of(names, row->repeat, strlen(row->repeat));
    s->num_sections = row->num_sections;
    s->even = row->num_sections > 0;
    for (unsigned k = 0; k < row->num_sections; k++) {
        const struct section_row *from = &row->sections[k];
        uint64_t size = size_of(names, from->size, strlen(from->size));
        s->sections[k] = (struct param_section){from->name, size, from->shared};
        s->even &= strcmp(from->size, row->sections[0].size) == 0;
    }
}

/* The number of a text in a list, from 1; 0: not there. */
static unsigned number_in(const char *const *texts, unsigned count, const char *text, size_t length)
{
    for (unsigned i = 0; i < count; i++)
        if (strncmp(texts[i], text, length) == 0 && !texts[i][length]) return i + 1;
    return 0;
}

/* The place of a name MODULE.PARAMETER. */
static struct param_registered registered(const struct param_registration *r, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!dot) return (struct param_registered){0};
    unsigned module = number_in(r->modules, r->num_modules, name, (size_t)(dot - name));
    unsigned number = number_in(r->parameters, r->num_parameters, dot + 1, strlen(dot + 1));
    module *= r->num_modules + 1; /* between two are those of a predicting layer */
    return module && number ? (struct param_registered){module, number}
                            : (struct param_registered){0};
}

static void set_registered(struct param_spec *s, const struct param_registration *r)
{
    if (s->buffer) return;
    s->registered[ORDER_TE] = registered(r, s->name);
    s->registered[ORDER_LOCAL] = registered(r, s->local ? s->local : s->name);
}

static struct param_spec spec_of(const struct param_rows *rows, const struct param_row *row,
                                 const struct model_config *c)
{
    struct param_spec s = {.name = row->name,
                           .local = row->local,
                           .place = row->place,
                           .group = row->group,
                           .stacks = row->stacks,
                           .split = row->split,
                           .repeat = 1,
                           .padded = row->padded,
                           .linear = row->linear,
                           .buffer = row->buffer,
                           .apart = row->apart,
                           .own = row->own,
                           .mtp = strncmp(row->name, "mtp.", strlen("mtp.")) == 0};
    struct model_map map;
    struct map_names names;
    param_row_names(rows, row, c, &map, &names);
    set_shape(&s, &names, row->shape);
    set_sections(&s, row, &names);
    set_registered(&s, &rows->registration);
    return s;
}

/* The parameter of a layer as one of multi-token prediction has it. */
static struct param_spec mtp_spec_of(const struct param_spec *from,
                                     const struct param_registration *r, struct arena *a)
{
    static const char layers[] = "decoder.layers.", inner[] = "mtp.layers.{l}.transformer_layer";
    struct param_spec s = *from;
    s.name = arena_printf(a, "mtp.layers.{l}.transformer_layer.%s",
                          from->name + strlen(layers) + strlen("{l}."));
    s.place = PLACE_LAST;
    s.stacks &= ~(unsigned)STACK_LAYERS;
    s.mtp = true;
    const unsigned first = number_in(r->modules, r->num_modules, inner, strlen(inner));
    for (unsigned i = 0; i < NUM_PARAM_ORDERS; i++)
        if (s.registered[i].module)
            s.registered[i].module =
                first * (r->num_modules + 1) + s.registered[i].module / (r->num_modules + 1);
    return s;
}

const struct param_table *param_table_of(const struct param_rows *rows,
                                         const struct model_config *c, struct arena *a)
{
    struct param_table *t = arena_alloc(a, sizeof *t);
    struct param_spec *specs = arena_array(a, 2 * rows->count, sizeof *specs);
    const bool has_mtp = model_mtp_layers(c) > 0;
    size_t count = rows->count;
    for (size_t i = 0; i < rows->count; i++) {
        specs[i] = spec_of(rows, &rows->items[i], c);
        if (has_mtp && specs[i].place == PLACE_LAYER)
            specs[count++] = mtp_spec_of(&specs[i], &rows->registration, a);
    }
    *t = (struct param_table){.specs = specs,
                              .count = count,
                              .by_name = arena_array(a, count, sizeof *t->by_name),
                              .rows = rows};
    param_table_sort(t);
    return t;
}

/* ---- copies ---- */

static const char *copy_text(struct arena *a, const char *text)
{
    return text ? arena_copy_text(a, text) : NULL;
}

static struct param_row copy_row(struct arena *a, const struct param_row *from)
{
    struct param_row row = *from;
    const char **texts[] = {&row.name, &row.local, &row.shape, &row.repeat, &row.sections_when};
    for (size_t i = 0; i < COUNT(texts); i++)
        *texts[i] = copy_text(a, *texts[i]);
    for (unsigned k = 0; k < row.num_sections; k++) {
        row.sections[k].name = copy_text(a, row.sections[k].name);
        row.sections[k].size = copy_text(a, row.sections[k].size);
    }
    return row;
}

static const struct param_spelling *copy_spellings(struct arena *a,
                                                   const struct param_spelling *from, size_t count)
{
    struct param_spelling *to = arena_copy(a, from, count * sizeof *from);
    for (size_t i = 0; i < count; i++) {
        to[i].theirs = copy_text(a, to[i].theirs);
        to[i].ours = copy_text(a, to[i].ours);
    }
    return to;
}

static const char **copy_texts(struct arena *a, const char **from, unsigned count)
{
    const char **to = arena_copy(a, from, count * sizeof *from);
    for (unsigned i = 0; i < count; i++)
        to[i] = copy_text(a, to[i]);
    return to;
}

/* A copy of the rows and all their texts. */
static const struct param_rows *copy_rows(struct arena *a, const struct param_rows *from)
{
    struct param_rows *to = arena_copy(a, from, sizeof *from);
    struct param_spellings *s = &to->spellings;
    struct param_registration *r = &to->registration;
    to->items = arena_array(a, from->count, sizeof *to->items);
    for (size_t i = 0; i < from->count; i++)
        to->items[i] = copy_row(a, &from->items[i]);
    for (int k = 0; k < NUM_SCOPES; k++) {
        struct size *sizes = arena_array(a, from->sizes[k].count, sizeof *sizes);
        for (size_t i = 0; i < from->sizes[k].count; i++)
            sizes[i] = (struct size){copy_text(a, from->sizes[k].items[i].name),
                                     copy_text(a, from->sizes[k].items[i].text)};
        to->sizes[k].items = sizes;
    }
    s->in_layers = copy_spellings(a, s->in_layers, s->num_in_layers);
    s->beside_router = copy_spellings(a, s->beside_router, s->num_beside_router);
    s->outside = copy_spellings(a, s->outside, s->num_outside);
    s->layers = copy_texts(a, s->layers, s->num_layers);
    to->core = copy_texts(a, to->core, to->num_core);
    r->modules = copy_texts(a, r->modules, r->num_modules);
    r->parameters = copy_texts(a, r->parameters, r->num_parameters);
    return to;
}

/* ---- tables ---- */

static enum status make_megatron(const struct model_config *c, struct arena *a,
                                 const struct param_table **out, struct error *err)
{
    struct arena own;
    struct param_rows *rows;
    cJSON *tree = NULL;
    arena_init(&own);
    enum status st = param_rows_load(&own, &tree, &rows, err);
    if (!st) *out = param_table_of(copy_rows(a, rows), c, a);
    cJSON_Delete(tree);
    arena_release(&own);
    return st;
}

enum status params_make(const struct model_map *map, const struct model_config *c, struct arena *a,
                        const struct param_table **out, struct error *err)
{
    if (!map) return make_megatron(c, a, out, err);
    *out = param_table_of(copy_rows(a, map->params), c, a);
    return OK;
}

enum status params_again(const struct param_table *t, const struct model_config *c, struct arena *a,
                         const struct param_table **out, struct error *err)
{
    if (!t->rows) return fail(err, ERR_OURS, "the table of parameters has no rows");
    *out = param_table_of(copy_rows(a, t->rows), c, a);
    return OK;
}

void params_use(struct checkpoint *c, const struct model_maps *maps, const struct model_map *map)
{
    const struct param_rows *rows = map ? map->params : maps->params;
    c->params = param_table_of(copy_rows(&c->arena, rows), &c->config, &c->arena);
}

const struct param_spellings *params_spellings(const struct param_table *t)
{
    return &t->rows->spellings;
}
