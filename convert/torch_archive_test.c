#include "convert/torch_archive.h"

#include <libdeflate.h>

#include "ckpt/executor.h"
#include "convert/testing_convert.h"

/* A catalog with one tensor in memory, and a plan of one archive. */
struct fixture {
    struct catalog catalog;
    struct plan plan;
    struct torch_archive archive;
    struct tensor *tensor;
};

enum { ROWS = 3, COLUMNS = 5 };
static float elements[ROWS * COLUMNS];

static void open_plan(struct fixture *x)
{
    const uint64_t shape[] = {ROWS, COLUMNS};
    for (int i = 0; i < ROWS * COLUMNS; i++)
        elements[i] = (float)i + 0.5f;
    catalog_init(&x->catalog, &scratch);
    assert_ok(catalog_add(&x->catalog, "t", DT_F32, 2, shape, &x->tensor, &err));
    const struct piece piece = {.origin = ORIGIN_MEMORY, .dtype = DT_F32, .memory = elements};
    const struct pair all = pair_whole(0, 0, x->tensor->numel);
    tensor_add_piece(&scratch, x->tensor, &piece, &all);
    plan_init(&x->plan, &x->catalog);
    archive_begin(&x->archive, &x->plan, "rank/file.pt");
}

static void close_plan(struct fixture *x)
{
    archive_release(&x->archive);
    plan_release(&x->plan);
    catalog_release(&x->catalog);
}

/* A segment that has the tensor. */
static struct value *add_tensor(struct fixture *x, const char *name)
{
    uint32_t segment;
    struct tensor *same = x->tensor;
    if (strcmp(name, "t")) { /* each is carried once */
        assert_ok(catalog_add(&x->catalog, name, DT_F32, 2, x->tensor->shape, &same, &err));
        x->tensor = catalog_find(&x->catalog, "t");
        tensor_add_pieces(&scratch, same, x->tensor);
    }
    struct value *v = archive_tensor(&x->archive, DT_F32, 2, same->shape, &segment);
    const struct pair all = pair_whole(0, 0, ROWS * COLUMNS);
    plan_add_piece(&x->plan, same, segment, &all);
    return v;
}

static const char *write_file(struct fixture *x, const struct value *root)
{
    const struct executor_options o = {.threads = 1};
    struct executor_result result;
    assert_ok(archive_lay_out(&x->archive, "file", root, &err));
    assert_ok(plan_finish(&x->plan, &err));
    assert_ok(executor_run(&x->plan, scratch_folder, &o, &result, &err));
    return in_scratch("rank/file.pt");
}

static double number_of(const char *path, const struct torch_file *t, const char *key)
{
    double out;
    const struct value *tensor = value_get(t->root, key);
    assert_ok(torch_numbers(path, 0, UINT64_MAX, &tensor, 1, &out, &err));
    return out;
}

static void open_file(struct torch_file *t, struct stored *s, const char *path)
{
    stored_init(s);
    assert_ok(torch_open(t, s, path, 0, UINT64_MAX, &err));
    assert_int_equal(s->num_warnings, 0);
}

/* Each storage has the CRC-32 that the directory says. */
static void check_crcs(const struct torch_archive *x, const char *path)
{
    struct strbuf file = {0};
    assert_ok(file_read_all(path, 1 << 20, &file, &err));
    assert_int_equal(file.length, x->out.total_bytes);
    for (size_t i = 0; i < x->out.num_storages; i++) {
        const struct torch_out_storage *s = &x->out.storages[i];
        assert_int_equal(libdeflate_crc32(0, file.data + s->data_offset, s->size_bytes), s->crc);
    }
    strbuf_release(&file);
}

static void check_elements(const struct torch_file *t, struct stored *s, const char *key)
{
    float found[ROWS * COLUMNS];
    assert_ok(torch_add_tensor((struct torch_file *)t, s, key, value_get(t->root, key), &err));
    const struct stored_tensor *x = stored_find(s, key);
    struct stored_reader *r = stored_reader_create(s, 1);
    assert_int_equal(x->num_dims, 2);
    assert_int_equal(x->shape[1], COLUMNS);
    assert_ok(stored_read(r, x->pieces->file, x->pieces->offset_bytes, found, sizeof found, &err));
    assert_memory_equal(found, elements, sizeof found);
    stored_reader_free(r);
}

/* ---- tests ---- */

static void segments_and_known_bytes_are_in_one_file(void **state)
{
    (void)state;
    static const float seven = 7;
    static const int64_t eight = 8;
    struct fixture x;
    struct torch_file t;
    struct stored s;
    open_plan(&x);
    struct value *root = value_dict(&scratch);
    value_dict_add(&scratch, root, "seven", archive_bytes(&x.archive, DT_F32, 0, NULL, &seven));
    value_dict_add(&scratch, root, "first", add_tensor(&x, "t"));
    value_dict_add(&scratch, root, "eight", archive_bytes(&x.archive, DT_I64, 0, NULL, &eight));
    value_dict_add(&scratch, root, "second", add_tensor(&x, "u"));
    const char *path = write_file(&x, root);
    open_file(&t, &s, path);
    assert_true(number_of(path, &t, "seven") == 7 && number_of(path, &t, "eight") == 8);
    check_elements(&t, &s, "first");
    check_elements(&t, &s, "second");
    check_crcs(&x.archive, path);
    torch_close(&t);
    stored_release(&s);
    close_plan(&x);
}

/* The pickle may name the storages in another order than that in which they
 * were added. */
static void storages_are_found_by_their_key(void **state)
{
    (void)state;
    static const float numbers[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    struct fixture x;
    struct torch_file t;
    struct stored s;
    struct value *values[12], *root = value_dict(&scratch);
    open_plan(&x);
    for (int i = 0; i < 12; i++)
        values[i] = archive_bytes(&x.archive, DT_F32, 0, NULL, &numbers[i]);
    value_dict_add(&scratch, root, "tensor", add_tensor(&x, "t"));
    for (int i = 12; i-- > 0;)
        value_dict_add(&scratch, root, arena_printf(&scratch, "%d", i), values[i]);
    const char *path = write_file(&x, root);
    open_file(&t, &s, path);
    for (int i = 0; i < 12; i++)
        assert_true(number_of(path, &t, arena_printf(&scratch, "%d", i)) == numbers[i]);
    check_elements(&t, &s, "tensor");
    check_crcs(&x.archive, path);
    torch_close(&t);
    stored_release(&s);
    close_plan(&x);
}

static void an_archive_that_was_not_laid_out_can_be_released(void **state)
{
    (void)state;
    struct fixture x;
    open_plan(&x);
    add_tensor(&x, "t");
    close_plan(&x);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, scratch_begin, scratch_end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(segments_and_known_bytes_are_in_one_file),
        TEST(storages_are_found_by_their_key),
        TEST(an_archive_that_was_not_laid_out_can_be_released),
    };
    return cmocka_run_group_tests_name("torch_archive", tests, NULL, NULL);
}
