#include "formats/hf_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include "common/count.h"
#include "formats/safetensors.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct error err;
static char root[TEMPORARY_PATH];
static char folder[sizeof root + 8];

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    assert_ok(file_write_all(in_folder(name), text, strlen(text), false, &err));
}

/* A file of U8 tensors of one element, named by single letters. */
static void write_tensors(const char *name, const char *letters)
{
    static const uint64_t one[] = {1};
    struct safetensors_out tensors[26];
    char names[26][2];
    struct strbuf head = {0};
    uint64_t bytes;
    size_t n = strlen(letters);
    for (size_t i = 0; i < n; i++) {
        snprintf(names[i], sizeof names[i], "%c", letters[i]);
        tensors[i] = (struct safetensors_out){names[i], DT_U8, 1, one, 0};
    }
    assert_ok(safetensors_layout(tensors, n, &head, &bytes, &err));
    strbuf_add_repeated(&head, 'x', n);
    assert_ok(file_write_all(in_folder(name), head.data, head.length, false, &err));
    strbuf_release(&head);
}

static int fresh_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "%s/model", root);
    return path_remove(folder, &err) || mkdir(folder, 0777) ? -1 : 0;
}

static void opens(size_t num_tensors, size_t num_files, size_t num_warnings)
{
    struct stored s;
    size_t files;
    stored_init(&s);
    assert_ok(hf_folder_open(&s, folder, &files, &err));
    assert_int_equal(s.num_tensors, num_tensors);
    assert_int_equal(files, num_files);
    assert_int_equal(s.num_warnings, num_warnings);
    stored_release(&s);
}

static void is_refused(enum status status, const char *why)
{
    struct stored s;
    stored_init(&s);
    assert_fails(hf_folder_open(&s, folder, NULL, &err), status, why);
    stored_release(&s);
}

static const char two_shards[] = "{\"metadata\":{\"total_size\":1},\"weight_map\":{"
                                 "\"a\":\"model-00001-of-00002.safetensors\","
                                 "\"b\":\"model-00002-of-00002.safetensors\"}}";

static void write_two_shards(void)
{
    write_tensors("model-00001-of-00002.safetensors", "a");
    write_tensors("model-00002-of-00002.safetensors", "b");
}

static void a_single_file_goes_before_an_index(void **state)
{
    (void)state;
    write_tensors("model.safetensors", "abc");
    write_tensors("other.safetensors", "xyz");
    opens(3, 1, 0);
    write_text("model.safetensors.index.json", two_shards);
    opens(3, 1, 1);
}

static void an_index_names_the_shards(void **state)
{
    (void)state;
    write_two_shards();
    write_text("model.safetensors.index.json", two_shards);
    opens(2, 2, 0);
}

static void complete_sets_do_without_an_index(void **state)
{
    (void)state;
    write_two_shards();
    opens(2, 2, 0);
    unlink(in_folder("model-00002-of-00002.safetensors"));
    is_refused(ERR_CORRUPT, "shard 2 of 2 and model.safetensors.index.json are missing");
    write_tensors("model-00001-of-00003.safetensors", "c");
    is_refused(ERR_CORRUPT, "two sets");
}

static void index_and_files_must_agree(void **state)
{
    (void)state;
    write_two_shards();
    write_text("model.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00001-of-"
               "00002.safetensors\"}}");
    is_refused(ERR_CORRUPT, "but no file has it");
    path_remove(in_folder("model.safetensors.index.json"), &err);
    write_tensors("model-00001-of-00002.safetensors2", "");
    unlink(in_folder("model-00001-of-00002.safetensors"));
    write_tensors("model-00001-of-00002.safetensors", "ac");
    write_text("model.safetensors.index.json", two_shards);
    opens(2, 2, 1); /* c is left out, with a warning */
    unlink(in_folder("model-00002-of-00002.safetensors"));
    is_refused(ERR_IO, "missing, but named by");
    assert_int_equal(symlink("nowhere", in_folder("model-00002-of-00002.safetensors")), 0);
    is_refused(ERR_IO, "a link to a missing file");
}

