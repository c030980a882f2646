/* args_config.c - reads a file of options as words of a command line. */
#include <stdlib.h>

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
    if (!takes_several(a))
        return fail(x->err, ERR_USAGE, "%s: found a list, expected one value", name);
    if (!list->child) return fail(x->err, ERR_USAGE, "%s: an empty list", name);
    add_option(x, name, NULL);
    for (const cJSON *i = list->child; i; i = i->next) {
        const char *text = scalar_of(i);
        if (!text)
            return fail(x->err, ERR_USAGE, "%s: a list item is neither a text nor a number", name);
        if (!is_value(text))
            return fail(x->err, ERR_USAGE, "%s: list item \"%s\" looks like an option", name, text);
        add_word(x, must_strdup(text));
    }
    return OK;
}

/* Adds a key and its value. The parser then refuses an unknown name. */
MUST_CHECK static enum status add_key(const struct words *x, const cJSON *item)
{
    const struct arg_group *group;
    const char *name = item->string + strspn(item->string, "-");
    struct strbuf typed = {0};
    strbuf_printf(&typed, "--%s", name);
    const struct arg *a = args_find(x->command, (struct word){typed.data, typed.length}, &group);
    strbuf_release(&typed);
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
    for (const cJSON *i = cJSON_IsObject(tree) ? tree->child : NULL; i && !st; i = i->next)
        st = add_key(&w, i);
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
