/* describe.h - determines config, family and layout of a Megatron checkpoint. */
#ifndef FERRY_CONVERT_MEGATRON_DESCRIBE_H
#define FERRY_CONVERT_MEGATRON_DESCRIBE_H

#include "convert/megatron/evidence.h"
#include "convert/megatron/megatron_source.h"

/* Sets c->config, c->family and c->layout from these, in this order: args of the common state or
 * run_config.yaml; the evidence; config.json (of --hf-config, else of ferry-hf beside the weights).
 * If the written layout cannot be understood, it stays empty for legacy rank files, whose layers
 * the reader then counts; for torch_dist it becomes one rank, with a note. */
MUST_CHECK enum status megatron_describe(struct megatron_source *m,
                                         const struct megatron_evidence *e, struct error *err);

#endif
