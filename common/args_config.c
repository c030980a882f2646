/* args_config.c - reads a file of options as words of a command line. */
#include <stdlib.h>
#include <string.h>

#include "common/args_internal.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/strbuf.h"
#include "common/yaml.h"

enum { MAX_CONFIG_BYTES = 1 << 20 };

/* Words under construction. */
struct words {
    const struct command *command;
    struct arg_config *to;
    struct error *err;
};

static void add_word(const struct words *x, char *word)
{
    struct arg_config *to = x->to;
    to->words = must_realloc(to->words, (to->num_words + 1) * sizeof *to->words);
    to->words[to->num_words++] = word;
}

/* "--lr", or "--lr=value". */
static void add_option(const struct words *x, const char *name, const char *value)
{
    struct strbuf s = {0};
    strbuf_printf(&s, "--%s%s%s", name, value ? "=" : "", value ? value : "");
    add_word(x, s.data);
}

/* The text of a scalar; NULL: not a scalar. */
static const char *scalar_of(const cJSON *item)
{
    return json_is_number(item) ? item->valuestring : json_as_text(item);
}

MUST_CHECK static enum status add_list(const struct words *x, const char *name, const struct arg *a,
                                       const cJSON *list)
{
    if (!takes_several(a) && a->kind != ARG_LIST)
        return fail(x->err, ERR_USAGE, "%s: found a list, expected one value", name);
    if (!list->child) return fail(x->err, ERR_USAGE, "%s: an empty list", name);
    if (a->kind != ARG_LIST) add_option(x, name, NULL);
    for (const cJSON *i = list->child; i; i = i->next) {
        const char *text = scalar_of(i);
        if (!text)
            return fail(x->err, ERR_USAGE, "%s: a list item is neither a text nor a number", name);
        if (!is_value(text))
            return fail(x->err, ERR_USAGE, "%s: list item \"%s\" looks like an option", name, text);
        if (a->kind == ARG_LIST)
            add_option(x, name, text); /* given once for each */
        else
            add_word(x, must_strdup(text));
    }
    return OK;
}

/* ---- two keys for one option ---- */

static const struct arg *find_key(const struct command *c, const cJSON *item,
                                  const struct arg_group **group)
{
    struct strbuf typed = {0};
    strbuf_printf(&typed, "--%s", item->string + strspn(item->string, "-"));
    const struct arg *a = args_find(c, (struct word){typed.data, typed.length}, group);
    strbuf_release(&typed);
    return a;
}

static bool same_name(const char *a, const char *b)
{
    a += strspn(a, "-");
    b += strspn(b, "-");
    while (*a && args_fold(*a) == args_fold(*b))
        a++, b++;
    return !*a && !*b;
}

/* Options of these kinds share a field with others. */
static bool shares_field(const struct arg *a)
{
    return a->kind == ARG_LIST || a->kind == ARG_NAMED || a->kind == ARG_NOTED ||
           a->kind == ARG_IGNORED;
}

static bool same_option(const struct command *c, const cJSON *x, const cJSON *y)
{
    const struct arg_group *gx, *gy;
    const struct arg *a = find_key(c, x, &gx), *b = find_key(c, y, &gy);
    if (!a || !b || shares_field(a) || shares_field(b)) return same_name(x->string, y->string);
    return gx->offset + a->offset == gy->offset + b->offset;
}

/* Whether both keys ask for the same: also "x: true" and "no-x: false". */
static bool same_wish(const struct command *c, const cJSON *x, const cJSON *y)
{
    const struct arg_group *group;
    const struct arg *a = find_key(c, x, &group), *b = find_key(c, y, &group);
    const char *s = scalar_of(x), *t = scalar_of(y);
    char *s_end, *t_end;
    const bool differ = a && b && (a->kind == ARG_FLAG_OFF) != (b->kind == ARG_FLAG_OFF);
    if (cJSON_IsBool(x) && cJSON_IsBool(y)) return (cJSON_IsTrue(x) != cJSON_IsTrue(y)) == differ;
    if (!s || !t) return cJSON_Compare(x, y, true);
    if (strcmp(s, t) == 0) return true;
    const double m = strtod(s, &s_end), n = strtod(t, &t_end);
    return s_end > s && t_end > t && !*s_end && !*t_end && !(m < n) && !(m > n);
}

/* ERR_USAGE if a key before `item` gives the same option another value. */
MUST_CHECK static enum status check_repeats(const struct words *x, const cJSON *first,
                                            const cJSON *item)
{
    for (const cJSON *i = first; i != item; i = i->next)
        if (same_option(x->command, i, item) && !same_wish(x->command, i, item))
            return fail(x->err, ERR_USAGE,
                        "%s (line %d) and %s (line %d) are the same option, with different values",
                        i->string, yaml_key_line(i), item->string, yaml_key_line(item));
    return OK;
}

/* Adds a key and its value. The parser then refuses an unknown name. */
MUST_CHECK static enum status add_key(const struct words *x, const cJSON *item)
{
    const struct arg_group *group;
    const char *name = item->string + strspn(item->string, "-");
    const struct arg *a = find_key(x->command, item, &group);
    if (a && a->kind == ARG_CONFIG)
        return fail(x->err, ERR_USAGE, "%s: a file of options cannot name another", name);
    if (a && cJSON_IsNull(item)) return OK;
    if (a && cJSON_IsBool(item) && takes_value(a))
        return fail(x->err, ERR_USAGE, "%s: found %s, expected a value", name,
                    cJSON_IsTrue(item) ? "true" : "false");
    if (a && cJSON_IsFalse(item)) return OK;
    if (a && cJSON_IsArray(item)) return add_list(x, name, a, item);
    if (a && cJSON_IsObject(item))
        return fail(x->err, ERR_USAGE, "%s: found a mapping, expected a value", name);
    add_option(x, name, scalar_of(item));
    return OK;
}

enum status args_config_read(const struct command *c, struct arg_config *x, struct error *err)
{
    cJSON *tree;
    const struct words w = {c, x, err};
    args_config_release(x);
    enum status st = yaml_read_file(x->path, MAX_CONFIG_BYTES, &tree, err);
    if (st == ERR_CORRUPT) err->code = st = ERR_USAGE;
    if (st) return st;
    if (!cJSON_IsObject(tree) && !cJSON_IsNull(tree))
        st = fail(err, ERR_USAGE, "not a mapping of options to values");
    for (const cJSON *i = cJSON_IsObject(tree) ? tree->child : NULL; i && !st; i = i->next) {
        st = check_repeats(&w, tree->child, i);
        if (!st) st = add_key(&w, i);
    }
    cJSON_Delete(tree);
    return st ? fail_in(err, "%s", x->path) : OK;
}

void args_config_release(struct arg_config *x)
{
    for (size_t i = 0; i < x->num_words; i++)
        free(x->words[i]);
    free(x->words);
    x->words = NULL;
    x->num_words = 0;
}
