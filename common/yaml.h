/* yaml.h - YAML by libyaml, as the trees of json.h.
 *
 * Mappings, sequences and scalars; a plain scalar is null, a bool, a number or text after YAML 1.1
 * as PyYAML's safe loader has it: 1e-5 without a dot is text there, and here too. A number stands
 * in the tree as JSON writes it (0x1F is 31, 1:30 is 90, .5 is 0.5, .inf is Infinity), and keeps
 * its digits where it is JSON as it stands. Otherwise than there, dates are text, and so are
 * hexadecimal, octal, binary and sexagesimal integers past 64 bits; keys are text whatever they
 * look like. Anchors and aliases are copied out, merge keys (<<) filled in behind what the mapping
 * itself has. Tags are dropped, but for !!str. One document; an empty one is null. NUL in a text
 * stands as C0 80. */
#ifndef FERRY_COMMON_YAML_H
#define FERRY_COMMON_YAML_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

/* ERR_CORRUPT with line and column; refused: a key twice, a key that is no scalar, a second
 * document, more than max_bytes of text, 1,000,000 nodes or nesting past JSON_MAX_DEPTH (aliases
 * count as what they stand for). *tree is NULL after a failure. */
MUST_CHECK enum status yaml_read_file(const char *path, uint64_t max_bytes, cJSON **tree,
                                      struct error *err);

/* Appends the tree in block style, as PyYAML's safe_dump(allow_unicode=True, sort_keys=False)
 * writes it; text is quoted where it would read as something else. Bytes that are no UTF-8 become
 * U+FFFD. */
void yaml_print(struct strbuf *out, const cJSON *tree);

#endif
