/* flat_write.h - writes each rank's distrib_optim.pt: the flat buffers of a
 * distributed optimizer (flat_states.h has the layout, buckets.h the places of
 * parameters).
 *
 * A flat tensor is a segment filled by runs of many parameters, with zeros in
 * the gaps. */
#ifndef FERRY_CONVERT_MEGATRON_LEGACY_FLAT_WRITE_H
#define FERRY_CONVERT_MEGATRON_LEGACY_FLAT_WRITE_H

#include "convert/megatron/megatron_target.h"
#include "convert/megatron/optim/buckets.h"
#include "convert/torch_archive.h"

/* A cell of ranks and its part of a file. */
struct flat_cell {
    struct bucket_cell cell;
    struct param_buffer *buffers;
    size_t num_buffers;
    uint32_t *segments;  /* [num_buffers * states] */
    struct value *value; /* {buckets_coalesced: True, 0: {...}} */
};

struct flat_file {
    struct torch_archive archive;
    struct flat_cell *dense, *experts; /* NULL: in another rank's file */
};

/* A place in a cell. */
struct flat_spot {
    const struct flat_cell *cell;
    size_t buffer;
    uint64_t start; /* element of the flat tensor */
};

struct flat_write {
    struct target *t;
    struct bucket_rules rules;
    struct trained_param *params;
    size_t num_params;
    bool experts_split;
    struct flat_file **files;
    size_t num_files, files_capacity;
    struct flat_spot *spots;
    size_t num_spots, spots_capacity;
    struct map by_name; /* flat_key -> spots */
};

/* args: the written Namespace. Every parameter has all states. ERR_UNSUPPORTED
 * if one is wider than F32, or for a name outside the model. */
MUST_CHECK enum status flat_write_begin(struct flat_write *w, struct target *t,
                                        const struct value *args, struct error *err);
/* Adds the file in a rank's folder, if Megatron writes one there. */
MUST_CHECK enum status flat_write_add_rank(struct flat_write *w, const char *folder, uint64_t tp,
                                           uint64_t pp, uint64_t ep, struct error *err);
/* Plans the gaps: after all ranks, before any part. */
MUST_CHECK enum status flat_write_gaps(struct flat_write *w, struct error *err);
/* Plans a part of a state for all cells that hold it. state: index in
 * t->states. */
MUST_CHECK enum status flat_write_part(struct flat_write *w, const struct megatron_part *p,
                                       size_t state, struct error *err);
MUST_CHECK enum status flat_write_lay_out(struct flat_write *w, struct error *err);
void flat_write_release(struct flat_write *w);

#endif
