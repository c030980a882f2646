#include "convert/hf/end_tokens.h"

#include <unistd.h>

#include "common/count.h"
#include "tests/folder.h"

static void put(const char *name, const char *text)
{
    assert_ok(file_replace_all(in_folder(name), text, strlen(text), false, &err));
}

static void assert_tokens(size_t count, const int32_t *ids, const char *from)
{
    struct end_tokens e;
    assert_ok(end_tokens_read(folder, &e, &err));
    assert_int_equal(e.count, count);
    for (size_t i = 0; i < count; i++)
        assert_int_equal(e.ids[i], ids[i]);
    assert_int_equal(end_tokens_of_document(&e), count ? ids[0] : -1);
    assert_true(!from == !e.from);
    if (from) assert_string_equal(e.from, from);
}

static void no_file_and_no_folder_say_nothing(void **state)
{
    (void)state;
    struct end_tokens e;
    assert_ok(end_tokens_read(NULL, &e, &err));
    assert_int_equal(e.count, 0);
    assert_tokens(0, NULL, NULL);
    put("config.json", "{\"eos_token_id\": null}");
    assert_tokens(0, NULL, NULL);
    put("config.json", "{\"eos_token_id\": -1}");
    assert_tokens(0, NULL, NULL);
}

static void a_number_or_a_list(void **state)
{
    (void)state;
    put("config.json", "{\"eos_token_id\": 2}");
    assert_tokens(1, (int32_t[]){2}, "config.json");
    put("config.json", "{\"eos_token_id\": [128001, 128008, 128009]}");
    assert_tokens(3, (int32_t[]){128001, 128008, 128009}, "config.json");
    put("config.json", "{\"model_type\": \"x\", \"text_config\": {\"eos_token_id\": [7]}}");
    assert_tokens(1, (int32_t[]){7}, "config.json");
}

static void the_generation_config_goes_before_the_config(void **state)
{
    (void)state;
    put("config.json", "{\"eos_token_id\": 2}");
    put("generation_config.json", "{\"eos_token_id\": [5, 6]}");
    assert_tokens(2, (int32_t[]){5, 6}, "generation_config.json");
    put("generation_config.json", "{\"do_sample\": true}");
    assert_tokens(1, (int32_t[]){2}, "config.json");
}

static void what_is_no_token_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"\"2\"", "2.5", "[1, null]", "{}", "4294967296", "true"};
    struct end_tokens e;
    for (size_t i = 0; i < COUNT(bad); i++) {
        put("config.json", arena_printf(&arena, "{\"eos_token_id\": %s}", bad[i]));
        assert_fails(end_tokens_read(folder, &e, &err), ERR_CORRUPT,
                     "config.json: eos_token_id is not a token id");
    }
    struct strbuf many = {0};
    for (int i = 0; i <= MAX_END_TOKENS; i++)
        strbuf_printf(&many, "%s%d", i ? "," : "{\"eos_token_id\":[", i);
    strbuf_add_text(&many, "]}");
    put("config.json", many.data);
    assert_fails(end_tokens_read(folder, &e, &err), ERR_CORRUPT, "more than 64 ids");
    strbuf_release(&many);
    put("config.json", "{");
    assert_fails(end_tokens_read(folder, &e, &err), ERR_CORRUPT, "config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(no_file_and_no_folder_say_nothing),
        FOLDER_TEST(a_number_or_a_list),
        FOLDER_TEST(the_generation_config_goes_before_the_config),
        FOLDER_TEST(what_is_no_token_is_refused),
    };
    return cmocka_run_group_tests_name("end_tokens", tests, NULL, NULL);
}
