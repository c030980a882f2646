/* yaml.h - YAML by libyaml, as the trees of json.h.
 *
 * Mappings, sequences and scalars. A plain scalar is null, a bool, a number or text by the rules of
 * YAML 1.1 in PyYAML's safe loader: 1e-5 without a dot is text. A number of the tree has the
 * spelling of JSON (0x1F is 31, 1:30 is 90, .5 is 0.5, .inf is Infinity); if it is valid JSON, it
 * keeps its digits. Different from PyYAML: dates are text, and so are hexadecimal, octal, binary
 * and sexagesimal integers of more than 64 bits; keys are always text. Aliases are replaced by
 * copies of their anchors; the entries of merge keys (<<) follow the mapping's own. Tags other than
 * !!str are dropped. One document; an empty one is null. NUL in a text is written as C0 80. */
#ifndef FERRY_COMMON_YAML_H
#define FERRY_COMMON_YAML_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

/* ERR_CORRUPT with line and column; refused: a key twice, a key that is not a scalar, a second
 * document, more than max_bytes of text, 1,000,000 nodes or nesting past JSON_MAX_DEPTH (an alias
 * counts as its anchor). *tree is NULL after a failure. */
MUST_CHECK enum status yaml_read_file(const char *path, uint64_t max_bytes, cJSON **tree,
                                      struct error *err);

/* Appends the tree in block style, as PyYAML's safe_dump(allow_unicode=True, sort_keys=False)
 * writes it; text is quoted if it would be read as another type. Bytes that are not UTF-8
 * become U+FFFD. */
void yaml_print(struct strbuf *out, const cJSON *tree);

#endif
