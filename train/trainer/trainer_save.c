/* trainer_save.c - a run's checkpoints: --save in Megatron's formats,
 * --save-hf. */
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "common/text.h"
#include "convert/format.h"
#include "train/trainer/trainer_internal.h"

/* ---- destinations ---- */

static void add_destination(struct trainer *t, const char *option, const char *dir,
                            const struct format *format)
{
    const struct train_options *o = t->o;
    if (!dir) return;
    /* A killed run may have left an iteration that the tracker does not name. */
    t->destinations[t->num_destinations++] =
        (struct destination){.option = option,
                             .target = {.dir = dir,
                                        .format = format,
                                        .overwrite = o->overwrite || t->resumes,
                                        .no_optimizer = o->no_save_optim,
                                        .keep_last = o->keep_last,
                                        .threads = trainer_threads(t),
                                        .fsync = true,
                                        .quiet = true,
                                        .maps = &t->opened.maps}};
}

/* Fails before training starts, not at the first save. */
static enum status check_family(struct trainer *t, struct error *err)
{
    if (!t->o->save_hf ||
        checkpoint_family(t->origin, &t->model.config, &t->opened.maps, &t->arena))
        return OK;
    return fail(err, ERR_UNSUPPORTED,
                "--save-hf %s: no known family of Hugging Face models computes this model",
                t->o->save_hf);
}

enum status trainer_open_destinations(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    add_destination(t, "--save", o->save,
                    text_equal(o->ckpt_format, "torch") ? &format_torch : &format_torch_dist);
    add_destination(t, "--save-hf", o->save_hf, &format_hf);
    TRY(check_family(t, err));
    if (o->async_save && t->num_destinations && trainer_num_ranks(t) > 1)
        trainer_note(t, "--async-save is ignored: with several ranks training waits for each save");
    const uint64_t at = t->resumes ? (uint64_t)t->origin->training.iteration : 0;
    const struct checkpoint_saves saves = {at, o->save_interval, t->train_iters};
    for (unsigned i = 0; i < t->num_destinations; i++) {
        struct destination *d = &t->destinations[i];
        TRY(checkpoint_check_target(&d->target, &saves, err));
        if (at && checkpoint_has(&d->target, at)) d->saved = at;
    }
    return OK;
}

bool trainer_is_saved(const struct trainer *t)
{
    for (unsigned i = 0; i < t->num_destinations; i++)
        if (t->destinations[i].saved != t->iteration) return false;
    return true;
}

/* Bytes of the parameters in a checkpoint, at least: of all of a loaded model,
 * else of this rank's. */
static uint64_t least_bytes(const struct trainer *t, const struct destination *d)
{
    const struct catalog *c = &t->origin->catalog;
    const size_t weight = dtype_bytes(elem_dtype(t->model.options.elem));
    const bool adam = strcmp(t->o->optimizer, "sgd") != 0;
    size_t bytes = weight;
    uint64_t numel = 0;
    for (size_t i = 0; i < c->num_tensors; i++)
        if (is_parameter(&c->tensors[i])) numel += c->tensors[i].numel;
    if (!numel) numel = t->step.num_params;
    if (!d->target.no_optimizer && !(d->target.format->has & FORMAT_ASKS_OPTIM))
        bytes += (weight < sizeof(float) ? sizeof(float) : 0) + (adam ? 2 * sizeof(float) : 0);
    return numel * bytes;
}

enum status trainer_check_destinations(struct trainer *t, struct error *err)
{
    for (unsigned i = 0; i < t->num_destinations && !t->comm.rank; i++) {
        const struct destination *d = &t->destinations[i];
        const uint64_t needed = least_bytes(t, d);
        const char *folder = publish_existing_parent(&t->arena, d->target.dir);
        uint64_t free_bytes;
        if (d->saved) continue;
        TRY(folder_free_bytes(folder, &free_bytes, err));
        if (needed > free_bytes)
            return fail(err, ERR_IO, "%s %s: no space: a checkpoint takes %s or more, %s free",
                        d->option, d->target.dir, bytes_text(needed), bytes_text(free_bytes));
    }
    return OK;
}

/* Takes the lock of a destination, so that no other run saves there. It lies
 * beside the destination, which may not be there yet; in it, if the folder above
 * cannot be written. */
