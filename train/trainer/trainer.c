/* trainer.c - the life of a run: checks and plans everything before loading
 * anything. */
#include "train/trainer/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/checked.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/numbers.h"
#include "common/text.h"
#include "common/threads.h"
#include "train/trainer/trainer_internal.h"

/* ---- the programs ---- */

/* The command line refuses unknown names. */
static unsigned module_bits(const char *name)
{
#define ROW(known, bits)                                                                           \
    if (strcmp(name, known) == 0) return bits;
    TRAIN_RECOMPUTE_MODULES(ROW)
#undef ROW
    return 0;
}

static struct recompute_options recompute_of(const struct train_options *o)
{
    struct recompute_options r = {.num_layers = 1};
    if (!o->recompute_granularity) return r;
    if (strcmp(o->recompute_granularity, "full") == 0) {
        r.granularity = RECOMPUTE_FULL;
        r.method = text_equal(o->recompute_method, "block") ? RECOMPUTE_BLOCK : RECOMPUTE_UNIFORM;
        if (o->recompute_num_layers) r.num_layers = o->recompute_num_layers;
        return r;
    }
    r.granularity = RECOMPUTE_SELECTIVE;
    for (size_t i = 0; i < o->recompute_modules.count; i++)
        r.modules |= module_bits(o->recompute_modules.items[i]);
    if (o->moe_layer_recompute) r.modules |= RECOMPUTE_MLP;
    if (!r.modules) r.modules = RECOMPUTE_CORE_ATTENTION;
    return r;
}

/* Whether attention boundaries differ from sample to sample. */
static bool has_boundaries(const struct train_options *o)
{
    return o->reset_attention_mask || trainer_data_is_packed(o);
}

static struct training_shape training_of(const struct trainer *t)
{
    const struct train_options *o = t->o;
    struct training_shape s = {.hidden_dropout = o->hidden_dropout,
                               .attention_dropout = o->attention_dropout,
                               .dropout_seed = o->seed};
    if (!t->model.config.num_experts) return s;
    if (!text_equal(o->moe_router_load_balancing_type, "none"))
        s.balance_coefficient = o->moe_aux_loss_coeff;
    if (text_equal(o->moe_router_load_balancing_type, "seq_aux_loss"))
        s.balance_length = o->seq_length;
    s.balance_is_global = text_equal(o->moe_router_load_balancing_type, "global_aux_loss");
    s.bias_update_rate = o->moe_router_bias_update_rate;
    if (o->moe_z_loss_coeff > 0) s.z_coefficient = o->moe_z_loss_coeff;
    return s;
}

/* Megatron-LM asserts it for any kind of positions, also when it loads what is
 * saved here (arguments.py). */
static enum status check_length(const struct trainer *t, struct error *err)
{
    const uint64_t learned = model_learned_positions(&t->model.config), length = t->o->seq_length;
    const uint64_t most = t->model.config.max_position_embeddings;
    if (!most || length <= most || (t->q->watch && !learned)) return OK;
    if (learned)
        return fail(err, ERR_UNSUPPORTED,
                    "--seq-length %" PRIu64 " is above the model's %" PRIu64 " learned positions",
                    length, learned);
    return fail(err, ERR_UNSUPPORTED,
                "--seq-length %" PRIu64 " is above the model's %" PRIu64
                " positions, which Megatron-LM refuses: raise max_position_embeddings in %s",
                length, most,
                t->origin->hf_folder
                    ? path_join((struct arena *)&t->arena, t->origin->hf_folder, "config.json")
                    : "a command line that describes the model (--max-position-embeddings)");
}

/* Rows per token: a rank's experts may receive all tokens that its group has
 * routed. */
static uint64_t rows_of_token(const struct model *m)
{
    const struct group_sizes *s = &m->groups.sizes;
    const uint64_t here = m->config.num_experts / s->ep;
    if (!here) return 1;
    return max_u64(s->ep * s->etp * min_u64(m->config.moe_router_topk, here) / s->tp, 1);
}

