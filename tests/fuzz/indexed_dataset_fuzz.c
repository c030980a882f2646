/* indexed_dataset_fuzz.c - any bytes as an index and its data, or as raw ids: opened, and read
 * sequence by sequence and as one stream, which must be the same.
 *
 * The first byte says what it is (even: an indexed dataset; 1, 3 mod 4: ids of U16, U32), the
 * second how many of the last bytes are the data. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/file.h"
#include "formats/indexed_dataset.h"
#include "tests/temporary.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_TOKENS = 1 << 16 }; /* that are read: sequences may overlap */

static char folder[TEMPORARY_PATH];

static void remove_folder(void)
{
    (void)!path_remove(folder, NULL);
}

static void make_folder(void)
{
    if (!temporary_folder(folder)) abort();
    atexit(remove_folder);
}

static void write_file(const char *name, const uint8_t *data, size_t size)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    close(fd);
}

static void must(enum status st, const struct error *err)
{
    if (!st) return;
    fprintf(stderr, "%s\n", err->text);
    abort();
}

static void check_stream(const struct indexed_dataset *d)
{
    static int64_t stream[MAX_TOKENS], sequence[MAX_TOKENS];
    static int32_t narrow[MAX_TOKENS];
    struct error err;
    uint64_t length, at = 0, count = min_u64(d->num_tokens, MAX_TOKENS);
    must(indexed_dataset_read_stream(d, 0, count, DT_I64, stream, &err), &err);
    for (uint64_t i = 0; i < d->num_sequences && at < count; i++, at += length) {
        must(indexed_dataset_lengths(d, i, 1, &length, &err), &err);
        length = min_u64(length, count - at);
        must(indexed_dataset_read(d, i, 0, length, DT_I64, sequence, &err), &err);
        if (memcmp(sequence, stream + at, length * sizeof *stream)) abort();
    }
    if (at != count) abort();
    enum status st =
        indexed_dataset_read_stream(d, count / 2, count - count / 2, DT_I32, narrow, &err);
    if (st && st != ERR_CORRUPT) abort();
    for (uint64_t i = count / 2; i < count && !st; i++)
        if (narrow[i - count / 2] != stream[i]) abort();
}

static void check_documents(const struct indexed_dataset *d)
{
    struct error err;
    uint64_t first, end = 0;
    for (uint64_t i = 0; i <= d->num_documents; i++) {
        must(indexed_dataset_documents(d, i, 1, &first, &err), &err);
        if (first < end) abort();
        end = first;
    }
    if (end != d->num_sequences) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct indexed_dataset d;
    struct error err;
    char path[300];
    if (size < 2) return 0;
    size_t data_bytes = min_u64(data[1], size - 2);
    if (!*folder) make_folder();
    write_file("d.idx", data + 2, size - 2 - data_bytes);
    write_file("d.bin", data + size - data_bytes, data_bytes);
    snprintf(path, sizeof path, "%s/d.bin", folder);
    enum status st = data[0] % 2
                         ? token_file_open(&d, path, data[0] % 4 == 1 ? DT_U16 : DT_U32, &err)
                         : indexed_dataset_open(&d, path, &err);
    if (st) return 0;
    check_stream(&d);
    check_documents(&d);
    indexed_dataset_close(&d);
    return 0;
}
