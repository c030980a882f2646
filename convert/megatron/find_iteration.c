#include "convert/megatron/find_iteration.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/publish.h"
#include "common/file.h"
#include "common/json.h"
#include "common/text.h"
#include "formats/hf_folder.h"
#include "formats/torch.h"

enum { METADATA_CAP = 1 << 20, TRACKER_CAP = 4096, MAX_NAMED = 4 };

/* The folder of weights that were not trained, and of iteration 0. */
static const char release_name[] = "release", first_name[] = "iter_0000000";
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

/* ---- folders of a root ---- */

/* Whether a name is release, or iter_ and digits only. */
static bool names_iteration(const char *name)
{
    static const char prefix[] = "iter_";
    if (strcmp(name, release_name) == 0) return true;
    if (!text_starts_with(name, prefix)) return false;
    const char *digits = name + strlen(prefix);
    return *digits && digits[strspn(digits, "0123456789")] == '\0';
}

/* Lists a root's iterations by name, complete or not. A link release to one of
 * them stands for it. */
static void list_iterations(struct arena *a, const char *root, struct name_list *out)
{
    size_t count = 0;
    const char *release = path_real(a, path_join(a, root, release_name));
    *out = (struct name_list){0};
    if (!path_is_folder(root) || folder_list(root, a, out, NULL)) return;
    for (size_t i = 0; i < out->count; i++) {
        char *name = out->names[i];
        const char *folder = path_join(a, root, name);
        if (!names_iteration(name) || !path_is_folder(folder)) continue;
        if (strcmp(name, release_name) && text_equal(path_real(a, folder), release)) continue;
        out->names[count++] = name;
    }
    out->count = count;
}

/* "iter_0000000, iter_0000005": at most MAX_NAMED of them. */
static const char *iterations_text(struct arena *a, const struct name_list *list)
{
    const char *text = list->count ? list->names[0] : "no iteration";
    for (size_t i = 1; i < list->count && i < MAX_NAMED; i++)
        text = arena_printf(a, "%s, %s", text, list->names[i]);
    return list->count > MAX_NAMED ? arena_printf(a, "%s, ...", text) : text;
}

/* Whether an iteration is Megatron's without a tracker that says so: other
 * programs write .metadata, too. Nor may Ferry be about to write the tracker. */
static bool is_certain(struct arena *a, const char *folder)
{
    bool of_torch_dist;
    return is_iteration(a, folder) && !has_entry(a, folder, publish_lock) &&
           (!has_entry(a, folder, ".metadata") || has_backend(a, folder, &of_torch_dist));
}

static bool has_certain_iteration(struct arena *a, const char *root)
{
    struct name_list list;
    list_iterations(a, root, &list);
    for (size_t i = 0; i < list.count; i++)
        if (is_certain(a, path_join(a, root, list.names[i]))) return !hf_folder_has_weights(root);
    return false;
}

bool iteration_is_below(const char *path)
{
    struct arena a;
    bool of_torch_dist;
    arena_init(&a);
    bool is = path_is_folder(path) &&
              (has_entry(&a, path, tracker_name) || has_entry(&a, path, bridge_tracker_name) ||
               has_backend(&a, path, &of_torch_dist) || is_iteration(&a, path) ||
               has_certain_iteration(&a, path));
    arena_release(&a);
    return is;
}

static struct iteration iteration_of_name(struct arena *a, const char *root, const char *name)
{
    struct iteration i = {.folder = path_join(a, root, name)};
    i.release = strcmp(name, release_name) == 0;
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
    *name = release_name;
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

/* Chooses the only iteration of a root without a tracker. */
static enum status choose_only(struct arena *a, const char *root, const char **name,
                               const char **note, struct error *err)
{
    struct name_list list;
    if (!has_certain_iteration(a, root))
        return fail(err, ERR_CORRUPT,
                    "%s: metadata.json without .metadata: the checkpoint is incomplete", root);
    list_iterations(a, root, &list);
    *name = list.names[0];
    *note = arena_printf(a, "%s has no tracker file: its only iteration, %s, is read", root, *name);
    if (list.count == 1) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: this is a folder of Megatron iterations without a tracker file: --ckpt-step N "
                "reads one of them: %s",
                root, iterations_text(a, &list));
}

static enum status choose_iteration(struct arena *a, const char *root,
                                    const struct source_options *o, const char **name,
                                    const char **note, struct error *err)
{
    int64_t step;
    if (o->has_ckpt_step) {
        *name = arena_printf(a, "iter_%07llu", (unsigned long long)o->ckpt_step);
        return OK;
    }
    if (has_entry(a, root, tracker_name)) return read_tracker(a, root, name, err);
    if (!has_entry(a, root, bridge_tracker_name)) return choose_only(a, root, name, note, err);
    TRY(read_bridge_step(path_join(a, root, bridge_tracker_name), &step, err));
    *name = arena_printf(a, "iter_%07lld", (long long)step);
    return OK;
}

/* Finds a release whose link was lost: copies without links drop it. */
static enum status find_release(struct arena *a, const char *root, struct iteration *out,
                                struct error *err)
{
    struct name_list list;
    const char *to = path_link_target(a, path_join(a, root, release_name));
    const char *missing = to ? arena_printf(a, "release is a link to %s, which is missing", to)
                             : "missing folder release, named by the tracker file";
    const char *folder = path_join(a, root, first_name);
    list_iterations(a, root, &list);
    if (list.count == 1 && strcmp(list.names[0], first_name) == 0 && is_iteration(a, folder) &&
        (!to || strcmp(path_base(a, to), first_name) == 0)) {
        *out = (struct iteration){.folder = folder, .release = true};
        out->note = arena_printf(a, "%s: %s; its only iteration, %s, is read as the release", root,
                                 missing, first_name);
        return OK;
    }
    if (!list.count) return fail(err, ERR_IO, "%s: %s", root, missing);
    const struct iteration first = iteration_of_name(a, root, list.names[0]);
    return fail(err, ERR_IO, "%s: %s; found %s; --ckpt-step %" PRId64 " reads %s", root, missing,
                iterations_text(a, &list), first.number, list.names[0]);
}

enum status iteration_find(struct arena *a, const char *path, const struct source_options *o,
                           struct iteration *out, struct error *err)
{
    const char *name = path_base(a, path), *note = NULL;
    if (is_iteration(a, path)) {
        *out = (struct iteration){.number = -1};
        if (fnmatch("iter_[0-9]*", name, 0) == 0 || strcmp(name, release_name) == 0)
            *out = iteration_of_name(a, path_parent(a, path), name);
        out->folder = path;
        if (o->has_ckpt_step && out->number != (int64_t)o->ckpt_step)
            return fail(err, ERR_USAGE,
                        "%s: --ckpt-step %" PRIu64 ": the path is a single iteration", path,
                        o->ckpt_step);
        return OK;
    }
    TRY(choose_iteration(a, path, o, &name, &note, err));
    *out = iteration_of_name(a, path, name);
    out->note = note;
    if (path_is_folder(out->folder)) return OK;
    if (out->release) return find_release(a, path, out, err);
    struct name_list list;
    const char *by = o->has_ckpt_step ? "--ckpt-step" : "the tracker file";
    list_iterations(a, path, &list);
    if (!list.count) return fail(err, ERR_IO, "%s: missing folder %s, named by %s", path, name, by);
    return fail(err, ERR_IO, "%s: missing folder %s, named by %s; found %s (--ckpt-step N)", path,
                name, by, iterations_text(a, &list));
}
