/* trainer_plan.c - the plan of a dry run: model, memory of the ranks of each
 * pipeline stage, groups and their traffic, order of micro-batches.
 *
 * Ranks of one pipeline stage have equal plans (step_traffic_test.c), so one of
 * each is simulated. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/count.h"
#include "common/file.h"
#include "common/new_file.h"
#include "common/numbers.h"
#include "train/trainer/trainer_internal.h"

enum { COLUMNS = 100 }; /* of the plan as text */

/* ---- groups ---- */

static const struct {
    enum group_kind kind;
    const char *name;
} group_kinds[] = {
    {GROUP_TP, "TP"}, {GROUP_CP, "CP"},   {GROUP_DP, "DP"},   {GROUP_PP, "PP"},
    {GROUP_EP, "EP"}, {GROUP_ETP, "ETP"}, {GROUP_EDP, "EDP"}, {GROUP_EMBEDDING, "embedding"},
};

/* Whether the model uses such groups, with several members. */
static bool has_group(const struct trainer *t, enum group_kind kind)
{
    const struct model_config *c = &t->model.config;
    const bool is_of_experts = kind == GROUP_EP || kind == GROUP_ETP || kind == GROUP_EDP;
    if (is_of_experts && !c->num_experts) return false;
    if (kind == GROUP_EMBEDDING && c->untie_embeddings_and_output_weights) return false;
    return t->model.groups.of[kind].size > 1;
}

static struct train_group group_of(struct trainer *t, enum group_kind kind, const char *name)
{
    unsigned *ranks = arena_array(&t->arena, trainer_num_ranks(t), sizeof *ranks), index;
    const unsigned size = groups_members(&t->model.groups.sizes, kind, 0, ranks, &index);
    return (struct train_group){name, ranks, size};
}

static void plan_groups(struct trainer *t, struct train_plan *p)
{
    p->groups = arena_array(&t->arena, COUNT(group_kinds), sizeof *p->groups);
    for (size_t i = 0; i < COUNT(group_kinds); i++)
        if (has_group(t, group_kinds[i].kind))
            p->groups[p->num_groups++] = group_of(t, group_kinds[i].kind, group_kinds[i].name);
}

static const uint64_t *traffic_of(struct trainer *t, const struct step *s,
                                  const struct schedule *order)
{
    uint64_t *sent = arena_array(&t->arena, COUNT(group_kinds), sizeof *sent);
    size_t n = 0;
    for (size_t i = 0; i < COUNT(group_kinds); i++)
        if (has_group(t, group_kinds[i].kind))
            sent[n++] = step_traffic(s, order, group_kinds[i].kind);
    return sent;
}

/* ---- stages ---- */

static void add_chunk_layers(struct train_stage *s, const struct stage *chunk, uint64_t *layers)
{
    s->embedding |= chunk->embedding;
    s->loss |= chunk->loss;
    for (uint64_t i = 0; i < chunk->num_layers; i++)
        layers[s->num_layers++] = chunk->first_layer + i;
    s->layers = layers;
}

static struct train_stage stage_of(struct trainer *t, const struct step *s,
                                   const struct schedule *order)
{
    const struct layout *l = &t->model.layout;
    const unsigned pp_rank = s->model->groups.place.pp, num_ranks = trainer_stage_ranks(t);
    const uint64_t *bytes = s->region_bytes;
    const struct rank_memory m = trainer_memory_of(t, s);
    struct train_stage out = {.first_rank = pp_rank * num_ranks,
                              .num_ranks = num_ranks,
                              .parameters = s->num_params,
                              .weights = bytes[VALUE_PARAMETER],
                              .gradients = bytes[VALUE_GRADIENT],
                              .states = bytes[VALUE_MASTER] + bytes[VALUE_MOMENT_1] +
                                        bytes[VALUE_MOMENT_2],
                              .saved = bytes[VALUE_SAVED],
                              .device = m.device,
                              .host = m.host,
                              .copies = m.copies,
                              .sent = traffic_of(t, s, order)};
    out.rest = out.device - out.weights - out.gradients - out.states - out.saved;
    uint64_t *layers = arena_array(&t->arena, t->model.config.num_layers + 1, sizeof *layers);
    for (uint64_t chunk = 0; chunk < l->vpp; chunk++)
        add_chunk_layers(&out, layout_stage(l, chunk, pp_rank), layers);
    return out;
}

