/* progress.h - shows the progress of long work on stderr.
 *
 *   bar     one line that rewrites itself: percent, GB done, GB/s, time left
 *           (a terminal)
 *   plain   a line each 10 seconds and one at the end, with the time (not a
 *           terminal)
 *   json    {"event":"progress","what":"converting","done_bytes":..,
 *            "total_bytes":..,"seconds":..,"bytes_per_second":..,"file":".."}
 *            each second; the last has "event":"done" or "stopped"
 *
 * Work in another unit ("steps") has it in place of bytes, and a "note" in
 * place of the file.
 *
 * Units are decimal. The rate is over the last few seconds, in the last line
 * over the whole time; time left follows from the rate since the start. An
 * unknown total is 0: without percent and time left. */
#ifndef FERRY_COMMON_PROGRESS_H
#define FERRY_COMMON_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#include "common/strbuf.h"

enum progress_style { PROGRESS_AUTO, PROGRESS_BAR, PROGRESS_PLAIN, PROGRESS_JSON, PROGRESS_NONE };
/* The choices of --progress, and their style;
 * NULL is AUTO, or NONE if quiet. */
#define PROGRESS_STYLES "auto|bar|plain|json|none"
enum progress_style progress_style_named(const char *name, bool quiet);

struct progress;

/* Shows `what` ("converting", not copied) and the total. AUTO: bar on a
 * terminal, else plain. Shows nothing for the first half second (bar) or 10
 * seconds (plain). */
struct progress *progress_start(enum progress_style style, const char *what, uint64_t total_bytes);
/* The same in another unit ("steps", not copied). */
struct progress *progress_start_counting(enum progress_style style, const char *what,
                                         const char *unit, uint64_t total);
/* Cheap; callable from any thread. p may be NULL in all these calls. */
void progress_add(struct progress *p, uint64_t count);
/* Adds work of an earlier run: done, without
 * effect on rate and time left. */
void progress_skip(struct progress *p, uint64_t count);
void progress_file(struct progress *p, const char *name); /* the current file; not copied */
void progress_note(struct progress *p, const char *note); /* in its place; copied, truncated */
void progress_hide(struct progress *p);                   /* clears a bar before other output */
void progress_finish(struct progress *p, bool ok);        /* frees p */

enum progress_event { PROGRESS_RUNNING, PROGRESS_DONE, PROGRESS_STOPPED };

/* The contents of one line. */
struct progress_view {
    const char *what, *detail; /* detail: a file or note; may be NULL */
    const char *unit;          /* of the numbers; NULL: bytes */
    uint64_t done, total;
    uint64_t skipped; /* part of done: by an earlier run */
    double seconds, per_second;
    enum progress_event event;
};

/* "12.3 of 29.1 GB"; "12.3 GB" if the total is 0 or reached. */
void progress_bytes(struct strbuf *out, uint64_t done_bytes, uint64_t total_bytes);
/* "[2026-11-29 16:20:11] ", local time: the beginning of a plain line. */
void progress_time(struct strbuf *out, time_t when);
/* "2.04 GB/s" */
void progress_rate(struct strbuf *out, double bytes_per_second);
/* The text of a line in a style, without control characters and line end. */
void progress_text(struct strbuf *out, enum progress_style style, const struct progress_view *v);

#endif
