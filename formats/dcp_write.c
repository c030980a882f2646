/* Writes .metadata: the pickle of a torch program's Metadata object, streamed,
 * with each class and attribute name memoised at its first use. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "formats/dcp.h"
#include "formats/pickle.h"

#define METADATA "torch.distributed.checkpoint.metadata"
#define FILESYSTEM "torch.distributed.checkpoint.filesystem"

/* Recurring globals (with a module) and texts; numbers are memo indices. */
// clang-format off
#define WORDS(X)                                             \
    X(CHUNK,            METADATA,     "ChunkStorageMetadata")  \
    X(TENSOR,           METADATA,     "TensorStorageMetadata") \
    X(BYTES,            METADATA,     "BytesStorageMetadata")  \
    X(PROPERTIES,       METADATA,     "TensorProperties")      \
    X(MEMORY_FORMAT,    METADATA,     "_MEM_FORMAT_ENCODING")  \
    X(INDEX,            METADATA,     "MetadataIndex")         \
    X(PLACE,            FILESYSTEM,   "_StorageInfo")          \
    X(SIZE,             "torch",      "Size")                  \
    X(LAYOUT,     "torch.serialization", "_get_layout")        \
    X(STRIDED,          NULL,         "torch.strided")         \
    X(AT_OFFSETS,       NULL,         "offsets")               \
    X(AT_SIZES,         NULL,         "sizes")                 \
    X(AT_PROPERTIES,    NULL,         "properties")            \
    X(AT_SIZE,          NULL,         "size")                  \
    X(AT_CHUNKS,        NULL,         "chunks")                \
    X(AT_FQN,           NULL,         "fqn")                   \
    X(AT_OFFSET,        NULL,         "offset")                \
    X(AT_INDEX,         NULL,         "index")                 \
    X(AT_RELATIVE_PATH, NULL,         "relative_path")         \
    X(AT_LENGTH,        NULL,         "length")
// clang-format on

enum word {
#define X(id, module, name) W_##id,
    WORDS(X)
#undef X
        NUM_WORDS
};
static const struct {
    const char *module, *name;
} words[NUM_WORDS] = {
#define X(id, module, name) {module, name},
    WORDS(X)
#undef X
};

enum { FLUSH_BYTES = 1 << 20, BATCH = 1000 };

struct writer {
    struct strbuf out;
    int fd;
    const char *path;
    uint64_t written;
    bool seen[NUM_WORDS];
    enum status status;
    struct error *err; /* of the first failure */
};

static void flush_metadata(struct writer *w)
{
    if (!w->status)
        w->status = file_write(w->fd, w->path, w->out.data, w->out.length, w->written, w->err);
    w->written += w->out.length;
    strbuf_clear(&w->out);
}

static void put_opcodes(struct writer *w, const char *opcodes)
{
    strbuf_add_text(&w->out, opcodes);
}

static void put_word(struct writer *w, enum word word)
{
    char memo[2] = {w->seen[word] ? 'h' : 'q', (char)word};
    if (!w->seen[word] && words[word].module)
        pickle_put_global(&w->out, words[word].module, words[word].name);
    else if (!w->seen[word])
        pickle_put_text(&w->out, words[word].name);
    strbuf_add(&w->out, memo, sizeof memo);
    w->seen[word] = true;
}

/* class.__new__(class), before its state. */
static void put_new(struct writer *w, enum word class)
{
    put_word(w, class);
    put_opcodes(w, ")\x81");
}

/* torch.Size((..)) */
static void put_size(struct writer *w, const uint64_t *dims, unsigned num_dims)
{
    put_word(w, W_SIZE);
    put_opcodes(w, "(");
    for (unsigned d = 0; d < num_dims; d++)
        pickle_put_int(&w->out, (int64_t)dims[d]);
    put_opcodes(w, "t\x85R");
}

/* ---- state_dict_metadata ---- */

static void put_chunk(struct writer *w, const struct dcp_chunk *c, unsigned num_dims)
{
    put_new(w, W_CHUNK);
    put_opcodes(w, "}(");
    put_word(w, W_AT_OFFSETS);
    put_size(w, c->offsets, num_dims);
    put_word(w, W_AT_SIZES);
    put_size(w, c->sizes, num_dims);
    put_opcodes(w, "ub");
    if (w->out.length >= FLUSH_BYTES) flush_metadata(w);
}

/* The state is a tuple: dtype, layout, requires_grad, memory format (0:
 * contiguous), pin_memory. */
