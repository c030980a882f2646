/* config_lines.h - a config as lines for people, by convert/models/config_lines.json.
 *
 * A row has `title`, `text`, a list of texts with {EXPR} (convert/map/expr.h), each
 * of which may have a condition `when`; may have a condition itself, and `of`:
 * "plan" for lines of the plan of a conversion, too. */
#ifndef FERRY_CONVERT_MAP_CONFIG_LINES_H
#define FERRY_CONVERT_MAP_CONFIG_LINES_H

#include "ckpt/model_config.h"
#include "common/strbuf.h"

/* Appends the lines, or those of plans; titles are `width` wide. */
void config_lines_add(struct strbuf *out, const struct model_config *c, bool of_plan, int width);

#endif
