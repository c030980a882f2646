/* Each row of train_rules.json has a command line that it refuses or notes: one
 * that lacks nothing, `without` an option and with those of `try`. */
#include "common/json.h"
#include "common/text.h"
#include "convert/map/embedded.h"
#include "train/cli/testing_train_line.h"

/* Whether the text has a message's parts around {EXPR}, in order. */
static bool has_message(const char *text, const char *message)
{
    for (const char *at = message; *at;) {
        char part[200];
        const size_t length = strcspn(at, "{");
        snprintf(part, sizeof part, "%.*s", (int)length, at);
        text = strstr(text, part);
        if (!text) return false;
        text += length;
        at += length;
        at += *at ? strcspn(at, "}") + 1 : 0;
    }
    return true;
}

/* Whether the line is refused or noted with the message. */
static bool line_has(const char *text, const char *message)
{
    struct line *x = line_of(text);
    const bool has = (x->st && has_message(x->err.text, message)) ||
                     (x->notes.length && has_message(x->notes.data, message));
    line_free(x);
    return has;
}

/* Adds a line without an option (NULL: none) and its values. */
static void add_without(struct strbuf *out, const char *line, const char *option)
{
    const char *at = option ? strstr(line, option) : NULL;
    const char *next = at ? strstr(at + 2, " --") : NULL;
    if (option) assert_non_null(at);
    strbuf_add(out, line, at ? (size_t)(at - line) : strlen(line));
    if (next) strbuf_add_text(out, next);
    strbuf_add_char(out, ' ');
}

/* Adds a text with the option for "{option}". */
static void add_for(struct strbuf *out, const char *text, const char *option)
{
    static const char place[] = "{option}";
    const char *at = option ? strstr(text, place) : NULL;
    strbuf_add(out, text, at ? (size_t)(at - text) : strlen(text));
    if (at) strbuf_printf(out, "%s%s", option, at + strlen(place));
}

/* option: of a rule for several options; else NULL. */
static void check_row(const cJSON *row, const char *base, const char *option)
{
    const char *tried = json_as_text(json_get(row, "try")),
               *why = json_as_text(json_get(row, "why"));
    struct strbuf line = {0}, message = {0};
    add_for(&message, why ? why : json_as_text(json_get(row, "note")), option);
    add_without(&line, base, json_as_text(json_get(row, "without")));
    add_for(&line, tried ? tried : "", option);
    if (!line_has(line.data, message.data))
        fail_msg("%s\nis not refused by: %s", line.data, message.data);
    if (line_has(base, message.data)) fail_msg("%s\nis refused by: %s", base, message.data);
    strbuf_release(&message);
    strbuf_release(&line);
}

static size_t check_rows(const cJSON *rows, const char *base)
{
    size_t count = 0;
    for (const cJSON *row = rows->child; row; row = row->next) {
        const bool of_model = text_equal(json_as_text(json_get(row, "when")), "has_model");
        const cJSON *options = json_get(row, "of");
        if (json_get(row, "rules")) {
            count += check_rows(json_get(row, "rules"), of_model ? MODEL : base);
            continue;
        }
        for (const cJSON *i = options ? options->child : NULL; i; i = i->next)
            check_row(row, base, i->valuestring);
        if (!options) check_row(row, base, NULL);
        count++;
    }
    return count;
}

static void each_rule_refuses_the_line_of_its_row(void **state)
{
    (void)state;
    cJSON *tree = embedded_file_parse("train_rules.json");
    assert_true(check_rows(json_get(tree, "rules"), GOOD) > 70);
    cJSON_Delete(tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_rule_refuses_the_line_of_its_row),
    };
    return cmocka_run_group_tests_name("train_rules", tests, NULL, NULL);
}
