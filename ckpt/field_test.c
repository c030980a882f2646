#include "ckpt/field.h"

#include <cjson/cJSON.h>
#include <math.h>

#include "ckpt/model_config.h"
#include "common/count.h"
#include "common/json.h"
#include "tests/testing.h"

// clang-format off
/* Kind, name, and the texts of two things. */
#define THING_FIELDS(X)                               \
    X(BOOL, truth,  "no", "yes")                      \
    X(BOOL, beside, "no", "yes")                      \
    X(UINT, number, "0",  "18446744073709551615")     \
    X(REAL, real,   "0",  "0.1")                      \
    X(TEXT, text,   "-",  "x")
struct thing { THING_FIELDS(FIELD_MEMBER) };
#define ROW(kind, name, ...) FIELD_ROW(struct thing, name),
#define TEXT_OF_NOTHING(kind, name, of_nothing, of_something) of_nothing,
#define TEXT_OF_SOMETHING(kind, name, of_nothing, of_something) of_something,
static const struct field fields[] = {THING_FIELDS(ROW)};
enum { TRUTH, BESIDE, NUMBER, REAL, TEXT, NUM_FIELDS };
static const struct thing nothing, something = {true, true, UINT64_MAX, 0.1, "x"};
static const struct scalar_style style = {3, "yes", "no", "-"};
// clang-format on

static struct arena arena;

static int make_arena(void **state)
{
    (void)state;
    arena_init(&arena);
    return 0;
}

static int release_arena(void **state)
{
    (void)state;
    arena_release(&arena);
    return 0;
}

static void a_member_is_got_and_set_and_its_neighbours_stay(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        struct thing t = nothing;
        field_set(&fields[i], &t, field_get(&fields[i], &something));
        for (size_t k = 0; k < NUM_FIELDS; k++)
            assert_true(field_equal(&fields[k], &t, k == i ? &something : &nothing));
        field_copy(&fields[i], &t, &nothing);
        assert_true(field_equal(&fields[i], &t, &nothing));
    }
    assert_true(field_get(&fields[NUMBER], &something).number == UINT64_MAX);
    assert_string_equal(field_get(&fields[TEXT], &something).text, "x");
}

static void what_is_0_or_null_is_not_given_and_false_is(void **state)
{
    (void)state;
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        assert_true(scalar_is_zero(field_get(&fields[i], &nothing)));
        assert_false(scalar_is_zero(field_get(&fields[i], &something)));
        assert_true(scalar_is_given(field_get(&fields[i], &something)));
        assert_int_equal(scalar_is_given(field_get(&fields[i], &nothing)), i <= BESIDE);
    }
}

static void scalars_are_equal_by_value(void **state)
{
    (void)state;
    char other[] = "x";
    const struct scalar x = {.kind = FIELD_TEXT, .text = "x"}, y = {FIELD_TEXT, {.text = other}};
    const struct scalar none = {.kind = FIELD_TEXT, .text = NULL};
    const struct scalar nan = {.kind = FIELD_REAL, .real = NAN};
    assert_true(scalar_equal(x, y));
    assert_false(scalar_equal(x, none));
    assert_true(scalar_equal(none, none));
    assert_true(scalar_equal(nan, (struct scalar){.kind = FIELD_REAL, .real = 1}));
    assert_true(scalar_equal((struct scalar){.kind = FIELD_REAL, .real = -0.0},
                             (struct scalar){.kind = FIELD_REAL, .real = 0}));
}

static void a_text_is_in_the_style_of_its_reader(void **state)
{
    (void)state;
    static const char *const texts[2][NUM_FIELDS] = {{THING_FIELDS(TEXT_OF_NOTHING)},
                                                     {THING_FIELDS(TEXT_OF_SOMETHING)}};
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        assert_string_equal(scalar_text(field_get(&fields[i], &nothing), &style, &arena),
                            texts[0][i]);
        assert_string_equal(scalar_text(field_get(&fields[i], &something), &style, &arena),
                            texts[1][i]);
    }
    const struct scalar third = {.kind = FIELD_REAL, .real = 1.0 / 3};
    assert_string_equal(scalar_text(third, &style, &arena), "0.333");
}

