/* Reads zip. Every number is checked against the file before it is used. */
#include "formats/zip.h"

#include <inttypes.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/file.h"
#include "common/memory.h"
#include "formats/inflate.h"
#include "formats/zip_internal.h"

enum {
    LONGEST_COMMENT = 0xFFFF,
    LARGEST_DIRECTORY = 1 << 30,
    /* Most bytes that deflate makes of one: 258 zeros take two bits. */
    MAX_INFLATION = 1032,
};

/* ---- the end record ---- */

struct end_record {
    uint64_t directory_offset, directory_bytes, count;
};

static bool is_end_record(const unsigned char *p, uint64_t left)
{
    return get_le(p, 4) == END_SIGNATURE && get_le(p + END_COMMENT, 2) == left - END_BYTES;
}

/* Searches backwards: the comment must reach to the end of the archive. */
static enum status find_end(const struct bytes *b, uint64_t *at, unsigned char end[END_BYTES],
                            struct error *err)
{
    size_t most = (size_t)min_u64(b->size_bytes, END_BYTES + LONGEST_COMMENT);
    if (b->size_bytes < END_BYTES) goto missing;
    *at = b->size_bytes - END_BYTES;
    TRY(bytes_read(b, *at, end, END_BYTES, err));
    if (is_end_record(end, END_BYTES)) return OK;

    unsigned char *tail = must_malloc(most);
    enum status st = bytes_read(b, b->size_bytes - most, tail, most, err);
    bool found = false;
    for (size_t n = END_BYTES; !st && !found && n <= most; n++) {
        found = is_end_record(tail + most - n, n);
        *at = b->size_bytes - n;
        memcpy(end, tail + most - n, END_BYTES);
    }
    free(tail);
    if (st || found) return st;
missing:
    return fail(err, ERR_CORRUPT,
                "no end-of-central-directory record at the end of %" PRIu64
                " bytes: truncated, or followed by other bytes?",
                b->size_bytes);
}

/* The 64-bit value; the 32-bit one must be all ones or equal. */
static bool resolve_zip64(uint64_t narrow, uint64_t all_ones, uint64_t wide, uint64_t *out)
{
    *out = wide;
    return narrow == all_ones || narrow == wide;
}

static enum status check_disks(uint64_t disk, uint64_t directory_disk, uint64_t disk_count,
                               uint64_t count, struct error *err)
{
    if (disk || directory_disk)
        return fail(err, ERR_CORRUPT, "an archive of several disks: this is disk %" PRIu64, disk);
    if (disk_count == count) return OK;
    return fail(err, ERR_CORRUPT,
                "the end record counts %" PRIu64 " entries, on this disk %" PRIu64, count,
                disk_count);
}

static enum status read_end64(const struct bytes *b, uint64_t locator_at,
                              const unsigned char *locator, const unsigned char *end,
                              struct end_record *out, uint64_t *at, struct error *err)
{
    unsigned char wide[END64_BYTES];
    *at = get_le(locator + LOCATOR_OFFSET, 8);
    if (*at > locator_at || locator_at - *at < END64_BYTES)
        return fail(err, ERR_CORRUPT, "the zip64 end record at %" PRIu64 " is outside the archive",
                    *at);
    TRY(bytes_read(b, *at, wide, sizeof wide, err));
    if (get_le(wide, 4) != END64_SIGNATURE ||
        get_le(wide + END64_REST, 8) != locator_at - *at - END64_MADE_BY)
        return fail(err, ERR_CORRUPT, "there is no zip64 end record at %" PRIu64, *at);
    TRY(check_disks(get_le(wide + END64_DISK, 4), get_le(wide + END64_DIRECTORY_DISK, 4),
                    get_le(wide + END64_DISK_COUNT, 8), get_le(wide + END64_COUNT, 8), err));
    if (resolve_zip64(get_le(end + END_COUNT, 2), COUNT_IN_ZIP64, get_le(wide + END64_COUNT, 8),
                      &out->count) &&
        resolve_zip64(get_le(end + END_DIRECTORY_BYTES, 4), IN_ZIP64,
                      get_le(wide + END64_DIRECTORY_BYTES, 8), &out->directory_bytes) &&
        resolve_zip64(get_le(end + END_DIRECTORY_OFFSET, 4), IN_ZIP64,
                      get_le(wide + END64_DIRECTORY_OFFSET, 8), &out->directory_offset))
        return OK;
    return fail(err, ERR_CORRUPT, "the two end records disagree");
}

