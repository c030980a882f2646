#include "common/progress.h"

#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/count.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/utf8.h"

enum { NUM_SAMPLES = 20 }; /* the rate is over the last NUM_SAMPLES * TICK_SECONDS */
#define TICK_SECONDS 0.25

static const struct {
    double first_seconds, period_seconds;
} timing[] = {
    [PROGRESS_BAR] = {0.5, TICK_SECONDS},
    [PROGRESS_PLAIN] = {10, 10},
    [PROGRESS_JSON] = {1, 1},
};

struct sample {
    double seconds;
    uint64_t worked;
};

struct progress {
    enum progress_style style;
    const char *what, *unit;
    uint64_t total;
    _Atomic uint64_t worked, skipped; /* the sum is done */
    char note[64];                    /* guarded by lock */
    _Atomic(const char *) file;
    double start; /* seconds_now() */

    pthread_t thread;
    bool has_thread, shown;
    pthread_mutex_t lock; /* of stop */
    pthread_cond_t wake;
    bool stop;

    struct sample samples[NUM_SAMPLES];
    size_t num_samples; /* ever taken; number i is at i % NUM_SAMPLES */
    struct strbuf line;
};

/* ---- text ---- */

/* The part done by this run. */
static uint64_t worked_of(const struct progress_view *v)
{
    return v->done - v->skipped;
}

static void add_three_digits(struct strbuf *out, double v)
{
    strbuf_printf(out, "%.*f", v < 9.995 ? 2 : v < 99.95 ? 1 : 0, v);
}

/* The decimal unit with one to three digits before the point. */
static double unit_of(double bytes, const char **name)
{
    static const char *const names[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    double unit = 1;
    size_t i = 0;
    for (; i + 1 < COUNT(names) && bytes >= 999.5 * unit; i++)
        unit *= 1000;
    *name = names[i];
    return unit;
}

void progress_bytes(struct strbuf *out, uint64_t done_bytes, uint64_t total_bytes)
{
    const char *name;
    bool of_total = done_bytes < total_bytes;
    double unit = unit_of((double)(of_total ? total_bytes : done_bytes), &name);
    add_three_digits(out, (double)done_bytes / unit);
    if (of_total) {
        strbuf_add_text(out, " of ");
        add_three_digits(out, (double)total_bytes / unit);
    }
    strbuf_printf(out, " %s", name);
}

void progress_rate(struct strbuf *out, double bytes_per_second)
{
    const char *name;
    double unit = unit_of(bytes_per_second, &name);
    add_three_digits(out, bytes_per_second / unit);
    strbuf_printf(out, " %s/s", name);
}

/* "12.3 of 29.1 GB"; "420 of 1000 steps". */
static void add_amount(struct strbuf *out, const struct progress_view *v)
{
    if (!v->unit)
        progress_bytes(out, v->done, v->total);
    else if (v->done < v->total)
        strbuf_printf(out, "%" PRIu64 " of %" PRIu64 " %s", v->done, v->total, v->unit);
    else
        strbuf_printf(out, "%" PRIu64 " %s", v->done, v->unit);
}

static void add_rate(struct strbuf *out, const struct progress_view *v)
{
    if (!v->unit) {
        progress_rate(out, v->per_second);
        return;
    }
    add_three_digits(out, v->per_second);
    strbuf_printf(out, " %s/s", v->unit);
}

static void add_duration(struct strbuf *out, double seconds)
{
    unsigned long s = (unsigned long)ceil(seconds);
    if (s < 60)
        strbuf_printf(out, "%lu s", s);
    else if (s < 3600)
        strbuf_printf(out, "%lu min %02lu s", s / 60, s % 60);
    else
        strbuf_printf(out, "%lu h %02lu min", s / 3600, s % 3600 / 60);
}

static void running_text(struct strbuf *out, const struct progress_view *v)
{
    strbuf_add_text(out, v->what);
    if (v->total) {
        double part = (double)v->done / (double)v->total;
        strbuf_printf(out, "  %3.0f%%", part < 1 ? floor(100 * part) : 100);
    }
    strbuf_add_text(out, "  ");
    add_amount(out, v);
    strbuf_add_text(out, "  ");
    add_rate(out, v);
    if (worked_of(v) && v->done < v->total) {
        double left = (double)(v->total - v->done);
        strbuf_add_text(out, "  ");
        add_duration(out, left * v->seconds / (double)worked_of(v));
        strbuf_add_text(out, " left");
    }
    if (v->detail) {
        strbuf_add_text(out, "  ");
        strbuf_add_escaped(out, v->detail, strlen(v->detail));
    }
}

static void last_text(struct strbuf *out, const struct progress_view *v)
{
    strbuf_printf(out, "%s %s: ", v->what, v->event == PROGRESS_DONE ? "done" : "stopped");
    add_amount(out, v);
    strbuf_add_text(out, " in ");
    add_duration(out, v->seconds);
    strbuf_add_text(out, ", ");
    add_rate(out, v);
}

static void json_text(struct strbuf *out, const struct progress_view *v)
{
    static const char *const events[] = {"progress", "done", "stopped"};
    const char *unit = v->unit ? v->unit : "bytes";
    strbuf_printf(out, "{\"event\":\"%s\",\"what\":", events[v->event]);
    json_print_text(out, v->what);
    strbuf_printf(out,
                  ",\"done_%s\":%" PRIu64 ",\"total_%s\":%" PRIu64 ",\"seconds\":%.3f,"
                  "\"%s_per_second\":%.*f,\"%s\":",
                  unit, v->done, unit, v->total, v->seconds, unit, v->unit ? 3 : 0, v->per_second,
                  v->unit ? "note" : "file");
    if (v->detail)
        json_print_text(out, v->detail);
    else
        strbuf_add_text(out, "null");
    strbuf_add_char(out, '}');
}

void progress_text(struct strbuf *out, enum progress_style style, const struct progress_view *v)
{
    if (style == PROGRESS_JSON)
        json_text(out, v);
    else if (v->event == PROGRESS_RUNNING)
        running_text(out, v);
    else
        last_text(out, v);
}

void progress_time(struct strbuf *out, time_t when)
{
    char text[32];
    struct tm local;
    if (localtime_r(&when, &local) && strftime(text, sizeof text, "[%Y-%m-%d %H:%M:%S] ", &local))
        strbuf_add_text(out, text);
}

/* ---- lines on stderr ---- */

static size_t terminal_columns(void)
{
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) || size.ws_col == 0) return 80;
    return size.ws_col;
}

