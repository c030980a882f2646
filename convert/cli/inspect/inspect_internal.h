/* inspect_internal.h - parts of the output of ferry inspect, as text and as
 * JSON. */
#ifndef FERRY_CONVERT_CLI_INSPECT_INSPECT_INTERNAL_H
#define FERRY_CONVERT_CLI_INSPECT_INSPECT_INTERNAL_H

#include "convert/cli/report.h"
#include "convert/open.h"

/* ---- inspect_lines.c: pieces of lines ---- */

/* "1 file", "2,000 files" */
void add_count(struct strbuf *out, uint64_t n, const char *one, const char *many);
/* Adds a name with control characters escaped. */
void add_escaped_name(struct strbuf *out, const char *name);
/* "  NAME" and blanks up to a column. */
void add_row_name(struct strbuf *out, const char *name, int width);

/* ---- inspect_config.c: the config ---- */

/* The lines of a config: sizes, experts, vocabulary, positions, attention, mlp,
 * norm. */
void config_lines(struct strbuf *out, const struct model_config *m);
/* All fields, a line each; "-" where a field is not set. */
void config_field_lines(struct strbuf *out, const struct model_config *m);
/* All fields as an object: null where a field is not set. */
cJSON *config_json(const struct model_config *m);

/* ---- inspect_args.c: Megatron's args ---- */

/* All args of the checkpoint, sorted by name: the Namespace of its common
 * state, else the values of run_config.yaml as section.name. ERR_USAGE without
 * either. Values that JSON cannot express become texts. The caller deletes the
 * object. */
MUST_CHECK enum status args_json(const struct checkpoint *c, cJSON **out, struct error *err);
void args_lines(struct strbuf *out, const cJSON *args);

#endif
