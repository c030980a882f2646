#include "convert/format.h"

#include "common/count.h"
#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct error err;

static void only_formats_that_are_written_are_offered_so(void **state)
{
    (void)state;
#define WRITES(row) assert_non_null(format_##row.target);
#define READS(row) assert_null(format_##row.target);
#define NO_ROW(word, row)
    FORMATS(WRITES, WRITES, READS, NO_ROW)
}

static void every_name_that_is_offered_finds_its_row(void **state)
{
    (void)state;
#define ROW(row)                                                                                   \
    assert_ptr_equal(format_find(#row), &format_##row);                                            \
    assert_string_equal(format_##row.name, #row);                                                  \
    assert_true(format_##row.source &&format_##row.contents);
#define WORD(word, row) assert_ptr_equal(format_find(#word), &format_##row);
    FORMATS(ROW, ROW, ROW, WORD)
    assert_null(format_find("safetensor"));
}

/* Without root_signs, a root could not be told from a folder of the user's. */
static void formats_with_iterations_tell_their_roots(void **state)
{
    (void)state;
#define TELLS(row)                                                                                 \
    assert_int_equal(!!(format_##row.has & FORMAT_ITERATIONS), format_##row.root_signs != NULL);
#define NOTHING(word, row)
    FORMATS(TELLS, TELLS, TELLS, NOTHING)
}

/* Files are added to a folder one after the other. Each row: the next
 * file, and properties of the format that the folder is recognised as then. */
static void a_folder_is_recognised_by_what_lies_in_it(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        unsigned has; /* 0: not recognised */
    } entries[] = {
        {"README.txt", 0},
        {"config.json", FORMAT_CONFIG_JSON},
        {"adapter_config.json", 0}, /* without weights, the folder belongs to another program */
        {"model.safetensors", FORMAT_CONFIG_JSON},
        {"mp_rank_00/model_optim_rng.pt", FORMAT_ARGS | FORMAT_ITERATIONS},
    };
    struct arena a;
    char folder[TEMPORARY_PATH];
    arena_init(&a);
    assert_true(temporary_folder(folder));
    for (size_t i = 0; i < COUNT(entries); i++) {
        const char *path = path_join(&a, folder, entries[i].name);
        assert_ok(folder_create(path_parent(&a, path), &err));
        assert_ok(file_write_all(path, "{}", 2, false, &err));
        const struct format *f = format_of_path(folder, NULL, NULL);
        if (!f != !entries[i].has || (f && (f->has & entries[i].has) != entries[i].has))
            fail_msg("with %s it is %s", entries[i].name, f ? f->name : "nothing");
    }
    assert_ok(path_remove(folder, &err));
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_formats_that_are_written_are_offered_so),
        cmocka_unit_test(every_name_that_is_offered_finds_its_row),
        cmocka_unit_test(formats_with_iterations_tell_their_roots),
        cmocka_unit_test(a_folder_is_recognised_by_what_lies_in_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
