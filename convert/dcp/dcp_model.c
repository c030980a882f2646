#include "convert/dcp/dcp_model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/numbers.h"
#include "common/text.h"
#include "convert/dcp/dcp_numbered.h"
#include "convert/states.h"
#include "convert/torch_groups.h"
#include "convert/wrapper_names.h"
#include "formats/dcp.h"
#include "kernels/cpu/cast.h"

static const char step_key[] = "step";

/* A group's setting and its place. */
struct setting {
    const struct dcp_entry *entry;
    size_t at;      /* in stored.objects or stored.tensors */
    bool is_tensor; /* a learning rate may be a tensor */
    uint64_t number;
};

/* Updates that each parameter's states have seen, by name. */
struct steps {
    struct map names;
    const char **order;
    double *values;
    size_t count, values_capacity, order_capacity;
};

struct taking {
    struct checkpoint *c;
    const struct titan_names *titan;
    struct dcp_entry *tensors, *objects; /* of catalog.stored */
    const char *below;                   /* the subtree that is the model */
    struct steps steps;
    struct setting *settings;
    size_t num_settings, settings_capacity;
    const char **unread; /* names of objects that are not read */
    size_t num_unread, unread_capacity;
    bool unwrapped;
    bool has_groups;
    struct dcp_numbers numbers;
    bool groups_listed; /* groups list each number once */
};

/* "a, b, c, d, e and 2 more" */
static const char *some_of(struct arena *a, const char *const *names, size_t count)
{
    enum { SHOWN = 5 };
    const char *text = "";
    for (size_t i = 0; i < count && i < SHOWN; i++)
        text = arena_printf(a, "%s%s%s", text, i ? ", " : "", names[i]);
    return count > SHOWN ? arena_printf(a, "%s and %zu more", text, count - SHOWN) : text;
}

/* ---- numbers ---- */

static double number_in(enum dtype dtype, const void *bytes)
{
    double x = NAN;
    int64_t i64;
    int32_t i32;
    if (dtype_is_float(dtype) && cast_exists(DT_F64, dtype)) {
        (void)cast_elements(&x, DT_F64, bytes, dtype, 1);
    } else if (dtype == DT_I64) {
        memcpy(&i64, bytes, sizeof i64);
        x = (double)i64;
    } else if (dtype == DT_I32) {
        memcpy(&i32, bytes, sizeof i32);
        x = i32;
    }
    return x;
}

/* The number in a tensor of one element; NaN: another count or dtype. */
static enum status stored_number(const struct checkpoint *c, const struct stored_tensor *t,
                                 double *out, struct error *err)
{
    uint8_t bytes[16] = {0};
    const size_t size = dtype_bytes(t->dtype);
    *out = NAN;
    if (stored_numel(t) != 1 || t->num_pieces != 1 || size > sizeof bytes) return OK;
    struct stored_reader *r = stored_reader_create(&c->catalog.stored, 1);
    enum status st = stored_read(r, t->pieces[0].file, t->pieces[0].offset_bytes, bytes, size, err);
    stored_reader_free(r);
    if (!st && !t->pieces[0].byte_swapped) *out = number_in(t->dtype, bytes);
    return st;
}

/* ---- objects ---- */

/* Fails only if the file cannot be read; *out is NULL for an object that cannot
 * be parsed. */
static enum status read_object(struct checkpoint *c, const struct stored_object *o,
                               struct value **out, struct error *err)
{
    struct error why = {0};
    *out = NULL;
    enum status st = dcp_read_object(&c->catalog.stored, o, &c->arena, out, &why);
    if (!st) return OK;
    *out = NULL;
    if (st == ERR_IO || st == ERR_MEMORY) return fail(err, st, "%s", why.text);
    checkpoint_note(c, "%s is not read: %s", o->name, why.text);
    return OK;
}

const struct value *dcp_object_value(struct checkpoint *c, const char *name)
{
    struct value *v = NULL;
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++)
        if (strcmp(c->catalog.stored.objects[i].name, name) == 0 &&
            read_object(c, &c->catalog.stored.objects[i], &v, NULL))
            return NULL;
    return v;
}

/* ---- which subtree is the model ---- */

struct subtree {
    const char *below;
    size_t tensors;
};

struct subtrees {
    struct subtree *items;
    size_t count, capacity;
    struct map names;
};

static void count_subtree(struct subtrees *all, struct arena *a, const char *below)
{
    size_t at = all->count;
    if (map_add(&all->names, below, at, &at))
        *ARENA_PUSH(a, all->items, all->count, all->capacity) = (struct subtree){below, 0};
    all->items[at].tensors++;
}