static enum status plan_stage(struct trainer *t, unsigned pp_rank, const struct schedule *order,
                              struct train_stage *out, struct error *err)
{
    struct simulated_rank x;
    const unsigned rank = pp_rank * trainer_stage_ranks(t);
    if (pp_rank == t->model.groups.place.pp) {
        *out = stage_of(t, &t->step, order);
        return OK;
    }
    const enum status st = trainer_simulate(t, rank, &t->step.options, &x, err);
    if (!st) *out = stage_of(t, &x.step, order);
    trainer_release_simulated(&x);
    return st;
}

static enum status make_train_plan(struct trainer *t, struct train_plan *p, struct schedule *order,
                                   struct error *err)
{
    const unsigned pp = t->model.groups.sizes.pp;
    *p = (struct train_plan){
        .parameters = t->step.num_params,
        .ranks = trainer_num_ranks(t),
        .iterations = t->train_iters,
        .global_batch_size = batch_size_last(&t->batch),
        .reads = t->origin == &t->scratch ? NULL : arena_copy_text(&t->arena, t->origin->path),
        .stages = arena_array(&t->arena, pp, sizeof *p->stages),
        .num_stages = pp};
    TRY(step_schedule(&t->step, order, err));
    p->schedule = schedule_name(order->shape.kind);
    p->micro_batches = order->shape.micro_batches;
    p->bubble = schedule_bubble(order);
    plan_groups(t, p);
    for (unsigned i = 0; i < pp; i++)
        TRY(plan_stage(t, i, order, &p->stages[i], err));
    trainer_plan_memory(t, p);
    return OK;
}

/* ---- as text ---- */

static void print_run(const struct trainer *t, const struct train_plan *p, struct strbuf *out)
{
    const struct train_options *o = t->o;
    strbuf_printf(out,
                  "model: %" PRIu64 " layers, hidden size %" PRIu64 ", vocabulary %" PRIu64
                  "; %.1f M parameters%s, %s\n",
                  t->model.config.num_layers, t->model.config.hidden_size,
                  t->model.config.vocab_size, (double)p->parameters / 1e6,
                  p->num_stages > 1 ? " on rank 0"
                  : p->ranks > 1    ? " per rank"
                                    : "",
                  o->dtype);
    strbuf_printf(out,
                  "steps: %" PRIu64 " iterations of %" PRIu64 " sequences of %" PRIu64
                  " tokens, %" PRIu64 " at a time\n",
                  p->iterations, p->global_batch_size, o->seq_length, o->micro_batch_size);
    strbuf_printf(out, "reads: %s\n", p->reads ? p->reads : "nothing, from scratch");
    strbuf_printf(out, "writes: %s%s%s\n", o->save ? o->save : "",
                  o->save && o->save_hf ? ", " : "",
                  o->save_hf ? o->save_hf : (o->save ? "" : "nothing"));
}

static void print_layout(const struct trainer *t, const struct train_plan *p, struct strbuf *out)
{
    struct arena a;
    arena_init(&a);
    strbuf_printf(out, "layout: %s, %" PRIu64 " ranks; DP%" PRIu64 "\n",
                  layout_text(&t->model.layout, &a), p->ranks, trainer_dp(t));
    arena_release(&a);
}

/* "E 0-3 8-11": the embedding and eight layers. L is the loss, as in a pipeline
 * layout. */