static void truncate_line(struct strbuf *line, size_t columns)
{
    size_t bytes = 0;
    for (; bytes < line->length && columns; columns--)
        bytes += utf8_sequence(line->data + bytes, line->length - bytes);
    line->data[bytes] = '\0';
    line->length = bytes;
}

#define CLEAR_LINE "\r\033[K"

/* One fwrite a line, so lines of other threads do not mix in. */
static void show_line(struct progress *p, const struct progress_view *v)
{
    strbuf_clear(&p->line);
    if (p->style == PROGRESS_BAR && v->event == PROGRESS_RUNNING) {
        struct strbuf text = {0};
        progress_text(&text, p->style, v);
        truncate_line(&text, terminal_columns() - 1); /* some terminals wrap at the last column */
        strbuf_printf(&p->line, CLEAR_LINE "%s", text.data);
        strbuf_release(&text);
    } else if (p->style == PROGRESS_BAR) {
        strbuf_add_text(&p->line, CLEAR_LINE);
    } else {
        if (p->style == PROGRESS_PLAIN) progress_time(&p->line, time(NULL));
        progress_text(&p->line, p->style, v);
        strbuf_add_char(&p->line, '\n');
    }
    fwrite(p->line.data, 1, p->line.length, stderr);
    p->shown = true;
}

static struct progress_view view_of(struct progress *p, enum progress_event event)
{
    uint64_t skipped = atomic_load(&p->skipped);
    return (struct progress_view){
        .what = p->what,
        .unit = p->unit,
        .detail = *p->note ? p->note : atomic_load(&p->file),
        .skipped = skipped,
        .done = skipped + atomic_load(&p->worked),
        .total = p->total,
        .seconds = seconds_now() - p->start,
        .event = event,
    };
}

