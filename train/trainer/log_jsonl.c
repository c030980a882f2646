#include "train/trainer/log_jsonl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "common/json.h"
#include "train/trainer/flops.h"

/* ---- existing lines ---- */

/* Reads the iteration of a line. ERR_CORRUPT if the line is not one of this
 * log. */
static enum status iteration_of(const char *line, size_t length, uint64_t *iteration,
                                struct error *err)
{
    cJSON *tree;
    TRY(json_parse(line, length, JSON_STRICT, &tree, err));
    const bool is_ours = json_as_u64(json_get(tree, "iteration"), iteration);
    cJSON_Delete(tree);
    return is_ours ? OK : fail(err, ERR_CORRUPT, "no integer \"iteration\"");
}

/* Whether the text may begin a line of this log; other files are not truncated. */
static bool is_unfinished_line(const char *text, size_t length)
{
    static const char begin[] = "{\"iteration\":";
    return !memcmp(text, begin, length < sizeof begin - 1 ? length : sizeof begin - 1);
}

static enum status check_line(const char *line, size_t length, uint64_t *iteration,
                              struct error *err)
{
    if (line[length - 1] == '\n') return iteration_of(line, length - 1, iteration, err);
    *iteration = UINT64_MAX; /* is removed */
    return is_unfinished_line(line, length) ? OK : fail(err, ERR_CORRUPT, "not a line of JSON");
}

/* Bytes of the lines up to iteration `resumed`. */
static enum status bytes_to_keep(FILE *file, const char *path, uint64_t resumed, uint64_t *bytes,
                                 struct error *err)
{
    char *line = NULL;
    size_t capacity = 0;
    uint64_t iteration = 0, number = 1;
    enum status st = OK;
    *bytes = 0;
    for (ssize_t n; !st && (n = getline(&line, &capacity, file)) > 0; number++) {
        st = check_line(line, (size_t)n, &iteration, err);
        if (st)
            st = fail_in(err, "%s is not a log of training steps: line %" PRIu64, path, number);
        else if (iteration > resumed)
            break;
        *bytes += (uint64_t)n;
    }
    if (!st && ferror(file)) st = fail_errno(err, ERR_IO, "%s", path);
    free(line);
    return st;
}

/* Removes lines after iteration `resumed`; a pipe or a device has none. */
static enum status truncate_log(struct log_jsonl *l, uint64_t resumed, struct error *err)
{
    if (!path_is_file(l->path)) return OK;
    FILE *file = fopen(l->path, "r");
    if (!file) return fail_errno(err, ERR_IO, "%s", l->path);
    const enum status st = bytes_to_keep(file, l->path, resumed, &l->size_bytes, err);
    fclose(file);
    if (st) return st;
    if (ftruncate(l->fd, (off_t)l->size_bytes)) return fail_errno(err, ERR_IO, "%s", l->path);
    return OK;
}

enum status log_jsonl_open(struct log_jsonl *l, const char *path, uint64_t resumed,
                           uint64_t world_size, struct peak peak, struct error *err)
{
    *l = (struct log_jsonl){.fd = -1, .path = path, .world_size = world_size, .peak = peak};
    l->fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (l->fd < 0) return fail_errno(err, ERR_IO, "%s", path);
    return truncate_log(l, resumed, err);
}

void log_jsonl_close(struct log_jsonl *l)
{
    if (l->fd >= 0) close(l->fd);
    strbuf_release(&l->line);
    l->fd = -1;
}

/* ---- a line ---- */

static void add_loss_members(cJSON *object, const struct step_record *s)
{
    json_add_number(object, "loss", s->loss.value);
    for (unsigned i = 0; i < s->num_router_losses; i++)
        json_add_number(object, s->router_losses[i].name, s->router_losses[i].value);
}

static void add_norms(cJSON *object, const struct step_record *s)
{
    const bool is_known = s->has_grad_norm && !s->skipped;
    json_add_number(object, "grad_norm", is_known ? s->grad_norm : NAN);
    if (s->has_params_norm) json_add_number(object, "params_norm", s->params_norm);
}

static void add_speed(cJSON *object, const struct log_jsonl *l, const struct step_record *s)
{
    const double tflops = s->flops / (s->seconds * 1e12 * (double)l->world_size),
                 peak = l->peak.tflops > 0 ? l->peak.tflops : NAN; /* null */
    json_add_number(object, "elapsed_ms", s->seconds * 1e3);
    json_add_number(object, "tokens_per_s", (double)s->tokens / s->seconds);
    json_add_number(object, "tflops", tflops);
    json_add_text(object, "flops_counted", FLOPS_COUNTED);
    json_add_number(object, "mfu", tflops / peak);
    json_add_number(object, "peak_tflops", peak);
    json_add_text(object, "peak_counted", l->peak.counted);
}

static void print_line(struct log_jsonl *l, const struct step_record *s)
{
    cJSON *object = cJSON_CreateObject();
    json_add_u64(object, "iteration", s->iteration);
    json_add_u64(object, "consumed_samples", s->consumed_samples);
    json_add_number(object, "lr", s->lr);
    json_add_number(object, "weight_decay", s->weight_decay);
    json_add_number(object, "logged_lr", s->logged_lr);
    add_loss_members(object, s);
    add_norms(object, s);
    json_add_number(object, "loss_scale", s->loss_scale);
    cJSON_AddBoolToObject(object, "skipped", s->skipped);
    add_speed(object, l, s);
    strbuf_clear(&l->line);
    json_print(&l->line, object, -1);
    strbuf_add_char(&l->line, '\n');
    cJSON_Delete(object);
}

/* A short write means a full disk: the partial line is removed. */
enum status log_jsonl_add(struct log_jsonl *l, const struct step_record *s, struct error *err)
{
    ssize_t n;
    print_line(l, s);
    errno = 0;
    do
        n = write(l->fd, l->line.data, l->line.length);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)l->line.length) {
        l->size_bytes += l->line.length;
        return OK;
    }
    const int why = n < 0 ? errno : ENOSPC;
    if (n > 0 && ftruncate(l->fd, (off_t)l->size_bytes))
        return fail_errno(err, ERR_IO, "%s: part of a line remains", l->path);
    errno = why;
    return fail_errno(err, ERR_IO, "%s", l->path);
}
