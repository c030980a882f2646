/* DCP over safetensors: the shards of one rank in each file. */
#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/numbers.h"
#include "formats/dcp.h"
#include "formats/safetensors.h"

static const char shard_glob[] = "shard-[0-9]*.safetensors";

/* A tensor whose shards are collected. */
struct gathered {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    uint64_t *shape; /* so far */
    struct stored_piece *pieces;
    size_t num_pieces, pieces_capacity;
};

struct gathering {
    struct stored *s;
    const char *folder;
    struct arena arena;
    struct gathered *tensors;
    size_t num_tensors, capacity;
    struct map names;
};

static enum status list_shards(const char *folder, struct arena *a, struct name_list *shards,
                               struct error *err)
{
    struct name_list names;
    *shards = (struct name_list){0};
    TRY(folder_list(folder, a, &names, err));
    shards->names = arena_array(a, names.count, sizeof *shards->names);
    for (size_t i = 0; i < names.count; i++)
        if (fnmatch(shard_glob, names.names[i], 0) == 0)
            shards->names[shards->count++] = names.names[i];
    return OK;
}

bool dcp_has_shards(const char *folder)
{
    struct arena a;
    struct name_list shards;
    arena_init(&a);
    const bool has =
        path_is_folder(folder) && !list_shards(folder, &a, &shards, NULL) && shards.count > 0;
    arena_release(&a);
    return has;
}

/* Ranks count from 1; names are sorted. */
static enum status check_shard_ranks(const struct gathering *g, const struct name_list *shards,
                                     struct error *err)
{
    uint64_t last = 0;
    for (size_t i = 0; i < shards->count; i++) {
        uint64_t rank = 0;
        const char *digits = shards->names[i] + strlen("shard-");
        for (; *digits >= '0' && *digits <= '9' && rank < 1000000000; digits++)
            rank = 10 * rank + (uint64_t)(*digits - '0');
        if (rank > last + 1 && i)
            return fail(err, ERR_CORRUPT, "%s: a file is missing between %s and %s", g->folder,
                        shards->names[i - 1], shards->names[i]);
        if (rank > last + 1)
            return fail(err, ERR_CORRUPT, "%s: a file is missing before %s", g->folder,
                        shards->names[i]);
        last = rank > last ? rank : last;
    }
    return OK;
}

/* ---- one file ---- */

static enum status read_offsets(const struct stored_tensor *t, const cJSON *entry,
                                uint64_t *offsets, struct error *err)
{
    const cJSON *list = json_get(entry, "saved_offsets");
    unsigned d = 0;
    if (!cJSON_IsArray(list))
        return fail(err, ERR_CORRUPT, "%s has no saved_offsets in DCP_SHARDING_INFO", t->name);
    for (const cJSON *i = list->child; i; i = i->next, d++)
        if (d == t->num_dims || !json_as_u64(i, &offsets[d])) break;
    if (d != t->num_dims || cJSON_GetArraySize(list) != (int)t->num_dims)
        return fail(err, ERR_CORRUPT, "%s: its saved_offsets are not %u numbers", t->name,
                    t->num_dims);
    return OK;
}

static struct gathered *find_or_add_gathered(struct gathering *g, const struct stored_tensor *t)
{
    struct arena *a = &g->arena;
    const char *name = arena_copy_text(a, t->name);
    size_t at = g->num_tensors;
    if (!map_add(&g->names, name, at, &at)) return &g->tensors[at];
    struct gathered *to = ARENA_PUSH(a, g->tensors, g->num_tensors, g->capacity);
    *to = (struct gathered){.name = name, .dtype = t->dtype, .num_dims = t->num_dims};
    to->shape = arena_array(a, t->num_dims, sizeof *to->shape);
    return to;
}

/* Whether a rank that replicates the tensor has saved the same shard. */
static bool has_piece(const struct gathered *to, const uint64_t *start, const uint64_t *extent)
{
    const size_t bytes = to->num_dims * sizeof *start;
    for (size_t i = 0; i < to->num_pieces; i++)
        if (!bytes || (!memcmp(to->pieces[i].start, start, bytes) &&
                       !memcmp(to->pieces[i].extent, extent, bytes)))
            return true;
    return false;
}

