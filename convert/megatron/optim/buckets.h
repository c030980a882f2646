/* buckets.h - places of parameters in the flat buffers of Megatron's
 * distributed optimizer.
 *
 * Every rank puts its trained parameters into flat *buffers*: one per model
 * chunk, dtype and kind (dense, or experts split over expert parallel ranks). A
 * buffer consists of *buckets*. Parameters have the reverse order of their
 * registration in the model; each starts at a multiple of 64 elements, each
 * bucket at a multiple of lcm(dp, 128), or of 2^16 too. Flat formats leave out
 * the padding at bucket ends, so positions are given both ways. No file records
 * them: a reader must prove them.
 *
 * Sources: megatron/core/distributed/param_and_grad_buffer.py
 * (_ParamAndGradBuffer.__init__), distributed_data_parallel.py (buffers of
 * parameters, sizes of buckets), optimizer/distrib_optimizer.py (the flat
 * formats; since 0.18 also the places), Megatron-Core 0.8 to 0.19. Order of
 * registration: `registration` of convert/models/params.json. */
#ifndef FERRY_CONVERT_MEGATRON_OPTIM_BUCKETS_H
#define FERRY_CONVERT_MEGATRON_OPTIM_BUCKETS_H

#include "ckpt/layout.h"
#include "ckpt/param.h"
#include "common/dtype.h"

/* A trained parameter. */
struct trained_param {
    const char *name; /* logical */
    struct param param;
    enum dtype dtype; /* of the weight */
    unsigned num_dims;
    const uint64_t *shape; /* of the whole parameter, with vocabulary padding */
};

/* Settings of a run that change its buckets. */
struct bucket_rules {
    uint64_t dp, expert_dp;  /* ranks that share a dense, an expert buffer; at least 1 */
    bool transformer_engine; /* spec of the order of registration */
    bool grouped_gemm;       /* experts are one grouped module: order by weight, then by expert */
    uint64_t bucket_size; /* elements after which a bucket ends (overlapped gradient reduction), on
                             the first pipeline rank's first chunk only; 0: one bucket */
    bool high_bandwidth;  /* bucket ends are multiples of 2^16 too */
    bool experts_apart_by_etp; /* since Megatron-Core 0.19: see buckets_split_experts() */
};

/* Whether experts have separate buffers and an optimizer, shared by other
 * ranks: if ep > 1; since Megatron-Core 0.19 (apart_by_etp) also if etp differs
 * from tp. Else they are in the dense buffers. Readers, which do not know the
 * release, accept either. */
bool buckets_split_experts(const struct layout *l, bool apart_by_etp);

/* Ranks with the same flat buffers, but for data parallelism. Tensor parallel
 * ranks have parameters at equal positions, so buffers need not be made for
 * each. */
struct bucket_cell {
    bool experts; /* buffers of experts, if buckets_split_experts() */
    uint64_t pp_rank;
    uint64_t tp_rank;                 /* experts: expert tensor parallel rank */
    uint64_t ep_rank;                 /* of experts; else 0 */
    uint64_t first_chunk, num_chunks; /* model chunks of this optimizer; num_chunks 0: all. With
                                         overlap_param_gather_with_optimizer_step the first chunk
                                         has a separate dense optimizer, and no bucket_size */
};

/* The last stage's copies of an embedding. */
enum param_copy { NO_COPY, COPY_FOR_MTP, COPY_AS_HEAD };

struct placed_param {
    const struct trained_param *of;
    enum param_copy copy;
    uint64_t numel;          /* of this rank's shard */
    uint64_t start;          /* in the buffer, with bucket padding */
    uint64_t start_unpadded; /* in the buffer without padding, as in files */
    size_t bucket;
};

struct param_bucket {
    uint64_t start, numel;   /* in the buffer; with padding */
    uint64_t start_unpadded; /* of the elements in files, without padding */
    uint64_t numel_unpadded;
};

struct param_buffer {
    uint64_t chunk;
    enum dtype dtype;
    struct placed_param *params; /* in buffer order */
    size_t num_params;
    struct param_bucket *buckets;
    size_t num_buckets;
    uint64_t numel, numel_unpadded;
};

/* Sizes of buckets by a file instead of the rules: [num_buffers] lists of
 * numel_unpadded. */
struct bucket_sizes {
    const uint64_t *numel; /* numel_unpadded of each bucket */
    size_t count;
};

/* Makes a cell's buffers, in the order of their numbers (gbuf_idx), in arena a.
 * params: all trained parameters of the model, in any order. known: NULL, or
 * sizes of the buckets of num_known buffers: then buckets end by these, and of
 * the rules only padding counts, for `start`. ERR_UNSUPPORTED if a parameter
 * has no place in the order of registration, or cannot be split so;
 * ERR_CORRUPT if known sizes do not add up (names buffer, bucket, parameter,
 * expected and found), a name is of no layer or expert of the model, or two
 * names are of one parameter. Takes n log n. */
MUST_CHECK enum status
buckets_place(const struct trained_param *params, size_t num_params, const struct layout *layout,
              const struct model_config *config, const struct bucket_rules *rules,
              const struct bucket_cell *cell, const struct bucket_sizes *known, size_t num_known,
              struct arena *a, struct param_buffer **out, size_t *count, struct error *err);

/* Sets the ranks of the dense cell, or the cell of experts, of this number,
 * dp_group_idx in keys (megatron/core/parallel_state.py): the tensor (or
 * expert) and pipeline parallel group's ranks, tensor parallel ranks first.
 * false: no such cell. */
bool bucket_cell_of_number(const struct layout *l, bool experts, uint64_t number,
                           struct bucket_cell *cell);

#endif