static const char *layers_text(struct arena *a, const struct train_stage *s)
{
    const char *text = s->embedding ? "E " : "";
    for (size_t i = 0, end; i < s->num_layers; i = end) {
        for (end = i + 1; end < s->num_layers && s->layers[end] == s->layers[end - 1] + 1; end++)
            continue;
        text = arena_printf(a, "%s%" PRIu64, text, s->layers[i]);
        if (end - i > 1) text = arena_printf(a, "%s-%" PRIu64, text, s->layers[end - 1]);
        text = arena_printf(a, "%s ", text);
    }
    return arena_printf(a, "%s%s", text, s->loss ? "L" : "");
}

static const char *ranks_text(struct arena *a, const struct train_stage *s)
{
    if (s->num_ranks == 1) return arena_printf(a, "%u", s->first_rank);
    return arena_printf(a, "%u-%u", s->first_rank, s->first_rank + s->num_ranks - 1);
}

static void print_stages(const struct train_plan *p, struct strbuf *out)
{
    struct arena a;
    int width = (int)strlen("layers");
    arena_init(&a);
    for (unsigned i = 0; i < p->num_stages; i++)
        if ((int)strlen(layers_text(&a, &p->stages[i])) > width)
            width = (int)strlen(layers_text(&a, &p->stages[i]));
    strbuf_printf(out, "memory of each rank, by pipeline stage:\n");
    strbuf_printf(out, "  %5s  %-9s  %-*s  %10s  %9s  %9s  %9s  %9s  %9s  %9s%s\n", "stage",
                  "ranks", width, "layers", "parameters", "weights", "gradients", "states", "saved",
                  "rest", "total", p->on_gpu && p->host ? "  on the host" : "");
    for (unsigned i = 0; i < p->num_stages; i++) {
        const struct train_stage *s = &p->stages[i];
        strbuf_printf(out, "  %5u  %-9s  %-*s  %8.1f M  %9s  %9s  %9s  %9s  %9s  %9s", i,
                      ranks_text(&a, s), width, layers_text(&a, s), (double)s->parameters / 1e6,
                      bytes_text(s->weights), bytes_text(s->gradients), bytes_text(s->states),
                      bytes_text(s->saved), bytes_text(s->rest), bytes_text(s->device));
        if (s->host) strbuf_printf(out, "  %11s", bytes_text(s->host));
        strbuf_printf(out, "\n");
    }
    strbuf_printf(out, "  (E: embedding; L: head and loss; states: masters and moments; "
                       "saved: activations of micro-batches under way)\n");
    arena_release(&a);
}

static void print_part(struct strbuf *out, const char *name, uint64_t bytes, const char *where)
{
    strbuf_printf(out, "  %-15s %12.2f MB%s\n", name, (double)bytes / 1e6, where);
}

/* The total is what a rank is compared by:
 * it lacks the part on the host. */
static void print_parts(const struct train_plan *p, struct strbuf *out)
{
    for (unsigned i = 0; i < p->num_memory; i++)
        if (!p->host || i + 1 < p->num_memory)
            print_part(out, p->memory[i].name, p->memory[i].bytes, "");
    print_part(out, "total", p->device, "");
    if (p->host) print_part(out, "copy of states", p->host, " of the host, beside it");
}

static void print_memory(const struct train_plan *p, struct strbuf *out)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < p->num_stages; i++)
        sum += p->stages[i].num_ranks * p->stages[i].device;
    if (p->num_stages > 1) {
        print_stages(p, out);
    } else {
        strbuf_printf(out, p->ranks > 1 ? "memory of each rank:\n" : "memory:\n");
        print_parts(p, out);
    }
    if (p->ranks > 1)
        strbuf_printf(out, "memory of all %" PRIu64 " ranks: %s\n", p->ranks, bytes_text(sum));
}

/* "0 2 4 6"; for many "0 2 4 .. 126". */
static const char *members_text(struct arena *a, const struct train_group *g)
{
    const unsigned shown = g->num_ranks > 8 ? 3 : g->num_ranks;
    const char *text = arena_printf(a, "%u", g->ranks[0]);
    for (unsigned i = 1; i < shown; i++)
        text = arena_printf(a, "%s %u", text, g->ranks[i]);
    return shown < g->num_ranks ? arena_printf(a, "%s .. %u", text, g->ranks[g->num_ranks - 1])
                                : text;
}

