/* model_names.c - names in expressions of maps: l and e (layer, expert), sizes,
 * fields of config and file, features of layers. */
#include <inttypes.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"
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

/* Evaluates a size. The depth limit ends sizes that name themselves. */
static bool size_value(const struct map_names *names, const char *name, size_t length,
                       struct term *out)
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
    return map_value(&inner, text, out, NULL) == OK;
}

/* ---- items of the file ---- */

/* The items of a list, or the names of an object. */
static struct term value_of_items(const cJSON *list, struct arena *a)
{
    struct term out = {.kind = TERM_LIST}, *items;
    for (const cJSON *i = list->child; i; i = i->next)
        out.length++;
    if (!a) return out;
    out.items = items = arena_array(a, out.length ? out.length : 1, sizeof *items);
    for (const cJSON *i = list->child; i; i = i->next)
        *items++ = cJSON_IsObject(list) ? term_text(i->string, strlen(i->string)) : json_term(i, a);
    return out;
}

struct term json_term(const cJSON *item, struct arena *a)
{
    const char *text = json_as_text(item);
    int64_t whole;
    double real;
    if (text) return term_text(text, strlen(text));
    if (json_as_i64(item, &whole)) return term_whole(whole);
    if (json_as_double(item, &real)) return term_real(real);
    if (cJSON_IsBool(item)) return term_bool(cJSON_IsTrue(item));
    if (cJSON_IsArray(item) || cJSON_IsObject(item)) return value_of_items(item, a);
    return (struct term){.kind = TERM_NONE};
}

static const cJSON *find_file_item(const cJSON *object, const char *name, size_t length)
{
    const cJSON *item = cJSON_IsObject(object) ? object->child : NULL;
    while (item && !equals(item->string, name, length))
        item = item->next;
    return item;
}

static struct term value_at(const cJSON *item, const char *path, size_t length, struct arena *a);

/* The values at a path of an object's members. */
static struct term values_at(const cJSON *object, const char *path, size_t length, struct arena *a)
{
    struct term out = {.kind = TERM_LIST}, *items;
    size_t members = 0;
    for (const cJSON *i = cJSON_IsObject(object) ? object->child : NULL; i; i = i->next)
        members++;
    if (!a) return out;
    out.items = items = arena_array(a, members ? members : 1, sizeof *items);
    for (const cJSON *i = members ? object->child : NULL; i; i = i->next) {
        items[out.length] = value_at(i, path, length, a);
        out.length += items[out.length].kind != TERM_NONE;
    }
    return out;
}

/* The value at "NAME.NAME" of an object, however deep; "_" is each member. */
static struct term value_at(const cJSON *item, const char *path, size_t length, struct arena *a)
{
    while (length) {
        const size_t n = strcspn(path, "."), taken = n < length ? n : length,
                     step = taken + (taken < length);
        if (taken == 1 && *path == '_' && step < length)
            return values_at(item, path + step, length - step, a);
        item = find_file_item(item, path, taken);
        path += step;
        length -= step;
    }
    return json_term(item, a);
}

/* hf.PATH: a member of an object; hf: the whole file. */
static bool file_value(const struct map_names *names, const char *path, size_t length,
                       struct term *out)
{
    if (!cJSON_IsObject(names->file)) return false;
    *out = value_at(names->file, path, length, names->arena);
    return true;
}

/* The path behind a prefix and a dot, or the end of the prefix alone; NULL:
 * another name. */
static const char *behind(const char *prefix, const char *name, size_t length)
{
    const size_t n = strlen(prefix);
    if (length < n || memcmp(name, prefix, n) != 0) return NULL;
    if (length == n) return name + n;
    return name[n] == '.' && length > n + 1 ? name + n + 1 : NULL;
}

/* The path in the file: "hf.PATH", or "file.PATH" for any kind of file. */
static const char *path_in_file(const struct map_names *names, const char *name, size_t length)
{
    if (!names->member) return NULL;
    const char *path = behind(names->member, name, length);
    return path ? path : behind("file", name, length);
}

/* ---- fields of the config ---- */

