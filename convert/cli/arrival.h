/* arrival.h - what was written, read again as any checkpoint is, and its digests compared. */
#ifndef FERRY_CONVERT_CLI_ARRIVAL_H
#define FERRY_CONVERT_CLI_ARRIVAL_H

#include "ckpt/digest.h"
#include "ckpt/executor.h"
#include "convert/source.h"

/* `folder` holds what plan p wrote with these results, and its small files; it is not published
 * yet. ERR_IO where a tensor has another digest than was written; all such are listed on stderr. */
MUST_CHECK enum status arrival_check(const struct plan *p, const struct carry_result *results,
                                     const char *folder, const struct source_options *o,
                                     const struct model_maps *maps, const struct digest_options *d,
                                     struct error *err);

#endif