/* The least and the most bytes that a rank of any stage sends. */
static const char *sent_text(struct arena *a, const struct train_plan *p, unsigned group)
{
    unsigned least = 0, most = 0;
    for (unsigned i = 1; i < p->num_stages; i++) {
        const uint64_t sent = p->stages[i].sent[group];
        if (sent < p->stages[least].sent[group]) least = i;
        if (sent > p->stages[most].sent[group]) most = i;
    }
    const uint64_t low = p->stages[least].sent[group], high = p->stages[most].sent[group];
    if (strcmp(bytes_text(low), bytes_text(high)) == 0) return bytes_text(high);
    return arena_printf(a, "%s (stage %u) to %s (stage %u)", bytes_text(low), least,
                        bytes_text(high), most);
}

static void print_groups(const struct train_plan *p, struct strbuf *out)
{
    struct arena a;
    arena_init(&a);
    if (p->num_groups)
        strbuf_printf(out, "groups, and the bytes a rank sends to others of each in a step:\n");
    for (unsigned i = 0; i < p->num_groups; i++) {
        const struct train_group *g = &p->groups[i];
        strbuf_printf(out, "  %-9s  %5u ranks, such as %-24s  %s\n", g->name, g->num_ranks,
                      members_text(&a, g), sent_text(&a, p, i));
    }
    arena_release(&a);
}

static void print_schedule(const struct train_plan *p, const struct schedule *order,
                           struct strbuf *out)
{
    if (p->num_stages == 1) {
        strbuf_printf(out, "schedule: %" PRIu64 " micro-batch%s\n", p->micro_batches,
                      p->micro_batches == 1 ? "" : "es, one after another");
        return;
    }
    strbuf_printf(out, "schedule: %s, %" PRIu64 " micro-batch%s, bubble %.1f%%\n", p->schedule,
                  p->micro_batches, p->micro_batches == 1 ? "" : "es", p->bubble * 100);
    schedule_print(order, COLUMNS, out);
}

static void print_plan(const struct trainer *t, const struct train_plan *p,
                       const struct schedule *order, FILE *to)
{
    struct strbuf text = {0};
    print_run(t, p, &text);
    if (p->ranks > 1) print_layout(t, p, &text);
    print_memory(p, &text);
    print_groups(p, &text);
    print_schedule(p, order, &text);
    (void)fputs(text.data, to);
    strbuf_release(&text);
}

/* ---- the whole ---- */

static enum status draw_timeline(const char *path, const struct schedule *order, struct error *err)
{
    struct new_file f;
    struct strbuf text = {0};
    enum status st = new_file_open(&f, path, true, err);
    if (!st) schedule_draw(order, &text);
    if (!st) st = file_write(f.fd, path, text.data, text.length, 0, err);
    if (!st) st = new_file_publish(&f, err);
    new_file_close(&f);
    strbuf_release(&text);
    return st ? fail_in(err, "--timeline") : OK;
}

enum status trainer_show_plan(struct trainer *t, struct error *err)
{
    struct schedule order = {.ranks = NULL};
    enum status st = make_train_plan(t, &t->plan, &order, err);
    if (!st && !t->comm.rank) print_plan(t, &t->plan, &order, t->o->json ? stderr : stdout);
    if (!st && !t->comm.rank && t->o->timeline) st = draw_timeline(t->o->timeline, &order, err);
    schedule_release(&order);
    return st;
}

void trainer_print_plan(struct trainer *t, FILE *to)
{
    struct schedule order = {.ranks = NULL};
    struct train_plan p;
    struct error ignored;
    if (!make_train_plan(t, &p, &order, &ignored)) print_plan(t, &p, &order, to);
    schedule_release(&order);
}
