#include "convert/megatron/args_tree.h"

#include <math.h>
#include <string.h>

#include "common/json.h"

/* Limits, since many attributes may share one value: bytes of a value's text;
 * bytes of all texts; items of all lists. */
enum { MAX_VALUE_BYTES = 4096, MAX_TEXT_BYTES = 16 << 20, MAX_LIST_ITEMS = 1 << 20 };

/* ---- to a tree ---- */

struct room {
    size_t text_bytes, list_items;
};

static cJSON *text_json(const struct value *v, struct room *room)
{
    struct strbuf text = {0};
    if (room->text_bytes < MAX_VALUE_BYTES) return cJSON_CreateString("...");
    value_print(&text, v, MAX_VALUE_BYTES);
    room->text_bytes -= text.length < MAX_VALUE_BYTES ? text.length : MAX_VALUE_BYTES;
    cJSON *out = cJSON_CreateString(text.data ? text.data : "");
    strbuf_release(&text);
    return out;
}

/* A scalar as JSON; NULL for other values. */
static cJSON *scalar_json_of(const struct value *v)
{
    int64_t integer;
    double number;
    bool truth;
    if (v->kind == VALUE_NONE) return cJSON_CreateNull();
    if (value_as_bool(v, &truth)) return cJSON_CreateBool(truth);
    if (value_as_int(v, &integer)) return json_new_i64(integer);
    if (value_as_float(v, &number) && isfinite(number)) return json_new_double(number);
    return value_as_text(v) ? cJSON_CreateString(value_as_text(v)) : NULL;
}

/* A list of scalars as JSON; NULL for other values, which may be cyclic. */
static cJSON *list_json(const struct value *v, struct room *room)
{
    if (v->kind != VALUE_LIST && v->kind != VALUE_TUPLE) return NULL;
    if (v->count > room->list_items) return NULL;
    room->list_items -= v->count;
    cJSON *list = cJSON_CreateArray();
    for (uint32_t i = 0; i < v->count; i++) {
        cJSON *item = scalar_json_of(v->items[i]);
        if (!item) {
            cJSON_Delete(list);
            return NULL;
        }
        cJSON_AddItemToArray(list, item);
    }
    return list;
}

static cJSON *value_json(const struct value *v, struct room *room)
{
    const struct value *layout = v->kind == VALUE_OBJECT ? value_get(v, "input_data") : NULL;
    if (layout) v = layout;
    cJSON *out = scalar_json_of(v);
    if (!out) out = list_json(v, room);
    return out ? out : text_json(v, room);
}

/* A Namespace's attributes; NULL for other values. A pickled state may be
 * (dict, slots). */
static const struct value *attributes_of(const struct value *args)
{
    const struct value *state = args && args->kind == VALUE_OBJECT ? args->object->state : args;
    if (state && state->kind == VALUE_TUPLE && state->count) state = state->items[0];
    return state && state->kind == VALUE_DICT ? state : NULL;
}

cJSON *args_tree(const struct value *args)
{
    const struct value *d = attributes_of(args);
    struct room room = {MAX_TEXT_BYTES, MAX_LIST_ITEMS};
    cJSON *o = cJSON_CreateObject();
    for (uint32_t i = 0; d && i < d->count; i++) {
        const char *name = value_as_text(d->items[2 * (size_t)i]);
        if (name) cJSON_AddItemToObject(o, name, value_json(d->items[2 * (size_t)i + 1], &room));
    }
    return o;
}

/* ---- and back ---- */

static struct value *number_value(struct arena *a, const cJSON *item)
{
    int64_t integer;
    double number = 0;
    if (item->valuestring && !strpbrk(item->valuestring, ".eEnI") && json_as_i64(item, &integer))
        return value_int(a, integer);
    (void)json_as_double(item, &number);
    return value_float(a, number);
}

/* A Python reference, as "torch.bfloat16": module and name. */
static struct value *reference_value(struct arena *a, const char *target)
{
    const char *dot = strrchr(target, '.');
    return dot ? value_global(a, arena_text(a, target, (size_t)(dot - target)), dot + 1)
               : value_global(a, "builtins", target);
}

struct value *args_value(struct arena *a, const char *name, const cJSON *item)
{
    const char *text = json_as_text(item), *target = json_as_text(json_get(item, "_target_"));
    if (cJSON_IsNull(item)) return value_none(a);
    if (cJSON_IsBool(item)) return value_bool(a, cJSON_IsTrue(item));
    if (text) return value_text(a, text);
    if (target) return reference_value(a, target);
    if (!cJSON_IsArray(item)) return number_value(a, item);
    const bool tuple = strcmp(name, "window_size") == 0;
    struct value **items = arena_array(a, (size_t)cJSON_GetArraySize(item), sizeof *items);
    size_t n = 0;
    for (const cJSON *i = item->child; i; i = i->next)
        items[n++] = args_value(a, name, i);
    return value_list(a, tuple ? VALUE_TUPLE : VALUE_LIST, n, items);
}
