/* save_test.c - as a trainer does: ranks load their shards of a Hugging Face
 * model into memory and save them together as one Hugging Face folder. Its
 * bytes equal those of a conversion of the files. */
#include "ckpt/executor.h"
#include "ckpt/load.h"
#include "convert/format.h"
#include "convert/map/testing_models.h"

enum { RANKS = 2, FILES = 3, PADDED_VOCAB = 12 };

/* One rank's process: its own memory, and the plan that all ranks make. */
struct saving {
    struct checkpoint held;
    struct target target;
};

static const struct target_options to_hf = {.format = &format_hf, .max_shard_bytes = 400};

/* The elements of a parameter that a rank holds: its shard of a split
 * parameter, padded as Megatron does; whole experts, dealt in turn; and on rank
 * 0 all of a replicated parameter. */
static void shards_of(const struct checkpoint *c, const struct tensor *t, unsigned rank,
                      struct param_parts *out)
{
    struct param p;
    uint64_t shape[MAX_AXES];
    assert_true(param_find(c->params, t->name, &p));
    const bool of_expert = param_of_expert(p.spec), whole = p.spec->split < 0 || of_expert;
    param_padded_shape(p.spec, t->num_dims, t->shape, whole ? t->shape[0] : PADDED_VOCAB, shape);
    assert_ok(param_shard(p.spec, t->name, t->num_dims, shape, whole ? 0 : rank, whole ? 1 : RANKS,
                          PARAM_STORED, out, &err));
    if (whole && rank != (of_expert ? p.expert % RANKS : 0)) out->count = 0;
}

/* Context that adds the elements of a tensor that `rank` holds to x, and loads
 * them if this process is that rank. */
struct holding {
    struct saving *x;
    const struct checkpoint *c;
    const struct tensor *from;
    struct tensor *to;
    unsigned rank;
    void *memory; /* NULL: the rank is another process */
};

static enum status hold_part(void *context, const struct pair *part, struct error *e)
{
    const struct holding *h = context;
    const struct load_options o = {.threads = 1, .progress = PROGRESS_NONE};
    const struct load_target target = {h->from, *part, h->from->dtype, h->memory};
    const struct piece piece = {
        .origin = ORIGIN_MEMORY, .dtype = h->from->dtype, .memory = h->memory, .holder = h->rank};
    const struct pair pair = *part;
    struct load_result r;
    tensor_add_piece(&h->x->held.arena, h->to, &piece, &pair);
    return h->memory ? load_run(&h->c->catalog, &target, 1, &o, &r, e) : OK;
}

static void hold(struct holding h, bool here)
{
    struct param_parts parts;
    shards_of(h.c, h.from, h.rank, &parts);
    if (here) h.memory = arena_alloc(&scratch, 2 * h.from->numel * dtype_bytes(h.from->dtype));
    for (unsigned i = 0; i < parts.count; i++)
        assert_ok(pair_clip(&parts.pairs[i], 0, h.from->numel, h.from->name, hold_part, &h, &err));
}

static void saving_init(struct saving *x, const struct checkpoint *c, unsigned rank)
{
    checkpoint_init(&x->held, "memory");
    x->held.config = c->config;
    x->held.params = c->params;
    x->held.family = c->family;
    x->held.format = c->format;
    x->held.hf_folder = c->hf_folder;
    for (size_t i = 0; i < c->catalog.num_tensors; i++) {
        const struct tensor *t = &c->catalog.tensors[i];
        struct tensor *held;
        assert_ok(
            catalog_add(&x->held.catalog, t->name, t->dtype, t->num_dims, t->shape, &held, &err));
        for (unsigned r = 0; r < RANKS; r++)
            hold((struct holding){x, c, t, held, r, NULL}, r == rank);
    }
    assert_ok(target_plan(&x->target, &to_hf, &x->held, &maps, &err));
    plan_split(&x->target.plan, RANKS);
}

static void saving_release(struct saving *x)
{
    target_release(&x->target);
    checkpoint_release(&x->held);
}

static void check_same_files(const struct plan *p, const char *a, const char *b)
{
    assert_true(p->num_files >= FILES);
    for (size_t i = 0; i < p->num_files; i++) {
        struct strbuf x = {0}, y = {0};
        assert_ok(file_read_all(path_join(&scratch, a, p->files[i].path), 1 << 20, &x, &err));
        assert_ok(file_read_all(path_join(&scratch, b, p->files[i].path), 1 << 20, &y, &err));
        if (x.length != y.length || memcmp(x.data, y.data, x.length))
            fail_msg("%s: not what the conversion writes", p->files[i].path);
        strbuf_release(&x);
        strbuf_release(&y);
    }
}

