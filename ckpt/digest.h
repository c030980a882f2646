/* digest.h - digests of tensors, independent of format, sharding and process.
 *
 * A tensor's digest is "DTYPE[SHAPE]:" and the two sums of
 * kernels/cpu/digest_sums.h, 16 hexadecimal digits each, over its stored
 * elements in the order of the logical tensor:
 *
 *     BF16[2048,512]:0123456789abcdef0123456789abcdef
 *
 * A checkpoint's digest is a list of lines "NAME TAB DIGEST", sorted bytewise
 * by name, closed by a line of the name "*" with the SHA-256 of all lines
 * before it. If there is an optimizer, a second list follows, closed by
 * "optimizer.*". Neither has padding of the vocabulary. `ferry digest` adds two
 * lines about the config, "config.args" and "config", outside of both lists
 * (validate/digest_command.c). */
#ifndef FERRY_CKPT_DIGEST_H
#define FERRY_CKPT_DIGEST_H

#include "ckpt/scan.h"
#include "common/progress.h"
#include "common/sha256.h"
#include "common/strbuf.h"
#include "kernels/cpu/digest_sums.h"

/* Adds elements first, first + 1, ... of a tensor of this dtype. An element of
 * 16 bytes counts as four of 4; elements of 6 bits count by their bytes. */
void digest_add_elements(struct digest *d, enum dtype dtype, const void *elements, uint64_t count,
                         uint64_t first);

struct tensor_digest {
    const char *name;
    enum dtype dtype;
    unsigned num_dims;
    const uint64_t *shape;
    struct digest sums;
};

/* "BF16[2048,512]:..." */
void digest_print(struct strbuf *out, const struct tensor_digest *d);
/* Prints the lists; sorts `digests`. whole (may be NULL) is set to the sums of
 * the lines "*" and "optimizer.*", the second empty without an optimizer. */
void digest_print_all(struct strbuf *out, struct tensor_digest *digests, size_t count,
                      char whole[2][SHA256_TEXT]);

/* Computes the digests of a catalog's tensors except padding, in its order, by
 * one reading. *out is in arena a. */
struct digest_options {
    unsigned threads;
    uint64_t max_memory;
    bool direct_io;
    enum progress_style progress;
    bool no_optim; /* without the optimizer's tensors */
};
MUST_CHECK enum status digest_catalog(const struct catalog *c, const struct digest_options *o,
                                      struct arena *a, struct tensor_digest **out, size_t *count,
                                      struct error *err);

#endif