static struct term term_of_scalar(struct scalar s)
{
    switch (s.kind) {
    case FIELD_UINT:
        return term_whole(s.number <= INT64_MAX ? (int64_t)s.number : INT64_MAX);
    case FIELD_REAL:
        return term_real(s.real);
    case FIELD_BOOL:
        return term_bool(s.truth);
    case FIELD_TEXT:
        break;
    }
    return s.text ? term_text(s.text, strlen(s.text)) : (struct term){.kind = TERM_NONE};
}

static bool field_value(const struct model_config *c, const char *name, size_t length,
                        struct term *out)
{
    for (size_t i = 0; c && i < num_model_fields; i++) {
        if (!equals(model_fields[i].field.name, name, length)) continue;
        *out = term_of_scalar(field_get(&model_fields[i].field, c));
        return true;
    }
    return false;
}

/* moe[LAYER], window[LAYER]: whether the layer has it. FIELD[LAYER]: its value. */
static bool layer_value(const struct model_config *c, const char *name, size_t length,
                        int64_t layer, struct term *out)
{
    for (unsigned i = 0; c && i < NUM_LAYER_FIELDS; i++) {
        if (!equals(layer_fields[i].word, name, length)) continue;
        *out =
            term_bool((uint64_t)layer < c->num_layers && layer_fields[i].has(c, (uint64_t)layer));
        return true;
    }
    for (size_t i = 0; c && i < num_model_fields; i++) {
        const struct model_field *f = &model_fields[i];
        if (!f->by_layer || !equals(f->field.name, name, length)) continue;
        *out = term_of_scalar(model_field_at(f, c, (uint64_t)layer));
        return true;
    }
    return false;
}

static bool value_of(const void *context, const char *name, size_t length, int64_t index,
                     struct term *out)
{
    const struct map_names *names = context;
    if (index >= 0) return layer_value(names->config, name, length, index, out);
    if (equals("l", name, length) || equals("e", name, length)) {
        if (names->varies) *names->varies = true;
        *out = term_whole(*name == 'l' ? names->layer : names->expert);
        return out->whole >= 0;
    }
    const char *path = path_in_file(names, name, length);
    if (path) return file_value(names, path, length - (size_t)(path - name), out);
    return size_value(names, name, length, out) || field_value(names->config, name, length, out);
}

struct expr_names map_names_for(const struct map_names *names)
{
    return (struct expr_names){value_of, names, names->arena};
}

enum status map_value(const struct map_names *names, const char *text, struct term *out,
                      struct error *err)
{
    struct expr_names e = map_names_for(names);
    return expr_value(text, strlen(text), &e, out, err);
}

enum status map_condition(const struct map_names *names, const char *text, bool *out,
                          struct error *err)
{
    struct map_names inner = *names;
    struct term v;
    struct arena lists;
    *out = true;
    if (!text) return OK;
    arena_init(&lists);
    inner.arena = &lists;
    enum status st = map_value(&inner, text, &v, err);
    if (!st) *out = term_is_true(&v);
    arena_release(&lists);
    return st;
}

enum status map_fill_name(const struct map_names *names, const char *pattern, struct strbuf *out,
                          struct error *err)
{
    const struct expr_names e = map_names_for(names);
    strbuf_add_text(out, "");
    for (const char *open; (open = strchr(pattern, '{')); pattern++) {
        const char *close = strchr(open, '}');
        int64_t value;
        if (!close) return fail(err, ERR_USAGE, "\"%s\": missing }", open);
        TRY(expr_eval(open + 1, (size_t)(close - open - 1), &e, &value, err));
        strbuf_add(out, pattern, (size_t)(open - pattern));
        strbuf_printf(out, "%" PRId64, value);
        pattern = close;
    }
    strbuf_add_text(out, pattern);
    return OK;
}

enum status map_fill_mtp(const struct map_names *names, const char *prefix, struct strbuf *out,
                         struct error *err)
{
    const char *pattern = names->map->mtp;
    strbuf_clear(out);
    if (text_skip_prefix(&pattern, "{p}")) strbuf_add_text(out, prefix);
    return map_fill_name(names, pattern, out, err);
}
