#include "formats/hf_folder.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/count.h"
#include "common/json.h"
#include "common/memory.h"
#include "formats/hub_cache.h"
#include "formats/safetensors.h"
#include "formats/torch.h"

const char hf_model[] = "model", hf_optimizer[] = "optimizer";

/* File names of a set of weights. */
struct spelling {
    const char *single, *index, *prefix, *suffix;
};
#define SPELLING(base, suffix)                                                                     \
    {                                                                                              \
        base suffix, base suffix ".index.json", base "-", suffix                                   \
    }
/* Both spellings of the same weights. */
static const struct spelling spellings[] = {SPELLING("model", ".safetensors"),
                                            SPELLING("pytorch_model", ".bin")};
static const struct spelling of_optimizer = SPELLING("optimizer", ".safetensors");
enum { NUM_SPELLINGS = COUNT(spellings) };

struct folder {
    struct stored *s;
    struct arena *a;
    const char *path;
    size_t num_files;
};

static bool has_file(const char *folder, const char *name)
{
    struct arena a;
    arena_init(&a);
    bool has = path_exists(path_join(&a, folder, name));
    arena_release(&a);
    return has;
}

/* model-00002-of-00007.safetensors: 2 and 7. */
static bool shard_number(const struct spelling *sp, const char *name, unsigned *k, unsigned *n)
{
    int end = 0;
    size_t prefix = strlen(sp->prefix);
    return strncmp(name, sp->prefix, prefix) == 0 &&
           sscanf(name + prefix, "%5u-of-%5u%n", k, n, &end) == 2 && end == 14 &&
           strcmp(name + prefix + end, sp->suffix) == 0;
}

static bool is_weights(const char *name)
{
    unsigned k, n;
    for (size_t i = 0; i < NUM_SPELLINGS; i++)
        if (strcmp(name, spellings[i].single) == 0 || strcmp(name, spellings[i].index) == 0 ||
            shard_number(&spellings[i], name, &k, &n))
            return true;
    return false;
}

bool hf_folder_has_weights(const char *folder)
{
    struct arena a;
    struct name_list names;
    bool has = false;
    arena_init(&a);
    if (path_is_folder(folder) && !folder_list(folder, &a, &names, NULL))
        for (size_t i = 0; i < names.count && !has; i++)
            has = is_weights(names.names[i]);
    arena_release(&a);
    return has;
}

bool hf_folder_matches(const char *folder)
{
    return path_is_folder(folder) &&
           (has_file(folder, "config.json") || hf_folder_has_weights(folder));
}

const char *hf_folder_resolve(struct arena *a, const char *path)
{
    struct hub_name name;
    const char *found = NULL;
    if (!path_exists(path) && hub_name_parse(a, path, &name))
        found = hub_cache_find(a, &name);
    else if (!has_file(path, "config.json") && has_file(path, "snapshots"))
        found = hub_cache_snapshot(a, path, "main");
    return found ? found : path;
}

/* ---- opening ---- */

/* Reports a missing file or a dangling link, with the usual remedy. */
static enum status fail_missing_file(const struct folder *f, const char *name, const char *who,
                                     struct error *err)
{
    const char *path = path_join(f->a, f->path, name);
    struct stat st;
    if (path_is_folder(path))
        return fail(err, ERR_CORRUPT, "%s: a folder, expected a file of weights", path);
    if (lstat(path, &st) == 0)
        return fail(err, ERR_IO,
                    "%s: a link to a missing file: the download did not finish; repeat `hf "
                    "download`",
                    path);
    return fail(err, ERR_IO, "%s: missing%s%s; did the download finish?", path,
                *who ? ", but named by " : "", who);
}

static enum status open_torch(const struct folder *f, const char *path, struct error *err)
{
    struct torch_file t;
    TRY(torch_open(&t, f->s, path, 0, UINT64_MAX, err));
    enum status st = torch_add_tensors(&t, f->s, t.root, "", err);
    torch_close(&t);
    return st;
}

static enum status open_weights(struct folder *f, const char *name, const char *who,
                                struct error *err)
{
    struct safetensors_info info;
    const char *path = path_join(f->a, f->path, name);
    size_t length = strlen(name), suffix = strlen(".bin");
    f->num_files++;
    if (!path_is_file(path)) return fail_missing_file(f, name, who, err);
    if (length > suffix && strcmp(name + length - suffix, ".bin") == 0)
        return open_torch(f, path, err);
    TRY(safetensors_open(f->s, path, &info, err));
    if (info.dcp_shard)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: one rank's shards of a distributed checkpoint, not "
                    "whole tensors",
                    path);
    if (info.format && strcmp(info.format, "pt") && strcmp(info.format, "mlx"))
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its format is \"%s\", \"pt\" is expected: other "
                    "frameworks lay weights out differently",
                    path, info.format);
    return OK;
}