static const char *last_key(const char *below)
{
    const char *dot = strrchr(below, '.');
    return dot ? dot + 1 : below;
}

/* The only subtree with this last key; NULL: none or several. */
static const char *only_subtree(const struct subtrees *all, const char *key)
{
    const char *found = NULL;
    for (size_t i = 0; i < all->count; i++) {
        if (strcmp(last_key(all->items[i].below), key)) continue;
        if (found) return NULL;
        found = all->items[i].below;
    }
    return found;
}

static enum status choose_subtree(struct taking *x, const struct subtrees *all, struct error *err)
{
    static const char *const keys[] = {"model", "module", "state_dict", ""};
    struct arena *a = &x->c->arena;
    const char **names = arena_array(a, all->count, sizeof *names);
    size_t num_names = 0;
    if (!all->count)
        return fail(err, ERR_UNSUPPORTED, "%s: it has no parameter tensors", x->c->path);
    if (all->count == 1) x->below = all->items[0].below;
    for (size_t i = 0; i < COUNT(keys) && !x->below; i++)
        x->below = only_subtree(all, keys[i]);
    for (size_t i = 0; i < all->count; i++) {
        const char *below = all->items[i].below;
        if (!x->below || strcmp(below, x->below)) names[num_names++] = *below ? below : "(top)";
    }
    if (!x->below)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: tensors below several keys, none of them \"model\": %s", x->c->path,
                    some_of(a, names, num_names));
    if (num_names)
        checkpoint_note(x->c, "only tensors below %s are read, not those below: %s",
                        *x->below ? x->below : "(top)", some_of(a, names, num_names));
    return OK;
}

static enum status find_model(struct taking *x, struct error *err)
{
    const struct stored *s = &x->c->catalog.stored;
    struct subtrees all = {0};
    for (size_t i = 0; i < s->num_tensors; i++)
        if (x->tensors[i].kind == DCP_PARAMETER)
            count_subtree(&all, &x->c->arena, x->tensors[i].below);
    enum status st = choose_subtree(x, &all, err);
    map_release(&all.names);
    return st;
}

/* ---- numbers of parameters ---- */

/* The lists of numbers that groups have. */
struct number_lists {
    size_t *group_of; /* [count] plus 1; 0: in no list */
    size_t count, listed, num_groups;
    bool once;
};

static void take_list(struct number_lists *l, const struct value *list)
{
    l->num_groups++;
    for (uint32_t i = 0; list && list->kind == VALUE_LIST && i < list->count; i++) {
        int64_t number;
        if (!value_as_int(list->items[i], &number) || number < 0 || (uint64_t)number >= l->count ||
            l->group_of[number]) {
            l->once = false;
            return;
        }
        l->group_of[number] = l->num_groups;
        l->listed++;
    }
}

static enum status read_lists(struct taking *x, struct number_lists *l, struct error *err)
{
    const struct stored *s = &x->c->catalog.stored;
    struct value *v;
    for (size_t i = 0; i < s->num_objects; i++) {
        const struct dcp_entry *e = &x->objects[i];
        const bool is_list = e->kind == DCP_SETTING && e->numbered && !strcmp(e->key, "params");
        if (!is_list && e->kind != DCP_GROUPS) continue;
        TRY(read_object(x->c, &s->objects[i], &v, err));
        if (is_list) take_list(l, v);
        for (uint32_t g = 0; !is_list && v && v->kind == VALUE_LIST && g < v->count; g++)
            take_list(l, value_get(v->items[g], "params"));
    }
    return OK;
}

/* Names the parameters of states that have numbers. */
static enum status name_numbers(struct taking *x, struct error *err)
{
    struct arena *a = &x->c->arena;
    const struct stored *s = &x->c->catalog.stored;
    const size_t count = dcp_numbers_count(s, x->tensors);
    struct number_lists l = {.count = count, .once = true};
    if (!count) return OK;
    l.group_of = arena_array(a, count, sizeof *l.group_of);
    TRY(read_lists(x, &l, err));
    x->groups_listed = l.once && l.listed == count;
    const bool several = l.num_groups > 1;
    const char *why = several && !x->groups_listed
                          ? arena_printf(a, "%zu groups do not list each number once", l.num_groups)
                          : dcp_numbers_name(a, s, x->tensors, x->below,
                                             several ? l.group_of : NULL, count, &x->numbers);
    if (why) states_unread(x->c, "parameters are numbered, not named: %s", why);
    dcp_numbers_replace(&x->numbers, x->tensors, s->num_tensors);
    dcp_numbers_replace(&x->numbers, x->objects, s->num_objects);
    return OK;
}