/* Checks the value that a JSON text sets in each field; NULL: none. */
static void check_json(const char *json, const char *const texts[NUM_FIELDS])
{
    struct error err;
    cJSON *item;
    assert_ok(json_parse(json, strlen(json), JSON_STRICT, &item, &err));
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        struct thing t = something;
        assert_int_equal(field_set_json(&fields[i], &t, item, &arena), texts[i] != NULL);
        assert_int_equal(field_equal(&fields[i], &t, &something), texts[i] == NULL);
        if (texts[i])
            assert_string_equal(scalar_text(field_get(&fields[i], &t), &style, &arena), texts[i]);
    }
    cJSON_Delete(item);
}

static void json_of_another_type_sets_nothing(void **state)
{
    (void)state;
    check_json("false", (const char *[]){"no", "no", NULL, NULL, NULL});
    check_json("7", (const char *[]){NULL, NULL, "7", "7", NULL});
    check_json("7.5", (const char *[]){NULL, NULL, NULL, "7.5", NULL});
    check_json("-7", (const char *[]){NULL, NULL, NULL, "-7", NULL});
    check_json("\"7\"", (const char *[]){NULL, NULL, NULL, NULL, "7"});
    check_json("null", (const char *[]){NULL, NULL, NULL, NULL, NULL});
    check_json("[7]", (const char *[]){NULL, NULL, NULL, NULL, NULL});
    assert_false(field_set_json(&fields[TEXT], NULL, NULL, &arena));
}

static void what_is_written_is_what_is_read(void **state)
{
    (void)state;
    const struct thing full = {true, true, 1 << 20, 0.1, "x"};
    for (size_t i = 0; i < NUM_FIELDS; i++) {
        struct thing of_json = nothing;
        const struct scalar s = field_get(&fields[i], &full);
        cJSON *item = scalar_json(s);
        assert_true(field_set_json(&fields[i], &of_json, item, &arena));
        assert_true(field_equal(&fields[i], &of_json, &full));
        cJSON_Delete(item);
    }
    cJSON *null = scalar_json(field_get(&fields[TEXT], &nothing));
    assert_true(cJSON_IsNull(null));
    cJSON_Delete(null);
}

/* ---- those of models ---- */

static bool matters(const char *name, struct model_config c)
{
    return model_field_find(name)->matters(&c);
}

static void what_features_make_idle_does_not_matter(void **state)
{
    (void)state;
    const struct model_config learned = {.position_embedding_type = "learned_absolute"};
    static const bool some[] = {true, false}, all[] = {true, true};
    static const struct {
        const char *type;
        bool factor, low, original, beta;
    } cases[] = {
        {NULL, false, false, false, false},    {"default", false, false, false, false},
        {"linear", true, false, false, false}, {"dynamic", true, false, true, false},
        {"llama3", true, true, true, false},   {"yarn", true, false, true, true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_config c = {.position_embedding_type = "rope", .rope_type = cases[i].type};
        assert_true(matters("rotary_base", c));
        assert_int_equal(matters("rope_factor", c), cases[i].factor);
        assert_int_equal(matters("rope_low_freq_factor", c), cases[i].low);
        assert_int_equal(matters("rope_original_max_position", c), cases[i].original);
        assert_int_equal(matters("rope_untruncated", c), cases[i].beta);
        c.position_embedding_type = "none";
        assert_false(matters("rope_factor", c));
    }
    assert_false(matters("rotary_base", learned));
    assert_true(matters("hidden_size", learned));
    assert_false(matters("moe_router_topk", (struct model_config){.num_layers = 2}));
    assert_true(matters("ffn_hidden_size", (struct model_config){.num_layers = 2}));
    struct model_config moe = {.num_layers = 2, .num_experts = 4, .moe_layers = some};
    assert_true(matters("moe_router_topk", moe));
    assert_true(matters("ffn_hidden_size", moe));
    moe.moe_layers = all;
    assert_false(matters("ffn_hidden_size", moe));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_member_is_got_and_set_and_its_neighbours_stay),
        cmocka_unit_test(what_is_0_or_null_is_not_given_and_false_is),
        cmocka_unit_test(scalars_are_equal_by_value),
        cmocka_unit_test(a_text_is_in_the_style_of_its_reader),
        cmocka_unit_test(json_of_another_type_sets_nothing),
        cmocka_unit_test(what_is_written_is_what_is_read),
        cmocka_unit_test(what_features_make_idle_does_not_matter),
    };
    return cmocka_run_group_tests_name("field", tests, make_arena, release_arena);
}
