#include "formats/hub_cache.h"

#include <stdlib.h>

#include "common/count.h"
#include "tests/testing.h"

static void names_are_parsed(void **state)
{
    static const struct {
        const char *text, *model, *revision;
    } good[] = {
        {"meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-1B", "main"},
        {"gpt2", "gpt2", "main"},
        {"a/b@refs/pr/1", "a/b", "refs/pr/1"},
        {"gpt2@e7da7f2", "gpt2", "e7da7f2"},
    };
    static const char *const bad[] = {"",           "a/",   "/a",   "./a",    "a/b/c",
                                      "a b",        "@a",   "a/b@", "a/b@/c", "a/b@../c",
                                      "a/b@c/../d", "a/@b", "..",   "a\nb"};
    struct arena a;
    struct hub_name name;
    (void)state;
    arena_init(&a);
    for (size_t i = 0; i < COUNT(good); i++) {
        if (!hub_name_parse(&a, good[i].text, &name)) fail_msg("%s", good[i].text);
        assert_string_equal(name.model, good[i].model);
        assert_string_equal(name.revision, good[i].revision);
    }
    for (size_t i = 0; i < COUNT(bad); i++)
        if (hub_name_parse(&a, bad[i], &name)) fail_msg("%s", bad[i]);
    arena_release(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_parsed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