static void a_tensor_in_two_shards_is_refused(void **state)
{
    (void)state;
    write_tensors("model-00001-of-00002.safetensors", "ab");
    write_tensors("model-00002-of-00002.safetensors", "b");
    write_text("model.safetensors.index.json", two_shards);
    is_refused(ERR_CORRUPT, "b");
    unlink(in_folder("model-00002-of-00002.safetensors"));
    write_tensors("model-00002-of-00002.safetensors", "c");
    is_refused(ERR_CORRUPT, "the index has b in model-00002-of-00002.safetensors, but it is in "
                            "model-00001-of-00002.safetensors");
}

static void names_that_leave_the_folder_are_refused(void **state)
{
    (void)state;
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../x.safetensors\"}}");
    is_refused(ERR_CORRUPT, "outside the folder");
    unlink(in_folder("model.safetensors.index.json"));
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}");
    is_refused(ERR_CORRUPT, "outside the folder");
}

static void broken_indexes_are_refused(void **state)
{
    (void)state;
    static const char *const texts[][2] = {
        {"{\"weight_map\":", "index.json"},
        {"{}", "no object weight_map"},
        {"{\"weight_map\":[]}", "no object weight_map"},
        {"{\"weight_map\":{}}", "is empty"},
        {"{\"weight_map\":{\"a\":1}}", "is not a string"},
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        write_text("model.safetensors.index.json", texts[i][0]);
        is_refused(ERR_CORRUPT, texts[i][1]);
        unlink(in_folder("model.safetensors.index.json"));
    }
}

static void nothing_or_half_a_download_is_said_so(void **state)
{
    (void)state;
    is_refused(ERR_IO, "its weights are missing: no model.safetensors, index, numbered shards");
    assert_false(hf_folder_has_weights(folder));
    mkdir(in_folder("model.safetensors"), 0777);
    is_refused(ERR_CORRUPT, "model.safetensors: a folder, expected a file of weights");
    rmdir(in_folder("model.safetensors"));
    write_text("abc.incomplete", "");
    is_refused(ERR_IO, "only abc.incomplete: the download did not finish");
}

/* ---- the optimizer ---- */

/* Opens the model, then the states beside it; these add num_tensors. */
static enum status open_both(struct stored *s, size_t num_tensors, size_t num_files)
{
    size_t model, files = 99;
    stored_init(s);
    assert_ok(hf_folder_open(s, folder, NULL, &err));
    model = s->num_tensors;
    TRY(hf_folder_open_optimizer(s, folder, &files, &err));
    assert_int_equal(files, num_files);
    assert_int_equal(s->num_tensors - model, num_tensors);
    return OK;
}

static void states_are(size_t num_tensors, size_t num_files)
{
    struct stored s;
    assert_ok(open_both(&s, num_tensors, num_files));
    stored_release(&s);
}

static void states_are_refused(enum status status, const char *why)
{
    struct stored s;
    assert_fails(open_both(&s, 0, 0), status, why);
    stored_release(&s);
}

static void states_are_found_as_weights_are(void **state)
{
    (void)state;
    write_tensors("model.safetensors", "ab");
    states_are(0, 0);
    write_tensors("optimizer-00001-of-00002.safetensors", "x");
    states_are_refused(ERR_CORRUPT, "shard 2 of 2 and optimizer.safetensors.index");
    write_tensors("optimizer-00002-of-00002.safetensors", "yz");
    states_are(3, 2);
    write_text("optimizer.safetensors.index.json",
               "{\"weight_map\":{\"x\":\"optimizer-00001-of-00002.safetensors\"}}");
    states_are(1, 1);
    unlink(in_folder("optimizer-00001-of-00002.safetensors"));
    states_are_refused(ERR_IO, "missing, but named by");
    write_tensors("optimizer.safetensors", "x");
    states_are(1, 1);
    unlink(in_folder("optimizer.safetensors"));
    unlink(in_folder("optimizer.safetensors.index.json"));
    states_are_refused(ERR_CORRUPT, "shard 1 of 2 and ");
}

