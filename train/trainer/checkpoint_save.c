/* checkpoint_save.c - makes a run's state a checkpoint in memory, plans and
 * writes it. */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/executor.h"
#include "ckpt/publish.h"
#include "common/checked.h"
#include "common/file.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "common/text.h"
#include "convert/cli/contents.h"
#include "convert/map/model_fit.h"
#include "convert/map/params.h"
#include "convert/megatron/config_difference.h"
#include "convert/megatron/megatron_args.h"
#include "convert/record.h"
#include "convert/states.h"
#include "train/trainer/checkpoint_internal.h"

/* ---- tensors in memory ---- */

struct holding {
    const struct train_state *s; /* of the rank whose pieces are added */
    struct checkpoint *c;        /* under construction */
    bool sgd;
    /* That rank, whether it is this one, and its place in the groups (NULL: one
     * rank). Of ranks with the same elements one holds them. */
    unsigned rank;
    bool is_own;
    const struct groups *groups;
};

/* The tensor, or its padding, to which parts are added. */
struct adding {
    const struct holding *h;
    enum held_kind from;
    enum dtype dtype; /* there */
    struct tensor *tensor;
};

static enum status add_held_piece(void *context, const struct held_part *part, struct error *err)
{
    const struct adding *x = context;
    const struct holding *h = x->h;
    const struct piece piece = {.origin = ORIGIN_MEMORY,
                                .dtype = x->dtype,
                                .memory =
                                    h->is_own ? held_at(h->s, x->from, x->dtype, part->at) : NULL,
                                .holder = h->rank};
    (void)err;
    tensor_add_piece(&h->c->arena, x->tensor, &piece, &part->pair);
    return OK;
}

/* Adds the rank's part of a tensor, or of its padding, under a name. from: the
 * region. */
static enum status add_held_tensor(const struct holding *h, const struct held_tensor *t,
                                   const char *name, enum held_kind from, bool padding,
                                   struct error *err)
{
    const struct param_spec *spec = t->of->spec;
    struct adding x = {.h = h, .from = from, .dtype = held_dtype(h->s, t, from)};
    uint64_t shape[MAX_AXES];
    memcpy(shape, spec->shape, spec->num_dims * sizeof *shape);
    if (padding) shape[0] = h->s->padded_rows - spec->shape[0];
    TRY(catalog_add(&h->c->catalog, name, x.dtype, spec->num_dims, shape, &x.tensor, err));
    return held_each_part(h->s, t, from, padding ? t->numel : 0,
                          padding ? t->padding_numel : t->numel, add_held_piece, &x, err);
}

static enum status hold_state(const struct holding *h, const struct held_tensor *t,
                              const char *state, enum held_kind from, struct error *err)
{
    struct arena *a = &h->c->arena;
    TRY(add_held_tensor(h, t, held_name(t, state, false, a), from, false, err));
    if (!t->padding_numel) return OK;
    return add_held_tensor(h, t, held_name(t, state, true, a), from, true, err);
}

/* A run without any state, such as plain SGD in one precision, writes its
 * weights as masters: formats keep the schedule and groups with states only. */
static bool writes_itself_as_master(const struct train_state *s)
{
    return !s->data[HELD_MASTER] && !s->data[HELD_EXP_AVG];
}

/* Whether this rank, among those with the same elements, holds them. Each data
 * parallel rank holds its own part of sharded states. */
static bool is_holder(const struct holding *h, const struct held_tensor *t, enum held_kind kind)
{
    const bool is_shard = h->s->shard && kind != HELD_WEIGHT;
    return !h->groups ||
           parameter_counts(t->of, h->groups, is_shard ? 1u << GROUP_DP | 1u << GROUP_EDP : 0);
}

static enum status hold_tensor(void *context, const struct held_tensor *t, struct error *err)
{
    const struct holding *h = context;
    const bool has_weight = is_holder(h, t, HELD_WEIGHT);
    if (has_weight) TRY(hold_state(h, t, NULL, HELD_WEIGHT, err));
    if (!h->c->training.optimizer.present || !held_is_trained(t)) return OK;
    for (int k = HELD_MASTER; k < NUM_HELD; k++)
        if (h->s->data[k] && is_holder(h, t, (enum held_kind)k))
            TRY(hold_state(h, t, held_state((enum held_kind)k, h->sgd), (enum held_kind)k, err));
    if (!has_weight || !writes_itself_as_master(h->s)) return OK;
    return hold_state(h, t, master_state, HELD_WEIGHT, err);
}

