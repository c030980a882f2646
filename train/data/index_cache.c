#include "train/data/index_cache.h"

#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "train/data/description.h"
#include "train/data/npy.h"

enum { MAX_ARRAYS = 3 };

/* One array of a dataset. */
struct array {
    const char *name; /* PREFIX-NAME.npy */
    struct npy shape;
    void *data; /* on the heap, if read */
};

/* The files of one dataset. */
struct entry {
    const struct index_cache *cache;
    struct arena arena;
    struct strbuf text; /* description.txt */
    const char *prefix; /* with the folder */
    struct array arrays[MAX_ARRAYS];
    size_t num_arrays;
};

static const char *path_of(struct entry *e, const char *name, const char *suffix)
{
    return arena_printf(&e->arena, "%s-%s%s", e->prefix, name, suffix);
}

static void note_problem(const struct entry *e, const char *what, const struct error *err)
{
    struct strbuf text = {0};
    if (!e->cache->note) return;
    strbuf_printf(&text, "%s (%s)", what, err->text);
    e->cache->note(e->cache->context, text.data);
    strbuf_release(&text);
}

/* False: no cache. */
static bool entry_open(struct entry *e, const struct index_cache *c, const cJSON *description,
                       const char *class, enum data_split split)
{
    struct strbuf prefix = {0};
    struct error err;
    *e = (struct entry){.cache = c};
    arena_init(&e->arena);
    description_print(&e->text, description);
    if (description_prefix(&prefix, &e->text, class, split)) {
        e->prefix = path_join(&e->arena, c->folder, prefix.data);
    } else {
        (void)!fail(&err, ERR_UNSUPPORTED, "libcrypto refuses MD5, used in their file names");
        note_problem(e, "dataset indices are not cached", &err);
    }
    strbuf_release(&prefix);
    return e->prefix != NULL;
}

static void entry_close(struct entry *e)
{
    strbuf_release(&e->text);
    arena_release(&e->arena);
}

static void drop_arrays(struct entry *e)
{
    for (size_t i = 0; i < e->num_arrays; i++) {
        free(e->arrays[i].data);
        e->arrays[i].data = NULL;
    }
}

/* ---- reading ---- */

static enum status check_description(struct entry *e, const char *path, struct error *err)
{
    struct strbuf text = {0};
    enum status st = file_read_all(path, (uint64_t)1 << 30, &text, err);
    if (!st && (text.length != e->text.length || memcmp(text.data, e->text.data, text.length)))
        st = fail(err, ERR_CORRUPT, "%s: describes another dataset", path);
    strbuf_release(&text);
    return st;
}

static enum status read_arrays(struct entry *e, struct error *err)
{
    for (size_t i = 0; i < e->num_arrays; i++) {
        struct array *a = &e->arrays[i];
        TRY(npy_read(path_of(e, a->name, ".npy"), &a->shape, &a->data, err));
    }
    return OK;
}

static const char made_again[] = "cached dataset indices are rebuilt";

/* Fills the arrays. False, with all NULL, if files are missing or bad. */
static bool entry_read(struct entry *e)
{
    struct error err;
    const char *path = path_of(e, "description", ".txt");
    if (!path_exists(path)) return false;
    enum status st = check_description(e, path, &err);
    if (!st) st = read_arrays(e, &err);
    if (!st) return true;
    note_problem(e, made_again, &err);
    drop_arrays(e);
    return false;
}

/* ---- writing ---- */

/* The description comes last: without it there is no entry. */
static enum status write_files(struct entry *e, struct error *err)
{
    TRY(folder_create(e->cache->folder, err));
    for (size_t i = 0; i < e->num_arrays; i++) {
        const struct array *a = &e->arrays[i];
        TRY(npy_write(path_of(e, a->name, ".npy"), &a->shape, a->data, err));
    }
    return file_replace_all(path_of(e, "description", ".txt"), e->text.data, e->text.length, false,
                            err);
}

static void entry_write(struct entry *e)
{
    struct error err;
    if (e->cache->read_only || write_files(e, &err) == OK) return;
    note_problem(e, "dataset indices are not cached", &err);
}

/* ---- of a dataset ---- */

static void set_gpt_arrays(struct entry *e, const struct gpt_dataset *d)
{
    const struct array arrays[] = {
        {"document_index", {DT_I32, 1, {d->num_documents, 0}}, d->document_index},
        {"sample_index", {DT_I32, 2, {d->num_samples + 1, 2}}, d->sample_index},
        {"shuffle_index", {DT_U32, 1, {d->num_samples, 0}}, d->shuffle_index},
    };
    memcpy(e->arrays, arrays, sizeof arrays);
    e->num_arrays = COUNT(arrays);
}

static bool adopt_cached(struct entry *e, struct gpt_dataset *d)
{
    struct error err;
    set_gpt_arrays(e, d);
    if (!entry_read(e)) return false;
    if (gpt_dataset_adopt(d, e->arrays[0].data, e->arrays[1].data, e->arrays[2].data)) return true;
    (void)!fail(&err, ERR_CORRUPT, "%s-*.npy: not the indices of this dataset", e->prefix);
    note_problem(e, made_again, &err);
    drop_arrays(e);
    return false;
}

enum status index_cache_gpt(const struct index_cache *c, struct gpt_dataset *d,
                            const cJSON *description, struct error *err)
{
    struct entry e;
    enum status st = OK;
    if (!c->folder) return gpt_dataset_build(d, err);
    const bool is_kept = entry_open(&e, c, description, "GPTDataset", d->request.split);
    if (!is_kept || !adopt_cached(&e, d)) {
        st = gpt_dataset_build(d, err);
        set_gpt_arrays(&e, d);
        if (!st && is_kept) entry_write(&e);
    }
    entry_close(&e);
    return st;
}

/* ---- of a blend ---- */

static void set_blend_arrays(struct entry *e, const struct blend *b)
{
    const struct array arrays[] = {
        {"dataset_index", {DT_I16, 1, {b->size, 0}}, b->dataset_index},
        {"dataset_sample_index", {DT_I64, 1, {b->size, 0}}, b->dataset_sample_index},
    };
    memcpy(e->arrays, arrays, sizeof arrays);
    e->num_arrays = COUNT(arrays);
}

/* Whether the files hold this very blend. */
static bool blend_is_there(struct entry *e, const struct blend *b)
{
    struct error err;
    set_blend_arrays(e, b);
    e->arrays[0].data = e->arrays[1].data = NULL;
    if (!entry_read(e)) return false;
    const bool same =
        !memcmp(e->arrays[0].data, b->dataset_index, b->size * sizeof *b->dataset_index) &&
        !memcmp(e->arrays[1].data, b->dataset_sample_index,
                b->size * sizeof *b->dataset_sample_index);
    if (!same) {
        (void)!fail(&err, ERR_CORRUPT, "%s-*.npy: not the indices of this blend", e->prefix);
        note_problem(e, made_again, &err);
    }
    drop_arrays(e);
    return same;
}

void index_cache_blend(const struct index_cache *c, const struct blend *b, enum data_split split,
                       const cJSON *description)
{
    struct entry e;
    if (!c->folder) return;
    if (entry_open(&e, c, description, "BlendedDataset", split) && !blend_is_there(&e, b)) {
        set_blend_arrays(&e, b);
        entry_write(&e);
    }
    entry_close(&e);
}
