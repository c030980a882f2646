/* engine.c - the functions of the library: ranks, model, passes. */
#include "train/engine_internal.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#include <stdio.h>

#include "common/ranks.h"
#include "common/threads.h"
#include "common/version.h"
#include "train/apart.h"
#include "train/fit.h"

/* ---- ranks ---- */

/* GNU OpenMP's threads do not come along when a process forks, and its child waits for them for
 * ever: they have to be gone before. */
static void end_threads(void)
{
#ifdef _OPENMP
    (void)omp_pause_resource_all(omp_pause_hard);
#endif
}

static enum status open_ranks(struct worker *w, const struct ranks *ranks, struct error *err)
{
    struct group_sizes sizes = model_group_sizes(&w->q->options);
    if (ranks->size > 1) return comm_mpi_open(&w->comm, err);
    end_threads();
    return comm_local_open(&w->comm, groups_world_size(&sizes), err);
}

/* Threads of this rank: its part of the host's. */
static unsigned own_threads(const struct worker *w)
{
    unsigned threads = w->q->threads ? w->q->threads : threads_available();
    return threads > w->comm.host_size ? threads / w->comm.host_size : 1;
}

static void share_cpus(const struct worker *w)
{
#ifdef _OPENMP
    omp_set_num_threads((int)own_threads(w));
#else
    (void)w;
#endif
}

/* ---- the model ---- */

static enum status open_checkpoint(struct worker *w, const struct ranks *ranks, struct error *err)
{
    bool quiet = w->q->quiet || ranks->rank > 0;
    TRY(opened_open(&w->opened, w->q->path, w->q->source, false, quiet, err));
    const struct catalog *c = &w->opened.catalog;
    TRY(source_check_beyond(c, err));
    if (model_config_check(&c->config, err))
        return fail_in(err,
                       "%s: what it says of its model is not enough, --hf-config DIR may say "
                       "more",
                       c->path);
    if (!c->config.vocab_size)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: its vocabulary without padding is not known, --true-vocab-size N says it",
                    c->path);
    if (c->num_unexpected)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: %zu tensors that the model map does not know, the first is %s", c->path,
                    c->num_unexpected, c->unexpected[0]);
    if (!c->num_missing) return OK;
    return fail(err, ERR_UNSUPPORTED, "%s: %zu tensors are missing, the first is %s", c->path,
                c->num_missing, c->missing[0]);
}

static void print_memory(FILE *out, const struct worker *w, const struct pass *p, const char *what)
{
    struct strbuf text = {0};
    if (w->comm.rank) return;
    pass_print_memory(p, &text);
    fprintf(out, "%s, each rank of %u (this is rank 0):\n%s", what, w->comm.size, text.data);
    strbuf_release(&text);
}

void worker_print_memory(const struct worker *w, const struct pass *p, const char *what)
{
    print_memory(stdout, w, p, what);
}

enum status worker_fit(struct worker *w, const struct pass *const *passes, size_t num_passes,
                       struct error *err)
{
    const struct fit fit = {&w->model, passes, num_passes};
    enum status st = fit_check(&fit, err);
    for (size_t i = 0; i < num_passes && st == ERR_MEMORY && !w->q->quiet; i++)
        print_memory(stderr, w, passes[i], "memory");
    return st;
}

enum status worker_load(struct worker *w, struct error *err)
{
    struct load_options o = {.threads = own_threads(w),
                             .progress = w->comm.rank ? PROGRESS_NONE : w->q->progress};
    return model_load(&w->model, &o, err);
}

enum status worker_end(struct worker *w, struct pass *const *passes, size_t num_passes,
                       enum status st, struct error *err)
{
    if (!st) return OK;
    comm_fail(&w->comm, err);
    for (size_t i = 0; i < num_passes; i++)
        pass_release_graphs(passes[i]);
    collectives_close(&w->model.collectives);
    return st;
}

/* ---- forward ---- */

static enum status run_batches(struct pass *p, const struct forward_request *q, struct error *err)
{
    for (uint64_t n = 0;; n++) {
        struct batch b = {0};
        bool more = false;
        TRY(q->next(q->context, n, &b, &more, err));
        if (!more) return OK;
        TRY(pass_set(p, &b, 0, err));
        TRY(pass_run(p, err));
        TRY(pass_collect(p, q->visit, q->context, err));
    }
}