/* ---- the index ---- */

struct index {
    struct folder *f;
    const char *name;
    cJSON *tree;
    const cJSON *map;
    struct map shards; /* file name -> index into files */
    const char **files;
    size_t num_files, capacity;
};

static enum status collect_files(struct index *x, struct error *err)
{
    x->map = json_get(x->tree, "weight_map");
    if (!cJSON_IsObject(x->map)) return fail(err, ERR_CORRUPT, "%s: no object weight_map", x->name);
    for (const cJSON *i = x->map->child; i; i = i->next) {
        const char *file = json_as_text(i);
        if (!file)
            return fail(err, ERR_CORRUPT, "%s: the file of %s is not a string", x->name, i->string);
        if (!path_is_safe(file))
            return fail(err, ERR_CORRUPT, "%s: %s is in \"%s\", which is outside the folder",
                        x->name, i->string, file);
        if (!map_add(&x->shards, file, x->num_files, NULL)) continue;
        *ARENA_PUSH(x->f->a, x->files, x->num_files, x->capacity) = file;
    }
    return x->num_files ? OK : fail(err, ERR_CORRUPT, "%s: weight_map is empty", x->name);
}

/* The names of an index, and the first tensor that is not among them.
 * transformers loads what the index names. */
struct named {
    struct map names;
    const char *other;
};

static bool is_named(void *context, const char *name)
{
    struct named *n = context;
    if (map_get(&n->names, name, NULL)) return true;
    if (!n->other) n->other = name;
    return false;
}

/* Checks that each name of the index is in its file. Tensors before first_tensor
 * are from other files. */
static enum status check_names(const struct index *x, size_t first_tensor, struct error *err)
{
    const struct stored *s = x->f->s;
    const char *file = NULL, *expected = NULL; /* of the last name: most have it, too */
    for (const cJSON *i = x->map->child; i; i = i->next) {
        size_t t;
        if (!map_get(&s->names, i->string, &t) || t < first_tensor)
            return fail(err, ERR_CORRUPT, "%s: the index has %s in %s, but no file has it", x->name,
                        i->string, i->valuestring);
        const char *path = s->files[s->tensors[t].pieces[0].file].path;
        if (!file || strcmp(file, i->valuestring))
            expected = path_join(x->f->a, x->f->path, file = i->valuestring);
        if (strcmp(path, expected))
            return fail(err, ERR_CORRUPT, "%s: the index has %s in %s, but it is in %s", x->name,
                        i->string, i->valuestring, path_base(x->f->a, path));
    }
    return OK;
}

static enum status open_shards(struct index *x, struct error *err)
{
    struct stored *s = x->f->s;
    struct named named = {.other = NULL};
    const size_t first_tensor = s->num_tensors, before = s->num_unwanted;
    enum status st = OK;
    for (const cJSON *i = x->map->child; i; i = i->next)
        (void)map_add(&named.names, i->string, 0, NULL);
    s->wants = is_named;
    s->wants_context = &named;
    for (size_t i = 0; i < x->num_files && !st; i++)
        st = open_weights(x->f, x->files[i], x->name, err);
    s->wants = NULL;
    const size_t others = s->num_unwanted - before;
    if (!st) st = check_names(x, first_tensor, err);
    if (!st && others)
        stored_warn(s, "%s: %zu tensor%s of its shards %s not in it, and left out: %s%s", x->name,
                    others, others == 1 ? "" : "s", others == 1 ? "is" : "are", named.other,
                    others == 1 ? "" : ", ...");
    map_release(&named.names);
    return st;
}

static enum status open_index(struct folder *f, const char *name, struct error *err)
{
    struct index x = {.f = f, .name = path_join(f->a, f->path, name)};
    TRY(json_read_file(x.name, HF_INDEX_CAP, JSON_STRICT, &x.tree, err));
    enum status st = collect_files(&x, err);
    if (!st) st = open_shards(&x, err);
    map_release(&x.shards);
    cJSON_Delete(x.tree);
    return st;
}

/* ---- shards without an index ---- */

static int by_shard_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* All shards in the folder, sorted. */
static enum status find_shards(const struct folder *f, const struct spelling *sp,
                               const char ***names, size_t *count, struct error *err)
{
    struct name_list list;
    size_t capacity = 0;
    *names = NULL;
    *count = 0;
    TRY(folder_list(f->path, f->a, &list, err));
    for (size_t i = 0; i < list.count; i++) {
        unsigned k, n;
        if (shard_number(sp, list.names[i], &k, &n))
            *ARENA_PUSH(f->a, *names, *count, capacity) = list.names[i];
    }
    if (*count) qsort(*names, *count, sizeof **names, by_shard_name);
    return OK;
}

