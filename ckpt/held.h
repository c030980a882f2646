/* held.h - tensors in the memory of ranks: each piece is written by its holder.
 *
 * All ranks make the same plan of the same pieces; only piece.memory differs.
 *
 * - A rank that holds all elements of a file writes the file.
 * - If several hold elements, the file is *shared*: each writes its own. When
 *   all are done, rank 0 writes the bytes between the segments (executor_join).
 * - Rank 0 also writes elements of a shared file that come from files. */
#ifndef FERRY_CKPT_HELD_H
#define FERRY_CKPT_HELD_H

#include "ckpt/plan.h"

/* Whether a piece of the tensor is in memory; then each piece has a holder. */
bool tensor_is_held(const struct tensor *t);

/* Sets held, shared and rank of a plan's files. */
void held_set_ranks(struct plan *p);

/* The parts of a tensor that a rank holds, in arena a; side a is flat in the
 * tensor. */
struct pair *held_parts(const struct tensor *t, unsigned rank, struct arena *a, size_t *count);

/* The copies of a finished plan; those of held tensors have only target pieces
 * of the rank. In arena a; the plan's own array if no tensor is held. */
MUST_CHECK enum status held_copies(const struct plan *p, unsigned rank, struct arena *a,
                                   const struct plan_copy **out, struct error *err);

#endif
