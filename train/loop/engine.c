/* engine.c - functions of the library: joining a job, starting ranks, forward
 * passes. */
#include "train/loop/engine_internal.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "common/ranks.h"
#include "common/threads.h"
#include "train/loop/job_fingerprint.h"
#include "train/loop/subprocess.h"
#include "train/model/fingerprint.h"
#include "train/model/unused.h"

/* ---- ranks ---- */

/* GNU OpenMP's threads do not survive a fork, and the child would wait for them
 * for ever: they must end before. */
static void end_threads(void)
{
#ifdef _OPENMP
    (void)omp_pause_resource_all(omp_pause_hard);
#endif
}

/* Job of mpirun or srun. */
static struct comm job;
static bool joined;

/* MPI and the environment differ if MPI sees each process as a job of its own
 * (srun without its plugin), or if torchrun or a container has set the
 * variables. */
static enum status check_job(const struct ranks *ranks, struct error *err)
{
    if (job.rank == ranks->rank && job.size == ranks->size) return OK;
    (void)!fail(err, ERR_USAGE,
                "rank %u of %u in the environment, but rank %u of %u in MPI: start all ranks with "
                "mpirun or srun (--mpi=pmix) instead of torchrun, or unset RANK and WORLD_SIZE to "
                "start ranks on one host without a launcher",
                ranks->rank, ranks->size, job.rank, job.size);
    if (ranks->rank && ranks->share_output) err->text[0] = '\0'; /* rank 0 says it */
    return ERR_USAGE;
}

static enum status join_job(unsigned *rank, struct error *err)
{
    struct ranks ranks;
    *rank = 0;
    TRY(ranks_from_environment(&ranks, err));
    if (ranks.size == 1) return OK;
    TRY(comm_mpi_open(&job, err));
    joined = true;
    *rank = job.rank;
    return check_job(&ranks, err);
}

static enum status leave_job(enum status st, struct error *err)
{
    if (!joined) return st;
    joined = false;
    return comm_end(&job, st, err);
}

/* *other: first rank whose bytes differ from rank 0's; the number of ranks if
 * none does. */
static enum status find_other(const void *data, size_t bytes, unsigned *other, struct error *err)
{
    unsigned *ranks = must_calloc(job.size, sizeof *ranks);
    char *all = must_calloc(job.size, bytes);
    struct comm_group world;
    for (unsigned i = 0; i < job.size; i++)
        ranks[i] = i;
    enum status st = comm_group_open(&world, &job, ranks, job.size, err);
    if (!st) {
        st = job.backend->all_gather(&world, data, all, bytes, err);
        comm_group_close(&world);
    }
    for (*other = 0; !st && *other < job.size && !memcmp(all + *other * bytes, all, bytes);)
        ++*other;
    free(all);
    free(ranks);
    return st;
}

static enum status agree_on_bytes(const void *data, size_t bytes, const char *what,
                                  struct error *err)
{
    unsigned other;
    if (!joined) return OK;
    TRY(find_other(data, bytes, &other, err));
    if (other == job.size) return OK;
    return fail(err, ERR_USAGE, "rank %u has another %s than rank 0", other, what);
}

static enum status open_ranks(struct worker *w, struct error *err)
{
    struct group_sizes sizes = model_group_sizes(&w->q->options);
    w->comm = job;
    if (joined) return OK;
    end_threads();
    return comm_local_open(&w->comm, groups_world_size(&sizes), err);
}

/* ---- the model ---- */

static enum status open_checkpoint(struct worker *w, struct error *err)
{
    bool quiet = w->q->quiet || w->q->is_known || job.rank > 0;
    TRY(opened_open(&w->opened, w->q->path, &w->q->source, w->q->model_map, false, quiet, err));
    const struct checkpoint *c = &w->opened.checkpoint;
    TRY(source_check_computes(c, err));
    if (!c->config.vocab_size)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: vocabulary size without padding is unknown: give --true-vocab-size N",
                    c->path);
    return unused_check(&w->opened.checkpoint, err);
}

/* ---- forward ---- */

/* A batch of a new shape gets its own program, over the same parameters. */
static enum status take_shape(struct pass *p, const struct batch *b, struct error *err)
{
    struct model *m = p->model;
    const struct pass_options options = p->options;
    const uint64_t loaded = m->parameters.bytes;
    if (b->num_sequences == p->batch.num_sequences && b->length == p->batch.length) return OK;
    pass_release(p);
    TRY(pass_make(p, m, b, &options, err));
    if (m->parameters.bytes != loaded)
        return fail(err, ERR_OURS, "a batch of another shape takes other parameters");
    return pass_allocate(p, err);
}

static enum status run_batches(struct pass *p, const struct forward_request *q, struct error *err)
{
    for (uint64_t n = 0;; n++) {
        struct batch b = {0};
        bool more = false;
        TRY(q->next(q->context, n, &b, &more, err));
        if (!more) return OK;
        TRY(take_shape(p, &b, err));
        TRY(pass_set(p, &b, err));
        TRY(pass_run(p, err));
        TRY(pass_collect(p, &q->taking, q->visit, q->context, err));
    }
}

