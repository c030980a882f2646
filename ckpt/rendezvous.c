#include "ckpt/rendezvous.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/checked.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/progress.h"
#include "common/threads.h"

enum {
    LATE_SECONDS = 90,  /* a network file system shows a new file this late at most */
    WAITING_TURNS = 12, /* pauses, about five seconds, until the missing ranks are printed */
    MAX_NAMED = 10,     /* ranks in a message */
};

/* Another rank as this process last saw it. */
struct rendezvous_other {
    struct lock_watch watch;
    struct lock_record old; /* the lock of an earlier process of this rank */
    bool done, told, is_alone;
    double alone_since; /* when it last showed life */
};

static const char *staged(struct rendezvous *r, const char *name, unsigned rank)
{
    struct arena *a = r->publishing->arena;
    if (rank) name = arena_printf(a, "%s-%u", name, rank);
    return path_join(a, r->publishing->staging, name);
}

void rendezvous_init(struct rendezvous *r)
{
    struct arena *a = r->publishing->arena;
    r->work = r->publishing->options.work;
    r->locks = arena_array(a, r->ranks.size, sizeof *r->locks);
    r->journals = arena_array(a, r->ranks.size, sizeof *r->journals);
    r->final_lock = path_join(a, r->publishing->final, publish_lock);
    r->others = arena_array(a, r->ranks.size, sizeof *r->others);
    for (unsigned i = 0; i < r->ranks.size; i++) {
        struct rendezvous_other *o = &r->others[i];
        r->locks[i] = staged(r, publish_lock, i);
        r->journals[i] = staged(r, publish_journal, i);
        (void)lock_look(&o->watch, r->locks[i]);
        o->old = o->watch.record;
        o->watch = (struct lock_watch){.patience = r->publishing->options.patience};
    }
}

/* ---- waiting ---- */

/* Pauses, longer each time, up to a second. */
static enum status pause_a_moment(unsigned *turn, struct error *err)
{
    const long ms = 10 << (*turn < 6 ? *turn : 6);
    const struct timespec t = {0, ms * 1000000};
    ++*turn;
    if (!interrupted()) (void)nanosleep(&t, NULL);
    return interrupted() ? fail(err, ERR_INTERRUPTED, "interrupted") : OK;
}

/* Whether a rank showed no life for the whole timeout. */
static bool is_given_up(const struct rendezvous *r, struct rendezvous_other *o, bool alive)
{
    double now = seconds_now();
    if (alive || !o->is_alone) o->alone_since = now;
    o->is_alone = !alive;
    return o->is_alone && now - o->alone_since > r->timeout_seconds;
}

static bool is_of_run(const struct lock_watch *w, const char *run)
{
    return w->found && strcmp(w->record.run, run) == 0;
}

static bool says(const struct lock_watch *w, const char *state)
{
    return w->found && strncmp(w->record.state, state, strlen(state)) == 0;
}

static enum status rank_failed(unsigned rank, const struct lock_watch *w, struct error *err)
{
    return fail(err, ERR_RANK, "rank %u (%s, process %ld) %s", rank, w->record.host, w->record.pid,
                w->record.state);
}

/* ---- a rank above 0 ---- */

/* Whether rank 0 has published. Its lock moves with the published folder and is
 * removed last. */
static bool is_published(const struct rendezvous *r, const char *run)
{
    return !path_exists(r->final_lock) && r->is_there(r->publishing->unit_folder, run, r->plan);
}

/* Whether a rank is marked done and its whole journal is visible here. */
static bool is_done(const struct rendezvous *r, unsigned rank, const struct lock_watch *w,
                    const char *run)
{
    struct file_stamp journal;
    return is_of_run(w, run) && says(w, "done") &&
           file_stamp(r->journals[rank], &journal, NULL) == OK &&
           journal.size_bytes >= strtoull(w->record.state + strlen("done"), NULL, 10);
}

/* Takes this rank's lock, unless the rank is finished: nothing may change then,
 * since rank 0 may be publishing. */
