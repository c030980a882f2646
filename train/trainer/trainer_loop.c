/* trainer_loop.c - the iterations of a run. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "common/text.h"
#include "common/threads.h"
#include "train/trainer/trainer_internal.h"

/* ---- one iteration ---- */

/* Shared by the micro-batches of an iteration. */
struct iteration {
    struct trainer *t;
    uint64_t batch_size, micro_batches;
    struct batches batches;
    double tokens; /* that count, on all ranks */
};

/* Without --calculate-per-token-loss each micro-batch of each data parallel
 * rank contributes its mean loss, divided by their number (Megatron-LM:
 * schedules.py, forward_step). */
static enum status next_train_batch(void *context, uint64_t number, struct micro_batch *m,
                                    struct error *err)
{
    struct iteration *i = context;
    struct trainer *t = i->t;
    const double scale = (double)t->scale.scale, count = (double)(i->micro_batches * trainer_dp(t));
    const bool per_token = t->o->calculate_per_token_loss;
    const struct kept_batch *k;
    TRY(trainer_batch(t, &i->batches, number, &k, err));
    *m = (struct micro_batch){.batch = k->batch};
    m->loss_scale = per_token ? scale : scale / (k->tokens > 1 ? k->tokens : 1) / count;
    /* Router losses are means over the micro-batch (router.py). Older
     * Megatron-LM multiplies by the tokens of one tensor parallel rank, so they
     * depend on its layout. */
    m->router_scale =
        per_token ? scale * (double)(k->batch.num_sequences * k->batch.length) : scale / count;
    return OK;
}

static struct step_control control_of(const struct trainer *t, const struct iteration *i)
{
    const double tokens = i->tokens > 1 ? i->tokens : 1;
    return (struct step_control){
        .lr = t->schedule.lr,
        .weight_decay = t->schedule.weight_decay,
        .update = t->updates + 1,
        .factor = 1 / ((double)t->scale.scale * (t->o->calculate_per_token_loss ? tokens : 1)),
        .clip = t->o->clip_grad};
}

static enum status run_iteration(struct trainer *t, struct iteration *i, struct step_result *r,
                                 struct error *err)
{
    TRY(step_run(&t->step, i->micro_batches, false, next_train_batch, i, err));
    i->tokens = i->batches.tokens;
    TRY(trainer_sum(t, &i->tokens, err));
    const struct step_control c = control_of(t, i);
    TRY(step_update(&t->step, &c, err));
    return step_wait(&t->step, r, err);
}

/* ---- NaN and infinity ---- */

/* Without a dynamic loss scale a skipped step is unexpected: explains the first
 * one. */
static void warn_skipped(struct trainer *t)
{
    struct error why;
    if (t->warned_skipped) return;
    t->warned_skipped = true;
    /* Several ranks would wait for the one that stops. */
    const bool found = t->comm.size == 1 && step_find_nan(&t->step, &why) != OK;
    trainer_warn(t, "skipping iteration %" PRIu64 " and others like it: %s", t->iteration + 1,
                 found ? why.text : "the loss or a gradient is not finite");
}

static enum status check_numbers(struct trainer *t, const struct step_result *r, struct error *err)
{
    const bool loss = isfinite(r->loss);
    if (loss && !r->skipped) return OK;
    if (!t->o->check_for_nan_in_loss_and_grad) {
        if (!t->scale.dynamic) warn_skipped(t);
        return OK;
    }
    if (step_find_nan(&t->step, err)) return fail_in(err, "iteration %" PRIu64, t->iteration + 1);
    return fail(err, ERR_NUMERIC, "iteration %" PRIu64 ": %s", t->iteration + 1,
                loss ? "a gradient is not finite" : "the loss is not finite");
}

static void note_exhausted(struct trainer *t)
{
    if (!t->scale.dynamic || !loss_scale_is_exhausted(&t->scale) || t->noted_exhausted) return;
    t->noted_exhausted = true;
    trainer_note(t,
                 "iteration %" PRIu64 ": gradients overflow at the minimum loss scale, %g; such "
                 "steps are skipped",
                 t->iteration, (double)t->scale.scale);
}

/* ---- counters and logs ---- */

static void add_router_loss(struct step_record *s, const char *name, double value)
{
    s->router_losses[s->num_router_losses++] = (struct named_loss){name, value};
}

