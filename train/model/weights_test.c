/* Tensors digested in the memory of ranks, beside digests of the files they
 * come from. */
#include "train/model/weights.h"

#include "common/count.h"
#include "convert/open.h"
#include "tests/testing.h"

static struct error err;
static const struct source_options native_source = {0};

struct seen {
    struct tensor_digest items[256]; /* names and shapes are the catalog's */
    size_t count;
};

static enum status take(void *context, const struct tensor_digest *d, struct error *e)
{
    struct seen *seen = context;
    (void)e;
    assert_true(seen->count < COUNT(seen->items));
    seen->items[seen->count++] = *d;
    return OK;
}

/* Changes a rank's part between loading and digesting. */
typedef void spoil_fn(struct model *m, unsigned rank);

static struct parameter *parameter_of(struct model *m, const char *name)
{
    size_t i;
    return map_get(&m->parameters.names, name, &i) ? &m->parameters.items[i] : NULL;
}

static enum status digest_loaded(struct model *m, struct pass *p, spoil_fn *spoil,
                                 struct seen *seen, struct error *e)
{
    const struct batch b = {.num_sequences = 2, .length = 8};
    const struct pass_options o = {.logits = true, .trace_layer = -1};
    const struct load_options load = {.threads = 1, .progress = PROGRESS_NONE};
    TRY(pass_make(p, m, &b, &o, e));
    TRY(model_load(m, &load, e));
    if (spoil) spoil(m, m->groups.of[GROUP_WORLD].index);
    return weights_digest(m, take, seen, e);
}

/* As the engine does it; ranks other than 0 end in comm_close. */
static enum status digest_ranks(struct checkpoint *c, const struct model_options *o,
                                spoil_fn *spoil, struct seen *seen)
{
    struct comm comm;
    struct model m = {0};
    struct pass p = {0};
    struct group_sizes sizes = model_group_sizes(o);
    seen->count = 0;
    TRY(comm_local_open(&comm, groups_world_size(&sizes), &err));
    enum status st = model_open(&m, c, o, &comm, &err);
    if (!st) st = digest_loaded(&m, &p, spoil, seen, &err);
    if (st) comm_fail(&comm, &err);
    pass_release(&p);
    model_close(&m);
    return comm_close(&comm, st, &err);
}

static void open_model(struct opened *o, const char *model)
{
    char path[128];
    snprintf(path, sizeof path, "tests/golden/hf/%s", model);
    assert_ok(opened_open(o, path, &native_source, NULL, false, true, &err));
}

static bool same_digest(const struct tensor_digest *a, const struct tensor_digest *b)
{
    return a->dtype == b->dtype && a->num_dims == b->num_dims &&
           memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0 &&
           memcmp(&a->sums, &b->sums, sizeof a->sums) == 0;
}

static size_t index_of(const struct seen *seen, const char *name)
{
    size_t i = 0;
    while (i < seen->count && strcmp(seen->items[i].name, name) != 0)
        i++;
    return i;
}

static void compare_with_files(const struct checkpoint *c, const struct seen *seen,
                               const char *what)
{
    const struct digest_options o = {.threads = 1, .progress = PROGRESS_NONE};
    struct tensor_digest *stored;
    struct arena a;
    size_t count;
    arena_init(&a);
    assert_ok(digest_catalog(&c->catalog, &o, &a, &stored, &count, &err));
    assert_int_equal(seen->count, count);
    for (size_t i = 0; i < count; i++) {
        size_t k = index_of(seen, stored[i].name);
        if (k == count || !same_digest(&seen->items[k], &stored[i]))
            fail_msg("%s: %s is not what the file has", what, stored[i].name);
    }
    arena_release(&a);
}

