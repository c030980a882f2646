#include "ckpt/publish.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/journal.h"
#include "ckpt/lock.h"
#include "common/count.h"
#include "common/file.h"
#include "common/strbuf.h"

const char publish_lock[] = ".ferry-lock", publish_journal[] = ".ferry-journal";
static const char command_name[] = ".ferry-command"; /* the command line of the run, as text */

/* ---- existing folders ---- */

static bool matches_any(const char *name, const char *const *patterns, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (fnmatch(patterns[i], name, 0) == 0) return true;
    return false;
}

bool publish_is_private(const char *name)
{
    static const char prefix[] = ".ferry-";
    return strncmp(name, prefix, sizeof prefix - 1) == 0;
}

/* Whether a name belongs to staging. */
static bool is_staging_name(const char *name)
{
    static const char *const ours[] = {".*.ferry-partial", ".*.ferry-old", ".*.ferry-train"};
    return matches_any(name, ours, COUNT(ours));
}

static enum status is_empty(const char *folder, bool but_for_ours, bool *empty, struct error *err)
{
    struct arena a;
    struct name_list list;
    arena_init(&a);
    enum status st = folder_list(folder, &a, &list, err);
    *empty = true;
    for (size_t i = 0; i < list.count && !st; i++)
        if (!but_for_ours || !is_staging_name(list.names[i])) *empty = false;
    arena_release(&a);
    return st;
}

/* Whether a folder is a root of units: a name in it matches a sign, or it holds
 * only staging folders. */
static enum status is_root(const char *folder, const char *const *signs, bool *root,
                           struct error *err)
{
    size_t num_signs = 0;
    struct arena a;
    struct name_list list;
    size_t foreign = 0;
    arena_init(&a);
    *root = false;
    while (signs && signs[num_signs])
        num_signs++;
    enum status st = folder_list(folder, &a, &list, err);
    for (size_t i = 0; i < list.count && !st; i++) {
        if (matches_any(list.names[i], signs, num_signs)) *root = true;
        if (!is_staging_name(list.names[i])) foreign++;
    }
    if (!st && !foreign) *root = true;
    arena_release(&a);
    return st;
}

const char *publish_existing_parent(struct arena *a, const char *destination)
{
    const char *path = destination;
    while (!path_is_folder(path) && strcmp(path, ".") && strcmp(path, "/"))
        path = path_parent(a, path);
    return path;
}

static bool lies_in(const char *path, const char *folder)
{
    size_t n = strlen(folder);
    return strncmp(path, folder, n) == 0 && (!path[n] || path[n] == '/' || folder[n - 1] == '/');
}

/* ERR_USAGE if one of source and destination lies in the other. Missing paths
 * are resolved by their existing parents. */
static enum status check_source(const struct publishing *p, const char *source, struct error *err)
{
    const char *from = path_real(p->arena, source), *to = path_real(p->arena, p->destination);
    const char *above = path_real(
        p->arena, publish_existing_parent(p->arena, path_parent(p->arena, p->destination)));
    if (from && to && lies_in(from, to))
        return fail(err, ERR_USAGE, "%s: the source %s", p->destination,
                    lies_in(to, from) ? "and the destination are the same"
                                      : "lies inside this destination");
    if (!from || !path_is_folder(from) || !lies_in(to ? to : above ? above : "", from)) return OK;
    return fail(err, ERR_USAGE, "%s: this destination lies inside the source %s", p->destination,
                source);
}

static const char *lock_of(const struct publishing *p, const char *folder)
{
    return path_join(p->arena, folder, publish_lock);
}

/* Whether a run ended after its rename: it left its lock in the published
 * folder. */
static bool is_unfinished(const struct publishing *p, const char *folder)
{
    struct lock_watch w = {.found = false};
    return lock_look(&w, lock_of(p, folder)) == LOCK_FREE && w.found;
}

static bool is_made(const struct publishing *p, const char *unit_folder)
{
    return p->options.is_made && p->options.is_made(p->options.context, unit_folder);
}

/* Whether a run of the same work ended after it moved its unit into place;
 * *final is then the folder that it moved: the whole root if it created that. */
