/* call.c - a rank's call as text, and whether all ranks make the same. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "train/comm/comm_internal.h"

static const char *const type_names[] = {[COMM_F32] = "f32",
                                         [COMM_F64] = "f64",
                                         [COMM_BF16] = "bf16",
                                         [COMM_F16] = "f16",
                                         [COMM_INT32] = "int32"};

// clang-format off
static const struct op {
    const char *name;
    bool has_bytes, has_type;
    const char *peer; /* word in front of the peer; NULL for collectives */
} ops[] = {
    [COMM_ALL_REDUCE]     = {"all_reduce",     true,  true,  NULL},
    [COMM_ALL_GATHER]     = {"all_gather",     true,  false, NULL},
    [COMM_REDUCE_SCATTER] = {"reduce_scatter", true,  true,  NULL},
    [COMM_ALL_TO_ALL]     = {"all_to_all",     false, false, NULL},
    [COMM_SEND]           = {"send",           true,  false, "to"},
    [COMM_RECEIVE]        = {"receive",        true,  false, "from"},
    [COMM_CLOSE]          = {"comm_close",     false, false, NULL},
};
// clang-format on

/* FNV-1a, a rank at a time */
static uint64_t hash_of(const unsigned *ranks, unsigned size)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (unsigned i = 0; i < size; i++)
        hash = (hash ^ ranks[i]) * 0x100000001b3u;
    return hash;
}

struct comm_call comm_call_of(const struct comm_group *g, enum comm_op op, uint64_t bytes)
{
    return (struct comm_call){
        .op = op, .group_size = g->size, .group_hash = hash_of(g->ranks, g->size), .bytes = bytes};
}

void comm_call_print(char text[COMM_CALL_TEXT], const struct comm_call *c)
{
    const struct op *op = &ops[c->op];
    char bytes[32] = "", type[24] = "", whom[48];
    if (op->has_bytes) snprintf(bytes, sizeof bytes, " of %" PRIu64 " bytes", c->bytes);
    if (op->has_type)
        snprintf(type, sizeof type, " of %s%s", type_names[c->type],
                 c->reduction == COMM_MAX ? " (max)" : "");
    if (op->peer)
        snprintf(whom, sizeof whom, " %s rank %u", op->peer, c->peer);
    else
        snprintf(whom, sizeof whom, " among %u rank%s", c->group_size,
                 c->group_size == 1 ? "" : "s");
    snprintf(text, COMM_CALL_TEXT, "%s%s%s%s", op->name, bytes, type, whom);
}

static bool same_call(const struct comm_call *a, const struct comm_call *b)
{
    return a->op == b->op && a->type == b->type && a->reduction == b->reduction &&
           a->group_size == b->group_size && a->bytes == b->bytes;
}

enum status comm_call_compare(unsigned rank, const struct comm_call *mine, unsigned other_rank,
                              const struct comm_call *other, struct error *err)
{
    char text[COMM_CALL_TEXT], other_text[COMM_CALL_TEXT];
    comm_call_print(text, mine);
    comm_call_print(other_text, other);
    if (!same_call(mine, other))
        return fail(err, ERR_RANK, "rank %u calls %s, rank %u %s", other_rank, other_text, rank,
                    text);
    if (mine->group_hash != other->group_hash)
        return fail(err, ERR_RANK, "rank %u and rank %u call %s for different groups", other_rank,
                    rank, text);
    return OK;
}

enum status comm_expect(unsigned from, uint64_t bytes, unsigned to, uint64_t expected,
                        struct error *err)
{
    if (bytes == expected) return OK;
    return fail(err, ERR_RANK, "rank %u sends %" PRIu64 " bytes to rank %u, which expects %" PRIu64,
                from, bytes, to, expected);
}
