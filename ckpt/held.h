/* held.h - tensors in the memory of ranks: each piece is written by the rank that holds it.
 *
 * All ranks make the same plan of the same pieces; only piece.memory differs. If one rank holds all
 * elements of a file, it writes the file. If several do, the file is *shared*: each writes its
 * elements, and when all are done rank 0 writes the bytes between the segments (executor_join).
 * Rank 0 also writes the elements of a shared file that come from files. */
#ifndef FERRY_CKPT_HELD_H
#define FERRY_CKPT_HELD_H

#include "ckpt/plan.h"

/* Whether any piece of the tensor lies in memory; then each piece has a holder. */
bool tensor_is_held(const struct tensor *t);

/* Sets held, shared and rank of the files of a plan. */
void held_set_ranks(struct plan *p);

/* The parts of a tensor that a rank holds, in arena a: a is flat in the tensor. */
struct pair *held_parts(const struct tensor *t, unsigned rank, struct arena *a, size_t *count);

/* The carries of a finished plan, where carries of held tensors have only the target pieces that
 * the rank holds. In arena a; the plan's own array if no tensor is held. */
MUST_CHECK enum status held_carries(const struct plan *p, unsigned rank, struct arena *a,
                                    const struct carry **out, struct error *err);

#endif