static void put_properties(struct writer *w, enum dtype dtype)
{
    put_new(w, W_PROPERTIES);
    put_opcodes(w, "(");
    pickle_put_global(&w->out, "torch", dtype_infos[dtype].torch);
    put_word(w, W_LAYOUT);
    put_word(w, W_STRIDED);
    put_opcodes(w, "\x85R\x89");
    put_word(w, W_MEMORY_FORMAT);
    pickle_put_int(&w->out, 0);
    put_opcodes(w, "\x85R\x89tb");
}

static struct dcp_chunk chunk_of(const struct dcp_tensor *t, size_t number)
{
    struct dcp_chunk c;
    if (t->chunks) return t->chunks[number];
    t->get_chunk(t->chunk_context, number, &c);
    return c;
}

static void put_tensor(struct writer *w, const struct dcp_tensor *t)
{
    put_new(w, W_TENSOR);
    put_opcodes(w, "}(");
    put_word(w, W_AT_PROPERTIES);
    put_properties(w, t->dtype);
    put_word(w, W_AT_SIZE);
    put_size(w, t->shape, t->num_dims);
    put_word(w, W_AT_CHUNKS);
    put_opcodes(w, "]");
    for (size_t i = 0; i < t->num_chunks; i++) {
        if (i % BATCH == 0) put_opcodes(w, i ? "e(" : "(");
        const struct dcp_chunk c = chunk_of(t, i);
        put_chunk(w, &c, t->num_dims);
    }
    put_opcodes(w, t->num_chunks ? "eub" : "ub");
}

/* Between entries of a dict. */
static void next_entry(struct writer *w, size_t *count)
{
    if (*count % BATCH == 0) put_opcodes(w, *count ? "u(" : "(");
    (*count)++;
    if (w->out.length >= FLUSH_BYTES) flush_metadata(w);
}

static void end_dict(struct writer *w, size_t count)
{
    if (count) put_opcodes(w, "u");
}

static void put_state_dict(struct writer *w, const struct dcp_tensor *tensors, size_t num_tensors,
                           const struct dcp_object *objects, size_t num_objects)
{
    size_t count = 0;
    put_opcodes(w, "}");
    for (size_t i = 0; i < num_tensors; i++) {
        next_entry(w, &count);
        pickle_put_text(&w->out, tensors[i].name);
        put_tensor(w, &tensors[i]);
    }
    for (size_t i = 0; i < num_objects; i++) {
        next_entry(w, &count);
        pickle_put_text(&w->out, objects[i].name);
        put_new(w, W_BYTES);
    }
    end_dict(w, count);
}

/* ---- planner_data ---- */

/* A key of the path, not NUL-terminated: a text, or a position in a list. */
static void put_key(struct writer *w, const char *key, size_t length)
{
    char text[VALUE_PATH_BYTES + 1];
    int64_t number = 0;
    bool is_number = length > 0 && length < 10;
    for (size_t i = 0; i < length && is_number; i++) {
        is_number = key[i] >= '0' && key[i] <= '9';
        number = 10 * number + (key[i] - '0');
    }
    if (length > VALUE_PATH_BYTES) length = VALUE_PATH_BYTES;
    memcpy(text, key, length);
    text[length] = '\0';
    if (is_number)
        pickle_put_int(&w->out, number);
    else
        pickle_put_text(&w->out, text);
}

static void put_path(struct writer *w, const char *name, const char *path, size_t *count)
{
    if (!path) return;
    if (!*count) put_opcodes(w, "}");
    next_entry(w, count);
    pickle_put_text(&w->out, name);
    put_opcodes(w, "(");
    for (const char *end;; path = end + 1) {
        end = path + strcspn(path, "\x1f");
        put_key(w, path, (size_t)(end - path));
        if (!*end) break;
    }
    put_opcodes(w, "t");
}

static void put_planner_data(struct writer *w, const struct dcp_tensor *tensors, size_t num_tensors,
                             const struct dcp_object *objects, size_t num_objects)
{
    size_t count = 0;
    for (size_t i = 0; i < num_tensors; i++)
        put_path(w, tensors[i].name, tensors[i].nested_path, &count);
    for (size_t i = 0; i < num_objects; i++)
        put_path(w, objects[i].name, objects[i].nested_path, &count);
    if (!count) put_opcodes(w, "N");
    end_dict(w, count);
}

/* ---- storage_data ---- */

/* MetadataIndex(fqn, offset); objects have no offset. */
static void put_index(struct writer *w, const char *name, const struct dcp_chunk *c,
                      unsigned num_dims)
{
    put_new(w, W_INDEX);
    put_opcodes(w, "}(");
    put_word(w, W_AT_FQN);
    pickle_put_text(&w->out, name);
    if (c) {
        put_word(w, W_AT_OFFSET);
        put_size(w, c->offsets, num_dims);
    }
    put_word(w, W_AT_INDEX);
    put_opcodes(w, "Nub");
}

