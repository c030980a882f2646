#include "convert/hf/end_tokens.h"

#include "common/arena.h"
#include "common/file.h"
#include "common/json.h"
#include "convert/source_kind.h"

static enum status add_end_token(struct end_tokens *out, const cJSON *item, const char *path,
                                 struct error *err)
{
    int64_t id;
    if (!json_as_i64(item, &id) || id > INT32_MAX || id < INT32_MIN)
        return fail(err, ERR_CORRUPT, "%s: eos_token_id is not a token id", path);
    if (out->count == MAX_END_TOKENS)
        return fail(err, ERR_CORRUPT, "%s: eos_token_id has more than %d ids", path,
                    MAX_END_TOKENS);
    if (id >= 0) out->ids[out->count++] = (int32_t)id; /* some files write -1 for no token */
    return OK;
}

/* Adds the ids of eos_token_id; none if it is null or absent. */
static enum status add_end_tokens(struct end_tokens *out, const cJSON *object, const char *path,
                                  struct error *err)
{
    const cJSON *ids = json_get(object, "eos_token_id");
    if (!ids || cJSON_IsNull(ids)) return OK;
    if (!cJSON_IsArray(ids)) return add_end_token(out, ids, path, err);
    for (const cJSON *item = ids->child; item; item = item->next)
        TRY(add_end_token(out, item, path, err));
    return OK;
}

static enum status read_end_tokens(struct end_tokens *out, struct arena *a, const char *folder,
                                   const char *name, struct error *err)
{
    cJSON *tree;
    const char *path = path_join(a, folder, name);
    if (!path_exists(path)) return OK;
    TRY(json_read_file(path, CONFIG_FILE_CAP, JSON_NAN, &tree, err));
    enum status st = add_end_tokens(out, tree, path, err);
    if (!st && !out->count) st = add_end_tokens(out, json_get(tree, "text_config"), path, err);
    if (!st && out->count) out->from = name;
    cJSON_Delete(tree);
    return st;
}

enum status end_tokens_read(const char *hf_folder, struct end_tokens *out, struct error *err)
{
    static const char generation[] = "generation_config.json", config[] = "config.json";
    struct arena a;
    *out = (struct end_tokens){.count = 0};
    if (!hf_folder) return OK;
    arena_init(&a);
    enum status st = read_end_tokens(out, &a, hf_folder, generation, err);
    if (!st && !out->from) st = read_end_tokens(out, &a, hf_folder, config, err);
    arena_release(&a);
    return st;
}

int64_t end_tokens_of_document(const struct end_tokens *e)
{
    return e->count ? e->ids[0] : -1;
}
