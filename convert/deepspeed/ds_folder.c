#include "convert/deepspeed/ds_folder.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "common/text.h"

enum { TRACKER_CAP = 4096, MAX_DIGITS = 9 };

/* ---- names of files ---- */

/* Moves *at behind a decimal number; false: none. */
static bool skip_number(const char **at, uint64_t *number)
{
    size_t n = 0;
    *number = 0;
    for (; isdigit((unsigned char)**at); ++*at, n++)
        *number = 10 * *number + (uint64_t)(**at - '0');
    return n > 0 && n <= MAX_DIGITS;
}

static bool parse_ranks(const char **at, struct ds_file *f)
{
    return text_skip_prefix(at, "zero_pp_rank_") && skip_number(at, &f->dp) &&
           text_skip_prefix(at, "_mp_rank_") && skip_number(at, &f->mp);
}

static bool parse_layer(const char *at, struct ds_file *f)
{
    if (!text_skip_prefix(&at, "layer_") || !skip_number(&at, &f->dp)) return false;
    if (text_skip_prefix(&at, "-model_") && !skip_number(&at, &f->mp)) return false;
    f->kind = DS_LAYER;
    return strcmp(at, "-model_states.pt") == 0;
}

static bool is_of_experts(const char *name)
{
    static const char *const globs[] = {"layer_*_expert_*_mp_rank_*_model_states.pt",
                                        "expert_*_mp_rank_*_model_states.pt",
                                        "expp_rank_*_mp_rank_*_optim_states.pt"};
    for (size_t i = 0; i < COUNT(globs); i++)
        if (fnmatch(globs[i], name, 0) == 0) return true;
    return false;
}

static bool parse_rank_file(const char *at, struct ds_file *f)
{
    if (text_skip_prefix(&at, "mp_rank_")) {
        f->kind = DS_MODEL;
        return skip_number(&at, &f->mp) && strcmp(at, "_model_states.pt") == 0;
    }
    if (!text_skip_prefix(&at, "bf16_")) (void)text_skip_prefix(&at, "fp16_");
    if (!parse_ranks(&at, f)) return false;
    f->kind = strcmp(at, "_model_states.pt") == 0 ? DS_RANK_MODEL : DS_OPTIM;
    (void)text_skip_prefix(&at, "_"); /* very old files lack it */
    return f->kind == DS_RANK_MODEL || strcmp(at, "optim_states.pt") == 0;
}

static bool parse_file_name(const char *name, struct ds_file *f)
{
    *f = (struct ds_file){.name = name, .kind = DS_EXPERT};
    return is_of_experts(name) || parse_layer(name, f) || parse_rank_file(name, f);
}

static int by_kind_and_rank(const void *a, const void *b)
{
    const struct ds_file *x = a, *y = b;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    if (x->mp != y->mp) return x->mp < y->mp ? -1 : 1;
    return x->dp < y->dp ? -1 : x->dp > y->dp;
}

enum status ds_files_list(struct arena *a, const char *folder, struct ds_files *out,
                          struct error *err)
{
    struct name_list names;
    struct ds_file file;
    *out = (struct ds_files){0};
    TRY(folder_list(folder, a, &names, err));
    for (size_t i = 0; i < names.count; i++)
        if (parse_file_name(names.names[i], &file))
            *ARENA_PUSH(a, out->items, out->count, out->capacity) = file;
    if (out->count) qsort(out->items, out->count, sizeof *out->items, by_kind_and_rank);
    return OK;
}

const struct ds_file *ds_files_of(const struct ds_files *files, enum ds_file_kind kind,
                                  size_t *count)
{
    const struct ds_file *first = NULL;
    *count = 0;
    for (size_t i = 0; i < files->count; i++) {
        if (files->items[i].kind != kind) continue;
        if (!first) first = &files->items[i];
        ++*count;
    }
    return first;
}

/* ---- which folder ---- */

static const char *tracker_name(bool universal)
{
    return universal ? "latest_universal" : "latest";
}

