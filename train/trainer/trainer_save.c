/* trainer_save.c - a run's checkpoints: --save in Megatron's formats, --save-hf. */
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/memory.h"
#include "convert/format.h"
#include "train/trainer/trainer_internal.h"

/* The formats of a save; count: 0 to 2. */
static unsigned targets_of(const struct trainer *t, struct checkpoint_target targets[2])
{
    const struct train_options *o = t->o;
    struct checkpoint_target common = {.overwrite = o->overwrite,
                                       .no_optimizer = o->no_save_optim,
                                       .keep_last = o->keep_last,
                                       .threads = t->q->threads,
                                       .fsync = true,
                                       .quiet = true,
                                       .maps = &t->opened.maps};
    unsigned n = 0;
    if (o->save) {
        targets[n] = common;
        targets[n].dir = o->save;
        targets[n++].format = o->ckpt_format && strcmp(o->ckpt_format, "torch") == 0
                                  ? &format_torch
                                  : &format_torch_dist;
    }
    if (o->save_hf) {
        targets[n] = common;
        targets[n].dir = o->save_hf;
        targets[n++].format = &format_hf;
    }
    return n;
}

/* The first iteration that will be saved, if it is there and is not this run's own. */
enum status trainer_check_targets(struct trainer *t, struct error *err)
{
    struct checkpoint_target targets[2];
    const unsigned n = targets_of(t, targets);
    const uint64_t interval = t->o->save_interval;
    for (unsigned i = 0; i < n && !t->resumes; i++) {
        TRY(checkpoint_check_target(&targets[i], t->train_iters, err));
        for (uint64_t at = interval; interval && at < t->train_iters; at += interval)
            TRY(checkpoint_check_target(&targets[i], at, err));
    }
    return OK;
}

/* ---- the state ---- */

static void add_group(const struct trainer *t, struct training *s, struct arena *a,
                      const char *members, bool decays)
{
    const struct train_options *o = t->o;
    const bool adam = strcmp(o->optimizer, "sgd") != 0;
    struct param_group *g = training_add_group(s, a);
    g->members = members;
    g->step = t->updates;
    g->lr = t->schedule.lr;
    g->max_lr = o->lr;
    g->min_lr = o->min_lr;
    g->lr_mult = 1;
    g->wd_mult = decays ? 1 : 0;
    g->weight_decay = decays ? t->schedule.weight_decay : 0;
    if (adam) {
        g->beta1 = o->adam_beta1;
        g->beta2 = o->adam_beta2;
        g->eps = o->adam_eps;
    } else {
        g->momentum = o->sgd_momentum;
    }
}

static struct training training_of(const struct trainer *t, struct arena *a)
{
    struct training s;
    training_init(&s);
    s.iteration = t->iteration;
    s.step = t->updates;
    s.consumed_train_samples = t->consumed;
    s.skipped_train_samples = t->skipped_samples;
    s.consumed_valid_samples = t->consumed_valid;
    s.floating_point_operations = t->flops_so_far;
    s.optimizer = t->o->optimizer;
    lr_schedule_save(&t->schedule, &s);
    loss_scale_save(&t->scale, &s);
    add_group(t, &s, a, "matrices", true);
    add_group(t, &s, a, "vectors", false);
    return s;
}

static cJSON *args_of(const struct trainer *t)
{
    const struct train_options *o = t->o;
    cJSON *args = cJSON_CreateObject();
    json_add_u64(args, "seq_length", o->seq_length);
    json_add_u64(args, "micro_batch_size", o->micro_batch_size);
    json_add_u64(args, "global_batch_size", o->global_batch_size);
    if (o->train_samples)
        json_add_u64(args, "train_samples", o->train_samples);
    else
        json_add_u64(args, "train_iters", o->train_iters);
    json_add_u64(args, "seed", o->seed);
    json_add_number(args, "lr", o->lr);
    json_add_number(args, "min_lr", o->min_lr);
    json_add_text(args, "lr_decay_style", o->lr_decay_style);
    json_add_number(args, "weight_decay", o->weight_decay);
    json_add_number(args, "clip_grad", o->clip_grad);
    json_add_text(args, "optimizer", o->optimizer);
    cJSON_AddBoolToObject(args, "no_save_rng", o->no_save_rng);
    cJSON_AddBoolToObject(args, "bf16", o->bf16);
    cJSON_AddBoolToObject(args, "fp16", o->fp16);
    return args;
}

/* ---- copies of the state ---- */

bool trainer_saves_behind(const struct trainer *t)
{
    return t->o->async_save && (t->o->save || t->o->save_hf);
}

