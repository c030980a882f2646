#include "convert/published.h"

#include "common/file.h"
#include "common/json.h"

static const char file_name[] = "ferry-names.json";
enum { MAX_BYTES = 1 << 20 };

static enum status read_names(struct checkpoint *c, const cJSON *tree, const char *path,
                              struct error *err)
{
    struct arena *a = &c->arena;
    struct published_names *out = arena_alloc(a, sizeof *out);
    const char *prefix = json_as_text(json_get(tree, "prefix"));
    const cJSON *list = json_get(tree, "spellings");
    if (!prefix || !cJSON_IsArray(list))
        return fail(err, ERR_CORRUPT, "%s: expected prefix, a string, and spellings, a list", path);
    out->prefix = arena_copy_text(a, prefix);
    out->spellings = arena_array(a, (size_t)cJSON_GetArraySize(list) + 1, sizeof *out->spellings);
    for (const cJSON *i = list->child; i; i = i->next) {
        if (!json_as_text(i)) return fail(err, ERR_CORRUPT, "%s: a spelling is not a string", path);
        out->spellings[out->count++] = arena_copy_text(a, json_as_text(i));
    }
    c->published = out;
    return OK;
}

enum status published_read(struct checkpoint *c, const char *folder, struct error *err)
{
    const char *path = path_join(&c->arena, folder, file_name);
    cJSON *tree;
    c->published = NULL;
    if (!path_exists(path)) return OK;
    TRY(json_read_file(path, MAX_BYTES, JSON_STRICT, &tree, err));
    enum status st = read_names(c, tree, path, err);
    cJSON_Delete(tree);
    return st;
}

enum status published_write(const struct checkpoint *c, const char *folder, bool durable,
                            struct error *err)
{
    const struct published_names *p = c->published;
    struct arena a;
    if (!p) return OK;
    cJSON *tree = cJSON_CreateObject();
    json_add_text(tree, "prefix", p->prefix);
    cJSON *list = cJSON_AddArrayToObject(tree, "spellings");
    for (size_t i = 0; i < p->count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(p->spellings[i]));
    arena_init(&a);
    enum status st = json_write_file(path_join(&a, folder, file_name), tree, durable, err);
    arena_release(&a);
    cJSON_Delete(tree);
    return st;
}

/* ---- the map ---- */

static const char map_name[] = "ferry-model.json";

enum status published_map_read(struct checkpoint *c, const struct model_maps *maps,
                               const char *folder, struct error *err)
{
    const char *path = path_join(&c->arena, folder, map_name), *differs;
    if (!path_exists(path)) return OK;
    enum status st = model_maps_add(maps, path, &differs, err);
    if (st == ERR_USAGE) err->code = st = ERR_CORRUPT; /* the checkpoint's, not the user's */
    TRY(st);
    if (differs)
        checkpoint_note(c, "the model map %s differs from the one in %s, which is not used",
                        differs, path);
    return OK;
}

enum status published_map_write(const struct checkpoint *c, const struct model_maps *maps,
                                const char *folder, bool durable, struct error *err)
{
    const struct model_map *map = c->family ? model_map_of_family(maps, c->family) : NULL;
    cJSON *own = map ? model_map_own_json(maps, map) : NULL;
    struct arena a;
    if (!own) return OK;
    arena_init(&a);
    enum status st = json_write_file(path_join(&a, folder, map_name), own, durable, err);
    arena_release(&a);
    cJSON_Delete(own);
    return st;
}
