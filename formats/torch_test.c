#include "formats/torch.h"

#include <libdeflate.h>
#include <unistd.h>

#include "common/count.h"
#include "formats/pickle.h"
#include "formats/zip_internal.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct arena a;
static struct stored s;
static struct error err;
static struct strbuf file;
static char folder[TEMPORARY_PATH];
static const char *path;

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    stored_init(&s);
    if (!temporary_folder(folder)) return -1;
    path = path_join(&a, folder, "x.pt");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    enum status st = path_remove(folder, &err);
    stored_release(&s);
    arena_release(&a);
    strbuf_release(&file);
    return (int)st;
}

static void save(void)
{
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, file.data, file.length, false, &err));
}

/* Opens what `file` holds and adds its tensors. */
static enum status open_all(void)
{
    struct torch_file t;
    save();
    stored_release(&s);
    stored_init(&s);
    TRY(torch_open(&t, &s, path, 0, UINT64_MAX, &err));
    enum status st = torch_add_tensors(&t, &s, t.root, "", &err);
    torch_close(&t);
    return st;
}

static void read_tensor(const char *name, void *to, size_t bytes)
{
    const struct stored_tensor *t = stored_find(&s, name);
    assert_non_null(t);
    assert_int_equal(t->num_pieces, 1);
    struct stored_reader *r = stored_reader_create(&s, 1);
    assert_ok(stored_read(r, t->pieces->file, t->pieces->offset_bytes, to, bytes, &err));
    stored_reader_free(r);
}

/* ---- an archive with any pickle ---- */

static enum status put(void *context, uint64_t offset, const void *bytes, size_t count,
                       struct error *e)
{
    (void)e;
    memcpy((char *)context + offset, bytes, count);
    return OK;
}

struct part {
    const char *name;
    const void *bytes;
    size_t length;
};

static void write_parts(const struct part *parts, size_t count)
{
    struct zip_out z = {.num_entries = count};
    z.entries = arena_array(&a, count, sizeof *z.entries);
    for (size_t i = 0; i < count; i++)
        z.entries[i] = (struct zip_out_entry){
            .name = parts[i].name,
            .size_bytes = parts[i].length,
            .crc = libdeflate_crc32(0, parts[i].bytes, parts[i].length),
        };
    zip_layout(&z);
    strbuf_clear(&file);
    strbuf_add_repeated(&file, 0, (size_t)z.total_bytes);
    assert_ok(zip_emit(&z, put, file.data, &err));
    for (size_t i = 0; i < count; i++)
        memcpy(file.data + z.entries[i].data_offset, parts[i].bytes, parts[i].length);
}

static const float six[6] = {0, 1, 2, 3, 4, 5};

/* An archive of this pickle and one storage "0" of six floats. */
static void write_pickle(const char *pickle, size_t length)
{
    const struct part parts[] = {
        {"a/data.pkl", pickle, length}, {"a/data/0", six, sizeof six}, {"a/version", "3\n", 2}};
    write_parts(parts, 3);
}
#define WRITE_PICKLE(literal) write_pickle(literal, sizeof(literal) - 1)

#define ID(class, key, numel)                                                                      \
    "(X\7\0\0\0storagectorch\n" class "\nX\1\0\0\0" key "X\3\0\0\0cpuK" numel "tQ"
#define HOOKS                                                                                      \
    "\x89"                                                                                         \
    "ccollections\nOrderedDict\n)R"
#define V2 "ctorch._utils\n_rebuild_tensor_v2\n"
#define SIX V2 "(" ID("FloatStorage", "0", "\x06") "K\0K\2K\3\x86K\3K\1\x86" HOOKS "tR"

/* ---- writing and reading ---- */

static struct value *tensor(const char *key, enum dtype dtype, uint64_t rows, uint64_t columns)
{
    return value_tensor(&a, key, dtype, 2, (uint64_t[]){rows, columns});
}

