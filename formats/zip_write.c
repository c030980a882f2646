/* Writes zip. zip_layout() counts the sizes of what zip_emit() builds; tests
 * compare the two. */
#include <string.h>

#include "formats/zip_internal.h"

static bool is_wide(uint64_t v)
{
    return v >= IN_ZIP64;
}

/* A local zip64 field holds both sizes; a row's only what does not fit. */
static size_t local_zip64_bytes(const struct zip_out_entry *e)
{
    return is_wide(e->size_bytes) ? EXTRA_HEADER_BYTES + 16 : 0;
}

static size_t row_zip64_bytes(const struct zip_out_entry *e)
{
    size_t n = (is_wide(e->size_bytes) ? 16u : 0u) + (is_wide(e->header_offset) ? 8u : 0u);
    return n ? EXTRA_HEADER_BYTES + n : 0;
}

static bool end_is_wide(const struct zip_out *z, uint64_t directory_bytes)
{
    return z->num_entries >= COUNT_IN_ZIP64 || is_wide(z->directory_offset) ||
           is_wide(directory_bytes);
}

void zip_layout(struct zip_out *z)
{
    uint64_t at = 0, directory_bytes = 0;
    for (size_t i = 0; i < z->num_entries; i++) {
        struct zip_out_entry *e = &z->entries[i];
        e->header_offset = at;
        at += LOCAL_BYTES + strlen(e->name) + local_zip64_bytes(e) + EXTRA_HEADER_BYTES;
        e->data_offset = at = (at + DATA_ALIGNMENT - 1) / DATA_ALIGNMENT * DATA_ALIGNMENT;
        at += e->size_bytes;
        directory_bytes += ROW_BYTES + strlen(e->name) + row_zip64_bytes(e);
    }
    z->directory_offset = at;
    z->total_bytes = at + directory_bytes + END_BYTES;
    if (end_is_wide(z, directory_bytes)) z->total_bytes += END64_BYTES + LOCATOR_BYTES;
}

static uint64_t clamp_to_u32(uint64_t v)
{
    return is_wide(v) ? IN_ZIP64 : v;
}

static void add_le(struct strbuf *out, uint64_t v, unsigned bytes)
{
    unsigned char p[8];
    put_le(p, v, bytes);
    strbuf_add(out, p, bytes);
}

static void add_local(struct strbuf *out, const struct zip_out_entry *e)
{
    unsigned char p[LOCAL_BYTES] = {0};
    size_t name = strlen(e->name), wide = local_zip64_bytes(e);
    size_t padding = (size_t)(e->data_offset - e->header_offset) - LOCAL_BYTES - name - wide -
                     EXTRA_HEADER_BYTES;
    put_le(p, LOCAL_SIGNATURE, 4);
    put_le(p + LOCAL_VERSION, wide ? VERSION_ZIP64 : VERSION_PLAIN, 2);
    put_le(p + LOCAL_METHOD, METHOD_STORED, 2);
    put_le(p + LOCAL_DATE, DATE_1980, 2);
    put_le(p + LOCAL_CRC, e->crc, 4);
    put_le(p + LOCAL_PACKED, clamp_to_u32(e->size_bytes), 4);
    put_le(p + LOCAL_SIZE, clamp_to_u32(e->size_bytes), 4);
    put_le(p + LOCAL_NAME, name, 2);
    put_le(p + LOCAL_EXTRA, wide + EXTRA_HEADER_BYTES + padding, 2);
    strbuf_add(out, p, sizeof p);
    strbuf_add(out, e->name, name);
    if (wide) {
        add_le(out, EXTRA_ZIP64, 2);
        add_le(out, 16, 2);
        add_le(out, e->size_bytes, 8);
        add_le(out, e->size_bytes, 8);
    }
    add_le(out, EXTRA_PADDING, 2);
    add_le(out, padding, 2);
    strbuf_add_repeated(out, 'Z', padding);
}

