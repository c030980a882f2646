/* record_write.h - writes ferry.json (convert/record.h) after a conversion. */
#ifndef FERRY_CONVERT_CLI_RECORD_WRITE_H
#define FERRY_CONVERT_CLI_RECORD_WRITE_H

#include <cjson/cJSON.h>

#include "ckpt/digest.h"
#include "convert/cli/report.h"
#include "convert/record.h"

/* Digests of the tensors that plan p wrote (or read, if not `written`) in a run with these results:
 * of the tensors that a reader finds in the files, who takes a weight of F32 with other states for
 * its own master. In arena a. */
void record_digests(const struct plan *p, const struct carry_result *results, bool written,
                    struct arena *a, struct tensor_digest **out, size_t *count);

/* The words of the command line. */
cJSON *record_command_line(void);
/* The same as text for a shell, without --resume and --restart; NULL without /proc. In the arena.
 */
const char *record_command_text(struct arena *a);

/* Members whole_name and tensors_name of an object; sorts digests. */
void record_add_digests(cJSON *o, const char *whole_name, const char *tensors_name,
                        struct tensor_digest *digests, size_t count);

/* Writes ferry.json into the folder of the written files, and lists them: all that are there, and
 * `later` (may be NULL), a file that is written afterwards. */
MUST_CHECK enum status record_write(const struct conversion *c, const char *folder,
                                    const char *later, bool durable, struct error *err);
#endif