static bool is_in_place(const struct publishing *p, const char *root, const char *unit_folder,
                        const char **final)
{
    *final = is_unfinished(p, root) ? root : unit_folder;
    return path_is_folder(unit_folder) && is_unfinished(p, *final) && is_made(p, unit_folder);
}

/* Adds the finished bytes of a journal. Each rank has one, of the work "WORK,
 * rank R". */
static void add_journal(const struct publishing *p, const char *path, struct publish_left *left)
{
    struct journal_summary s = journal_summarize(path, p->arena);
    if (!s.work || (s.known && !s.bytes)) return;
    const char *rank = strstr(s.work, ", rank ");
    size_t n = rank ? (size_t)(rank - s.work) : strlen(s.work);
    left->same_work = (left->same_work || !left->found) && s.known &&
                      n == strlen(p->options.work) && memcmp(s.work, p->options.work, n) == 0;
    left->found = true;
    left->bytes += s.bytes;
    if (!left->same_work) left->work = s.known ? arena_text(p->arena, s.work, n) : NULL;
}

static const char *command_of(const struct publishing *p)
{
    enum { MAX_BYTES = 1 << 20 };
    struct strbuf text = {0};
    const char *path = path_join(p->arena, p->staging, command_name), *out = NULL;
    if (path_is_file(path) && !file_read_all(path, MAX_BYTES, &text, NULL) && text.length)
        out = arena_text(p->arena, text.data, strcspn(text.data, "\n"));
    strbuf_release(&text);
    return out;
}

/* Looks at the staging folder of an interrupted run, whose lock w found free.
 * Without a finished task, the lock gives the work. */
static struct publish_left find_left(const struct publishing *p, const struct lock_watch *w)
{
    struct publish_left left = {.found = false};
    struct name_list list;
    if (!path_is_folder(p->staging) || folder_list(p->staging, p->arena, &list, NULL)) return left;
    for (size_t i = 0; i < list.count; i++)
        if (strncmp(list.names[i], publish_journal, strlen(publish_journal)) == 0)
            add_journal(p, path_join(p->arena, p->staging, list.names[i]), &left);
    if (!left.found) left.same_work = w->found && strcmp(w->record.work, p->options.work) == 0;
    left.command = command_of(p);
    return left;
}

/* Looks for an interrupted run, without waiting until a lock is surely free:
 * publish_begin() waits. */
static void look_for_left(struct publishing *p)
{
    struct lock_watch w = {.patience = p->options.patience};
    if (p->finished) return;
    if (lock_look(&w, lock_of(p, p->staging)) == LOCK_FREE) p->left = find_left(p, &w);
}

bool publish_refuses_left(const struct publishing *p)
{
    return p->left.found && !p->left.same_work && !p->options.restart && !p->options.overwrite;
}

bool publish_discards_left(const struct publishing *p)
{
    return p->left.found && (p->options.restart || (!p->left.same_work && p->options.overwrite));
}

static bool is_destination_complete(const struct publishing *p)
{
    return !p->finished && !path_exists(p->staging) && !path_exists(lock_of(p, p->final)) &&
           is_made(p, p->unit_folder);
}

/* Whether the destination may exist already. For a rank above 0, rank 0 may
 * have published the common work. */
static bool may_be_there(const struct publishing *p)
{
    if (p->finished || (p->complete && p->options.resume)) return true;
    return p->options.joins && !p->options.overwrite && is_made(p, p->unit_folder);
}

/* Whether an existing folder is replaced: with --overwrite, or as the rest of
 * an interrupted run that is discarded. */
static bool is_to_replace(const struct publishing *p)
{
    if (!p->options.may_replace) return false;
    if (p->options.overwrite) return true;
    return p->options.restart && is_made(p, p->unit_folder) &&
           (is_unfinished(p, p->final) || is_unfinished(p, p->destination));
}

