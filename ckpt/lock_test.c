/* Locks: their holder, and how others find out whether it lives. */
#include "ckpt/lock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/arena.h"
#include "common/file.h"
#include "tests/temporary.h"
#include "tests/testing.h"

static struct arena a;
static struct error err;
static char folder[TEMPORARY_PATH];
static const char *path;

static int setup(void **state)
{
    (void)state;
    arena_init(&a);
    if (!temporary_folder(folder)) return -1;
    path = path_join(&a, folder, "lock");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    arena_release(&a);
    return (int)path_remove(folder, &err);
}

static void put(const char *text)
{
    assert_ok(file_replace_all(path, text, strlen(text), false, &err));
}

static enum lock_life look_once(void)
{
    struct lock_watch w = {.found = false};
    return lock_look(&w, path);
}

static struct lock *take(void)
{
    struct lock_watch w = {.found = false};
    struct lock *l;
    enum lock_life life;
    assert_ok(lock_watch_until_sure(&w, path, &life, &err));
    assert_int_equal(life, LOCK_FREE);
    assert_ok(lock_take(&l, folder, "lock", &w, NULL, "something", &err));
    return l;
}

static void what_a_living_process_has_taken_is_held(void **state)
{
    (void)state;
    struct lock_watch w = {.found = false};
    assert_int_equal(look_once(), LOCK_FREE);
    struct lock *l = take();
    assert_int_equal(lock_look(&w, path), LOCK_HELD);
    assert_true(w.found);
    assert_int_equal(w.record.pid, getpid());
    assert_string_equal(w.record.run, lock_run(l));
    assert_int_equal(strlen(w.record.run), 16);
    assert_string_equal(w.record.work, "something");
    assert_string_equal(w.record.state, "at work");
    lock_say(l, "nearly\ndone");
    (void)lock_look(&w, path);
    assert_string_equal(w.record.state, "nearly done");
    lock_drop(l, "ended");
    assert_int_equal(lock_look(&w, path), LOCK_FREE);
    assert_true(w.found);
    assert_string_equal(w.record.state, "ended");
}

static void what_a_dead_process_has_left_is_free(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        (void)take();
        _exit(0);
    }
    assert_int_equal(waitpid(child, NULL, 0), child);
    struct lock_watch w = {.found = false};
    assert_int_equal(lock_look(&w, path), LOCK_FREE);
    assert_int_equal(w.record.pid, child);
    assert_string_equal(w.record.state, "at work");
    lock_drop(take(), NULL);
}

static void one_that_is_cut_off_is_free(void **state)
{
    (void)state;
    put("");
    assert_int_equal(look_once(), LOCK_FREE);
    put("host 12");
    assert_int_equal(look_once(), LOCK_FREE);
}

/* Beats like a process of another host, ten times a second. */
static atomic_bool stop;
static void *beat_elsewhere(void *unused)
{
    const struct timespec pause = {0, 100000000};
    for (unsigned n = 0; !stop; n++) {
        char text[LOCK_BYTES];
        snprintf(text, sizeof text, "elsewhere 1 2 boot-space 0123456789abcdef %020u\nw\nat work\n",
                 n);
        if (file_replace_all(path, text, strlen(text), false, NULL)) break;
        (void)nanosleep(&pause, NULL);
    }
    return unused;
}

static void one_of_another_host_is_held_while_it_beats(void **state)
{
    (void)state;
    struct lock_watch w = {.patience = 2};
    enum lock_life life;
    pthread_t thread;
    stop = false;
    put("elsewhere 1 2 boot-space 0123456789abcdef 0\nw\nat work\n");
    assert_int_equal(look_once(), LOCK_UNSURE);
    assert_int_equal(pthread_create(&thread, NULL, beat_elsewhere, NULL), 0);
    assert_ok(lock_watch_until_sure(&w, path, &life, &err));
    assert_int_equal(life, LOCK_HELD);
    stop = true;
    pthread_join(thread, NULL);
    const struct timespec pause = {0, 300000000};
    for (int looks = 0; looks < 20 && life != LOCK_FREE; looks++) {
        (void)nanosleep(&pause, NULL);
        life = lock_look(&w, path);
        assert_int_not_equal(life, LOCK_UNSURE);
    }
    assert_int_equal(life, LOCK_FREE); /* it is silent */
}

static void who_was_taken_for_dead_learns_of_it(void **state)
{
    (void)state;
    struct lock *l = take();
    assert_false(lock_is_lost(l));
    put("elsewhere 1 2 boot-space 0123456789abcdef 7\nw\nat work\n");
    assert_true(lock_is_lost(l));
    lock_drop(l, "ended"); /* no longer our lock, so its state stays */
    assert_int_equal(look_once(), LOCK_UNSURE);
}

static void what_was_seen_free_must_still_be_so(void **state)
{
    (void)state;
    struct lock_watch w = {.found = false};
    struct lock *l, *other;
    put("elsewhere 1 2 boot-space 0123456789abcdef 7\nw\nfailed: x\n");
    assert_int_equal(lock_look(&w, path), LOCK_FREE);
    assert_true(lock_is_still_free(&w, path));
    l = take();
    assert_false(lock_is_still_free(&w, path));
    assert_fails(lock_take(&other, folder, "lock", &w, NULL, "x", &err), ERR_EXISTS,
                 "lock: busy: another ferry holds it");
    lock_drop(l, NULL);
}

static void a_lock_goes_with_its_folder(void **state)
{
    (void)state;
    struct lock *l = take();
    const char *moved = arena_printf(&a, "%s-moved", folder);
    assert_int_equal(rename(folder, moved), 0);
    lock_say(l, "moved");
    struct lock_watch w = {.found = false};
    assert_int_equal(lock_look(&w, path_join(&a, moved, "lock")), LOCK_HELD);
    assert_string_equal(w.record.state, "moved");
    lock_drop(l, NULL);
    assert_int_equal(rename(moved, folder), 0);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(what_a_living_process_has_taken_is_held),
        TEST(what_a_dead_process_has_left_is_free),
        TEST(one_that_is_cut_off_is_free),
        TEST(one_of_another_host_is_held_while_it_beats),
        TEST(who_was_taken_for_dead_learns_of_it),
        TEST(what_was_seen_free_must_still_be_so),
        TEST(a_lock_goes_with_its_folder),
    };
    return cmocka_run_group_tests_name("lock", tests, NULL, NULL);
}
