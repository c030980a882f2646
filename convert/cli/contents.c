#include "convert/cli/contents.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/file.h"
#include "common/json.h"
#include "common/map.h"
#include "convert/companions.h"
#include "convert/format.h"
#include "convert/record.h"
#include "formats/hf_folder.h"

enum { MAX_NAMED = 5 };

/* Length of the first `count` components of a path; 0: the path has no more. */
static size_t components_length(const char *path, size_t count)
{
    size_t n = 0;
    for (; count; count--) {
        n += n ? 1 : 0;
        n += strcspn(path + n, "/");
        if (!path[n]) return 0;
    }
    return n;
}

/* Whether a folder matches a proper prefix of the pattern's components. */
static bool names_folder(const char *pattern, const char *folder)
{
    char first[64];
    size_t depth = 1;
    for (const char *slash = strchr(folder, '/'); slash; slash = strchr(slash + 1, '/'))
        depth++;
    const size_t n = components_length(pattern, depth);
    if (!n || n >= sizeof first) return false;
    memcpy(first, pattern, n);
    first[n] = '\0';
    return fnmatch(first, folder, FNM_PATHNAME | FNM_PERIOD) == 0;
}

/* Whether `path` is FOLDER/NAME of a companion. */
static bool is_companion_in(const char *folders, const char *path)
{
    const char *slash = strchr(path, '/');
    if (!folders || !slash) return false;
    size_t n = (size_t)(slash - path);
    for (const char *f = folders; *f; f += strcspn(f, " "), f += strspn(f, " "))
        if (strcspn(f, " ") == n && strncmp(f, path, n) == 0) return is_companion(slash + 1);
    return false;
}

/* ---- contents of a folder ---- */

struct walk {
    const char *root;
    struct arena *a;
    /* is_folder: whether to search the folder. */
    bool (*wants)(void *context, const char *path, bool is_folder);
    void *context;
    struct name_list found, others; /* wanted files; all else, folders with a slash */
    size_t found_capacity, others_capacity;
    uint64_t bytes; /* of found */
};

static void add_found(struct walk *w, char *path, uint64_t bytes)
{
    *ARENA_PUSH(w->a, w->found.names, w->found.count, w->found_capacity) = path;
    w->bytes += bytes;
}

static void add_other(struct walk *w, char *path)
{
    *ARENA_PUSH(w->a, w->others.names, w->others.count, w->others_capacity) = path;
}

/* below: relative to the root, "" for itself. */
static enum status walk_folder(struct walk *w, const char *below, struct error *err)
{
    struct name_list list;
    TRY(folder_list(*below ? path_join(w->a, w->root, below) : w->root, w->a, &list, err));
    for (size_t i = 0; i < list.count; i++) {
        struct stat s;
        char *path = path_join(w->a, below, list.names[i]);
        if (publish_is_private(list.names[i])) continue;
        if (lstat(path_join(w->a, w->root, path), &s)) continue; /* gone by now */
        bool is_folder = S_ISDIR(s.st_mode), wanted = w->wants(w->context, path, is_folder);
        if (wanted && is_folder)
            TRY(walk_folder(w, path, err));
        else if (wanted)
            add_found(w, path, (uint64_t)s.st_size);
        else
            add_other(w, is_folder ? arena_printf(w->a, "%s/", path) : path);
    }
    return OK;
}

static bool wants_all(void *context, const char *path, bool is_folder)
{
    (void)context, (void)path, (void)is_folder;
    return true;
}

enum status contents_list(const char *folder, struct arena *a, struct name_list *out,
                          struct error *err)
{
    struct walk w = {.root = folder, .a = a, .wants = wants_all};
    enum status st = walk_folder(&w, "", err);
    *out = w.found;
    return st;
}

/* ---- folders that may be replaced ---- */

/* The names that belong to one checkpoint. */
struct belongings {
    const struct format_contents *of_format;
    struct map named; /* names in its index, its ferry.json, or the plan */
};