static enum status take_place(struct rendezvous *r, enum rendezvous_left *left, struct error *err)
{
    struct lock_watch w = {.patience = r->publishing->options.patience};
    unsigned rank = r->ranks.rank;
    enum lock_life life;
    TRY(lock_watch_until_sure(&w, r->locks[rank], &life, err));
    if (life != LOCK_FREE)
        return fail(err, ERR_EXISTS, "rank %u is already running (%s, process %ld)", rank,
                    w.record.host, w.record.pid);
    *left = is_done(r, rank, &w, r->run) ? LEFT_WAITING : LEFT_SHARE;
    if (*left == LEFT_WAITING) return OK;
    return lock_take(&r->lock, r->publishing->staging, strrchr(r->locks[rank], '/') + 1, &w, r->run,
                     r->work, err);
}

/* Whether rank 0 has published the work of this rank. A folder to be replaced
 * may have the same contents; then the run in its record decides, or that rank
 * 0 is given up. */
static bool is_published_by_now(const struct rendezvous *r, const char *last_run, bool given_up)
{
    if (r->others[0].watch.found) return false;
    if (!r->publishing->options.overwrite || given_up) return is_published(r, NULL);
    return last_run && is_published(r, last_run);
}

static enum status join_rank_0(struct rendezvous *r, enum rendezvous_left *left, struct error *err)
{
    const struct publishing *p = r->publishing;
    struct rendezvous_other *o = &r->others[0];
    struct lock_watch *w = &o->watch;
    const char *last_run = *o->old.run ? o->old.run : NULL;
    unsigned turn = 0;
    *left = LEFT_NOTHING;
    while (lock_look(w, r->locks[0]) != LOCK_HELD) {
        bool given_up = is_given_up(r, o, false);
        if (is_published_by_now(r, last_run, given_up)) return OK;
        if (says(w, "failed") && !lock_is_same_process(&w->record, &o->old))
            return rank_failed(0, w, err);
        if (given_up)
            return fail(err, ERR_RANK, "%s: rank 0 did not start within %u s (--timeout)%s%s",
                        p->destination, r->timeout_seconds,
                        *w->record.state ? "; its last state: " : "", w->record.state);
        if (turn == WAITING_TURNS && !r->quiet)
            fprintf(stderr,
                    "rank %u of %u waits for rank 0, which has not started on %s (--world-size 1 "
                    "converts without other ranks)\n",
                    r->ranks.rank, r->ranks.size, p->destination);
        TRY(pause_a_moment(&turn, err));
    }
    o->is_alone = false;
    memcpy(r->run, w->record.run, sizeof r->run);
    if (strcmp(w->record.work, r->work) == 0) return take_place(r, left, err);
    return fail(err, ERR_RANK,
                "rank 0 (%s, process %ld) runs another job: its arguments, its number of ranks or "
                "its view of the source differ",
                w->record.host, w->record.pid);
}

enum status rendezvous_join(struct rendezvous *r, enum rendezvous_left *left, struct error *err)
{
    enum status st = join_rank_0(r, left, err);
    if (st != ERR_IO || path_exists(r->publishing->staging)) return st;
    *left = LEFT_WAITING; /* rank 0 has just published the files that this rank had finished */
    return OK;
}

/* Checks that rank 0 is still in the run that this rank joined. */
static enum status check_same_run(const struct rendezvous *r, const struct lock_watch *w,
                                  struct error *err)
{
    if (w->found && *w->record.run && !is_of_run(w, r->run))
        return fail(err, ERR_RANK, "rank 0 (%s, process %ld) has started over: run this rank again",
                    w->record.host, w->record.pid);
    return says(w, "failed") ? rank_failed(0, w, err) : OK;
}