static void an_index_of_states_names_no_weights(void **state)
{
    (void)state;
    write_tensors("model.safetensors", "ab");
    write_tensors("states.safetensors", "x");
    write_text("optimizer.safetensors.index.json",
               "{\"weight_map\":{\"x\":\"states.safetensors\",\"a\":\"states.safetensors\"}}");
    states_are_refused(ERR_CORRUPT, "the index has a in states.safetensors, but no file has it");
    unlink(in_folder("optimizer.safetensors.index.json"));
    write_text("optimizer.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"model.safetensors\"}}");
    states_are_refused(ERR_CORRUPT, "tensor a: appears twice, first in");
    unlink(in_folder("optimizer.safetensors.index.json"));
    write_text("optimizer.safetensors.index.json",
               "{\"weight_map\":{\"a\":\"../optimizer.safetensors\"}}");
    states_are_refused(ERR_CORRUPT, "outside the folder");
}

static void states_alone_are_no_model(void **state)
{
    (void)state;
    write_tensors("optimizer.safetensors", "x");
    assert_false(hf_folder_has_weights(folder));
    is_refused(ERR_IO, "its weights are missing");
}

static void a_hub_cache_is_followed_to_its_snapshot(void **state)
{
    (void)state;
    struct arena a;
    arena_init(&a);
    mkdir(in_folder("refs"), 0777);
    mkdir(in_folder("snapshots"), 0777);
    mkdir(in_folder("snapshots/abc"), 0777);
    mkdir(in_folder("blobs"), 0777);
    write_text("refs/main", "abc\n");
    write_tensors("blobs/1", "a");
    assert_int_equal(symlink("../../blobs/1", in_folder("snapshots/abc/model.safetensors")), 0);
    assert_string_equal(hf_folder_resolve(&a, folder) + strlen(folder), "/snapshots/abc");
    struct stored s;
    stored_init(&s);
    assert_ok(hf_folder_open(&s, hf_folder_resolve(&a, folder), NULL, &err));
    assert_int_equal(s.num_tensors, 1);
    stored_release(&s);
    arena_release(&a);
}

static void shards_are_cut_as_hugging_face_cuts_them(void **state)
{
    (void)state;
    /* 12 is larger than a shard may be: it gets one at once, before the open
     * one is closed. */
    const uint64_t bytes[] = {4, 5, 12, 1, 3, 10, 2};
    const uint32_t want[] = {1, 1, 0, 1, 2, 3, 4};
    uint32_t shard[7];
    assert_int_equal(hf_split_shards(bytes, 7, 10, shard), 5);
    for (int i = 0; i < 7; i++)
        assert_int_equal(shard[i], want[i]);
    assert_int_equal(hf_split_shards(bytes, 7, 1000, shard), 1);
    assert_int_equal(hf_split_shards(bytes, 0, 10, shard), 0);
    struct arena a;
    arena_init(&a);
    assert_string_equal(hf_shard_name(&a, hf_model, 1, 7), "model-00002-of-00007.safetensors");
    assert_string_equal(hf_shard_name(&a, hf_optimizer, 0, 1), "optimizer.safetensors");
    assert_string_equal(hf_index_name(&a, hf_model), "model.safetensors.index.json");
    arena_release(&a);
}

static int set_up(void **state)
{
    (void)state;
    return temporary_folder(root) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    return (int)path_remove(root, &err);
}

#define FRESH(test) cmocka_unit_test_setup(test, fresh_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        FRESH(a_single_file_goes_before_an_index),
        FRESH(an_index_names_the_shards),
        FRESH(complete_sets_do_without_an_index),
        FRESH(index_and_files_must_agree),
        FRESH(a_tensor_in_two_shards_is_refused),
        FRESH(names_that_leave_the_folder_are_refused),
        FRESH(broken_indexes_are_refused),
        FRESH(nothing_or_half_a_download_is_said_so),
        FRESH(states_are_found_as_weights_are),
        FRESH(an_index_of_states_names_no_weights),
        FRESH(states_alone_are_no_model),
        FRESH(a_hub_cache_is_followed_to_its_snapshot),
        FRESH(shards_are_cut_as_hugging_face_cuts_them),
    };
    return cmocka_run_group_tests_name("hf_folder", tests, set_up, tear_down);
}