static enum status lock_destination(struct trainer *t, struct destination *d, struct error *err)
{
    struct arena *a = &t->arena;
    struct lock_watch w = {.found = false};
    enum lock_life life;
    const char *real = path_real(a, d->target.dir), *dir = real ? real : d->target.dir;
    const char *above = path_parent(a, dir);
    TRY(folder_create(above, err));
    const char *folder = access(above, W_OK) ? dir : above;
    const char *name = arena_printf(a, ".%s.ferry-train", path_base(a, dir));
    d->lock_path = path_join(a, folder, name);
    TRY(lock_watch_until_sure(&w, d->lock_path, &life, err));
    if (life == LOCK_HELD)
        return fail(err, ERR_EXISTS, "%s %s: busy: process %ld on %s trains into it%s", d->option,
                    d->target.dir, w.record.pid, w.record.host, lock_since(a, &w.record));
    const enum status st = lock_take(&d->lock, folder, name, &w, NULL, "ferry train", err);
    if (st != ERR_IO) return st;
    (void)unlink(d->lock_path); /* a full disk: each save says it */
    trainer_note(t, "%s %s is not locked against other runs: %s", d->option, d->target.dir,
                 err->text);
    return OK;
}

static enum status lock_destinations(struct trainer *t, struct error *err)
{
    for (unsigned i = 0; i < t->num_destinations && !t->comm.rank; i++)
        TRY(lock_destination(t, &t->destinations[i], err));
    return OK;
}

/* ---- the state ---- */

static void add_saved_group(const struct trainer *t, struct training *s, struct arena *a,
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
        g->beta1 = t->constants.beta1;
        g->beta2 = t->constants.beta2;
        g->eps = t->constants.eps;
    } else {
        g->momentum = t->constants.momentum;
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
    add_saved_group(t, &s, a, "matrices", true);
    add_saved_group(t, &s, a, "vectors", false);
    return s;
}

static cJSON *args_of(const struct trainer *t)
{
    const struct train_options *o = t->o;
    cJSON *args = cJSON_CreateObject();
    const struct group_sizes *sizes = &t->model.groups.sizes;
    const uint64_t tp = trainer_saves_layout(t) ? sizes->tp : 1,
                   pp = trainer_saves_layout(t) ? sizes->pp : 1;
    json_add_u64(args, "data_parallel_size", trainer_dp(t));
    json_add_u64(args, "world_size", tp * pp * trainer_dp(t));
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
    return t->o->async_save && (t->o->save || t->o->save_hf) && trainer_num_ranks(t) == 1;
}

enum { COPY_BLOCK = 1 << 20 };

static void copy_region(char *to, const char *from, uint64_t bytes)
{
#pragma omp parallel for
    for (uint64_t at = 0; at < bytes; at += COPY_BLOCK)
        memcpy(to + at, from + at, min_u64(bytes - at, COPY_BLOCK));
}

