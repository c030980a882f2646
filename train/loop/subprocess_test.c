/* A request in a subprocess: its status and message reach the caller, and so
 * does its death. */
#include <signal.h>
#include <unistd.h>

#include "common/count.h"
#include "tests/testing.h"
#include "train/loop/subprocess.h"

typedef enum status forward_run(const struct forward_request *q, struct error *err);

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
        forward_run *run;
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

/* ---- outputs ---- */

enum { ROWS = 50, COLUMNS = 7 };

/* Outputs that the visitor got, and when it fails. */
struct seen {
    float values[ROWS * COLUMNS];
    uint64_t rows;
    unsigned visits, fails_at; /* from 1; 0: never */
};

static enum status see(void *context, const struct collected *c, struct error *err)
{
    struct seen *s = context;
    assert_string_equal(c->name, "logits");
    assert_int_equal(c->first_row, s->rows % ROWS);
    assert_int_equal(c->columns, COLUMNS);
    memcpy(s->values + c->first_row * COLUMNS, c->data, collected_bytes(c));
    s->rows += c->num_rows;
    if (++s->visits == s->fails_at) return fail(err, ERR_IO, "the disk is full");
    return OK;
}

static void fill(float *values, uint64_t first_row, uint64_t rows)
{
    for (uint64_t i = 0; i < rows * COLUMNS; i++)
        values[i] = (float)(first_row * COLUMNS + i);
}

/* Two rows at a time, in the memory that is given for them. */
static enum status give_pieces(const struct forward_request *q, struct error *err)
{
    for (uint64_t row = 0; row < ROWS; row += 2) {
        void *room;
        TRY(q->taking.room(q->context, 2 * COLUMNS * sizeof(float), &room, err));
        fill(room, row, 2);
        const struct collected c = {"logits", ROWS, COLUMNS, row, 2, DT_F32, room};
        TRY(q->visit(q->context, &c, err));
    }
    return OK;
}

static enum status give_whole(const struct forward_request *q, struct error *err)
{
    float values[ROWS * COLUMNS];
    fill(values, 0, ROWS);
    const struct collected c = {"logits", ROWS, COLUMNS, 0, ROWS, DT_F32, values};
    return q->visit(q->context, &c, err);
}

static enum status give_some_and_die(const struct forward_request *q, struct error *err)
{
    TRY(give_pieces(q, err));
    (void)raise(SIGKILL);
    return OK;
}

static enum status run_outputs(struct seen *s, uint64_t piece_bytes, forward_run *run,
                               struct error *err)
{
    const struct forward_request q = {
        .taking.piece_bytes = piece_bytes, .visit = see, .context = s};
    return subprocess_forward(&q, run, err);
}

static void outputs_come_in_pieces_or_whole(void **state)
{
    enum { PIECE = 3 * COLUMNS * sizeof(float) };
    static const struct {
        uint64_t piece_bytes;
        forward_run *run;
        unsigned visits;
    } rows[] = {
        {PIECE, give_pieces, ROWS / 2},
        {PIECE, give_whole, (ROWS + 2) / 3},
        {0, give_pieces, 1},
        {0, give_whole, 1},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct seen s = {.visits = 0};
        float expected[ROWS * COLUMNS];
        struct error err;
        fill(expected, 0, ROWS);
        assert_ok(run_outputs(&s, rows[i].piece_bytes, rows[i].run, &err));
        assert_int_equal(s.visits, rows[i].visits);
        assert_int_equal(s.rows, ROWS);
        assert_memory_equal(s.values, expected, sizeof expected);
    }
}

/* At any piece, with the next one under way; none comes after it. */
static void a_visitor_that_fails_ends_the_request(void **state)
{
    (void)state;
    for (unsigned at = 1; at <= ROWS / 2; at++) {
        struct seen s = {.fails_at = at};
        struct error err;
        assert_fails(run_outputs(&s, 1000, give_pieces, &err), ERR_IO, "the disk is full");
        assert_int_equal(s.visits, at);
    }
}

static void a_subprocess_that_dies_behind_its_outputs_is_told(void **state)
{
    struct seen s = {.visits = 0};
    struct error err;
    (void)state;
    assert_fails(run_outputs(&s, 1000, give_some_and_die, &err), ERR_RANK, "signal 9");
    assert_fails(run_outputs(&(struct seen){.visits = 0}, 0, give_some_and_die, &err), ERR_RANK,
                 "signal 9");
}

static void a_row_that_no_piece_has_room_for_is_refused(void **state)
{
    struct seen s = {.visits = 0};
    struct error err;
    (void)state;
    assert_fails(run_outputs(&s, COLUMNS * sizeof(float) - 1, give_whole, &err), ERR_UNSUPPORTED,
                 "a result row of 28 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_end_of_a_subprocess_is_told_with_its_reason),
        cmocka_unit_test(outputs_come_in_pieces_or_whole),
        cmocka_unit_test(a_visitor_that_fails_ends_the_request),
        cmocka_unit_test(a_subprocess_that_dies_behind_its_outputs_is_told),
        cmocka_unit_test(a_row_that_no_piece_has_room_for_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
