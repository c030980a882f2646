#include "convert/torch_archive.h"

#include <libdeflate.h>
#include <stdio.h>
#include <stdlib.h>

void archive_begin(struct torch_archive *x, struct plan *plan, const char *path)
{
    *x = (struct torch_archive){.plan = plan, .file = plan_add_file(plan, path)};
}

static struct value *add_storage(struct torch_archive *x, uint32_t segment, const void *bytes,
                                 enum dtype dtype, unsigned num_dims, const uint64_t *shape)
{
    struct arena *a = &x->plan->arena;
    char key[24];
    snprintf(key, sizeof key, "%zu", x->num_storages);
    *ARENA_PUSH(a, x->storages, x->num_storages, x->storages_capacity) =
        (struct archive_storage){segment, bytes};
    return value_tensor(a, key, dtype, num_dims, shape);
}

struct value *archive_tensor(struct torch_archive *x, enum dtype dtype, unsigned num_dims,
                             const uint64_t *shape, uint32_t *segment)
{
    uint64_t numel = 1;
    for (unsigned d = 0; d < num_dims; d++)
        numel *= shape[d];
    *segment = plan_add_segment(x->plan, x->file, dtype, numel, true);
    return add_storage(x, *segment, NULL, dtype, num_dims, shape);
}

struct value *archive_bytes(struct torch_archive *x, enum dtype dtype, unsigned num_dims,
                            const uint64_t *shape, const void *bytes)
{
    return add_storage(x, 0, bytes, dtype, num_dims, shape);
}

static struct archive_storage *storage_of(const struct torch_archive *x, size_t i)
{
    return &x->storages[strtoull(x->out.storages[i].key, NULL, 10)];
}

/* Writes the known bytes, and everything between storages. */
static enum status emit_archive(const struct plan *plan, uint32_t file, void *context,
                                const struct file_writer *writer, struct error *err)
{
    struct torch_archive *x = context;
    (void)plan, (void)file;
    for (size_t i = 0; i < x->out.num_storages; i++) {
        struct torch_out_storage *s = &x->out.storages[i];
        const struct archive_storage *from = storage_of(x, i);
        if (!from->bytes) {
            s->crc = writer->crc(writer->context, from->segment);
            continue;
        }
        s->crc = libdeflate_crc32(0, from->bytes, s->size_bytes);
        TRY(writer->put(writer->context, s->data_offset, from->bytes, s->size_bytes, err));
    }
    return torch_emit(&x->out, writer->put, writer->context, err);
}

enum status archive_lay_out(struct torch_archive *x, const char *name, const struct value *root,
                            struct error *err)
{
    TRY(torch_layout(&x->out, name, root, err));
    x->laid_out = true;
    for (size_t i = 0; i < x->out.num_storages; i++)
        if (!storage_of(x, i)->bytes)
            x->plan->segments[storage_of(x, i)->segment].offset_bytes =
                x->out.storages[i].data_offset;
    struct output_file *file = &x->plan->files[x->file];
    file->size_bytes = x->out.total_bytes;
    file->finish = emit_archive;
    file->finish_context = x;
    return OK;
}

void archive_release(struct torch_archive *x)
{
    if (x->laid_out) torch_out_release(&x->out);
}
