/* torch_fuzz.c - any bytes as a file of torch.save: opened, all tensors added, and the first and
 * last elements of each read. */
#include "formats/torch.h"
#include "tests/fuzz/file_of_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Offset in elements of the last element, from the first. */
static uint64_t last_element(const struct stored_tensor *t)
{
    const uint64_t *stride = t->pieces->stride;
    uint64_t at = 0, row_major = 1;
    for (unsigned d = t->num_dims; d-- > 0;) {
        at += (t->shape[d] - 1) * (stride ? stride[d] : row_major);
        row_major *= t->shape[d];
    }
    return at;
}

static void read_tensor(struct stored_reader *r, const struct stored_tensor *t)
{
    struct error err;
    char element[16];
    size_t bytes = dtype_bytes(t->dtype);
    const struct stored_piece *p = t->pieces;
    if (t->num_pieces != 1) abort();
    if (!stored_tensor_bytes(t) || !bytes) return;
    /* All that was promised at open. */
    if (stored_read(r, p->file, p->offset_bytes + last_element(t) * bytes, element, bytes, &err) ||
        stored_read(r, p->file, p->offset_bytes, element, bytes, &err))
        abort();
}

static void open_file(const char *path)
{
    struct stored s;
    struct torch_file t;
    struct error err;
    stored_init(&s);
    if (!torch_open(&t, &s, path, 0, UINT64_MAX, &err)) {
        enum status st = torch_add_tensors(&t, &s, t.root, "", &err);
        torch_close(&t);
        struct stored_reader *r = stored_reader_create(&s, 2);
        for (size_t i = 0; !st && i < s.num_tensors; i++)
            read_tensor(r, &s.tensors[i]);
        stored_reader_free(r);
    }
    stored_release(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = file_of_bytes(data, size, path);
    open_file(path);
    close(fd);
    return 0;
}
