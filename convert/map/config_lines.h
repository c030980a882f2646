/* config_lines.h - a config as lines for people, by convert/models/config_lines.json.
 *
 * A row has `title` and `text`, a list of texts with {EXPR} (convert/map/expr.h).
 * Row and texts may have a condition `when`; `of` "plan": for plans, too. */
#ifndef FERRY_CONVERT_MAP_CONFIG_LINES_H
#define FERRY_CONVERT_MAP_CONFIG_LINES_H

#include "ckpt/model_config.h"
#include "common/strbuf.h"

/* Appends the lines, or those of plans; titles are `width` wide. */
void config_lines_add(struct strbuf *out, const struct model_config *c, bool of_plan, int width);

#endif
