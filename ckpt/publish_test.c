#include "ckpt/publish.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/journal.h"
#include "common/count.h"
#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct arena a;
static struct error err;
static char folder[TEMPORARY_PATH];

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    return temporary_folder(folder) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    return (int)path_remove(folder, &err);
}

/* ---- what is there ---- */

static const char *in(const char *name)
{
    return path_join(&a, folder, name);
}

static void put(const char *path, const char *text)
{
    assert_ok(folder_create(path_parent(&a, path), &err));
    (void)unlink(path);
    assert_ok(file_write_all(path, text, strlen(text), false, &err));
}

static void assert_text(const char *path, const char *text)
{
    struct strbuf s = {0};
    assert_ok(file_read_all(path, 4096, &s, &err));
    assert_string_equal(s.data ? s.data : "", text);
    strbuf_release(&s);
}

/* The names in a folder, "a b c". */
static void assert_names(const char *path, const char *names)
{
    struct name_list list;
    struct strbuf s = {0};
    assert_ok(folder_list(path, &a, &list, &err));
    strbuf_add_text(&s, "");
    for (size_t i = 0; i < list.count; i++)
        strbuf_printf(&s, "%s%s", i ? " " : "", list.names[i]);
    assert_string_equal(s.data, names);
    strbuf_release(&s);
}

/* All that has no file "precious" in it. */
static enum status may_replace(void *context, const char *path, struct publish_replaced *out,
                               struct error *e)
{
    struct name_list list;
    (void)context;
    TRY(folder_list(path, &a, &list, e));
    *out = (struct publish_replaced){path, list.count, 7};
    if (path_exists(path_join(&a, path, "precious"))) return fail(e, ERR_EXISTS, "precious");
    return OK;
}

static const char *const signs[] = {"iter_*", "release", "latest_checkpointed_iteration.txt",
                                    "latest_train_state.pt", NULL};

static enum status check(struct publishing *p, const char *destination, const char *unit,
                         bool overwrite)
{
    return publish_check(p, &a, destination, unit, "",
                         &(struct publish_options){.may_replace = may_replace,
                                                   .overwrite = overwrite,
                                                   .patience = 2,
                                                   .work = "test",
                                                   .root_signs = signs,
                                                   .root_title = "Megatron"},
                         &err);
}

static void begin(struct publishing *p, const char *destination, const char *unit, bool overwrite)
{
    assert_ok(check(p, destination, unit, overwrite));
    assert_ok(publish_begin(p, true, &err));
    put(path_join(&a, p->folder, "weights"), "new");
}

/* ---- the whole destination ---- */

static void a_new_destination_appears_whole(void **state)
{
    (void)state;
    struct publishing p;
    const struct root_file index = {.name = "index", .bytes = "of it", .num_bytes = 5};
    begin(&p, in("out"), NULL, false);
    assert_false(path_exists(in("out")));
    put(path_join(&a, p.folder, "sub/more"), "deep");
    assert_ok(publish_commit(&p, &index, 1, &err));
    assert_names(folder, "out");
    assert_names(in("out"), "index sub weights");
    assert_text(in("out/weights"), "new");
    assert_text(in("out/index"), "of it");
    publish_abandon(&p); /* changes nothing any more */
    assert_names(folder, "out");
}

static void missing_parents_are_made(void **state)
{
    (void)state;
    struct publishing p;
    assert_string_equal(publish_existing_parent(&a, in("x/y/out")), folder);
    begin(&p, in("x/y/out/"), NULL, false);
    assert_string_equal(publish_existing_parent(&a, in("x/y/out")), in("x/y"));
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_names(in("x/y"), "out");
    assert_text(in("x/y/out/weights"), "new");
    assert_string_equal(publish_existing_parent(&a, "no-such-name/x"), ".");
    assert_string_equal(publish_existing_parent(&a, "/no-such-name/x"), "/");
}

static void an_empty_folder_is_replaced(void **state)
{
    (void)state;
    struct publishing p;
    assert_ok(folder_create(in("out"), &err));
    begin(&p, in("out"), NULL, false);
    assert_names(in("out"), "");
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_names(folder, "out");
    assert_names(in("out"), "weights");
}

static void a_folder_that_is_not_empty_is_refused(void **state)
{
    (void)state;
    struct publishing p;
    put(in("out/old"), "old");
    assert_fails(check(&p, in("out"), NULL, false), ERR_EXISTS,
                 "out: exists and is not empty; --overwrite replaces it");
    assert_names(folder, "out");
    put(in("file"), "x");
    assert_fails(check(&p, in("file"), NULL, true), ERR_EXISTS, "file: exists and is not a folder");
    assert_int_equal(symlink("nowhere", in("link")), 0);
    assert_fails(check(&p, in("link"), NULL, true), ERR_EXISTS, "link: exists and is not a folder");
}

