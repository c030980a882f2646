/* torch_archive.h - a torch.save file of a plan; its tensors are segments or
 * known bytes.
 *
 * Call archive_begin, archive_tensor and archive_bytes while making the
 * pickle's value, then archive_lay_out. */
#ifndef FERRY_CONVERT_TORCH_ARCHIVE_H
#define FERRY_CONVERT_TORCH_ARCHIVE_H

#include "ckpt/plan.h"
#include "formats/torch.h"

struct torch_archive {
    struct plan *plan;
    uint32_t file; /* of the plan */
    struct archive_storage {
        uint32_t segment;
        const void *bytes; /* in the plan's arena; NULL: a segment */
    } * storages;          /* of keys "0", "1", ... */
    size_t num_storages, storages_capacity;
    struct torch_out out;
    bool laid_out;
};

/* Adds the file to the plan. */
void archive_begin(struct torch_archive *x, struct plan *plan, const char *path);
/* A tensor of a new segment, in the plan's arena. */
struct value *archive_tensor(struct torch_archive *x, enum dtype dtype, unsigned num_dims,
                             const uint64_t *shape, uint32_t *segment);
/* A tensor of these bytes, which must outlive the plan. */
struct value *archive_bytes(struct torch_archive *x, enum dtype dtype, unsigned num_dims,
                            const uint64_t *shape, const void *bytes);
/* Places root and the storages in the file. name: of the file, without ending.
 * x must keep its address until the plan is released. */
MUST_CHECK enum status archive_lay_out(struct torch_archive *x, const char *name,
                                       const struct value *root, struct error *err);
void archive_release(struct torch_archive *x);

#endif
