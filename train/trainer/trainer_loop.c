/* trainer_loop.c - the iterations of a run. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "common/text.h"
#include "common/threads.h"
#include "train/trainer/trainer_internal.h"

/* ---- one iteration ---- */

/* What the micro-batches of an iteration share. */
struct iteration {
    struct trainer *t;
    uint64_t batch_size, micro_batches;
    struct batches batches;
    double tokens; /* that count, of all ranks */
};

/* Without --calculate-per-token-loss each micro-batch of each data parallel rank has the mean of
 * its losses, divided by their number (Megatron-LM: schedules.py, forward_step). */
static enum status next_batch(void *context, uint64_t number, struct micro_batch *m,
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
    /* The losses of routers are means over the micro-batch (router.py). Older Megatron-LM
     * multiplies by the tokens of one tensor parallel rank, so that they would depend on the
     * layout. */
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
    TRY(step_run(&t->step, i->micro_batches, false, next_batch, i, err));
    i->tokens = i->batches.tokens;
    TRY(trainer_sum(t, &i->tokens, err));
    const struct step_control c = control_of(t, i);
    TRY(step_update(&t->step, &c, err));
    return step_wait(&t->step, r, err);
}

/* ---- what is not a number ---- */

/* Without a loss scale that adapts, a step that is skipped is no part of the plan: the first one is
 * explained. */
static void tell_skipped(struct trainer *t)
{
    struct error why;
    if (t->said_skipped) return;
    t->said_skipped = true;
    /* Several ranks would wait for the one that has stopped at it. */
    const bool found = t->comm.size == 1 && step_find_nan(&t->step, &why) != OK;
    trainer_warn(t, "iteration %" PRIu64 " and others like it are skipped: %s", t->iteration + 1,
                 found ? why.text : "the loss or a gradient is not finite");
}

static enum status check_numbers(struct trainer *t, const struct step_result *r, struct error *err)
{
    const bool loss = isfinite(r->loss);
    if (loss && !r->skipped) return OK;
    if (!t->o->check_for_nan_in_loss_and_grad) {
        if (!t->scale.dynamic) tell_skipped(t);
        return OK;
    }
    if (step_find_nan(&t->step, err)) return fail_in(err, "iteration %" PRIu64, t->iteration + 1);
    return fail(err, ERR_NUMERIC, "iteration %" PRIu64 ": %s", t->iteration + 1,
                loss ? "a gradient is not finite" : "the loss is not finite");
}

static void tell_exhausted(struct trainer *t)
{
    if (!t->scale.dynamic || !loss_scale_is_exhausted(&t->scale) || t->said_exhausted) return;
    t->said_exhausted = true;
    trainer_say(t,
                "iteration %" PRIu64 ": gradients overflow at the smallest loss scale, %g: every "
                "such step is skipped",
                t->iteration, (double)t->scale.scale);
}

/* ---- counters and logs ---- */

static void add_router_loss(struct step_record *s, const char *name, double value)
{
    s->router_losses[s->num_router_losses++] = (struct named_loss){name, value};
}

/* Means over micro-batches and layers, in Megatron-LM's order (training.py, training_log). */
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
    /* Losses without a coefficient are 0. That of micro-batches is there beside that of sequences,
     * whose name, seq_aux_loss, has aux_loss in it. That of all ranks is no mean over them. */
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

/* As Megatron-LM: samples are consumed by skipped iterations too, the schedule stands still. What
 * it calls skipped samples are others, of iterations that were not run at all. */
static void advance(struct trainer *t, const struct iteration *i, struct step_record *s)
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

static enum status iterate(struct trainer *t, struct error *err)
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
    advance(t, &i, &s);
    TRY(trainer_log_step(t, &s, err));
    if (t->o->progress && !t->o->quiet && !t->comm.rank) trainer_show_progress(t, &s);
    tell_exhausted(t);
    return OK;
}

/* ---- between iterations ---- */