static void names_that_name_no_folder_are_refused(void **state)
{
    (void)state;
    struct publishing p;
    assert_fails(check(&p, "", NULL, false), ERR_USAGE,
                 "\"\" is not a valid name for a destination");
    assert_fails(check(&p, "/", NULL, true), ERR_USAGE,
                 "\"/\" is not a valid name for a destination");
}

static void overwriting_keeps_the_old_until_the_new_is_there(void **state)
{
    (void)state;
    struct publishing p;
    put(in("out/old"), "old");
    begin(&p, in("out"), NULL, true);
    assert_text(in("out/old"), "old");
    publish_abandon(&p);
    assert_names(folder, "out");
    assert_text(in("out/old"), "old");

    put(in(".out.ferry-old/left"), "by one that was killed");
    begin(&p, in("out"), NULL, true);
    assert_text(in("out/old"), "old");
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_names(folder, "out");
    assert_names(in("out"), "weights");
}

static void what_may_not_be_replaced_stays(void **state)
{
    (void)state;
    struct publishing p;
    put(in("out/old"), "old");
    assert_ok(check(&p, in("out"), NULL, true));
    assert_string_equal(p.replaces.folder, in("out"));
    assert_int_equal(p.replaces.num_files, 1);
    begin(&p, in("out"), NULL, true);
    put(in("out/precious"), "came meanwhile");
    assert_fails(publish_commit(&p, NULL, 0, &err), ERR_EXISTS, "precious");
    publish_abandon(&p);
    assert_fails(check(&p, in("out"), NULL, true), ERR_EXISTS, "precious");
    assert_names(folder, "out");
    assert_names(in("out"), "old precious");

    assert_ok(check(&p, in("new"), NULL, true));
    assert_null(p.replaces.folder);
}

static void what_came_to_the_destination_meanwhile_is_not_overwritten(void **state)
{
    (void)state;
    struct publishing p;
    begin(&p, in("out"), NULL, false);
    put(in("out/theirs"), "precious");
    assert_fails(publish_commit(&p, NULL, 0, &err), ERR_EXISTS, "out: exists and is not empty");
    publish_abandon(&p);
    assert_names(folder, "out");
    assert_text(in("out/theirs"), "precious");
}

static void the_old_comes_back_where_the_new_cannot_be_moved(void **state)
{
    (void)state;
    struct publishing p;
    put(in("out/old"), "old");
    begin(&p, in("out"), NULL, true);
    const char *staging = p.staging;
    p.staging = in("nothing");
    p.durable = false;
    assert_fails(publish_commit(&p, NULL, 0, &err), ERR_IO, "out: No such file");
    p.staging = staging;
    publish_abandon(&p);
    assert_names(folder, "out");
    assert_text(in("out/old"), "old");
}

static void a_staging_folder_that_was_removed_is_noticed(void **state)
{
    (void)state;
    struct publishing p;
    put(in("out/old"), "old");
    begin(&p, in("out"), NULL, true);
    p.durable = false;
    assert_ok(publish_check_ours(&p, &err));
    assert_ok(path_remove(p.staging, &err)); /* by whoever cleans up */
    put(path_join(&a, p.staging, "weights"), "of another");
    assert_fails(publish_check_ours(&p, &err), ERR_EXISTS, ".out.ferry-partial: ");
    assert_fails(publish_commit(&p, NULL, 0, &err), ERR_EXISTS, ".out.ferry-partial: ");
    publish_abandon(&p);
    assert_text(in(".out.ferry-partial/weights"), "of another");
    assert_text(in("out/old"), "old");
}

static void abandoning_leaves_nothing(void **state)
{
    (void)state;
    struct publishing p;
    begin(&p, in("x/y/out"), NULL, false);
    publish_abandon(&p);
    assert_names(folder, "");
    begin(&p, in("x/y/out"), "iter_0000007", false);
    put(in("x/other"), "another's");
    publish_abandon(&p);
    assert_names(folder, "x");
    assert_names(in("x"), "other");
}

/* ---- links ---- */

static void a_link_to_the_destination_stays_a_link(void **state)
{
    (void)state;
    struct publishing p;
    assert_ok(folder_create(in("disk/real"), &err));
    assert_int_equal(symlink("disk/real", in("out")), 0);
    begin(&p, in("out/"), NULL, false);
    assert_string_equal(path_parent(&a, p.staging), path_real(&a, in("disk")));
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_names(folder, "disk out");
    assert_text(in("disk/real/weights"), "new");

    put(in("disk/real/weights"), "old");
    begin(&p, in("out"), NULL, true);
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_text(in("out/weights"), "new");
    assert_names(in("disk"), "real");
}