static enum status wait_for_rank_0(struct rendezvous *r, struct error *err)
{
    const struct publishing *p = r->publishing;
    struct rendezvous_other *o = &r->others[0];
    struct lock_watch *w = &o->watch;
    for (unsigned turn = 0;;) {
        bool dead = lock_look(w, r->locks[0]) == LOCK_FREE && w->found;
        TRY(check_same_run(r, w, err));
        if (!w->found && is_published(r, r->run)) return OK;
        if (is_given_up(r, o, w->found && !dead))
            return fail(err, ERR_RANK,
                        "%s: rank 0 is gone and did not return within %u s (--timeout); finished "
                        "work is kept in %s",
                        p->destination, r->timeout_seconds, p->staging);
        if (dead && !o->told && !r->quiet)
            fprintf(stderr, "rank 0 (%s, process %ld) is dead: run its command again\n",
                    w->record.host, w->record.pid);
        o->told = dead;
        TRY(pause_a_moment(&turn, err));
    }
}

enum status rendezvous_wait_published(struct rendezvous *r, struct error *err)
{
    struct file_stamp journal;
    if (r->lock) {
        TRY(file_stamp(r->journals[r->ranks.rank], &journal, err));
        lock_say(r->lock, arena_printf(r->publishing->arena, "done %" PRIu64, journal.size_bytes));
    }
    TRY(wait_for_rank_0(r, err));
    lock_drop(r->lock, NULL);
    r->lock = NULL;
    return OK;
}

void rendezvous_leave(struct rendezvous *r, const char *why)
{
    /* a rank that is done stays done */
    bool done = r->lock && strncmp(lock_state(r->lock), "done", 4) == 0;
    lock_drop(r->lock, done ? NULL : arena_printf(r->publishing->arena, "failed: %s", why));
    r->lock = NULL;
}

void rendezvous_end_together(const struct rendezvous *r)
{
    const struct timespec pause = {0, 20000000};
    double until = seconds_now() + 1;
    for (unsigned i = 0; i < r->ranks.size; i++) {
        struct lock_watch w = {.found = false};
        while (i != r->ranks.rank && lock_look(&w, r->locks[i]) != LOCK_FREE && !says(&w, "done") &&
               seconds_now() < until)
            (void)nanosleep(&pause, NULL);
    }
}

/* ---- rank 0 ---- */

/* Looks whether a rank is done, with its whole journal visible here. */
static enum status look_at(struct rendezvous *r, unsigned rank, bool *alive, struct error *err)
{
    struct rendezvous_other *o = &r->others[rank];
    struct lock_watch *w = &o->watch;
    bool dead = lock_look(w, r->locks[rank]) == LOCK_FREE;
    bool old = lock_is_same_process(&w->record, &o->old) && !says(w, "done");
    *alive = false;
    if (!is_of_run(w, lock_run(r->publishing->lock)) || (old && dead)) return OK;
    *alive = !dead;
    if (says(w, "failed")) return rank_failed(rank, w, err);
    o->done = is_done(r, rank, w, lock_run(r->publishing->lock));
    if (dead && !says(w, "done") && !o->told && !r->quiet)
        fprintf(stderr, "rank %u (%s, process %ld) is dead: run its command again within %u s\n",
                rank, w->record.host, w->record.pid, r->timeout_seconds);
    o->told = dead;
    return OK;
}

/* "1, 2, 5 and 12 others" */
static const char *who_is_missing(struct rendezvous *r)
{
    struct strbuf text = {0};
    unsigned n = 0;
    for (unsigned i = 1; i < r->ranks.size; i++)
        if (!r->others[i].done && n++ < MAX_NAMED)
            strbuf_printf(&text, "%s%u", n > 1 ? ", " : "", i);
    if (n > MAX_NAMED) strbuf_printf(&text, " and %u others", n - MAX_NAMED);
    const char *out = arena_text(r->publishing->arena, text.data, text.length);
    strbuf_release(&text);
    return out;
}

