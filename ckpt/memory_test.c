/* memory_test.c - from files into memory and back, and files that several ranks
 * write together from their memory. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/digest.h"
#include "ckpt/load.h"
#include "ckpt/testing_output.h"

enum { MAX_RANKS = 4, MAX_PIECES = 16 };

/* ---- files, memory, files ---- */

/* Reads all tensors of a source into arrays, which become another source. */
static void load_all(struct source *s, struct source *loaded)
{
    static struct load_target targets[SOURCE_TENSORS];
    struct load_result r;
    struct error err = {0};
    const struct load_options o = {.threads = 2, .progress = PROGRESS_NONE};
    for (size_t i = 0; i < s->catalog.num_tensors; i++) {
        const struct tensor *t = &s->catalog.tensors[i];
        uint64_t bytes = dtype_run_bytes(t->dtype, t->numel);
        struct tensor *u = source_new_tensor(loaded, t->dtype, t->num_dims, t->shape);
        void *memory = arena_alloc(&loaded->arena, bytes);
        const struct piece piece = {.origin = ORIGIN_MEMORY, .dtype = t->dtype, .memory = memory};
        const struct pair pair = pair_whole(0, 0, t->numel);
        targets[i] = (struct load_target){t, pair, t->dtype, memory};
        if (t->numel) tensor_add_piece(&loaded->arena, u, &piece, &pair);
        memcpy(loaded->values[i], s->values[i], bytes);
    }
    assert_ok(load_run(&s->catalog, targets, s->catalog.num_tensors, &o, &r, &err));
}

static void from_files_into_memory_and_back_is_as_worked_out(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int n = 0; n < test_rounds(40); n++) {
        static struct output o;
        struct source s, loaded;
        struct error err = {0};
        struct executor_result result;
        const struct executor_options options = {.threads = 2, .progress = PROGRESS_NONE};
        source_init(&s, &seed);
        source_init(&loaded, &seed);
        for (unsigned i = 0; i < 8; i++)
            (void)source_add_random(&s, n < 36 ? 400 : 400000);
        source_write(&s);
        load_all(&s, &loaded);
        output_init(&o, &loaded, 1 + test_below(&seed, OUTPUT_FILES));
        for (size_t i = 0; i < loaded.catalog.num_tensors; i++)
            add_target(&o, &loaded.catalog.tensors[i]);
        place_segments(&o);
        make_images(&o);
        assert_ok(plan_finish(&o.plan, &err));
        assert_ok(executor_run(&o.plan, o.folder, &options, &result, &err));
        check_output(&o, &result);
        assert_int_equal(result.read_bytes, 0);
        output_release(&o);
        source_release(&loaded);
        source_release(&s);
    }
}

/* ---- ranks ---- */

/* A source whose pieces ranks hold, and a plan of theirs. */
struct held {
    struct source source;
    struct output output;
    unsigned num_ranks;
    const void *memory[SOURCE_TENSORS][MAX_PIECES]; /* [tensor][piece] the memory of all pieces */
    const char *journals[MAX_RANKS];
    struct executor_options options;
};

static bool is_memory(const struct piece *piece)
{
    return piece->origin == ORIGIN_MEMORY;
}

static void held_init(struct held *h, uint64_t *seed, uint64_t elements, unsigned num_tensors)
{
    struct error err = {0};
    struct source *s = &h->source;
    h->num_ranks = 2 + (unsigned)test_below(seed, MAX_RANKS - 1);
    source_init(s, seed);
    s->in_memory = 6;
    s->num_holders = h->num_ranks;
    for (unsigned i = 0; i < num_tensors; i++)
        (void)source_add_random(s, elements);
    source_write(s);
    output_init(&h->output, s, 1 + test_below(seed, OUTPUT_FILES));
    for (size_t i = 0; i < s->catalog.num_tensors; i++) {
        const struct tensor *t = &s->catalog.tensors[i];
        assert_true(t->num_pieces <= MAX_PIECES);
        for (size_t k = 0; k < t->num_pieces; k++)
            h->memory[i][k] = is_memory(&t->pieces[k]) ? t->pieces[k].memory : NULL;
        add_target(&h->output, t);
    }
    place_segments(&h->output);
    make_images(&h->output);
    assert_ok(plan_finish(&h->output.plan, &err));
    plan_split(&h->output.plan, h->num_ranks);
    for (unsigned r = 0; r < h->num_ranks; r++)
        h->journals[r] = arena_printf(&s->arena, "%s/j-%u", s->folder, r);
    h->options = (struct executor_options){.threads = 1 + (unsigned)test_below(seed, 3),
                                           .fsync = test_below(seed, 60) == 0,
                                           .digests = true,
                                           .num_ranks = h->num_ranks,
                                           .journal_bytes = 1,
                                           .progress = PROGRESS_NONE};
}

