/* ids_lines.h - token ids as JSON lines, one document a line.
 *
 *   {"ids": [1, 2, 3], "loss_mask": [0, 1, 1]}
 *
 * "ids" may be called "input_ids" or "tokens". "loss_mask" (1 or true: the
 * token counts as a label) is optional: without it all tokens count. "labels"
 * may replace it: -100 for a token that does not count, else the id itself.
 * Ignores other members and empty lines. */
#ifndef FERRY_FORMATS_IDS_LINES_H
#define FERRY_FORMATS_IDS_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

struct ids_line {
    uint64_t number; /* of the line in the file, from 1 */
    size_t count;
    const int32_t *ids;
    const uint8_t *mask; /* 0 or 1 for each id; all 1 if !has_mask */
    bool has_mask;
};

/* Calls visit for each document in turn; its pointers are valid during the
 * call. ERR_CORRUPT names file and line: invalid JSON, no ids or two lists of
 * them, an invalid id, a mask of another length. */
MUST_CHECK enum status
ids_lines_read(const char *path,
               enum status (*visit)(void *context, const struct ids_line *line, struct error *err),
               void *context, struct error *err);

#endif