/* Checks the existing folder or file at the unit's place. */
static enum status check_final(struct publishing *p, struct error *err)
{
    bool empty;
    if (!path_exists(p->final)) return OK;
    if (!path_is_folder(p->final))
        return fail(err, ERR_EXISTS, "%s: exists and is not a folder", p->final);
    TRY(is_empty(p->final, p->stays, &empty, err));
    if (empty) return OK;
    if (p->stays)
        return fail(err, ERR_EXISTS,
                    "%s: exists and is not empty; it cannot be replaced, because it is a mount "
                    "point or its parent is not writable",
                    p->final);
    if (may_be_there(p)) return OK;
    if (is_to_replace(p))
        return p->options.may_replace(p->options.context, p->final, &p->replaces, err);
    if (is_unfinished(p, p->final) || is_unfinished(p, p->destination))
        return fail(err, ERR_EXISTS,
                    "%s: exists, from a run with other arguments or another source, interrupted "
                    "just before its end: the same command finishes it, --overwrite replaces it",
                    p->final);
    return fail(err, ERR_EXISTS, "%s: exists and is not empty; --overwrite replaces it", p->final);
}

/* The path by which a folder can be renamed: without trailing slashes; links,
 * "." and ".." resolved. */
static const char *renamable(struct arena *a, const char *path)
{
    struct stat s;
    const char *name = path_base(a, path);
    const char *plain = path_join(a, path_parent(a, path), name);
    bool stands_for_another = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
                              (lstat(plain, &s) == 0 && S_ISLNK(s.st_mode));
    const char *real = stands_for_another ? path_real(a, plain) : NULL;
    return real ? real : plain;
}

/* Whether another folder can replace this one. */
static bool can_be_replaced(struct arena *a, const char *folder)
{
    struct stat own, above;
    const char *parent = path_parent(a, folder);
    return stat(folder, &own) == 0 && stat(parent, &above) == 0 && own.st_dev == above.st_dev &&
           access(parent, W_OK) == 0;
}

enum status publish_check(struct publishing *p, struct arena *a, const char *destination,
                          const char *unit, const char *source, const struct publish_options *o,
                          struct error *err)
{
    *p = (struct publishing){.arena = a, .destination = destination, .unit = unit, .options = *o};
    bool exists = path_is_folder(destination), root = true;
    const char *own = renamable(a, destination), *in_place;
    const char *unit_folder = unit ? path_join(a, own, unit) : own;
    TRY(check_source(p, source, err));
    if (exists && unit) {
        TRY(is_root(destination, o->root_signs, &root, err));
        if (!root)
            return fail(err, ERR_EXISTS, "%s: exists, is not empty and holds no %s checkpoint",
                        destination, o->root_title);
        p->unit_in_root = true;
    }
    p->final = p->unit_in_root ? renamable(a, unit_folder) : own;
    p->stays = exists && !unit && !can_be_replaced(a, p->final);
    if (!p->stays && !o->restart && is_in_place(p, own, unit_folder, &in_place)) {
        p->finished = true;
        p->unit_in_root = in_place != own;
        p->final = in_place;
    }
    p->unit_folder = unit_folder;
    const char *name = path_base(a, p->final);
    const char *parent = p->stays ? p->final : path_parent(a, p->final);
    if (!*name)
        return fail(err, ERR_USAGE, "\"%s\" is not a valid name for a destination", destination);
    p->staging = path_join(a, parent, arena_printf(a, ".%s.ferry-partial", name));
    if (p->finished)
        p->folder = unit_folder;
    else
        p->folder = unit && !p->unit_in_root ? path_join(a, p->staging, unit) : p->staging;
    p->complete = is_destination_complete(p);
    look_for_left(p);
    return check_final(p, err);
}

/* ---- staging ---- */

/* Removes a staging folder of a dead process. flock lets one of two processes
 * do it; when the other gets the lock, the path is another folder. */
static enum status remove_stale(const struct publishing *p, const char *staging,
                                const struct lock_watch *seen, struct error *err)
{
    struct stat opened, there;
    int fd = open(staging, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) return errno == ENOENT ? OK : fail_errno(err, ERR_IO, "%s", staging);
    bool alone = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    bool same = fstat(fd, &opened) == 0 && lstat(staging, &there) == 0 &&
                opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
    enum status st = OK;
    if (alone && same && lock_is_still_free(seen, lock_of(p, staging)))
        st = path_remove(staging, err);
    close(fd);
    return st;
}

/* The prefix of take_staging()'s names on this host for a folder before it
 * becomes staging: ".HOST.SCOPE.PID.ferry-partial". */
static const char *fresh_prefix(const struct publishing *p)
{
    char host[256] = "", scope[64];
    (void)gethostname(host, sizeof host - 1);
    lock_own_scope(scope);
    return arena_printf(p->arena, ".%s.%s.", host, scope);
}

