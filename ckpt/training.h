/* training.h - the state of a training run beside its tensors: step, samples,
 * parameter groups, schedule, loss scale.
 *
 * Members have the names of Megatron-LM's args, its opt_param_scheduler and its
 * param_groups. The tables below are the only list of members; reading,
 * writing, printing and comparing use them.
 *
 * Members that a source lacks stay "not given": 0 for a count, NaN for a real
 * number, NULL for a text. A boolean is always given. training_init and
 * param_group_init make states with nothing given. An infinite number counts as
 * not given: no JSON has it. */
#ifndef FERRY_CKPT_TRAINING_H
#define FERRY_CKPT_TRAINING_H

#include <cjson/cJSON.h>

#include "ckpt/field.h"
#include "common/arena.h"
#include "common/status.h"

/* Groups are compared in pairs, and a hostile file may name any number. */
enum { MAX_PARAM_GROUPS = 1000 };

// clang-format off
/* Kind, name, part (enum training_part). */
#define TRAINING_FIELDS(X)                                                                                          \
    X(UINT, iteration,                PROGRESS)   /* of the training loop; the name of a checkpoint */              \
    X(UINT, step,                     PROGRESS)   /* of the optimizer: updates that were made */                    \
    X(UINT, consumed_train_samples,   PROGRESS)                                                                     \
    X(UINT, skipped_train_samples,    PROGRESS)                                                                     \
    X(UINT, consumed_valid_samples,   PROGRESS)                                                                     \
    X(UINT, consumed_tokens,          PROGRESS)                                                                     \
    X(REAL, floating_point_operations, PROGRESS)  /* num_floating_point_operations_so_far */                        \
    X(TEXT, optimizer,                OPTIMIZER)  /* "adam", "sgd", "muon": args.optimizer */                       \
    X(REAL, max_lr,                   SCHEDULE)                                                                     \
    X(REAL, min_lr,                   SCHEDULE)                                                                     \
    X(TEXT, lr_decay_style,           SCHEDULE)   /* constant, linear, cosine, inverse-square-root, WSD */          \
    X(REAL, lr_warmup_steps,          SCHEDULE)   /* in samples, as all steps here; a fraction of them may be meant */ \
    X(UINT, lr_decay_steps,           SCHEDULE)                                                                     \
    X(UINT, num_steps,                SCHEDULE)   /* where the schedule stands */                                   \
    X(REAL, start_wd,                 SCHEDULE)                                                                     \
    X(REAL, end_wd,                   SCHEDULE)                                                                     \
    X(TEXT, wd_incr_style,            SCHEDULE)                                                                     \
    X(UINT, wd_incr_steps,            SCHEDULE)                                                                     \
    X(REAL, loss_scale,               LOSS_SCALE)                                                                   \
    X(UINT, growth_tracker,           LOSS_SCALE) /* good steps since the scale changed last */                     \
    X(UINT, hysteresis_tracker,       LOSS_SCALE) /* overflows that are still left before it is lowered */

/* Kind, name: the members of a group of parameters. */
#define GROUP_FIELDS(X)                                                                            \
    X(TEXT, members)                /* which parameters: a row of group_members[]; NULL: not known */ \
    X(TEXT, optimizer)              /* where a run has several; NULL: the run's only one */         \
    X(BOOL, is_expert_parallel)     /* the experts among them that are split over ranks; else the others */ \
    X(UINT, step)                                                                                  \
    X(REAL, lr)                                                                                    \
    X(REAL, max_lr)                                                                                \
    X(REAL, min_lr)                                                                                \
    X(REAL, lr_mult)                                                                               \
    X(REAL, beta1)                                                                                 \
    X(REAL, beta2)                                                                                 \
    X(REAL, eps)                                                                                   \
    X(REAL, momentum)                                                                              \
    X(REAL, weight_decay)                                                                          \
    X(REAL, wd_mult)                                                                               \
    X(BOOL, decoupled_weight_decay) /* true unless a source says otherwise: AdamW, not Adam */      \
    X(BOOL, amsgrad)                                                                               \
    X(BOOL, is_decoupled_lr)
// clang-format on

/* The parts of the state that a target keeps or loses as a whole. */
enum training_part {
    TRAINING_PROGRESS,
    TRAINING_OPTIMIZER,
    TRAINING_SCHEDULE,
    TRAINING_LOSS_SCALE,
    TRAINING_GROUPS,
    TRAINING_RNG, /* has_rng, no fields: only formats know them */
    NUM_TRAINING_PARTS
};
extern const char *const training_part_names[NUM_TRAINING_PARTS]; /* "progress", "loss scale" */

