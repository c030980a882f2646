/* describe.h - config, family and layout of a Megatron checkpoint. */
#ifndef FERRY_CONVERT_MEGATRON_DESCRIBE_H
#define FERRY_CONVERT_MEGATRON_DESCRIBE_H

#include "convert/megatron/evidence.h"
#include "convert/megatron/megatron_source.h"

/* Sets c->config, c->family and c->layout from, in this order: args of the common state or
 * run_config.yaml, the evidence, config.json (of --hf-config, or of ferry-hf beside the weights).
 * If the written layout is not understood, it is left empty for legacy rank files, whose layers the
 * reader then counts; else it becomes one rank, with a note. */
MUST_CHECK enum status megatron_describe(struct megatron_source *m,
                                         const struct megatron_evidence *e, struct error *err);

#endif