static const char *fresh_name(const struct publishing *p, const char *prefix, long pid)
{
    return arena_printf(p->arena, "%s%ld.ferry-partial", prefix, pid);
}

/* Whether the folder has only files of take_staging(); others are the user's. */
static bool holds_only_ours(const struct publishing *p, const char *path)
{
    struct name_list list;
    if (folder_list(path, p->arena, &list, NULL)) return false;
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.names[i], publish_lock) && strcmp(list.names[i], command_name))
            return false;
    return true;
}

/* Whether a folder is of take_staging() in a process of this boot and namespace
 * that died before its rename. */
static bool is_stillborn(const struct publishing *p, const char *path, const char *name,
                         const char *prefix, struct lock_watch *w)
{
    struct stat s;
    size_t n = strlen(prefix);
    if (strncmp(name, prefix, n)) return false;
    long pid = strtol(name + n, NULL, 10);
    if (pid <= 0 || strcmp(name, fresh_name(p, prefix, pid))) return false;
    if (lstat(path, &s) || !S_ISDIR(s.st_mode) || !holds_only_ours(p, path)) return false;
    if (lock_look(w, lock_of(p, path)) != LOCK_FREE) return false;
    if (*w->record.host) return true;                  /* its lock's process is dead */
    return kill((pid_t)pid, 0) != 0 && errno == ESRCH; /* it died before it wrote its lock */
}

static void remove_stillborn(const struct publishing *p, const char *parent)
{
    struct name_list list;
    const char *prefix = fresh_prefix(p);
    if (folder_list(parent, p->arena, &list, NULL)) return;
    for (size_t i = 0; i < list.count; i++) {
        struct lock_watch w = {.patience = p->options.patience};
        const char *path = path_join(p->arena, parent, list.names[i]);
        if (is_stillborn(p, path, list.names[i], prefix, &w))
            (void)!remove_stale(p, path, &w, NULL);
    }
}

static enum status busy_error(const struct publishing *p, const char *folder, struct error *err)
{
    struct lock_watch w = {.found = false};
    (void)lock_look(&w, lock_of(p, folder));
    if (!w.found || !*w.record.host)
        return fail(err, ERR_EXISTS, "%s: busy: another ferry is writing it", p->final);
    return fail(err, ERR_EXISTS,
                "%s: busy: another ferry is writing it: process %ld on %s%s; if that process is "
                "dead, remove %s",
                p->final, w.record.pid, w.record.host, lock_since(p->arena, &w.record),
                lock_of(p, folder));
}

/* Fails if a process is at work in a folder; w: its lock. */
static enum status see_free(const struct publishing *p, const char *folder, struct lock_watch *w,
                            struct error *err)
{
    enum lock_life life;
    *w = (struct lock_watch){.patience = p->options.patience};
    TRY(lock_watch_until_sure(w, lock_of(p, folder), &life, err));
    return life == LOCK_HELD ? busy_error(p, folder, err) : OK;
}

/* Lists the staging folder, which a process that takes over may be removing. */
static enum status list_staging(const struct publishing *p, struct name_list *list,
                                struct error *err)
{
    enum status st = OK;
    *list = (struct name_list){0};
    for (unsigned tries = 0; tries < 10 && path_is_folder(p->staging); tries++) {
        st = folder_list(p->staging, p->arena, list, err);
        if (st != ERR_IO) return st;
    }
    return path_is_folder(p->staging) ? st : OK;
}

/* Checks that no rank of an earlier run lives, which might still write files. */
static enum status see_no_ranks(const struct publishing *p, struct error *err)
{
    struct name_list list;
    size_t n = strlen(publish_lock);
    TRY(list_staging(p, &list, err));
    for (size_t i = 0; i < list.count; i++) {
        struct lock_watch w = {.patience = p->options.patience};
        enum lock_life life;
        if (strncmp(list.names[i], publish_lock, n) || list.names[i][n] != '-') continue;
        TRY(lock_watch_until_sure(&w, path_join(p->arena, p->staging, list.names[i]), &life, err));
        if (life == LOCK_HELD && strncmp(w.record.state, "done", 4))
            return fail(err, ERR_EXISTS,
                        "%s: busy: rank %s of an earlier run (%s, process %ld) is still at work",
                        p->final, list.names[i] + n + 1, w.record.host, w.record.pid);
    }
    return OK;
}