/* Touches all pages, which takes longer than copying into them. */
enum status trainer_open_saves(struct trainer *t, struct error *err)
{
    TRY(lock_destinations(t, err));
    if (!trainer_saves_behind(t)) return OK;
    for (int k = 0; k < NUM_HELD; k++) {
        const uint64_t bytes = trainer_region_bytes(&t->step, (enum held_kind)k);
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
    for (unsigned i = 0; i < t->num_destinations; i++) {
        if (t->destinations[i].lock) (void)unlink(t->destinations[i].lock_path);
        lock_drop(t->destinations[i].lock, NULL);
    }
}

/* A device's regions are in the copies already. */
static void copy_regions(const struct trainer *t, struct train_state *s)
{
    for (int k = 0; k < NUM_HELD; k++) {
        if (!s->data[k] || s->data[k] == t->copies[k]) continue;
        copy_region(t->copies[k], s->data[k], trainer_region_bytes(&t->step, (enum held_kind)k));
        s->data[k] = t->copies[k];
    }
}

/* ---- writing ---- */

/* One save. It owns all that it reads, except the origin and the list of
 * parameters, which do not change. */
struct saving {
    struct arena arena;
    struct train_state state;
    struct training training;
    cJSON *args;
    /* Copies of the run's destinations, and the outcome of each. */
    struct destination destinations[2];
    unsigned num_destinations;
    enum status st[2];
    struct error err[2];
    pthread_t thread;
    atomic_bool is_over; /* set by the thread */
};

/* Takes config.json, its companions and the tokenizer from the run's newest
 * checkpoint: --keep-last may remove the first one. */
static void use_newest(struct saving *s, const struct destination *d)
{
    const struct checkpoint *origin = s->state.origin;
    if (!d->saved) return;
    if (origin->hf_folder)
        s->state.hf_folder = checkpoint_hf_folder(&d->target, d->saved, &s->arena);
    const char *tokenizer = checkpoint_tokenizer_folder(&d->target, d->saved, &s->arena);
    if (origin->tokenizer_folder && tokenizer) s->state.tokenizer_folder = tokenizer;
}

static void *write_all(void *context)
{
    struct saving *s = context;
    for (unsigned i = 0; i < s->num_destinations; i++)
        use_newest(s, &s->destinations[i]);
    for (unsigned i = 0; i < s->num_destinations; i++) {
        struct destination *d = &s->destinations[i];
        if (d->saved == s->training.iteration) continue;
        s->st[i] = checkpoint_save(&s->state, &d->target, &s->err[i]);
        if (s->st[i]) continue;
        d->saved = s->training.iteration;
        use_newest(s, d);
    }
    return NULL;
}

/* Writes at the lowest priority: at a higher one a writing thread that takes a
 * CPU makes all threads of an op wait for the one it displaced. On Linux a
 * priority applies to a thread and those it starts. */
static void *write_behind(void *context)
{
    struct saving *s = context;
    (void)setpriority(PRIO_PROCESS, 0, 19);
    (void)write_all(s);
    atomic_store(&s->is_over, true);
    return NULL;
}

static enum status begin_saving(struct trainer *t, struct saving *s, struct error *err)
{
    arena_init(&s->arena);
    TRY(trainer_state_begin(t, &s->state, true, err));
    s->training = training_of(t, &s->arena);
    s->args = args_of(t);
    s->state.training = &s->training;
    s->state.args = s->args;
    s->num_destinations = t->num_destinations;
    memcpy(s->destinations, t->destinations, sizeof s->destinations);
    return OK;
}

static void end_saving(struct trainer *t, struct saving *s)
{
    struct error ignored;
    (void)!trainer_state_end(t, &s->state, false, &ignored);
    cJSON_Delete(s->args);
    arena_release(&s->arena);
    free(s);
}

/* Returns the first failure, and warns of another one. */
static enum status conclude_saving(struct trainer *t, struct saving *s, struct error *err)
{
    enum status first = OK;
    for (unsigned i = 0; i < s->num_destinations; i++) {
        struct error *why = &s->err[i];
        struct destination *d = &t->destinations[i];
        if (d->saved != s->destinations[i].saved) {
            t->saved = d->target.dir;
            trainer_log_checkpoint(t, CHECKPOINT_SAVED, d->target.dir, d->target.format,
                                   (int64_t)s->training.iteration);
        }
        d->saved = s->destinations[i].saved;
        if (!s->st[i]) continue;
        (void)!fail_in(why, "iteration %" PRIu64 " is not saved%s", s->training.iteration,
                       s->num_destinations > 1
                           ? arena_printf(&s->arena, " by %s", s->destinations[i].option)
                           : "");
        if (first)
            trainer_warn(t, "%s", why->text);
        else
            *err = *why;
        if (!first) first = s->st[i];
    }
    end_saving(t, s);
    return first;
}

enum status trainer_finish_save(struct trainer *t, struct error *err)
{
    struct saving *s = t->saving;
    if (!s) return OK;
    t->saving = NULL;
    (void)pthread_join(s->thread, NULL);
    return conclude_saving(t, s, err);
}

enum status trainer_poll_save(struct trainer *t, struct error *err)
{
    return t->saving && atomic_load(&t->saving->is_over) ? trainer_finish_save(t, err) : OK;
}

/* Logs an event of each destination that
 * lacks the iteration. */
static void log_unsaved(const struct trainer *t, enum checkpoint_event event)
{
    for (unsigned i = 0; i < t->num_destinations; i++) {
        const struct destination *d = &t->destinations[i];
        if (d->saved != t->iteration)
            trainer_log_checkpoint(t, event, d->target.dir, d->target.format,
                                   (int64_t)t->iteration);
    }
}

enum status trainer_save(struct trainer *t, bool waits, struct error *err)
{
    TRY(trainer_finish_save(t, err));
    if (trainer_is_saved(t)) return OK;
    log_unsaved(t, CHECKPOINT_SAVING);
    struct saving *s = must_calloc(1, sizeof *s);
    enum status st = begin_saving(t, s, err);
    if (t->ranks) st = comm_agree(&t->model.groups.of[GROUP_WORLD], st, err);
    if (st) {
        end_saving(t, s);
        return st;
    }
    if (trainer_saves_behind(t) && !waits) {
        copy_regions(t, &s->state);
        if (!pthread_create(&s->thread, NULL, write_behind, s)) {
            t->saving = s;
            log_unsaved(t, CHECKPOINT_SCHEDULED);
            return OK;
        }
    }
    (void)write_all(s);
    return conclude_saving(t, s, err);
}