/* Means over micro-batches and layers, in Megatron-LM's order (training.py,
 * training_log). */
static void add_router_losses(const struct trainer *t, const struct iteration *i,
                              const struct step_result *r, struct step_record *s)
{
    const char *kind = t->o->moe_router_load_balancing_type;
    uint64_t layers = 0;
    for (uint64_t l = 0; l < t->model.config.num_layers; l++)
        layers += model_layer_is_moe(&t->model.config, l);
    const double count = (double)(i->micro_batches * trainer_dp(t) * layers);
    const double balance = r->balance / count;
    const bool by_sequence = text_equal(kind, "seq_aux_loss"),
               is_global = text_equal(kind, "global_aux_loss");
    if (!layers) return;
    /* Losses without a coefficient are 0. Megatron-LM logs load_balancing_loss
     * for every kind whose name contains aux_loss. The global loss is not a
     * mean over ranks. */
    if (kind && strstr(kind, "aux_loss"))
        add_router_loss(s, "load_balancing_loss", by_sequence || is_global ? 0 : balance);
    if (by_sequence) add_router_loss(s, "seq_load_balancing_loss", balance);
    if (is_global)
        add_router_loss(s, "global_load_balancing_loss", balance * (double)trainer_dp(t));
    if (t->o->moe_z_loss_coeff > 0) add_router_loss(s, "z_loss", r->z_loss / count);
}

static struct step_record record_of(const struct trainer *t, const struct iteration *i,
                                    const struct step_result *r, double seconds)
{
    const double flops = flops_of_batch(&t->flops, i->batch_size, t->o->seq_length);
    struct step_record s = {.iteration = t->iteration + 1,
                            .batch_size = i->batch_size,
                            .tokens = i->batch_size * t->o->seq_length,
                            .lr = t->schedule.lr,
                            .weight_decay = t->schedule.weight_decay,
                            .loss = {"lm loss", r->loss / (i->tokens > 1 ? i->tokens : 1)},
                            .skipped = r->skipped,
                            .has_grad_norm = !r->skipped,
                            .grad_norm = r->grad_norm,
                            .has_params_norm = t->o->log_params_norm,
                            .params_norm = r->params_norm,
                            .has_num_zeros = t->o->log_num_zeros_in_grad && !r->skipped,
                            .num_zeros = (double)r->num_zeros,
                            .seconds = seconds,
                            .flops = flops};
    add_router_losses(t, i, r, &s);
    return s;
}

/* As in Megatron-LM, skipped iterations consume samples, but do not step the
 * schedule. Its "skipped samples" are those of iterations that did not run at
 * all. */
static void advance_counters(struct trainer *t, const struct iteration *i, struct step_record *s)
{
    t->iteration++;
    t->consumed += i->batch_size;
    t->flops_so_far += s->flops;
    loss_scale_update(&t->scale, s->skipped);
    if (s->skipped) {
        t->skipped_iterations++;
    } else {
        t->updates++;
        t->last_loss = s->loss.value;
        lr_schedule_step(&t->schedule, i->batch_size);
    }
    s->consumed_samples = t->consumed;
    s->skipped_samples = t->skipped_samples;
    s->logged_lr = t->schedule.lr;
    s->loss_scale = (double)t->scale.scale;
}

static enum status train_iteration(struct trainer *t, struct error *err)
{
    struct iteration i = {.t = t,
                          .batch_size = batch_size_at(&t->batch, t->consumed),
                          .batches = {.from = t->prefetch, .sampler = &t->sampler}};
    struct step_result r;
    i.micro_batches =
        batch_size_micro_batches(&t->batch, t->consumed, t->o->micro_batch_size, trainer_dp(t));
    const double begun = seconds_now();
    TRY(run_iteration(t, &i, &r, err));
    TRY(check_numbers(t, &r, err));
    struct step_record s = record_of(t, &i, &r, seconds_now() - begun);
    advance_counters(t, &i, &s);
    TRY(trainer_log_step(t, &s, err));
    trainer_show_progress(t, &s);
    note_exhausted(t);
    return OK;
}

/* ---- between iterations ---- */

static enum status evaluate_split(struct trainer *t, enum data_split split, const char *where,
                                  struct error *err)
{
    double loss;
    bool there;
    TRY(trainer_evaluate(t, split, &loss, &there, err));
    return there ? trainer_log_evaluation(t, where, loss, err) : OK;
}

