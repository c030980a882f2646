/* field.h - members of a struct as rows of a table, each read and written as
 * one tagged scalar.
 *
 * A table (MODEL_FIELDS of model_config.h, LAYOUT_FIELDS of layout.h) has
 * offset and kind of each member. A row of field.c has the C type, text and
 * JSON of a kind. */
#ifndef FERRY_CKPT_FIELD_H
#define FERRY_CKPT_FIELD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"

struct cJSON;

enum field_kind { FIELD_UINT, FIELD_REAL, FIELD_BOOL, FIELD_TEXT };

struct field {
    const char *name;
    enum field_kind kind;
    size_t offset; /* of the member in its struct */
};

// clang-format off
/* FIELD_ROW: a row of a table. FIELD_MEMBER: the declaration of a member. */
#define FIELD_ROW(type, name) {#name, FIELD_KIND(((type *)NULL)->name), offsetof(type, name)}
#define FIELD_KIND(x) _Generic(x, uint64_t: FIELD_UINT, double: FIELD_REAL, bool: FIELD_BOOL, const char *: FIELD_TEXT)
#define FIELD_MEMBER(...) FIELD_DECLARE(__VA_ARGS__, other_columns)
#define FIELD_DECLARE(kind, name, ...) FIELD_TYPE_##kind name;
#define FIELD_TYPE_UINT uint64_t
#define FIELD_TYPE_REAL double
#define FIELD_TYPE_BOOL bool
#define FIELD_TYPE_TEXT const char *
// clang-format on

struct scalar {
    enum field_kind kind;
    union {
        uint64_t number;
        double real;
        bool truth;
        const char *text; /* borrowed; NULL: none */
    };
};

/* ---- fields ---- */

struct scalar field_get(const struct field *f, const void *from);
/* Sets a field of struct `to`; s has the field's kind. */
void field_set(const struct field *f, void *to, struct scalar s);
void field_copy(const struct field *f, void *to, const void *from);
bool field_equal(const struct field *f, const void *a, const void *b);
/* Sets the field if item (may be NULL) has its kind, else returns false. A
 * whole number is a real one, too. Copies texts into arena a. */
bool field_set_json(const struct field *f, void *to, const struct cJSON *item, struct arena *a);

/* ---- scalars ---- */

/* Whether two scalars of one kind are equal. NaN equals any number, being
 * neither less nor more. */
bool scalar_equal(struct scalar x, struct scalar y);
/* Whether s is 0, false or NULL. */
bool scalar_is_zero(struct scalar s);
/* Whether s is given: 0 and NULL are not given, false is. */
bool scalar_is_given(struct scalar s);

/* How scalar_text writes a scalar. */
struct scalar_style {
    int digits; /* significant digits of a real number */
    const char *yes, *no, *none;
};
/* s as text: in arena a, or borrowed from s and style. */
const char *scalar_text(struct scalar s, const struct scalar_style *style, struct arena *a);
/* s as a new item (null for a NULL text); the caller frees it. */
struct cJSON *scalar_json(struct scalar s);

#endif
