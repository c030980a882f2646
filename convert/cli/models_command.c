/* models_command.c - ferry models: the architectures and their mappings. */
#include <stdio.h>
#include <string.h>

#include "common/count.h"
#include "common/json.h"
#include "common/result.h"
#include "convert/cli/convert_commands.h"
#include "convert/cli/models_scaffold.h"
#include "convert/cli/options.h"
#include "convert/map/model_map.h"
#include "convert/source.h"

struct models_flags {
    const char *show, *scaffold, *check, *model_map;
    struct output_flags output;
};

// clang-format off
static const struct arg models_args[] = {
    {"--show --show-mapping", ARG_TEXT, offsetof(struct models_flags, show), "FAMILY", NULL, "show the tensor and config mapping of one family"},
    {"--scaffold", ARG_TEXT, offsetof(struct models_flags, scaffold), "FOLDER", NULL, "print a first map of a Hugging Face folder, from the nearest"},
    {"--check", ARG_TEXT, offsetof(struct models_flags, check), "FILE", NULL, "say what a map leaves unexplained of MODEL; exit code 3 if anything"},
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

/* Prints the map, and whether it loads. */
static enum status scaffold(const struct model_maps *m, const char *folder, bool json,
                            struct error *err)
{
    struct strbuf text = {0};
    cJSON *map;
    TRY(models_scaffold(m, folder, &map, err));
    json_print(&text, map, 2);
    if (!json) printf("%s\n", text.data);
    strbuf_release(&text);
    cJSON *list = cJSON_CreateArray();
    cJSON_AddItemToArray(list, map);
    set_models_result(list);
    return OK;
}

static void print_gaps(struct checkpoint *c, const char *family, const char *unknown)
{
    const struct gaps *g = &c->gaps;
    printf("%s: %zu tensors, read by the map %s\n", c->path, c->catalog.stored.num_tensors, family);
    if (unknown) printf("unknown fields: %s\n", unknown);
    if (g->num_missing)
        printf("%s\n", count_names_text(&c->arena, "missing", g->missing, g->num_missing));
    if (g->num_unexpected)
        printf("%s\n", count_names_text(&c->arena, "unexpected", g->unexpected, g->num_unexpected));
}

/* Opens the model by the map, and says what is unknown, missing or unexpected. */
static enum status check(const struct model_maps *m, const char *family, const char *path,
                         bool json, struct error *err)
{
    const struct source_options o = {.family = family};
    struct checkpoint c;
    enum status st = source_open(&c, path, &o, m, err);
    if (!st) {
        const struct gaps *g = &c.gaps;
        const char *unknown = unknown_fields_text(&c.unknown, true, &c.arena);
        if (!json) print_gaps(&c, family, unknown);
        if (unknown || g->num_missing || g->num_unexpected)
            st = fail(err, ERR_UNSUPPORTED,
                      "%s: %zu unknown fields, %zu tensors missing, %zu unexpected", path,
                      c.unknown.count, g->num_missing, g->num_unexpected);
    }
    checkpoint_release(&c);
    return st;
}

static enum status run_models(void *options, const char *const *positional, size_t num_positional,
                              struct error *err)
{
    const struct models_flags *f = options;
    struct model_maps maps;
    if (!f->check != !num_positional)
        return fail(err, ERR_USAGE, "--check FILE and MODEL belong together");
    if (f->check && f->model_map)
        return fail(err, ERR_USAGE, "--check takes a map, so --model-map has no effect");
    enum status st = model_maps_load(&maps, f->check ? f->check : f->model_map, err);
    if (!st && f->check) {
        st = check(&maps, model_maps_family(&maps, 0), positional[0], f->output.json, err);
    } else if (!st && f->scaffold) {
        st = scaffold(&maps, f->scaffold, f->output.json, err);
    } else if (!st && f->show) {
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
    .summary = "list the supported models, show the mapping of one, make and check a map",
    .positional = "[MODEL]",
    .text = "  ferry models --show llama\n"
            "  ferry models --scaffold novel-model >novel.json\n"
            "  ferry models --check novel.json novel-model",
    .groups = models_groups,
    .num_groups = COUNT(models_groups),
    .options_bytes = sizeof(struct models_flags),
    .run = run_models,
};
