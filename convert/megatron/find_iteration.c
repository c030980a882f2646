#include "convert/megatron/find_iteration.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "formats/torch.h"

enum { METADATA_CAP = 1 << 20, TRACKER_CAP = 4096 };

static const char tracker_name[] = "latest_checkpointed_iteration.txt",
                  bridge_tracker_name[] = "latest_train_state.pt";

static bool has_entry(struct arena *a, const char *folder, const char *name)
{
    return path_exists(path_join(a, folder, name));
}

/* Whether metadata.json, which other programs have too, describes a distributed
 * checkpoint. */
static bool has_backend(struct arena *a, const char *folder, bool *of_torch_dist)
{
    cJSON *tree;
    if (json_read_file(path_join(a, folder, "metadata.json"), METADATA_CAP, JSON_NAN, &tree, NULL))
        return false;
    const char *backend = json_as_text(json_get(tree, "sharded_backend"));
    bool has_one = backend != NULL;
    *of_torch_dist = backend && strcmp(backend, "torch_dist") == 0;
    cJSON_Delete(tree);
    return has_one;
}

/* Whether the folder itself holds rank files or a distributed checkpoint. */
static bool is_iteration(struct arena *a, const char *folder)
{
    struct name_list list;
    bool of_torch_dist;
    const bool is_named = fnmatch("iter_[0-9]*", path_base(a, folder), 0) == 0;
    if ((is_named || has_entry(a, folder, "metadata.json")) && has_entry(a, folder, ".metadata"))
        return true;
    if (has_backend(a, folder, &of_torch_dist) && !of_torch_dist) return true;
    if (!path_is_folder(folder) || folder_list(folder, a, &list, NULL)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (fnmatch("mp_rank_[0-9][0-9]*", list.names[i], 0) == 0 &&
            path_is_folder(path_join(a, folder, list.names[i])))
            return true;
    return false;
}

bool iteration_is_below(const char *path)
{
    struct arena a;
    bool of_torch_dist;
    arena_init(&a);
    bool is = path_is_folder(path) &&
              (has_entry(&a, path, tracker_name) || has_entry(&a, path, bridge_tracker_name) ||
               has_backend(&a, path, &of_torch_dist) || is_iteration(&a, path));
    arena_release(&a);
    return is;
}

static struct iteration iteration_of_name(struct arena *a, const char *root, const char *name)
{
    struct iteration i = {.folder = path_join(a, root, name)};
    i.release = strcmp(name, "release") == 0;
    if (!i.release) i.number = strtoll(name + strlen("iter_"), NULL, 10);
    return i;
}

/* ---- Megatron-Bridge's tracker: a dict of 0-dim tensors ---- */

static enum status read_step_number(const struct stored *s, const struct stored_tensor *t,
                                    const char *path, int64_t *number, struct error *err)
{
    char bytes[8];
    if (t->num_dims || (t->dtype != DT_I64 && t->dtype != DT_I32))
        return fail(err, ERR_CORRUPT, "%s: \"step\" is not an integer", path);
    struct stored_reader *r = stored_reader_create(s, 1);
    enum status st =
        stored_read(r, t->pieces->file, t->pieces->offset_bytes, bytes, dtype_bytes(t->dtype), err);
    stored_reader_free(r);
    if (!st) *number = (int64_t)dtype_load(t->dtype, bytes, 0);
    return st;
}

static enum status read_step_of(struct torch_file *t, struct stored *s, const char *path,
                                int64_t *step, struct error *err)
{
    const struct value *v = value_get(t->root, "step");
    if (!v || v->kind != VALUE_TENSOR)
        return fail(err, ERR_CORRUPT, "%s: missing tensor \"step\"", path);
    TRY(torch_add_tensor(t, s, "step", v, err));
    return read_step_number(s, stored_find(s, "step"), path, step, err);
}

static enum status read_bridge_step(const char *path, int64_t *step, struct error *err)
{
    struct stored s;
    struct torch_file t;
    stored_init(&s);
    enum status st = torch_open(&t, &s, path, 0, UINT64_MAX, err);
    if (!st) {
        st = read_step_of(&t, &s, path, step, err);
        torch_close(&t);
    }
    stored_release(&s);
    return st;
}

/* ---- Megatron-LM's tracker: a number, or the word release ---- */

/* Sets *name to the folder of the tracker's text. Modifies text. */
static enum status parse_tracker(struct arena *a, char *text, const char *path, const char **name,
                                 struct error *err)
{
    char *rest, *end = NULL;
    const char *word = strtok_r(text, " \t\r\n", &rest);
    *name = "release";
    if (word && strcmp(word, *name) == 0) return OK;
    unsigned long long n = word ? strtoull(word, &end, 10) : 0;
    if (!word || !isdigit((unsigned char)*word) || *end)
        return fail(err, ERR_CORRUPT, "%s: neither a number nor \"release\"", path);
    *name = arena_printf(a, "iter_%07llu", n);
    return OK;
}

static enum status read_tracker(struct arena *a, const char *root, const char **name,
                                struct error *err)
{
    struct strbuf text = {0};
    const char *path = path_join(a, root, tracker_name);
    TRY(file_read_all(path, TRACKER_CAP, &text, err));
    strbuf_add_text(&text, "");
    enum status st = parse_tracker(a, text.data, path, name, err);
    strbuf_release(&text);
    return st;
}

/* ---- which one ---- */

static enum status choose_iteration(struct arena *a, const char *root,
                                    const struct source_options *o, const char **name,
                                    struct error *err)
{
    int64_t step;
    if (o->has_ckpt_step) {
        *name = arena_printf(a, "iter_%07llu", (unsigned long long)o->ckpt_step);
        return OK;
    }
    if (has_entry(a, root, tracker_name)) return read_tracker(a, root, name, err);
    if (!has_entry(a, root, bridge_tracker_name))
        return fail(err, ERR_CORRUPT,
                    "%s: metadata.json without .metadata: the checkpoint is incomplete", root);
    TRY(read_bridge_step(path_join(a, root, bridge_tracker_name), &step, err));
    *name = arena_printf(a, "iter_%07lld", (long long)step);
    return OK;
}

enum status iteration_find(struct arena *a, const char *path, const struct source_options *o,
                           struct iteration *out, struct error *err)
{
    const char *name = path_base(a, path);
    if (is_iteration(a, path)) {
        *out = (struct iteration){.number = -1};
        if (fnmatch("iter_[0-9]*", name, 0) == 0 || strcmp(name, "release") == 0)
            *out = iteration_of_name(a, path_parent(a, path), name);
        out->folder = path;
        if (o->has_ckpt_step && out->number != (int64_t)o->ckpt_step)
            return fail(err, ERR_USAGE,
                        "%s: --ckpt-step %" PRIu64 ": the path is a single iteration", path,
                        o->ckpt_step);
        return OK;
    }
    TRY(choose_iteration(a, path, o, &name, err));
    *out = iteration_of_name(a, path, name);
    if (path_is_folder(out->folder)) return OK;
    return fail(err, ERR_IO, "%s: missing folder %s, named by %s", path, name,
                o->has_ckpt_step ? "--ckpt-step" : "the tracker file");
}
