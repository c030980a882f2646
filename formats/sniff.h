/* sniff.h - names the kind of a file that no reader accepts, for messages. */
#ifndef FERRY_FORMATS_SNIFF_H
#define FERRY_FORMATS_SNIFF_H

#include <stddef.h>
#include <stdint.h>

/* The kind by the first bytes (16 are enough); NULL: unknown. "a Git LFS
 * pointer (the file itself was not downloaded: git lfs pull)", "an HTML page",
 * ... */
const char *sniff_name(const uint8_t *head, size_t bytes);
/* The same for a file expected from torch.save (262 bytes are enough): "a tar
 * file: torch before 0.2, or something else", ... */
const char *sniff_not_torch(const uint8_t *head, size_t bytes);

#endif