static void held_release(struct held *h)
{
    output_release(&h->output);
    source_release(&h->source);
}

/* Makes h what it is in the process of a rank, which does not know the memory
 * of others. */
static struct executor_options be_rank(struct held *h, unsigned rank)
{
    struct executor_options o = h->options;
    for (size_t i = 0; i < h->source.catalog.num_tensors; i++) {
        struct tensor *t = &h->source.catalog.tensors[i];
        for (size_t k = 0; k < t->num_pieces; k++)
            if (is_memory(&t->pieces[k]))
                t->pieces[k].memory = t->pieces[k].holder == rank ? h->memory[i][k] : NULL;
    }
    o.rank = rank;
    o.journal_path = h->journals[rank];
    o.copies = output_results(&h->output);
    return o;
}

static void run_rank(struct held *h, unsigned rank, bool resume, struct executor_result *result)
{
    struct error err = {0};
    struct executor_options o = be_rank(h, rank);
    o.resume = resume;
    assert_ok(executor_run(&h->output.plan, h->output.folder, &o, result, &err));
}

static void check_sums(const struct held *h, const struct copy_result *results)
{
    const struct plan *p = &h->output.plan;
    for (size_t i = 0; i < p->num_copies; i++) {
        const struct tensor *t = p->copies[i].source;
        size_t k = (size_t)(t - h->source.catalog.tensors);
        enum dtype to = p->segments[p->copies[i].pieces[0].segment].dtype;
        struct digest read = {{0}}, written = {{0}};
        void *cast = malloc(dtype_run_bytes(to, t->numel) + 1);
        (void)cast_elements(cast, to, h->source.values[k], t->dtype, t->numel);
        digest_add_elements(&read, t->dtype, h->source.values[k], t->numel, 0);
        digest_add_elements(&written, to, cast, t->numel, 0);
        free(cast);
        assert_memory_equal(&results[i].read, &read, sizeof read);
        assert_memory_equal(&results[i].written, &written, sizeof written);
        assert_int_equal(results[i].non_finite, h->source.non_finite[k]);
    }
}

static void join_and_check(struct held *h, struct executor_result *result)
{
    struct error err = {0};
    struct executor_options o = be_rank(h, 0);
    assert_ok(executor_join(&h->output.plan, h->output.folder, &o, h->journals, result, &err));
    check_sums(h, o.copies);
    for (size_t i = 0; i < h->output.plan.num_files; i++)
        check_file(&h->output, i);
}

static void run_in_order(uint64_t *seed, uint64_t elements, unsigned num_tensors, bool backwards)
{
    static struct held h;
    struct executor_result result;
    uint64_t written = 0;
    held_init(&h, seed, elements, num_tensors);
    for (unsigned i = 0; i < h.num_ranks; i++) {
        run_rank(&h, backwards ? h.num_ranks - 1 - i : i, false, &result);
        written += result.written_bytes;
    }
    result.written_bytes = written;
    join_and_check(&h, &result);
    check_output(&h.output, &result); /* each byte was written once, and each file finished */
    held_release(&h);
}

static void ranks_fill_files_together_in_any_order(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < test_rounds(60); i++)
        run_in_order(&seed, 400, 10, i % 2);
    for (int i = 0; i < test_rounds(4); i++)
        run_in_order(&seed, 400000, 5, i % 2);
}

