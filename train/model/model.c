#include "train/model/model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/threads.h"
#include "convert/map/model_fit.h"
#include "convert/map/params.h"
#include "train/engine/memory_plan.h"
#include "train/model/bind.h"
#include "train/model/inputs.h"

/* ---- the model ---- */

uint64_t model_learned_positions(const struct model_config *c)
{
    const char *type = c->position_embedding_type;
    return type && strcmp(type, "learned_absolute") == 0 ? c->max_position_embeddings : 0;
}

static unsigned at_least_one(uint64_t n)
{
    return n ? (unsigned)n : 1;
}

struct group_sizes model_group_sizes(const struct model_options *o)
{
    struct group_sizes s = {.tp = at_least_one(o->layout.tp),
                            .cp = at_least_one(o->layout.cp),
                            .dp = (unsigned)o->layout.dp,
                            .pp = at_least_one(o->layout.pp),
                            .ep = at_least_one(o->layout.ep)};
    s.etp = o->layout.etp ? (unsigned)o->layout.etp : s.tp;
    if (!s.dp) s.dp = groups_least_dp(&s);
    return s;
}

static struct model_config config_of(const struct checkpoint *c, const struct model_options *o)
{
    struct model_config config = o->config ? *o->config : c->config;
    const struct tensor *t =
        c ? catalog_find(&c->catalog, "embedding.word_embeddings.weight") : NULL;
    if (t && t->num_dims) config.vocab_size = t->shape[0];
    return config;
}

/* Makes all but the groups. */
static enum status begin_model(struct model *m, const struct checkpoint *c,
                               const struct model_options *o, const struct group_sizes *sizes,
                               struct error *err)
{
    const struct device *device = o->device ? o->device : &cpu_device;
    *m = (struct model){
        .checkpoint = c, .options = *o, .device = device, .kernels = device->ops(o->elem)};
    arena_init(&m->arena);
    parameters_init(&m->parameters, o->elem);
    if (!m->kernels[OP_MATMUL].run)
        return fail(err, ERR_UNSUPPORTED, "device %s has no kernels for %s", device->name,
                    dtype_infos[elem_dtype(o->elem)].torch);
    m->config = config_of(c, o);
    TRY(c && c->params ? params_again(c->params, &m->config, &m->arena, &m->params, err)
                       : model_fit_params(&m->config, &m->arena, &m->params, err));
    if (!m->config.num_experts && (sizes->ep > 1 || sizes->etp != sizes->tp))
        return fail(err, ERR_UNSUPPORTED, "EP%u ETP%u: the model has no experts", sizes->ep,
                    sizes->etp);
    return layout_make(&m->layout, &m->arena, &o->layout, &m->config, err);
}

enum status model_open(struct model *m, const struct checkpoint *c, const struct model_options *o,
                       struct comm *comm, struct error *err)
{
    struct group_sizes sizes = model_group_sizes(o);
    TRY(begin_model(m, c, o, &sizes, err));
    TRY(groups_open(&m->groups, comm, &sizes, err));
    return collectives_open(&m->collectives, &m->groups, m->device, o->collectives, err);
}

enum status model_simulate(struct model *m, const struct checkpoint *c,
                           const struct model_options *o, unsigned rank, struct error *err)
{
    struct group_sizes sizes = model_group_sizes(o);
    TRY(begin_model(m, c, o, &sizes, err));
    m->is_simulated = true;
    return groups_simulate(&m->groups, &sizes, rank, err);
}

void model_close(struct model *m)
{
    if (m->collectives.groups) collectives_close(&m->collectives);
    groups_close(&m->groups);
    parameters_release(&m->parameters);
    if (m->memory) m->device->release(m->memory);
    arena_release(&m->arena);
}

enum status model_load(struct model *m, const struct load_options *o, struct error *err)
{
    if (!m->checkpoint) return fail(err, ERR_OURS, "there is no checkpoint to load");
    TRY(m->device->allocate(&m->memory, m->parameters.bytes, "parameters", err));
    return parameters_load(&m->parameters, m->checkpoint, m->device, m->memory, o, err);
}

/* ---- passes ---- */

/* Tokens whose logits for losses are computed at once: as many as HEAD_BYTES
 * hold, in whole tiles of a product if several fit. */
static uint64_t head_rows(uint64_t row_bytes)
{
    enum { HEAD_BYTES = 256 << 20, TILE = 128 };
    const uint64_t most = HEAD_BYTES / row_bytes;
    return most > TILE ? most / TILE * TILE : max_u64(most, 1);
}

