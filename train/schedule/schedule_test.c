/* Schedules: their order beside Megatron-Core's, their bubbles beside the
 * formulas, and that ranks which wait for both ends of each message never wait
 * in a ring. */
#include "train/schedule/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/memory.h"
#include "tests/testing.h"

static struct error err;

static void make(struct schedule *s, enum schedule_kind kind, unsigned ranks, unsigned chunks,
                 uint64_t micro_batches)
{
    const struct schedule_shape shape = {
        .kind = kind, .ranks = ranks, .chunks = chunks, .micro_batches = micro_batches};
    assert_ok(schedule_make(s, &shape, &err));
}

/* "F0a B0b ..", of a rank. */
static void print_order(const struct schedule *s, unsigned rank, struct strbuf *out)
{
    for (size_t k = 0; k < s->ranks[rank].count; k++) {
        const struct schedule_action *a = &s->ranks[rank].actions[k];
        strbuf_printf(out, "%s%c%" PRIu64 "%c", k ? " " : "", a->is_backward ? 'B' : 'F',
                      a->micro_batch, 'a' + (int)a->chunk);
    }
}

static void orders_are_those_of_megatron(void **state)
{
    static const struct {
        enum schedule_kind kind;
        unsigned ranks, chunks, micro_batches, rank;
        const char *order;
    } cases[] = {
        {SCHEDULE_1F1B, 2, 1, 4, 0, "F0a F1a B0a F2a B1a F3a B2a B3a"},
        {SCHEDULE_1F1B, 2, 1, 4, 1, "F0a B0a F1a B1a F2a B2a F3a B3a"},
        {SCHEDULE_1F1B, 4, 1, 2, 0, "F0a F1a B0a B1a"},
        {SCHEDULE_INTERLEAVED, 2, 2, 2, 0, "F0a F1a F0b F1b B0b B1b B0a B1a"},
        {SCHEDULE_INTERLEAVED, 2, 2, 4, 1,
         "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"},
        {SCHEDULE_ONE_BY_ONE, 2, 2, 2, 1, "F0a F0b B0b B0a F1a F1b B1b B1a"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct schedule s;
        struct strbuf text = {0};
        make(&s, cases[i].kind, cases[i].ranks, cases[i].chunks, cases[i].micro_batches);
        print_order(&s, cases[i].rank, &text);
        assert_string_equal(text.data, cases[i].order);
        strbuf_release(&text);
        schedule_release(&s);
    }
}

/* (P - 1) / (V M + P - 1), and of micro-batches one by one (P - 1) / P. Ranks
 * that wait for both ends of a message take a little longer than that where
 * many chunks are interleaved. */
static void bubbles_are_those_of_the_formulas(void **state)
{
    (void)state;
    for (unsigned p = 1; p <= 8; p *= 2)
        for (unsigned m = p; m <= 4 * p; m += p) {
            struct schedule s;
            make(&s, SCHEDULE_1F1B, p, 1, m);
            assert_true(fabs(schedule_bubble(&s) - (p - 1.0) / (m + p - 1)) < 1e-9);
            schedule_release(&s);
            for (unsigned v = 2; v <= 4; v++) {
                make(&s, SCHEDULE_INTERLEAVED, p, v, m);
                const double wanted = (p - 1.0) / (v * m + p - 1), got = schedule_bubble(&s);
                assert_true(p <= 4 ? fabs(got - wanted) < 1e-9 : got < 1.25 * wanted);
                schedule_release(&s);
            }
            make(&s, SCHEDULE_ONE_BY_ONE, p, 1, m);
            assert_true(fabs(schedule_bubble(&s) - (p - 1.0) / p) < 1e-9);
            schedule_release(&s);
        }
}

/* ---- who waits for whom ---- */

/* Where a rank is: it exchanges what is in front of action `next`. */
struct walker {
    size_t next;
};

/* Whether the other end of a message is in the exchange in which its rank is
 * now. */
static bool is_met(const struct schedule *s, const struct walker *at, unsigned rank,
                   const struct schedule_message *m)
{
    const struct schedule_rank *peer = &s->ranks[m->peer];
    const size_t k = at[m->peer].next;
    for (size_t i = schedule_first_message(peer, k); i < peer->actions[k].messages_before; i++) {
        const struct schedule_message *o = &peer->messages[i];
        if (o->sends != m->sends && o->peer == rank && o->is_gradient == m->is_gradient &&
            o->micro_batch == m->micro_batch)
            return true;
    }
    return false;
}

static uint64_t bit_of(const struct schedule *s, const struct schedule_message *m)
{
    return (m->is_gradient ? s->shape.chunks : 0) + m->chunk;
}

/* Each message takes place when both ranks are in the exchange that has it; an
 * exchange ends when all of its messages have. */
static void walk(const struct schedule *s)
{
    const unsigned p = s->shape.ranks;
    struct walker *at = must_calloc(p, sizeof *at);
    bool **done = must_calloc(p, sizeof *done), moved = true;
    for (unsigned r = 0; r < p; r++)
        done[r] = must_calloc(s->ranks[r].num_messages + 1, sizeof **done);
    while (moved) {
        moved = false;
        for (unsigned r = 0; r < p; r++) {
            const struct schedule_rank *rank = &s->ranks[r];
            bool all = true;
            if (at[r].next > rank->count) continue;
            const size_t first = schedule_first_message(rank, at[r].next),
                         end = rank->actions[at[r].next].messages_before;
            for (size_t i = first; i < end; i++) {
                const struct schedule_message *m = &rank->messages[i];
                /* The peer may have gone on only after this one. */
                if (!done[r][i] && at[m->peer].next <= s->ranks[m->peer].count &&
                    is_met(s, at, r, m)) {
                    done[r][i] = moved = true;
                    const struct schedule_rank *peer = &s->ranks[m->peer];
                    for (size_t k = 0; k < peer->num_messages; k++) {
                        const struct schedule_message *o = &peer->messages[k];
                        if (o->sends != m->sends && o->peer == r &&
                            o->is_gradient == m->is_gradient && o->micro_batch == m->micro_batch &&
                            !done[m->peer][k] &&
                            bit_of(s, o) / s->shape.chunks == bit_of(s, m) / s->shape.chunks) {
                            done[m->peer][k] = true;
                            break;
                        }
                    }
                }
                all &= done[r][i];
            }
            if (all) at[r].next++, moved = true;
        }
    }
    for (unsigned r = 0; r < p; r++) {
        assert_int_equal(at[r].next, s->ranks[r].count + 1);
        free(done[r]);
    }
    free(done);
    free(at);
}

/* Each action once; forward before backward; what it needs has come before it. */
static void check_rank(const struct schedule *s, unsigned rank)
{
    const struct schedule_rank *r = &s->ranks[rank];
    const uint64_t m = s->shape.micro_batches;
    const unsigned v = s->shape.chunks, passes = s->shape.forward_only ? 1 : 2;
    bool *acted = must_calloc(2 * v * m, sizeof *acted), *came = must_calloc(2 * v * m, 1);
    assert_int_equal(r->count, passes * v * m);
    for (size_t k = 0; k < r->count; k++) {
        const struct schedule_action *a = &r->actions[k];
        const uint64_t at = (a->is_backward ? v : 0) * m + a->chunk * m + a->micro_batch;
        for (size_t i = schedule_first_message(r, k); i < a->messages_before; i++) {
            const struct schedule_message *x = &r->messages[i];
            const uint64_t what = (x->is_gradient ? v : 0) * m + x->chunk * m + x->micro_batch;
            if (x->sends)
                assert_true(acted[what]);
            else
                came[what] = true;
        }
        const bool needs = a->is_backward ? rank + 1 < s->shape.ranks || a->chunk + 1 < v
                                          : rank > 0 || a->chunk > 0;
        assert_true(came[at] == needs && !acted[at]);
        if (a->is_backward) assert_true(acted[at - v * m]);
        acted[at] = true;
    }
    free(acted);
    free(came);
}

static void check_slots(const struct schedule *s)
{
    const unsigned p = s->shape.ranks;
    for (unsigned r = 0; r < p; r++)
        for (unsigned c = 0; c < s->shape.chunks; c++) {
            const struct schedule_depth d = schedule_depth(s, r, c);
            assert_true(d.computed >= 1 && d.with_inputs >= d.computed);
            if (s->shape.kind == SCHEDULE_1F1B && !s->shape.forward_only) {
                const uint64_t most =
                    p - r < s->shape.micro_batches ? p - r : s->shape.micro_batches;
                assert_int_equal(d.computed, most);
            }
        }
}

/* As deep as with fewer whole groups of micro-batches. */
static void check_depths(const struct schedule *s)
{
    const struct schedule_shape shape = schedule_shortened(&s->shape);
    struct schedule few;
    assert_true(shape.micro_batches < s->shape.micro_batches);
    assert_ok(schedule_make(&few, &shape, &err));
    for (unsigned r = 0; r < s->shape.ranks; r++)
        for (unsigned c = 0; c < s->shape.chunks; c++) {
            const struct schedule_depth d = schedule_depth(&few, r, c),
                                        all = schedule_depth(s, r, c);
            assert_true(d.computed == all.computed && d.with_inputs == all.with_inputs);
        }
    schedule_release(&few);
}

static void check_all(enum schedule_kind kind, unsigned p, unsigned v, unsigned group, bool forward)
{
    uint64_t deepest[8] = {0};
    for (unsigned m = 1; m <= 7 * p + 8; m++) {
        const struct schedule_shape shape = {.kind = kind,
                                             .ranks = p,
                                             .chunks = v,
                                             .micro_batches = m,
                                             .group = group,
                                             .forward_only = forward};
        struct schedule s;
        if (schedule_make(&s, &shape, &err)) {
            assert_int_equal(err.code, ERR_USAGE);
            schedule_release(&s);
            continue;
        }
        walk(&s);
        for (unsigned r = 0; r < p; r++)
            check_rank(&s, r);
        check_slots(&s);
        if (m > 5 * s.shape.group) check_depths(&s);
        for (unsigned r = 0; r < p && kind != SCHEDULE_INTERLEAVED;
             r++) { /* never less with more */
            const struct schedule_depth d = schedule_depth(&s, r, 0);
            assert_true(d.with_inputs >= deepest[r]);
            deepest[r] = d.with_inputs;
        }
        schedule_release(&s);
    }
}

static void no_rank_waits_in_a_ring(void **state)
{
    (void)state;
    for (unsigned p = 2; p <= 5; p++)
        for (unsigned forward = 0; forward < 2; forward++) {
            check_all(SCHEDULE_1F1B, p, 1, 0, forward);
            for (unsigned v = 1; v <= 3; v++)
                check_all(SCHEDULE_ONE_BY_ONE, p, v, 0, forward);
            for (unsigned v = 2; v <= 4; v++)
                for (unsigned group = p; group <= p + 2; group++)
                    check_all(SCHEDULE_INTERLEAVED, p, v, group, forward);
        }
}

static void what_a_kind_cannot_have_is_refused(void **state)
{
    static const struct {
        struct schedule_shape shape;
        const char *message;
    } cases[] = {
        {{SCHEDULE_1F1B, 2, 2, 4, 0, false}, "schedule 1f1b: 2 chunks on a rank, expected 1"},
        {{SCHEDULE_INTERLEAVED, 4, 2, 6, 0, false},
         "schedule interleaved: 6 micro-batches in groups of 4 leave 2, fewer than the 4 pipeline "
         "stages"},
        {{SCHEDULE_INTERLEAVED, 4, 2, 8, 3, false},
         "schedule interleaved: groups of 3 micro-batches, fewer than the 4 pipeline stages"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct schedule s;
        assert_int_equal(schedule_make(&s, &cases[i].shape, &err), ERR_USAGE);
        assert_string_equal(err.text, cases[i].message);
        schedule_release(&s);
    }
}

static void a_timeline_shows_all_actions(void **state)
{
    struct schedule s;
    struct strbuf text = {0};
    (void)state;
    make(&s, SCHEDULE_1F1B, 2, 1, 3);
    schedule_print(&s, 80, &text);
    assert_string_equal(text.data, "  stage 0   0 1     [0] 2 [1]   [2]\n"
                                   "  stage 1     0 [0] 1 [1] 2 [2]\n"
                                   "  (0: forward of micro-batch 0; [0]: backward, twice as long; "
                                   "blank: waiting)\n");
    strbuf_release(&text);
    schedule_release(&s);
}

static void a_timeline_is_cut_at_its_width(void **state)
{
    struct schedule s;
    struct strbuf text = {0};
    unsigned cut = 0;
    (void)state;
    make(&s, SCHEDULE_1F1B, 18, 1, 40);
    schedule_print(&s, 100, &text);
    for (char *line = text.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        assert_true(end - line <= 100);
        cut += end[-1] == '.';
    }
    assert_int_equal(cut, 18);
    assert_non_null(strstr(text.data, "blank: waiting)\n"));
    strbuf_release(&text);
    schedule_release(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_are_those_of_megatron),
        cmocka_unit_test(bubbles_are_those_of_the_formulas),
        cmocka_unit_test(no_rank_waits_in_a_ring),
        cmocka_unit_test(what_a_kind_cannot_have_is_refused),
        cmocka_unit_test(a_timeline_shows_all_actions),
        cmocka_unit_test(a_timeline_is_cut_at_its_width),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
