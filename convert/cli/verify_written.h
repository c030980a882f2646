/* verify_written.h - reads a written checkpoint back and compares its digests
 * with those of the conversion. */
#ifndef FERRY_CONVERT_CLI_VERIFY_WRITTEN_H
#define FERRY_CONVERT_CLI_VERIFY_WRITTEN_H

#include "ckpt/digest.h"
#include "ckpt/executor.h"
#include "convert/source.h"

/* Reads the unpublished `folder`, which plan p wrote with these results. ERR_IO
 * if any digest differs; prints the tensors on stderr. */
MUST_CHECK enum status verify_written(const struct plan *p, const struct copy_result *results,
                                      const char *folder, const struct source_options *o,
                                      const struct model_maps *maps, const struct digest_options *d,
                                      struct error *err);

#endif
