#include "train/model/fit.h"

#include "convert/open.h"
#include "tests/testing.h"
#include "train/engine/memory_plan.h"

static struct error err;

/* ---- hosts of so much memory ---- */

static uint64_t host_bytes;
static bool each_has_its_own; /* a device a rank; else they share the host's memory */

static enum status made_up_memory(unsigned ranks, uint64_t *bytes, struct error *ignored)
{
    (void)ignored;
    *bytes = each_has_its_own ? host_bytes : host_bytes / ranks;
    return OK;
}

/* ---- a model at a layout ---- */

struct subject {
    struct opened opened;
    struct device device;
    struct comm comm;
    struct model model;
    struct pass pass;
    const struct pass *passes[1];
    struct fit fit;
};

static void subject_open(struct subject *x, const char *name)
{
    const struct source_options none = {0};
    /* More than what loading takes. */
    const struct batch batch = {.num_sequences = 2, .length = 4096};
    const struct pass_options pass = {.loss = true, .trace_layer = -1};
    char path[128];
    snprintf(path, sizeof path, "tests/golden/hf/%s", name);
    x->device = cpu_device;
    x->device.free_memory = made_up_memory;
    const struct model_options o = {.device = &x->device, .elem = ELEM_F32};
    assert_ok(opened_open(&x->opened, path, &none, NULL, false, true, &err));
    assert_ok(comm_local_open(&x->comm, 1, &err));
    assert_ok(model_open(&x->model, &x->opened.checkpoint, &o, &x->comm, &err));
    assert_ok(pass_make(&x->pass, &x->model, &batch, &pass, &err));
    x->passes[0] = &x->pass;
    x->fit = (struct fit){.model = &x->model, .passes = x->passes, .num_passes = 1, .threads = 1};
}

static void subject_close(struct subject *x)
{
    pass_release(&x->pass);
    model_close(&x->model);
    assert_ok(comm_close(&x->comm, OK, &err));
    opened_close(&x->opened);
}

/* Bytes of a rank of another layout, by opening it there. */
static uint64_t bytes_at(const struct subject *x, struct layout_options layout, unsigned rank)
{
    struct model m;
    struct pass p;
    struct model_options o = x->model.options;
    o.layout = layout;
    assert_ok(model_simulate(&m, x->model.checkpoint, &o, rank, &err));
    assert_ok(pass_make(&p, &m, &x->pass.batch, &x->pass.options, &err));
    const struct fit fit = {
        .model = &m, .passes = (const struct pass *[]){&p}, .num_passes = 1, .threads = 1};
    uint64_t bytes = fit_memory(&fit).device;
    pass_release(&p);
    model_close(&m);
    return bytes;
}

/* ---- tests ---- */

static const struct op_kernel *no_f16(enum elem_type elem)
{
    static const struct op_kernel none[NUM_OPS];
    return elem == ELEM_F16 ? none : cpu_ops(elem);
}

static void a_dtype_that_the_device_lacks_is_refused(void **state)
{
    struct subject x;
    struct model m;
    (void)state;
    subject_open(&x, "llama3.1");
    x.device.ops = no_f16;
    struct model_options o = x.model.options;
    assert_ok(model_simulate(&m, x.model.checkpoint, &o, 0, &err));
    model_close(&m);
    o.elem = ELEM_F16;
    assert_fails(model_simulate(&m, x.model.checkpoint, &o, 0, &err), ERR_UNSUPPORTED,
                 "device cpu has no kernels for float16");
    model_close(&m);
    subject_close(&x);
}

static void what_is_needed_is_what_is_allocated(void **state)
{
    struct subject x;
    (void)state;
    subject_open(&x, "llama2");
    const uint64_t *of_class = x.pass.chunks[0].program.bytes;
    const struct fit_memory m = fit_memory(&x.fit);
    assert_int_equal(m.parameters, x.model.parameters.bytes);
    assert_int_equal(m.passes,
                     of_class[VALUE_INPUT] + of_class[VALUE_OUTPUT] + of_class[VALUE_SCRATCH]);
    assert_true(m.loading < m.passes);
    assert_int_equal(m.device, m.parameters + m.passes + m.results);
    assert_int_equal(m.host, 0);
    assert_int_equal(bytes_at(&x, (struct layout_options){.tp = 1, .pp = 1}, 0), m.device);
    subject_close(&x);
}

