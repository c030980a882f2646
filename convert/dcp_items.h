/* dcp_items.h - a .distcp file of a plan: consecutive archives of one tensor
 * each (formats/torch.h, torch_item), whose elements are segments. */
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

/* For output_file.finish: writes `first`, the beginning of the file, also used
 * as a buffer, then the bytes around the items' data in file order. One write
 * covers the end of one archive and the beginning of the next. */
MUST_CHECK enum status dcp_items_emit(const struct plan *plan, const struct dcp_item *items,
                                      size_t count, struct strbuf *first,
                                      const struct file_writer *writer, struct error *err);

#endif
