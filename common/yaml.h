/* yaml.h - YAML by libyaml, as the trees of json.h.
 *
 * Mappings, sequences and scalars; a plain scalar is null, a bool, a number or text after YAML 1.1 as
 * PyYAML's safe loader has it, as far as numbers go: 1e-5 without a dot is text there, and here too.
 * Anchors and aliases are copied out. Tags are dropped. One document. */
#ifndef FERRY_COMMON_YAML_H
#define FERRY_COMMON_YAML_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

/* ERR_CORRUPT with line and column; refused: a key twice, a key that is no scalar, more than
 * max_bytes of text or 1,000,000 nodes (aliases count as what they stand for). */
MUST_CHECK enum status yaml_read_file(const char *path, uint64_t max_bytes, cJSON **tree,
                                      struct error *err);

/* Block style as PyYAML's safe_dump writes it; text is quoted where it would read as something else. */
void yaml_print(struct strbuf *out, const cJSON *tree);

#endif
