#include "convert/dcp_items.h"

#include "formats/torch.h"

enum status dcp_items_emit(const struct plan *plan, const struct dcp_item *items, size_t count,
                           struct strbuf *first, const struct file_writer *writer,
                           struct error *err)
{
    struct strbuf before = {0}, after = {0};
    uint64_t at = 0;
    enum status st = OK;
    for (size_t i = 0; i < count && !st; i++) {
        const struct dcp_item *item = &items[i];
        const struct segment *s = &plan->segments[item->segment];
        const uint32_t crc = writer->crc(writer->context, item->segment);
        strbuf_clear(&before);
        strbuf_clear(&after);
        torch_item_emit(item->dtype, item->num_dims, item->shape, crc, &before, &after);
        strbuf_add(first, before.data, before.length);
        st = writer->put(writer->context, at, first->data, first->length, err);
        at = s->offset_bytes + dtype_run_bytes(s->dtype, s->numel);
        strbuf_clear(first);
        strbuf_add(first, after.data, after.length);
    }
    if (!st) st = writer->put(writer->context, at, first->data, first->length, err);
    strbuf_release(&before);
    strbuf_release(&after);
    return st;
}