/* The same plan with the files as origin, written by one process. */
static void convert_files(const struct checkpoint *c, const char *folder)
{
    const struct executor_options o = {.threads = 1, .progress = PROGRESS_NONE};
    struct executor_result r;
    struct target t;
    assert_ok(target_plan(&t, &to_hf, c, &maps, &err));
    assert_ok(executor_run(&t.plan, folder, &o, &r, &err));
    target_release(&t);
}

/* loses: a file that both ranks have written is removed before it is completed. */
static void save_and_compare(const char *name, const char *members, bool loses)
{
    const struct source_options none = {0};
    const char *model = make(name, members, all_bf16), *files = in_scratch("files"),
               *saved = in_scratch("saved");
    const char *journals[RANKS];
    struct saving ranks[RANKS];
    struct executor_options o = {
        .threads = 2, .num_ranks = RANKS, .digests = true, .progress = PROGRESS_NONE};
    struct executor_result r;
    struct checkpoint c;
    const char *shared = NULL;
    assert_ok(source_open(&c, model, &none, &maps, &err));
    convert_files(&c, files);
    for (unsigned k = RANKS; k-- > 0;) { /* rank 0 is not the first */
        saving_init(&ranks[k], &c, k);
        o.rank = k;
        o.journal_path = journals[k] = arena_printf(&scratch, "%s-journal-%u", saved, k);
        assert_ok(executor_run(&ranks[k].target.plan, saved, &o, &r, &err));
        assert_true(r.written_bytes > 0);
    }
    const struct plan *p = &ranks[0].target.plan;
    for (size_t i = 0; i < p->num_files; i++)
        if (p->files[i].shared) shared = path_join(&scratch, saved, p->files[i].path);
    assert_non_null(shared);
    if (loses) {
        assert_ok(path_remove(shared, &err));
        assert_fails(executor_join(p, saved, &o, journals, &r, &err), ERR_RANK, "is gone");
    } else {
        assert_ok(executor_join(p, saved, &o, journals, &r, &err));
        check_same_files(p, files, saved);
    }
    for (unsigned k = 0; k < RANKS; k++)
        saving_release(&ranks[k]);
    checkpoint_release(&c);
}

static void a_dense_model_is_saved_by_ranks_together(void **state)
{
    (void)state;
    save_and_compare("llama", LLAMA, false);
}

/* The experts of a layer are on different ranks. */
static void experts_of_several_ranks_are_saved_together(void **state)
{
    (void)state;
    save_and_compare("mixtral", MIXTRAL, false);
}

static void a_file_that_is_gone_is_not_made_anew(void **state)
{
    (void)state;
    save_and_compare("llama", LLAMA, true);
}

/* Elements that no rank has written are an error. */
static void a_rank_that_has_not_written_is_missed(void **state)
{
    (void)state;
    const struct source_options none = {0};
    const char *saved = in_scratch("half"), *journal = in_scratch("half-journal");
    const char *journals[RANKS] = {journal, in_scratch("no-journal")};
    struct executor_options o = {.threads = 1,
                                 .num_ranks = RANKS,
                                 .digests = true,
                                 .journal_path = journal,
                                 .progress = PROGRESS_NONE};
    struct executor_result r;
    struct checkpoint c;
    struct saving rank;
    assert_ok(source_open(&c, make("llama", LLAMA, all_bf16), &none, &maps, &err));
    saving_init(&rank, &c, 0);
    assert_ok(executor_run(&rank.target.plan, saved, &o, &r, &err));
    assert_int_not_equal(executor_join(&rank.target.plan, saved, &o, journals, &r, &err), OK);
    saving_release(&rank);
    checkpoint_release(&c);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, scratch_begin, scratch_end)
    const struct CMUnitTest tests[] = {
        TEST(a_dense_model_is_saved_by_ranks_together),
        TEST(experts_of_several_ranks_are_saved_together),
        TEST(a_file_that_is_gone_is_not_made_anew),
        TEST(a_rank_that_has_not_written_is_missed),
    };
    return cmocka_run_group_tests(tests, load_maps, release_maps);
}
