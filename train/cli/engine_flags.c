#include "train/cli/engine_flags.h"

#include <inttypes.h>
#include <string.h>

#include "common/count.h"
#include "common/ranks.h"
#include "common/threads.h"
#include "convert/open.h"

// clang-format off
#define AT(field) offsetof(struct engine_flags, field)
const struct arg engine_args[] = {
    {"--context-parallel-size --cp",   ARG_UINT,   AT(layout.cp), "N", NULL, "context parallel ranks; each holds a part of every sequence"},
    {"--data-parallel-size --dp",      ARG_UINT,   AT(layout.dp), "N", NULL, "data parallel ranks; default: the fewest that --ep needs"},
    {"--sequence-parallel --sp",       ARG_FLAG,   AT(sequence_parallel), NULL, NULL, "split norms and residuals by tokens over the tensor parallel ranks"},
    {"--cp-comm-type",                 ARG_CHOICE, AT(cp_kind), NULL, "all_gather|p2p", "exchange of keys and values between context parallel ranks; default all_gather"},
    {"--dtype",                        ARG_CHOICE, AT(dtype), NULL, "f32|bf16|fp16|f64", "compute dtype of weights and activations (accumulation in f32; f64 accumulates in f64); default f32"},
    {"--device", ARG_CHOICE, AT(device), NULL, "cpu|cuda", "compute device; default cpu. Ranks of one host share its GPUs"},
    {"--collectives", ARG_CHOICE, AT(collectives), NULL, "auto|staged|nccl", "communication between ranks on GPUs: staged through the host (ranks may share a GPU) or nccl (one GPU per rank); default auto"},
    {"--weights", ARG_CHOICE, AT(weights), NULL, "decoded|as-stored", "weights in memory: decoded to --dtype, or as-stored, as the codes and scales of a quantised checkpoint, which products decode; default decoded"},
    {"--threads",                      ARG_UINT,   AT(threads), "N", NULL, "total CPU threads of all ranks on this host, at most 1024; default: number of CPUs"},
    {"--dry-run",                      ARG_FLAG,   AT(dry_run), NULL, NULL, "print the memory each rank needs and whether it fits, then stop; with -v in detail"},
};
// clang-format on
_Static_assert(COUNT(engine_args) == NUM_ENGINE_ARGS, "options.h");

void compute_defaults(struct compute_flags *f)
{
    f->source.ckpt_step = UINT64_MAX;
    f->engine.dtype = "f32";
}

static enum collectives_way collectives_of(const struct engine_flags *e)
{
    if (!e->collectives || strcmp(e->collectives, "auto") == 0) return COLLECTIVES_CHOOSE;
    return strcmp(e->collectives, "nccl") == 0 ? COLLECTIVES_DEVICE : COLLECTIVES_STAGED;
}

/* Bounds the number of ranks and threads. */
static enum status check_layout_sizes(const struct compute_flags *f, struct error *err)
{
    const struct layout_options *l = &f->engine.layout;
    const uint64_t sizes[] = {l->tp, l->pp, l->ep, l->etp, l->cp, l->dp};
    uint64_t ranks = 1;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        ranks *= sizes[i] ? sizes[i] : 1;
        if (sizes[i] > MAX_RANKS_OF_A_JOB || ranks > MAX_RANKS_OF_A_JOB)
            return fail(err, ERR_USAGE, "the layout has more than %d ranks", MAX_RANKS_OF_A_JOB);
    }
    if (f->engine.threads > MAX_THREADS)
        return fail(err, ERR_USAGE, "--threads %" PRIu64 " is out of range (1 to %d)",
                    f->engine.threads, MAX_THREADS);
    return OK;
}

enum status engine_model_of(const char *path, const struct compute_flags *f,
                            struct engine_model *out, struct error *err)
{
    const struct engine_flags *e = &f->engine;
    struct executor_options run = executor_options_of(&(struct run_flags){0}, &f->output);
    TRY(check_layout_sizes(f, err));
    *out = (struct engine_model){
        .path = path,
        .source = source_options_of(&f->source),
        .model_map = f->source.model_map,
        .options = {.layout = e->layout,
                    .sequence_parallel = e->sequence_parallel,
                    .cp_kind =
                        e->cp_kind && strcmp(e->cp_kind, "p2p") == 0 ? CP_RING : CP_ALL_GATHER,
                    .elem = elem_of(e->dtype),
                    .keeps_codes = e->weights && strcmp(e->weights, "as-stored") == 0,
                    .collectives = collectives_of(e)},
        .on_gpu = e->device && strcmp(e->device, "cuda") == 0,
        .threads = (unsigned)e->threads,
        .progress = run.progress,
        .quiet = f->output.quiet};
    return OK;
}

/* ---- the model ---- */

enum status model_facts_read(const char *path, const struct source_flags *flags,
                             bool wants_end_tokens, struct model_facts *out, struct error *err)
{
    struct opened o;
    *out = (struct model_facts){.vocab_size = 0};
    const struct source_options source = source_options_of(flags);
    enum status st = opened_open(&o, path, &source, flags->model_map, false, true, err);
    if (!st) {
        const struct tensor *words =
            catalog_find(&o.checkpoint.catalog, "embedding.word_embeddings.weight");
        out->vocab_size = words ? words->shape[0] : o.checkpoint.config.vocab_size;
        out->positions = o.checkpoint.config.max_position_embeddings;
        if (wants_end_tokens) st = end_tokens_read(o.checkpoint.hf_folder, &out->end_tokens, err);
    }
    opened_close(&o);
    return st;
}
