/* command_line.h - the words that started this process, from /proc. */
#ifndef FERRY_COMMON_COMMAND_LINE_H
#define FERRY_COMMON_COMMAND_LINE_H

#include <cjson/cJSON.h>

#include "common/arena.h"

/* A list of texts; the caller's. */
cJSON *command_line_words(void);

/* Quoted for a shell, in arena a, without the words of a list that ends with
 * NULL (or NULL). NULL: unknown. */
const char *command_line_text(struct arena *a, const char *const *without);

#endif