/* The directory must end at the end records and have room for its count. */
static enum status check_directory(const struct end_record *e, uint64_t end_at, struct error *err)
{
    if (e->directory_offset > end_at || e->directory_bytes != end_at - e->directory_offset)
        return fail(err, ERR_CORRUPT,
                    "a directory of %" PRIu64 " bytes at %" PRIu64
                    ", but the end records begin at %" PRIu64,
                    e->directory_bytes, e->directory_offset, end_at);
    if (e->count > e->directory_bytes / ROW_BYTES)
        return fail(err, ERR_CORRUPT, "%" PRIu64 " entries in a directory of %" PRIu64 " bytes",
                    e->count, e->directory_bytes);
    if (e->directory_bytes > LARGEST_DIRECTORY)
        return fail(err, ERR_CORRUPT, "a directory of %" PRIu64 " bytes, at most %d are read",
                    e->directory_bytes, LARGEST_DIRECTORY);
    return OK;
}

static enum status read_end(const struct bytes *b, struct end_record *out, struct error *err)
{
    unsigned char end[END_BYTES], locator[LOCATOR_BYTES];
    uint64_t at = 0;
    TRY(find_end(b, &at, end, err));
    TRY(check_disks(get_le(end + END_DISK, 2), get_le(end + END_DIRECTORY_DISK, 2),
                    get_le(end + END_DISK_COUNT, 2), get_le(end + END_COUNT, 2), err));
    *out = (struct end_record){
        .directory_offset = get_le(end + END_DIRECTORY_OFFSET, 4),
        .directory_bytes = get_le(end + END_DIRECTORY_BYTES, 4),
        .count = get_le(end + END_COUNT, 2),
    };
    if (at >= LOCATOR_BYTES) {
        TRY(bytes_read(b, at - LOCATOR_BYTES, locator, sizeof locator, err));
        if (get_le(locator, 4) == LOCATOR_SIGNATURE)
            TRY(read_end64(b, at - LOCATOR_BYTES, locator, end, out, &at, err));
    }
    return check_directory(out, at, err);
}

/* ---- rows ---- */

/* A row of the directory until its data is found. */
struct row {
    const char *name; /* with the folder */
    size_t name_length;
    uint64_t header_offset, data_offset, packed_bytes, size_bytes;
    unsigned method, flags;
    uint32_t crc;
};

/* Values of the zip64 field replace fields of all ones, in this order. */
static bool read_zip64(const unsigned char *extra, size_t length, struct row *row)
{
    uint64_t *const fields[] = {&row->size_bytes, &row->packed_bytes, &row->header_offset};
    while (length >= EXTRA_HEADER_BYTES) {
        size_t id = get_le(extra, 2), n = get_le(extra + 2, 2);
        extra += EXTRA_HEADER_BYTES;
        length -= EXTRA_HEADER_BYTES;
        if (n > length) return false;
        for (size_t i = 0; id == EXTRA_ZIP64 && i < COUNT(fields); i++) {
            if (*fields[i] != IN_ZIP64) continue;
            if (n < 8) return false;
            *fields[i] = get_le(extra, 8);
            extra += 8;
            length -= 8;
            n -= 8;
        }
        if (id == EXTRA_ZIP64) return true;
        extra += n;
        length -= n;
    }
    return true;
}

static enum status read_directory_row(const unsigned char *p, size_t left, struct arena *a,
                                      struct row *row, size_t *bytes, struct error *err)
{
    if (left < ROW_BYTES || get_le(p, 4) != ROW_SIGNATURE)
        return fail(err, ERR_CORRUPT, "not a directory row");
    size_t name = get_le(p + ROW_NAME, 2), extra = get_le(p + ROW_EXTRA, 2);
    *bytes = ROW_BYTES + name + extra + get_le(p + ROW_COMMENT, 2);
    if (*bytes > left) return fail(err, ERR_CORRUPT, "a row that exceeds the directory");
    *row = (struct row){
        .name = arena_text(a, (const char *)p + ROW_BYTES, name),
        .name_length = name,
        .header_offset = get_le(p + ROW_OFFSET, 4),
        .packed_bytes = get_le(p + ROW_PACKED, 4),
        .size_bytes = get_le(p + ROW_SIZE, 4),
        .method = (unsigned)get_le(p + ROW_METHOD, 2),
        .flags = (unsigned)get_le(p + ROW_FLAGS, 2),
        .crc = (uint32_t)get_le(p + ROW_CRC, 4),
    };
    if (!read_zip64(p + ROW_BYTES + name, extra, row))
        return fail(err, ERR_CORRUPT, "entry %s: broken extra fields", row->name);
    if (get_le(p + ROW_DISK, 2)) return fail(err, ERR_CORRUPT, "an archive of several disks");
    return OK;
}

