#include "formats/indexed_dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "formats/sniff.h"

static const char magic[9] = "MMIDIDX\0";

enum {
    VERSION_AT = sizeof magic,
    DTYPE_AT = VERSION_AT + 8,
    SEQUENCES_AT = DTYPE_AT + 1,
    DOCUMENTS_AT = SEQUENCES_AT + 8,
    HEADER_BYTES = DOCUMENTS_AT + 8, /* lengths follow */
    WINDOW = 1024,                   /* sequences in memory at once */
    RUN = 4096,                      /* tokens read at once */
};

/* ---- element types ---- */

#define LOADER(type)                                                                               \
    static void load_##type(int64_t *to, const void *from, size_t n)                               \
    {                                                                                              \
        type id;                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            memcpy(&id, (const char *)from + i * sizeof id, sizeof id);                            \
            to[i] = (int64_t)id;                                                                   \
        }                                                                                          \
    }
LOADER(uint8_t)
LOADER(int8_t)
LOADER(int16_t)
LOADER(uint16_t)
LOADER(int32_t)
LOADER(uint32_t)
LOADER(int64_t)

// clang-format off
static const struct element {
    enum dtype dtype;
    unsigned code; /* in an index; 0: not there */
    bool is_raw;   /* allowed in a raw file */
    void (*load)(int64_t *to, const void *from, size_t n); /* NULL: no token ids */
} elements[] = {
    {DT_U8,  1, false, load_uint8_t},
    {DT_I8,  2, false, load_int8_t},
    {DT_I16, 3, false, load_int16_t},
    {DT_I32, 4, false, load_int32_t},
    {DT_I64, 5, false, load_int64_t},
    {DT_F64, 6, false, NULL},
    {DT_F32, 7, false, NULL},
    {DT_U16, 8, true,  load_uint16_t},
    {DT_U32, 0, true,  load_uint32_t},
};
// clang-format on

enum { NUM_ELEMENTS = COUNT(elements) };

static const struct element *element_of(enum dtype dtype)
{
    size_t i = 0;
    while (elements[i].dtype != dtype)
        i++;
    return &elements[i];
}

/* ---- windows: a few sequences at a time ---- */

struct window {
    size_t count;
    uint64_t lengths[WINDOW], offsets[WINDOW]; /* tokens; bytes in the .bin */
};

static uint64_t offsets_at(const struct indexed_dataset *d)
{
    return HEADER_BYTES + d->num_sequences * sizeof(int32_t);
}

static uint64_t documents_at(const struct indexed_dataset *d)
{
    return offsets_at(d) + d->num_sequences * sizeof(int64_t);
}

static enum status check_sequence(const struct indexed_dataset *d, uint64_t sequence,
                                  int32_t length, int64_t offset, struct error *err)
{
    if (length < 0)
        return fail(err, ERR_CORRUPT,
                    "%s: byte %" PRIu64 ": sequence %" PRIu64 " has %d tokens, expected at least 0",
                    d->index.path, HEADER_BYTES + sequence * sizeof length, sequence, length);
    uint64_t bytes = dtype_run_bytes(d->dtype, (uint64_t)length);
    if (offset < 0 || (uint64_t)offset > d->data.size_bytes ||
        bytes > d->data.size_bytes - (uint64_t)offset)
        return fail(err, ERR_CORRUPT,
                    "%s: byte %" PRIu64 ": sequence %" PRIu64 " is %" PRIu64 " bytes at %" PRId64
                    " of %s, which has %" PRIu64,
                    d->index.path, offsets_at(d) + sequence * sizeof offset, sequence, bytes,
                    offset, d->data.path, d->data.size_bytes);
    return OK;
}