static enum status check_rows(const struct trainer *t, struct error *err)
{
    const uint64_t rows = rows_of_token(&t->model), length = t->o->seq_length,
                   most = MAX_ROWS / rows;
    if (t->o->micro_batch_size <= most / length) return OK;
    if (length > most)
        return fail(err, ERR_UNSUPPORTED,
                    "--seq-length %" PRIu64 " is above the maximum of %" PRIu64, length, most);
    return fail(err, ERR_UNSUPPORTED,
                "--micro-batch-size %" PRIu64 " is above the maximum of %" PRIu64
                " for --seq-length %" PRIu64,
                t->o->micro_batch_size, most / length, length);
}

static enum status make_step(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    struct step_options s = {
        .shape = {.num_sequences = o->micro_batch_size,
                  .is_dealt = true,
                  .length = o->seq_length,
                  .any_starts = has_boundaries(o)},
        .training = training_of(t),
        .recompute = recompute_of(o),
        .schedule = text_equal(o->pipeline_schedule, schedule_name(SCHEDULE_ONE_BY_ONE))
                        ? SCHEDULE_ONE_BY_ONE
                        : SCHEDULE_1F1B,
        .micro_batches = batch_size_most(&t->batch) / (o->micro_batch_size * trainer_dp(t)),
        .eval_micro_batches = o->eval_global_batch_size / (o->micro_batch_size * trainer_dp(t)),
        .group = (unsigned)o->microbatch_group_size,
        .optimizer = strcmp(o->optimizer, "sgd") == 0 ? OPTIMIZER_SGD : OPTIMIZER_ADAM,
        .beta1 = t->constants.beta1,
        .beta2 = t->constants.beta2,
        .epsilon = t->constants.eps,
        .momentum = t->constants.momentum,
        .gradients_are_elem = o->fp16 && !o->accumulate_allreduce_grads_in_fp32,
        .params_norm = o->log_params_norm,
        .shards_states = o->use_distributed_optimizer,
        .bucket_numel = o->ddp_bucket_size,
        .vocab_rows = t->vocab_rows};
    TRY(check_length(t, err));
    TRY(check_rows(t, err));
    if (t->model.layout.pp > 1 && t->model.layout.vpp > 1 && t->batch.num_steps > 1)
        return fail(err, ERR_USAGE,
                    "--step-batch-size-schedule is not supported with %" PRIu64
                    " chunks per pipeline rank; give a constant --global-batch-size",
                    t->model.layout.vpp);
    t->flops = flops_of_model(&t->model.config,
                              t->vocab_rows ? t->vocab_rows : t->model.config.vocab_size);
    return step_make(&t->step, &t->model, &s, err);
}

/* ---- the plan ---- */

/* A dry run without ranks may be for other machines than this one. */
static bool is_of_others(const struct trainer *t)
{
    return !t->comm.backend && isnan(t->o->memory_per_rank);
}

/* Prints the end of the plan: whether it fits. */
static enum status print_fit(struct trainer *t, enum status fit, const struct error *why,
                             struct error *err)
{
    FILE *to = t->o->json ? stderr : stdout;
    const bool is_given = !isnan(t->o->memory_per_rank);
    t->plan.fit = fit ? FITS_NOT : trainer_compares_memory(t) ? FITS : FIT_UNKNOWN;
    if (fit && !is_of_others(t)) {
        *err = *why;
        return fit;
    }
    if (t->comm.rank || t->plan.fit == FIT_UNKNOWN) return OK;
    if (fit)
        (void)fprintf(to, "does not fit this machine: %s\n", why->text);
    else
        (void)fprintf(to, "fits%s: %s takes %s of %s%s\n", is_given ? "" : " this machine",
                      t->plan.ranks == 1        ? "the run"
                      : t->plan.num_stages == 1 ? "a rank"
                                                : "the largest rank",
                      bytes_text(t->plan.needed), bytes_text(t->plan.available),
                      is_given ? "" : " free");
    return OK;
}

/* Prints the plan if memory is short; a dry run has printed it. */
static enum status check_memory(struct trainer *t, struct error *err)
{
    struct comm_group *world = &t->model.groups.of[GROUP_WORLD];
    const bool several = t->comm.size > 1;
    if (several) TRY(comm_barrier(world, err)); /* each has opened its device, which takes some */
    enum status st = trainer_check_memory(t, err);
    if (several) st = comm_agree(world, st, err); /* before any takes its own */
    if (st == ERR_MEMORY && !t->o->dry_run && !t->o->quiet && !t->comm.rank)
        trainer_print_plan(t, stderr);
    return st;
}