static struct build build_of(const struct pass *p)
{
    struct model *m = p->model;
    const struct pass_options *o = &p->options;
    struct build b = {.config = &m->config,
                      .params = m->params,
                      .layout = &m->layout,
                      .groups = &m->groups,
                      .parameters = &m->parameters,
                      .coded = m->options.keeps_codes ? m->checkpoint : NULL,
                      .elem = m->options.elem};
    struct token_shape tokens = tokens_shape(&p->batch, &m->groups.sizes, m->groups.sizes.tp);
    /* A GPU's library would make a plan for each shape, which takes seconds. */
    if (m->is_simulated) tokens.uniform_sequences = 0;
    const uint64_t row_bytes =
        builder_vocab_rows(&b) * operand_bytes_of(OPERAND_REAL, m->options.elem);
    b.shape = (struct forward_shape){
        .tokens = tokens,
        .num_positions = o->cache_rows ? o->cache_rows : p->batch.length,
        .sequence_parallel = m->options.sequence_parallel && m->groups.sizes.tp > 1,
        .cp = m->options.cp_kind,
        .cache_rows = o->cache_rows * tokens.sequences,
        .begins = o->begins,
        .last_rows = o->last_only ? tokens.sequences : 0,
        .logits = o->logits,
        .logits_are_elem = !o->loss && o->logits_dtype == elem_dtype(m->options.elem),
        .loss = o->loss,
        .head_rows = o->head_rows ? o->head_rows : head_rows(row_bytes),
        .sampling = o->sampling,
        .hidden = o->hidden,
        .trace_layer = o->trace_layer};
    return b;
}

static enum status check_pass(const struct pass *p, struct error *err)
{
    const struct model_config *c = &p->model->config;
    const struct group_sizes *sizes = &p->model->groups.sizes;
    const uint64_t learned = model_learned_positions(c);
    uint64_t length = p->options.cache_rows ? p->options.cache_rows : p->batch.length;
    if (!p->batch.num_sequences || !p->batch.length)
        return fail(err, ERR_USAGE, "the batch has no tokens");
    if (learned && length > learned)
        return fail(err, ERR_UNSUPPORTED, "%" PRIu64 " positions: the model has learned %" PRIu64,
                    length, learned);
    if ((p->options.cache_rows || p->options.last_only) && sizes->cp > 1)
        return fail(err, ERR_UNSUPPORTED,
                    "context parallel ranks do not split a cache of keys and values: --cp must "
                    "be 1");
    struct token_shape tokens = tokens_shape(&p->batch, sizes, 1);
    if (tokens.rows > MAX_ROWS / sizes->cp || p->options.cache_rows > MAX_ROWS / tokens.sequences)
        return fail(err, ERR_UNSUPPORTED,
                    "%" PRIu64 " sequences of %" PRIu64 " positions: a pass takes at most %" PRIu64
                    " positions on a rank",
                    tokens.sequences, length, MAX_ROWS);
    if (p->options.logits_dtype && p->options.logits_dtype != DT_F64 &&
        p->model->options.elem == ELEM_F64)
        return fail(err, ERR_UNSUPPORTED,
                    "logits in %s: a model computed in f64 gives logits in f64",
                    dtype_infos[p->options.logits_dtype].torch);
    if (p->options.trace_layer >= 0 && (uint64_t)p->options.trace_layer >= c->num_layers)
        return fail(err, ERR_USAGE, "layer %d does not exist: the model has %" PRIu64 " layers",
                    p->options.trace_layer, c->num_layers);
    return OK;
}

/* Without a pipeline, all stages are one program; with one, each chunk of the
 * rank is. */
enum status pass_make(struct pass *p, struct model *m, const struct batch *b,
                      const struct pass_options *o, struct error *err)
{
    uint64_t pp = m->layout.pp, stages = pp * m->layout.vpp;
    *p = (struct pass){.model = m, .options = *o, .batch = *b};
    arena_init(&p->arena);
    TRY(check_pass(p, err));
    struct build build = build_of(p);
    uint64_t num_chunks = pp == 1 ? 1 : m->layout.vpp;
    p->chunks = arena_array(&p->arena, num_chunks, sizeof *p->chunks);
    p->runs = arena_array(&p->arena, num_chunks, sizeof *p->runs);
    for (uint64_t i = 0; i < num_chunks; i++) {
        uint64_t first = pp == 1 ? 0 : i * pp + m->groups.place.pp;
        p->num_chunks++;
        TRY(builder_make(&p->chunks[i], &build, first, pp == 1 ? stages : 1, err));
        memory_plan_make(&p->chunks[i].program, m->kernels);
    }
    return m->checkpoint ? parameters_bind(&m->parameters, m->checkpoint, err) : OK;
}