// clang-format off
static const struct {
    const char *model;
    enum elem_type elem; /* the stored dtype */
    struct model_options options;
} cases[] = {
    {"gpt2",      ELEM_F32,  {0}},
    {"gpt2",      ELEM_F32,  {.layout = {.tp = 2, .pp = 2}}}, /* tied embeddings, biases */
    {"gpt2",      ELEM_F32,  {.layout = {.cp = 2, .dp = 2}}},
    {"llama3.1",  ELEM_BF16, {.layout = {.tp = 2}, .sequence_parallel = true}},
    {"llama3.2",  ELEM_BF16, {.layout = {.tp = 2, .pp = 3, .dp = 2}}},
    {"llama3.2",  ELEM_BF16, {.layout = {.pp = 3, .cp = 2}}},
    {"llama3.2",  ELEM_BF16, {.layout = {.tp = 4}}}, /* two ranks share a key and value */
    {"qwen2.5",   ELEM_BF16, {.layout = {.tp = 4, .dp = 2}}}, /* with biases */
    {"mistral",   ELEM_BF16, {.layout = {.tp = 2, .pp = 3}}},
    {"qwen2.5",   ELEM_BF16, {.layout = {.tp = 2}}},
    {"qwen3",     ELEM_BF16, {.layout = {.tp = 2, .dp = 2}}},
    {"mixtral",   ELEM_BF16, {.layout = {.tp = 1, .ep = 2}}},
    {"mixtral",   ELEM_BF16, {.layout = {.tp = 2, .ep = 2, .etp = 2}}},
    {"qwen3-moe", ELEM_BF16, {.layout = {.tp = 1, .ep = 4, .pp = 2}}},
    {"qwen3-moe", ELEM_BF16, {.layout = {.tp = 2, .ep = 2, .etp = 1}}},
    {"qwen3-moe", ELEM_BF16, {.layout = {.tp = 2, .etp = 1, .cp = 2}}},
};
// clang-format on

static void memory_holds_what_the_file_has_at_any_layout(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct model_options o = cases[i].options;
        struct opened opened;
        struct seen seen;
        char what[64];
        snprintf(what, sizeof what, "%s, case %zu", cases[i].model, i);
        open_model(&opened, cases[i].model);
        o.elem = cases[i].elem;
        assert_ok(digest_ranks(&opened.checkpoint, &o, NULL, &seen));
        compare_with_files(&opened.checkpoint, &seen, what);
        opened_close(&opened);
    }
}

/* ---- buffers of a device ---- */

/* A device that reads a buffer when it is waited for, and not before. What was
 * read is spoiled. */
struct late {
    void *to; /* NULL: nothing is queued */
    uint64_t bytes, buffer_bytes;
};

static unsigned num_buffers, num_uploads;

static enum status late_create(struct device_buffer *out, uint64_t bytes, struct error *e)
{
    struct late *late = calloc(1, sizeof *late);
    (void)e;
    *out = (struct device_buffer){malloc(bytes), late, false};
    assert_true(out->memory && late);
    late->buffer_bytes = bytes;
    memset(out->memory, 0xFF, bytes);
    num_buffers++;
    return OK;
}

static enum status late_wait(const struct device_buffer *b, struct error *e)
{
    struct late *late = b->read;
    (void)e;
    if (!late->to) return OK;
    memcpy(late->to, b->memory, late->bytes);
    memset(b->memory, 0xFF, late->buffer_bytes);
    late->to = NULL;
    return OK;
}

static void late_free(struct device_buffer *b)
{
    if (b->read) (void)late_wait(b, NULL);
    free(b->memory);
    free(b->read);
    *b = (struct device_buffer){0};
}

static enum status late_upload(void *to, const struct device_buffer *b, uint64_t bytes,
                               struct error *e)
{
    struct late *late = b->read;
    if (late->to || bytes > late->buffer_bytes) return fail(e, ERR_OURS, "a buffer is in use");
    late->to = to;
    late->bytes = bytes;
    num_uploads++;
    return OK;
}

static const struct device_buffers late_buffers = {late_create, late_free, late_upload, late_wait};

/* The device of ranks that are forked; on a GPU, which does not come along, of
 * one rank alone. */
static enum status open_buffered(const struct device **out, struct error *e)
{
    static struct device late;
    static const struct device *gpu;
    late = cpu_device;
    late.is_host = false;
    late.buffers = &late_buffers;
    *out = &late;
    if (!test_on_gpu()) return OK;
    if (!gpu) {
        TRY(cuda_device_load(&gpu, e));
        TRY(gpu->open(0, e));
    }
    *out = gpu;
    return OK;
}

/* Memory that went through buffers, beside what is loaded into the host's. */
static enum status compare_memory(struct model *m, const struct load_options *load, struct error *e)
{
    struct parameters *p = &m->parameters;
    char *direct = calloc(1, p->bytes + 1), *own = malloc(p->bytes + 1);
    assert_true(direct && own);
    enum status st = parameters_load(p, m->checkpoint, &cpu_device, direct, load, e);
    if (!st) st = m->device->download(own, m->memory, p->bytes, e);
    for (uint64_t i = 0; i < p->bytes && !st; i++)
        if (direct[i] != own[i])
            st = fail(e, ERR_OURS, "byte %zu of %zu differs", (size_t)i, (size_t)p->bytes);
    free(direct);
    free(own);
    return st;
}