static enum status forward_rank(struct worker *w, const void *request, struct error *err)
{
    const struct forward_request *q = request;
    struct pass p = {0};
    enum status st = pass_make(&p, &w->model, &q->shape, &q->pass, err);
    if (!st && q->dry_run) {
        worker_print_memory(w, &p, "memory");
    } else {
        if (!st) st = worker_fit(w, (const struct pass *[]){&p}, 1, err);
        if (!st) st = worker_load(w, err);
        if (!st && q->visit_weights)
            st = weights_digest(&w->model, q->visit_weights, q->context, err);
        if (!st) st = pass_allocate(&p, err);
        if (!st) st = run_batches(&p, q, err);
    }
    st = worker_end(w, (struct pass *[]){&p}, 1, st, err);
    pass_release(&p);
    return st;
}

/* ---- the table ---- */

typedef enum status rank_work(struct worker *w, const void *request, struct error *err);

/* What rank 0 has found by itself is told as it is; what another has, with its number. */
static enum status end_ranks(struct worker *w, enum status st, struct error *err)
{
    struct error own = *err;
    enum status of_all = comm_close(&w->comm, st, err);
    if (!st || st == ERR_RANK) return of_all;
    *err = own;
    return st;
}

/* After the fork: a GPU's driver does not come along. Ranks of one host have its GPUs in turn. */
static enum status open_device(const struct worker *w, const struct device **device,
                               struct error *err)
{
    *device = &cpu_device;
    if (w->q->on_gpu) TRY(cuda_device_load(device, err));
    return (*device)->open(w->comm.host_rank, err);
}

static enum status run_rank(struct worker *w, rank_work *work, const void *request,
                            struct error *err)
{
    share_cpus(w);
    struct model_options options = w->q->options;
    enum status st = open_device(w, &options.device, err);
    bool opened = !st;
    if (!st) st = model_open(&w->model, &w->opened.catalog, &options, &w->comm, err);
    if (!st) st = work(w, request, err);
    if (st) comm_fail(&w->comm, err); /* before anything that waits for the others; again is once */
    model_close(&w->model);
    if (opened) options.device->close();
    return end_ranks(w, st, err);
}

/* All ranks do the same. */
static enum status on_ranks(const struct engine_model *q, rank_work *work, const void *request,
                            struct error *err)
{
    struct worker w = {.q = q};
    struct ranks ranks;
    TRY(ranks_from_environment(&ranks, err));
    enum status st = open_checkpoint(&w, &ranks, err);
    if (!st) st = open_ranks(&w, &ranks, err);
    if (!st) st = run_rank(&w, work, request, err);
    opened_close(&w.opened);
    return st;
}

static enum status forward_here(const struct forward_request *q, struct error *err)
{
    return on_ranks(&q->model, forward_rank, q, err);
}

static enum status generate_here(const struct generate_request *q, struct error *err)
{
    return on_ranks(&q->model, generate_rank, q, err);
}

/* Whether this process forks ranks that use a GPU: it must have none open itself, now and later. */
static enum status must_be_apart(const struct engine_model *q, bool *apart, struct error *err)
{
    struct ranks ranks;
    TRY(ranks_from_environment(&ranks, err));
    *apart = q->on_gpu && ranks.size == 1;
    if (*apart) end_threads();
    return OK;
}

static enum status forward(const struct forward_request *q, struct error *err)
{
    bool apart;
    TRY(must_be_apart(&q->model, &apart, err));
    return apart ? apart_forward(q, forward_here, err) : forward_here(q, err);
}

static enum status generate(const struct generate_request *q, struct error *err)
{
    bool apart;
    TRY(must_be_apart(&q->model, &apart, err));
    return apart ? apart_generate(q, generate_here, err) : generate_here(q, err);
}

/* Once in the life of a process. */
static enum status bench(const struct bench_request *q, struct error *err)
{
    return on_ranks(&q->model, bench_rank, q, err);
}

extern const struct engine ferry_engine;
extern const char *const ferry_engine_version;

const struct engine ferry_engine = {forward, generate, bench};
const char *const ferry_engine_version = FERRY_VERSION;
