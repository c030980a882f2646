/* safetensors_fuzz.c - any bytes as a safetensors file: opened, both ends of each tensor read, and
 * laid out again, which must give a file of the same tensors. */
#include <string.h>

#include "formats/safetensors.h"
#include "tests/fuzz/file_of_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* All that was promised at open. */
static void read_ends(const struct stored *s)
{
    struct stored_reader *r = stored_reader_create(s, 2);
    for (size_t i = 0; i < s->num_tensors; i++) {
        const struct stored_tensor *t = &s->tensors[i];
        struct error err;
        char byte;
        uint64_t bytes = stored_tensor_bytes(t);
        if (t->num_pieces != 1) abort();
        if (bytes && (stored_read(r, 0, t->pieces->offset_bytes, &byte, 1, &err) ||
                      stored_read(r, 0, t->pieces->offset_bytes + bytes - 1, &byte, 1, &err)))
            abort();
    }
    stored_reader_free(r);
}

static void open_again(const struct stored *first, const struct strbuf *head, uint64_t file_bytes)
{
    struct stored s;
    struct safetensors_info info;
    struct error err;
    char path[64];
    int fd = file_of_bytes(head->data, head->length, path);
    if (ftruncate(fd, (off_t)file_bytes)) abort();
    stored_init(&s);
    if (safetensors_open(&s, path, &info, &err)) abort();
    if (s.num_tensors != first->num_tensors) abort();
    for (size_t i = 0; i < s.num_tensors; i++) {
        const struct stored_tensor *t = stored_find(first, s.tensors[i].name);
        if (!t || t->dtype != s.tensors[i].dtype || t->num_dims != s.tensors[i].num_dims) abort();
        if (memcmp(t->shape, s.tensors[i].shape, t->num_dims * sizeof *t->shape)) abort();
    }
    stored_release(&s);
    close(fd);
}

static void write_again(const struct stored *s)
{
    struct strbuf head = {0};
    struct error err;
    uint64_t file_bytes;
    struct safetensors_out *out = calloc(s->num_tensors + 1, sizeof *out);
    for (size_t i = 0; i < s->num_tensors; i++) {
        const struct stored_tensor *t = &s->tensors[i];
        out[i] = (struct safetensors_out){
            .name = t->name, .dtype = t->dtype, .num_dims = t->num_dims, .shape = t->shape};
    }
    if (safetensors_layout(out, s->num_tensors, &head, &file_bytes, &err)) abort();
    open_again(s, &head, file_bytes);
    strbuf_release(&head);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct stored s;
    struct safetensors_info info;
    struct error err;
    char path[64];
    int fd = file_of_bytes(data, size, path);
    stored_init(&s);
    if (!safetensors_open(&s, path, &info, &err)) {
        read_ends(&s);
        write_again(&s);
    }
    stored_release(&s);
    close(fd);
    return 0;
}