static void the_current_folder_can_be_the_destination(void **state)
{
    (void)state;
    struct publishing p;
    char *old = getcwd(NULL, 0);
    assert_non_null(old);
    assert_ok(folder_create(in("out"), &err));
    assert_int_equal(chdir(in("out")), 0);
    begin(&p, ".", NULL, false);
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_int_equal(chdir(old), 0);
    free(old);
    assert_names(in("out"), "weights");
}

/* ---- units of a root ---- */

static const struct root_file tracker = {.name = "latest", .bytes = "7", .num_bytes = 1};

static void a_unit_of_a_new_root_comes_with_its_root_files(void **state)
{
    (void)state;
    struct publishing p;
    begin(&p, in("root"), "iter_0000007", false);
    assert_false(p.unit_in_root);
    assert_ok(publish_commit(&p, &tracker, 1, &err));
    assert_names(folder, "root");
    assert_names(in("root"), "iter_0000007 latest");
    assert_text(in("root/iter_0000007/weights"), "new");
    assert_text(in("root/latest"), "7");
}

static void a_unit_in_a_root_leaves_the_others_alone(void **state)
{
    (void)state;
    struct publishing p;
    put(in("root/iter_0000003/weights"), "three");
    put(in("root/latest"), "3");
    put(in("root/notes"), "by hand");
    begin(&p, in("root"), "iter_0000007", false);
    assert_true(p.unit_in_root);
    assert_text(in("root/latest"), "3");
    assert_ok(publish_commit(&p, &tracker, 1, &err));
    assert_names(in("root"), "iter_0000003 iter_0000007 latest notes");
    assert_names(in("root/iter_0000007"), "weights");
    assert_text(in("root/iter_0000003/weights"), "three");
    assert_text(in("root/latest"), "7");
    assert_names(folder, "root");

    assert_fails(check(&p, in("root"), "iter_0000007", false), ERR_EXISTS,
                 "root/iter_0000007: exists and is not empty");
    begin(&p, in("root"), "iter_0000007", true);
    publish_abandon(&p);
    assert_names(in("root"), "iter_0000003 iter_0000007 latest notes");
    assert_ok(folder_create(in("root/iter_0000009"), &err));
    begin(&p, in("root"), "iter_0000009", false);
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_names(in("root/iter_0000009"), "weights");
}

static void root_files_come_last_each_by_a_rename(void **state)
{
    (void)state;
    struct publishing p;
    const struct root_file files[] = {{.name = "first", .bytes = "1", .num_bytes = 1},
                                      {.name = "second", .bytes = "2", .num_bytes = 1},
                                      {.name = "third", .bytes = "3", .num_bytes = 1}};
    struct stat before, after;
    put(in("root/iter_0000003/weights"), "three");
    put(in("root/first"), "old");
    put(in("root/third"), "old");
    put(in("root/second/in-the-way"), "");
    assert_int_equal(link(in("root/first"), in("root/held")), 0);
    assert_int_equal(stat(in("root/first"), &before), 0);
    begin(&p, in("root"), "iter_0000007", false);
    assert_fails(publish_commit(&p, files, 3, &err), ERR_IO, "root/second: ");
    assert_text(in("root/iter_0000007/weights"), "new"); /* before them all */
    assert_text(in("root/first"), "1");
    assert_text(in("root/third"), "old");
    assert_int_equal(stat(in("root/first"), &after), 0);
    assert_true(before.st_ino != after.st_ino);
    assert_text(in("root/held"), "old"); /* who has the old file open still reads it */

    /* The staging name is free again, and no more ours. */
    struct publishing other;
    assert_ok(path_remove(in("root/iter_0000007"), &err));
    begin(&other, in("root"), "iter_0000007", false);
    publish_abandon(&p);
    assert_true(path_exists(other.folder));
    publish_abandon(&other);
}

static void root_files_can_be_links(void **state)
{
    (void)state;
    struct publishing p;
    char to[64] = "";
    const struct root_file link_to = {.name = "latest", .link = "iter_0000007"};
    for (int i = 0; i < 3; i++) { /* a new root; over a link; over a file */
        if (i == 2) put(in("root/latest"), "a file");
        begin(&p, in("root"), "iter_0000007", i > 0);
        assert_ok(publish_commit(&p, &link_to, 1, &err));
        assert_int_equal(readlink(in("root/latest"), to, sizeof to - 1), 12);
        assert_string_equal(to, "iter_0000007");
        assert_names(in("root"), "iter_0000007 latest");
    }
    put(in("root/folder/x"), "");
    const struct root_file blocked = {.name = "folder", .link = "iter_0000007"};
    begin(&p, in("root"), "iter_0000007", true);
    assert_fails(publish_commit(&p, &blocked, 1, &err), ERR_IO, "root/folder: ");
    assert_names(in("root"), "folder iter_0000007 latest");
}

