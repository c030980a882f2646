#include "common/sha256.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>

struct sha256 {
    EVP_MD_CTX *context;
};

/* OpenSSL fails only without memory or without SHA-256. */
static void must_succeed(int ok)
{
    if (ok) return;
    fputs("ferry: libcrypto has no SHA-256\n", stderr);
    abort();
}

struct sha256 *sha256_start(void)
{
    struct sha256 *s = malloc(sizeof *s);
    must_succeed(s != NULL);
    s->context = EVP_MD_CTX_new();
    must_succeed(s->context && EVP_DigestInit_ex(s->context, EVP_sha256(), NULL));
    return s;
}

void sha256_add(struct sha256 *s, const void *bytes, size_t count)
{
    must_succeed(EVP_DigestUpdate(s->context, bytes, count));
}

void sha256_finish(struct sha256 *s, char text[SHA256_TEXT])
{
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned length = 0;
    must_succeed(EVP_DigestFinal_ex(s->context, sum, &length) && length == 32);
    for (unsigned i = 0; i < 32; i++)
        snprintf(text + (size_t)2 * i, 3, "%02x", sum[i]);
    EVP_MD_CTX_free(s->context);
    free(s);
}