/* Dies when it has noted some tasks. */
static enum status die_in_time(void *asks_left, struct error *err)
{
    (void)err;
    if (--*(int *)asks_left < 0) raise(SIGKILL);
    return OK;
}

static pid_t start_rank(struct held *h, unsigned rank, bool resume, int dies_after)
{
    pid_t child = fork();
    if (child) return child;
    struct error err;
    struct executor_result result;
    struct executor_options o = be_rank(h, rank);
    o.resume = resume;
    o.is_ours = dies_after < 0 ? NULL : die_in_time;
    o.asking_context = &dies_after;
    enum status st = executor_run(&h->output.plan, h->output.folder, &o, &result, &err);
    _exit(st || h->output.wrong_crcs);
}

static bool has_ended_well(pid_t child)
{
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* All at once, as processes; one of them is killed and continues. */
static void a_rank_that_was_killed_continues(void **state)
{
    (void)state;
    uint64_t seed = test_seed();
    unsigned killed = 0;
    for (int n = 0; n < 20; n++) {
        static struct held h;
        struct executor_result result = {0};
        pid_t children[MAX_RANKS];
        held_init(&h, &seed, n % 4 ? 400 : 100000, 10);
        unsigned victim = (unsigned)test_below(&seed, h.num_ranks);
        for (unsigned r = 0; r < h.num_ranks; r++)
            children[r] = start_rank(&h, r, false, r == victim ? (int)test_below(&seed, 8) : -1);
        for (unsigned r = 0; r < h.num_ranks; r++) {
            bool well = has_ended_well(children[r]);
            assert_true(well || r == victim);
            killed += !well;
        }
        assert_true(has_ended_well(start_rank(&h, victim, true, -1)));
        join_and_check(&h, &result);
        assert_int_equal(h.output.wrong_crcs, 0);
        held_release(&h);
    }
    assert_true(killed > 0);
}

/* ---- what else there is ---- */

static uint64_t test_state;

/* A matrix of bytes of which each of two ranks holds half the columns, and its
 * file. */
static void halves_init(struct held *h, uint64_t side, bool wants_crc)
{
    struct error err = {0};
    const uint64_t shape[] = {side, side};
    test_state = test_seed();
    source_init(&h->source, &test_state);
    struct tensor *t = source_new_tensor(&h->source, DT_U8, 2, shape);
    fill_random(&test_state, h->source.values[0], t->numel);
    for (unsigned r = 0; r < 2; r++) {
        struct piece piece = {.origin = ORIGIN_MEMORY, .dtype = DT_U8, .holder = r};
        const uint64_t start[] = {0, r * side / 2}, extent[] = {side, side / 2};
        char *memory = arena_alloc(&h->source.arena, t->numel / 2);
        for (uint64_t row = 0; row < side; row++)
            memcpy(memory + row * side / 2, h->source.values[0] + row * side + start[1], side / 2);
        piece.memory = h->memory[0][r] = memory;
        struct pair pair;
        assert_true(pair_of_box(&pair, 2, shape, start, extent, 0, NULL));
        tensor_add_piece(&h->source.arena, t, &piece, &pair);
        h->journals[r] = arena_printf(&h->source.arena, "%s/j-%u", h->source.folder, r);
    }
    output_init(&h->output, &h->source, 1);
    struct box x = box_of_tensor(t);
    row_major(&x, 1);
    add_fill(&h->output, t, plan_add_segment(&h->output.plan, 0, DT_U8, t->numel, wants_crc), &x,
             0);
    h->output.plan.files[0].size_bytes = t->numel;
    assert_ok(plan_finish(&h->output.plan, &err));
    plan_split(&h->output.plan, h->num_ranks = 2);
    h->options = (struct executor_options){
        .threads = 2, .digests = true, .num_ranks = 2, .progress = PROGRESS_NONE};
}

/* More than TASK_BYTES: tasks end within what a rank holds. */
static void large_tensors_are_held_in_many_tasks(void **state)
{
    (void)state;
    enum { SIDE = 9000 };
    static struct held h;
    struct executor_result result = {0};
    struct strbuf bytes = {0};
    struct error err;
    halves_init(&h, SIDE, true);
    assert_true(h.output.plan.files[0].shared);
    run_rank(&h, 1, false, &result);
    assert_int_equal(result.written_bytes, (uint64_t)SIDE * SIDE / 2);
    run_rank(&h, 0, false, &result);
    struct executor_options o = be_rank(&h, 0);
    assert_ok(executor_join(&h.output.plan, h.output.folder, &o, h.journals, &result, &err));
    check_sums(&h, o.copies);
    assert_ok(file_read_all(path_join(&h.source.arena, h.output.folder, "file-0"), UINT64_MAX,
                            &bytes, &err));
    assert_int_equal(bytes.length, SIDE * SIDE);
    assert_memory_equal(bytes.data, h.source.values[0], SIDE * SIDE);
    strbuf_release(&bytes);
    held_release(&h);
}

static void what_a_rank_has_not_written_is_missed(void **state)
{
    (void)state;
    for (int wants_crc = 0; wants_crc < 2; wants_crc++) {
        static struct held h;
        struct executor_result result = {0};
        struct error err;
        halves_init(&h, 100, wants_crc);
        run_rank(&h, 0, false, &result);
        struct executor_options o = be_rank(&h, 0);
        assert_fails(executor_join(&h.output.plan, h.output.folder, &o, h.journals, &result, &err),
                     ERR_RANK, "file-0: no rank wrote 5000 bytes of a segment");
        assert_int_equal(h.output.finished[0], 0);
        held_release(&h);
    }
}

static void without_the_rank_that_holds_it_a_file_is_not_begun(void **state)
{
    (void)state;
    static struct held h;
    struct executor_result result;
    struct error err;
    halves_init(&h, 100, false);
    struct executor_options o = be_rank(&h, 0);
    o.num_ranks = 0;
    assert_fails(executor_run(&h.output.plan, h.output.folder, &o, &result, &err), ERR_OURS,
                 "tensor.0: has elements that another rank holds");
    for (size_t i = 0; i < 2; i++)
        h.source.catalog.tensors[0].pieces[i].holder = 3;
    assert_ok(plan_finish(&h.output.plan, &err));
    o.num_ranks = 3;
    assert_fails(executor_run(&h.output.plan, h.output.folder, &o, &result, &err), ERR_OURS,
                 "tensor.0: has elements that another rank holds");
    h.source.catalog.tensors[0].pieces[0].holder = 0; /* of a file that is shared */
    assert_ok(plan_finish(&h.output.plan, &err));
    assert_fails(executor_run(&h.output.plan, h.output.folder, &o, &result, &err), ERR_OURS,
                 "tensor.0: has elements that another rank holds");
    assert_false(path_exists(h.output.folder));
    held_release(&h);
}

static void what_another_rank_holds_cannot_be_read(void **state)
{
    (void)state;
    static struct held h;
    struct load_result r;
    struct error err;
    char memory[100 * 100];
    halves_init(&h, 100, false);
    (void)be_rank(&h, 0);
    const struct load_options o = {.threads = 1, .progress = PROGRESS_NONE};
    const struct tensor *t = &h.source.catalog.tensors[0];
    const struct load_target target = {t, pair_whole(0, 0, t->numel), DT_U8, memory};
    assert_fails(load_run(&h.source.catalog, &target, 1, &o, &r, &err), ERR_OURS,
                 "tensor.0: its elements are in the memory of rank 1");
    held_release(&h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(from_files_into_memory_and_back_is_as_worked_out),
        cmocka_unit_test(ranks_fill_files_together_in_any_order),
        cmocka_unit_test(a_rank_that_was_killed_continues),
        cmocka_unit_test(large_tensors_are_held_in_many_tasks),
        cmocka_unit_test(what_a_rank_has_not_written_is_missed),
        cmocka_unit_test(without_the_rank_that_holds_it_a_file_is_not_begun),
        cmocka_unit_test(what_another_rank_holds_cannot_be_read),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
