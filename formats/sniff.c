#include "formats/sniff.h"
#include "common/count.h"

#include <stdbool.h>
#include <string.h>

/* A 64-bit length with zeros on top, then JSON. */
static bool is_safetensors(const uint8_t *head, size_t bytes)
{
    return bytes > 9 && memcmp(head + 4, "\0\0\0\0{", 5) == 0;
}

static bool is_markup(const uint8_t *head, size_t bytes)
{
    size_t at = 0;
    while (at < bytes && head[at] && strchr(" \t\r\n", head[at]))
        at++;
    return at + 1 < bytes && head[at] == '<' && head[at + 1] && strchr("!hH?", head[at + 1]);
}

/* Files with `magic` at `offset`, or accepted by `matches`. name: for
 * sniff_name(); not_torch: for sniff_not_torch(); NULL: not reported there. */
struct kind {
    size_t offset, length;
    const char *magic;
    bool (*matches)(const uint8_t *head, size_t bytes);
    const char *name, *not_torch;
};

#define LFS "a Git LFS pointer (the file itself was not downloaded: git lfs pull)"
#define PICKLE "a Python pickle"
#define PLAIN_PICKLE "a plain pickle, not written by torch.save"
#define AT(offset, magic) offset, sizeof(magic) - 1, magic, NULL

// clang-format off
static const struct kind kinds[] = {
    {AT(0, "version https://git-lfs"), LFS, "a Git LFS pointer; the file itself was not downloaded"},
    {AT(0, "version https://"), LFS, NULL},
    {AT(0, "PYTORCH1"), "a caffe2 container", "an archive of caffe2, which torch no longer reads"},
    {AT(0, "<!DOCTYPE"), "an HTML page", NULL},
    {AT(0, "<!doctype"), "an HTML page", NULL},
    {AT(0, "<html"), "an HTML page", NULL},
    {0, 0, NULL, is_markup, NULL, "an HTML page, not a torch file"},
    {0, 0, NULL, is_safetensors, NULL, "a safetensors file, not a torch file"},
    {AT(257, "ustar"), NULL, "a tar file: torch before 0.2, or something else"},
    {AT(0, "PK\x03\x04"), "a zip archive (torch.save)", NULL},
    {AT(0, "\x80\x02\x8A\x0A\x6C"), "a torch.save stream from before PyTorch 1.6", NULL},
    {AT(0, "\x80\x00"), NULL, PLAIN_PICKLE},
    {AT(0, "\x80\x01"), NULL, PLAIN_PICKLE},
    {AT(0, "\x80\x02"), PICKLE, PLAIN_PICKLE},
    {AT(0, "\x80\x03"), PICKLE, PLAIN_PICKLE},
    {AT(0, "\x80\x04"), PICKLE, PLAIN_PICKLE},
    {AT(0, "\x80\x05"), PICKLE, PLAIN_PICKLE},
    {AT(0, "GGUF"), "a GGUF file", NULL},
    {AT(0, "\x1F\x8B"), "gzip-compressed", NULL},
    {AT(0, "\x28\xB5\x2F\xFD"), "zstd-compressed", NULL},
    {AT(0, "\x89HDF"), "an HDF5 file", NULL},
};
// clang-format on

static bool is_of_kind(const struct kind *k, const uint8_t *head, size_t bytes)
{
    if (k->matches) return k->matches(head, bytes);
    return bytes >= k->offset + k->length && memcmp(head + k->offset, k->magic, k->length) == 0;
}

const char *sniff_name(const uint8_t *head, size_t bytes)
{
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (kinds[i].name && is_of_kind(&kinds[i], head, bytes)) return kinds[i].name;
    return NULL;
}

const char *sniff_not_torch(const uint8_t *head, size_t bytes)
{
    if (!bytes) return "an empty file, not a torch file";
    for (size_t i = 0; i < COUNT(kinds); i++)
        if (kinds[i].not_torch && is_of_kind(&kinds[i], head, bytes)) return kinds[i].not_torch;
    return NULL;
}
