/* trainer_log.c - logs of a run's iterations. stdout has Megatron-LM's lines
 * and nothing else. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "convert/format.h"
#include "kernels/ceilings.h"
#include "train/trainer/trainer_internal.h"

static struct timespec time_now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    return t;
}

static enum status print_lines(const struct trainer *t, struct strbuf *text, struct error *err)
{
    FILE *to = t->o->json ? stderr : stdout;
    if (text->length) progress_hide(t->progress);
    const bool good = fputs(text->data ? text->data : "", to) >= 0 && fflush(to) == 0;
    strbuf_release(text);
    return good ? OK : fail(err, ERR_IO, "cannot print log lines: %s", strerror(errno));
}

/* ---- the peak speed for mfu ---- */

/* Few, to take less than a second. */
enum { PEAK_REPEATS = 3 };

static void take_published(struct trainer *t)
{
    const char *gpu = t->model.device->describe();
    const double rate = ceiling_published(gpu, t->model.options.elem);
    if (rate > 0)
        t->peak = (struct peak){rate / 1e12,
                                arena_printf(&t->arena,
                                             "published, of products in %s, without sparsity: %s",
                                             t->o->dtype, gpu)};
    else
        trainer_note(t, "%s: unknown peak in %s; mfu of --log-jsonl is null", gpu, t->o->dtype);
}

static void measure_peak(struct trainer *t)
{
    const struct model *m = &t->model;
    struct error why;
    double rate;
    if (ceiling_of_products(m->device, m->options.elem, PEAK_REPEATS, &rate, &why))
        trainer_note(t, "%s; mfu of --log-jsonl is null", why.text);
    else
        t->peak = (struct peak){rate / 1e12,
                                arena_printf(&t->arena, "measured, of a large product in %s: %s",
                                             t->o->dtype, m->device->describe())};
}

void trainer_find_peak(struct trainer *t)
{
    if (!t->o->log_jsonl) return;
    if (t->model.device->is_host)
        measure_peak(t);
    else
        take_published(t);
}

/* ---- logs ---- */

enum status trainer_open_logs(struct trainer *t, struct error *err)
{
    const struct train_options *o = t->o;
    const struct events_options events = {.interval = o->tensorboard_log_interval};
    const uint64_t ranks = trainer_num_ranks(t);
    if (t->comm.rank) return OK;
    t->lines = (struct log_line){.train_iters = t->train_iters,
                                 .log_interval = o->log_interval,
                                 .world_size = ranks,
                                 .log_throughput = o->log_throughput};
    if (o->log_jsonl) {
        t->has_jsonl = true;
        TRY(log_jsonl_open(&t->jsonl, o->log_jsonl, t->iteration, ranks, t->peak, err));
    }
    if (!o->tensorboard_dir) return OK;
    t->has_events = true;
    return events_open(&t->events, o->tensorboard_dir, &events, time_now(), err);
}

void trainer_close_logs(struct trainer *t)
{
    if (t->has_jsonl) log_jsonl_close(&t->jsonl);
    if (t->has_events) events_close(&t->events);
}

/* Notes a failed log once; the run continues. */
static void drop_jsonl(struct trainer *t, const struct error *why)
{
    trainer_note(t, "%s; --log-jsonl is no longer written", why->text);
    log_jsonl_close(&t->jsonl);
    t->has_jsonl = false;
}

static void flush_events(struct trainer *t)
{
    struct error why;
    if (!events_flush(&t->events, &why)) return;
    trainer_note(t, "%s; --tensorboard-dir is no longer written", why.text);
    events_close(&t->events);
    t->has_events = false;
}

enum status trainer_log_step(struct trainer *t, const struct step_record *r, struct error *err)
{
    struct strbuf text = {0};
    struct error why;
    const struct timespec when = time_now();
    if (t->q->watch) return t->q->watch->step(t->q->watch->context, r, err);
    if (t->comm.rank) return OK;
    const bool due = log_line_add(&t->lines, r, when, &text);
    if (t->has_jsonl && log_jsonl_add(&t->jsonl, r, &why)) drop_jsonl(t, &why);
    if (t->has_events) {
        events_add_step(&t->events, r, &t->lines, due, when);
        flush_events(t);
    }
    return print_lines(t, &text, err);
}

void trainer_start_progress(struct trainer *t)
{
    const bool shows = t->o->progress && !t->comm.rank;
    t->progress = progress_start_counting(shows ? t->q->progress : PROGRESS_NONE, "training",
                                          "steps", t->train_iters);
    progress_skip(t->progress, t->iteration);
}

void trainer_show_progress(const struct trainer *t, const struct step_record *r)
{
    char note[64];
    (void)snprintf(note, sizeof note, "loss %.4f  %.0f tokens/s", r->loss.value,
                   (double)r->tokens / r->seconds);
    progress_note(t->progress, note);
    progress_add(t->progress, 1);
}

void trainer_end_progress(struct trainer *t)
{
    progress_finish(t->progress, t->iteration == t->train_iters);
    t->progress = NULL;
}

void trainer_log_checkpoint(const struct trainer *t, enum checkpoint_event event, const char *dir,
                            const struct format *format, int64_t iteration)
{
    const struct checkpoint_line c = {.event = event,
                                      .dir = dir,
                                      .format = format->name,
                                      .iteration = iteration,
                                      .tp = t->model.groups.sizes.tp,
                                      .pp = t->model.groups.sizes.pp};
    struct strbuf text = {0};
    struct error ignored;
    if (t->comm.rank || t->q->watch) return;
    log_line_add_checkpoint(&c, time_now(), &text);
    (void)!print_lines(t, &text, &ignored);
}

enum status trainer_log_evaluation(struct trainer *t, const char *where, double loss,
                                   struct error *err)
{
    const struct named_loss named = {"lm loss", loss};
    struct strbuf text = {0};
    if (t->comm.rank) return OK;
    log_line_add_evaluation(t->iteration, where, &named, 1, &text);
    if (t->has_events) {
        events_add_evaluation(&t->events, t->iteration, t->consumed, &named, 1, time_now());
        flush_events(t);
    }
    return print_lines(t, &text, err);
}