static enum status load_and_compare(struct model *m, struct pass *p, uint64_t load_bytes,
                                    struct error *e)
{
    const struct batch b = {.num_sequences = 2, .length = 8};
    const bool has_cache = m->groups.sizes.cp == 1;
    const struct pass_options o = {.logits = true,
                                   .trace_layer = -1,
                                   .cache_rows = has_cache ? 16 : 0,
                                   .last_only = has_cache};
    const struct load_options load = {.threads = 1, .progress = PROGRESS_NONE};
    num_buffers = num_uploads = 0;
    TRY(pass_make(p, m, &b, &o, e));
    m->parameters.load_bytes = load_bytes;
    TRY(model_load(m, &load, e));
    if (!test_on_gpu() && (num_buffers != 2 || num_uploads < m->parameters.bytes / load_bytes / 2))
        return fail(e, ERR_OURS, "%u buffers, %u uploads", num_buffers, num_uploads);
    return compare_memory(m, &load, e);
}

static enum status compare_ranks(struct checkpoint *c, const struct model_options *options,
                                 uint64_t load_bytes)
{
    struct model_options o = *options;
    struct comm comm;
    struct model m = {0};
    struct pass p = {0};
    struct group_sizes sizes = model_group_sizes(&o);
    TRY(comm_local_open(&comm, groups_world_size(&sizes), &err));
    enum status st = open_buffered(&o.device, &err);
    if (!st) st = model_open(&m, c, &o, &comm, &err);
    if (!st) st = load_and_compare(&m, &p, load_bytes, &err);
    if (st) comm_fail(&comm, &err);
    pass_release(&p);
    model_close(&m);
    return comm_close(&comm, st, &err);
}

/* Buffers of 1000 bytes, which hold few parameters, and of 20000. */
static void memory_is_the_same_through_buffers_of_a_device(void **state)
{
    static const uint64_t sizes[] = {1000, 20000};
    (void)state;
    for (size_t i = 0; i < COUNT(cases) * COUNT(sizes); i++) {
        const char *model = cases[i / COUNT(sizes)].model;
        struct model_options o = cases[i / COUNT(sizes)].options;
        struct opened opened;
        if (test_on_gpu()) o.layout = (struct layout_options){0};
        open_model(&opened, model);
        o.elem = cases[i / COUNT(sizes)].elem;
        if (compare_ranks(&opened.checkpoint, &o, sizes[i % COUNT(sizes)]))
            fail_msg("%s, case %zu: %s", model, i / COUNT(sizes), err.text);
        opened_close(&opened);
    }
}

/* In another type there is nothing to compare with but another layout. */
static void casts_have_one_digest_at_any_layout(void **state)
{
    (void)state;
    for (enum elem_type elem = 0; elem < NUM_ELEM_TYPES; elem++) {
        const struct model_options one = {.elem = elem},
                                   many = {.elem = elem, .layout = {.tp = 2, .pp = 2}};
        struct opened opened;
        struct seen alone, cut;
        open_model(&opened, "llama2");
        assert_ok(digest_ranks(&opened.checkpoint, &one, NULL, &alone));
        assert_ok(digest_ranks(&opened.checkpoint, &many, NULL, &cut));
        assert_int_equal(alone.count, cut.count);
        for (size_t i = 0; i < alone.count; i++)
            assert_true(same_digest(&alone.items[i], &cut.items[i]));
        opened_close(&opened);
    }
}

/* ---- what is wrong ---- */

static const char *spoiled_name;
static unsigned spoiled_rank;

/* The last bit of one element. */
static void change_an_element(struct model *m, unsigned rank)
{
    struct parameter *x = parameter_of(m, spoiled_name);
    if (rank == spoiled_rank && x) ((char *)m->memory)[x->offset] ^= 1;
}

static void forget_a_part(struct model *m, unsigned rank)
{
    struct parameter *x = parameter_of(m, spoiled_name);
    if (rank == spoiled_rank && x) x->num_parts--;
}

static void take_a_part_twice(struct model *m, unsigned rank)
{
    struct parameter *x = parameter_of(m, spoiled_name);
    if (rank == spoiled_rank && x) x->parts[0].part.a_offset--;
}

#define QKV_NORM "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight"
#define FC1 "decoder.layers.0.mlp.linear_fc1.weight"
#define EMBEDDING "embedding.word_embeddings.weight"

