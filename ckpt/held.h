/* held.h - tensors that lie in the memory of ranks: a piece is written by the rank that holds it.
 *
 * All ranks make the same plan of the same pieces; piece.memory alone is each one's own. A file
 * whose elements one rank holds is written by that rank. A file of several is *shared*: each of
 * them writes its elements into it, and rank 0, once all are done, the bytes between segments
 * (executor_join). What is in files as well goes into a shared file by rank 0. */
#ifndef FERRY_CKPT_HELD_H
#define FERRY_CKPT_HELD_H

#include "ckpt/plan.h"

/* Whether pieces of the tensor lie in memory: then each of its pieces has a holder. */
bool tensor_is_held(const struct tensor *t);

/* Sets held, shared and rank of the files of a plan. */
void held_set_ranks(struct plan *p);

/* The parts of a tensor that a rank holds, in arena a: a is flat in the tensor. */
struct pair *held_parts(const struct tensor *t, unsigned rank, struct arena *a, size_t *count);

/* The carries of a finished plan, but of those whose tensors are held no more target pieces than
 * the rank holds. In arena a; the plan's own where nothing is held. */
MUST_CHECK enum status held_carries(const struct plan *p, unsigned rank, struct arena *a,
                                    const struct carry **out, struct error *err);

#endif
