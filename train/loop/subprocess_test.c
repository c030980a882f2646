/* A request in a subprocess: its status and message reach the caller, and so does its death. */
#include <signal.h>
#include <unistd.h>

#include "common/count.h"
#include "tests/testing.h"
#include "train/loop/subprocess.h"

static enum status kill_itself(const struct forward_request *q, struct error *err)
{
    (void)q, (void)err;
    (void)raise(SIGKILL);
    return OK;
}

static enum status exit_early(const struct forward_request *q, struct error *err)
{
    (void)q, (void)err;
    _exit(3);
}

static enum status refuse(const struct forward_request *q, struct error *err)
{
    (void)q;
    return fail(err, ERR_UNSUPPORTED, "no such model");
}

static void the_end_of_a_subprocess_is_told_with_its_reason(void **state)
{
    static const struct {
        enum status (*run)(const struct forward_request *q, struct error *err);
        enum status status;
        const char *says;
    } rows[] = {
        {kill_itself, ERR_RANK,
         "rank 0 has died: signal 9 (Killed) (the subprocess that uses the GPU)"},
        {exit_early, ERR_RANK,
         "rank 0 has ended too early: exit code 3 (the subprocess that uses the GPU)"},
        {refuse, ERR_UNSUPPORTED, "no such model"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const struct forward_request q = {0};
        struct error err;
        assert_int_equal(subprocess_forward(&q, rows[i].run, &err), rows[i].status);
        assert_string_equal(err.text, rows[i].says);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_subprocess_is_told_with_its_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
