/* zip_fuzz.c - any bytes as a zip archive: its directory, then the contents of every entry. */
#include "formats/zip.h"
#include "tests/fuzz/file_of_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_BYTES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct zip_directory z;
    struct arena a;
    struct error err;
    struct strbuf contents = {0};
    char path[64];
    int fd = file_of_bytes(data, size, path);
    const struct bytes file = bytes_of_file(fd, "zip", size);
    struct bytes archive;
    struct bytes_ends ends;
    arena_init(&a);
    if (bytes_keep_ends(&archive, &ends, &file, &err)) abort();
    if (!zip_read_directory(&z, &a, &archive, &err)) {
        for (size_t i = 0; i < z.num_entries; i++) {
            const struct zip_entry *e = &z.entries[i];
            if (zip_find(&z, e->name) != e) abort();
            if (zip_read_entry(e, &archive, MAX_BYTES, &contents, &err)) continue;
            if (contents.length != e->size_bytes) abort();
        }
        zip_directory_release(&z);
    }
    strbuf_release(&contents);
    arena_release(&a);
    close(fd);
    return 0;
}
