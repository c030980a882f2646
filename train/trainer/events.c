#include "train/trainer/events.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"

/* ---- records ---- */

/* CRC-32C (Castagnoli), reflected, bit by bit: a scalar has about 60 bytes. */
static uint32_t crc32c(const void *data, size_t bytes)
{
    uint32_t crc = UINT32_MAX;
    for (const uint8_t *at = data, *end = at + bytes; at < end; at++) {
        crc ^= *at;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

/* Masked, since a CRC over data with embedded CRCs is weak. */
static uint32_t masked_crc32c(const void *data, size_t bytes)
{
    const uint32_t crc = crc32c(data, bytes);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

static void add_little_endian(struct strbuf *s, uint64_t n, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++, n >>= 8)
        strbuf_add_char(s, (char)(n & 0xFF));
}

static void add_record(struct strbuf *out, const struct strbuf *data)
{
    struct strbuf length = {0};
    add_little_endian(&length, data->length, 8);
    strbuf_add(out, length.data, length.length);
    add_little_endian(out, masked_crc32c(length.data, length.length), 4);
    strbuf_add(out, data->data, data->length);
    add_little_endian(out, masked_crc32c(data->data, data->length), 4);
    strbuf_release(&length);
}

/* ---- protocol buffers ---- */

enum wire_type { WIRE_VARINT = 0, WIRE_64_BITS = 1, WIRE_BYTES = 2, WIRE_32_BITS = 5 };

static void add_varint(struct strbuf *s, uint64_t n)
{
    for (; n >= 0x80; n >>= 7)
        strbuf_add_char(s, (char)(n | 0x80));
    strbuf_add_char(s, (char)n);
}

static void add_key(struct strbuf *s, unsigned field, enum wire_type type)
{
    add_varint(s, field << 3 | type);
}

static void add_double(struct strbuf *s, unsigned field, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_key(s, field, WIRE_64_BITS);
    add_little_endian(s, bits, 8);
}

static void add_float(struct strbuf *s, unsigned field, float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    add_key(s, field, WIRE_32_BITS);
    add_little_endian(s, bits, 4);
}

static void add_bytes(struct strbuf *s, unsigned field, const void *data, size_t bytes)
{
    add_key(s, field, WIRE_BYTES);
    add_varint(s, bytes);
    strbuf_add(s, data, bytes);
}

/* ---- events ---- */

enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SOURCE = 10
};
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_NUMBER = 2, SOURCE_WRITER = 1 };

static void begin_event(struct events *e, struct timespec when)
{
    strbuf_clear(&e->event);
    add_double(&e->event, EVENT_WALL_TIME, (double)when.tv_sec + 1e-9 * (double)when.tv_nsec);
}

static void add_version(struct events *e, struct timespec when)
{
    static const char version[] = "brain.Event:2", writer[] = "ferry";
    begin_event(e, when);
    add_bytes(&e->event, EVENT_VERSION, version, strlen(version));
    strbuf_clear(&e->summary);
    add_bytes(&e->summary, SOURCE_WRITER, writer, strlen(writer));
    add_bytes(&e->event, EVENT_SOURCE, e->summary.data, e->summary.length);
    add_record(&e->pending, &e->event);
}

void events_add_scalar(struct events *e, const char *tag, double value, uint64_t step,
                       struct timespec when)
{
    struct strbuf pair = {0};
    add_bytes(&pair, VALUE_TAG, tag, strlen(tag));
    add_float(&pair, VALUE_NUMBER, (float)value);
    strbuf_clear(&e->summary);
    add_bytes(&e->summary, SUMMARY_VALUE, pair.data, pair.length);
    strbuf_release(&pair);

    begin_event(e, when);
    if (step) {
        add_key(&e->event, EVENT_STEP, WIRE_VARINT);
        add_varint(&e->event, step);
    }
    add_bytes(&e->event, EVENT_SUMMARY, e->summary.data, e->summary.length);
    add_record(&e->pending, &e->event);
}

/* ---- the file ---- */

enum { MAX_FILES_AT_ONCE = 1000 }; /* of one process in one second */

static void set_path(struct events *e, const char *folder, struct timespec when, int number)
{
    char host[256] = "";
    struct strbuf path = {0};
    gethostname(host, sizeof host - 1);
    strbuf_printf(&path, "%s/events.out.tfevents.%010lld.%s.%ld.%d", folder, (long long)when.tv_sec,
                  host[0] ? host : "localhost", (long)getpid(), number);
    free(e->path);
    e->path = path.data;
}