static enum status check_row(const struct row *row, struct error *err)
{
    const char *name = row->name;
    size_t length = strlen(name);
    if (length != row->name_length)
        return fail(err, ERR_CORRUPT, "entry %s: a NUL in its name", name);
    if (!length || (name[length - 1] != '/' && !path_is_safe(name)))
        return fail(err, ERR_CORRUPT, "entry %s: not a plain relative path", name);
    if (row->flags & FLAG_ENCRYPTED) return fail(err, ERR_CORRUPT, "entry %s: encrypted", name);
    if (row->method != METHOD_STORED && row->method != METHOD_DEFLATED)
        return fail(err, ERR_CORRUPT,
                    "entry %s: compression method %u, only stored (0) and deflated (8) are read",
                    name, row->method);
    if (row->method == METHOD_STORED && row->packed_bytes != row->size_bytes)
        return fail(err, ERR_CORRUPT, "entry %s: stored, yet %" PRIu64 " bytes packed of %" PRIu64,
                    name, row->packed_bytes, row->size_bytes);
    if (row->size_bytes / MAX_INFLATION > row->packed_bytes)
        return fail(err, ERR_CORRUPT,
                    "entry %s: claims %" PRIu64 " bytes, which %" PRIu64 " cannot inflate to", name,
                    row->size_bytes, row->packed_bytes);
    return OK;
}

/* Finds the data by the local header, which agrees with the row, or has zeros
 * if a descriptor follows the data. */
static enum status find_data(const struct bytes *b, struct row *row, uint64_t data_end,
                             struct error *err)
{
    unsigned char stack[LOCAL_BYTES + 256], *p = stack;
    size_t bytes = LOCAL_BYTES + row->name_length;
    if (row->header_offset > data_end || data_end - row->header_offset < bytes)
        return fail(err, ERR_CORRUPT,
                    "entry %s: header at %" PRIu64 " beyond the directory at %" PRIu64, row->name,
                    row->header_offset, data_end);
    if (bytes > sizeof stack) p = must_malloc(bytes);
    enum status st = bytes_read(b, row->header_offset, p, bytes, err);
    if (st) goto done;
    uint64_t packed = get_le(p + LOCAL_PACKED, 4), size = get_le(p + LOCAL_SIZE, 4);
    row->data_offset = row->header_offset + bytes + get_le(p + LOCAL_EXTRA, 2);
    if (get_le(p, 4) != LOCAL_SIGNATURE)
        st = fail(err, ERR_CORRUPT, "entry %s: no header at %" PRIu64, row->name,
                  row->header_offset);
    else if (get_le(p + LOCAL_NAME, 2) != row->name_length ||
             memcmp(p + LOCAL_BYTES, row->name, row->name_length) != 0)
        st = fail(err, ERR_CORRUPT, "entry %s: its local header has another name", row->name);
    else if (get_le(p + LOCAL_METHOD, 2) != row->method)
        st = fail(err, ERR_CORRUPT, "entry %s: its local header has another method", row->name);
    else if ((packed && packed != IN_ZIP64 && packed != row->packed_bytes) ||
             (size && size != IN_ZIP64 && size != row->size_bytes))
        st = fail(err, ERR_CORRUPT, "entry %s: its local header has other sizes", row->name);
    else if (row->data_offset > data_end || row->packed_bytes > data_end - row->data_offset)
        st = fail(err, ERR_CORRUPT,
                  "entry %s: %" PRIu64 " bytes at %" PRIu64 " reach into the directory at %" PRIu64,
                  row->name, row->packed_bytes, row->data_offset, data_end);
done:
    if (p != stack) free(p);
    return st;
}