/* Loads sequences [first, first + count), at most WINDOW. */
static enum status load_window(const struct indexed_dataset *d, uint64_t first, size_t count,
                               struct window *w, struct error *err)
{
    int32_t lengths[WINDOW];
    w->count = count;
    if (!d->index.kind) {
        w->lengths[0] = d->num_tokens;
        w->offsets[0] = 0;
        return OK;
    }
    TRY(bytes_read(&d->index, HEADER_BYTES + first * sizeof *lengths, lengths,
                   count * sizeof *lengths, err));
    TRY(bytes_read(&d->index, offsets_at(d) + first * sizeof *w->offsets, w->offsets,
                   count * sizeof *w->offsets, err));
    for (size_t i = 0; i < count; i++) {
        TRY(check_sequence(d, first + i, lengths[i], (int64_t)w->offsets[i], err));
        w->lengths[i] = (uint64_t)lengths[i];
    }
    return OK;
}

static uint64_t num_windows(const struct indexed_dataset *d)
{
    return ceil_div_u64(d->num_sequences, WINDOW);
}

static enum status load_nth_window(const struct indexed_dataset *d, uint64_t n, struct window *w,
                                   struct error *err)
{
    uint64_t first = n * WINDOW;
    return load_window(d, first, min_u64(WINDOW, d->num_sequences - first), w, err);
}

/* ---- opening ---- */

static uint64_t u64_at(const uint8_t *head, size_t at)
{
    uint64_t n;
    memcpy(&n, head + at, sizeof n);
    return n;
}

static enum status check_magic(const struct indexed_dataset *d, const uint8_t *head, size_t bytes,
                               struct error *err)
{
    if (bytes >= sizeof magic && memcmp(head, magic, sizeof magic) == 0) return OK;
    const char *what = sniff_name(head, bytes);
    if (what) return fail(err, ERR_CORRUPT, "%s: this is %s, not an index", d->index.path, what);
    struct strbuf found = {0};
    strbuf_add_escaped(&found, (const char *)head, min_u64(bytes, sizeof magic));
    enum status st = fail(err, ERR_CORRUPT, "%s: byte 0: \"%s\", expected MMIDIDX and two zeros",
                          d->index.path, found.length ? found.data : "");
    strbuf_release(&found);
    return st;
}

static enum status take_dtype(struct indexed_dataset *d, unsigned code, struct error *err)
{
    size_t i = 0;
    while (i < NUM_ELEMENTS && elements[i].code != code)
        i++;
    if (!code || i == NUM_ELEMENTS)
        return fail(err, ERR_CORRUPT, "%s: byte %d: dtype code %u, expected 1 to 8", d->index.path,
                    DTYPE_AT, code);
    d->dtype = elements[i].dtype;
    if (elements[i].load) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: byte %d: elements of %s are not token ids",
                d->index.path, DTYPE_AT, dtype_infos[d->dtype].name);
}

/* Whether the file's length matches its counts, with modes or without. */
static enum status check_index_size(struct indexed_dataset *d, uint64_t entries, struct error *err)
{
    enum { OF_SEQUENCE = sizeof(int32_t) + sizeof(int64_t), OF_ENTRY = sizeof(int64_t) };
    uint64_t left = d->index.size_bytes - HEADER_BYTES;
    uint64_t of_sequences = 0, of_entries = 0, all = 0;
    bool fits = mul_u64(d->num_sequences, OF_SEQUENCE, &of_sequences) &&
                mul_u64(entries, OF_ENTRY, &of_entries) && add_u64(of_sequences, of_entries, &all);
    if (!entries)
        return fail(err, ERR_CORRUPT, "%s: byte %d: 0 document entries, expected at least 1",
                    d->index.path, DOCUMENTS_AT);
    if (fits && (left == all || (left > all && left - all == d->num_sequences))) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: bytes %d and %d: %" PRIu64 " sequences and %" PRIu64
                " document entries need %d and %d bytes each (plus one per sequence for modes), "
                "but %" PRIu64 " bytes follow",
                d->index.path, SEQUENCES_AT, DOCUMENTS_AT, d->num_sequences, entries, OF_SEQUENCE,
                OF_ENTRY, left);
}

