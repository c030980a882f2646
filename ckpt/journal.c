#include "ckpt/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <libdeflate.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/checked.h"
#include "common/file.h"

enum { HEAD = 8, NUMBERS = 13, TASK_BYTES = NUMBERS * 8, RUN_BYTES = 4 * 8, MAX_RUNS = 1 << 24 };
static const char title[] = "ferry journal 4 ";

/* The numbers of a record, in the order of the file. */
static void task_numbers(const struct journal_task *t, uint64_t n[NUMBERS])
{
    const uint64_t numbers[NUMBERS] = {
        t->task,       t->item,         t->counts,       t->bytes,         t->read.d[0],
        t->read.d[1],  t->written.d[0], t->written.d[1], t->cast_elements, t->changed_elements,
        t->non_finite, t->overflowed,   t->num_runs};
    memcpy(n, numbers, sizeof numbers);
}

void journal_add(struct strbuf *records, const struct journal_task *t,
                 const struct journal_run *runs)
{
    uint64_t numbers[NUMBERS];
    uint32_t head[2] = {(uint32_t)(TASK_BYTES + t->num_runs * RUN_BYTES), 0};
    task_numbers(t, numbers);
    head[1] = libdeflate_crc32(0, numbers, sizeof numbers);
    if (t->num_runs) head[1] = libdeflate_crc32(head[1], runs, t->num_runs * RUN_BYTES);
    strbuf_add(records, (const char *)head, sizeof head);
    strbuf_add(records, (const char *)numbers, sizeof numbers);
    strbuf_add(records, (const char *)runs, t->num_runs * RUN_BYTES);
}

/* Parses the record at offset `at`; returns its bytes, or 0 if it is
 * incomplete. */
static size_t parse_record(const struct strbuf *text, size_t at, struct journal_task *t,
                           struct journal_run **runs)
{
    uint32_t head[2];
    uint64_t n[NUMBERS];
    if (text->length - at < HEAD) return 0;
    memcpy(head, text->data + at, sizeof head);
    if (head[0] < TASK_BYTES || head[0] > text->length - at - HEAD) return 0;
    if (libdeflate_crc32(0, text->data + at + HEAD, head[0]) != head[1]) return 0;
    memcpy(n, text->data + at + HEAD, sizeof n);
    *t = (struct journal_task){.task = n[0],
                               .item = n[1],
                               .counts = n[2],
                               .bytes = n[3],
                               .read = {{n[4], n[5]}},
                               .written = {{n[6], n[7]}},
                               .cast_elements = n[8],
                               .changed_elements = n[9],
                               .non_finite = n[10],
                               .overflowed = n[11],
                               .num_runs = n[12]};
    if (t->num_runs > MAX_RUNS || head[0] != TASK_BYTES + t->num_runs * RUN_BYTES) return 0;
    *runs = malloc(t->num_runs * RUN_BYTES + 1);
    if (!*runs) return 0;
    memcpy(*runs, text->data + at + HEAD + TASK_BYTES, t->num_runs * RUN_BYTES);
    return HEAD + head[0];
}

/* The first line: title, work and a line end. */
static size_t title_bytes(const char *work)
{
    return sizeof title - 1 + strlen(work) + 1;
}

static enum status check_title(const char *path, const struct strbuf *text, const char *work,
                               struct error *err)
{
    size_t n = sizeof title - 1, length = strlen(work);
    if (text->length >= title_bytes(work) && memcmp(text->data, title, n) == 0 &&
        memcmp(text->data + n, work, length) == 0 && text->data[n + length] == '\n')
        return OK;
    return fail(err, ERR_EXISTS,
                "%s: belongs to an interrupted run with other arguments or another source; "
                "--restart discards it",
                path);
}

struct journal_summary journal_summarize(const char *path, struct arena *a)
{
    struct journal_summary s = {.work = NULL};
    struct strbuf text = {0};
    struct journal_task t;
    struct journal_run *runs = NULL;
    bool there = path_is_file(path) && !file_read_all(path, UINT64_MAX, &text, NULL);
    const char *end = there && text.length ? memchr(text.data, '\n', text.length) : NULL;
    if (end) {
        size_t line = (size_t)(end - text.data), at = line + 1, n = sizeof title - 1;
        s.known = line >= n && memcmp(text.data, title, n) == 0;
        s.work = s.known ? arena_text(a, text.data + n, line - n) : "";
        for (size_t bytes = 1; s.known && bytes; at += bytes) {
            bytes = parse_record(&text, at, &t, &runs);
            if (bytes) s.bytes += t.bytes;
            free(runs);
            runs = NULL;
        }
    }
    strbuf_release(&text);
    return s;
}

enum status journal_read(const char *path, const char *work, bool is_ours,
                         enum status (*visit)(void *context, const struct journal_task *t,
                                              const struct journal_run *runs, struct error *err),
                         void *context, struct error *err)
{
    struct strbuf text = {0};
    size_t at = title_bytes(work), bytes;
    if (!path_exists(path)) return OK;
    enum status st = file_read_all(path, UINT64_MAX, &text, err);
    if (!st && !(text.length && memchr(text.data, '\n', text.length)))
        at = 0; /* killed while creating it */
    if (!st && at) st = check_title(path, &text, work, err);
    while (!st && at) {
        struct journal_task t;
        struct journal_run *runs = NULL;
        bytes = parse_record(&text, at, &t, &runs);
        if (bytes) st = visit(context, &t, runs, err);
        free(runs);
        if (!bytes) break;
        at += bytes;
    }
    if (!st && is_ours && at < text.length && truncate(path, (off_t)at))
        st = fail_errno(err, ERR_IO, "%s", path);
    strbuf_release(&text);
    return st;
}

static enum status append_records(int fd, const char *path, const char *work,
                                  const struct strbuf *records, bool durable, struct error *err)
{
    off_t end = lseek(fd, 0, SEEK_END);
    if (end < 0) return fail_errno(err, ERR_IO, "%s", path);
    if (end == 0) {
        struct strbuf line = {0};
        strbuf_printf(&line, "%s%s\n", title, work);
        enum status st = file_write(fd, path, line.data, line.length, 0, err);
        strbuf_release(&line);
        if (st) return st;
        end = (off_t)title_bytes(work);
    }
    TRY(file_write(fd, path, records->data, records->length, (uint64_t)end, err));
    return durable ? file_sync(fd, path, err) : OK;
}

enum status journal_append(const char *path, const char *work, const struct strbuf *records,
                           bool durable, struct error *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return fail_errno(err, ERR_IO, "%s", path);
    enum status st = append_records(fd, path, work, records, durable, err);
    close(fd);
    return st;
}