/* ---- native tensors ---- */

static enum status add_entry_parts(struct taking *x, const struct dcp_entry *e,
                                   const struct stored_tensor *t, struct error *err)
{
    struct catalog *all = &x->c->catalog;
    const char *state = e->kind == DCP_STATE ? e->key : NULL;
    const struct titan_names none = {0};
    struct titan_part *parts;
    struct native_tensor *native;
    size_t count;
    TRY(titan_to_hf(x->titan ? x->titan : &none, &x->c->arena, e->name, t->num_dims, t->shape,
                    &parts, &count, err));
    for (size_t i = 0; i < count; i++) {
        const struct titan_part *p = &parts[i];
        if (catalog_find_native(all, p->name, state))
            return fail(err, ERR_CORRUPT, "%s: %s is stored twice; the second is %s", x->c->path,
                        p->name, t->name);
        TRY(catalog_add_native(all, p->name, state, t->dtype, p->num_dims, p->shape, &native, err));
        TRY(catalog_add_native_part(all, native, t, &p->pair, err));
    }
    return OK;
}

static void add_step(struct taking *x, const char *name, double step)
{
    struct steps *s = &x->steps;
    struct arena *a = &x->c->arena;
    size_t at = s->count;
    if (!map_add(&s->names, name, at, &at)) {
        if (!isnan(step)) s->values[at] = step;
        return;
    }
    size_t count = s->count;
    *ARENA_PUSH(a, s->values, count, s->values_capacity) = step;
    *ARENA_PUSH(a, s->order, s->count, s->order_capacity) = name;
}

static enum status add_dcp_state(struct taking *x, const struct dcp_entry *e,
                                 const struct stored_tensor *t, struct error *err)
{
    struct optimizer_info *o = &x->c->training.optimizer;
    double step = NAN;
    o->present = true;
    o->kind = "torch.optim";
    o->size_bytes += stored_tensor_bytes(t);
    if (strcmp(e->key, step_key) == 0) {
        TRY(stored_number(x->c, t, &step, err));
        add_step(x, e->name, step);
        return OK;
    }
    add_step(x, e->name, NAN);
    return add_entry_parts(x, e, t, err);
}

static void add_setting(struct taking *x, const struct dcp_entry *e, size_t at, bool is_tensor)
{
    uint64_t number = 0;
    if (e->numbered) (void)parse_u64(e->name, &number);
    *ARENA_PUSH(&x->c->arena, x->settings, x->num_settings, x->settings_capacity) =
        (struct setting){e, at, is_tensor, number};
}

/* Leaves out a buffer for balancing experts; notes it if it chooses any. */
static enum status leave_expert_bias(struct taking *x, const struct stored_tensor *t,
                                     struct error *err)
{
    struct checkpoint *c = x->c;
    const size_t size = dtype_bytes(t->dtype);
    struct stored_reader *r = stored_reader_create(&c->catalog.stored, 1);
    bool zero = true;
    enum status st = OK;
    for (size_t i = 0; i < t->num_pieces && !st; i++) {
        const struct stored_piece *p = &t->pieces[i];
        const uint64_t count = (p->extent ? p->extent : t->shape)[0];
        for (uint64_t k = 0; k < count && zero && !st; k++) {
            char element[16] = {0};
            st = stored_read(r, p->file, p->offset_bytes + k * size, element, size, err);
            zero = number_in(t->dtype, element) == 0;
        }
    }
    stored_reader_free(r);
    c->num_ignored++;
    if (!st && !zero)
        checkpoint_note(c,
                        "%s is not carried: torchtitan adds it to scores where it chooses experts, "
                        "and the model has no place for it",
                        t->name);
    return st;
}

static enum status take_tensors(struct taking *x, struct error *err)
{
    struct checkpoint *c = x->c;
    for (size_t i = 0; i < c->catalog.stored.num_tensors; i++) {
        const struct dcp_entry *e = &x->tensors[i];
        const struct stored_tensor *t = &c->catalog.stored.tensors[i];
        x->unwrapped |= e->unwrapped;
        if (e->kind == DCP_SETTING)
            add_setting(x, e, i, true);
        else if (e->kind == DCP_STATE)
            TRY(add_dcp_state(x, e, t, err));
        else if (x->titan && titan_is_expert_bias(e->name) && t->num_dims == 1)
            TRY(leave_expert_bias(x, t, err));
        else if (strcmp(e->below, x->below) == 0)
            TRY(add_entry_parts(x, e, t, err));
        else
            c->num_ignored++;
    }
    return OK;
}