static enum status read_header(struct indexed_dataset *d, struct error *err)
{
    uint8_t head[HEADER_BYTES];
    size_t bytes = min_u64(sizeof head, d->index.size_bytes);
    TRY(bytes_read(&d->index, 0, head, bytes, err));
    TRY(check_magic(d, head, bytes, err));
    if (bytes < sizeof head)
        return fail(err, ERR_CORRUPT, "%s: ends at byte %zu, expected a header of %d bytes",
                    d->index.path, bytes, HEADER_BYTES);
    uint64_t version = u64_at(head, VERSION_AT), entries = u64_at(head, DOCUMENTS_AT);
    if (version != 1)
        return fail(err, ERR_CORRUPT, "%s: byte %d: version %" PRIu64 ", expected 1", d->index.path,
                    VERSION_AT, version);
    TRY(take_dtype(d, head[DTYPE_AT], err));
    d->num_sequences = u64_at(head, SEQUENCES_AT);
    TRY(check_index_size(d, entries, err));
    d->num_documents = entries - 1;
    return OK;
}

/* Counts all tokens. */
static enum status check_sequences(struct indexed_dataset *d, struct error *err)
{
    uint64_t n = num_windows(d);
    struct window w;
    d->starts = calloc(n + 1, sizeof *d->starts);
    if (!d->starts)
        return fail(err, ERR_MEMORY, "%s: no memory for %" PRIu64 " sequences", d->data.path,
                    d->num_sequences);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t tokens = d->starts[i];
        TRY(load_nth_window(d, i, &w, err));
        for (size_t k = 0; k < w.count; k++)
            if (!add_u64(tokens, w.lengths[k], &tokens))
                return fail(err, ERR_CORRUPT, "%s: its lengths overflow 64 bits", d->index.path);
        d->starts[i + 1] = tokens;
    }
    d->num_tokens = d->starts[n];
    return OK;
}

/* Entry i lies between the entry before it and the number of sequences. */
static enum status check_entry(const struct indexed_dataset *d, uint64_t i, uint64_t entry,
                               uint64_t before, struct error *err)
{
    uint64_t least = i == d->num_documents ? d->num_sequences : before;
    uint64_t most = i == 0 ? 0 : d->num_sequences;
    if (entry >= least && entry <= most) return OK;
    return fail(err, ERR_CORRUPT,
                "%s: byte %" PRIu64 ": document %" PRIu64 " begins with sequence %" PRId64
                ", expected %" PRIu64 " to %" PRIu64,
                d->index.path, documents_at(d) + i * sizeof entry, i, (int64_t)entry, least, most);
}

static enum status read_entries(const struct indexed_dataset *d, uint64_t first, uint64_t count,
                                uint64_t *entries, struct error *err)
{
    return bytes_read(&d->index, documents_at(d) + first * sizeof *entries, entries,
                      count * sizeof *entries, err);
}

static enum status check_documents(const struct indexed_dataset *d, struct error *err)
{
    uint64_t entries[WINDOW], before = 0;
    for (uint64_t i = 0, n; i <= d->num_documents; i += n) {
        n = min_u64(WINDOW, d->num_documents + 1 - i);
        TRY(read_entries(d, i, n, entries, err));
        for (uint64_t k = 0; k < n; before = entries[k++])
            TRY(check_entry(d, i + k, entries[k], before, err));
    }
    return OK;
}

static void init_dataset(struct indexed_dataset *d)
{
    *d = (struct indexed_dataset){0};
    arena_init(&d->arena);
}

static enum status open_both(struct indexed_dataset *d, const char *path, struct error *err)
{
    size_t n = strlen(path);
    if (n > 4 && (strcmp(path + n - 4, ".idx") == 0 || strcmp(path + n - 4, ".bin") == 0)) n -= 4;
    TRY(bytes_open(&d->index, arena_printf(&d->arena, "%.*s.idx", (int)n, path), NULL, err));
    TRY(bytes_open(&d->data, arena_printf(&d->arena, "%.*s.bin", (int)n, path), NULL, err));
    TRY(read_header(d, err));
    TRY(check_sequences(d, err));
    return check_documents(d, err);
}

