#include "ckpt/field.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <string.h>

#include "common/json.h"
#include "common/text.h"

static bool json_as_bool(const cJSON *item, bool *out)
{
    *out = cJSON_IsTrue(item);
    return cJSON_IsBool(item);
}

static bool copy_text(struct arena *a, const char *text, const char **out)
{
    *out = text ? arena_copy_text(a, text) : NULL;
    return text != NULL;
}

// clang-format off
/* A row for each kind: its member of struct scalar; expressions to compare
 * scalars x and y, to make text or a JSON item of scalar s (texts in arena a),
 * and to read s from item. */
#define KINDS(X)                                                                                   \
    X(UINT, number,                                                                                \
      /* equal       */ x.number == y.number,                                                          \
      /* text        */ arena_printf(a, "%" PRIu64, s.number),                                         \
      /* JSON        */ json_new_u64(s.number),                                                        \
      /* from JSON   */ json_as_u64(item, &s.number))                                                   \
    X(REAL, real,                                                                                  \
      /* equal       */ !(x.real < y.real) && !(x.real > y.real),                                      \
      /* text        */ arena_printf(a, "%.*g", style->digits, s.real),                                \
      /* JSON        */ json_new_double(s.real),                                                       \
      /* from JSON   */ json_as_double(item, &s.real))                                                   \
    X(BOOL, truth,                                                                                 \
      /* equal       */ x.truth == y.truth,                                                            \
      /* text        */ s.truth ? style->yes : style->no,                                              \
      /* JSON        */ cJSON_CreateBool(s.truth),                                                     \
      /* from JSON   */ json_as_bool(item, &s.truth))                                                   \
    X(TEXT, text,                                                                                  \
      /* equal       */ text_equal(x.text, y.text),                                                     \
      /* text        */ s.text ? s.text : style->none,                                                 \
      /* JSON        */ s.text ? cJSON_CreateString(s.text) : cJSON_CreateNull(),                      \
      /* from JSON   */ copy_text(a, json_as_text(item), &s.text))

/* One column: rows of an array, or cases of a switch. */
#define SIZES(kind, member, ...)                                  [FIELD_##kind] = sizeof((struct scalar *)0)->member,
#define EQUAL(kind, member, equal, ...)                           case FIELD_##kind: return equal;
#define TEXT(kind, member, equal, text, ...)                      case FIELD_##kind: return text;
#define JSON(kind, member, equal, text, json, ...)                case FIELD_##kind: return json;
#define FROM_JSON(kind, member, equal, text, json, is)            case FIELD_##kind: found = is; break;
// clang-format on

/* ---- fields ---- */

static const size_t sizes[] = {KINDS(SIZES)};

struct scalar field_get(const struct field *f, const void *from)
{
    struct scalar s = {.kind = f->kind, .number = 0};
    memcpy(&s.number, (const char *)from + f->offset, sizes[f->kind]);
    return s;
}

void field_set(const struct field *f, void *to, struct scalar s)
{
    memcpy((char *)to + f->offset, &s.number, sizes[f->kind]);
}

void field_copy(const struct field *f, void *to, const void *from)
{
    field_set(f, to, field_get(f, from));
}

bool field_equal(const struct field *f, const void *a, const void *b)
{
    return scalar_equal(field_get(f, a), field_get(f, b));
}

bool field_set_json(const struct field *f, void *to, const cJSON *item, struct arena *a)
{
    struct scalar s = {.kind = f->kind};
    bool found = false;
    switch (s.kind) {
        KINDS(FROM_JSON)
    }
    if (found) field_set(f, to, s);
    return found;
}

/* ---- scalars ---- */

bool scalar_equal(struct scalar x, struct scalar y)
{
    switch (x.kind) {
        KINDS(EQUAL)
    }
    return false;
}

bool scalar_is_zero(struct scalar s)
{
    return scalar_equal(s, (struct scalar){.kind = s.kind, .number = 0});
}

bool scalar_is_given(struct scalar s)
{
    return s.kind == FIELD_BOOL || !scalar_is_zero(s);
}

const char *scalar_text(struct scalar s, const struct scalar_style *style, struct arena *a)
{
    switch (s.kind) {
        KINDS(TEXT)
    }
    return NULL;
}

cJSON *scalar_json(struct scalar s)
{
    switch (s.kind) {
        KINDS(JSON)
    }
    return NULL;
}