static int by_offset(const void *a, const void *b)
{
    const struct row *const *x = a, *const *y = b;
    return ((*x)->header_offset > (*y)->header_offset) -
           ((*x)->header_offset < (*y)->header_offset);
}

static int by_entry_name(const void *a, const void *b)
{
    const struct row *const *x = a, *const *y = b;
    return strcasecmp((*x)->name, (*y)->name);
}

static enum status check_overlap(struct row **sorted, size_t count, struct error *err)
{
    if (!count) return OK;
    qsort(sorted, count, sizeof *sorted, by_offset);
    if (sorted[0]->header_offset)
        return fail(err, ERR_CORRUPT, "%" PRIu64 " bytes before the first entry",
                    sorted[0]->header_offset);
    for (size_t i = 1; i < count; i++) {
        const struct row *a = sorted[i - 1], *b = sorted[i];
        if (b->header_offset < a->data_offset + a->packed_bytes)
            return fail(err, ERR_CORRUPT, "entries %s and %s overlap", a->name, b->name);
    }
    return OK;
}

static enum status check_entry_names(struct row **sorted, size_t count, struct error *err)
{
    if (count) qsort(sorted, count, sizeof *sorted, by_entry_name);
    for (size_t i = 1; i < count; i++) {
        const char *a = sorted[i - 1]->name, *b = sorted[i]->name;
        if (strcasecmp(a, b) != 0) continue;
        if (strcmp(a, b) == 0) return fail(err, ERR_CORRUPT, "entry %s: appears twice", a);
        return fail(err, ERR_CORRUPT, "entries %s and %s: their names differ in case only", a, b);
    }
    return OK;
}

/* ---- packed data ---- */

/* Inflates in chunks to the end of the data, or past the claimed size. */
static enum status inflate_chunks(struct inflater *i, const struct bytes *packed, uint64_t claimed,
                                  struct strbuf *keep, uint32_t *crc, int *code, struct error *err)
{
    unsigned char out[16 << 10];
    size_t got;
    for (*code = Z_OK; *code == Z_OK && i->z.total_out <= claimed;) {
        TRY(inflater_next(i, packed, out, sizeof out, &got, code, err));
        *crc = libdeflate_crc32(*crc, out, got);
        if (keep) strbuf_add(keep, out, got);
    }
    return OK;
}

/* Proves that the entry's data has its stated length and inflates to its size
 * and CRC-32 (0: any); adds the contents to `keep` if that is not NULL. */
static enum status inflate_entry(const struct bytes *b, const struct zip_entry *e,
                                 struct strbuf *keep, struct error *err)
{
    struct inflater i = {.started = false};
    struct bytes packed = bytes_range(b, e->data_offset, e->packed_bytes);
    uint32_t crc = 0;
    int code;
    if (!inflater_start(&i)) return fail(err, ERR_MEMORY, "no memory to inflate");
    enum status st = inflate_chunks(&i, &packed, e->size_bytes, keep, &crc, &code, err);
    uint64_t in = i.z.total_in, out = i.z.total_out;
    inflater_end(&i);
    if (st) return st;
    if (code != Z_STREAM_END || in != e->packed_bytes || out != e->size_bytes)
        return fail(err, ERR_CORRUPT,
                    "entry %s: deflated data of %" PRIu64 " bytes %s, %" PRIu64
                    " bytes were expected",
                    e->name, e->packed_bytes,
                    code != Z_STREAM_END && out <= e->size_bytes ? "is broken"
                    : out > e->size_bytes                        ? "inflates to more"
                                                                 : "inflates to less",
                    e->size_bytes);
    if (e->crc && crc != e->crc)
        return fail(err, ERR_CORRUPT, "entry %s: CRC-32 %08" PRIx32 ", %08" PRIx32 " was expected",
                    e->name, crc, e->crc);
    return OK;
}

/* ---- the directory ---- */

static enum status read_rows(const unsigned char *p, const struct end_record *end, struct arena *a,
                             struct row *rows, struct error *err)
{
    size_t at = 0, bytes = 0;
    for (uint64_t i = 0; i < end->count; i++, at += bytes) {
        enum status st =
            read_directory_row(p + at, (size_t)end->directory_bytes - at, a, &rows[i], &bytes, err);
        if (st) return fail_in(err, "entry %" PRIu64 " of %" PRIu64, i + 1, end->count);
        TRY(check_row(&rows[i], err));
    }
    if (at == end->directory_bytes) return OK;
    return fail(err, ERR_CORRUPT,
                "%" PRIu64 " entries fill %zu of the directory's %" PRIu64 " bytes", end->count, at,
                end->directory_bytes);
}