static double rate_between(struct sample from, const struct progress_view *v)
{
    double seconds = v->seconds - from.seconds;
    uint64_t worked = worked_of(v);
    return seconds > 0 && worked > from.worked ? (double)(worked - from.worked) / seconds : 0;
}

/* Sets v's rate since the oldest sample kept, and adds v to the samples. */
static void take_sample(struct progress *p, struct progress_view *v)
{
    size_t oldest = p->num_samples < NUM_SAMPLES ? 0 : p->num_samples % NUM_SAMPLES;
    v->per_second = rate_between(p->samples[oldest], v);
    p->samples[p->num_samples++ % NUM_SAMPLES] = (struct sample){v->seconds, worked_of(v)};
}

/* Sleeps one tick with p->lock held; false: the work is finished. */
static bool wait_tick(struct progress *p)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(TICK_SECONDS * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int woken = 0;
    while (!p->stop && !woken)
        woken = pthread_cond_timedwait(&p->wake, &p->lock, &until);
    return !p->stop;
}

static void *watch_progress(void *argument)
{
    struct progress *p = argument;
    double next_line = timing[p->style].first_seconds;
    pthread_mutex_lock(&p->lock);
    while (wait_tick(p)) {
        struct progress_view v = view_of(p, PROGRESS_RUNNING);
        take_sample(p, &v);
        /* The tick nearest to the line's time. */
        if (v.seconds < next_line - TICK_SECONDS / 2) continue;
        show_line(p, &v);
        next_line = fmax(next_line, v.seconds - TICK_SECONDS) + timing[p->style].period_seconds;
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

enum progress_style progress_style_named(const char *name, bool quiet)
{
    static const char *const names[] = {"auto", "bar", "plain", "json", "none"};
    for (size_t i = 0; name && i < COUNT(names); i++)
        if (strcmp(name, names[i]) == 0) return (enum progress_style)i;
    return quiet ? PROGRESS_NONE : PROGRESS_AUTO;
}

struct progress *progress_start_counting(enum progress_style style, const char *what,
                                         const char *unit, uint64_t total)
{
    if (style == PROGRESS_AUTO) style = isatty(STDERR_FILENO) ? PROGRESS_BAR : PROGRESS_PLAIN;
    if (style == PROGRESS_NONE) return NULL;

    struct progress *p = must_calloc(1, sizeof *p);
    p->style = style;
    p->what = what;
    p->unit = unit;
    p->total = total;
    p->num_samples = 1; /* nothing done at second 0 */
    p->start = seconds_now();
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&p->lock, NULL);
    p->has_thread =
        pthread_create(&p->thread, NULL, watch_progress, p) == 0; /* no thread: no lines */
    return p;
}

struct progress *progress_start(enum progress_style style, const char *what, uint64_t total_bytes)
{
    return progress_start_counting(style, what, NULL, total_bytes);
}

void progress_add(struct progress *p, uint64_t count)
{
    if (p) atomic_fetch_add_explicit(&p->worked, count, memory_order_relaxed);
}

void progress_skip(struct progress *p, uint64_t count)
{
    if (p) atomic_fetch_add_explicit(&p->skipped, count, memory_order_relaxed);
}

void progress_file(struct progress *p, const char *name)
{
    if (p) atomic_store_explicit(&p->file, name, memory_order_relaxed);
}

void progress_note(struct progress *p, const char *note)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    (void)snprintf(p->note, sizeof p->note, "%s", note);
    pthread_mutex_unlock(&p->lock);
}

void progress_hide(struct progress *p)
{
    if (!p || p->style != PROGRESS_BAR) return;
    pthread_mutex_lock(&p->lock);
    if (p->shown) fputs(CLEAR_LINE, stderr);
    pthread_mutex_unlock(&p->lock);
}

void progress_finish(struct progress *p, bool ok)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_signal(&p->wake);
    pthread_mutex_unlock(&p->lock);
    if (p->has_thread) pthread_join(p->thread, NULL);

    struct progress_view last = view_of(p, ok ? PROGRESS_DONE : PROGRESS_STOPPED);
    last.per_second = rate_between((struct sample){0}, &last);
    if (p->shown || p->style == PROGRESS_JSON) show_line(p, &last);

    strbuf_release(&p->line);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p);
}