enum status indexed_dataset_open(struct indexed_dataset *d, const char *path, struct error *err)
{
    init_dataset(d);
    enum status st = open_both(d, path, err);
    if (st) indexed_dataset_close(d);
    return st;
}

static enum status open_raw(struct indexed_dataset *d, const char *path, enum dtype dtype,
                            struct error *err)
{
    size_t i = 0;
    while (i < NUM_ELEMENTS && !(elements[i].is_raw && elements[i].dtype == dtype))
        i++;
    if (i == NUM_ELEMENTS)
        return fail(err, ERR_UNSUPPORTED, "%s: raw token ids of %s, expected U16 or U32", path,
                    dtype_infos[dtype].name);
    TRY(bytes_open(&d->data, arena_copy_text(&d->arena, path), NULL, err));
    if (d->data.size_bytes % dtype_bytes(dtype))
        return fail(err, ERR_CORRUPT, "%s: %" PRIu64 " bytes, expected a multiple of %zu", path,
                    d->data.size_bytes, dtype_bytes(dtype));
    d->dtype = dtype;
    d->num_sequences = d->num_documents = 1;
    d->num_tokens = d->data.size_bytes / dtype_bytes(dtype);
    return check_sequences(d, err);
}

enum status token_file_open(struct indexed_dataset *d, const char *path, enum dtype dtype,
                            struct error *err)
{
    init_dataset(d);
    enum status st = open_raw(d, path, dtype, err);
    if (st) indexed_dataset_close(d);
    return st;
}

void indexed_dataset_close(struct indexed_dataset *d)
{
    bytes_release(&d->index);
    bytes_release(&d->data);
    free(d->starts);
    arena_release(&d->arena);
}

/* ---- the index ---- */

static enum status check_range(const struct indexed_dataset *d, const char *what, uint64_t first,
                               uint64_t count, uint64_t all, struct error *err)
{
    if (first <= all && count <= all - first) return OK;
    return fail(err, ERR_OURS, "%s: %" PRIu64 " %s from %" PRIu64 " of %" PRIu64, d->data.path,
                count, what, first, all);
}

enum status indexed_dataset_lengths(const struct indexed_dataset *d, uint64_t first, uint64_t count,
                                    uint64_t *lengths, struct error *err)
{
    struct window w;
    TRY(check_range(d, "sequences", first, count, d->num_sequences, err));
    for (uint64_t i = 0; i < count; i += w.count) {
        TRY(load_window(d, first + i, min_u64(WINDOW, count - i), &w, err));
        memcpy(lengths + i, w.lengths, w.count * sizeof *lengths);
    }
    return OK;
}

enum status indexed_dataset_documents(const struct indexed_dataset *d, uint64_t first,
                                      uint64_t count, uint64_t *sequences, struct error *err)
{
    TRY(check_range(d, "documents", first, count, d->num_documents + 1, err));
    if (d->index.kind) {
        TRY(read_entries(d, first, count, sequences, err));
        for (uint64_t i = 0; i < count; i++)
            TRY(check_entry(d, first + i, sequences[i], i ? sequences[i - 1] : 0, err));
        return OK;
    }
    for (uint64_t i = 0; i < count; i++)
        sequences[i] = first + i;
    return OK;
}

/* ---- tokens ---- */

/* Destination of ids. */
struct output {
    enum dtype as;
    char *tokens; /* the unfilled part */
};

static enum status store_ids(struct output *o, const struct indexed_dataset *d, uint64_t offset,
                             const int64_t *ids, size_t n, struct error *err)
{
    const size_t bytes = dtype_bytes(o->as);
    for (size_t i = 0; i < n; i++, o->tokens += bytes) {
        int32_t narrow = (int32_t)ids[i];
        if (o->as == DT_I64)
            memcpy(o->tokens, &ids[i], bytes);
        else if (narrow == ids[i])
            memcpy(o->tokens, &narrow, bytes);
        else
            return fail(err, ERR_CORRUPT,
                        "%s: byte %" PRIu64 ": token %" PRId64 "%s; ids go up to %d", d->data.path,
                        offset + dtype_run_bytes(d->dtype, i), ids[i],
                        d->dtype == DT_U32 ? ", or a negative one" : "", INT32_MAX);
    }
    return OK;
}

