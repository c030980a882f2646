/* ids_lines_fuzz.c - any bytes as JSON lines of token ids: read, and each document is what a reader
 * may rely on. */
#include <stdlib.h>

#include "formats/ids_lines.h"
#include "tests/fuzz/file_of_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum status check(void *context, const struct ids_line *line, struct error *err)
{
    uint64_t *last = context;
    (void)err;
    if (line->number <= *last) abort();
    *last = line->number;
    for (size_t i = 0; i < line->count; i++)
        if (line->ids[i] < 0 || line->mask[i] > 1 || (!line->has_mask && !line->mask[i])) abort();
    return OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error err;
    char path[64];
    uint64_t last = 0;
    int fd = file_of_bytes(data, size, path);
    enum status st = ids_lines_read(path, check, &last, &err);
    if (st != OK && st != ERR_CORRUPT) abort();
    close(fd);
    return 0;
}
