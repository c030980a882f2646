#include "formats/safetensors.h"

#include <unistd.h>

#include "common/count.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct error err;
static char folder[TEMPORARY_PATH];
static char path[sizeof folder + 32];

static void put_u64(unsigned char *to, uint64_t n)
{
    for (int i = 0; i < 8; i++)
        to[i] = (unsigned char)(n >> 8 * i);
}

/* Writes N, the header and `data` zero bytes. */
static void write_file(const char *header, size_t header_bytes, size_t data)
{
    unsigned char length[8];
    FILE *f = fopen(path, "wb");
    put_u64(length, header_bytes);
    fwrite(length, 1, sizeof length, f);
    fwrite(header, 1, header_bytes, f);
    for (size_t i = 0; i < data; i++)
        fputc((int)(i & 0xFF), f);
    fclose(f);
}

static enum status open_header(const char *header, size_t data, struct stored *s,
                               struct safetensors_info *info)
{
    write_file(header, strlen(header), data);
    stored_init(s);
    return safetensors_open(s, path, info, &err);
}

static void accepted(const char *header, size_t data, size_t num_tensors)
{
    struct stored s;
    struct safetensors_info info;
    assert_ok(open_header(header, data, &s, &info));
    assert_int_equal(s.num_tensors, num_tensors);
    stored_release(&s);
}

static void refused(const char *header, size_t data, const char *why)
{
    struct stored s;
    struct safetensors_info info;
    err.text[0] = '\0';
    enum status st = open_header(header, data, &s, &info);
    stored_release(&s);
    if (st != ERR_CORRUPT || !strstr(err.text, why) || !strstr(err.text, path))
        fail_msg("%s: %d \"%s\" lacks \"%s\"", header, (int)st, err.text, why);
}

static void tensors_lie_where_the_header_says(void **state)
{
    (void)state;
    struct stored s;
    struct safetensors_info info;
    const char *header = "{\"__metadata__\":{\"format\":\"pt\"},"
                         "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[4,16]},"
                         "\"a\":{\"shape\":[],\"data_offsets\":[0,4],\"dtype\":\"F32\"}}";
    assert_ok(open_header(header, 16, &s, &info));
    assert_string_equal(info.format, "pt");
    assert_false(info.dcp_shard);
    assert_int_equal(info.num_tensors, 2);
    const struct stored_tensor *b = stored_find(&s, "b"), *a = stored_find(&s, "a");
    assert_int_equal(b->dtype, DT_BF16);
    assert_int_equal(b->num_dims, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->pieces->offset_bytes, 8 + strlen(header) + 4);
    assert_int_equal(a->num_dims, 0);
    assert_int_equal(stored_tensor_bytes(a), 4);
    struct stored_reader *r = stored_reader_create(&s, 2);
    unsigned char bytes[12];
    assert_ok(stored_read(r, b->pieces->file, b->pieces->offset_bytes, bytes, sizeof bytes, &err));
    assert_int_equal(bytes[0], 4);
    assert_int_equal(bytes[11], 15);
    stored_reader_free(r);
    stored_release(&s);
}