static bool is_multiple(uint64_t iteration, uint64_t interval)
{
    return interval && iteration % interval == 0;
}

/* A full disk does not end a run: the previous checkpoint stays. */
static enum status warn_of_io(const struct trainer *t, enum status st, const struct error *err)
{
    if (st != ERR_IO) return st;
    trainer_warn(t, "%s", err->text);
    return OK;
}

static enum status save_or_warn(struct trainer *t, struct error *err)
{
    TRY(warn_of_io(t, trainer_finish_save(t, err), err));
    return warn_of_io(t, trainer_save(t, t->iteration == t->train_iters, err), err);
}

/* *ends: one of --exit-* ends the run here. */
static enum status after_iteration(struct trainer *t, bool *ends, struct error *err)
{
    const struct train_options *o = t->o;
    TRY(warn_of_io(t, trainer_poll_save(t, err), err));
    if (is_multiple(t->iteration, o->eval_interval) && t->iteration >= o->start_eval_at_iter)
        TRY(evaluate_split(t, SPLIT_VALID, "", err));
    if (is_multiple(t->iteration, o->save_interval)) TRY(save_or_warn(t, err));
    bool is_late =
        o->exit_duration_in_mins > 0 && (seconds_now() - t->begun) / 60 > o->exit_duration_in_mins;
    if (o->exit_duration_in_mins > 0) TRY(trainer_any(t, &is_late, err));
    *ends = is_multiple(t->iteration, o->exit_interval) || is_late;
    if (*ends)
        trainer_note(t, "the run ends at iteration %" PRIu64 " by --exit-%s", t->iteration,
                     is_multiple(t->iteration, o->exit_interval) ? "interval" : "duration-in-mins");
    return OK;
}

/* Saves the last iteration unless it is saved; tries again if that failed. */
static enum status save_at_end(struct trainer *t, struct error *err)
{
    TRY(warn_of_io(t, trainer_finish_save(t, err), err));
    if (t->iteration == t->start_iteration && !t->resumes) return OK;
    return trainer_save(t, true, err);
}

/* Whether any rank received a signal: all end after the same iteration. */
static enum status is_stopped(struct trainer *t, bool *stopped, struct error *err)
{
    *stopped = interrupt_pending();
    return trainer_any(t, stopped, err);
}

/* Prints the last losses even if saving failed. */
static enum status finish_run(struct trainer *t, bool ends, bool *stopped, struct error *err)
{
    struct error why;
    const enum status saved = save_at_end(t, &why);
    TRY(is_stopped(t, stopped, err));
    if (!*stopped && !ends) {
        TRY(evaluate_split(t, SPLIT_VALID, " on validation set", err));
        TRY(evaluate_split(t, SPLIT_TEST, " on test set", err));
    }
    if (saved) *err = why;
    return saved;
}

/* A killed run may have written --save only, or --save-hf is new. */
static enum status save_where_it_is_not(struct trainer *t, struct error *err)
{
    return t->resumes ? warn_of_io(t, trainer_save(t, true, err), err) : OK;
}

/* Finishes a save under way even after another failure. */
static void finish_save_or_warn(struct trainer *t)
{
    struct error why;
    if (trainer_finish_save(t, &why)) trainer_warn(t, "%s", why.text);
}

enum status trainer_loop(struct trainer *t, struct error *err)
{
    bool ends = false, stopped = false;
    if (t->iteration >= t->train_iters)
        trainer_note(t, "nothing is left to train: the run is at iteration %" PRIu64 " of %" PRIu64,
                     t->iteration, t->train_iters);
    interrupt_hold(true);
    enum status st = save_where_it_is_not(t, err);
    if (!st) st = is_stopped(t, &stopped, err);
    trainer_start_progress(t);
    while (!st && !ends && t->iteration < t->train_iters && !stopped) {
        st = train_iteration(t, err);
        if (!st) st = after_iteration(t, &ends, err);
        if (!st) st = is_stopped(t, &stopped, err);
    }
    trainer_end_progress(t);
    if (!st) st = finish_run(t, ends, &stopped, err);
    finish_save_or_warn(t);
    if (st || !stopped) return st;
    return fail(err, ERR_INTERRUPTED, "a signal ended the run after iteration %" PRIu64 "%s",
                t->iteration, t->num_destinations && trainer_is_saved(t) ? ", which is saved" : "");
}