static enum status no_room(void *context, uint64_t bytes, void **memory, struct error *e)
{
    (void)context, (void)bytes, (void)memory;
    return fail(e, ERR_OURS, "it is measured only");
}

/* With a separate device, the host has gathered results or buffers for loading.
 */
static void what_the_host_needs_beside_a_device_is_judged(void **state)
{
    enum { SEQUENCES = 2, LENGTH = 4096 };
    struct subject x;
    struct pass p;
    const struct pass_options logits = {.logits = true, .trace_layer = -1};
    (void)state;
    subject_open(&x, "llama2");
    const uint64_t vocab = x.model.checkpoint->config.vocab_size;
    assert_ok(pass_make(&p, &x.model, &x.pass.batch, &logits, &err));
    x.passes[0] = &p;
    const uint64_t whole = SEQUENCES * LENGTH * vocab * sizeof(float);
    const uint64_t padded = vocab % 8 ? whole : 0;
    assert_int_equal(fit_memory(&x.fit).results, padded);
    x.device.is_host = false;
    struct fit_memory m = fit_memory(&x.fit);
    assert_int_equal(m.device, m.parameters + m.passes);
    /* Downloaded, and without padding. */
    assert_int_equal(m.results, whole + padded);
    assert_int_equal(m.host, m.results > m.loading ? m.results : m.loading);
    x.fit.taking.keeps = true;
    assert_int_equal(fit_memory(&x.fit).results, 2 * whole + padded);
    x.fit.taking = (struct pass_taking){.piece_bytes = 4096};
    assert_int_equal(fit_memory(&x.fit).results, 4096 + (padded ? 4096 : 0));
    /* In two places of the process that asked, which puts them together. */
    x.fit.taking.room = no_room;
    x.fit.taking.puts_together = true;
    assert_int_equal(fit_memory(&x.fit).results, whole + 2 * 4096 + (padded ? 4096 : 0));
    pass_release(&p);
    subject_close(&x);
}

/* Sums in f32 are cast; what the program rounds is taken as it is. */
static void logits_of_two_bytes_take_half(void **state)
{
    static const enum elem_type elems[] = {ELEM_F32, ELEM_BF16};
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        struct subject x;
        struct pass p;
        struct model m;
        const struct pass_options o = {.logits = true, .trace_layer = -1, .logits_dtype = DT_BF16};
        subject_open(&x, "llama2");
        const uint64_t vocab = x.model.checkpoint->config.vocab_size;
        const uint64_t count = x.pass.batch.num_sequences * x.pass.batch.length * vocab;
        const struct model_options options = {.device = &x.device, .elem = elems[i]};
        x.device.is_host = false;
        assert_int_equal(vocab % 8, 0);
        assert_ok(model_simulate(&m, x.model.checkpoint, &options, 0, &err));
        assert_ok(pass_make(&p, &m, &x.pass.batch, &o, &err));
        assert_int_equal(p.chunks[0].program.bytes[VALUE_OUTPUT],
                         count * (i ? 2 : 4) + MEMORY_ALIGNMENT); /* and whether it is finite */
        assert_int_equal(pass_collect_bytes(&p, &(struct pass_taking){.keeps = true}),
                         count * (i ? 2 + 2 : 2 + 2 + 4));
        pass_release(&p);
        model_close(&m);
        subject_close(&x);
    }
}

/* All parameters where they fit a buffer; else two. */
static void buffers_of_loading_are_counted(void **state)
{
    struct subject x;
    (void)state;
    subject_open(&x, "llama2");
    const uint64_t direct = fit_memory(&x.fit).loading;
    x.device.is_host = false;
    assert_int_equal(fit_memory(&x.fit).loading, direct + x.model.parameters.bytes);
    x.model.parameters.load_bytes = 4096;
    assert_int_equal(fit_memory(&x.fit).loading, direct + 2 * 4096);
    subject_close(&x);
}

