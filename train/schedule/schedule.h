/* schedule.h - in which order the stages of a pipeline compute the micro-batches of a step, and
 * when they send to one another.
 *
 * A model of P * V stages lies on P pipeline ranks: rank r has the V chunks r, P + r, 2 P + r ..
 * (Megatron-Core's virtual pipeline). A kind of schedule is a row of a table: it lists the actions
 * of each rank, forward and backward parts of chunks for micro-batches. A simulation then runs all
 * ranks, each action as soon as what it needs is there, and finds the order of all events of the
 * job. Since each rank keeps that order, ranks never wait for one another in a ring, whatever the
 * size of messages: the first event of the order that is not done can always be done.
 *
 * A rank sends what an action makes right behind it, and takes what comes between two actions. Of
 * several messages between the same two actions all go on at once (comm_backend.exchange). */
#ifndef FERRY_TRAIN_SCHEDULE_SCHEDULE_H
#define FERRY_TRAIN_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"

enum schedule_kind {
    SCHEDULE_ONE_BY_ONE, /* a micro-batch goes through all stages and back before the next begins */
    SCHEDULE_1F1B, /* one chunk a rank: forward and backward parts in turn, behind a warm-up */
    SCHEDULE_INTERLEAVED, /* the same of several chunks a rank */
    NUM_SCHEDULES
};
/* "1f1b"; NULL: there is no such kind. */
const char *schedule_name(enum schedule_kind kind);

struct schedule_shape {
    enum schedule_kind kind;
    unsigned ranks, chunks; /* P, and V of each */
    uint64_t micro_batches;
    unsigned group; /* of interleaved: micro-batches that go through a chunk before the next one has
                     * its turn (--microbatch-group-size-per-virtual-pipeline-stage); 0: P */
    bool forward_only;
};

struct schedule_message {
    bool sends, is_gradient;
    unsigned peer;  /* pipeline rank */
    unsigned chunk; /* of this rank: it sends its output (or its input's gradient), or takes its
                     * input (or its output's gradient) */
    uint64_t micro_batch;
};

struct schedule_action {
    bool is_backward;
    unsigned chunk;
    uint64_t micro_batch;
    size_t messages_before; /* so many of the rank's are done before it */
    int64_t begin,
        end; /* simulated: a forward part takes 1, a backward part 2, a message nothing */
};

/* What one rank does. */
struct schedule_rank {
    struct schedule_action
        *actions; /* [count + 1]; the last one is none: it ends the list of messages */
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
    int64_t end;                 /* when all is done */
};

/* ERR_USAGE where the kind cannot have this shape: 1f1b with several chunks, interleaved with a
 * number of micro-batches that the group does not divide up in the way of Megatron-Core. Call
 * schedule_release() afterwards, also after a failure. */
MUST_CHECK enum status schedule_make(struct schedule *s, const struct schedule_shape *shape,
                                     struct error *err);
void schedule_release(struct schedule *s);

/* The most micro-batches of a chunk that have begun their forward part and not ended their backward
 * part (of forward_only: their forward part); with those whose input has come already, or whose
 * output is being sent. */
struct schedule_depth {
    uint64_t computed, with_inputs;
};
struct schedule_depth schedule_depth(const struct schedule *s, unsigned rank, unsigned chunk);
/* A shape with few micro-batches whose chunks are as deep. */
struct schedule_shape schedule_shortened(const struct schedule_shape *shape);
/* The most micro-batches at a time that have begun on a rank and have a forward part to come. */
uint64_t schedule_window(const struct schedule *s, unsigned rank);
/* The share of the time that ranks wait: 0 to 1. */
double schedule_bubble(const struct schedule *s);

/* A line a rank: actions over time, each by the number of its micro-batch; backward parts in
 * brackets. columns: the width, about; what does not fit is cut. */
void schedule_print(const struct schedule *s, unsigned columns, struct strbuf *out);
/* The same as an SVG drawing. */
void schedule_draw(const struct schedule *s, struct strbuf *out);

#endif
