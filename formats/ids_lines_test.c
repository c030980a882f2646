#include "formats/ids_lines.h"

#include "tests/folder.h"

/* The documents read, as text: "1: 1 2/0 3; ", "/0" where the mask is 0. */
static char seen[1024];

static enum status take(void *context, const struct ids_line *line, struct error *error)
{
    size_t at = strlen(seen);
    (void)context;
    (void)error;
    at += (size_t)snprintf(seen + at, sizeof seen - at, "%d%s:", (int)line->number,
                           line->has_mask ? "m" : "");
    for (size_t i = 0; i < line->count; i++)
        at += (size_t)snprintf(seen + at, sizeof seen - at, " %d%s", line->ids[i],
                               line->mask[i] ? "" : "/0");
    (void)snprintf(seen + at, sizeof seen - at, "; ");
    return OK;
}

static enum status read_text(const char *text)
{
    const char *path = in_folder("a.jsonl");
    assert_ok(path_remove(path, &err));
    assert_ok(file_write_all(path, text, strlen(text), false, &err));
    seen[0] = '\0';
    return ids_lines_read(path, take, NULL, &err);
}

static void lines_of_each_form_are_read(void **state)
{
    (void)state;
    assert_ok(read_text("{\"ids\": [1, 2]}\n\n  \r\n{\"tokens\": [], \"text\": \"x\"}\n"
                        "{\"loss_mask\": [0, true, false], \"input_ids\": [5, 0, 2147483647]}\n"
                        "{\"ids\": [7, 8], \"labels\": [-100, 8]}")); /* no line end */
    assert_string_equal(seen, "1: 1 2; 4:; 5m: 5/0 0 2147483647/0; 6m: 7/0 8; ");
    assert_ok(read_text(""));
    assert_string_equal(seen, "");
}

static const struct {
    const char *line, *message;
} bad[] = {
    {"{\"ids\": [1, 2}", "column"},
    {"[1, 2]", "not an object such as"},
    {"{\"id\": [1]}", "no list \"ids\", \"input_ids\" or \"tokens\""},
    {"{\"ids\": 3}", "ids is not a list"},
    {"{\"ids\": [1], \"tokens\": [1]}", "two lists of ids, ids and tokens"},
    {"{\"ids\": [1, -2]}", "ids: element 1 is not a token id"},
    {"{\"tokens\": [2147483648]}", "tokens: element 0 is not a token id from 0 to 2147483647"},
    {"{\"ids\": [1.5]}", "element 0 is not a token id"},
    {"{\"ids\": [\"a\"]}", "element 0 is not a token id"},
    {"{\"ids\": [1, 2], \"loss_mask\": [1]}", "loss_mask has 1 elements, but there are 2 ids"},
    {"{\"ids\": [1], \"loss_mask\": [2]}", "loss_mask: element 0 is not 0 or 1"},
    {"{\"ids\": [1], \"loss_mask\": 1}", "loss_mask is not a list"},
    {"{\"ids\": [1], \"labels\": [2]}", "labels: element 0 is not -100 or the id"},
    {"{\"ids\": [1], \"labels\": [1], \"loss_mask\": [1]}", "found both loss_mask and labels"},
    {"{\"ids\": [1]} x", "column"},
};

static void bad_line_is_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *text = arena_printf(&arena, "{\"ids\": [1]}\n\n%s\n", bad[i].line);
        assert_fails(read_text(text), ERR_CORRUPT, "a.jsonl: line 3: ");
        if (!strstr(err.text, bad[i].message))
            fail_msg("%s: \"%s\" lacks \"%s\"", bad[i].line, err.text, bad[i].message);
    }
    assert_fails(ids_lines_read(in_folder("no"), take, NULL, &err), ERR_IO, "no: ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(lines_of_each_form_are_read),
        FOLDER_TEST(bad_line_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