/* ---- groups ---- */

/* Keeps a group's settings together, a parameter's in the order of keys. */
static int by_group(const void *a, const void *b)
{
    const struct setting *x = a, *y = b;
    const struct dcp_entry *p = x->entry, *q = y->entry;
    int order = strcmp(p->below, q->below);
    if (!order) order = (int)p->numbered - (int)q->numbered;
    if (!order && p->numbered) order = (x->number > y->number) - (x->number < y->number);
    if (!order) order = strcmp(p->name, q->name);
    if (!order) order = strcmp(p->key, q->key);
    return order;
}

static bool same_group(const struct setting *x, const struct setting *y)
{
    return x->entry->numbered == y->entry->numbered && !strcmp(x->entry->name, y->entry->name) &&
           !strcmp(x->entry->below, y->entry->below);
}

static enum status setting_value(struct taking *x, const struct setting *s, struct value **out,
                                 struct error *err)
{
    struct checkpoint *c = x->c;
    double number;
    if (!s->is_tensor) return read_object(c, &c->catalog.stored.objects[s->at], out, err);
    TRY(stored_number(c, &c->catalog.stored.tensors[s->at], &number, err));
    *out = isnan(number) ? NULL : value_float(&c->arena, number);
    return OK;
}

/* The dict of the group whose settings begin at [i]; moves *i behind them. */
static enum status group_dict(struct taking *x, size_t *i, struct value **out, struct error *err)
{
    const struct setting *first = &x->settings[*i];
    struct value *dict = value_dict(&x->c->arena), *v;
    for (; *i < x->num_settings && same_group(first, &x->settings[*i]); ++*i) {
        const struct setting *s = &x->settings[*i];
        if (s != first && strcmp(s[-1].entry->key, s->entry->key) == 0) continue;
        TRY(setting_value(x, s, &v, err));
        if (v) value_dict_add(&x->c->arena, dict, s->entry->key, v);
    }
    *out = dict;
    return OK;
}

/* Adds a parameter, by its native names, to the group added last. */
static enum status add_group_param(struct taking *x, const char *name, struct error *err)
{
    const struct titan_names none = {0};
    struct titan_part *parts;
    size_t count, at;
    const double step = map_get(&x->steps.names, name, &at) ? x->steps.values[at] : NAN;
    TRY(titan_to_hf(x->titan ? x->titan : &none, &x->c->arena, name, 0, NULL, &parts, &count, err));
    for (size_t i = 0; i < count; i++)
        torch_groups_add_param(x->c, parts[i].name, step);
    return OK;
}

/* Adds a group that lists its parameters. The only group of numbers has all,
 * though it may list one rank's. */
static enum status add_listing_group(struct taking *x, const struct value *dict, struct error *err)
{
    const struct value *params = value_get(dict, "params");
    x->has_groups = true;
    TRY(torch_groups_add(x->c, dict, NULL, NULL, err));
    if (!params || (params->kind != VALUE_LIST && params->kind != VALUE_TUPLE)) return OK;
    for (uint32_t i = 0; i < params->count; i++) {
        const char *name = value_as_text(params->items[i]);
        int64_t number;
        if (name)
            name = name_without_wrappers(&x->c->arena, name);
        else if (x->groups_listed && x->numbers.names && value_as_int(params->items[i], &number))
            name = x->numbers.names[number];
        if (name) TRY(add_group_param(x, name, err));
    }
    for (size_t n = 0; n < x->numbers.count && !x->groups_listed; n++)
        if (x->numbers.names[n]) TRY(add_group_param(x, x->numbers.names[n], err));
    return OK;
}

/* Parameters with the same settings. */
struct merged {
    const struct value *dict;
    const char **names;
    size_t count, capacity;
};
struct merging {
    struct merged *groups;
    size_t count, capacity;
    struct map texts;
};

static void merge_settings(struct merging *m, struct arena *a, const struct value *dict,
                           const char *name)
{
    struct strbuf text = {0};
    size_t at = m->count;
    value_print(&text, dict, 1 << 16);
    if (map_add(&m->texts, arena_text(a, text.data ? text.data : "", text.length), at, &at))
        *ARENA_PUSH(a, m->groups, m->count, m->capacity) = (struct merged){.dict = dict};
    struct merged *g = &m->groups[at];
    *ARENA_PUSH(a, g->names, g->count, g->capacity) = name;
    strbuf_release(&text);
}