static void what_is_written_is_read_in_every_dtype_of_torch(void **state)
{
    (void)state;
    struct value *root = value_dict(&a);
    const void *data[NUM_DTYPES];
    size_t count = 0;
    unsigned char got[12 * 16];
    for (enum dtype d = 0; d < NUM_DTYPES; d++) {
        if (!dtype_infos[d].torch) continue;
        unsigned char *bytes = arena_alloc(&a, sizeof got);
        memset(bytes, (int)d + 1, sizeof got);
        data[count] = bytes;
        value_dict_set(&a, root, dtype_infos[d].name,
                       tensor(arena_printf(&a, "%zu", count), d, 2, 6));
        count++;
    }
    assert_ok(torch_to_bytes(&file, "archive", root, data, &err));
    assert_ok(open_all());
    assert_int_equal(s.num_tensors, count);
    assert_int_equal(s.num_warnings, 0);
    for (size_t i = 0; i < count; i++) {
        const struct stored_tensor *t = &s.tensors[i];
        assert_string_equal(t->name, dtype_infos[t->dtype].name);
        assert_int_equal(t->shape[0], 2);
        assert_int_equal(t->shape[1], 6);
        assert_null(t->pieces->stride);
        read_tensor(t->name, got, (size_t)stored_tensor_bytes(t));
        assert_memory_equal(got, data[i], stored_tensor_bytes(t));
    }
}

static void tensors_of_one_key_share_an_entry(void **state)
{
    (void)state;
    struct value *root = value_dict(&a);
    struct torch_out out;
    value_dict_set(&a, root, "lm_head", tensor("0", DT_F32, 2, 3));
    value_dict_set(&a, root, "embedding", tensor("0", DT_F32, 3, 2));
    value_dict_set(&a, root, "other", tensor("1", DT_F32, 1, 1));
    assert_ok(torch_layout(&out, "x", root, &err));
    assert_int_equal(out.num_storages, 2);
    assert_string_equal(out.storages[1].key, "1");
    assert_int_equal(out.storages[0].size_bytes, 24);
    assert_int_equal(out.storages[0].data_offset % 64, 0);
    torch_out_release(&out);
    value_dict_set(&a, root, "third", tensor("0", DT_F32, 7, 1));
    assert_fails(torch_layout(&out, "x", root, &err), ERR_OURS, "storage 0: 24 bytes, then 28");
}

static enum status put_next(void *context, uint64_t offset, const void *bytes, size_t count,
                            struct error *e)
{
    uint64_t *at = context;
    (void)bytes;
    if (offset < *at) return fail(e, ERR_OURS, "%d before %d", (int)offset, (int)*at);
    *at = offset + count;
    return OK;
}

static void an_archive_is_emitted_in_order(void **state)
{
    (void)state;
    struct torch_out out;
    struct value *root = tensor("0", DT_F32, 2, 3);
    uint64_t at = 0;
    assert_ok(torch_layout(&out, "x", root, &err));
    assert_ok(torch_emit(&out, put_next, &at, &err));
    assert_int_equal(at, out.total_bytes);
    torch_out_release(&out);
}

static void items_are_the_archives_of_their_tensor(void **state)
{
    (void)state;
    static const uint64_t shape[] = {1, 3, 2, 70000};
    const enum dtype dtypes[] = {DT_BF16, DT_F32, DT_F8_E4M3};
    for (size_t i = 0; i < 3; i++)
        for (unsigned dims = 0; dims <= 4; dims++) {
            struct torch_item item;
            struct strbuf before = {0}, after = {0};
            uint64_t numel = 1;
            for (unsigned d = 0; d < dims; d++)
                numel *= shape[d];
            size_t bytes = (size_t)dtype_run_bytes(dtypes[i], numel);
            void *data = calloc(1, bytes);
            memset(data, 7, bytes);
            torch_item_layout(&item, dtypes[i], dims, shape);
            torch_item_emit(dtypes[i], dims, shape, libdeflate_crc32(0, data, bytes), &before,
                            &after);
            strbuf_clear(&file);
            assert_ok(torch_to_bytes(&file, "archive",
                                     value_tensor(&a, "0", dtypes[i], dims, shape),
                                     (const void *const[]){data}, &err));
            assert_int_equal(item.total_bytes, file.length);
            assert_int_equal(before.length, item.data_offset);
            assert_int_equal(before.length + bytes + after.length, file.length);
            assert_memory_equal(before.data, file.data, before.length);
            assert_memory_equal(after.data, file.data + item.data_offset + bytes, after.length);
            free(data);
            strbuf_release(&before);
            strbuf_release(&after);
        }
}

