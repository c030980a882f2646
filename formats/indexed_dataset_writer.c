#include "formats/indexed_dataset_writer.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "common/memory.h"

enum { BIN, IDX, BUFFER_BYTES = 1 << 20 };

static const char *const suffixes[2] = {".bin", ".idx"};

static const struct {
    enum dtype dtype;
    uint8_t code; /* in the index */
    int32_t largest;
} types[] = {{DT_U8, 1, UINT8_MAX}, {DT_U16, 8, UINT16_MAX}, {DT_I32, 4, INT32_MAX}};

static size_t type_of(enum dtype dtype)
{
    size_t i = 0;
    while (i < COUNT(types) && types[i].dtype != dtype)
        i++;
    assert(i < COUNT(types));
    return i;
}

static char *join_texts(const char *a, const char *b)
{
    char *text = must_malloc(strlen(a) + strlen(b) + 1);
    strcpy(text, a);
    strcat(text, b);
    return text;
}

/* ---- files ---- */

/* Creates one of both files; a replacement gets a temporary name first. */
static enum status create_file(struct indexed_dataset_writer *w, unsigned k, const char *prefix,
                               struct error *err)
{
    w->paths[k] = join_texts(prefix, suffixes[k]);
    w->temps[k] = join_texts(w->paths[k], ".ferry-new");
    if (!w->overwrite) return new_file_open(&w->files[k], w->paths[k], true, err);
    TRY(path_remove(w->temps[k], err));
    return new_file_open(&w->files[k], w->temps[k], true, err);
}

enum status indexed_dataset_create(struct indexed_dataset_writer *w, const char *prefix,
                                   enum dtype dtype, bool overwrite, struct error *err)
{
    *w = (struct indexed_dataset_writer){.dtype = dtype, .overwrite = overwrite};
    w->files[BIN].fd = w->files[IDX].fd = -1;
    TRY(create_file(w, BIN, prefix, err));
    return create_file(w, IDX, prefix, err);
}

static enum status publish_file(struct indexed_dataset_writer *w, unsigned k, struct error *err)
{
    TRY(new_file_publish(&w->files[k], err));
    if (w->overwrite && rename(w->temps[k], w->paths[k]))
        return fail_errno(err, ERR_IO, "%s", w->paths[k]);
    return OK;
}

void indexed_dataset_writer_close(struct indexed_dataset_writer *w)
{
    for (unsigned k = 0; k < 2; k++) {
        if (w->files[k].path) new_file_close(&w->files[k]);
        free(w->paths[k]);
        free(w->temps[k]);
    }
    strbuf_release(&w->buffer);
    strbuf_release(&w->lengths);
    strbuf_release(&w->documents);
    *w = (struct indexed_dataset_writer){.dtype = w->dtype};
}

/* ---- elements ---- */

static enum status flush_elements(struct indexed_dataset_writer *w, struct error *err)
{
    TRY(file_write(w->files[BIN].fd, w->paths[BIN], w->buffer.data, w->buffer.length, w->data_bytes,
                   err));
    w->data_bytes += w->buffer.length;
    strbuf_clear(&w->buffer);
    return OK;
}

/* A little-endian number begins with the bytes of the narrow one. */
static enum status add_element(struct indexed_dataset_writer *w, int32_t id, struct error *err)
{
    const size_t bytes = dtype_bytes(w->dtype);
    if (id < 0 || id > types[type_of(w->dtype)].largest)
        return fail(err, ERR_USAGE, "%s: sequence %" PRIu64 ": %d does not fit %s", w->paths[BIN],
                    w->num_sequences, id, dtype_infos[w->dtype].name);
    const uint8_t little[4] = {(uint8_t)id, (uint8_t)(id >> 8), (uint8_t)(id >> 16),
                               (uint8_t)(id >> 24)};
    strbuf_add(&w->buffer, little, bytes);
    return w->buffer.length < BUFFER_BYTES ? OK : flush_elements(w, err);
}

enum status indexed_dataset_append(struct indexed_dataset_writer *w, const int32_t *ids,
                                   size_t count, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        TRY(add_element(w, ids[i], err));
    w->in_sequence += count;
    w->num_elements += count;
    return OK;
}

enum status indexed_dataset_end_sequence(struct indexed_dataset_writer *w, struct error *err)
{
    if (w->in_sequence > INT32_MAX)
        return fail(err, ERR_UNSUPPORTED, "%s: a sequence of %" PRIu64 " elements, at most %d fit",
                    w->paths[IDX], w->in_sequence, INT32_MAX);
    const int32_t length = (int32_t)w->in_sequence;
    strbuf_add(&w->lengths, &length, sizeof length);
    w->num_sequences++;
    w->in_sequence = 0;
    return OK;
}

void indexed_dataset_end_document(struct indexed_dataset_writer *w)
{
    const int64_t past = (int64_t)w->num_sequences;
    strbuf_add(&w->documents, &past, sizeof past);
    w->num_documents++;
}

/* ---- the index ---- */

static void add_offsets(struct strbuf *index, const struct indexed_dataset_writer *w)
{
    int64_t offset = 0;
    for (uint64_t i = 0; i < w->num_sequences; i++) {
        int32_t length;
        memcpy(&length, w->lengths.data + i * sizeof length, sizeof length);
        strbuf_add(index, &offset, sizeof offset);
        offset += (int64_t)dtype_run_bytes(w->dtype, (uint64_t)length);
    }
}

static void make_index(struct strbuf *index, const struct indexed_dataset_writer *w)
{
    const uint64_t version = 1, counts[] = {w->num_sequences, w->num_documents + 1};
    const int64_t first = 0;
    strbuf_add(index, "MMIDIDX\0\0", 9);
    strbuf_add(index, &version, sizeof version);
    strbuf_add_char(index, (char)types[type_of(w->dtype)].code);
    strbuf_add(index, counts, sizeof counts);
    if (w->num_sequences) strbuf_add(index, w->lengths.data, w->lengths.length);
    add_offsets(index, w);
    strbuf_add(index, &first, sizeof first);
    if (w->num_documents) strbuf_add(index, w->documents.data, w->documents.length);
}

/* A replaced index goes first: it never stands beside the new elements. */
static enum status publish_both(struct indexed_dataset_writer *w, struct error *err)
{
    if (w->overwrite) TRY(path_remove(w->paths[IDX], err));
    TRY(publish_file(w, BIN, err));
    return publish_file(w, IDX, err);
}

enum status indexed_dataset_finish(struct indexed_dataset_writer *w, struct error *err)
{
    struct strbuf index = {0};
    TRY(flush_elements(w, err));
    make_index(&index, w);
    enum status st = file_write(w->files[IDX].fd, w->paths[IDX], index.data, index.length, 0, err);
    strbuf_release(&index);
    return st ? st : publish_both(w, err);
}
