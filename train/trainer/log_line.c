#include "train/trainer/log_line.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* C prints the sign of a NaN, Python does not. */
static double as_python_prints(double x)
{
    return isnan(x) ? fabs(x) : x;
}

/* ---- the sums of an interval ---- */

/* The sum of this name, added at the end if new. */
static float *sum_of(struct log_line *l, const char *name)
{
    for (unsigned i = 0; i < l->num_sums; i++)
        if (!strcmp(l->sums[i].name, name)) return &l->sums[i].value;
    if (l->num_sums == sizeof l->sums / sizeof *l->sums) return NULL;
    l->sums[l->num_sums] = (struct loss_sum){.name = name};
    return &l->sums[l->num_sums++].value;
}

static void add_loss(struct log_line *l, const struct named_loss *loss)
{
    float *sum = sum_of(l, loss->name);
    if (sum) *sum += (float)loss->value;
}

static void add_to_interval(struct log_line *l, const struct step_record *s)
{
    l->seconds += s->seconds;
    if (s->skipped) {
        l->skipped++;
        if (!isfinite(s->loss.value)) l->nan++;
    } else {
        l->advanced++;
        add_loss(l, &s->loss);
    }
    for (unsigned i = 0; i < s->num_router_losses; i++)
        add_loss(l, &s->router_losses[i]);
}

/* Names stay: an empty sum is 0, not left out. */
static void start_interval(struct log_line *l)
{
    l->advanced = l->skipped = l->nan = 0;
    l->seconds = 0;
    for (unsigned i = 0; i < l->num_sums; i++)
        l->sums[i].value = 0;
}

/* ---- a line ---- */

static void add_time(struct strbuf *out, struct timespec when)
{
    struct tm t;
    char text[64];
    localtime_r(&when.tv_sec, &t);
    strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &t);
    strbuf_printf(out, "[%s.%06ld] ", text, when.tv_nsec / 1000);
}

static void add_progress(const struct log_line *l, const struct step_record *s, struct strbuf *out)
{
    strbuf_printf(out, "iteration %8" PRIu64 "/%8" PRIu64 " |", s->iteration, l->train_iters);
    strbuf_printf(out, " consumed samples: %12" PRIu64 " |", s->consumed_samples);
    if (s->skipped_samples)
        strbuf_printf(out, " skipped samples: %12" PRIu64 " |", s->skipped_samples);
    strbuf_printf(out, " elapsed time per iteration (ms): %.1f |",
                  l->seconds_per_iteration * 1000.0);
    if (l->log_throughput)
        strbuf_printf(out, " throughput per GPU (TFLOP/s/GPU): %.1f |",
                      as_python_prints(l->throughput));
    strbuf_printf(out, " learning rate: %.6E |", (double)(float)s->logged_lr);
    strbuf_printf(out, " global batch size: %5" PRIu64 " |", s->batch_size);
}

static void add_means(const struct log_line *l, struct strbuf *out)
{
    const double count = l->advanced ? (double)l->advanced : 1;
    for (unsigned i = 0; i < l->num_sums; i++) {
        const double mean = (double)l->sums[i].value / count;
        if (mean >= 0) strbuf_printf(out, " %s: %.6E |", l->sums[i].name, mean);
    }
}

static void add_step_numbers(const struct log_line *l, const struct step_record *s,
                             struct strbuf *out)
{
    strbuf_printf(out, " loss scale: %.1f |", s->loss_scale);
    if (s->has_grad_norm) strbuf_printf(out, " grad norm: %.3f |", as_python_prints(s->grad_norm));
    if (s->has_num_zeros) strbuf_printf(out, " num zeros: %.1f |", s->num_zeros);
    if (s->has_params_norm)
        strbuf_printf(out, " params norm: %.3f |", as_python_prints(s->params_norm));
    strbuf_printf(out, " number of skipped iterations: %3" PRIu64 " |", l->skipped);
    strbuf_printf(out, " number of nan iterations: %3" PRIu64 " |\n", l->nan);
}

bool log_line_add(struct log_line *l, const struct step_record *s, struct timespec when,
                  struct strbuf *out)
{
    const bool is_first = !l->started;
    l->started = true;
    add_to_interval(l, s);
    if (!is_first && s->iteration % l->log_interval) return false;

    l->is_first = is_first;
    l->seconds_per_iteration = l->seconds / (double)(l->advanced + l->skipped);
    l->throughput = s->flops / (l->seconds_per_iteration * 1e12 * (double)l->world_size);
    strbuf_add_char(out, ' ');
    add_time(out, when);
    add_progress(l, s, out);
    add_means(l, out);
    add_step_numbers(l, s, out);
    if (!is_first) start_interval(l);
    return true;
}

/* ---- evaluation ---- */

double log_line_perplexity(double loss)
{
    return exp(loss > 20 ? 20 : loss);
}

void log_line_add_evaluation(uint64_t iteration, const char *where, const struct named_loss *losses,
                             size_t num_losses, struct strbuf *out)
{
    struct strbuf line = {0};
    strbuf_printf(&line, " validation loss at iteration %" PRIu64 "%s | ", iteration, where);
    for (const struct named_loss *loss = losses; loss < losses + num_losses; loss++) {
        strbuf_printf(&line, "%s value: %.6E | ", loss->name, as_python_prints(loss->value));
        strbuf_printf(&line, "%s PPL: %.6E | ", loss->name,
                      as_python_prints(log_line_perplexity(loss->value)));
    }
    strbuf_add_repeated(out, '-', line.length + 1);
    strbuf_printf(out, "\n%s\n", line.data);
    strbuf_add_repeated(out, '-', line.length + 1);
    strbuf_add_char(out, '\n');
    strbuf_release(&line);
}

/* ---- checkpoints ---- */

static void add_loading(const struct checkpoint_line *c, struct strbuf *out)
{
    const char *kind = strcmp(c->format, "torch_dist") == 0 ? "distributed " : "";
    if (c->iteration < 0)
        strbuf_printf(out, " loading release %scheckpoint from %s\n", kind, c->dir);
    else
        strbuf_printf(out, " loading %scheckpoint from %s at iteration %" PRId64 "\n", kind, c->dir,
                      c->iteration);
}

void log_line_add_checkpoint(const struct checkpoint_line *c, struct timespec when,
                             struct strbuf *out)
{
    char rank[64];
    (void)snprintf(rank, sizeof rank, "[ t 1/%" PRIu64 ", p 1/%" PRIu64 " ]", c->tp, c->pp);
    switch (c->event) {
    case CHECKPOINT_LOADING:
        add_loading(c, out);
        break;
    case CHECKPOINT_LOADED:
        strbuf_printf(out, "  successfully loaded checkpoint from %s %s at iteration %" PRId64 "\n",
                      c->dir, rank, c->iteration);
        break;
    case CHECKPOINT_SAVING:
        add_time(out, when);
        strbuf_printf(out, "saving checkpoint at iteration %7" PRId64 " to %s in %s format\n",
                      c->iteration, c->dir, c->format);
        break;
    case CHECKPOINT_SCHEDULED:
        strbuf_printf(out, "  ");
        add_time(out, when);
        strbuf_printf(out, "scheduled an async checkpoint save at iteration %7" PRId64 " to %s\n",
                      c->iteration, c->dir);
        break;
    case CHECKPOINT_SAVED:
        strbuf_printf(out, "  ");
        add_time(out, when);
        strbuf_printf(out, "successfully saved checkpoint from iteration %7" PRId64 " to %s %s\n",
                      c->iteration, c->dir, rank);
        break;
    }
}