static void the_layout_of_the_fewest_ranks_is_found(void **state)
{
    struct subject x;
    struct fit_layout l;
    (void)state;
    subject_open(&x, "llama2");
    uint64_t one = fit_memory(&x.fit).device,
             two = bytes_at(&x, (struct layout_options){.tp = 2, .pp = 1}, 0);
    assert_true(two < one);
    each_has_its_own = true;
    host_bytes = one;
    assert_true(fit_search(&x.fit, &l));
    assert_int_equal(groups_world_size(&l.sizes), 1);
    assert_int_equal(l.bytes, one);

    host_bytes = (one + two) / 2;
    assert_true(fit_search(&x.fit, &l));
    assert_int_equal(l.sizes.tp, 2);
    assert_int_equal(groups_world_size(&l.sizes), 2);
    assert_int_equal(l.bytes, two);
    assert_int_equal(l.hosts, 1);

    each_has_its_own = false; /* then two ranks of one host have half of that each */
    assert_true(fit_search(&x.fit, &l));
    assert_int_equal(groups_world_size(&l.sizes), 2);
    assert_int_equal(l.hosts, 2);

    host_bytes = 1000;
    assert_false(fit_search(&x.fit, &l));
    subject_close(&x);
}

/* A limit that no tensor-parallel layout keeps: its stages must become fewer
 * layers. */
static void every_rank_of_what_is_found_fits(void **state)
{
    struct subject x;
    struct fit_layout l;
    (void)state;
    subject_open(&x, "mixtral");
    each_has_its_own = true;
    for (host_bytes = fit_memory(&x.fit).device; fit_search(&x.fit, &l); host_bytes = l.bytes - 1) {
        const struct layout_options o = {
            .tp = l.sizes.tp, .pp = l.sizes.pp, .ep = l.sizes.ep, .etp = l.sizes.etp};
        uint64_t most = 0;
        for (unsigned r = 0; r < groups_world_size(&l.sizes); r++)
            most = bytes_at(&x, o, r) > most ? bytes_at(&x, o, r) : most;
        assert_int_equal(most, l.bytes);
        assert_true(l.bytes <= host_bytes);
    }
    assert_true(host_bytes < fit_memory(&x.fit).device / 2);
    subject_close(&x);
}

static void context_and_data_parallelism_stay_as_they_are(void **state)
{
    struct subject x;
    struct fit_layout l;
    (void)state;
    subject_open(&x, "llama2");
    x.model.groups.sizes.cp = 3;
    x.model.options.layout.cp = 3;
    x.model.options.layout.dp = 2;
    each_has_its_own = true;
    host_bytes = UINT64_MAX;
    assert_true(fit_search(&x.fit, &l));
    assert_int_equal(groups_world_size(&l.sizes), 6);
    host_bytes = l.bytes - 1;
    assert_true(fit_search(&x.fit, &l));
    assert_int_equal(groups_world_size(&l.sizes), 12);
    assert_int_equal(l.sizes.cp, 3);
    assert_int_equal(l.sizes.dp, 2);
    subject_close(&x);
}

static void a_rank_that_lacks_memory_is_told_with_a_layout(void **state)
{
    struct subject x;
    (void)state;
    subject_open(&x, "llama2");
    each_has_its_own = true;
    host_bytes = fit_memory(&x.fit).device;
    assert_ok(fit_check(&x.fit, &err));
    host_bytes--;
    assert_fails(fit_check(&x.fit, &err), ERR_MEMORY,
                 "are free; the smallest layout that fits: --tp 2 (2 ranks, 0.01 GB each)");
    host_bytes = 1000;
    assert_fails(fit_check(&x.fit, &err), ERR_MEMORY, "of up to 64 ranks fit");
    subject_close(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dtype_that_the_device_lacks_is_refused),
        cmocka_unit_test(what_is_needed_is_what_is_allocated),
        cmocka_unit_test(what_the_host_needs_beside_a_device_is_judged),
        cmocka_unit_test(logits_of_two_bytes_take_half),
        cmocka_unit_test(buffers_of_loading_are_counted),
        cmocka_unit_test(the_layout_of_the_fewest_ranks_is_found),
        cmocka_unit_test(every_rank_of_what_is_found_fits),
        cmocka_unit_test(context_and_data_parallelism_stay_as_they_are),
        cmocka_unit_test(a_rank_that_lacks_memory_is_told_with_a_layout),
    };
    return cmocka_run_group_tests_name("fit", tests, NULL, NULL);
}