/* ---- the run as a checkpoint ---- */

/* The run keeps only args of the origin's common state. */
static struct value *common_of(const struct checkpoint *origin, struct arena *a)
{
    struct value *args = value_get(origin->training.common, "args"), *common = value_dict(a);
    if (!args) return NULL;
    value_dict_set(a, common, "args", args);
    return common;
}

/* Groups read from Megatron keep the keys unknown to Ferry. */
static void keep_native_groups(struct checkpoint *c, const struct training_state *from)
{
    const struct training *run = &c->training.run, *had = &from->run;
    if (!from->native_groups || run->num_groups != had->num_groups) return;
    for (size_t i = 0; i < run->num_groups; i++)
        if (!text_equal(run->groups[i].members, had->groups[i].members) ||
            run->groups[i].is_expert_parallel != had->groups[i].is_expert_parallel)
            return;
    c->training.native_groups = from->native_groups;
    c->training.native_schedule = from->native_schedule;
}

static enum status hold_tensors(struct holding *h, struct error *err)
{
    struct train_state of = *h->s;
    h->is_own = true;
    if (!of.ranks) return held_each(h->s, hold_tensor, h, err);
    h->s = &of;
    for (h->rank = 0; h->rank < of.world->size; h->rank++) {
        of.parameters = of.ranks[h->rank].parameters;
        of.shard = of.ranks[h->rank].shard;
        h->is_own = h->rank == of.world->index;
        h->groups = of.ranks[h->rank].groups;
        TRY(held_each(&of, hold_tensor, h, err));
    }
    return OK;
}

/* Whether the run's model computes something else than the origin's config.json
 * describes. */
static bool is_other_model(const struct checkpoint *origin, const struct model_config *config,
                           struct arena *a)
{
    const struct checkpoint from = {.config = origin->config,
                                    .config_origin = origin->config_origin},
                            to = {.config = *config, .config_origin = CONFIG_OF_ARGS};
    struct config_difference *all;
    return config_differences(&from, &to, a, &all) && all[0].effect == EFFECT_COMPUTES;
}

const char *checkpoint_family(const struct checkpoint *origin, const struct model_config *config,
                              const struct model_maps *maps, struct arena *a)
{
    if (!is_other_model(origin, config, a)) return origin->family;
    const struct model_map *map = model_fit(maps, config);
    return map ? model_map_family(map) : NULL;
}

/* Leaves out a config.json of another model: readers of the checkpoint would
 * believe it. */
static void leave_other_model(struct checkpoint *c, const struct train_state *s,
                              const struct model_maps *maps)
{
    c->family = checkpoint_family(s->origin, s->config, maps, &c->arena);
    if (!is_other_model(s->origin, s->config, &c->arena)) return;
    c->hf_folder = c->tokenizer_folder = NULL;
    c->config_origin = CONFIG_OF_ARGS;
}

static enum status hold_run(struct checkpoint *c, const struct train_state *s,
                            const struct model_maps *maps, bool optimizer, struct error *err)
{
    static const struct format in_memory = {.name = "memory", .title = "memory"};
    const struct checkpoint *from = s->origin;
    struct holding h = {.s = s, .c = c, .sgd = held_is_sgd(s->training)};
    checkpoint_init(c, "the run");
    c->folder = "";
    c->format = &in_memory;
    c->config = *s->config;
    c->config_origin = from->config_origin;
    c->unknown = from->unknown;
    c->hf_folder = s->hf_folder ? s->hf_folder : from->hf_folder;
    c->tokenizer_folder = s->tokenizer_folder ? s->tokenizer_folder : from->tokenizer_folder;
    /* --keep-last may have removed it */
    if (c->tokenizer_folder && !path_is_folder(c->tokenizer_folder)) c->tokenizer_folder = NULL;
    leave_other_model(c, s, maps);
    c->transformer_engine_names = !s->local_spec;
    c->training = (struct training_state){
        .iteration = (int64_t)s->training->iteration,
        .common = common_of(from, &c->arena),
        .optimizer = {.present = optimizer, .kind = "the run's"},
        .run = training_copy(s->training, &c->arena),
        .rng = {.wanted = !s->no_rng,
                .kept = s->rng,
                .num_kept = s->num_rng,
                .seed = s->seed,
                .device_is_host = s->on_host},
        .on_host = s->on_host,
    };
    keep_native_groups(c, &from->training);
    TRY(params_again(from->params, &c->config, &c->arena, &c->params, err));
    TRY(hold_tensors(&h, err));
    return catalog_check(&c->catalog, err);
}