static void items_of_no_elements_have_their_header_before_and_the_rest_behind(void **state)
{
    (void)state;
    struct torch_item item;
    struct strbuf before = {0}, after = {0};
    torch_item_layout(&item, DT_F32, 2, (uint64_t[]){0, 3});
    torch_item_emit(DT_F32, 2, (uint64_t[]){0, 3}, 0, &before, &after);
    assert_int_equal(before.length, item.data_offset);
    assert_int_equal(before.length + after.length, item.total_bytes);
    strbuf_add(&file, before.data, before.length);
    strbuf_add(&file, after.data, after.length);
    assert_ok(open_all());
    assert_int_equal(stored_tensor_bytes(stored_find(&s, "")), 0);
    strbuf_release(&before);
    strbuf_release(&after);
}

/* ---- reading ---- */

static void views_are_pieces_with_offset_and_stride(void **state)
{
    (void)state;
    float got[3];
    WRITE_PICKLE("}(X\1\0\0\0w" SIX "X\1\0\0\0t" V2
                 "(" ID("FloatStorage", "0",
                        "\x06") "K\0K\3K\2\x86K\1K\3\x86" HOOKS "tRX\1\0\0\0v" V2
                                "(" ID("FloatStorage", "0",
                                       "\x06") "K\2K\3\x85K\1\x85" HOOKS "tRX\1\0\0\0o" V2
                                               "(" ID("FloatStorage", "0",
                                                      "\x06") "K\5K\1K\1\x86K\x63K\x63\x86" HOOKS
                                                              "tRu.");
    assert_ok(open_all());
    assert_int_equal(stored_find(&s, "t")->pieces->stride[0], 1);
    assert_int_equal(stored_find(&s, "t")->pieces->stride[1], 3);
    assert_null(stored_find(&s, "w")->pieces->stride);
    assert_null(stored_find(&s, "o")->pieces->stride); /* of one element: any stride is row-major */
    read_tensor("v", got, sizeof got);
    assert_memory_equal(got, six + 2, sizeof got);
    read_tensor("o", got, sizeof *got);
    assert_true(got[0] == 5);
    assert_int_equal(s.num_files, 1);
}

static void a_prefix_stands_before_the_path(void **state)
{
    (void)state;
    struct torch_file t;
    WRITE_PICKLE("}X\1\0\0\0w" SIX "s.");
    save();
    assert_ok(torch_open(&t, &s, path, 0, UINT64_MAX, &err));
    assert_ok(torch_add_tensors(&t, &s, t.root, "model.", &err));
    assert_ok(torch_add_tensor(&t, &s, "other", value_get(t.root, "w"), &err));
    assert_fails(torch_add_tensor(&t, &s, "other", value_get(t.root, "w"), &err), ERR_CORRUPT,
                 "x.pt: tensor other: appears twice");
    assert_fails(torch_add_tensor(&t, &s, "w", t.root, &err), ERR_UNSUPPORTED, "w: not a tensor");
    torch_close(&t);
    assert_non_null(stored_find(&s, "model.w"));
}

static void an_archive_within_a_file_is_opened_at_its_offset(void **state)
{
    (void)state;
    struct torch_file t;
    float got[6];
    WRITE_PICKLE(SIX ".");
    size_t bytes = file.length;
    struct strbuf whole = {0};
    strbuf_add_repeated(&whole, 'x', 1001);
    strbuf_add(&whole, file.data, bytes);
    strbuf_add_text(&whole, "behind");
    strbuf_release(&file);
    file = whole;
    save();
    assert_ok(torch_open(&t, &s, path, 1001, bytes, &err));
    assert_ok(torch_add_tensor(&t, &s, "w", t.root, &err));
    torch_close(&t);
    read_tensor("w", got, sizeof got);
    assert_memory_equal(got, six, sizeof got);
    assert_fails(torch_open(&t, &s, path, 1001, bytes + 7, &err), ERR_CORRUPT, "bytes at 1001 of");
    assert_fails(torch_open(&t, &s, path, 9999, UINT64_MAX, &err), ERR_CORRUPT, "at 9999 of");
}

static void big_endian_data_is_marked(void **state)
{
    (void)state;
    const struct part parts[] = {{"a/data.pkl", SIX ".", sizeof(SIX ".") - 1},
                                 {"a/byteorder", "big", 3},
                                 {"a/data/0", six, sizeof six},
                                 {"a/version", "3\n", 2}};
    write_parts(parts, 4);
    assert_ok(open_all());
    assert_true(s.tensors[0].pieces->byte_swapped);
}