struct param_group {
    GROUP_FIELDS(FIELD_MEMBER)
    const char *listed; /* without `members`: "3 listed parameters", for people; NULL: no list */
};

struct training {
    TRAINING_FIELDS(FIELD_MEMBER)
    struct param_group *groups;
    size_t num_groups, groups_capacity;
    bool has_rng; /* has states of random number generators */
};

struct training_field {
    struct field field;
    enum training_part part;
};
extern const struct training_field training_fields[];
extern const size_t num_training_fields;
extern const struct field group_fields[];
extern const size_t num_group_fields;

/* A value of param_group.members, and the parameters that belong to it. If
 * several rules match a parameter, it belongs to the first in the table that a
 * group of the state names.
 *
 * The rules are Megatron's
 * (megatron/core/optimizer/__init__.py:_get_param_groups):
 *
 * - no weight decay for biases and parameters of one dimension; with
 *   --apply-wd-to-qk-layernorm except for the norms of queries and keys;
 * - --decoupled-lr for embedding and output layer;
 * - with --optimizer muon and lion, hidden matrices have one optimizer (routers,
 *   experts and position embeddings too), the rest another
 *   (emerging_optimizers.py:_is_nonlinear_or_embedding). */
struct group_member_rule {
    const char *name; /* "embeddings", "matrices", "vectors", "all" ... */
    bool (*has)(const char *logical, unsigned num_dims);
};
extern const struct group_member_rule group_members[];
extern const size_t num_group_members;
const struct group_member_rule *group_members_find(const char *name); /* NULL: none */

/* A user's values that complete a state. NaN and NULL: not given. */
struct training_given {
    double lr, min_lr, weight_decay, adam_beta1, adam_beta2, adam_eps;
    const char *lr_decay_style;
    double lr_warmup, lr_decay; /* samples */
};
void training_given_init(struct training_given *g);

void training_init(struct training *t);
void param_group_init(struct param_group *g);
/* A copy of `from`, whose groups are copied into arena a. */
struct training training_copy(const struct training *from, struct arena *a);
/* Adds an empty group, in arena a. */
struct param_group *training_add_group(struct training *t, struct arena *a);
/* The group of a parameter; NULL if no group of known members matches. It may
 * still belong to a group of unknown members, if there is one. */
const struct param_group *training_group_of(const struct training *t, const char *logical,
                                            unsigned num_dims, bool is_expert_parallel);
/* Whether the rule "hidden_matrices" has the parameter. */
bool training_hidden_matrix(const char *logical, unsigned num_dims);
/* Whether hidden matrices have the run's optimizer, t->optimizer, and the rest
 * another: groups name both. */
bool training_is_split(const struct training *t);
/* Whether any field of the part is given; TRAINING_GROUPS: whether there is a
 * group. */
bool training_has(const struct training *t, enum training_part part);
/* Whether a field of a struct training or param_group is given. */
bool training_field_given(const struct field *f, const void *of);

/* {"iteration": 10, "step": 2, "groups": [{"members": "matrices", "lr": 0.01,
 * ...}], ...}: the given fields, without states of random number generators.
 * The caller frees it. */
cJSON *training_json(const struct training *t);
/* Reads that into a new state. ERR_CORRUPT, naming the member, if a member has
 * another kind, `members` is not a known rule, or there are more than
 * MAX_PARAM_GROUPS groups. *unknown names the unknown members ("a,
 * groups[0].b"; NULL: none). In arena a. */
MUST_CHECK enum status training_from_json(struct training *t, const cJSON *tree, struct arena *a,
                                          const char **unknown, struct error *err);

/* A field that both states have, with different values. */
struct training_difference {
    const char *field;     /* "step", "groups[1].lr" */
    const char *values[2]; /* texts */
};
/* All differences, in arena a. Groups are matched by members and
 * is_expert_parallel, equal ones in the order of their fields. A group is named
 * by its place in x, or in y if only y has it. A group of one side alone is a
 * difference only if both sides have groups. Real numbers are compared exactly. */
size_t training_differences(const struct training *x, const struct training *y, struct arena *a,
                            struct training_difference **out);

/* Lines for people, in arena a, one for each of these that is given:
 * "step 2, iteration 10, 40 samples",
 * "adam, 2 groups: matrices (lr 0.01, weight decay 0.1), vectors (lr 0.01)",
 * "schedule: cosine, lr 0.005 to 0.0005, warmup of 32 samples, decay over 160,
 * at sample 80",
 * "loss scale 65536", "states of random number generators". */
size_t training_lines(const struct training *t, struct arena *a, const char ***out);

#endif
