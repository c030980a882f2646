#include "convert/megatron/args_tree.h"

#include <math.h>
#include <string.h>

#include "common/json.h"

/* Bytes of a text of a value, and items of lists of all args together: a list may be shared by
 * many. */
enum { MAX_VALUE_BYTES = 4096, MAX_LIST_ITEMS = 1 << 20 };

/* ---- to a tree ---- */

static cJSON *list_json(const struct value *v, size_t *room);

static cJSON *text_json(const struct value *v)
{
    struct strbuf text = {0};
    value_print(&text, v, MAX_VALUE_BYTES);
    cJSON *out = cJSON_CreateString(text.data ? text.data : "");
    strbuf_release(&text);
    return out;
}

/* room: how many items lists may have. */
static cJSON *value_json(const struct value *v, size_t *room)
{
    const char *layout = v->kind == VALUE_OBJECT ? value_as_text(value_get(v, "input_data")) : NULL;
    const char *text = layout ? layout : value_as_text(v);
    int64_t integer;
    double number;
    if (v->kind == VALUE_NONE) return cJSON_CreateNull();
    if (v->kind == VALUE_BOOL) return cJSON_CreateBool(v->truth);
    if (value_as_int(v, &integer)) return json_new_i64(integer);
    if (value_as_float(v, &number) && isfinite(number)) return json_new_double(number);
    if (text) return cJSON_CreateString(text);
    cJSON *list = list_json(v, room);
    return list ? list : text_json(v);
}

/* A list of scalars; NULL for all else, which may be cyclic. */
static cJSON *list_json(const struct value *v, size_t *room)
{
    if ((v->kind != VALUE_LIST && v->kind != VALUE_TUPLE) || v->count > *room) return NULL;
    for (uint32_t i = 0; i < v->count; i++)
        if (v->items[i]->kind > VALUE_TEXT || v->items[i]->kind == VALUE_BIG_INT) return NULL;
    *room -= v->count;
    cJSON *list = cJSON_CreateArray();
    for (uint32_t i = 0; i < v->count; i++)
        cJSON_AddItemToArray(list, value_json(v->items[i], room));
    return list;
}

cJSON *args_tree(const struct value *args)
{
    const struct value *state = args && args->kind == VALUE_OBJECT ? args->object->state : args;
    size_t room = MAX_LIST_ITEMS;
    cJSON *o = cJSON_CreateObject();
    for (uint32_t i = 0; state && state->kind == VALUE_DICT && i < state->count; i++) {
        const char *name = value_as_text(state->items[2 * (size_t)i]);
        if (name)
            cJSON_AddItemToObject(o, name, value_json(state->items[2 * (size_t)i + 1], &room));
    }
    return o;
}

/* ---- and back ---- */

static struct value *number_value(struct arena *a, const cJSON *item)
{
    int64_t integer;
    double number = 0;
    if (!strpbrk(item->valuestring, ".eEnI") && json_as_i64(item, &integer))
        return value_int(a, integer);
    (void)json_as_double(item, &number);
    return value_float(a, number);
}

/* "torch.bfloat16": module and name. */
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