/* Whether the folder is a tag's. */
static bool is_tag(struct arena *a, const char *folder, bool universal)
{
    struct ds_files files;
    const bool has_zero = path_is_folder(path_join(a, folder, "zero"));
    if (!path_is_folder(folder)) return false;
    if (universal) return path_exists(path_join(a, folder, "zero/optimizer_state.pt"));
    return !has_zero && !ds_files_list(a, folder, &files, NULL) && files.count;
}

/* The folders of tags in a root. */
static void list_tags(struct arena *a, const char *root, bool universal, struct name_list *out)
{
    struct name_list all = {0};
    size_t capacity = 0;
    *out = (struct name_list){0};
    if (!path_is_folder(root) || folder_list(root, a, &all, NULL)) return;
    for (size_t i = 0; i < all.count; i++)
        if (is_tag(a, path_join(a, root, all.names[i]), universal))
            *ARENA_PUSH(a, out->names, out->count, capacity) = all.names[i];
}

bool ds_folder_matches(const char *path, bool universal)
{
    struct arena a;
    struct name_list tags;
    arena_init(&a);
    bool is = is_tag(&a, path, universal);
    if (!is && path_is_folder(path)) {
        list_tags(&a, path, universal, &tags);
        is = tags.count > 0;
    }
    arena_release(&a);
    return is;
}

static enum status read_tracker(struct arena *a, const char *path, const char **tag,
                                struct error *err)
{
    struct strbuf text = {0};
    enum status st = file_read_all(path, TRACKER_CAP, &text, err);
    while (!st && text.length && isspace((unsigned char)text.data[text.length - 1]))
        text.length--;
    *tag = st ? NULL : arena_text(a, text.length ? text.data : "", text.length);
    strbuf_release(&text);
    if (!st && !path_is_safe(*tag))
        st = fail(err, ERR_CORRUPT, "%s: its text is not a folder name", path);
    return st;
}

static const char *names_text(struct arena *a, const struct name_list *names)
{
    enum { MAX_NAMED = 5 };
    const char *text = names->names[0];
    for (size_t i = 1; i < names->count && i < MAX_NAMED; i++)
        text = arena_printf(a, "%s, %s", text, names->names[i]);
    return names->count > MAX_NAMED ? arena_printf(a, "%s, ...", text) : text;
}

static enum status choose_tag(struct arena *a, const char *root, const struct source_options *o,
                              bool universal, const char **tag, struct error *err)
{
    struct name_list tags;
    const char *tracker = path_join(a, root, tracker_name(universal));
    if (o->has_ckpt_step) {
        *tag = arena_printf(a, "global_step%" PRIu64 "%s", o->ckpt_step,
                            universal ? "_universal" : "");
        return OK;
    }
    if (path_is_file(tracker)) return read_tracker(a, tracker, tag, err);
    list_tags(a, root, universal, &tags);
    if (!tags.count)
        return fail(err, ERR_IO, "%s: it has neither a folder with DeepSpeed files nor a file %s",
                    root, tracker_name(universal));
    *tag = tags.names[0];
    if (tags.count == 1) return OK;
    return fail(
        err, ERR_UNSUPPORTED,
        "%s: no file %s, and several folders to read: %s; give one of them, or --ckpt-step N", root,
        tracker_name(universal), names_text(a, &tags));
}

enum status ds_folder_find(struct arena *a, const char *path, const struct source_options *o,
                           bool universal, const char **folder, struct error *err)
{
    const char *tag = NULL;
    *folder = path;
    if (is_tag(a, path, universal)) {
        const char *wanted = arena_printf(a, "global_step%" PRIu64 "%s", o->ckpt_step,
                                          universal ? "_universal" : "");
        if (o->has_ckpt_step && strcmp(path_base(a, path), wanted))
            return fail(err, ERR_USAGE,
                        "%s: --ckpt-step %" PRIu64 ": the path is a single iteration", path,
                        o->ckpt_step);
        return OK;
    }
    TRY(choose_tag(a, path, o, universal, &tag, err));
    *folder = path_join(a, path, tag);
    if (path_is_folder(*folder)) return OK;
    return fail(err, ERR_IO, "%s: missing folder %s, named by %s", path, tag,
                o->has_ckpt_step ? "--ckpt-step"
                                 : arena_printf(a, "the file %s", tracker_name(universal)));
}