static void harmless_oddities_are_warned_of(void **state)
{
    (void)state;
    const struct part parts[] = {{"a/data.pkl", SIX ".more", sizeof(SIX ".more") - 1},
                                 {"a/data/0", six, sizeof six}};
    write_parts(parts, 2);
    assert_ok(open_all());
    assert_int_equal(s.num_warnings, 2);
    assert_non_null(strstr(s.warnings[0], "x.pt: it has no version"));
    assert_non_null(strstr(s.warnings[1], "x.pt: bytes behind the end of data.pkl's pickle"));
}

static void a_wrong_crc_of_the_pickle_is_a_warning_and_zero_is_none(void **state)
{
    (void)state;
    WRITE_PICKLE(SIX ".");
    uint64_t row =
        get_le((unsigned char *)file.data + file.length - END_BYTES + END_DIRECTORY_OFFSET, 4);
    put_le((unsigned char *)file.data + row + ROW_CRC, 0x12345678, 4);
    assert_ok(open_all());
    assert_int_equal(s.num_warnings, 1);
    assert_non_null(strstr(s.warnings[0], "entry data.pkl: CRC-32 "));
    put_le((unsigned char *)file.data + row + ROW_CRC, 0, 4);
    assert_ok(open_all());
    assert_int_equal(s.num_warnings, 0);
}

/* An archive whose first entry is deflated. */
static void write_deflated(const char *name, const void *bytes, size_t length,
                           const struct part *second)
{
    unsigned char *packed = arena_alloc(&a, length + 100);
    struct libdeflate_compressor *c = libdeflate_alloc_compressor(6);
    size_t n = libdeflate_deflate_compress(c, bytes, length, packed, length + 100);
    libdeflate_free_compressor(c);
    const struct part parts[] = {{name, packed, n}, *second};
    write_parts(parts, 2);
    unsigned char *p = (unsigned char *)file.data;
    uint64_t row = get_le(p + file.length - END_BYTES + END_DIRECTORY_OFFSET, 4);
    put_le(p + LOCAL_METHOD, METHOD_DEFLATED, 2);
    put_le(p + LOCAL_SIZE, length, 4);
    put_le(p + row + ROW_METHOD, METHOD_DEFLATED, 2);
    put_le(p + row + ROW_SIZE, length, 4);
    put_le(p + row + ROW_CRC, libdeflate_crc32(0, bytes, length), 4);
}

static void a_deflated_storage_is_a_file_of_its_own(void **state)
{
    (void)state;
    float got[3];
    const struct part pickle = {"a/data.pkl", SIX ".", sizeof(SIX ".") - 1};
    write_deflated("a/data/0", six, sizeof six, &pickle);
    assert_ok(open_all());
    assert_int_equal(s.num_files, 2);
    const struct stored_piece *piece = s.tensors[0].pieces;
    assert_int_equal(piece->file, 1);
    assert_int_equal(s.files[1].coding, BYTES_DEFLATED);
    struct stored_reader *r = stored_reader_create(&s, 1);
    assert_ok(stored_read(r, 1, piece->offset_bytes + 3 * sizeof *six, got, sizeof got, &err));
    assert_memory_equal(got, six + 3, sizeof got);
    stored_reader_free(r);
}

static void a_deflated_pickle_is_read_but_for_one_that_inflates_past_all_measure(void **state)
{
    (void)state;
    const struct part storage = {"a/data/0", six, sizeof six};
    write_deflated("a/data.pkl", SIX ".", sizeof(SIX ".") - 1, &storage);
    assert_ok(open_all());
    size_t length = 6 << 20;
    char *nones = arena_alloc(&a, length);
    memset(nones, 'N', length);
    write_deflated("a/data.pkl", nones, length, &storage);
    assert_fails(open_all(), ERR_CORRUPT, "x.pt: entry data.pkl: 6291456 bytes, at most ");
}

/* ---- refusals ---- */