enum status events_open(struct events *e, const char *folder, const struct events_options *options,
                        struct timespec when, struct error *err)
{
    *e = (struct events){.fd = -1, .options = *options};
    TRY(folder_create(folder, err));
    for (int i = 0; e->fd < 0 && i < MAX_FILES_AT_ONCE; i++) {
        set_path(e, folder, when, i);
        e->fd = open(e->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
        if (e->fd < 0 && errno != EEXIST) return fail_errno(err, ERR_IO, "%s", e->path);
    }
    if (e->fd < 0) return fail(err, ERR_IO, "%s exists already", e->path);
    add_version(e, when);
    return events_flush(e, err);
}

enum status events_flush(struct events *e, struct error *err)
{
    size_t written = 0;
    while (written < e->pending.length) {
        const ssize_t n = write(e->fd, e->pending.data + written, e->pending.length - written);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        written += (size_t)n;
    }
    const bool is_whole = written == e->pending.length;
    strbuf_clear(&e->pending);
    if (is_whole) {
        e->size_bytes += written;
        return OK;
    }
    const int why = errno;
    if (written && ftruncate(e->fd, (off_t)e->size_bytes))
        return fail_errno(err, ERR_IO, "%s: part of a record remains", e->path);
    errno = why;
    return fail_errno(err, ERR_IO, "%s", e->path);
}

void events_close(struct events *e)
{
    if (e->fd >= 0) close(e->fd);
    free(e->path);
    strbuf_release(&e->pending);
    strbuf_release(&e->event);
    strbuf_release(&e->summary);
    *e = (struct events){.fd = -1};
}

/* ---- Megatron's names ---- */

/* A point in time of a run, by both counts. */
struct moment {
    uint64_t iteration, consumed_samples;
    struct timespec when;
};

/* "NAME" by iteration and "NAME vs samples". */
static void add_both(struct events *e, const char *name, double value, const struct moment *m)
{
    struct strbuf vs_samples = {0};
    events_add_scalar(e, name, value, m->iteration, m->when);
    strbuf_printf(&vs_samples, "%s vs samples", name);
    events_add_scalar(e, vs_samples.data, value, m->consumed_samples, m->when);
    strbuf_release(&vs_samples);
}

static void add_step_scalars(struct events *e, const struct step_record *s, uint64_t world_size,
                             const struct moment *m)
{
    add_both(e, "learning-rate", s->logged_lr, m);
    if (s->skipped_samples)
        events_add_scalar(e, "skipped-train-samples", (double)s->skipped_samples, m->iteration,
                          m->when);
    add_both(e, "batch-size", (double)s->batch_size, m);
    add_both(e, s->loss.name, s->loss.value, m);
    if (!e->options.without_loss_scale) add_both(e, "loss-scale", s->loss_scale, m);
    if (e->options.with_world_size) add_both(e, "world-size", (double)world_size, m);
    if (s->has_grad_norm) add_both(e, "grad-norm", s->grad_norm, m);
    if (s->has_num_zeros) add_both(e, "num-zeros", s->num_zeros, m);
    if (s->has_params_norm) add_both(e, "params-norm", s->params_norm, m);
}

void events_add_step(struct events *e, const struct step_record *s, const struct log_line *line,
                     bool line_is_due, struct timespec when)
{
    const struct moment m = {s->iteration, s->consumed_samples, when};
    if (s->iteration % e->options.interval == 0) add_step_scalars(e, s, line->world_size, &m);
    for (unsigned i = 0; i < s->num_router_losses; i++)
        events_add_scalar(e, s->router_losses[i].name, s->router_losses[i].value, m.iteration,
                          when);
    if (!line_is_due || !e->options.with_timers) return;
    if (!line->is_first)
        events_add_scalar(e, "iteration-time", line->seconds_per_iteration, m.iteration, when);
    if (line->log_throughput)
        events_add_scalar(e, "throughput", line->throughput, m.iteration, when);
}

void events_add_evaluation(struct events *e, uint64_t iteration, uint64_t consumed_samples,
                           const struct named_loss *losses, size_t num_losses, struct timespec when)
{
    const struct moment m = {iteration, consumed_samples, when};
    for (const struct named_loss *loss = losses; loss < losses + num_losses; loss++) {
        struct strbuf name = {0};
        strbuf_printf(&name, "%s validation", loss->name);
        add_both(e, name.data, loss->value, &m);
        strbuf_add_text(&name, " ppl");
        if (e->options.with_validation_ppl)
            add_both(e, name.data, log_line_perplexity(loss->value), &m);
        strbuf_release(&name);
    }
}
