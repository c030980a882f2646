/* megatron_source.h - functions that the readers of Megatron's formats share. */
#ifndef FERRY_CONVERT_MEGATRON_MEGATRON_SOURCE_H
#define FERRY_CONVERT_MEGATRON_MEGATRON_SOURCE_H

#include "convert/source_kind.h"

struct megatron_source {
    struct checkpoint *c; /* c->folder is the iteration's folder */
    const struct source_options *o;
    const struct model_maps *maps;
    struct layout_options written_layout; /* from args or run_config.yaml */
    bool moe_layers_known; /* args, run_config.yaml or config.json say which layers have experts */
};

/* What the iteration of a Megatron checkpoint is made of. */
enum megatron_files {
    MEGATRON_NONE,    /* path is no Megatron checkpoint */
    MEGATRON_DIST,    /* torch_dist */
    MEGATRON_RANKS,   /* legacy rank files */
    MEGATRON_DTENSORS /* a DCP folder without metadata.json: fsdp_dtensor, torch_dcp */
};
enum megatron_files megatron_files_of(const char *path, const struct source_options *o);

/* Reads the files of c->folder: sets the common state, config and layout (megatron_describe), adds
 * own tensors, and makes logical ones (megatron_import). */
typedef enum status megatron_reader(struct megatron_source *m, struct error *err);
/* Finds the iteration, calls the reader, and lists missing parameters. */
MUST_CHECK enum status megatron_open(struct megatron_source *m, megatron_reader *read,
                                     struct error *err);

/* Makes logical tensors from own ones, whose names are torch_dist keys. If no file says which
 * layers have experts, routers show it. */
MUST_CHECK enum status megatron_import(struct megatron_source *m, struct error *err);
/* Then makes those of the optimizer from own tensors with a state. */
MUST_CHECK enum status megatron_import_states(struct megatron_source *m, struct error *err);

#endif