static void only_a_root_takes_units(void **state)
{
    (void)state;
    static const struct {
        const char *names[3];
        bool root;
    } cases[] = {
        {{NULL}, true},
        {{"iter_0000001"}, true},
        {{"notes", "release"}, true},
        {{"a", "latest_checkpointed_iteration.txt", "z"}, true},
        {{"latest_train_state.pt"}, true},
        {{".iter_0000001.ferry-partial", ".iter_0000001.ferry-old"}, true},
        {{"notes"}, false},
        {{".iter_0000001.ferry-partial", "notes"}, false},
        {{".iter_0000001.ferry-partial", "+notes"}, false},
        {{"config.json", "model.safetensors"}, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct publishing p;
        assert_ok(folder_create(in("root"), &err));
        for (int k = 0; k < 3 && cases[i].names[k]; k++)
            put(path_join(&a, in("root"), cases[i].names[k]), "");
        enum status st = check(&p, in("root"), "iter_0000007", true);
        if (cases[i].root != (st == OK)) fail_msg("case %zu", i);
        if (!cases[i].root)
            assert_non_null(
                strstr(err.text, "root: exists, is not empty and holds no Megatron checkpoint"));
        assert_ok(path_remove(in("root"), &err));
    }
}

/* ---- the source ---- */

static void a_destination_around_the_source_is_refused(void **state)
{
    (void)state;
    struct publishing p;
    put(in("hf/model.safetensors"), "x");
    put(in("hf/deep/er/model.safetensors"), "x");
    assert_int_equal(symlink("hf", in("link")), 0);
    const char *hf = in("hf");
    assert_fails(publish_check(&p, &a, hf, NULL, hf,
                               &(struct publish_options){
                                   .may_replace = may_replace, .overwrite = true, .work = "w"},
                               &err),
                 ERR_USAGE, "hf: the source and the destination are the same");
    assert_fails(publish_check(&p, &a, in("link"), NULL, hf,
                               &(struct publish_options){
                                   .may_replace = may_replace, .overwrite = true, .work = "w"},
                               &err),
                 ERR_USAGE, "link: the source and the destination are the same");
    assert_fails(publish_check(&p, &a, hf, NULL, in("link/deep/er"),
                               &(struct publish_options){
                                   .may_replace = may_replace, .overwrite = true, .work = "w"},
                               &err),
                 ERR_USAGE, "lies inside this destination");
    assert_fails(publish_check(&p, &a, hf, "iter_0000001", in("hf/model.safetensors"),
                               &(struct publish_options){
                                   .may_replace = may_replace, .overwrite = true, .work = "w"},
                               &err),
                 ERR_USAGE, "hf: the source lies inside this destination");
    static const char *const inside[] = {"hf/out", "hf/deep/out", "hf/new/er/out/", "link/deep/er"};
    for (size_t i = 0; i < COUNT(inside); i++)
        assert_fails(publish_check(&p, &a, in(inside[i]), NULL, hf,
                                   &(struct publish_options){.patience = 2}, &err),
                     ERR_USAGE, ": this destination lies inside the source ");
    assert_ok(publish_check(&p, &a, in("hf2"), NULL, hf,
                            &(struct publish_options){.patience = 2, .work = "test"}, &err));
    put(in("h/x"), "");
    assert_ok(publish_check(
        &p, &a, in("h"), NULL, hf,
        &(struct publish_options){.may_replace = may_replace, .overwrite = true, .work = "w"},
        &err)); /* begins alike, no more */
}

/* ---- locks ---- */

static const char *host(void)
{
    static char name[256];
    (void)gethostname(name, sizeof name - 1);
    return name;
}

static pid_t dead_process(void)
{
    pid_t pid = fork();
    if (pid == 0) _exit(0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return pid;
}

static void a_destination_in_work_is_busy(void **state)
{
    (void)state;
    struct publishing p, second;
    begin(&p, in("x/out"), NULL, false);
    assert_ok(check(&second, in("x/out"), NULL, false));
    assert_fails(publish_begin(&second, true, &err), ERR_EXISTS,
                 "out: busy: another ferry is writing it: process ");
    assert_non_null(
        strstr(err.text, arena_printf(&a, "process %ld on %s since 20", (long)getpid(), host())));
    assert_non_null(strstr(err.text, ".out.ferry-partial/.ferry-lock"));
    assert_names(in("x"), ".out.ferry-partial");
    assert_ok(publish_commit(&p, NULL, 0, &err));
    assert_names(in("x/out"), "weights");
}

/* A staging folder with this in its lock, and whether it is taken over. */
static void check_lock(const char *lock, bool held)
{
    struct publishing p;
    put(in(".out.ferry-partial/left"), "by another");
    if (lock) put(in(".out.ferry-partial/.ferry-lock"), lock);
    assert_ok(check(&p, in("out"), NULL, false));
    if (held) {
        assert_fails(publish_begin(&p, false, &err), ERR_EXISTS, "busy");
        assert_text(in(".out.ferry-partial/left"), "by another");
        assert_names(folder, ".out.ferry-partial");
    } else {
        assert_ok(publish_begin(&p, false, &err));
        assert_names(folder, ".out.ferry-partial");
        assert_names(p.staging, ".ferry-lock");
        publish_abandon(&p);
        assert_names(folder, "");
    }
    assert_ok(path_remove(in(".out.ferry-partial"), &err));
}

/* A process that was stopped for a long time, then continues. */
static void who_was_taken_for_dead_touches_nothing_any_more(void **state)
{
    (void)state;
    struct publishing p;
    begin(&p, in("out"), NULL, false);
    put(path_join(&a, p.staging, ".ferry-lock"),
        "elsewhere 1 2 s 0123456789abcdef 3\nw\nat work\n");
    assert_fails(publish_commit(&p, NULL, 0, &err), ERR_EXISTS,
                 ".out.ferry-partial: another ferry took it over");
    publish_abandon(&p);
    assert_names(in(".out.ferry-partial"), ".ferry-lock weights");
    assert_false(path_exists(in("out")));
}

static void only_what_a_dead_process_left_is_taken_over(void **state)
{
    (void)state;
    pid_t dead = dead_process();
    check_lock(arena_printf(&a, "%s %ld 12345\n", host(), (long)dead), false);
    check_lock(arena_printf(&a, "%s %ld 1\n", host(), (long)getpid()),
               false); /* its number again */
    check_lock(arena_printf(&a, "%s 0 0\n", host()), false);
    check_lock(arena_printf(&a, "%s\n", host()), false);
    check_lock("", false);
    check_lock(NULL, false);
    check_lock(arena_printf(&a, "%s.elsewhere %ld 12345\n", host(), (long)dead),
               false); /* silent */

    struct publishing p;
    struct strbuf ours = {0};
    begin(&p, in("mine"), NULL, false);
    assert_ok(file_read_all(path_join(&a, p.staging, ".ferry-lock"), 4096, &ours, &err));
    const char *alive = arena_text(&a, ours.data, ours.length);
    strbuf_release(&ours);
    assert_int_equal(
        strncmp(alive, arena_printf(&a, "%s %ld ", host(), (long)getpid()), strlen(host()) + 2), 0);
    publish_abandon(&p);
    check_lock(alive, true);
}

/* In a child process: takes the destination, writes the outcome to the pipe
 * `tell`, and holds the destination until the other pipe is closed. */
static _Noreturn void compete(int tell, int wait_for)
{
    struct publishing p;
    enum status st = check(&p, in("out"), NULL, false);
    if (!st) st = publish_begin(&p, false, &err);
    char byte = (char)st;
    if (write(tell, &byte, 1) == 1) (void)!read(wait_for, &byte, 1);
    _exit(0);
}

static void of_many_who_take_over_one_wins(void **state)
{
    (void)state;
    enum { RIVALS = 6 };
    for (int round = 0; round < 20; round++) {
        int told[2], hold[2], winners = 0;
        bool continues = round % 2;
        put(in(".out.ferry-partial/left"), "by one that is dead");
        put(in(".out.ferry-partial/.ferry-lock"),
            arena_printf(&a, "%s 0 0\n%s\n", host(), continues ? "test" : "other"));
        assert_int_equal(pipe(told), 0);
        assert_int_equal(pipe(hold), 0);
        for (int i = 0; i < RIVALS; i++)
            if (fork() == 0) {
                close(hold[1]);
                compete(told[1], hold[0]);
            }
        for (int i = 0; i < RIVALS; i++) {
            char st;
            assert_int_equal(read(told[0], &st, 1), 1);
            assert_true(st == OK || st == ERR_EXISTS);
            winners += st == OK;
        }
        assert_int_equal(winners, 1);
        assert_names(folder, ".out.ferry-partial");
        assert_names(in(".out.ferry-partial"), continues ? ".ferry-lock left" : ".ferry-lock");
        for (int i = 0; i < 2; i++) {
            close(told[i]);
            close(hold[i]);
        }
        while (wait(NULL) > 0) {
        }
        assert_ok(path_remove(in(".out.ferry-partial"), &err));
    }
}

/* The prefix of a folder that take_staging() makes before it is renamed. */
static const char *fresh_prefix(void)
{
    char scope[64];
    lock_own_scope(scope);
    return arena_printf(&a, ".%s.%s.", host(), scope);
}

/* Processes that were killed before they could rename their new staging folder. */
static void what_a_run_has_left_that_died_at_once_is_removed(void **state)
{
    (void)state;
    struct publishing p;
    long dead = dead_process();
    const char *prefix = fresh_prefix(), *folder_of = "root/iter_0000003/weights";
    const char *fresh = arena_printf(&a, "%s%ld.ferry-partial", prefix, dead);
    put(in(folder_of), "three");
    for (int step = 0; step < 6; step++) {
        assert_ok(folder_create(in(arena_printf(&a, "root/%s", fresh)), &err)); /* just now */
        const char *lock = in(arena_printf(&a, "root/%s/.ferry-lock", fresh));
        if (step == 1) put(lock, "");
        if (step == 2) put(lock, "vm 1");
        if (step == 3) put(lock, arena_printf(&a, "%s %ld 12345\n", host(), dead));
        if (step >= 4) put(lock, arena_printf(&a, "%s %ld 1\n", host(), (long)getpid()));
        if (step == 5) put(in(arena_printf(&a, "root/%s/.ferry-command", fresh)), "ferry");
        begin(&p, in("root"), "iter_0000007", false);
        assert_names(in("root"), ".iter_0000007.ferry-partial iter_0000003");
        publish_abandon(&p);
        assert_names(in("root"), "iter_0000003");
    }
}

static void what_may_be_of_a_living_process_or_of_somebody_stays(void **state)
{
    (void)state;
    struct publishing p;
    long dead = dead_process();
    const char *prefix = fresh_prefix();
    const char *fresh = arena_printf(&a, "%s%ld.ferry-partial", prefix, dead);
    const char *elsewhere = arena_printf(&a, "%s.elsewhere", host());
    char scope[64];
    lock_own_scope(scope);
    const struct {
        const char *file, *text;
    } kept[] = {
        {arena_printf(&a, "%s/.ferry-journal", fresh), ""},
        {arena_printf(&a, "%s/mine", fresh), ""},
        {arena_printf(&a, "%s/sub/mine", fresh), ""},
        {arena_printf(&a, "%s%ld.ferry-partial/.ferry-lock", prefix, (long)getppid()), ""},
        {arena_printf(&a, ".elsewhere.%s.%ld.ferry-partial/.ferry-lock", scope, dead), ""},
        {arena_printf(&a, ".%s.scope.%ld.ferry-partial/.ferry-lock", host(), dead), ""},
        {arena_printf(&a, ".%s.%ld.ferry-partial/.ferry-lock", host(), dead), ""},
        {arena_printf(&a, "%s12x.ferry-partial/.ferry-lock", prefix), ""},
        {arena_printf(&a, "%s%ldx.ferry-partial/.ferry-lock", prefix, dead), ""},
        {arena_printf(&a, "%s/.ferry-lock", fresh),
         arena_printf(&a, "%s %ld 12345 s 0 1\nw\nat work\n", host(), dead)}, /* another scope */
        {arena_printf(&a, "%s/.ferry-lock", fresh),
         arena_printf(&a, "%s %ld 12345 s 0 1\nw\nat work\n", elsewhere, dead)},
    };
    for (size_t i = 0; i < COUNT(kept); i++) {
        put(in(kept[i].file), kept[i].text);
        begin(&p, in("out"), NULL, false);
        publish_abandon(&p);
        if (!path_exists(in(kept[i].file))) fail_msg("case %zu", i);
        const char *top = arena_text(&a, kept[i].file, strcspn(kept[i].file, "/"));
        assert_ok(path_remove(in(top), &err));
    }
}

/* ---- what an interrupted run has left ---- */

/* A staging folder of a dead run of this work, with half of the weights; bytes
 * 0: no journal. */
static void leave_half(const char *destination, const char *work, uint64_t bytes)
{
    const char *name = path_base(&a, destination), *parent = path_parent(&a, destination);
    const char *staging = path_join(&a, parent, arena_printf(&a, ".%s.ferry-partial", name));
    struct strbuf record = {0};
    put(path_join(&a, staging, ".ferry-lock"),
        arena_printf(&a, "%s 0 0\n%s\nat work\n", host(), work));
    put(path_join(&a, staging, "weights"), "half of them");
    put(path_join(&a, staging, ".ferry-command"), "ferry what\n");
    if (!bytes) return;
    struct journal_task t = {.bytes = bytes};
    journal_add(&record, &t, NULL);
    assert_ok(journal_append(path_join(&a, staging, ".ferry-journal-3"),
                             arena_printf(&a, "%s, rank 3", work), &record, false, &err));
    strbuf_release(&record);
}

static enum status check_with(struct publishing *p, struct publish_options o)
{
    if (!o.work) o.work = "w";
    return publish_check(p, &a, in("out"), NULL, "", &o, &err);
}

static void the_same_work_is_continued(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) { /* plain; --resume; --overwrite */
        struct publishing p;
        struct publish_options o = {
            .resume = i == 1, .overwrite = i == 2, .may_replace = may_replace};
        leave_half(in("out"), "w", 1000);
        assert_ok(check_with(&p, o));
        assert_true(p.left.found && p.left.same_work);
        assert_int_equal(p.left.bytes, 1000);
        assert_false(publish_refuses_left(&p) || publish_discards_left(&p));
        assert_ok(publish_begin(&p, false, &err));
        assert_true(p.continues);
        assert_text(in(".out.ferry-partial/weights"), "half of them");
        assert_int_equal(publish_done_bytes(&p), 1000);
        publish_keep(&p, "test");
        assert_ok(path_remove(in(".out.ferry-partial"), &err));
    }
}

static void where_nothing_is_done_nothing_is_told(void **state)
{
    (void)state;
    struct publishing p;
    leave_half(in("out"), "w", 0); /* by rank 0, with whom others may still be at work */
    assert_ok(check_with(&p, (struct publish_options){0}));
    assert_false(p.left.found);
    assert_ok(publish_begin(&p, false, &err));
    assert_true(p.continues);
    publish_abandon(&p);

    leave_half(in("out"), "other", 0);
    assert_ok(check_with(&p, (struct publish_options){0}));
    assert_false(p.left.found);
    assert_ok(publish_begin(&p, false, &err));
    assert_false(p.continues);
    assert_names(in(".out.ferry-partial"), ".ferry-lock");
    publish_abandon(&p);
    assert_names(folder, "");
}

static void other_work_is_refused_and_discarded_only_where_that_is_asked_for(void **state)
{
    (void)state;
    struct publishing p;
    leave_half(in("out"), "other", 1000);
    for (int i = 0; i < 2; i++) {
        assert_ok(check_with(&p, (struct publish_options){.resume = i == 1}));
        assert_true(p.left.found && !p.left.same_work && publish_refuses_left(&p));
        assert_string_equal(p.left.work, "other");
        assert_string_equal(p.left.command, "ferry what");
        assert_int_equal(p.left.bytes, 1000);
        assert_fails(publish_begin(&p, false, &err), ERR_EXISTS,
                     "--restart or --overwrite discards it");
        assert_text(in(".out.ferry-partial/weights"), "half of them");
        assert_names(folder, ".out.ferry-partial");
    }
    for (int i = 0; i < 3; i++) { /* --restart; --overwrite; --restart of the same work */
        leave_half(in("out"), i == 2 ? "w" : "other", 1000);
        assert_ok(check_with(&p, (struct publish_options){.restart = i != 1,
                                                          .overwrite = i == 1,
                                                          .command = "ferry this",
                                                          .may_replace = may_replace}));
        assert_true(publish_discards_left(&p));
        assert_ok(publish_begin(&p, false, &err));
        assert_names(in(".out.ferry-partial"), ".ferry-command .ferry-lock");
        assert_text(in(".out.ferry-partial/.ferry-command"), "ferry this");
        publish_abandon(&p);
        assert_names(folder, "");
    }
}

static void a_journal_of_another_version_is_of_other_work(void **state)
{
    (void)state;
    struct publishing p;
    leave_half(in("out"), "w", 0);
    put(in(".out.ferry-partial/.ferry-journal"), "ferry journal 3 w, rank 0\n...");
    assert_ok(check_with(&p, (struct publish_options){0}));
    assert_true(p.left.found && publish_refuses_left(&p));
    assert_null(p.left.work);
}

/* Whether a folder has the file "made". */
static bool is_made(void *context, const char *unit_folder)
{
    (void)context;
    return path_exists(path_join(&a, unit_folder, "made"));
}

static void a_run_that_ended_before_its_root_files_is_finished(void **state)
{
    (void)state;
    struct publish_options o = {.is_made = is_made,
                                .work = "w",
                                .may_replace = may_replace,
                                .root_signs = signs,
                                .root_title = "Megatron"};
    static const struct {
        const char *lock;
        bool made, restart, overwrite;
        enum status st;
        bool finished;
    } cases[] = {
        {"root/.ferry-lock", true, false, false, OK, true},
        {"root/iter_0000007/.ferry-lock", true, false, false, OK, true},
        {"root/iter_0000007/.ferry-lock", true, false, true, OK, true},
        {"root/iter_0000007/.ferry-lock", true, true, false, OK, false},
        {"root/.ferry-lock", true, true, false, OK, false},
        {"root/.ferry-lock", false, true, false, ERR_EXISTS, false},
        {"root/.ferry-lock", false, false, false, ERR_EXISTS, false},
        {"root/.ferry-lock", false, false, true, OK, false},
        {NULL, true, false, false, ERR_EXISTS, false},
        {NULL, true, true, false, ERR_EXISTS, false}, /* complete: that is not left by a dead one */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct publishing p;
        put(in("root/iter_0000007/weights"), "new");
        put(in("root/.iter_0000007.ferry-old/weights"), "replaced");
        put(in("root/latest"), i == 0 ? "7" : "3"); /* that came with the root */
        if (cases[i].made) put(in("root/iter_0000007/made"), "");
        if (cases[i].lock) put(in(cases[i].lock), arena_printf(&a, "%s 0 0\nw\nat work\n", host()));
        o.restart = cases[i].restart;
        o.overwrite = cases[i].overwrite;
        enum status st = publish_check(&p, &a, in("root"), "iter_0000007", "", &o, &err);
        if (st != cases[i].st || p.finished != cases[i].finished)
            fail_msg("case %zu: %d, finished %d", i, (int)st, p.finished);
        if (!st) {
            assert_ok(publish_begin(&p, false, &err));
            assert_ok(publish_commit(&p, &tracker, 1, &err));
            assert_text(in("root/latest"), "7");
            assert_false(path_exists(in("root/.ferry-lock")));
            assert_false(path_exists(in("root/iter_0000007/.ferry-lock")));
            assert_int_equal(path_exists(in("root/iter_0000007/weights")), cases[i].finished);
            if (o.overwrite) assert_false(path_exists(in("root/.iter_0000007.ferry-old")));
        }
        assert_ok(path_remove(in("root"), &err));
    }
}

/* ---- what cannot be written ---- */

static void a_parent_that_cannot_be_written_is_told_at_the_beginning(void **state)
{
    (void)state;
    struct publishing p;
    assert_ok(folder_create(in("closed/out"), &err));
    assert_int_equal(chmod(folder, 0755), 0);
    assert_int_equal(chmod(in("closed"), 0555), 0);
    assert_ok(check(&p, in("closed/out"), NULL, false));
    bool root = geteuid() == 0; /* whom nothing is forbidden */
    if (root) assert_int_equal(seteuid(65534), 0);
    enum status st = publish_begin(&p, true, &err);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(st, ERR_IO);
    assert_non_null(strstr(err.text, "closed/out: cannot create a folder beside it, in "));
    assert_non_null(strstr(err.text, "/closed: Permission denied"));
    assert_names(in("closed"), "out");
}

static void a_file_among_the_parents_is_told_at_the_beginning(void **state)
{
    (void)state;
    struct publishing p;
    put(in("file"), "x");
    assert_ok(check(&p, in("file/out"), NULL, false));
    assert_fails(publish_begin(&p, true, &err), ERR_IO, "/file: ");
    assert_names(folder, "file");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(a_new_destination_appears_whole),
        TEST(missing_parents_are_made),
        TEST(an_empty_folder_is_replaced),
        TEST(a_folder_that_is_not_empty_is_refused),
        TEST(names_that_name_no_folder_are_refused),
        TEST(overwriting_keeps_the_old_until_the_new_is_there),
        TEST(what_may_not_be_replaced_stays),
        TEST(what_came_to_the_destination_meanwhile_is_not_overwritten),
        TEST(the_old_comes_back_where_the_new_cannot_be_moved),
        TEST(a_staging_folder_that_was_removed_is_noticed),
        TEST(abandoning_leaves_nothing),
        TEST(a_link_to_the_destination_stays_a_link),
        TEST(the_current_folder_can_be_the_destination),
        TEST(a_unit_of_a_new_root_comes_with_its_root_files),
        TEST(a_unit_in_a_root_leaves_the_others_alone),
        TEST(root_files_come_last_each_by_a_rename),
        TEST(root_files_can_be_links),
        TEST(only_a_root_takes_units),
        TEST(a_destination_around_the_source_is_refused),
        TEST(a_destination_in_work_is_busy),
        TEST(who_was_taken_for_dead_touches_nothing_any_more),
        TEST(only_what_a_dead_process_left_is_taken_over),
        TEST(of_many_who_take_over_one_wins),
        TEST(what_a_run_has_left_that_died_at_once_is_removed),
        TEST(what_may_be_of_a_living_process_or_of_somebody_stays),
        TEST(the_same_work_is_continued),
        TEST(where_nothing_is_done_nothing_is_told),
        TEST(other_work_is_refused_and_discarded_only_where_that_is_asked_for),
        TEST(a_journal_of_another_version_is_of_other_work),
        TEST(a_run_that_ended_before_its_root_files_is_finished),
        TEST(a_parent_that_cannot_be_written_is_told_at_the_beginning),
        TEST(a_file_among_the_parents_is_told_at_the_beginning),
    };
    return cmocka_run_group_tests_name("publish", tests, NULL, NULL);
}