/* Programs of a rank run one after the other, so their activations share
 * memory. */
static uint64_t scratch_bytes(const struct pass *p)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->num_chunks; i++)
        bytes = max_u64(bytes, p->chunks[i].program.bytes[VALUE_SCRATCH]);
    return bytes;
}

uint64_t pass_bytes(const struct pass *p)
{
    uint64_t bytes = scratch_bytes(p);
    for (size_t i = 0; i < p->num_chunks; i++)
        bytes += p->chunks[i].program.bytes[VALUE_INPUT] + p->chunks[i].program.bytes[VALUE_OUTPUT];
    return bytes;
}

static void release_memory(const struct pass *p, void *memory)
{
    if (memory) p->model->device->release(memory);
}

void pass_release_graphs(struct pass *p)
{
    for (size_t i = 0; i < p->num_chunks; i++)
        run_release_graphs(&p->runs[i]);
}

void pass_release(struct pass *p)
{
    pass_release_graphs(p);
    for (size_t i = 0; i < p->num_chunks; i++) {
        release_memory(p, p->runs[i].regions[VALUE_INPUT]);
        release_memory(p, p->runs[i].regions[VALUE_OUTPUT]);
        if (i == 0) release_memory(p, p->runs[i].regions[VALUE_SCRATCH]); /* which all share */
        built_release(&p->chunks[i]);
    }
    arena_release(&p->arena);
}

static enum status reserve_buffers(const struct pass *p, const struct built *b, struct error *err)
{
    struct collectives *c = &p->model->collectives;
    const value_id message = b->ends.in != NO_VALUE ? b->ends.in : b->ends.out;
    TRY(collectives_reserve(c, &b->program, err));
    if (message == NO_VALUE) return OK;
    return collectives_reserve_bytes(c, b->program.values[message].bytes, err);
}

static enum status allocate_shared(struct pass *p, struct error *err)
{
    for (size_t i = 0; i < p->num_chunks; i++)
        TRY(reserve_buffers(p, &p->chunks[i], err));
    return p->model->device->allocate(&p->runs[0].regions[VALUE_SCRATCH], scratch_bytes(p),
                                      "activations", err);
}

enum status pass_allocate(struct pass *p, struct error *err)
{
    const struct device *device = p->model->device;
    TRY(allocate_shared(p, err));
    for (size_t i = 0; i < p->num_chunks; i++) {
        const uint64_t *bytes = p->chunks[i].program.bytes;
        struct run *r = &p->runs[i];
        r->program = &p->chunks[i].program;
        r->collectives = &p->model->collectives;
        r->device = device;
        r->kernels = p->model->kernels;
        r->regions[VALUE_PARAMETER] = r->regions[VALUE_STATE] = p->model->memory;
        r->regions[VALUE_SCRATCH] = p->runs[0].regions[VALUE_SCRATCH];
        TRY(device->allocate(&r->regions[VALUE_INPUT], bytes[VALUE_INPUT], "inputs", err));
        TRY(device->allocate(&r->regions[VALUE_OUTPUT], bytes[VALUE_OUTPUT], "outputs", err));
        if (p->options.graphs) run_use_graphs(r);
    }
    return OK;
}

/* ---- inputs ---- */

static enum status upload_input(const struct input_data *x, const struct run *r, value_id id,
                                struct error *err)
{
    const struct program_value *v = &r->program->values[id];
    void *numbers = must_malloc(v->bytes + 1);
    enum status st = input_fill(x, v, numbers, err);
    if (!st) st = r->device->upload(run_data(r, id), numbers, v->bytes, err);
    free(numbers);
    return st;
}

static enum status set_inputs(const struct pass *p, const struct input_data *x, size_t chunk,
                              struct error *err)
{
    const struct program *program = &p->chunks[chunk].program;
    for (size_t k = 0; k < program->num_values; k++) {
        const struct program_value *v = &program->values[k];
        if (v->class != VALUE_INPUT || input_is_of_stage(v)) continue;
        if (p->has_tables && input_is_constant(v, x->config)) continue;
        if (v->source == INPUT_IDS && !p->batch.ids) continue;
        TRY(upload_input(x, &p->runs[chunk], (value_id)k, err));
    }
    return OK;
}

