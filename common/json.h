/* json.h - JSON by cJSON, made strict and exact.
 *
 * cJSON alone accepts invalid text (control characters in strings, invalid
 * UTF-8, numbers such as 01 or 1.e5, text behind the value, a repeated name in
 * an object) and stores numbers as doubles, which loses 2^53 + 1 and the
 * spelling 1e-05. Here the text is checked against RFC 8259 first, and each
 * number of a tree is a cJSON_Raw item whose valuestring is its text: integers
 * are exact, and printing returns the text that was read. New numbers come from
 * json_new_..., never from cJSON. */
#ifndef FERRY_COMMON_JSON_H
#define FERRY_COMMON_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

enum { JSON_MAX_DEPTH = 128 }; /* nesting of objects and lists; also of YAML (yaml.h) */

enum json_flags {
    JSON_STRICT = 0,
    JSON_NAN = 1, /* numbers NaN, Infinity, -Infinity, as in Python's json */
};

/* The tree of text[0..length); free it with cJSON_Delete. ERR_CORRUPT "line 3
 * column 7: ..." (characters, from 1) for text outside RFC 8259, a byte order
 * mark, nesting past JSON_MAX_DEPTH, lone surrogates, a repeated name in an
 * object (after unescaping). NUL in a string (\u0000) becomes C0 80. *tree is
 * NULL after a failure. */
MUST_CHECK enum status json_parse(const char *text, size_t length, unsigned flags, cJSON **tree,
                                  struct error *err);
/* Reads and parses a file of at most max_bytes; err names it. Skips a byte
 * order mark at its beginning, which some editors write. */
MUST_CHECK enum status json_read_file(const char *path, uint64_t max_bytes, unsigned flags,
                                      cJSON **tree, struct error *err);

/* Item `name` of an object; NULL: none, or not an object. Searches linearly: to
 * visit all items of a large object use for (c = object->child; c; c =
 * c->next). */
cJSON *json_get(const cJSON *object, const char *name);
bool json_is_number(const cJSON *item);
/* Exact values; false if item (NULL allowed) is not a number of that kind.
 * Whole floats below 2^53 are whole numbers: 32.0, 1e3. -0 only for
 * json_as_i64. */
bool json_as_u64(const cJSON *item, uint64_t *out);
bool json_as_i64(const cJSON *item, int64_t *out);
bool json_as_double(const cJSON *item, double *out); /* any number, finite or not */
const char *json_as_text(const cJSON *item);         /* NULL if it is not a string */

/* Number items for new trees. A double gets the fewest digits that read back to
 * it, as in Python: 1e-05, 0.1, 10000.0, NaN, -Infinity. */
cJSON *json_new_u64(uint64_t v);
cJSON *json_new_i64(int64_t v);
cJSON *json_new_double(double v);

/* Add fields to a new object. */
void json_add_u64(cJSON *object, const char *name, uint64_t n);
void json_add_number(cJSON *object, const char *name, double x);       /* NaN and infinite: null */
void json_add_text(cJSON *object, const char *name, const char *text); /* NULL: null */
/* Replaces item `name` in its place, or adds it at the end. */
void json_put(cJSON *object, const char *name, cJSON *item);

/* Appends the text of the tree with `indent` spaces a level, byte for byte as
 * Python's json.dump(indent=N, ensure_ascii=False); indent < 0: one line,
 * without blanks. Adds no line end. */
void json_print(struct strbuf *out, const cJSON *tree, int indent);
/* Writes the tree, indented by 2, and a line end to the new file `path`. */
MUST_CHECK enum status json_write_file(const char *path, const cJSON *tree, bool durable,
                                       struct error *err);
/* Appends a string as JSON, with its quotes. Invalid UTF-8 becomes U+FFFD. */
void json_print_text(struct strbuf *out, const char *text);

#endif