/* Takes over the folder of a dead run, whose lock w found free. */
static enum status take_over(struct publishing *p, const char *folder, const struct lock_watch *w,
                             struct error *err)
{
    const char *run = *w->record.run ? w->record.run : NULL;
    enum status st = lock_take(&p->lock, folder, publish_lock, w, run, p->options.work, err);
    return st == ERR_EXISTS ? busy_error(p, folder, err) : st;
}

static enum status check_left(const struct publishing *p, struct error *err)
{
    if (!publish_refuses_left(p)) return OK;
    return fail(err, ERR_EXISTS,
                "%s: an interrupted run with other arguments or another source left its work in "
                "%s: --restart or --overwrite discards it",
                p->final, p->staging);
}

static enum status rename_staging(const struct publishing *p, const char *fresh, struct error *err)
{
    enum status st = path_rename_new(fresh, p->staging, err);
    return st == ERR_EXISTS ? busy_error(p, p->staging, err) : st;
}

static enum status write_command(const struct publishing *p, const char *folder, struct error *err)
{
    const char *command = p->options.command;
    if (!command) return OK;
    return file_write_all(path_join(p->arena, folder, command_name), command, strlen(command),
                          false, err);
}

/* Makes a staging folder by a rename, with its lock inside: no process sees one
 * without a lock. old: the lock of an existing staging folder, which is
 * removed. */
static enum status take_staging(struct publishing *p, const struct lock_watch *old,
                                struct error *err)
{
    const struct lock_watch none = {.found = false};
    const char *parent = path_parent(p->arena, p->staging);
    const char *fresh = path_join(p->arena, parent, fresh_name(p, fresh_prefix(p), (long)getpid()));
    TRY(path_remove(fresh, err));
    if (mkdir(fresh, 0777))
        return fail_errno(err, ERR_IO, "%s: cannot create a folder beside it, in %s", p->final,
                          parent);
    enum status st = lock_take(&p->lock, fresh, publish_lock, &none, NULL, p->options.work, err);
    if (!st) st = write_command(p, fresh, err);
    if (!st) st = see_no_ranks(p, err);
    if (!st) st = remove_stale(p, p->staging, old, err);
    if (!st) st = rename_staging(p, fresh, err);
    if (!st) return OK;
    lock_drop(p->lock, NULL);
    p->lock = NULL;
    (void)path_remove(fresh, NULL);
    return st;
}

/* Removes the created parents, unless another process uses them. */
static void remove_new_parents(const struct publishing *p)
{
    const char *path = path_parent(p->arena, p->staging);
    while (strcmp(path, p->old_parent) && rmdir(path) == 0)
        path = path_parent(p->arena, path);
}

/* Takes over the staging folder of an interrupted run of the same work, or
 * creates one. */
static enum status take_or_create_staging(struct publishing *p, struct error *err)
{
    struct lock_watch w;
    TRY(see_free(p, p->staging, &w, err));
    p->left = find_left(p, &w);
    TRY(check_left(p, err));
    p->continues = p->left.same_work && !p->options.restart;
    return p->continues ? take_over(p, p->staging, &w, err) : take_staging(p, &w, err);
}

static enum status take_over_finished(struct publishing *p, struct error *err)
{
    struct lock_watch w;
    TRY(see_free(p, p->final, &w, err));
    return take_over(p, p->final, &w, err);
}

enum status publish_begin(struct publishing *p, bool durable, struct error *err)
{
    const char *parent = path_parent(p->arena, p->staging);
    p->durable = durable;
    p->old_parent = publish_existing_parent(p->arena, parent);
    if (p->finished) return take_over_finished(p, err);
    enum status st = folder_create(parent, err);
    if (!st) remove_stillborn(p, parent);
    if (!st) st = take_or_create_staging(p, err);
    if (st) {
        remove_new_parents(p);
        return st;
    }
    st = folder_create(p->folder, err);
    if (st && p->continues)
        publish_keep(p, err->text);
    else if (st)
        publish_abandon(p);
    return st;
}

static void drop_lock(struct publishing *p, const char *state)
{
    lock_drop(p->lock, state);
    p->lock = NULL;
}