/* Reads count tokens from a byte offset in the .bin. */
static enum status read_token_run(const struct indexed_dataset *d, uint64_t offset, uint64_t count,
                                  struct output *o, struct error *err)
{
    const struct element *e = element_of(d->dtype);
    const size_t bytes = dtype_bytes(d->dtype);
    assert(o->as == DT_I32 || o->as == DT_I64);
    int64_t raw[RUN], ids[RUN];
    for (uint64_t n; count; count -= n, offset += n * bytes) {
        n = min_u64(count, RUN);
        TRY(bytes_read(&d->data, offset, raw, n * bytes, err));
        e->load(ids, raw, n);
        TRY(store_ids(o, d, offset, ids, n, err));
    }
    return OK;
}

enum status indexed_dataset_read(const struct indexed_dataset *d, uint64_t sequence, uint64_t first,
                                 uint64_t count, enum dtype as, void *tokens, struct error *err)
{
    struct window w;
    struct output o = {as, tokens};
    TRY(check_range(d, "sequences", sequence, 1, d->num_sequences, err));
    TRY(load_window(d, sequence, 1, &w, err));
    TRY(check_range(d, "tokens of a sequence", first, count, w.lengths[0], err));
    return read_token_run(d, w.offsets[0] + dtype_run_bytes(d->dtype, first), count, &o, err);
}

/* The last window that begins at or before a token of the stream. */
static uint64_t window_of(const struct indexed_dataset *d, uint64_t token)
{
    uint64_t low = 0, high = num_windows(d);
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        if (d->starts[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Reads tokens [skip, skip + count) of a window, adjacent sequences at once. */
static enum status read_window(const struct indexed_dataset *d, const struct window *w,
                               uint64_t skip, uint64_t count, struct output *o, struct error *err)
{
    const size_t bytes = dtype_bytes(d->dtype);
    uint64_t offset = 0, run = 0; /* tokens to read */
    for (size_t i = 0; i < w->count && count; i++) {
        uint64_t from = min_u64(skip, w->lengths[i]), n = min_u64(w->lengths[i] - from, count);
        uint64_t at = w->offsets[i] + from * bytes;
        skip -= from;
        count -= n;
        if (offset + run * bytes != at) {
            TRY(read_token_run(d, offset, run, o, err));
            offset = at;
            run = 0;
        }
        run += n;
    }
    if (count) return fail(err, ERR_IO, "%s: changed while it was read", d->index.path);
    return read_token_run(d, offset, run, o, err);
}

enum status indexed_dataset_read_stream(const struct indexed_dataset *d, uint64_t first,
                                        uint64_t count, enum dtype as, void *tokens,
                                        struct error *err)
{
    struct window w;
    struct output o = {as, tokens};
    TRY(check_range(d, "tokens", first, count, d->num_tokens, err));
    for (uint64_t i = window_of(d, first), n; count; i++, first += n, count -= n) {
        n = min_u64(count, d->starts[i + 1] - first);
        TRY(load_nth_window(d, i, &w, err));
        TRY(read_window(d, &w, first - d->starts[i], n, &o, err));
    }
    return OK;
}

enum status indexed_dataset_locate(const struct indexed_dataset *d, uint64_t token,
                                   uint64_t *sequence, uint64_t *at, struct error *err)
{
    struct window w;
    TRY(check_range(d, "tokens", token, 1, d->num_tokens, err));
    const uint64_t i = window_of(d, token);
    TRY(load_nth_window(d, i, &w, err));
    *sequence = i * WINDOW;
    *at = token - d->starts[i];
    for (size_t k = 0; k < w.count && *at >= w.lengths[k]; k++) {
        *at -= w.lengths[k];
        ++*sequence;
    }
    return OK;
}