static enum status add_merged(struct taking *x, const struct merging *m, struct error *err)
{
    for (size_t g = 0; g < m->count; g++) {
        x->has_groups = true;
        TRY(torch_groups_add(x->c, m->groups[g].dict, NULL, NULL, err));
        for (size_t i = 0; i < m->groups[g].count; i++)
            TRY(add_group_param(x, m->groups[g].names[i], err));
    }
    return OK;
}

static enum status take_settings(struct taking *x, struct merging *m, struct error *err)
{
    struct value *dict;
    if (x->num_settings) qsort(x->settings, x->num_settings, sizeof *x->settings, by_group);
    for (size_t i = 0; i < x->num_settings;) {
        const struct dcp_entry *e = x->settings[i].entry;
        TRY(group_dict(x, &i, &dict, err));
        if (e->numbered)
            TRY(add_listing_group(x, dict, err));
        else
            merge_settings(m, &x->c->arena, dict, e->name);
    }
    return add_merged(x, m, err);
}

/* Adds the groups of an object that lists them. */
static enum status take_groups(struct taking *x, const struct stored_object *o, struct error *err)
{
    struct value *list;
    TRY(read_object(x->c, o, &list, err));
    if (!list || list->kind != VALUE_LIST) return OK;
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i]->kind == VALUE_DICT) TRY(add_listing_group(x, list->items[i], err));
    return OK;
}

static enum status take_object_step(struct taking *x, const struct dcp_entry *e,
                                    const struct stored_object *o, struct error *err)
{
    struct value *v;
    double step = NAN;
    if (strcmp(e->key, step_key)) return OK;
    TRY(read_object(x->c, o, &v, err));
    (void)value_as_float(v, &step);
    add_step(x, e->name, step);
    return OK;
}

static enum status take_objects(struct taking *x, struct error *err)
{
    struct checkpoint *c = x->c;
    struct merging m = {0};
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++) {
        const struct dcp_entry *e = &x->objects[i];
        const struct stored_object *o = &c->catalog.stored.objects[i];
        if (e->kind == DCP_SETTING) add_setting(x, e, i, false);
        if (e->kind == DCP_STATE) TRY(take_object_step(x, e, o, err));
        if (e->kind == DCP_OTHER)
            *ARENA_PUSH(&c->arena, x->unread, x->num_unread, x->unread_capacity) = o->name;
    }
    for (size_t i = 0; i < c->catalog.stored.num_objects; i++)
        if (x->objects[i].kind == DCP_GROUPS)
            TRY(take_groups(x, &c->catalog.stored.objects[i], err));
    enum status st = take_settings(x, &m, err);
    map_release(&m.texts);
    return st;
}

/* Without any group, all parameters with states form a group without
 * settings. */
static enum status make_group(struct taking *x, struct error *err)
{
    if (x->has_groups || !x->steps.count) return OK;
    TRY(torch_groups_add(x->c, NULL, NULL, NULL, err));
    for (size_t i = 0; i < x->steps.count; i++)
        TRY(add_group_param(x, x->steps.order[i], err));
    return OK;
}

/* ---- all ---- */

static void name_entries(struct taking *x)
{
    struct checkpoint *c = x->c;
    const struct stored *s = &c->catalog.stored;
    x->tensors = arena_array(&c->arena, s->num_tensors, sizeof *x->tensors);
    x->objects = arena_array(&c->arena, s->num_objects, sizeof *x->objects);
    for (size_t i = 0; i < s->num_tensors; i++)
        x->tensors[i] =
            dcp_entry_of(&c->arena, s->tensors[i].name, s->tensors[i].nested_path, true);
    for (size_t i = 0; i < s->num_objects; i++)
        x->objects[i] =
            dcp_entry_of(&c->arena, s->objects[i].name, s->objects[i].nested_path, false);
}

static enum status take_all(struct taking *x, struct error *err)
{
    name_entries(x);
    TRY(find_model(x, err));
    TRY(name_numbers(x, err));
    TRY(take_tensors(x, err));
    TRY(take_objects(x, err));
    TRY(make_group(x, err));
    if (x->unwrapped)
        checkpoint_note(x->c,
                        "wrapper names (_orig_mod, _checkpoint_wrapped_module, "
                        "_fsdp_wrapped_module, module) are stripped from the parameters' names");
    if (x->num_unread && !x->titan)
        checkpoint_note(x->c, "other parts of the run are not read: %s",
                        some_of(&x->c->arena, x->unread, x->num_unread));
    return OK;
}

enum status dcp_model_take(struct checkpoint *c, const struct titan_names *titan, struct error *err)
{
    struct taking x = {.c = c, .titan = titan};
    enum status st = take_all(&x, err);
    map_release(&x.steps.names);
    return st;
}