static enum status rank_lost(const struct rendezvous *r, unsigned rank, struct error *err)
{
    const struct lock_record *is = &r->others[rank].watch.record;
    const char *who =
        *is->host ? arena_printf(r->publishing->arena, " (%s, process %ld)", is->host, is->pid)
                  : "";
    return fail(err, ERR_RANK, "rank %u of %u%s is lost: no sign of life for %u s (--timeout)",
                rank, r->ranks.size, who, r->timeout_seconds);
}

/* Looks at all ranks that are not done; sets their number. */
static enum status look_at_all(struct rendezvous *r, unsigned *missing, struct error *err)
{
    *missing = 0;
    for (unsigned i = 1; i < r->ranks.size; i++) {
        struct rendezvous_other *o = &r->others[i];
        bool alive;
        if (o->done) continue;
        TRY(look_at(r, i, &alive, err));
        *missing += !o->done;
        if (!o->done && is_given_up(r, o, alive)) return rank_lost(r, i, err);
    }
    return OK;
}

static enum status wait_until_done(struct rendezvous *r, struct error *err)
{
    enum { SOON = 5 /* turns until the missing ranks are printed */ };
    unsigned turn = 0, missing, told = 0;
    TRY(look_at_all(r, &missing, err));
    while (missing) {
        if (turn > SOON && missing != told && !r->quiet)
            fprintf(stderr, "rank 0 is done and waits for rank%s %s of %u\n",
                    missing == 1 ? "" : "s", who_is_missing(r), r->ranks.size);
        if (turn > SOON) told = missing;
        TRY(pause_a_moment(&turn, err));
        TRY(look_at_all(r, &missing, err));
    }
    return OK;
}

/* ---- while at work ---- */

static enum status check_others(struct rendezvous *r, struct error *err)
{
    for (unsigned i = 1; i < r->ranks.size; i++) {
        struct rendezvous_other *o = &r->others[i];
        struct lock_watch *w = &o->watch;
        (void)lock_look(w, r->locks[i]);
        if (is_of_run(w, lock_run(r->publishing->lock)) && says(w, "failed") &&
            !lock_is_same_process(&w->record, &o->old))
            return rank_failed(i, w, err);
    }
    return OK;
}

static enum status check_rank_0(struct rendezvous *r, struct error *err)
{
    struct lock_watch *w = &r->others[0].watch;
    (void)lock_look(w, r->locks[0]);
    return check_same_run(r, w, err);
}

enum status rendezvous_is_ours(void *rendezvous, struct error *err)
{
    struct rendezvous *r = rendezvous;
    if (!r->ranks.rank) return publish_check_ours(r->publishing, err);
    if (!lock_is_lost(r->lock)) return OK;
    return fail(err, ERR_RANK, "another process runs as this rank, or rank 0 has started over");
}

enum status rendezvous_keep_going(void *rendezvous, struct error *err)
{
    struct rendezvous *r = rendezvous;
    TRY(rendezvous_is_ours(r, err));
    return r->ranks.rank ? check_rank_0(r, err) : check_others(r, err);
}

static enum status check_file_size(const struct rendezvous *r, const struct output_file *f,
                                   double until, struct error *err)
{
    const char *path = path_join(r->publishing->arena, r->publishing->folder, f->path);
    struct file_stamp s = {.size_bytes = 0};
    unsigned turn = 0;
    while (file_stamp(path, &s, NULL) || s.size_bytes != f->size_bytes) {
        if (seconds_now() > until)
            return fail(err, ERR_RANK,
                        "%s: has %" PRIu64 " bytes, expected %" PRIu64
                        ", although rank %u reported that it is done; --restart starts over",
                        path, s.size_bytes, f->size_bytes, f->rank);
        TRY(pause_a_moment(&turn, err));
    }
    return OK;
}

enum status rendezvous_wait_ranks(struct rendezvous *r, const struct plan *p, struct error *err)
{
    TRY(wait_until_done(r, err));
    double until = seconds_now() + (double)min_u64(r->timeout_seconds, LATE_SECONDS);
    for (size_t i = 0; i < p->num_files; i++)
        TRY(check_file_size(r, &p->files[i], until, err));
    return OK;
}
