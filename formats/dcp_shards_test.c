/* Shards of ranks in safetensors files. */
#include <unistd.h>

#include "formats/dcp.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct arena a;
static struct stored s;
static struct error err;
static char folder[TEMPORARY_PATH];

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    stored_init(&s);
    return temporary_folder(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    enum status st = path_remove(folder, &err);
    stored_release(&s);
    arena_release(&a);
    return (int)st;
}

/* Writes the file of a rank (from 1) with `rows` rows of a U8 tensor w [.., 2],
 * all of them `rank`.
 */
static void write_shard(unsigned rank, unsigned rows, const char *sharding)
{
    const char *path =
        arena_printf(&a, "%s/shard-%05u-model-00001-of-00001.safetensors", folder, rank);
    const char *head = arena_printf(
        &a,
        "{\"__metadata__\":{\"DCP_SHARDING_INFO\":\"%s\"},\"w\":{\"dtype\":\"U8\",\"shape\":[%u,2],"
        "\"data_offsets\":[0,%u]}}",
        sharding, rows, 2 * rows);
    struct strbuf bytes = {0};
    const uint64_t length = strlen(head);
    strbuf_add(&bytes, &length, sizeof length);
    strbuf_add_text(&bytes, head);
    strbuf_add_repeated(&bytes, (char)rank, 2 * rows);
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, bytes.data, bytes.length, false, &err));
    strbuf_release(&bytes);
}

#define AT(row) "{\\\"w\\\":{\\\"saved_offsets\\\":[" #row ",0]}}"

static enum status open_folder(void)
{
    stored_release(&s);
    stored_init(&s);
    return dcp_open_shards(&s, folder, &err);
}

static void shards_become_whole_tensors(void **state)
{
    (void)state;
    write_shard(1, 2, AT(0));
    write_shard(2, 1, AT(2));
    write_shard(3, 0, AT(3)); /* a rank without rows */
    write_shard(4, 1, AT(2)); /* one that replicates */
    assert_true(dcp_has_shards(folder));
    assert_ok(open_folder());
    const struct stored_tensor *w = stored_find(&s, "w");
    assert_int_equal(w->shape[0], 3);
    assert_int_equal(w->num_pieces, 2);
    assert_int_equal(w->pieces[1].start[0], 2);
}

static void shards_that_leave_holes_are_refused(void **state)
{
    (void)state;
    write_shard(1, 2, AT(0));
    write_shard(2, 1, AT(3));
    assert_fails(open_folder(), ERR_CORRUPT, "w: its shards cover 6 of 8 elements");
    write_shard(2, 1, AT(2));
    write_shard(4, 1, AT(3));
    assert_fails(open_folder(), ERR_CORRUPT, "a file is missing");
}

static void broken_sharding_is_refused(void **state)
{
    (void)state;
    write_shard(1, 1, "[]");
    assert_fails(open_folder(), ERR_CORRUPT, "DCP_SHARDING_INFO is not an object");
    write_shard(1, 1, "{");
    assert_fails(open_folder(), ERR_CORRUPT, "shard-00001-model-00001-of-00001.safetensors: ");
    write_shard(1, 1, "{}");
    assert_fails(open_folder(), ERR_CORRUPT, "w has no saved_offsets");
    write_shard(1, 1, "{\\\"w\\\":{\\\"saved_offsets\\\":[0]}}");
    assert_fails(open_folder(), ERR_CORRUPT, "w: its saved_offsets are not 2 numbers");
    write_shard(1, 1, AT(18446744073709551615));
    assert_fails(open_folder(), ERR_CORRUPT, " is out of range");
    write_shard(1, 1, AT(9223372036854775807));
    assert_fails(open_folder(), ERR_CORRUPT, "too many elements");
}

static void files_of_torch_open(void **state)
{
    (void)state;
    assert_false(dcp_has_shards(folder));
    assert_ok(dcp_open_shards(&s, "tests/golden/dcp/hf-shards-dp4/ckpt", &err));
    assert_int_equal(s.num_tensors, 21);
    assert_int_equal(stored_find(&s, "lm_head.weight")->shape[0], 41);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(shards_become_whole_tensors),
        TEST(shards_that_leave_holes_are_refused),
        TEST(broken_sharding_is_refused),
        TEST(files_of_torch_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