/* ---- the plan ---- */

/* Writes the vocabulary rows that the run holds: stored padding counts in the
 * softmax. Keeps --make-vocab-size-divisible-by if it gives the same rows. */
static uint64_t divisible_by(const struct train_state *s)
{
    const uint64_t rows = s->config->vocab_size, tp = s->layout.tp ? s->layout.tp : 1,
                   held = s->padded_rows > rows ? s->padded_rows : rows,
                   own = s->config->make_vocab_size_divisible_by;
    if (!rows) return 1;
    if (own && padded_vocab_size(rows, own, tp) == held) return own;
    return held == rows || held % tp ? 1 : held / tp;
}

/* Megatron-LM's format for the optimizer of the same run, so that the same line
 * reads it. Its flat buffers have no F64. */
static enum optim_format optim_format_of(const struct train_state *s,
                                         const struct checkpoint_target *to)
{
    if (!(to->format->has & FORMAT_ARGS)) return OPTIM_DEFAULT;
    if (!s->distributed_optimizer) return OPTIM_not_distributed;
    if (to->format->has & FORMAT_COMMON_OBJECT) return OPTIM_fully_reshardable;
    return s->dtype[HELD_WEIGHT] == DT_F64 ? OPTIM_not_distributed : OPTIM_distributed;
}

static const uint64_t MAX_SHARD_BYTES = 5000000000;

static struct target_options options_of(const struct train_state *s,
                                        const struct checkpoint_target *to)
{
    return (struct target_options){
        .format = to->format,
        .layout = s->layout,
        .casts = true,
        .dtype = s->dtype[HELD_WEIGHT],
        .divisible_by = divisible_by(s),
        .has_iteration = true,
        .iteration = s->training->iteration,
        .transformer_engine = !s->local_spec,
        .grouped_gemm = s->grouped_gemm,
        .max_shard_bytes = MAX_SHARD_BYTES,
        .durable = to->fsync,
        .optimizer = !to->no_optimizer,
        .optim_format = optim_format_of(s, to),
        .args = s->args,
    };
}

/* ---- the destination ---- */

static const char *folder_of(uint64_t iteration, struct arena *a)
{
    return arena_printf(a, "iter_%07" PRIu64, iteration);
}

bool checkpoint_has(const struct checkpoint_target *to, uint64_t iteration)
{
    struct arena a;
    arena_init(&a);
    const bool has = path_is_folder(path_join(&a, to->dir, folder_of(iteration, &a)));
    arena_release(&a);
    return has;
}

const char *checkpoint_hf_folder(const struct checkpoint_target *to, uint64_t iteration,
                                 struct arena *a)
{
    const char *folder = path_join(a, to->dir, folder_of(iteration, a));
    return to->format == &format_hf ? folder : path_join(a, folder, MEGATRON_HF_FOLDER);
}

const char *checkpoint_tokenizer_folder(const struct checkpoint_target *to, uint64_t iteration,
                                        struct arena *a)
{
    const char *in = to->format->tokenizer_in;
    return in ? path_join(a, path_join(a, to->dir, folder_of(iteration, a)), in) : NULL;
}

static enum status may_replace(void *target, const char *folder, struct publish_replaced *out,
                               struct error *err)
{
    return contents_may_replace(target, folder, out, err);
}

/* Names the work in locks. */
static const char lock_work[] = "train";

/* Files left by an interrupted save are useless: the run writes them anew. */
static bool is_leftover(void *context, const char *unit_folder)
{
    (void)context, (void)unit_folder;
    return true;
}

