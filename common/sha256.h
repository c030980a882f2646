/* sha256.h - SHA-256 of a stream of bytes, by OpenSSL's libcrypto. */
#ifndef FERRY_COMMON_SHA256_H
#define FERRY_COMMON_SHA256_H

#include <stddef.h>

enum { SHA256_TEXT = 65 }; /* 64 hex digits and a NUL */

struct sha256;
struct sha256 *sha256_start(void);
void sha256_add(struct sha256 *s, const void *bytes, size_t count);
/* Writes the digest as hex digits and frees s. */
void sha256_finish(struct sha256 *s, char text[SHA256_TEXT]);

#endif
