/* model_names.c - looks up names in a model map's expressions: l and e (layer
 * and expert), sizes of the row and of the map, fields of the config,
 * moe[LAYER], FIELD.TEXT, hf.FIELD, hf.FIELD.TEXT. */
#include <string.h>

#include "common/json.h"
#include "convert/map/model_map_internal.h"

static bool equals(const char *text, const char *name, size_t length)
{
    return strlen(text) == length && memcmp(text, name, length) == 0;
}

static const char *size_text(const struct size *sizes, size_t count, const char *name,
                             size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (equals(sizes[i].name, name, length)) return sizes[i].text;
    return NULL;
}

/* Evaluates a size, an expression over other names. The depth limit ends sizes
 * that refer to themselves. */
static bool size_value(const struct map_names *names, const char *name, size_t length, int64_t *out)
{
    const char *text = NULL;
    struct map_names inner = *names;
    if (++inner.depth > 16) return false;
    if (names->row) {
        text = size_text(names->row->with, names->row->num_with, name, length);
        if (text) inner.row = NULL; /* "with": {"i": "f"}: its expression has no overrides */
    }
    if (!text && names->map)
        text = size_text(names->map->sizes, names->map->num_sizes, name, length);
    if (!text) return false;
    struct expr_names e = map_names_for(&inner);
    return expr_eval(text, strlen(text), &e, out, NULL) == OK;
}

static const cJSON *find_file_item(const cJSON *file, const char *name, size_t length)
{
    const cJSON *item = cJSON_IsObject(file) ? file->child : NULL;
    while (item && !equals(item->string, name, length))
        item = item->next;
    return item;
}

/* Whether an item is this text; for "true" and "false", whether it is set, or
 * there but unset. */
static bool item_says(const cJSON *item, const char *text, size_t length)
{
    const char *own = json_as_text(item);
    if (equals("true", text, length)) return item && !config_is_unset(item);
    if (equals("false", text, length)) return item && config_is_unset(item);
    return own && equals(own, text, length);
}

/* hf.NAME: a whole number, or whether it is set. hf.NAME.TEXT: whether it is
 * TEXT. */
static bool file_value(const struct map_names *names, const char *name, size_t length, int64_t *out)
{
    size_t n = strcspn(name, ".");
    if (!cJSON_IsObject(names->file)) return false;
    const cJSON *item = find_file_item(names->file, name, n < length ? n : length);
    if (n < length)
        *out = item_says(item, name + n + 1, length - n - 1);
    else if (!json_as_i64(item, out))
        *out = item && !config_is_unset(item);
    return true;
}

/* Whether a name begins with the file's kind and a dot. */
static bool is_of_file(const struct map_names *names, const char *name, size_t length)
{
    size_t n = names->member ? strlen(names->member) : 0;
    return n && length > n + 1 && memcmp(name, names->member, n) == 0 && name[n] == '.';
}

static bool scalar_as_int(struct scalar s, int64_t *out)
{
    *out = s.kind == FIELD_BOOL ? s.truth : (int64_t)s.number;
    return s.kind == FIELD_BOOL || (s.kind == FIELD_UINT && *out >= 0);
}

/* FIELD, a whole number or truth value; FIELD.TEXT: whether a text field is
 * TEXT. */
static bool field_value(const struct model_config *c, const char *name, size_t length, int64_t *out)
{
    size_t n = strcspn(name, ".");
    if (n > length) n = length;
    for (size_t i = 0; c && i < num_model_fields; i++) {
        if (!equals(model_fields[i].field.name, name, n)) continue;
        const struct scalar s = field_get(&model_fields[i].field, c);
        if (n == length) return scalar_as_int(s, out);
        *out = s.kind == FIELD_TEXT && s.text && equals(s.text, name + n + 1, length - n - 1);
        return s.kind == FIELD_TEXT;
    }
    return false;
}

static bool value_of(const void *context, const char *name, size_t length, int64_t index,
                     int64_t *out)
{
    const struct map_names *names = context;
    if (index >= 0) {
        if (!equals("moe", name, length)) return false;
        *out = names->config && (uint64_t)index < names->config->num_layers &&
               model_layer_is_moe(names->config, (uint64_t)index);
        return true;
    }
    if (equals("l", name, length) || equals("e", name, length)) {
        if (names->varies) *names->varies = true;
        *out = *name == 'l' ? names->layer : names->expert;
        return *out >= 0;
    }
    if (is_of_file(names, name, length)) {
        const size_t n = strlen(names->member) + 1;
        return file_value(names, name + n, length - n, out);
    }
    return size_value(names, name, length, out) || field_value(names->config, name, length, out);
}

struct expr_names map_names_for(const struct map_names *names)
{
    return (struct expr_names){value_of, names};
}

enum status map_condition(const struct map_names *names, const char *text, bool *out,
                          struct error *err)
{
    int64_t value;
    *out = true;
    if (!text) return OK;
    struct expr_names e = map_names_for(names);
    TRY(expr_eval(text, strlen(text), &e, &value, err));
    *out = value != 0;
    return OK;
}
