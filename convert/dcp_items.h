/* dcp_items.h - a .distcp file of a plan: archives of one tensor each (formats/torch.h,
 * torch_item), one behind the other, whose elements are segments. */
#ifndef FERRY_CONVERT_DCP_ITEMS_H
#define FERRY_CONVERT_DCP_ITEMS_H

#include "ckpt/plan.h"
#include "common/strbuf.h"

struct dcp_item {
    uint32_t segment;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape; /* [num_dims] */
};

/* For output_file.finish: writes `first`, which begins the file and is used as room, and the bytes
 * around the data of items, in the order of the file: the end of one archive and the beginning of
 * the next in one call. */
MUST_CHECK enum status dcp_items_emit(const struct plan *plan, const struct dcp_item *items,
                                      size_t count, struct strbuf *first,
                                      const struct file_writer *writer, struct error *err);

#endif