static enum status plan_run(struct trainer *t, struct error *err)
{
    struct error why;
    TRY(trainer_show_plan(t, err));
    TRY(trainer_plan_data(t, err));
    const enum status st = check_memory(t, &why);
    if (!st || st == ERR_MEMORY) return print_fit(t, st, &why, err);
    *err = why;
    return st;
}

/* ---- the whole ---- */

/* Logs the checkpoint that the run begins
 * with, if any. */
static void log_origin(const struct trainer *t, enum checkpoint_event event, int64_t iteration)
{
    const struct checkpoint *c = t->origin;
    if (c != &t->scratch)
        trainer_log_checkpoint(t, event, t->resumes ? t->o->save : t->o->load, c->format,
                               iteration);
}

static enum status run_training(struct trainer *t, struct error *err)
{
    struct checkpoint_loaded loaded;
    TRY(trainer_set_up(t, NULL, err));
    TRY(trainer_open_model(t, err));
    TRY(trainer_agree_on_model(t, err));
    cpu_use_threads(trainer_threads(t));
    TRY(trainer_open_destinations(t, err));
    TRY(trainer_find_constants(t, err));
    TRY(make_step(t, err));
    TRY(trainer_check_line(t, err));
    TRY(trainer_check_destinations(t, err));
    if (t->o->dry_run) return plan_run(t, err);
    TRY(check_memory(t, err));
    trainer_find_peak(t);
    TRY(trainer_simulate_ranks(t, err));
    TRY(step_allocate(&t->step, err));
    TRY(trainer_open_saves(t, err));
    TRY(trainer_open_data(t, err));
    log_origin(t, CHECKPOINT_LOADING, t->origin->training.iteration);
    TRY(trainer_load(t, &loaded, err));
    TRY(trainer_set_up(t, &loaded, err));
    log_origin(t, CHECKPOINT_LOADED, (int64_t)t->iteration);
    TRY(trainer_agree_on_start(t, err));
    TRY(trainer_open_logs(t, err));
    if (t->q->watch) TRY(trainer_show_weights(t, false, err));
    TRY(trainer_loop(t, err));
    return t->q->watch ? trainer_show_weights(t, true, err) : OK;
}

static void close_all(struct trainer *t)
{
    struct error ignored;
    (void)!trainer_finish_save(t, &ignored);
    trainer_close_logs(t);
    trainer_close_data(t);
    trainer_close_saves(t);
    trainer_release_ranks(t);
    step_release(&t->step);
    model_close(&t->model);
    if (t->has_device && t->model.device) t->model.device->close();
    if (t->origin == &t->scratch) checkpoint_release(&t->scratch);
    if (t->is_open) opened_close(&t->opened);
}

enum status trainer_run(const struct train_request *q, const struct comm *job,
                        void (*ended)(void *context, const struct train_summary *s), void *context,
                        struct error *err)
{
    struct trainer t = {
        .q = q, .o = q->options, .job = job, .last_loss = NAN, .begun = seconds_now()};
    if (job) t.comm = *job;
    arena_init(&t.arena);
    enum status st = run_training(&t, err);
    if (st && t.comm.backend) comm_fail(&t.comm, err); /* before anything waits for the others */
    const bool is_planned = t.plan.num_memory > 0;
    const struct train_summary summary = {.plan = is_planned ? &t.plan : NULL,
                                          .iteration = t.iteration,
                                          .consumed_samples = t.consumed,
                                          .skipped_iterations = t.skipped_iterations,
                                          .loss = t.last_loss,
                                          .saved = t.saved};
    close_all(&t);
    if (t.comm.backend && !job) st = comm_end(&t.comm, st, err); /* other ranks end here */
    if (!job) interrupt_hold(false); /* else until the job is left: the run is over */
    if (!st || st == ERR_INTERRUPTED || is_planned) ended(context, &summary);
    arena_release(&t.arena);
    return st;
}