static enum status evaluate(struct trainer *t, enum data_split split, const char *where,
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

/* A full disk ends no run: the checkpoint before stays. */
static enum status or_warn(const struct trainer *t, enum status st, const struct error *err)
{
    if (st != ERR_IO) return st;
    trainer_warn(t, "%s", err->text);
    return OK;
}

static enum status save_or_warn(struct trainer *t, struct error *err)
{
    TRY(or_warn(t, trainer_finish_save(t, err), err));
    return or_warn(t, trainer_save(t, t->iteration == t->train_iters, err), err);
}

/* *ends: the run ends here, by one of --exit-*. */
static enum status after_iteration(struct trainer *t, bool *ends, struct error *err)
{
    const struct train_options *o = t->o;
    if (is_multiple(t->iteration, o->eval_interval) && t->iteration >= o->start_eval_at_iter)
        TRY(evaluate(t, SPLIT_VALID, "", err));
    if (is_multiple(t->iteration, o->save_interval)) TRY(save_or_warn(t, err));
    bool is_late =
        o->exit_duration_in_mins > 0 && (seconds_now() - t->begun) / 60 > o->exit_duration_in_mins;
    if (o->exit_duration_in_mins > 0) TRY(trainer_any(t, &is_late, err));
    *ends = is_multiple(t->iteration, o->exit_interval) || is_late;
    if (*ends)
        trainer_say(t, "the run ends at iteration %" PRIu64 ", as --exit-%s says", t->iteration,
                    is_multiple(t->iteration, o->exit_interval) ? "interval" : "duration-in-mins");
    return OK;
}

/* The last iteration, unless it is saved; once more, if that has failed. */
static enum status save_at_end(struct trainer *t, struct error *err)
{
    TRY(or_warn(t, trainer_finish_save(t, err), err));
    if (t->iteration == t->start_iteration && !t->resumes) return OK;
    return trainer_save(t, true, err);
}

/* Whether a signal has come, to any rank: all end after the same iteration. */
static enum status is_stopped(struct trainer *t, bool *stopped, struct error *err)
{
    *stopped = interrupt_pending();
    return trainer_any(t, stopped, err);
}

/* The last losses are printed even if the weights could not be saved. */
static enum status finish(struct trainer *t, bool ends, bool *stopped, struct error *err)
{
    struct error why;
    const enum status saved = save_at_end(t, &why);
    TRY(is_stopped(t, stopped, err));
    if (!*stopped && !ends) {
        TRY(evaluate(t, SPLIT_VALID, " on validation set", err));
        TRY(evaluate(t, SPLIT_TEST, " on test set", err));
    }
    if (saved) *err = why;
    return saved;
}

/* A run that was killed may have written --save alone, or --save-hf is new. */
static enum status save_where_it_is_not(struct trainer *t, struct error *err)
{
    return t->resumes ? or_warn(t, trainer_save(t, true, err), err) : OK;
}

/* Another failure has ended the run: the save that is under way is finished all the same. */
static void finish_save_or_warn(struct trainer *t)
{
    struct error why;
    if (trainer_finish_save(t, &why)) trainer_warn(t, "%s", why.text);
}

enum status trainer_loop(struct trainer *t, struct error *err)
{
    bool ends = false, stopped = false;
    t->started = seconds_now();
    if (t->iteration >= t->train_iters)
        trainer_say(t, "nothing is left to train: the run is at iteration %" PRIu64 " of %" PRIu64,
                    t->iteration, t->train_iters);
    interrupt_hold(true);
    enum status st = save_where_it_is_not(t, err);
    if (!st) st = is_stopped(t, &stopped, err);
    while (!st && !ends && t->iteration < t->train_iters && !stopped) {
        st = iterate(t, err);
        if (!st) st = after_iteration(t, &ends, err);
        if (!st) st = is_stopped(t, &stopped, err);
    }
    if (!st) st = finish(t, ends, &stopped, err);
    finish_save_or_warn(t);
    if (st || !stopped) return st;
    return fail(err, ERR_INTERRUPTED, "a signal ended the run after iteration %" PRIu64 "%s",
                t->iteration, t->num_destinations && trainer_is_saved(t) ? ", which is saved" : "");
}