/* Makes the program, loads its parameters and runs all batches, unless the run
 * is dry. */
static enum status run_forward(struct worker *w, const struct work *work,
                               const struct forward_request *q, struct error *err)
{
    struct pass *p = work->pass;
    TRY(pass_make(p, &w->model, &q->shape, &q->pass, err));
    worker_note_positions(w, q->shape.length);
    TRY(worker_give_plan(w, work, 1, q->dry_run, q->visit_plan, q->context, err));
    TRY(worker_fit(w, work, 1, q->dry_run, err));
    if (q->dry_run) return OK;
    TRY(worker_load(w, err));
    if (q->visit_weights) TRY(weights_digest(&w->model, q->visit_weights, q->context, err));
    TRY(pass_allocate(p, err));
    return run_batches(p, q, err);
}

static enum status forward_rank(struct worker *w, const void *request, struct error *err)
{
    const struct forward_request *q = request;
    struct pass p = {0};
    const struct work work = {&p, "a batch"};
    w->taking = q->taking;
    enum status st = worker_end(w, &work, 1, run_forward(w, &work, q, err), err);
    pass_release(&p);
    return st;
}

/* ---- the table ---- */

typedef enum status rank_work(struct worker *w, const void *request, struct error *err);

/* After the fork, which a GPU's driver does not survive. Ranks of a host use
 * its GPUs in turn. */
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
    cpu_use_threads(worker_threads(w));
    struct model_options options = w->q->options;
    enum status st = open_device(w, &options.device, err);
    bool opened = !st;
    if (!st) st = model_open(&w->model, &w->opened.checkpoint, &options, &w->comm, err);
    if (!st) st = work(w, request, err);
    if (st)
        comm_fail(&w->comm,
                  err); /* before any wait for the others; a second report changes nothing */
    model_close(&w->model);
    if (opened) options.device->close();
    return joined ? st : comm_end(&w->comm, st, err);
}

/* Ranks of mpirun may differ in folder, files and command line. */
static enum status agree_with_all(const struct worker *w, const char request[SHA256_TEXT],
                                  struct error *err)
{
    char model[SHA256_TEXT];
    if (!joined) return OK;
    fingerprint_model(&w->opened.checkpoint, model);
    TRY(agree_on_bytes(model, sizeof model, "model", err));
    return agree_on_bytes(request, SHA256_TEXT, "layout, request or tokens", err);
}

/* Runs `work` on all ranks. fingerprint: of the request. */
static enum status on_ranks(const struct engine_model *q, rank_work *work, const void *request,
                            const char fingerprint[SHA256_TEXT], struct error *err)
{
    struct worker w = {.q = q};
    enum status st = open_checkpoint(&w, err);
    if (!st) st = agree_with_all(&w, fingerprint, err);
    if (!st) st = open_ranks(&w, err);
    if (!st) st = run_rank(&w, work, request, err);
    opened_close(&w.opened);
    return st;
}

static enum status forward_here(const struct forward_request *q, struct error *err)
{
    char fingerprint[SHA256_TEXT];
    fingerprint_forward(q, fingerprint);
    return on_ranks(&q->model, forward_rank, q, fingerprint, err);
}

static enum status generate_here(const struct generate_request *q, struct error *err)
{
    char fingerprint[SHA256_TEXT];
    fingerprint_generate(q, fingerprint);
    return on_ranks(&q->model, generate_rank, q, fingerprint, err);
}

/* Whether the request forks ranks that use a GPU: then this process must never
 * open one. */
static bool needs_subprocess(const struct engine_model *q)
{
    if (!q->on_gpu || joined) return false;
    end_threads();
    return true;
}

static enum status handle_forward(const struct forward_request *q, struct error *err)
{
    return needs_subprocess(&q->model) ? subprocess_forward(q, forward_here, err)
                                       : forward_here(q, err);
}

static enum status handle_generate(const struct generate_request *q, struct error *err)
{
    return needs_subprocess(&q->model) ? subprocess_generate(q, generate_here, err)
                                       : generate_here(q, err);
}

/* Only once in a process. */
static enum status handle_bench(const struct bench_request *q, struct error *err)
{
    char fingerprint[SHA256_TEXT];
    fingerprint_bench(q, fingerprint);
    return on_ranks(&q->model, bench_rank, q, fingerprint, err);
}

static enum status train_here(const struct train_request *q,
                              void (*ended)(void *context, const struct train_summary *s),
                              void *context, struct error *err)
{
    end_threads();
    return trainer_run(q, joined ? &job : NULL, ended, context, err);
}

extern const struct engine ferry_engine;

const struct engine ferry_engine = {join_job,        agree_on_bytes, leave_job,  handle_forward,
                                    handle_generate, handle_bench,   train_here, describe_machine};