#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void odd_but_valid_files_are_taken(void **state)
{
    (void)state;
    accepted("{}", 0, 0);
    accepted(" \t\r\n{} ", 0, 0);
    accepted("{\"__metadata__\":null}", 0, 0);
    accepted("{\"\":" T("U8", "[3]", "0", "3") "}", 3, 1);
    accepted("{\"z\":" T("F32", "[0,3]", "0", "0") ",\"a\":" T("I8", "[2]", "0", "2") "}", 2, 2);
    accepted("{\"a\":" T("F4", "[4]", "0", "2") "}", 2, 1);
    accepted("{\"a\":" T("F64", "[0,9223372036854775808,4]", "0", "0") "}", 0, 1);
    accepted("{\"a\":{\"x\":[1],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, 1);
    accepted("{\"\\u0061\":" T("U8", "[1]", "0", "1") "}", 1, 1);
    accepted("{\"DCP\":" T("U8", "[1]", "0", "1") ",\"__metadata__\":{}}", 1, 1);
}

static void rules_of_the_reference_are_kept(void **state)
{
    (void)state;
    refused("[]", 0, "not a JSON object");
    refused("{\"a\":1}", 0, "tensor a: its entry is not an object");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "no data_offsets");
    refused("{\"a\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "no shape");
    refused("{\"a\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "no dtype");
    refused("{\"a\":" T("u8", "[1]", "0", "1") "}", 1, "dtype \"u8\" is not known");
    refused("{\"a\":" T("U8", "[1.0]", "0", "1") "}", 1, "not a whole number");
    refused("{\"a\":" T("U8", "[18446744073709551616]", "0", "1") "}", 1, "not a whole number");
    refused("{\"a\":" T("F32", "[9007199254740993]", "0", "4") "}", 4,
            "9007199254740993 elements of F32 need 36028797018963972 bytes, data_offsets give 4");
    refused("{\"a\":" T("U8", "1", "0", "1") "}", 1, "shape is not an array");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1,
            "data_offsets is not [begin, end]");
    refused("{\"a\":" T("U8", "[1]", "1", "2") "}", 2, "the data before it ends at 0");
    refused("{\"a\":" T("U8", "[2]", "0", "2") ",\"b\":" T("U8", "[1]", "1", "2") "}", 2,
            "tensor b: data_offsets [1, 2], the data before it ends at 2");
    refused("{\"a\":" T("U8", "[1]", "0", "1") ",\"b\":" T("U8", "[1]", "2", "3") "}", 3,
            "tensor b: data_offsets [2, 3], the data before it ends at 1");
    refused("{\"a\":" T("U8", "[1]", "1", "0") "}", 1, "tensor a");
    refused("{\"a\":" T("F32", "[9223372036854775808,4,0]", "0", "0") "}", 0, "overflows");
    refused("{\"a\":" T("F32", "[2,9223372036854775807]", "0", "0") "}", 0, "overflows");
    refused("{\"a\":" T("F4", "[3]", "0", "1") "}", 1, "not a whole number of bytes");
    refused("{\"a\":" T("U8", "[2]", "0", "2") "}", 1, "truncated");
    refused("{\"a\":" T("U8", "[1]", "0", "1") "}", 3, "2 bytes behind the last tensor");
    refused("{\"a\":" T("U8", "[1]", "0", "1") ",\"a\":" T("U8", "[1]", "1", "2") "}", 2, "twice");
    refused("{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ is not a string");
    refused("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
}

static void what_is_no_safetensors_is_called_by_its_name(void **state)
{
    (void)state;
    struct stored s;
    struct safetensors_info info;
    static const struct {
        const char *content, *why;
    } files[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "Git LFS pointer"},
        {"PK\x03\x04 and more bytes of it", "zip archive"},
        {"<!DOCTYPE html><html>", "HTML page"},
        {"short", "5 bytes; a safetensors header needs 8"},
        {"12345678", "at most 100000000"},
    };
    for (size_t i = 0; i < COUNT(files); i++) {
        FILE *f = fopen(path, "wb");
        fputs(files[i].content, f);
        fclose(f);
        stored_init(&s);
        assert_fails(safetensors_open(&s, path, &info, &err), ERR_CORRUPT, files[i].why);
        stored_release(&s);
    }
}

static void one_ranks_shards_are_told_from_whole_tensors(void **state)
{
    (void)state;
    struct stored s;
    struct safetensors_info info;
    assert_ok(open_header(
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"{}\"},\"a\":" T("U8", "[1]", "0", "1") "}", 1,
        &s, &info));
    assert_true(info.dcp_shard);
    stored_release(&s);
}

/* A layout opens again with every tensor at its place, aligned to its size. */
static void layouts_are_what_the_reader_reads(void **state)
{
    (void)state;
    const uint64_t one[] = {5}, two[] = {3, 7}, none[] = {0};
    struct safetensors_out tensors[] = {
        {"b", DT_U8, 1, one, 0},   {"z", DT_BF16, 2, two, 0},  {"a", DT_F64, 0, NULL, 0},
        {"y", DT_BF16, 1, one, 0}, {"\"\n", DT_I8, 1, one, 0}, {"empty", DT_F32, 1, none, 0},
    };
    struct strbuf head = {0};
    uint64_t bytes;
    assert_ok(safetensors_layout(tensors, 6, &head, &bytes, &err));
    assert_int_equal(head.length % 8, 0);
    assert_string_equal(tensors[0].name, "a");
    assert_string_equal(tensors[2].name, "y");
    assert_string_equal(tensors[3].name, "z");
    write_file(head.data + 8, head.length - 8, bytes - head.length);
    struct stored s;
    struct safetensors_info info;
    stored_init(&s);
    assert_ok(safetensors_open(&s, path, &info, &err));
    assert_int_equal(s.num_tensors, 6);
    for (size_t i = 0; i < 6; i++) {
        const struct stored_tensor *t = stored_find(&s, tensors[i].name);
        assert_int_equal(t->pieces->offset_bytes, tensors[i].offset_bytes);
        assert_int_equal(tensors[i].offset_bytes % dtype_bytes(tensors[i].dtype), 0);
    }
    stored_release(&s);
    strbuf_release(&head);
}

static void dtypes_without_a_name_are_not_written(void **state)
{
    (void)state;
    struct safetensors_out t = {"a", DT_C128, 0, NULL, 0};
    struct strbuf head = {0};
    uint64_t bytes;
    assert_fails(safetensors_layout(&t, 1, &head, &bytes, &err), ERR_UNSUPPORTED,
                 "safetensors has no dtype C128");
    strbuf_release(&head);
}

static int set_up(void **state)
{
    (void)state;
    if (!temporary_folder(folder)) return -1;
    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors_lie_where_the_header_says),
        cmocka_unit_test(odd_but_valid_files_are_taken),
        cmocka_unit_test(rules_of_the_reference_are_kept),
        cmocka_unit_test(what_is_no_safetensors_is_called_by_its_name),
        cmocka_unit_test(one_ranks_shards_are_told_from_whole_tensors),
        cmocka_unit_test(layouts_are_what_the_reader_reads),
        cmocka_unit_test(dtypes_without_a_name_are_not_written),
    };
    return cmocka_run_group_tests_name("safetensors", tests, set_up, tear_down);
}
