/* yaml.h - YAML by libyaml, as the trees of json.h.
 *
 * A plain scalar is null, a bool, a number or text by the rules of YAML 1.1 in
 * PyYAML's safe loader: 1e-5 without a dot is text. Numbers of the tree have
 * JSON's spelling (0x1F is 31, 1:30 is 90, .5 is 0.5, .inf is Infinity); valid
 * JSON keeps its digits. Unlike PyYAML: dates are text, also hexadecimal,
 * octal, binary and sexagesimal integers of more than 64 bits; keys are always
 * text. Aliases become copies of their anchors; entries of merge keys (<<)
 * follow the mapping's own. Tags other than !!str are dropped. One document; an
 * empty one is null. NUL in a text becomes C0 80. */
#ifndef FERRY_COMMON_YAML_H
#define FERRY_COMMON_YAML_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

/* ERR_CORRUPT with line and column. Refuses a repeated key, a key that is not a
 * scalar, a second document, more than max_bytes of text, 1,000,000 nodes or
 * nesting past JSON_MAX_DEPTH (an alias counts as its anchor). *tree is NULL
 * after a failure. */
MUST_CHECK enum status yaml_read_file(const char *path, uint64_t max_bytes, cJSON **tree,
                                      struct error *err);

/* The line of a member's key, from 1; 0: unknown, as in merged mappings. For
 * trees of yaml_read_file(), whose other code leaves cJSON's valueint alone. */
static inline int yaml_key_line(const cJSON *member)
{
    return member->valueint;
}

/* Appends the tree in block style, as PyYAML's safe_dump(allow_unicode=True,
 * sort_keys=False); quotes text that would be read as another type. Invalid
 * UTF-8 becomes U+FFFD. */
void yaml_print(struct strbuf *out, const cJSON *tree);

#endif