static bool belongs(void *context, const char *path, bool is_folder)
{
    const struct belongings *b = context;
    const struct format_contents *f = b->of_format;
    for (size_t i = 0; i < f->num_paths; i++)
        if (is_folder ? names_folder(f->paths[i], path)
                      : fnmatch(f->paths[i], path, FNM_PATHNAME | FNM_PERIOD) == 0)
            return true;
    return !is_folder &&
           (is_companion_in(f->companion_folders, path) || map_get(&b->named, path, NULL));
}

/* Copies the name, since the map keeps a pointer. */
static void add_belonging(struct belongings *b, struct arena *a, const char *path)
{
    if (path) (void)map_add(&b->named, arena_copy_text(a, path), 1, NULL);
}

/* An unreadable index names nothing. */
static void add_indexed(struct belongings *b, struct arena *a, const char *path)
{
    cJSON *tree;
    if (json_read_file(path, HF_INDEX_CAP, JSON_NAN, &tree, NULL)) return;
    const cJSON *files = json_get(tree, "weight_map");
    for (const cJSON *c = files ? files->child : NULL; c; c = c->next)
        add_belonging(b, a, json_as_text(c));
    cJSON_Delete(tree);
}

static void add_recorded(struct belongings *b, struct arena *a, const char *folder)
{
    cJSON *tree;
    if (record_read(folder, &tree, NULL)) return;
    const cJSON *files = json_get(tree, "files");
    for (const cJSON *c = files ? files->child : NULL; c; c = c->next)
        add_belonging(b, a, json_as_text(c));
    cJSON_Delete(tree);
}

static bool has_any(const struct name_list *names, const char *const *signs)
{
    for (; *signs; signs++)
        for (size_t i = 0; i < names->count; i++)
            if (fnmatch(*signs, names->names[i], FNM_PERIOD) == 0) return true;
    return false;
}

static bool is_checkpoint(const struct format_contents *f, const struct name_list *names)
{
    return has_any(names, f->signs[0]) && (!f->signs[1] || has_any(names, f->signs[1]));
}

static enum status refuse_replacement(const struct format *f, const char *folder, bool is_one,
                                      const struct name_list *others, struct error *err)
{
    struct strbuf why = {0};
    if (!is_one)
        strbuf_printf(&why, "it is not a %s checkpoint (it has no %s)", f->title,
                      f->contents->lacks);
    if (others->count)
        strbuf_printf(&why, "%sit holds %zu %s not part of %s: ", is_one ? "" : ", and ",
                      others->count, others->count == 1 ? "file or folder" : "files or folders",
                      is_one ? "a checkpoint" : "one");
    for (size_t i = 0; i < others->count && i < MAX_NAMED; i++) {
        if (i) strbuf_add_text(&why, ", ");
        strbuf_add_escaped(&why, others->names[i], strlen(others->names[i]));
    }
    if (others->count > MAX_NAMED) strbuf_add_text(&why, ", ...");
    enum status st =
        fail(err, ERR_EXISTS, "%s: --overwrite does not replace it: %s", folder, why.data);
    strbuf_release(&why);
    return st;
}

enum status contents_may_replace(void *context, const char *folder, struct publish_replaced *out,
                                 struct error *err)
{
    const struct target *t = context;
    struct arena a;
    struct name_list top;
    struct belongings b = {.of_format = t->format->contents};
    arena_init(&a);
    struct walk w = {.root = folder, .a = &a, .wants = belongs, .context = &b};
    enum status st = folder_list(folder, &a, &top, err);
    for (size_t i = 0; i < top.count && !st; i++)
        if (fnmatch("*.index.json", top.names[i], 0) == 0)
            add_indexed(&b, &a, path_join(&a, folder, top.names[i]));
    add_recorded(&b, &a, folder);
    for (size_t i = 0; i < t->plan.num_files; i++)
        add_belonging(&b, &a, t->plan.files[i].path);
    if (!st) st = walk_folder(&w, "", err);
    bool is_one = !st && is_checkpoint(b.of_format, &top);
    if (!st && (!is_one || w.others.count))
        st = refuse_replacement(t->format, folder, is_one, &w.others, err);
    *out = (struct publish_replaced){folder, w.found.count, w.bytes};
    map_release(&b.named);
    arena_release(&a);
    return st;
}