/* A root may have other files, such as logs. */
static enum status check_destination(struct publishing *p, struct arena *a, struct target *t,
                                     const struct checkpoint_target *to, uint64_t iteration,
                                     struct error *err)
{
    static const char *const any[] = {"*", NULL};
    const char *name = folder_of(iteration, a);
    const bool has_root = to->format->has & FORMAT_ITERATIONS;
    struct publish_options how = {.may_replace = may_replace,
                                  .is_made = is_leftover,
                                  .context = t,
                                  .work = lock_work,
                                  .overwrite = to->overwrite,
                                  .restart = true};
    format_tell_publishing(to->format, &how);
    how.root_signs = any;
    return publish_check(p, a, has_root ? to->dir : path_join(a, to->dir, name),
                         has_root ? name : NULL, "", &how, err);
}

static enum status check_space(const struct target *t, const struct publishing *p,
                               const struct checkpoint_target *to, struct error *err)
{
    uint64_t needed = t->plan.target_bytes + SMALL_FILES_BYTES, there;
    TRY(folder_free_bytes(publish_existing_parent(p->arena, to->dir), &there, err));
    needed -= min_u64(needed, publish_staged_bytes(p));
    if (needed <= there) return OK;
    return fail(err, ERR_IO, "%s: no space for iteration %" PRIu64 ": %s needed, %s free", to->dir,
                t->options.iteration, bytes_text(needed), bytes_text(there));
}

/* ---- writing ---- */

/* Lists the root's files without the record, which a run does not write. */
static enum status list_root_files(struct target *t, struct root_file **files, size_t *num_files,
                                   struct error *err)
{
    size_t count = 0;
    *num_files = 0;
    if (!t->format->target->root_files) return OK;
    TRY(t->format->target->root_files(t, files, &count, err));
    for (size_t i = 0; i < count; i++)
        if (strcmp((*files)[i].name, record_name)) (*files)[(*num_files)++] = (*files)[i];
    return OK;
}

/* Writes all files but the weights, and publishes. */
static enum status finish_files(struct target *t, struct publishing *p, struct error *err)
{
    struct root_file *files = NULL;
    size_t num_files;
    TRY(target_small_files(t, p->folder, err));
    TRY(list_root_files(t, &files, &num_files, err));
    return publish_commit(p, files, num_files, err);
}

static enum status begin_publishing(struct publishing *p, struct target *t,
                                    const struct checkpoint_target *to, struct error *err)
{
    TRY(check_destination(p, &t->plan.arena, t, to, t->options.iteration, err));
    TRY(check_space(t, p, to, err));
    return publish_begin(p, to->fsync, err);
}

static struct executor_options executor_options_of(const struct checkpoint_target *to)
{
    return (struct executor_options){
        .threads = to->threads, .fsync = to->fsync, .progress = PROGRESS_NONE};
}

static enum status write_and_publish(struct target *t, const struct checkpoint_target *to,
                                     struct error *err)
{
    const struct executor_options o = executor_options_of(to);
    struct executor_result result;
    struct publishing p;
    TRY(begin_publishing(&p, t, to, err));
    enum status st = executor_run(&t->plan, p.folder, &o, &result, err);
    if (!st) st = finish_files(t, &p, err);
    if (st) publish_abandon(&p);
    return st;
}

/* ---- writing, by several ranks ---- */

/* Paths where rank 0 has begun to publish. */
struct staged {
    char folder[PATH_MAX], staging[PATH_MAX];
};

static enum status share_paths(struct comm_group *world, const struct publishing *p,
                               struct staged *out, struct error *err)
{
    struct staged own = {"", ""}, *all = must_calloc(world->size, sizeof *all);
    if (world->index == 0) {
        (void)snprintf(own.folder, sizeof own.folder, "%s", p->folder);
        (void)snprintf(own.staging, sizeof own.staging, "%s", p->staging);
    }
    enum status st = world->comm->backend->all_gather(world, &own, all, sizeof own, err);
    if (!st) *out = all[0];
    free(all);
    return st;
}

/* Each rank's journal tells rank 0 which elements of shared files it has
 * written. */
struct together {
    struct target *t;
    const struct checkpoint_target *to;
    struct comm_group *world;
    struct publishing p; /* of rank 0 */
    struct staged at;
    struct executor_options o;
    struct executor_result result;
    const char **journals; /* [world->size] */
};

