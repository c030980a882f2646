/* The examples of FIPS 180-2, appendix B. */
#include "common/sha256.h"

#include <string.h>

#include "tests/testing.h"

static void sums_are_those_of_the_standard(void **state)
{
    (void)state;
    char text[SHA256_TEXT];
    struct sha256 *s = sha256_start();
    sha256_add(s, "abc", 3);
    sha256_finish(s, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    s = sha256_start();
    for (int i = 0; i < 1000; i++) {
        char thousand[1000];
        memset(thousand, 'a', sizeof thousand);
        sha256_add(s, thousand, sizeof thousand);
    }
    sha256_finish(s, text);
    assert_string_equal(text, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

static void nothing_has_a_sum(void **state)
{
    (void)state;
    char text[SHA256_TEXT];
    sha256_finish(sha256_start(), text);
    assert_string_equal(text, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_are_those_of_the_standard),
                                       cmocka_unit_test(nothing_has_a_sum)};
    return cmocka_run_group_tests_name("sha256", tests, NULL, NULL);
}
