/* models_command.c - ferry models: the architectures and their mappings. */
#include <stdio.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/result.h"
#include "convert/cli/convert_commands.h"
#include "convert/cli/options.h"
#include "convert/map/model_map.h"

struct models_flags {
    const char *show, *model_map;
    struct output_flags output;
};

// clang-format off
static const struct arg models_args[] = {
    {"--show --show-mapping", ARG_TEXT, offsetof(struct models_flags, show), "FAMILY", NULL, "show the tensor and config mapping of one family"},
    {"--model-map", ARG_TEXT, offsetof(struct models_flags, model_map), "FILE", NULL, "your own model map, in addition to the built-in ones"},
};
static const struct arg_group models_groups[] = {
    {"Models", models_args, COUNT(models_args), 0},
    {"Output", output_args, NUM_OUTPUT_ARGS, offsetof(struct models_flags, output)},
};
// clang-format on

static void list_one(const struct model_map *map)
{
    printf("%-16s %-34s %s\n", model_map_family(map), model_map_architecture(map),
           model_map_about(map));
}

static void list_text(const struct model_maps *m)
{
    for (size_t i = 0; i < m->num_maps; i++)
        list_one(model_maps_at(m, i));
}

static cJSON *families_json(const struct model_maps *m)
{
    cJSON *list = cJSON_CreateArray();
    for (size_t i = 0; i < m->num_maps; i++) {
        cJSON *o = cJSON_CreateObject();
        const struct model_map *map = model_maps_at(m, i);
        json_add_text(o, "family", model_map_family(map));
        json_add_text(o, "model_type", model_map_model_type(map));
        json_add_text(o, "architecture", model_map_architecture(map));
        json_add_text(o, "about", model_map_about(map));
        cJSON_AddItemToArray(list, o);
    }
    return list;
}

static void set_models_result(cJSON *families)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddItemToObject(o, "families", families);
    result_set(o);
}

static enum status show_family(const struct model_maps *m, const char *family, bool json,
                               struct error *err)
{
    const struct model_map *map = model_map_of_family(m, family);
    struct strbuf text = {0};
    if (!map)
        return fail(err, ERR_UNSUPPORTED, "%s: unknown family; `ferry models` lists the families",
                    family);
    cJSON *list = cJSON_CreateArray();
    cJSON_AddItemToArray(list, model_map_json(map));
    set_models_result(list);
    model_map_print(&text, map);
    if (!json) fputs(text.data, stdout);
    strbuf_release(&text);
    return OK;
}

static enum status run_models(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    const struct models_flags *f = options;
    struct model_maps maps;
    (void)positional, (void)num_positional;
    enum status st = model_maps_load(&maps, f->model_map, err);
    if (!st && f->show) {
        st = show_family(&maps, f->show, f->output.json, err);
    } else if (!st) {
        set_models_result(families_json(&maps));
        if (!f->output.json) list_text(&maps);
    }
    model_maps_release(&maps);
    return st;
}

const struct command command_models = {
    .name = "models",
    .summary = "list the supported models, or show the tensor mapping of one",
    .positional = "",
    .text = "  ferry models --show llama",
    .groups = models_groups,
    .num_groups = COUNT(models_groups),
    .options_bytes = sizeof(struct models_flags),
    .run = run_models,
};