static enum status open_unindexed(struct folder *f, const struct spelling *sp, const char **names,
                                  size_t count, struct error *err)
{
    unsigned k, n, of = 0;
    for (size_t i = 0; i < count; i++) {
        (void)shard_number(sp, names[i], &k, &n);
        if (i == 0) of = n;
        if (n != of)
            return fail(err, ERR_CORRUPT, "%s: shards of two sets, %s and %s, and no index",
                        f->path, names[0], names[i]);
        if (k != i + 1) break;
        TRY(open_weights(f, names[i], "", err));
    }
    if (f->num_files != of)
        return fail(err, ERR_CORRUPT,
                    "%s: shard %zu of %u and %s are missing; did the download finish?", f->path,
                    f->num_files + 1, of, sp->index);
    return OK;
}

static enum status fail_no_weights(const struct folder *f, struct error *err)
{
    struct name_list list;
    if (folder_list(f->path, f->a, &list, err)) return err->code;
    for (size_t i = 0; i < list.count; i++) {
        const char *dot = strrchr(list.names[i], '.');
        if (dot && strcmp(dot, ".incomplete") == 0)
            return fail(err, ERR_IO, "%s: only %s: the download did not finish", f->path,
                        list.names[i]);
    }
    return fail(err, ERR_IO,
                "%s: its weights are missing: no model.safetensors, index, numbered shards or "
                "pytorch_model.bin; download them again",
                f->path);
}

static enum status open_spelling(struct folder *f, const struct spelling *sp, bool *found,
                                 struct error *err)
{
    const char **names;
    size_t count;
    *found = true;
    if (has_file(f->path, sp->single)) {
        if (has_file(f->path, sp->index))
            stored_warn(f->s, "%s: %s is read, as transformers does; %s beside it is ignored",
                        f->path, sp->single, sp->index);
        return open_weights(f, sp->single, "", err);
    }
    if (has_file(f->path, sp->index)) return open_index(f, sp->index, err);
    TRY(find_shards(f, sp, &names, &count, err));
    *found = count > 0;
    return count ? open_unindexed(f, sp, names, count, err) : OK;
}

enum status hf_folder_open_optimizer(struct stored *s, const char *folder, size_t *num_files,
                                     struct error *err)
{
    struct folder f = {.s = s, .a = &s->arena, .path = folder};
    bool found;
    enum status st = open_spelling(&f, &of_optimizer, &found, err);
    *num_files = f.num_files;
    return st;
}

enum status hf_folder_open(struct stored *s, const char *folder, size_t *num_files,
                           struct error *err)
{
    struct folder f = {.s = s, .a = &s->arena, .path = folder};
    bool found = false;
    for (size_t i = 0; i < NUM_SPELLINGS && !found; i++)
        TRY(open_spelling(&f, &spellings[i], &found, err));
    if (num_files) *num_files = f.num_files;
    return found ? OK : fail_no_weights(&f, err);
}

/* ---- sharding ---- */

size_t hf_split_shards(const uint64_t *bytes, size_t num_tensors, uint64_t max_bytes,
                       uint32_t *shard)
{
    const uint32_t open = UINT32_MAX; /* in the open shard, without a number yet */
    size_t closed = 0, first_open = 0;
    uint64_t filled = 0;
    bool any_open = false;
    for (size_t i = 0; i <= num_tensors; i++) {
        bool end = i == num_tensors, alone = !end && bytes[i] > max_bytes;
        if (alone) {
            shard[i] = (uint32_t)closed++;
            continue;
        }
        if (any_open && (end || filled + bytes[i] > max_bytes)) {
            for (size_t k = first_open; k < i; k++)
                if (shard[k] == open) shard[k] = (uint32_t)closed;
            closed++;
            filled = 0;
            any_open = false;
        }
        if (end) break;
        if (!any_open) first_open = i;
        shard[i] = open;
        any_open = true;
        filled += bytes[i];
    }
    return closed;
}

const char *hf_shard_name(struct arena *a, const char *base, size_t shard, size_t num_shards)
{
    if (num_shards == 1) return arena_printf(a, "%s.safetensors", base);
    return arena_printf(a, "%s-%05zu-of-%05zu.safetensors", base, shard + 1, num_shards);
}

const char *hf_index_name(struct arena *a, const char *base)
{
    return arena_printf(a, "%s.safetensors.index.json", base);
}
