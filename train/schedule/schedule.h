/* schedule.h - the order in which pipeline stages compute the micro-batches of
 * a step and send messages.
 *
 * A model of P * V stages lies on P pipeline ranks: rank r has the V chunks r,
 * P + r, 2 P + r .. (Megatron-Core's virtual pipeline). A kind of schedule is a
 * row of a table: it lists the actions of each rank, forward and backward parts
 * of chunks for micro-batches.
 *
 * A simulation runs all ranks, each action once its inputs are there, and finds
 * the order of all events of the job. Every rank keeps that order, so ranks
 * never wait for each other in a ring, whatever the size of messages: the first
 * unfinished event can always proceed.
 *
 * A rank sends an action's result right behind it, and receives between two
 * actions. Several messages between the same two actions go at once
 * (comm_backend.exchange). */
#ifndef FERRY_TRAIN_SCHEDULE_SCHEDULE_H
#define FERRY_TRAIN_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

enum schedule_kind {
    SCHEDULE_ONE_BY_ONE,  /* a micro-batch goes through all stages and back before the next */
    SCHEDULE_1F1B,        /* one chunk a rank: a warm-up, then forward and backward parts in turn */
    SCHEDULE_INTERLEAVED, /* the same with several chunks a rank */
    NUM_SCHEDULES
};
/* "1f1b"; NULL: there is no such kind. */
const char *schedule_name(enum schedule_kind kind);

struct schedule_shape {
    enum schedule_kind kind;
    unsigned ranks, chunks; /* P, and V of each */
    uint64_t micro_batches;
    unsigned group; /* interleaved: micro-batches that a chunk computes before the next chunk's turn
                       (--microbatch-group-size-per-virtual-pipeline-stage); 0: P */
    bool forward_only;
};

struct schedule_message {
    bool sends, is_gradient;
    unsigned peer;  /* pipeline rank */
    unsigned chunk; /* of this rank: sends its output (or its input's gradient), or receives its
                       input (or its output's gradient) */
    uint64_t micro_batch;
};

struct schedule_action {
    bool is_backward;
    unsigned chunk;
    uint64_t micro_batch;
    size_t messages_before; /* number of the rank's messages before it */
    int64_t begin, end; /* simulated time: a forward part takes 1, a backward part 2, a message 0 */
};

/* Actions and messages of one rank. */
struct schedule_rank {
    struct schedule_action
        *actions; /* [count + 1]; the last is no action: it ends the list of messages */
    size_t count;
    struct schedule_message *messages; /* [num_messages] */
    size_t num_messages, capacity;
};

/* The first message between action k and the one before it. */
static inline size_t schedule_first_message(const struct schedule_rank *r, size_t k)
{
    return k ? r->actions[k - 1].messages_before : 0;
}

struct schedule {
    struct schedule_shape shape;
    struct schedule_rank *ranks; /* [shape.ranks] */
    int64_t end;                 /* end of the last action */
};

/* ERR_USAGE if the kind cannot have this shape: 1f1b with several chunks,
 * interleaved with a number of micro-batches that Megatron-Core cannot group.
 * Call schedule_release() afterwards, after a failure too. */
MUST_CHECK enum status schedule_make(struct schedule *s, const struct schedule_shape *shape,
                                     struct error *err);
void schedule_release(struct schedule *s);
/* The check of schedule_make() alone. */
MUST_CHECK enum status schedule_check(const struct schedule_shape *shape, struct error *err);

/* Most micro-batches of a chunk between the start of their forward part and the
 * end of their backward part (forward_only: of their forward part).
 * with_inputs: also those whose input has arrived or whose output is being
 * sent. */
struct schedule_depth {
    uint64_t computed, with_inputs;
};
struct schedule_depth schedule_depth(const struct schedule *s, unsigned rank, unsigned chunk);
/* Returns a shape with few micro-batches and the same depth of each chunk. */
struct schedule_shape schedule_shortened(const struct schedule_shape *shape);
/* Most micro-batches that have begun on a rank and have a forward part to come.
 */
uint64_t schedule_window(const struct schedule *s, unsigned rank);
/* Share of the time that ranks wait: 0 to 1. */
double schedule_bubble(const struct schedule *s);

/* Appends a line a rank: actions over time, each as the number of its
 * micro-batch, backward parts in brackets. columns: approximate width; longer
 * lines are truncated. A last line says what these mean. */
void schedule_print(const struct schedule *s, unsigned columns, struct strbuf *out);
/* The same as an SVG drawing, with a
 * legend, an axis and the bubble. */
void schedule_draw(const struct schedule *s, struct strbuf *out);

#endif