void publish_keep(struct publishing *p, const char *why)
{
    drop_lock(p, arena_printf(p->arena, "failed: %s", why));
}

void publish_abandon(struct publishing *p)
{
    /* a staging folder of that name may be another run's by now */
    bool ours = !p->moved && p->lock && !lock_is_lost(p->lock);
    drop_lock(p, p->moved || p->finished ? "ended" : NULL);
    if (p->finished) return;
    if (ours) (void)path_remove(p->staging, NULL);
    remove_new_parents(p);
}

enum status publish_check_ours(const struct publishing *p, struct error *err)
{
    if (!lock_is_lost(p->lock)) return OK;
    return fail(err, ERR_EXISTS,
                "%s: another ferry took it over from this process, which it believed dead, or it "
                "was removed",
                p->staging);
}

uint64_t publish_done_bytes(const struct publishing *p)
{
    const struct lock_watch any = {.found = false};
    return find_left(p, &any).bytes;
}

enum status publish_forget(struct publishing *p, struct error *err)
{
    struct name_list list;
    TRY(folder_list(p->staging, p->arena, &list, err));
    for (size_t i = 0; i < list.count; i++)
        if (strncmp(list.names[i], publish_journal, strlen(publish_journal)) == 0)
            TRY(path_remove(path_join(p->arena, p->staging, list.names[i]), err));
    return OK;
}

uint64_t publish_staged_bytes(const struct publishing *p)
{
    return p->staging ? path_allocated_bytes(p->staging) : 0; /* NULL if publish_check() refused */
}

/* ---- the move ---- */

static enum status sync_tree(const char *folder, struct error *err)
{
    struct arena a;
    struct name_list list;
    arena_init(&a);
    enum status st = folder_list(folder, &a, &list, err);
    for (size_t i = 0; i < list.count && !st; i++) {
        const char *path = path_join(&a, folder, list.names[i]);
        struct stat s;
        if (lstat(path, &s) == 0 && S_ISDIR(s.st_mode)) st = sync_tree(path, err);
    }
    if (!st) st = folder_sync(folder, err);
    arena_release(&a);
    return st;
}

/* Writes a root file to the unit first, where no other process writes. */
static enum status put_root_file(const struct publishing *p, const char *unit, const char *folder,
                                 const struct root_file *f, struct error *err)
{
    const char *path = path_join(p->arena, folder, f->name);
    const char *fresh = path_join(p->arena, unit, ".ferry-root");
    TRY(path_remove(fresh, err));
    if (f->link && symlink(f->link, fresh)) return fail_errno(err, ERR_IO, "%s", fresh);
    if (!f->link) TRY(file_write_all(fresh, f->bytes, f->num_bytes, p->durable, err));
    return rename(fresh, path) ? fail_errno(err, ERR_IO, "%s", path) : OK;
}

static enum status put_root_files(const struct publishing *p, const char *unit, const char *folder,
                                  const struct root_file *files, size_t num_files,
                                  struct error *err)
{
    for (size_t i = 0; i < num_files; i++)
        TRY(put_root_file(p, unit, folder, &files[i], err));
    return OK;
}

/* Syncs the folder of the moved entries and the parents from publish_begin(). */
static enum status sync_parents(const struct publishing *p, const char *parent, struct error *err)
{
    TRY(folder_sync(parent, err));
    while (strcmp(parent, p->old_parent)) {
        parent = path_parent(p->arena, parent);
        TRY(folder_sync(parent, err));
    }
    return OK;
}

/* Moves the entries of staging up, last_entry last. */
static enum status move_entries_up(struct publishing *p, struct error *err)
{
    const char *last = p->options.last_entry;
    struct name_list list;
    size_t moved = 0;
    TRY(folder_list(p->staging, p->arena, &list, err));
    for (size_t i = 0; last && i + 1 < list.count; i++)
        if (strcmp(list.names[i], last) == 0) {
            char *name = list.names[i];
            list.names[i] = list.names[list.count - 1];
            list.names[list.count - 1] = name;
        }
    enum status st = OK;
    while (!st && moved < list.count) {
        const char *name = list.names[moved++];
        if (!publish_is_private(name))
            st = path_rename_new(path_join(p->arena, p->staging, name),
                                 path_join(p->arena, p->final, name), err);
    }
    if (!st) return OK;
    while (--moved) /* all but the one that failed */
        (void)path_remove(path_join(p->arena, p->final, list.names[moved - 1]), NULL);
    return st;
}

