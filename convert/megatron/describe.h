/* describe.h - determines a Megatron checkpoint's config, family and layout. */
#ifndef FERRY_CONVERT_MEGATRON_DESCRIBE_H
#define FERRY_CONVERT_MEGATRON_DESCRIBE_H

#include "convert/megatron/evidence.h"
#include "convert/megatron/megatron_source.h"

/* Sets c->config, c->family and c->layout from, in this order: args of the
 * common state or run_config.yaml; the evidence; config.json (--hf-config, else
 * ferry-hf beside the weights). A written layout that cannot be understood
 * stays empty for legacy rank files, whose layers the reader counts; for
 * torch_dist it becomes one rank, with a note. */
MUST_CHECK enum status megatron_describe(struct megatron_source *m,
                                         const struct megatron_evidence *e, struct error *err);

#endif
