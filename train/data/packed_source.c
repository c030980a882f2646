#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/memory.h"
#include "common/text.h"
#include "formats/ids_lines.h"
#include "train/data/packed.h"

/* ---- JSON lines ---- */

struct lines {
    struct packed_source *source;
    uint64_t num_ids, room_ids, room_documents;
};

static enum status add_document(void *context, const struct ids_line *line, struct error *err)
{
    struct lines *l = context;
    struct packed_source *s = l->source;
    (void)err;
    if (l->num_ids + line->count > l->room_ids) {
        l->room_ids = 2 * l->room_ids + line->count;
        s->ids = must_realloc(s->ids, l->room_ids * sizeof *s->ids);
        s->flags = must_realloc(s->flags, l->room_ids * sizeof *s->flags);
    }
    if (s->num_documents == l->room_documents) {
        l->room_documents = 2 * l->room_documents + 1024;
        s->lengths = must_realloc(s->lengths, l->room_documents * sizeof *s->lengths);
        s->starts = must_realloc(s->starts, l->room_documents * sizeof *s->starts);
    }
    if (line->count) {
        memcpy(s->ids + l->num_ids, line->ids, line->count * sizeof *s->ids);
        memcpy(s->flags + l->num_ids, line->mask, line->count * sizeof *s->flags);
    }
    s->starts[s->num_documents] = l->num_ids;
    s->lengths[s->num_documents++] = line->count;
    l->num_ids += line->count;
    return OK;
}

/* ---- indexed datasets ---- */

static enum status fail_shape(const struct packed_source *s, struct error *err)
{
    return fail(err, ERR_CORRUPT,
                "%s.mask has %" PRIu64 " sequences of %" PRIu64 " elements, but %s has %" PRIu64
                " of %" PRIu64 ", or their lengths differ",
                s->path, s->mask.num_sequences, s->mask.num_tokens, s->path, s->file.num_sequences,
                s->file.num_tokens);
}

static enum status check_mask(const struct packed_source *s, struct error *err)
{
    const uint64_t count = s->num_documents;
    if (s->mask.num_sequences != count) return fail_shape(s, err);
    uint64_t *lengths = must_calloc(count + 1, sizeof *lengths);
    enum status st = indexed_dataset_lengths(&s->mask, 0, count, lengths, err);
    if (!st && memcmp(lengths, s->lengths, count * sizeof *lengths)) st = fail_shape(s, err);
    free(lengths);
    return st;
}

/* Path without .bin or .idx. */
static char *prefix_of(const char *path)
{
    char *prefix = must_strdup(path);
    if (text_ends_with(path, ".bin") || text_ends_with(path, ".idx"))
        prefix[strlen(path) - 4] = '\0';
    return prefix;
}

static bool has_file(const char *prefix, const char *ending)
{
    struct strbuf path = {0};
    strbuf_printf(&path, "%s%s", prefix, ending);
    const bool is_there = path_exists(path.data);
    strbuf_release(&path);
    return is_there;
}

/* PREFIX.mask of a dataset, on the heap; NULL: neither file exists. A single
 * one is opened, too, and then refused: masks are never ignored silently. */
static char *find_mask(const char *path)
{
    struct strbuf mask = {0};
    char *prefix = prefix_of(path);
    strbuf_printf(&mask, "%s.mask", prefix);
    free(prefix);
    if (has_file(mask.data, ".idx") || has_file(mask.data, ".bin")) return mask.data;
    strbuf_release(&mask);
    return NULL;
}

bool packed_source_matches(const char *path)
{
    if (text_ends_with(path, ".jsonl")) return true;
    char *mask = find_mask(path);
    free(mask);
    return mask != NULL;
}

static enum status open_mask(struct packed_source *s, struct error *err)
{
    char *path = find_mask(s->path);
    if (!path) return OK;
    enum status st = indexed_dataset_open(&s->mask, path, err);
    s->has_mask = st == OK;
    if (!st) st = check_mask(s, err);
    free(path);
    return st;
}

static enum status open_dataset(struct packed_source *s, struct error *err)
{
    TRY(indexed_dataset_open(&s->file, s->path, err));
    s->has_file = true;
    s->num_documents = s->file.num_sequences;
    s->lengths = calloc(s->num_documents + 1, sizeof *s->lengths);
    if (!s->lengths)
        return fail(err, ERR_MEMORY, "%s: no memory for %" PRIu64 " lengths", s->path,
                    s->num_documents);
    TRY(indexed_dataset_lengths(&s->file, 0, s->num_documents, s->lengths, err));
    return open_mask(s, err);
}

/* ---- both ---- */

enum status packed_source_open(struct packed_source *s, const char *path, struct error *err)
{
    *s = (struct packed_source){.path = path};
    struct lines l = {.source = s};
    if (text_ends_with(path, ".jsonl") || text_ends_with(path, ".json"))
        return ids_lines_read(path, add_document, &l, err);
    return open_dataset(s, err);
}

void packed_source_close(struct packed_source *s)
{
    if (s->has_file) indexed_dataset_close(&s->file);
    if (s->has_mask) indexed_dataset_close(&s->mask);
    free(s->lengths);
    free(s->ids);
    free(s->flags);
    free(s->starts);
    *s = (struct packed_source){.path = NULL};
}

enum status packed_source_read(const struct packed_source *s, uint64_t document, uint64_t count,
                               int32_t *ids, int32_t *mask, struct error *err)
{
    for (uint64_t i = 0; i < count; i++)
        mask[i] = s->has_file ? 1 : s->flags[s->starts[document] + i];
    if (!s->has_file) {
        memcpy(ids, s->ids + s->starts[document], count * sizeof *ids);
        return OK;
    }
    TRY(indexed_dataset_read(&s->file, document, 0, count, DT_I32, ids, err));
    return s->has_mask ? indexed_dataset_read(&s->mask, document, 0, count, DT_I32, mask, err) : OK;
}
