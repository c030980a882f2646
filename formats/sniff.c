#include "formats/sniff.h"

#include <string.h>

// clang-format off
static const struct { const char *magic; size_t bytes; const char *name; } kinds[] = {
    {"version https://",   16, "a Git LFS pointer (the file itself was not downloaded: git lfs pull)"},
    {"PK\x03\x04",          4, "a zip archive (torch.save)"},
    {"\x80\x02\x8A\x0A\x6C", 5, "a torch.save stream of before PyTorch 1.6"},
    {"\x80\x02",            2, "a Python pickle"},
    {"\x80\x03",            2, "a Python pickle"},
    {"\x80\x04",            2, "a Python pickle"},
    {"\x80\x05",            2, "a Python pickle"},
    {"GGUF",                4, "a GGUF file"},
    {"\x1F\x8B",            2, "gzip-compressed"},
    {"\x28\xB5\x2F\xFD",    4, "zstd-compressed"},
    {"<!DOCTYPE",           9, "an HTML page"},
    {"<!doctype",           9, "an HTML page"},
    {"<html",               5, "an HTML page"},
    {"\x89HDF",             4, "an HDF5 file"},
    {"PYTORCH1",            8, "a caffe2 container"},
};
// clang-format on

const char *sniff_name(const uint8_t *head, size_t bytes)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (bytes >= kinds[i].bytes && memcmp(head, kinds[i].magic, kinds[i].bytes) == 0)
            return kinds[i].name;
    return NULL;
}