enum { COPY_BLOCK = 1 << 20 };

static void copy(char *to, const char *from, uint64_t bytes)
{
#pragma omp parallel for
    for (uint64_t at = 0; at < bytes; at += COPY_BLOCK)
        memcpy(to + at, from + at, min_u64(bytes - at, COPY_BLOCK));
}

/* All pages are touched, which takes longer than copying into them. */
enum status trainer_open_saves(struct trainer *t, struct error *err)
{
    if (!trainer_saves_behind(t)) return OK;
    for (int k = 0; k < NUM_HELD; k++) {
        const uint64_t bytes = trainer_region_bytes(t, (enum held_kind)k);
        if (!bytes) continue;
        TRY(cpu_device.allocate(&t->copies[k], bytes, "the copy of --async-save", err));
        memset(t->copies[k], 0, bytes);
    }
    return OK;
}

void trainer_close_saves(struct trainer *t)
{
    for (int k = 0; k < NUM_HELD; k++)
        if (t->copies[k]) cpu_device.release(t->copies[k]);
}

/* Those of a device are in the copies already. */
static void copy_regions(const struct trainer *t, struct train_state *s)
{
    for (int k = 0; k < NUM_HELD; k++) {
        if (!s->data[k] || s->data[k] == t->copies[k]) continue;
        copy(t->copies[k], s->data[k], trainer_region_bytes(t, (enum held_kind)k));
        s->data[k] = t->copies[k];
    }
}

/* ---- writing ---- */

/* One save: all that it reads is its own, but for the origin and the list of parameters, which do
 * not change. */
struct saving {
    struct arena arena;
    struct train_state state;
    struct training training;
    cJSON *args;
    struct checkpoint_target targets[2];
    unsigned num_targets;
    pthread_t thread;
    enum status st;
    struct error err;
};

static void *write_all(void *context)
{
    struct saving *s = context;
    for (unsigned i = 0; i < s->num_targets && !s->st; i++)
        s->st = checkpoint_save(&s->state, &s->targets[i], &s->err);
    return NULL;
}

/* Steps have the CPUs first, and the threads that write take what they leave: with as much weight
 * they would make all threads of an op wait for the one whose CPU they have. On Linux a priority is
 * that of a thread, and of those that it starts. */
static void *write_behind(void *context)
{
    (void)setpriority(PRIO_PROCESS, 0, 19);
    return write_all(context);
}

static enum status begin(struct trainer *t, struct saving *s, struct error *err)
{
    arena_init(&s->arena);
    TRY(trainer_state_begin(t, &s->state, true, err));
    s->training = training_of(t, &s->arena);
    s->args = args_of(t);
    s->state.training = &s->training;
    s->state.args = s->args;
    s->num_targets = targets_of(t, s->targets);
    /* A run that was killed may have left an iteration behind the tracker. */
    for (unsigned i = 0; i < s->num_targets; i++)
        s->targets[i].overwrite = s->targets[i].overwrite || t->resumes;
    return OK;
}

static void end(struct trainer *t, struct saving *s)
{
    struct error ignored;
    (void)!trainer_state_end(t, &s->state, false, &ignored);
    cJSON_Delete(s->args);
    arena_release(&s->arena);
    free(s);
}

/* What came of it. */
static enum status conclude(struct trainer *t, struct saving *s, struct error *err)
{
    const enum status st = s->st;
    const uint64_t iteration = s->training.iteration;
    if (!st) {
        t->saved = arena_copy_text(&t->arena, s->targets[s->num_targets - 1].dir);
        t->saved_iteration = iteration;
    }
    if (st) *err = s->err;
    end(t, s);
    return st ? fail_in(err, "iteration %" PRIu64 " is not saved", iteration) : OK;
}

enum status trainer_finish_save(struct trainer *t, struct error *err)
{
    struct saving *s = t->saving;
    if (!s) return OK;
    t->saving = NULL;
    (void)pthread_join(s->thread, NULL);
    return conclude(t, s, err);
}

enum status trainer_save(struct trainer *t, bool waits, struct error *err)
{
    if (!t->o->save && !t->o->save_hf) return OK;
    TRY(trainer_finish_save(t, err));
    struct saving *s = must_calloc(1, sizeof *s);
    enum status st = begin(t, s, err);
    if (st) {
        end(t, s);
        return st;
    }
    if (trainer_saves_behind(t) && !waits) {
        copy_regions(t, &s->state);
        t->saving = s;
        if (!pthread_create(&s->thread, NULL, write_behind, s)) return OK;
        t->saving = NULL;
    }
    (void)write_all(s);
    return conclude(t, s, err);
}
