#include "common/result.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/json.h"
#include "common/version.h"

#include <cmocka.h> /* (fail) is ours, fail its macro */

static char printed[4096];

/* The call's output on stdout. */
static void capture(void (*call)(void))
{
    fflush(stdout);
    int old = dup(STDOUT_FILENO), file = memfd_create("captured", 0);
    assert_true(old >= 0 && file >= 0 && dup2(file, STDOUT_FILENO) >= 0);
    call();
    fflush(stdout);
    ssize_t n = pread(file, printed, sizeof printed - 1, 0);
    assert_true(n >= 0 && dup2(old, STDOUT_FILENO) >= 0);
    printed[n] = '\0';
    close(old);
    close(file);
}

/* The object as one line, without the time. */
static void assert_printed(const char *fields)
{
    struct error err;
    cJSON *o;
    struct strbuf text = {0}, want = {0};
    assert_int_equal(json_parse(printed, strlen(printed), 0, &o, &err), OK);
    assert_non_null(json_get(o, "seconds"));
    cJSON_DeleteItemFromObjectCaseSensitive(o, "seconds");
    json_print(&text, o, -1);
    strbuf_printf(&want, "{\"ferry\":\"%s\",\"schema\":%d,\"command\":\"x\",%s}", ferry_version,
                  RESULT_SCHEMA, fields);
    assert_string_equal(text.data, want.data);
    strbuf_release(&text);
    strbuf_release(&want);
    cJSON_Delete(o);
}

static cJSON *one_field(const char *value)
{
    cJSON *o = cJSON_CreateObject();
    json_add_text(o, "field", value);
    return o;
}

static void tell_of_no_numbers(void)
{
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "list");
    cJSON_AddItemToArray(list, json_new_double(NAN));
    cJSON_AddItemToArray(list, json_new_double(-INFINITY));
    cJSON_AddItemToArray(list, json_new_double(0.5));
    result_begin("x");
    result_set(o);
    result_end(OK, &(struct error){.code = OK});
}

static void tell_of_nothing(void)
{
    result_begin("x");
    result_end(OK, &(struct error){.code = OK});
}

static void tell_twice(void)
{
    result_begin("x");
    result_set(one_field("first"));
    result_set(one_field("second"));
    result_end(DIFFERENT, &(struct error){.code = DIFFERENT, .text = "no error"});
}

static void fail_later(void)
{
    result_begin("x");
    result_set(one_field("known"));
    result_end(ERR_IO, &(struct error){.code = ERR_IO, .text = "disk \xff\n"});
}

static void stream(void)
{
    result_begin("x");
    result_stream_field("a");
    printf("[1, 2]");
    result_stream_field("b \"c\"");
    printf("{}");
    result_end(ERR_CORRUPT, &(struct error){.code = ERR_CORRUPT, .text = "cut"});
}

static void be_silent(void)
{
    result_set(one_field("nobody asked"));
    result_end(OK, &(struct error){.code = OK});
    result_begin("x");
    result_silence();
    result_set(one_field("another rank answers"));
    result_stream_field("a");
    result_end(OK, &(struct error){.code = OK});
}

static void what_is_told_stands_between_head_and_tail(void **state)
{
    (void)state;
    capture(tell_of_nothing);
    assert_printed("\"exit_code\":0,\"error\":null");
    capture(tell_twice);
    assert_printed("\"field\":\"second\",\"exit_code\":1,\"error\":null");
    capture(fail_later);
    assert_printed("\"field\":\"known\",\"exit_code\":4,\"error\":\"disk \xEF\xBF\xBD\\n\"");
}

static void what_is_not_finite_is_null(void **state)
{
    (void)state;
    capture(tell_of_no_numbers);
    assert_printed("\"list\":[null,null,0.5],\"exit_code\":0,\"error\":null");
}

static void what_does_not_fit_memory_is_printed_field_by_field(void **state)
{
    (void)state;
    capture(stream);
    assert_printed("\"a\":[1,2],\"b \\\"c\\\"\":{},\"exit_code\":5,\"error\":\"cut\"");
}

static void who_is_not_asked_says_nothing(void **state)
{
    (void)state;
    capture(be_silent);
    assert_string_equal(printed, "");
    assert_false(result_is_wanted());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_told_stands_between_head_and_tail),
        cmocka_unit_test(what_is_not_finite_is_null),
        cmocka_unit_test(what_does_not_fit_memory_is_printed_field_by_field),
        cmocka_unit_test(who_is_not_asked_says_nothing),
    };
    return cmocka_run_group_tests_name("result", tests, NULL, NULL);
}