static enum status move_into_folder(struct publishing *p, struct error *err)
{
    TRY(check_final(p, err));    /* again: much time has passed */
    TRY(publish_forget(p, err)); /* moved entries cannot be continued */
    TRY(move_entries_up(p, err));
    p->moved = true;
    if (p->durable) TRY(folder_sync(p->final, err));
    return path_remove(p->staging, err);
}

/* The path of the replaced folder until the new one is in place. */
static const char *aside_of(const struct publishing *p)
{
    return arena_printf(p->arena, "%s/.%s.ferry-old", path_parent(p->arena, p->final),
                        path_base(p->arena, p->final));
}

/* Swaps staging and a folder atomically, or in two steps where the file system
 * cannot. A run killed in between leaves the old folder as a staging folder
 * without a lock, which the next run removes. */
static enum status replace_folder(const struct publishing *p, const char *aside, struct error *err)
{
    TRY(path_remove(aside, err));
    if (path_exchange(p->staging, p->final)) {
        if (rename(p->staging, aside)) (void)path_remove(p->staging, NULL);
        return OK;
    }
    TRY(path_rename_new(p->final, aside, err));
    enum status st = path_rename_new(p->staging, p->final, err);
    if (st) (void)rename(aside, p->final);
    return st;
}

/* Renames staging to its final place; deletes the old folder last. */
static enum status move_into_place(struct publishing *p, struct error *err)
{
    const char *parent = path_parent(p->arena, p->final);
    const char *aside = aside_of(p);
    bool replaced = false, empty;
    TRY(check_final(p, err)); /* again: much time has passed */
    if (path_is_folder(p->final)) {
        TRY(is_empty(p->final, false, &empty, err));
        if (empty && rmdir(p->final)) return fail_errno(err, ERR_IO, "%s", p->final);
        replaced = !empty;
    }
    TRY(replaced ? replace_folder(p, aside, err) : path_rename_new(p->staging, p->final, err));
    p->moved = true;
    if (p->durable) TRY(sync_parents(p, parent, err));
    return replaced || p->options.overwrite ? path_remove(aside, err) : OK; /* also a dead run's */
}

static enum status remove_private(const struct publishing *p, const char *folder, struct error *err)
{
    struct name_list list;
    TRY(folder_list(folder, p->arena, &list, err));
    for (size_t i = 0; i < list.count; i++)
        if (publish_is_private(list.names[i]) && strcmp(list.names[i], publish_lock))
            TRY(path_remove(path_join(p->arena, folder, list.names[i]), err));
    return path_remove(lock_of(p, folder), err);
}

/* The last steps, with the folder in place. Its lock is removed last: a run
 * that finds it knows that these steps were not done. */
static enum status finish_publishing(const struct publishing *p, const struct root_file *files,
                                     size_t num_files, struct error *err)
{
    if (p->unit_in_root) TRY(put_root_files(p, p->final, p->destination, files, num_files, err));
    if (p->unit_in_root && p->durable) TRY(folder_sync(p->destination, err));
    if (p->unit_in_root && is_unfinished(p, p->destination))
        TRY(remove_private(p, p->destination, err));
    return remove_private(p, p->final, err);
}

static enum status move_and_finish(struct publishing *p, const struct root_file *files,
                                   size_t num_files, struct error *err)
{
    if (p->finished) {
        if (p->options.overwrite) TRY(path_remove(aside_of(p), err));
        return finish_publishing(p, files, num_files, err);
    }
    if (!p->unit_in_root) TRY(put_root_files(p, p->staging, p->staging, files, num_files, err));
    if (p->durable) TRY(sync_tree(p->staging, err));
    TRY(publish_check_ours(p, err));
    if (p->stays) return move_into_folder(p, err);
    TRY(move_into_place(p, err));
    return finish_publishing(p, files, num_files, err);
}

enum status publish_commit(struct publishing *p, const struct root_file *files, size_t num_files,
                           struct error *err)
{
    TRY(move_and_finish(p, files, num_files, err));
    drop_lock(p, NULL);
    return OK;
}