static void storages_are_held_against_their_entries(void **state)
{
    (void)state;
    WRITE_PICKLE(V2 "(" ID("FloatStorage", "0", "\x05") "K\0))" HOOKS "tR.");
    assert_fails(
        open_all(), ERR_CORRUPT,
        "x.pt: data.pkl: opcode 0x51 at byte 84: storage 0: entry a/data/0 has 24 bytes, 5 "
        "elements of FloatStorage take 20");
    WRITE_PICKLE(V2 "(" ID("FloatStorage", "7", "\x06") "K\0))" HOOKS "tR.");
    assert_fails(open_all(), ERR_CORRUPT, "storage 7 has no entry a/data/7");
    WRITE_PICKLE(V2 "(" ID("FloatStorage", "/", "\x06") "K\0))" HOOKS "tR.");
    assert_fails(open_all(), ERR_CORRUPT, "storage key / is not a plain name");
    WRITE_PICKLE("(" SIX V2 "(" ID("LongStorage", "0", "\x03") "K\0))" HOOKS "tRt.");
    assert_fails(open_all(), ERR_CORRUPT,
                 "storage 0: LongStorage of 3 elements, earlier FloatStorage of 6");
}

static void a_broken_tensor_is_named_where_its_key_is_known(void **state)
{
    (void)state;
    WRITE_PICKLE("}X\6\0\0\0lm\n_wt" V2
                 "(" ID("FloatStorage", "0", "\x06") "K\0K\7\x85K\1\x85" HOOKS "tRs.");
    assert_fails(open_all(), ERR_CORRUPT, "lm\\x0a_wt: a tensor of shape [7]");
}

#define FROM_TYPE(function)                                                                        \
    "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n" function                             \
    "\nctorch\nDTensor\nN\x85N}X\x0D\0\0\0_local_tensor" SIX "s\x86tR"

static void tensors_that_are_not_plain_are_refused_only_where_they_are_wanted(void **state)
{
    (void)state;
    struct torch_file t;
    WRITE_PICKLE("}(X\1\0\0\0wctorch._utils\n_rebuild_sparse_tensor\n(NN" SIX "tRX\1\0\0\0v" SIX
                 "u.");
    assert_fails(open_all(), ERR_UNSUPPORTED,
                 "x.pt: tensor w: made by torch._utils._rebuild_sparse_tensor, not a plain tensor");
    assert_ok(torch_open(&t, &s, path, 0, UINT64_MAX, &err));
    assert_ok(torch_add_tensor(&t, &s, "v2", value_get(t.root, "v"), &err));
    torch_close(&t);

    WRITE_PICKLE("}X\1\0\0\0w" FROM_TYPE("_rebuild_nested_tensor") "s.");
    assert_fails(open_all(), ERR_UNSUPPORTED,
                 "tensor w: made by torch._utils._rebuild_nested_tensor");
    WRITE_PICKLE("}X\1\0\0\0w" FROM_TYPE("_rebuild_wrapper_subclass") "s.");
    assert_ok(open_all());
    assert_non_null(stored_find(&s, "w._local_tensor"));
}

static void a_file_without_tensors_opens_and_has_none_to_add(void **state)
{
    (void)state;
    WRITE_PICKLE("}X\4\0\0\0stepK\5s.");
    assert_fails(open_all(), ERR_UNSUPPORTED, "x.pt: it has no tensor");
}

static void other_files_are_refused_by_what_they_are(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        const char *message;
    } rows[] = {
#define ROW(literal, message) {literal, sizeof(literal) - 1, message}
        ROW("", "x.pt: an empty file"),
        ROW("version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
        ROW("\n <!DOCTYPE html><html>", "an HTML page"),
        ROW("\x10\0\0\0\0\0\0\0{\"w\":{}}         ", "a safetensors file"),
        ROW("PYTORCH1 and more", "an archive of caffe2"),
        ROW("\x80\4}.", "a plain pickle"),
        ROW("something", "neither a zip archive nor torch's legacy stream"),
#undef ROW
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        strbuf_clear(&file);
        strbuf_add(&file, rows[i].bytes, rows[i].length);
        assert_fails(open_all(), ERR_UNSUPPORTED, rows[i].message);
    }
    strbuf_clear(&file);
    strbuf_add_repeated(&file, 0, 1000);
    memcpy(file.data + 257, "ustar", 5);
    assert_fails(open_all(), ERR_UNSUPPORTED, "a tar file");
}

