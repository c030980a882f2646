#include "formats/sniff.h"

#include "common/count.h"
#include "tests/testing.h"

static const char lfs[] = "a Git LFS pointer (the file itself was not downloaded: git lfs pull)";
static const char pickle[] = "a plain pickle, not written by torch.save";

static void assert_text(const char *got, const char *want)
{
    if (!want)
        assert_null(got);
    else
        assert_string_equal(got ? got : "nothing", want);
}

#define HEAD(text) (text), sizeof(text) - 1

static void a_file_is_told_by_its_first_bytes(void **state)
{
    (void)state;
    static const struct {
        const char *head;
        size_t bytes;
        const char *name, *not_torch;
    } cases[] = {
        {HEAD(""), NULL, "an empty file, not a torch file"},
        {HEAD("version https://git-lfs.github.com/spec/v1"), lfs,
         "a Git LFS pointer; the file itself was not downloaded"},
        {HEAD("version https://"), lfs, NULL},
        {HEAD("version https:/"), NULL, NULL},
        {HEAD("<!DOCTYPE html>"), "an HTML page", "an HTML page, not a torch file"},
        {HEAD("\r\n <?xml"), NULL, "an HTML page, not a torch file"},
        {HEAD("<body"), NULL, NULL},
        {HEAD("<"), NULL, NULL},
        {HEAD("\x08\0\0\0\0\0\0\0{}"), NULL, "a safetensors file, not a torch file"},
        {HEAD("\x80\x02\0\0\0\0\0\0{}"), "a Python pickle", "a safetensors file, not a torch file"},
        {HEAD("\x08\0\0\0\1\0\0\0{}"), NULL, NULL},
        {HEAD("PYTORCH1"), "a caffe2 container",
         "an archive of caffe2, which torch no longer reads"},
        {HEAD("PK\x03\x04"), "a zip archive (torch.save)", NULL},
        {HEAD("\x80\x02\x8A\x0A\x6C"), "a torch.save stream from before PyTorch 1.6", pickle},
        {HEAD("\x80\x01"), NULL, pickle},
        {HEAD("\x80\x05"), "a Python pickle", pickle},
        {HEAD("\x80\x06"), NULL, NULL},
        {HEAD("GGUF"), "a GGUF file", NULL},
        {HEAD("\x28\xB5\x2F\xFD"), "zstd-compressed", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const uint8_t *head = (const uint8_t *)cases[i].head;
        assert_text(sniff_name(head, cases[i].bytes), cases[i].name);
        assert_text(sniff_not_torch(head, cases[i].bytes), cases[i].not_torch);
    }
}

static void a_tar_file_is_told_by_what_stands_far_within(void **state)
{
    (void)state;
    uint8_t head[262] = "name";
    memcpy(head + 257, "ustar", 5);
    assert_text(sniff_not_torch(head, 262), "a tar file: torch before 0.2, or something else");
    assert_text(sniff_not_torch(head, 261), NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_told_by_its_first_bytes),
        cmocka_unit_test(a_tar_file_is_told_by_what_stands_far_within),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