static enum status check_shared(const struct together *x, struct error *err)
{
    if (path_is_folder(x->at.staging)) return OK;
    return fail(err, ERR_IO,
                "%s: rank 0 created this folder, but this rank does not see it; save to a file "
                "system that all hosts share",
                x->at.staging);
}

static enum status write_own(struct together *x, struct error *err)
{
    struct arena *a = &x->t->plan.arena;
    const unsigned size = x->world->size;
    x->journals = arena_array(a, size, sizeof *x->journals);
    for (unsigned r = 0; r < size; r++)
        x->journals[r] = path_join(a, x->at.staging, arena_printf(a, "%s-%u", publish_journal, r));
    x->o = executor_options_of(x->to);
    x->o.rank = x->world->index;
    x->o.num_ranks = size;
    x->o.work = lock_work;
    x->o.journal_path = x->journals[x->world->index];
    x->o.journal_bytes = UINT64_MAX;
    plan_split(&x->t->plan, size);
    return executor_run(&x->t->plan, x->at.folder, &x->o, &x->result, err);
}

static enum status finish_together(struct together *x, struct error *err)
{
    if (x->world->index) return OK;
    TRY(executor_join(&x->t->plan, x->p.folder, &x->o, x->journals, &x->result, err));
    return finish_files(x->t, &x->p, err);
}

/* A failure of one rank in any step fails all ranks. */
static enum status write_together(struct together *x, struct error *err)
{
    TRY(share_paths(x->world, &x->p, &x->at, err));
    TRY(comm_agree(x->world, check_shared(x, err), err));
    TRY(comm_agree(x->world, write_own(x, err), err));
    return comm_agree(x->world, finish_together(x, err), err);
}

static enum status write_by_ranks(struct target *t, const struct train_state *s,
                                  const struct checkpoint_target *to, struct error *err)
{
    struct together x = {.t = t, .to = to, .world = s->world};
    const bool is_first = s->world->index == 0;
    enum status own = is_first ? begin_publishing(&x.p, t, to, err) : OK;
    enum status st = comm_agree(s->world, own, err);
    if (!st) st = write_together(&x, err);
    if (st && is_first && !own) publish_abandon(&x.p);
    return st;
}

/* ---- older iterations ---- */

static int compare_iterations(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? 1 : -(x > y); /* the newest first */
}

/* Lists the iterations up to `newest` in DIR, the newest first; in arena a. */
static enum status list_iterations(const char *dir, uint64_t newest, struct arena *a,
                                   uint64_t **out, size_t *count, struct error *err)
{
    struct name_list list;
    TRY(folder_list(dir, a, &list, err));
    *out = arena_array(a, list.count + 1, sizeof **out);
    *count = 0;
    for (size_t i = 0; i < list.count; i++) {
        uint64_t n;
        int end = 0;
        if (sscanf(list.names[i], "iter_%" SCNu64 "%n", &n, &end) != 1 || list.names[i][end] ||
            n > newest || !path_is_folder(path_join(a, dir, list.names[i])))
            continue;
        if (strcmp(list.names[i], folder_of(n, a)) == 0) (*out)[(*count)++] = n;
    }
    if (*count) qsort(*out, *count, sizeof **out, compare_iterations);
    return OK;
}

/* Checks that the folder, or its first existing parent, is writable. */
static enum status check_writable(const struct checkpoint_target *to, struct arena *a,
                                  struct error *err)
{
    const char *folder = to->dir;
    while (!path_exists(folder) && strcmp(folder, ".") && strcmp(folder, "/"))
        folder = path_parent(a, folder);
    if (!path_is_folder(folder))
        errno = ENOTDIR;
    else if (access(folder, W_OK | X_OK) == 0)
        return OK;
    return fail(err, ERR_IO, "%s: checkpoints cannot be written to %s: %s", to->dir, folder,
                strerror(errno));
}