static void archives_that_torch_would_not_write_are_refused(void **state)
{
    (void)state;
    static const struct {
        struct part part; /* beside data.pkl, data/0 and version */
        const char *message;
    } rows[] = {
        {{"a/constants.pkl", ".", 1}, "a TorchScript archive"},
        {{"a/byteorder", "middle", 6}, "byteorder is neither little nor big"},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct part parts[] = {{"a/data.pkl", SIX ".", sizeof(SIX ".") - 1},
                                     {"a/data/0", six, sizeof six},
                                     {"a/version", "3\n", 2},
                                     rows[i].part};
        write_parts(parts, 4);
        assert_true(open_all() != OK);
        assert_non_null(strstr(err.text, rows[i].message));
    }
    const char *const versions[] = {"0", "11", "3\n\n", "three", "", "3 "};
    for (size_t i = 0; i < COUNT(versions); i++) {
        const struct part parts[] = {{"a/data.pkl", SIX ".", sizeof(SIX ".") - 1},
                                     {"a/data/0", six, sizeof six},
                                     {"a/version", versions[i], strlen(versions[i])}};
        write_parts(parts, 3);
        assert_fails(open_all(), ERR_CORRUPT, "its version is not a number from 1 to 10");
    }
    const struct part parts[] = {{"a/file", "x", 1}};
    write_parts(parts, 1);
    assert_fails(open_all(), ERR_UNSUPPORTED, "a zip archive without a/data.pkl");
}

/* ---- legacy ---- */

#define MAGIC "\x80\2\x8A\x0A\x6C\xFC\x9C\x46\xF9\x20\x6A\xA8\x50\x19."
#define LEGACY_ID(key, numel, view)                                                                \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" key "X\3\0\0\0cpuK" numel view "tQ"
#define LEGACY(object, keys) MAGIC "\x80\2M\xE9\3.\x80\2}." object "." keys "."

static void write_legacy(const char *pickles, size_t length, uint64_t count, size_t data_bytes)
{
    unsigned char number[8];
    strbuf_clear(&file);
    strbuf_add(&file, pickles, length);
    put_le(number, count, 8);
    strbuf_add(&file, number, 8);
    strbuf_add(&file, six, data_bytes);
}

#define LEGACY_SIX V2 "(" LEGACY_ID("k", "\6", "N") "K\0K\2K\3\x86K\3K\1\x86" HOOKS "tR"
/* A view of elements 2 and 3, of which the tensor takes the second. */
#define LEGACY_VIEW                                                                                \
    V2 "(" LEGACY_ID("k", "\6", "X\1\0\0\0vK\2K\2\x87") "K\1K\1\x85K\1\x85" HOOKS "tR"
#define LEGACY_FILE LEGACY("}(X\1\0\0\0w" LEGACY_SIX "X\1\0\0\0v" LEGACY_VIEW "u", "]X\1\0\0\0ka")

static void a_legacy_stream_is_read_with_views(void **state)
{
    (void)state;
    float got[6];
    write_legacy(LEGACY_FILE, sizeof LEGACY_FILE - 1, 6, 24);
    assert_true(torch_matches((const uint8_t *)file.data, 32));
    assert_ok(open_all());
    assert_int_equal(s.num_warnings, 0);
    read_tensor("w", got, sizeof got);
    assert_memory_equal(got, six, sizeof got);
    read_tensor("v", got, sizeof *got);
    assert_true(got[0] == 3);
    strbuf_add_text(&file, "more");
    assert_ok(open_all());
    assert_non_null(strstr(s.warnings[0], "bytes behind the last storage"));
}

