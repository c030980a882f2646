/* models_command.c - ferry models: the architectures and the mapping of each. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "convert/commands.h"
#include "convert/model_map.h"

struct models_flags {
    const char *show, *model_map;
    bool json;
};

// clang-format off
static const struct arg models_args[] = {
    {"--show --show-mapping", ARG_TEXT, offsetof(struct models_flags, show), "FAMILY", NULL, "the whole map of one family"},
    {"--model-map", ARG_TEXT, offsetof(struct models_flags, model_map), "FILE", NULL, "a model map of your own, beside the built-in ones"},
    {"--json", ARG_FLAG, offsetof(struct models_flags, json), NULL, NULL, "results as JSON"},
};
static const struct arg_group models_groups[] = {{"Options", models_args, sizeof models_args / sizeof *models_args, 0}};
// clang-format on

static void list_text(struct strbuf *out, const struct model_maps *m)
{
    for (size_t i = 0; i < m->num_maps; i++)
        strbuf_printf(out, "%-12s %-24s %s\n", model_map_family(m->maps[i]),
                      model_map_architecture(m->maps[i]), model_map_about(m->maps[i]));
}

static void list_json(struct strbuf *out, const struct model_maps *m)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < m->num_maps; i++) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "family", model_map_family(m->maps[i]));
        cJSON_AddStringToObject(o, "model_type", model_map_model_type(m->maps[i]));
        cJSON_AddStringToObject(o, "architecture", model_map_architecture(m->maps[i]));
        cJSON_AddStringToObject(o, "about", model_map_about(m->maps[i]));
        cJSON_AddItemToArray(list, o);
    }
    json_print(out, list, 2);
    strbuf_add_char(out, '\n');
    cJSON_Delete(list);
}

static enum status show(struct strbuf *out, const struct model_maps *m, const char *family,
                        bool json, struct error *err)
{
    const struct model_map *map = model_map_of_family(m, family);
    if (!map)
        return fail(err, ERR_UNSUPPORTED, "%s: there is no such family; `ferry models` lists them",
                    family);
    if (!json) {
        model_map_print(out, map);
        return OK;
    }
    cJSON *o = model_map_json(map);
    json_print(out, o, 2);
    strbuf_add_char(out, '\n');
    cJSON_Delete(o);
    return OK;
}

static enum status run_models(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    const struct models_flags *f = options;
    struct model_maps maps;
    struct strbuf text = {0};
    (void)positional, (void)num_positional;
    enum status st = model_maps_load(&maps, f->model_map, err);
    if (!st && f->show)
        st = show(&text, &maps, f->show, f->json, err);
    else if (!st)
        (f->json ? list_json : list_text)(&text, &maps);
    if (!st) fputs(text.data, stdout);
    strbuf_release(&text);
    model_maps_release(&maps);
    return st;
}

const struct command command_models = {
    .name = "models",
    .summary = "list the architectures that can be converted, or show the mapping of one",
    .positional = "",
    .text = "  ferry models --show llama",
    .groups = models_groups,
    .num_groups = 1,
    .options_bytes = sizeof(struct models_flags),
    .run = run_models,
};