/* Checks token ids, or targets, which may be negative (none). path: as in
 * struct batch. */
static enum status check_ids(const struct pass *p, const int32_t *ids, bool targets,
                             const char *path, struct error *err)
{
    const uint64_t length = p->batch.length, known = p->model->config.vocab_size;
    for (uint64_t i = 0; ids && i < p->batch.num_sequences * length; i++) {
        if (ids[i] < 0 ? targets : (uint64_t)ids[i] < known) continue;
        return fail(err, path ? ERR_CORRUPT : ERR_USAGE,
                    "%s%s%s %" PRIu64 " of sequence %" PRIu64 " is %d: the model has %" PRIu64
                    " tokens",
                    path ? path : "", path ? ": " : "", targets ? "target" : "token", i % length,
                    i / length, ids[i], known);
    }
    return OK;
}

enum status pass_set(struct pass *p, const struct batch *b, struct error *err)
{
    struct model *m = p->model;
    struct input_data x = {.config = &m->config,
                           .wide = m->options.elem == ELEM_F64,
                           .room = p->options.cache_rows,
                           .begins = p->options.begins};
    struct arena scratch;
    enum status st = OK;
    TRY(check_ids(p, b->ids, false, b->path, err));
    TRY(check_ids(p, b->targets, true, b->path, err));
    p->batch.ids = b->ids;
    p->batch.path = b->path;
    p->batch.targets = b->targets;
    p->batch.lengths = b->lengths;
    p->batch.past = b->past;
    p->batch.counter = b->counter;
    arena_init(&scratch);
    input_data_make(&x, &scratch, &p->batch, &m->groups,
                    p->options.cache_rows || p->options.last_only);
    for (size_t i = 0; i < p->num_chunks && !st; i++)
        st = set_inputs(p, &x, i, err);
    arena_release(&scratch);
    p->has_tables = !st;
    return st;
}

/* ---- running ---- */

enum status pass_is_finite(const struct pass *p, bool *finite, struct error *err)
{
    struct comm_group world = p->model->groups.of[GROUP_WORLD];
    int32_t bad = 0;
    for (size_t i = 0; i < p->num_chunks; i++) {
        const value_id id = p->chunks[i].not_finite;
        int32_t own = 0;
        if (id != NO_VALUE)
            TRY(p->model->device->download(&own, run_data(&p->runs[i], id), sizeof own, err));
        bad |= own;
    }
    TRY(world.comm->backend->all_reduce(&world, &bad, 1, COMM_INT32, COMM_MAX, err));
    *finite = !bad;
    return OK;
}

/* Receives the residual stream from the stage before, or sends it to the next
 * one; NO_VALUE: an end of the model. */
static enum status move_stream(const struct pass *p, size_t chunk, value_id id, bool sends,
                               struct error *err)
{
    struct model *m = p->model;
    const struct comm_group *g = &m->groups.of[GROUP_PP];
    const unsigned peer = (g->index + (sends ? 1 : g->size - 1)) % g->size;
    if (id == NO_VALUE) return OK;
    const struct comm_message message = {sends, peer, run_data(&p->runs[chunk], id),
                                         p->chunks[chunk].program.values[id].bytes};
    return collectives_exchange(&m->collectives, GROUP_PP, &message, 1, err);
}

enum status pass_prepare(struct pass *p, struct error *err)
{
    for (size_t i = 0; i < p->num_chunks; i++)
        TRY(run_prepare(&p->runs[i], err));
    return OK;
}

enum status pass_run_chunk(struct pass *p, size_t i, struct error *err)
{
    TRY(move_stream(p, i, p->chunks[i].ends.in, false, err));
    TRY(run_program(&p->runs[i], err));
    return move_stream(p, i, p->chunks[i].ends.out, true, err);
}

static enum status run_chunks(struct pass *p, bool check_numbers, struct error *err)
{
    for (size_t i = 0; i < p->num_chunks; i++)
        p->runs[i].check_numbers = check_numbers;
    TRY(pass_prepare(p, err));
    for (size_t i = 0; i < p->num_chunks; i++)
        TRY(pass_run_chunk(p, i, err));
    return OK;
}