static void broken_legacy_streams_are_refused(void **state)
{
    (void)state;
    write_legacy(LEGACY_FILE, sizeof LEGACY_FILE - 1, 60, 24);
    assert_fails(open_all(), ERR_CORRUPT,
                 "storage k: 60 elements before its data, 6 in the pickle");
    write_legacy(LEGACY_FILE, sizeof LEGACY_FILE - 1, 6, 20);
    assert_fails(open_all(), ERR_CORRUPT, "storage k: the file ends after 20 of its 24 bytes");
    write_legacy(LEGACY_FILE, sizeof LEGACY_FILE - 1, 6, 24);
    file.length = sizeof LEGACY_FILE - 1 + 7;
    assert_fails(open_all(), ERR_CORRUPT, "storage k: the file ends before its data");
    static const char none[] = LEGACY("}X\1\0\0\0w" LEGACY_SIX "s", "]");
    write_legacy(none, sizeof none - 1, 6, 24);
    assert_fails(open_all(), ERR_CORRUPT, "storage k is not in the list of storages");
    static const char other[] = LEGACY("}X\1\0\0\0w" LEGACY_SIX "s", "](X\1\0\0\0jX\1\0\0\0ke");
    write_legacy(other, sizeof other - 1, 6, 24);
    assert_fails(open_all(), ERR_CORRUPT, "the list of storages names j, which no tensor uses");
    static const char twice[] = LEGACY("}X\1\0\0\0w" LEGACY_SIX "s", "](X\1\0\0\0kX\1\0\0\0ke");
    write_legacy(twice, sizeof twice - 1, 6, 24);
    assert_fails(open_all(), ERR_CORRUPT, "the list of storages names k twice");
    static const char protocol[] = MAGIC "\x80\2M\xEA\3.";
    write_legacy(protocol, sizeof protocol - 1, 6, 24);
    assert_fails(open_all(), ERR_CORRUPT, "a legacy stream of protocol version 1002, not 1001");
}

/* ---- golden files ---- */

#define HOSTILE "tests/golden/hostile"

static bool accepts(const char *name)
{
    struct torch_file t;
    stored_release(&s);
    stored_init(&s);
    if (torch_open(&t, &s, path_join(&a, HOSTILE, name), 0, UINT64_MAX, &err)) return false;
    enum status st = torch_add_tensors(&t, &s, t.root, "", &err);
    torch_close(&t);
    return st == OK;
}

/* cases.tsv: file, accept or reject, reason, ... */
static void hostile_files_are_accepted_or_refused_as_their_table_says(void **state)
{
    (void)state;
    size_t count = 0;
    assert_ok(file_read_all(HOSTILE "/cases.tsv", 1 << 20, &file, &err));
    for (char *line = strtok(file.data, "\n"); line; line = strtok(NULL, "\n")) {
        size_t length = strcspn(line, "\t");
        if (strncmp(line, "torch/", 6) != 0) continue;
        const char *name = arena_printf(&a, "%.*s", (int)length, line);
        bool expected = strncmp(line + length + 1, "accept", 6) == 0, got = accepts(name);
        if (got != expected)
            fail_msg("%s is %s: %s", name, got ? "accepted" : "refused", got ? "" : err.text);
        count++;
    }
    assert_true(count > 100);
}

/* The six floats 0 to 5 in many guises. */
static void the_hostile_collections_good_files_give_their_values(void **state)
{
    (void)state;
    static const char *const names[] = {
        "valid",        "valid-zip64",           "valid-deflated",
        "valid-legacy", "valid-legacy-by-torch", "valid-torch-save"};
    float got[6];
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_true(accepts(arena_printf(&a, "torch/%s.pt", names[i])));
        read_tensor("w", got, sizeof got);
        assert_memory_equal(got, six, sizeof got);
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_is_written_is_read_in_every_dtype_of_torch),
        TEST(tensors_of_one_key_share_an_entry),
        TEST(an_archive_is_emitted_in_order),
        TEST(items_are_the_archives_of_their_tensor),
        TEST(items_of_no_elements_have_their_header_before_and_the_rest_behind),
        TEST(views_are_pieces_with_offset_and_stride),
        TEST(a_prefix_stands_before_the_path),
        TEST(an_archive_within_a_file_is_opened_at_its_offset),
        TEST(big_endian_data_is_marked),
        TEST(harmless_oddities_are_warned_of),
        TEST(a_wrong_crc_of_the_pickle_is_a_warning_and_zero_is_none),
        TEST(a_deflated_storage_is_a_file_of_its_own),
        TEST(a_deflated_pickle_is_read_but_for_one_that_inflates_past_all_measure),
        TEST(storages_are_held_against_their_entries),
        TEST(a_broken_tensor_is_named_where_its_key_is_known),
        TEST(tensors_that_are_not_plain_are_refused_only_where_they_are_wanted),
        TEST(a_file_without_tensors_opens_and_has_none_to_add),
        TEST(other_files_are_refused_by_what_they_are),
        TEST(archives_that_torch_would_not_write_are_refused),
        TEST(a_legacy_stream_is_read_with_views),
        TEST(broken_legacy_streams_are_refused),
        TEST(hostile_files_are_accepted_or_refused_as_their_table_says),
        TEST(the_hostile_collections_good_files_give_their_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
