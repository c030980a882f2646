/* comm_internal.h - shared by the backends: calls and their comparison, and
 * sums. */
#ifndef FERRY_TRAIN_COMM_COMM_INTERNAL_H
#define FERRY_TRAIN_COMM_COMM_INTERNAL_H

#include <stdbool.h>
#include <string.h>

#include "train/comm/comm.h"

enum comm_op {
    COMM_ALL_REDUCE,
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_TO_ALL,
    COMM_SEND,
    COMM_RECEIVE,
    COMM_CLOSE,
};

/* A call of a rank; must be the same on all members of the group. */
struct comm_call {
    enum comm_op op;
    enum comm_type type;
    enum comm_reduction reduction;
    unsigned group_size, peer; /* peer: of send and receive, a rank of the job */
    uint64_t group_hash;       /* of the ranks in their order */
    uint64_t bytes;            /* 0 for all_to_all, which sends each member another number */
};

/* A collective call of g. */
struct comm_call comm_call_of(const struct comm_group *g, enum comm_op op, uint64_t bytes);

enum { COMM_CALL_TEXT = 160 };
/* "all_reduce of 12 bytes of f32 among 4 ranks" */
void comm_call_print(char text[COMM_CALL_TEXT], const struct comm_call *c);

/* ERR_RANK "rank 3 calls all_reduce of .., rank 0 all_gather of .." if calls
 * differ. */
MUST_CHECK enum status comm_call_compare(unsigned rank, const struct comm_call *mine,
                                         unsigned other_rank, const struct comm_call *other,
                                         struct error *err);

/* ERR_RANK if `from` sends a number of bytes that `to` does not expect. */
MUST_CHECK enum status comm_expect(unsigned from, uint64_t bytes, unsigned to, uint64_t expected,
                                   struct error *err);

size_t comm_type_bytes(enum comm_type type);

/* out[k] = in[0][k] + in[1][k] + .. in this order, or their maximum (NaN if one
 * is NaN). out may be one of in. */
void comm_reduce(void *out, const void *const *in, unsigned num_in, size_t count,
                 enum comm_type type, enum comm_reduction reduction);

/* NULL is allowed with 0 bytes, unlike in memcpy and pointer arithmetic. */
static inline void copy(void *to, const void *from, size_t bytes)
{
    if (bytes && to != from) memcpy(to, from, bytes);
}

static inline char *past(const void *p, size_t bytes)
{
    return bytes ? (char *)p + bytes : (char *)p;
}

static inline size_t at_most(size_t n, size_t most)
{
    return n < most ? n : most;
}

#endif