static void add_directory_row(struct strbuf *out, const struct zip_out_entry *e)
{
    unsigned char p[ROW_BYTES] = {0};
    size_t name = strlen(e->name), wide = row_zip64_bytes(e);
    put_le(p, ROW_SIGNATURE, 4);
    put_le(p + ROW_VERSION, wide ? VERSION_ZIP64 : VERSION_PLAIN, 2);
    put_le(p + ROW_METHOD, METHOD_STORED, 2);
    put_le(p + ROW_DATE, DATE_1980, 2);
    put_le(p + ROW_CRC, e->crc, 4);
    put_le(p + ROW_PACKED, clamp_to_u32(e->size_bytes), 4);
    put_le(p + ROW_SIZE, clamp_to_u32(e->size_bytes), 4);
    put_le(p + ROW_NAME, name, 2);
    put_le(p + ROW_EXTRA, wide, 2);
    put_le(p + ROW_OFFSET, clamp_to_u32(e->header_offset), 4);
    strbuf_add(out, p, sizeof p);
    strbuf_add(out, e->name, name);
    if (!wide) return;
    add_le(out, EXTRA_ZIP64, 2);
    add_le(out, wide - EXTRA_HEADER_BYTES, 2);
    if (is_wide(e->size_bytes)) {
        add_le(out, e->size_bytes, 8);
        add_le(out, e->size_bytes, 8);
    }
    if (is_wide(e->header_offset)) add_le(out, e->header_offset, 8);
}

static void add_end64(struct strbuf *out, const struct zip_out *z, uint64_t directory_bytes)
{
    unsigned char p[END64_BYTES + LOCATOR_BYTES] = {0}, *locator = p + END64_BYTES;
    put_le(p, END64_SIGNATURE, 4);
    put_le(p + END64_REST, END64_BYTES - END64_MADE_BY, 8);
    put_le(p + END64_MADE_BY, VERSION_ZIP64, 2);
    put_le(p + END64_VERSION, VERSION_ZIP64, 2);
    put_le(p + END64_DISK_COUNT, z->num_entries, 8);
    put_le(p + END64_COUNT, z->num_entries, 8);
    put_le(p + END64_DIRECTORY_BYTES, directory_bytes, 8);
    put_le(p + END64_DIRECTORY_OFFSET, z->directory_offset, 8);
    put_le(locator, LOCATOR_SIGNATURE, 4);
    put_le(locator + LOCATOR_OFFSET, z->directory_offset + directory_bytes, 8);
    put_le(locator + LOCATOR_DISKS, 1, 4);
    strbuf_add(out, p, sizeof p);
}

static void add_end(struct strbuf *out, const struct zip_out *z, uint64_t directory_bytes)
{
    unsigned char p[END_BYTES] = {0};
    uint64_t count = z->num_entries < COUNT_IN_ZIP64 ? z->num_entries : COUNT_IN_ZIP64;
    if (end_is_wide(z, directory_bytes)) add_end64(out, z, directory_bytes);
    put_le(p, END_SIGNATURE, 4);
    put_le(p + END_DISK_COUNT, count, 2);
    put_le(p + END_COUNT, count, 2);
    put_le(p + END_DIRECTORY_BYTES, clamp_to_u32(directory_bytes), 4);
    put_le(p + END_DIRECTORY_OFFSET, clamp_to_u32(z->directory_offset), 4);
    strbuf_add(out, p, sizeof p);
}

enum status zip_emit(const struct zip_out *z,
                     enum status (*put)(void *context, uint64_t offset, const void *bytes,
                                        size_t count, struct error *err),
                     void *context, struct error *err)
{
    struct strbuf out = {0};
    enum status st = OK;
    for (size_t i = 0; i < z->num_entries && !st; i++) {
        strbuf_clear(&out);
        add_local(&out, &z->entries[i]);
        st = put(context, z->entries[i].header_offset, out.data, out.length, err);
    }
    strbuf_clear(&out);
    for (size_t i = 0; i < z->num_entries; i++)
        add_directory_row(&out, &z->entries[i]);
    add_end(&out, z, out.length);
    if (!st) st = put(context, z->directory_offset, out.data, out.length, err);
    strbuf_release(&out);
    return st;
}
