/* zip_fuzz.c - any bytes as a zip archive: its directory, then the contents of every entry. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "formats/zip.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MOST_BYTES = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct zip_directory z;
    struct arena a;
    struct error err;
    struct strbuf contents = {0};
    int fd = memfd_create("zip", 0);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    arena_init(&a);
    if (!zip_read_directory(&z, &a, fd, "zip", 0, size, &err)) {
        for (size_t i = 0; i < z.num_entries; i++) {
            const struct zip_entry *e = &z.entries[i];
            if (zip_find(&z, e->name) != e) abort();
            if (zip_read_entry(e, fd, "zip", MOST_BYTES, &contents, &err)) continue;
            if (contents.length != e->size_bytes) abort();
        }
        zip_directory_release(&z);
    }
    strbuf_release(&contents);
    arena_release(&a);
    close(fd);
    return 0;
}