static enum status check_rows(const struct bytes *b, struct row *rows, size_t count,
                              uint64_t data_end, struct error *err)
{
    for (size_t i = 0; i < count; i++)
        TRY(find_data(b, &rows[i], data_end, err));
    struct row **sorted = must_malloc(count * sizeof *sorted + 1);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &rows[i];
    enum status st = check_overlap(sorted, count, err);
    if (!st) st = check_entry_names(sorted, count, err);
    free(sorted);
    return st;
}

/* Lists entries without their common folder and without rows of folders. */
static enum status make_entries(struct zip_directory *z, struct arena *a, const struct row *rows,
                                size_t count, struct error *err)
{
    size_t length = count ? strcspn(rows[0].name, "/") : 0;
    z->folder = count ? arena_text(a, rows[0].name, length) : "";
    z->entries = arena_array(a, count, sizeof *z->entries);
    for (size_t i = 0; i < count; i++) {
        const struct row *row = &rows[i];
        if (strncmp(row->name, z->folder, length) != 0 || row->name[length] != '/')
            return fail(err, ERR_CORRUPT, "entry %s: not in the folder %s of the first entry",
                        row->name, z->folder);
        if (row->name[row->name_length - 1] == '/') {
            if (!row->size_bytes) continue;
            return fail(err, ERR_CORRUPT, "entry %s: a folder of %" PRIu64 " bytes", row->name,
                        row->size_bytes);
        }
        z->entries[z->num_entries] = (struct zip_entry){
            .name = row->name + length + 1,
            .data_offset = row->data_offset,
            .packed_bytes = row->packed_bytes,
            .size_bytes = row->size_bytes,
            .crc = row->crc,
            .coding = row->method == METHOD_DEFLATED ? BYTES_DEFLATED : BYTES_PLAIN,
        };
        map_add(&z->names, z->entries[z->num_entries].name, z->num_entries, NULL);
        z->num_entries++;
    }
    return OK;
}

static enum status prove_packed(const struct zip_directory *z, const struct bytes *b,
                                struct error *err)
{
    for (size_t i = 0; i < z->num_entries; i++)
        if (z->entries[i].coding) TRY(inflate_entry(b, &z->entries[i], NULL, err));
    return OK;
}

enum status zip_read_directory(struct zip_directory *z, struct arena *a, const struct bytes *b,
                               struct error *err)
{
    struct end_record end = {0};
    *z = (struct zip_directory){0};
    TRY(read_end(b, &end, err));
    size_t count = (size_t)end.count;
    unsigned char *bytes = must_malloc((size_t)end.directory_bytes + 1);
    struct row *rows = must_calloc(count + 1, sizeof *rows);
    enum status st = bytes_read(b, end.directory_offset, bytes, (size_t)end.directory_bytes, err);
    if (!st) st = read_rows(bytes, &end, a, rows, err);
    if (!st) st = check_rows(b, rows, count, end.directory_offset, err);
    if (!st) st = make_entries(z, a, rows, count, err);
    if (!st) st = prove_packed(z, b, err);
    if (st) zip_directory_release(z);
    free(rows);
    free(bytes);
    return st;
}

void zip_directory_release(struct zip_directory *z)
{
    map_release(&z->names);
    z->num_entries = 0;
}

const struct zip_entry *zip_find(const struct zip_directory *z, const char *name)
{
    size_t index;
    return map_get(&z->names, name, &index) ? &z->entries[index] : NULL;
}

/* ---- entries ---- */

enum status zip_read_entry(const struct zip_entry *e, const struct bytes *b, uint64_t max_bytes,
                           struct strbuf *out, struct error *err)
{
    if (e->size_bytes > max_bytes)
        return fail(err, ERR_CORRUPT,
                    "entry %s: %" PRIu64 " bytes, at most %" PRIu64 " were expected", e->name,
                    e->size_bytes, max_bytes);
    strbuf_clear(out);
    if (e->coding) return inflate_entry(b, e, out, err);
    strbuf_add_repeated(out, '\0', (size_t)e->size_bytes);
    return bytes_read(b, e->data_offset, out->data, out->length, err);
}