static void put_place(struct writer *w, const char *path, uint64_t offset, uint64_t length)
{
    put_new(w, W_PLACE);
    put_opcodes(w, "}(");
    put_word(w, W_AT_RELATIVE_PATH);
    pickle_put_text(&w->out, path);
    put_word(w, W_AT_OFFSET);
    pickle_put_int(&w->out, (int64_t)offset);
    put_word(w, W_AT_LENGTH);
    pickle_put_int(&w->out, (int64_t)length);
    put_opcodes(w, "ub");
}

static void put_storage_data(struct writer *w, const char *const *paths,
                             const struct dcp_tensor *tensors, size_t num_tensors,
                             const struct dcp_object *objects, size_t num_objects)
{
    size_t count = 0;
    put_opcodes(w, "}");
    for (size_t i = 0; i < num_tensors; i++)
        for (size_t k = 0; k < tensors[i].num_chunks; k++) {
            const struct dcp_chunk c = chunk_of(&tensors[i], k);
            next_entry(w, &count);
            put_index(w, tensors[i].name, &c, tensors[i].num_dims);
            put_place(w, paths[c.file], c.offset_bytes, c.length_bytes);
        }
    for (size_t i = 0; i < num_objects; i++) {
        const struct dcp_object *o = &objects[i];
        next_entry(w, &count);
        put_index(w, o->name, NULL, 0);
        put_place(w, paths[o->file], o->offset_bytes, o->length_bytes);
    }
    end_dict(w, count);
}

/* mcore_data: {fqn: {nd_reformulated_orig_global_shape: shape}} of flattened
 * tensors; nothing without them
 * (megatron/core/dist_checkpointing/strategies/resharding.py at
 * core_v0.14.0). */
static void put_original_shapes(struct writer *w, const struct dcp_tensor *tensors,
                                size_t num_tensors)
{
    size_t count = 0;
    for (size_t i = 0; i < num_tensors; i++) {
        const struct dcp_tensor *t = &tensors[i];
        if (!t->original_shape) continue;
        if (!count) {
            pickle_put_text(&w->out, "mcore_data");
            put_opcodes(w, "}");
        }
        next_entry(w, &count);
        pickle_put_text(&w->out, t->name);
        put_opcodes(w, "}(");
        pickle_put_text(&w->out, "nd_reformulated_orig_global_shape");
        put_size(w, t->original_shape, t->num_original_dims);
        put_opcodes(w, "u");
    }
    end_dict(w, count);
}

static enum status check_dtypes(const struct dcp_tensor *tensors, size_t num_tensors,
                                struct error *err)
{
    for (size_t i = 0; i < num_tensors; i++)
        if (!dtype_infos[tensors[i].dtype].torch || tensors[i].dtype == DT_F4)
            return fail(err, ERR_UNSUPPORTED, "%s: torch's checkpoints have no %s tensors",
                        tensors[i].name, dtype_infos[tensors[i].dtype].name);
    return OK;
}

enum status dcp_write_metadata(const char *path, const char *const *paths,
                               const struct dcp_tensor *tensors, size_t num_tensors,
                               const struct dcp_object *objects, size_t num_objects, bool durable,
                               struct error *err)
{
    struct writer w = {.path = path, .err = err};
    TRY(check_dtypes(tensors, num_tensors, err));
    TRY(file_create(path, &w.fd, err));
    put_opcodes(&w, "\x80\x02");
    pickle_put_global(&w.out, METADATA, "Metadata");
    put_opcodes(&w, ")\x81}(");
    pickle_put_text(&w.out, "state_dict_metadata");
    put_state_dict(&w, tensors, num_tensors, objects, num_objects);
    pickle_put_text(&w.out, "planner_data");
    put_planner_data(&w, tensors, num_tensors, objects, num_objects);
    pickle_put_text(&w.out, "storage_data");
    put_storage_data(&w, paths, tensors, num_tensors, objects, num_objects);
    pickle_put_text(&w.out, "storage_meta");
    put_opcodes(&w, "N");
    pickle_put_text(&w.out, "version");
    pickle_put_text(&w.out, "1.0.0");
    put_original_shapes(&w, tensors, num_tensors);
    put_opcodes(&w, "ub.");
    flush_metadata(&w);
    strbuf_release(&w.out);
    if (!w.status && durable) w.status = file_sync(w.fd, path, err);
    if (close(w.fd) && !w.status) w.status = fail_errno(err, ERR_IO, "%s: close", path);
    if (w.status) unlink(path);
    return w.status;
}
