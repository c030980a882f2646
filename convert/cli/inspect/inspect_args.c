/* inspect_args.c - the args of the program that wrote a Megatron checkpoint. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/yaml.h"
#include "convert/cli/inspect/inspect_internal.h"
#include "convert/megatron/args_tree.h"
#include "formats/torch.h"

/* ---- run_config.yaml ---- */

/* YAML's .nan and .inf become texts in JSON. */
static cJSON *without_infinity(cJSON *item)
{
    double x;
    if (!json_as_double(item, &x) || isfinite(x)) return item;
    cJSON *text = cJSON_CreateString(isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
    cJSON_Delete(item);
    return text;
}

/* Moves the values of a tree into one object, under their paths. */
static void flatten_tree(cJSON *out, cJSON *tree, struct arena *a, const char *path)
{
    while (tree->child) {
        cJSON *item = cJSON_DetachItemViaPointer(tree, tree->child);
        const char *name = arena_printf(a, "%s%s%s", path, *path ? "." : "", item->string);
        if (cJSON_IsObject(item) && item->child) {
            flatten_tree(out, item, a, name);
            cJSON_Delete(item);
        } else {
            cJSON_AddItemToObject(out, name, without_infinity(item));
        }
    }
}

static enum status run_config_json(const struct checkpoint *c, cJSON **out, struct error *err)
{
    struct arena a;
    cJSON *tree = NULL;
    arena_init(&a);
    const char *path = path_join(&a, c->folder ? c->folder : c->path, "run_config.yaml");
    enum status st =
        path_exists(path)
            ? yaml_read_file(path, CONFIG_FILE_CAP, &tree, err)
            : fail(err, ERR_USAGE, "%s: --args: it has neither Megatron's args nor run_config.yaml",
                   c->path);
    *out = cJSON_CreateObject();
    if (cJSON_IsObject(tree)) flatten_tree(*out, tree, &a, "");
    cJSON_Delete(tree);
    arena_release(&a);
    return st;
}

/* ---- both ---- */

static int by_json_name(const void *a, const void *b)
{
    const cJSON *const *x = a, *const *y = b;
    return strcmp((*x)->string, (*y)->string);
}

static void sort_items(cJSON *o)
{
    size_t count = (size_t)cJSON_GetArraySize(o), n = 0;
    cJSON **items = must_calloc(count + 1, sizeof(cJSON *));
    while (o->child)
        items[n++] = cJSON_DetachItemViaPointer(o, o->child);
    qsort(items, n, sizeof *items, by_json_name);
    for (size_t i = 0; i < n; i++)
        cJSON_AddItemToArray(o, items[i]); /* keeps its name */
    free(items);
}

/* The args of common.pt, for a checkpoint not opened as a model. */
static cJSON *common_file_json(const char *folder)
{
    struct stored s;
    struct torch_file t;
    cJSON *out = NULL;
    stored_init(&s);
    const char *path = path_join(&s.arena, folder, "common.pt");
    if (path_exists(path) && !torch_open(&t, &s, path, 0, UINT64_MAX, NULL)) {
        const struct value *args = value_get(t.root, "args");
        if (args && args->kind == VALUE_OBJECT) out = args_tree(args);
        torch_close(&t);
    }
    stored_release(&s);
    return out;
}

enum status args_json(const struct checkpoint *c, cJSON **out, struct error *err)
{
    const struct value *args = value_get(c->training.common, "args");
    *out = args && args->kind == VALUE_OBJECT ? args_tree(args)
           : !c->training.common && c->folder ? common_file_json(c->folder)
                                              : NULL;
    enum status st = *out ? OK : run_config_json(c, out, err);
    sort_items(*out);
    return st;
}

void args_lines(struct strbuf *out, const cJSON *args)
{
    strbuf_add_text(out, "args\n");
    for (const cJSON *i = args->child; i; i = i->next) {
        add_row_name(out, i->string, 44);
        if (json_as_text(i))
            add_escaped_name(out, json_as_text(i));
        else if (cJSON_IsNull(i))
            strbuf_add_text(out, "None");
        else if (cJSON_IsBool(i))
            strbuf_add_text(out, cJSON_IsTrue(i) ? "True" : "False");
        else
            json_print(out, i, -1);
        strbuf_add_char(out, '\n');
    }
}