/* The rank that finds the op fails here; comm_close() tells the others. */
enum status pass_run_checked(struct pass *p, struct error *err)
{
    TRY(run_chunks(p, true, err));
    TRY(comm_barrier(&p->model->groups.of[GROUP_WORLD], err));
    return fail(err, ERR_NUMERIC,
                "results have NaN or infinity, but a second pass with every op checked has none");
}

enum status pass_run(struct pass *p, struct error *err)
{
    bool finite;
    TRY(run_chunks(p, false, err));
    if (p->options.sampling) return OK; /* tokens show it */
    TRY(pass_is_finite(p, &finite, err));
    return finite ? OK : pass_run_checked(p, err);
}

/* ---- sampling ---- */

/* Chunk that chooses tokens; NULL: another rank has it. */
static const struct built *choosing_chunk(const struct pass *p, const struct run **run)
{
    for (size_t i = 0; i < p->num_chunks; i++)
        if (p->chunks[i].tokens != NO_VALUE) {
            *run = &p->runs[i];
            return &p->chunks[i];
        }
    return NULL;
}

/* Takes this rank's tokens that no other rank gives; the last sequences may be
 * filler. */
static void take_native(const struct pass *p, const int32_t *own, uint64_t count, int32_t *tokens)
{
    const struct group_place *at = &p->model->groups.place;
    const struct token_shape shape =
        tokens_shape(&p->batch, &p->model->groups.sizes, p->model->groups.sizes.tp);
    const uint64_t first = tokens_first_sequence(&p->batch, at, &shape);
    for (uint64_t i = 0; at->tp == 0 && i < count && first + i < p->batch.num_sequences; i++)
        tokens[first + i] = own[i];
}

enum status pass_tokens(const struct pass *p, int32_t *tokens, struct error *err)
{
    struct comm_group world = p->model->groups.of[GROUP_WORLD];
    const struct run *run;
    const struct built *b = choosing_chunk(p, &run);
    const uint64_t all = p->batch.num_sequences;
    memset(tokens, 0, all * sizeof *tokens);
    if (b) {
        const uint64_t count = b->program.values[b->tokens].shape[0];
        int32_t *own = must_calloc(count, sizeof *own);
        enum status st =
            p->model->device->download(own, run_data(run, b->tokens), count * sizeof *own, err);
        take_native(p, own, count, tokens);
        free(own);
        TRY(st);
    }
    return world.comm->backend->all_reduce(&world, tokens, all, COMM_INT32, COMM_SUM, err);
}

bool pass_runs_ahead(const struct pass *p)
{
    return p->model->device->download_later && p->model->groups.of[GROUP_WORLD].size == 1 &&
           p->batch.num_sequences <= LATER_BYTES / sizeof(int32_t);
}

/* Input ids of the only chunk. */
static value_id ids_of(const struct pass *p)
{
    const struct program *program = &p->chunks[0].program;
    for (size_t i = 0; i < program->num_values; i++)
        if (program->values[i].class == VALUE_INPUT && program->values[i].source == INPUT_IDS)
            return (value_id)i;
    return NO_VALUE;
}

enum status pass_start(struct pass *p, const struct pass *before, unsigned number,
                       struct error *err)
{
    const struct device *device = p->model->device;
    struct run *run = &p->runs[0];
    const uint64_t bytes = p->batch.num_sequences * sizeof(int32_t);
    if (before)
        TRY(device->copy(run_data(run, ids_of(p)),
                         run_data(&before->runs[0], before->chunks[0].tokens), bytes, err));
    run->check_numbers = false;
    TRY(run_start(run, err));
    return device->download_later(number, run_data(run, p->chunks[0].tokens), bytes, err);
}

enum status pass_wait_tokens(const struct pass *p, unsigned number, int32_t *tokens,
                             struct error *err)
{
    TRY(work_check(err));
    return p->model->device->download_wait(number, tokens, p->batch.num_sequences * sizeof *tokens,
                                           err);
}

void pass_print_memory(const struct pass *p, struct strbuf *out)
{
    for (size_t i = 0; i < p->num_chunks; i++) {
        const struct program *program = &p->chunks[i].program;
        strbuf_printf(out, "  program %zu: %zu ops, %zu values; inputs %.2f MB, outputs %.2f MB\n",
                      i, program->num_calls, program->num_values,
                      (double)program->bytes[VALUE_INPUT] / 1e6,
                      (double)program->bytes[VALUE_OUTPUT] / 1e6);
        memory_plan_print(program, out);
    }
}
