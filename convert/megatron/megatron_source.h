/* megatron_source.h - shared by the readers of Megatron's formats. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_SOURCE_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_SOURCE_H

#include "convert/megatron/hybrid.h"
#include "convert/source_kind.h"

struct megatron_source {
    struct checkpoint *c; /* c->folder is the iteration's folder */
    const struct source_options *o;
    const struct model_maps *maps;
    const struct hybrid_stack *hybrid;    /* HybridModel's keys and args; NULL: GPTModel's */
    struct layout_options written_layout; /* from args or run_config.yaml */
    bool moe_layers_known;                /* a file says which layers have experts */
};

/* Kinds of files of a Megatron iteration. */
enum megatron_files {
    MEGATRON_NONE,    /* no Megatron checkpoint */
    MEGATRON_DIST,    /* torch_dist */
    MEGATRON_RANKS,   /* legacy rank files */
    MEGATRON_DTENSORS /* a DCP folder without metadata.json: fsdp_dtensor, torch_dcp */
};
enum megatron_files megatron_files_of(const char *path, const struct source_options *o);

/* Reads c->folder: sets the common state, config and layout
 * (megatron_describe), adds native tensors, and makes logical ones
 * (megatron_import). */
typedef enum status megatron_reader(struct megatron_source *m, struct error *err);
/* Finds the iteration, calls the reader, lists missing parameters. */
MUST_CHECK enum status megatron_open(struct megatron_source *m, megatron_reader *read,
                                     struct error *err);

/* Makes logical tensors of native ones, named by torch_dist keys. If no file
 * says which layers have experts, routers show it. */
MUST_CHECK enum status megatron_import(struct megatron_source *m, struct error *err);
/* Then makes the optimizer's logical tensors, of native ones with a state. */
MUST_CHECK enum status megatron_import_states(struct megatron_source *m, struct error *err);

#endif