static enum status check_target(const struct checkpoint_target *to,
                                const struct checkpoint_saves *saves, struct arena *a,
                                struct error *err)
{
    struct publishing p;
    struct target t = {.format = to->format};
    uint64_t *there;
    size_t count;
    if (saves->last <= saves->after) return OK;
    TRY(check_writable(to, a, err));
    TRY(check_destination(&p, a, &t, to, saves->last, err));
    if (!saves->interval || !path_is_folder(to->dir)) return OK;
    TRY(list_iterations(to->dir, saves->last, a, &there, &count, err));
    while (count--)
        if (there[count] > saves->after && there[count] % saves->interval == 0)
            TRY(check_destination(&p, a, &t, to, there[count], err));
    return OK;
}

enum status checkpoint_check_target(const struct checkpoint_target *to,
                                    const struct checkpoint_saves *saves, struct error *err)
{
    struct arena a;
    arena_init(&a);
    enum status st = check_target(to, saves, &a, err);
    arena_release(&a);
    return st;
}

/* Renames the folder first, so that no partial one shows; also removes one that
 * a killed run has not finished removing. */
static enum status remove_iteration(const char *dir, uint64_t n, struct arena *a, struct error *err)
{
    const char *folder = path_join(a, dir, folder_of(n, a));
    const char *removed =
        path_join(a, dir, arena_printf(a, ".iter_%07" PRIu64 ".ferry-removed", n));
    TRY(path_remove(removed, err));
    TRY(path_rename_new(folder, removed, err));
    return path_remove(removed, err);
}

static enum status remove_removed(const char *dir, struct arena *a, struct error *err)
{
    struct name_list list;
    TRY(folder_list(dir, a, &list, err));
    for (size_t i = 0; i < list.count; i++)
        if (text_starts_with(list.names[i], ".iter_") &&
            text_ends_with(list.names[i], ".ferry-removed"))
            TRY(path_remove(path_join(a, dir, list.names[i]), err));
    return OK;
}

/* Removes staging folders of runs that were killed while saving another
 * iteration. */
static enum status remove_left(const char *dir, struct arena *a, struct error *err)
{
    struct name_list list;
    TRY(folder_list(dir, a, &list, err));
    for (size_t i = 0; i < list.count; i++) {
        struct lock_watch w = {.found = false};
        const char *left = path_join(a, dir, list.names[i]);
        if (!text_starts_with(list.names[i], ".iter_") ||
            !text_ends_with(list.names[i], ".ferry-partial"))
            continue;
        const enum lock_life life = lock_look(&w, path_join(a, left, publish_lock));
        if (life == LOCK_FREE && w.found && strcmp(w.record.work, lock_work) == 0)
            TRY(path_remove(left, err));
    }
    return OK;
}

static enum status remove_older(const struct checkpoint_target *to, uint64_t newest,
                                struct error *err)
{
    struct arena a;
    uint64_t *numbers;
    size_t count = 0;
    arena_init(&a);
    enum status st = remove_left(to->dir, &a, err);
    if (!st && to->keep_last) st = remove_removed(to->dir, &a, err);
    if (!st && to->keep_last) st = list_iterations(to->dir, newest, &a, &numbers, &count, err);
    for (size_t i = to->keep_last; !st && i < count; i++)
        st = remove_iteration(to->dir, numbers[i], &a, err);
    arena_release(&a);
    if (!st) return OK;
    return fail_in(err, "%s: iteration %" PRIu64 " is saved, but older ones cannot be removed",
                   to->dir, newest);
}

enum status checkpoint_save(const struct train_state *s, const struct checkpoint_target *to,
                            struct error *err)
{
    struct checkpoint held;
    struct target t = {.format = NULL};
    const struct target_options o = options_of(s, to);
    bool planned = false;
    enum status st = hold_run(&held, s, to->maps, !to->no_optimizer, err);
    if (!st) {
        planned = true;
        st = target_plan(&t, &o, &held, to->maps, err);
    }
    if (!st && !to->quiet && (!s->ranks || s->world->index == 0)) notes_print(&t.notes);
    if (s->ranks) st = comm_agree(s->world, st, err);
    if (!st) st = s->ranks ? write_by_ranks(&t, s, to, err) : write_and_publish(&t, to, err);
    if (planned) target_release(&t);
    checkpoint_release(&held);
    if (st) return st;
    if (!s->ranks || s->world->index == 0) st = remove_older(to, s->training->iteration, err);
    return s->ranks ? comm_agree(s->world, st, err) : st;
}