static enum status add_shard(struct gathering *g, const struct stored_tensor *t, const cJSON *entry,
                             uint32_t file, struct error *err)
{
    struct arena *a = &g->s->arena;
    struct gathered *to = find_or_add_gathered(g, t);
    uint64_t *start = arena_array(a, t->num_dims, sizeof *start);
    uint64_t *extent = arena_copy(a, t->shape, t->num_dims * sizeof *extent);
    TRY(read_offsets(t, entry, start, err));
    if (to->dtype != t->dtype || to->num_dims != t->num_dims)
        return fail(err, ERR_CORRUPT, "%s is %s with %u dimensions, in other files %s with %u",
                    t->name, dtype_infos[t->dtype].name, t->num_dims, dtype_infos[to->dtype].name,
                    to->num_dims);
    for (unsigned d = 0; d < t->num_dims; d++) {
        if (start[d] > INT64_MAX || extent[d] > INT64_MAX)
            return fail(err, ERR_CORRUPT,
                        "%s: a shard of %" PRIu64 " elements at %" PRIu64 " is out of range",
                        t->name, extent[d], start[d]);
        if (start[d] + extent[d] > to->shape[d]) to->shape[d] = start[d] + extent[d];
    }
    if (!stored_numel(t) || has_piece(to, start, extent)) return OK;
    *ARENA_PUSH(a, to->pieces, to->num_pieces, to->pieces_capacity) = (struct stored_piece){
        .file = file, .offset_bytes = t->pieces[0].offset_bytes, .start = start, .extent = extent};
    return OK;
}

static enum status add_shards(struct gathering *g, const struct stored *part, const cJSON *sharding,
                              struct error *err)
{
    const cJSON **list = arena_array(&g->arena, part->num_tensors, sizeof *list);
    const uint32_t file = stored_add_file(g->s, part->files[0].path, &part->files[0].stamp);
    enum status st = OK;
    for (const cJSON *i = sharding->child; i; i = i->next) {
        size_t at;
        if (map_get(&part->names, i->string, &at)) list[at] = i;
    }
    for (size_t i = 0; i < part->num_tensors && !st; i++)
        st = add_shard(g, &part->tensors[i], list[i], file, err);
    return st;
}

static enum status read_shard_file(struct gathering *g, const char *name, struct error *err)
{
    struct safetensors_info info = {0};
    struct stored part;
    cJSON *sharding = NULL;
    const char *path = path_join(&g->arena, g->folder, name);
    stored_init(&part);
    enum status st = safetensors_open(&part, path, &info, err);
    if (!st && !info.dcp_sharding)
        st = fail(err, ERR_CORRUPT, "%s: no DCP_SHARDING_INFO in its __metadata__", path);
    if (!st) st = json_parse(info.dcp_sharding, strlen(info.dcp_sharding), 0, &sharding, err);
    if (!st && !cJSON_IsObject(sharding))
        st = fail(err, ERR_CORRUPT, "DCP_SHARDING_INFO is not an object");
    if (!st) st = add_shards(g, &part, sharding, err);
    if (st && err && !strstr(err->text, path)) st = fail_in(err, "%s", path);
    cJSON_Delete(sharding);
    stored_release(&part);
    return st;
}

/* ---- all ---- */

/* ckpt/catalog.h checks that no two shards overlap. */
static enum status check_volume(const struct gathering *g, const struct gathered *t,
                                struct error *err)
{
    uint64_t numel, covered = 0;
    if (!shape_numel(t->shape, t->num_dims, &numel))
        return fail(err, ERR_CORRUPT, "%s: %s: too many elements", g->folder, t->name);
    for (size_t i = 0; i < t->num_pieces; i++) {
        uint64_t volume = 1;
        for (unsigned d = 0; d < t->num_dims; d++)
            volume *= t->pieces[i].extent[d];
        covered = covered > UINT64_MAX - volume ? UINT64_MAX : covered + volume;
    }
    if (covered == numel) return OK;
    return fail(err, ERR_CORRUPT, "%s: %s: its shards cover %" PRIu64 " of %" PRIu64 " elements",
                g->folder, t->name, covered, numel);
}

static enum status add_gathered(struct gathering *g, struct error *err)
{
    for (size_t i = 0; i < g->num_tensors; i++) {
        const struct gathered *t = &g->tensors[i];
        struct stored_tensor *to;
        TRY(check_volume(g, t, err));
        TRY(stored_add_tensor(g->s, t->name, strlen(t->name), t->dtype, t->num_dims, t->shape, &to,
                              err));
        to->pieces = t->pieces;
        to->num_pieces = t->num_pieces;
    }
    return OK;
}

static enum status open_all(struct gathering *g, struct error *err)
{
    struct name_list shards;
    TRY(list_shards(g->folder, &g->arena, &shards, err));
    if (!shards.count)
        return fail(err, ERR_IO, "%s: no file is named shard-*.safetensors", g->folder);
    TRY(check_shard_ranks(g, &shards, err));
    for (size_t i = 0; i < shards.count; i++)
        TRY(read_shard_file(g, shards.names[i], err));
    return add_gathered(g, err);
}

enum status dcp_open_shards(struct stored *s, const char *folder, struct error *err)
{
    struct gathering g = {.s = s, .folder = folder};
    arena_init(&g.arena);
    enum status st = open_all(&g, err);
    map_release(&g.names);
    arena_release(&g.arena);
    return st;
}