static void a_copy_that_differs_is_told_with_both_ranks(void **state)
{
    (void)state;
    static const struct {
        const char *model, *parameter;
        unsigned rank;
        struct model_options options;
        const char *message;
    } wrong[] = {
        {"llama3.1", QKV_NORM, 1, {.layout = {.tp = 2}}, QKV_NORM " than rank 0"},
        {"llama3.1", FC1, 1, {.layout = {.dp = 2}}, FC1 " than rank 0"},
        {"llama3.1", FC1, 3, {.layout = {.tp = 2, .dp = 2}}, FC1 " than rank 1"},
        {"llama3.1", FC1, 2, {.layout = {.cp = 3}}, FC1 " than rank 0"},
        {"llama3.2", EMBEDDING, 2, {.layout = {.pp = 3}}, EMBEDDING " than rank 0"},
        {"llama3.2", EMBEDDING, 5, {.layout = {.tp = 2, .pp = 3}}, EMBEDDING " than rank 1"},
        {"mixtral",
         "decoder.layers.1.mlp.experts.linear_fc2.weight",
         3,
         {.layout = {.tp = 2, .ep = 2, .etp = 1, .dp = 2}},
         "experts.2.linear_fc2.weight than rank 1"},
    };
    for (size_t i = 0; i < COUNT(wrong); i++) {
        struct model_options o = wrong[i].options;
        char said[256];
        struct opened opened;
        struct seen seen;
        open_model(&opened, wrong[i].model);
        spoiled_name = wrong[i].parameter;
        spoiled_rank = wrong[i].rank;
        o.elem = ELEM_BF16;
        snprintf(said, sizeof said, "rank %u holds a different copy of ", spoiled_rank);
        assert_fails(digest_ranks(&opened.checkpoint, &o, change_an_element, &seen), ERR_RANK,
                     said);
        if (!strstr(err.text, wrong[i].message)) fail_msg("%s", err.text);
        opened_close(&opened);
    }
}

static void an_element_that_one_rank_alone_holds_changes_its_tensor(void **state)
{
    (void)state;
    const struct model_options o = {.elem = ELEM_BF16, .layout = {.tp = 2, .pp = 3}};
    struct opened opened;
    struct seen right, wrong;
    open_model(&opened, "llama3.1");
    spoiled_name = FC1;
    spoiled_rank = 1;
    assert_ok(digest_ranks(&opened.checkpoint, &o, NULL, &right));
    assert_ok(digest_ranks(&opened.checkpoint, &o, change_an_element, &wrong));
    assert_int_equal(right.count, wrong.count);
    for (size_t i = 0; i < right.count; i++)
        assert_int_equal(same_digest(&right.items[i], &wrong.items[i]),
                         strcmp(right.items[i].name, FC1) != 0);
    opened_close(&opened);
}

static void elements_on_no_rank_or_in_two_parts_are_told(void **state)
{
    (void)state;
    const struct model_options o = {.elem = ELEM_BF16, .layout = {.tp = 2}};
    struct opened opened;
    struct seen seen;
    open_model(&opened, "llama3.1");
    spoiled_name = FC1;
    spoiled_rank = 1;
    assert_fails(digest_ranks(&opened.checkpoint, &o, forget_a_part, &seen), ERR_OURS,
                 FC1 ": ranks hold 1");
    assert_fails(digest_ranks(&opened.checkpoint, &o, take_a_part_twice, &seen), ERR_OURS,
                 FC1 ": ranks hold parts that overlap");
    opened_close(&opened);
}

/* Threads do not come along when a process forks, and a rank would wait for
 * them. */
static void keep_to_one_thread(void)
{
    cpu_use_threads(1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_holds_what_the_file_has_at_any_layout),
        cmocka_unit_test(memory_is_the_same_through_buffers_of_a_device),
        cmocka_unit_test(casts_have_one_digest_at_any_layout),
        cmocka_unit_test(a_copy_that_differs_is_told_with_both_ranks),
        cmocka_unit_test(an_element_that_one_rank_alone_holds_changes_its_tensor),
        cmocka_unit_test(elements_on_no_rank_or_in_two_parts_are_told),
    };
    const struct CMUnitTest on_gpu[] = {
        cmocka_unit_test(memory_is_the_same_through_buffers_of_a_device),
    };
    keep_to_one_thread();
    return test_on_gpu() ? cmocka_run_group_tests(on_gpu, NULL, NULL)
                         : cmocka_run_group_tests(tests, NULL, NULL);
}
