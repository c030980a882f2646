#include "train/engine/memory_plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"

static void extend_life(struct program_value *v, uint32_t call, bool *alive)
{
    if (!*alive) v->first = call;
    *alive = true;
    v->last = call;
}

/* A base lives as long as its views. */
static void extend_home_life(struct program *p, value_id id, uint32_t call, bool *alive)
{
    if (id == NO_VALUE) return;
    const value_id home = program_home(p, id);
    extend_life(&p->values[home], call, &alive[home]);
}

static void find_lives(struct program *p, struct arena *scratch)
{
    bool *alive = arena_array(scratch, p->num_values + 1, sizeof *alive);
    for (size_t i = 0; i < p->num_values; i++) /* stays so for values in no call */
        p->values[i].first = 1, p->values[i].last = 0;
    for (uint32_t k = 0; k < p->num_calls; k++) {
        const struct call *c = &p->calls[k];
        for (unsigned i = 0; i < MAX_OUTPUTS; i++)
            extend_home_life(p, c->out[i], k, alive);
        for (unsigned i = 0; i < MAX_INPUTS; i++)
            extend_home_life(p, c->in[i], k, alive);
        extend_home_life(p, c->workspace, k, alive);
    }
}

/* Saves values that the first part writes and the second reads. An output is
 * that of the last run, so it cannot be one. */
static void save_values(struct program *p)
{
    for (size_t i = 0; i < p->num_values; i++) {
        struct program_value *v = &p->values[i];
        const bool crosses = v->first < p->second_part && v->last >= p->second_part;
        assert(!crosses || v->class != VALUE_OUTPUT);
        if (crosses && v->class == VALUE_SCRATCH) v->class = VALUE_SAVED;
    }
}

/* kernels: [NUM_OPS]. The data of operands only say that they are present. */
static void add_workspaces(struct program *p, const struct op_kernel *kernels)
{
    static char there;
    for (size_t k = 0; k < p->num_calls; k++) {
        struct operand in[MAX_INPUTS], out[MAX_OUTPUTS];
        struct call *c = &p->calls[k];
        if (c->op >= NUM_OPS || !kernels[c->op].workspace) continue;
        for (unsigned i = 0; i < MAX_INPUTS; i++) {
            in[i] = program_operand(p, c->in[i]);
            in[i].data = c->in[i] == NO_VALUE ? NULL : &there;
        }
        for (unsigned i = 0; i < MAX_OUTPUTS; i++) {
            out[i] = program_operand(p, c->out[i]);
            out[i].data = c->out[i] == NO_VALUE ? NULL : &there;
        }
        uint64_t words = ceil_div_u64(kernels[c->op].workspace(&c->params, in, out), 4);
        if (words)
            c->workspace = program_add_value(p, VALUE_SCRATCH, OPERAND_INT, 1, &words, "workspace");
    }
}

static uint64_t align_bytes(uint64_t bytes)
{
    return ceil_div_u64(bytes, MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT;
}

/* Values in one place: the first, and others that take it over in turn. */
struct place {
    uint32_t first, last;
    uint64_t bytes, offset;
};

struct places {
    struct place *items; /* largest first */
    size_t count;
    size_t *of_value; /* [num_values]; SIZE_MAX: in none */
};

/* The input whose place output 0 takes, or NO_VALUE. */
static value_id taken_over(const struct program *p, uint32_t k)
{
    const struct call *c = &p->calls[k];
    const struct op_row *row = op_row(c->op);
    const int place = row->num_out ? row->out[0].in_place : -1;
    if (place < 0) return NO_VALUE;
    value_id from = c->in[place], to = c->out[0];
    if (from == NO_VALUE || to == NO_VALUE) return NO_VALUE;
    const struct program_value *a = &p->values[from], *b = &p->values[to];
    bool fits = a->class == VALUE_SCRATCH && b->class == VALUE_SCRATCH && a->last == k &&
                a->bytes == b->bytes;
    for (unsigned i = 0; i < MAX_INPUTS && fits; i++) /* read as another operand, too */
        fits = (int)i == place || c->in[i] == NO_VALUE || program_home(p, c->in[i]) != from;
    return fits ? from : NO_VALUE;
}

static void begin_place(const struct program *p, struct places *s, value_id id)
{
    const struct program_value *v = &p->values[id];
    s->of_value[id] = s->count;
    s->items[s->count++] = (struct place){v->first, v->last, align_bytes(v->bytes), 0};
}

static void collect_places(const struct program *p, struct places *s, struct arena *scratch)
{
    s->items = arena_array(scratch, p->num_values + 1, sizeof *s->items);
    s->of_value = arena_array(scratch, p->num_values + 1, sizeof *s->of_value);
    for (size_t i = 0; i < p->num_values; i++)
        s->of_value[i] = SIZE_MAX;
    for (uint32_t k = 0; k < p->num_calls; k++) {
        const struct call *c = &p->calls[k];
        value_id from = taken_over(p, k);
        for (unsigned i = 0; i < MAX_OUTPUTS + 1; i++) {
            value_id id = i < MAX_OUTPUTS ? c->out[i] : c->workspace;
            if (id != NO_VALUE) id = program_home(p, id);
            if (id == NO_VALUE || p->values[id].class != VALUE_SCRATCH) continue;
            if (s->of_value[id] != SIZE_MAX) continue; /* another view of it was written before */
            if (from != NO_VALUE && i == 0) {
                s->of_value[id] = s->of_value[from];
                s->items[s->of_value[from]].last = p->values[id].last;
            } else {
                begin_place(p, s, id);
            }
        }
    }
}

struct hole {
    uint64_t begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct hole *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Lowest offset where `want` fits between the places already set that live at
 * the same time. */
static uint64_t lowest_fit(const struct places *s, const size_t *order, size_t num_set,
                           const struct place *want, struct hole *taken)
{
    size_t n = 0;
    uint64_t at = 0;
    for (size_t i = 0; i < num_set; i++) {
        const struct place *o = &s->items[order[i]];
        if (o->last < want->first || want->last < o->first) continue;
        taken[n++] = (struct hole){o->offset, o->offset + o->bytes};
    }
    qsort(taken, n, sizeof *taken, by_begin);
    for (size_t i = 0; i < n; i++) {
        if (at + want->bytes <= taken[i].begin) break;
        at = max_u64(at, taken[i].end);
    }
    return at;
}

static int larger_first(const void *a, const void *b, void *context)
{
    const struct place *items = context;
    const struct place *x = &items[*(const size_t *)a], *y = &items[*(const size_t *)b];
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x < y ? -1 : x > y;
}

static void plan_scratch(struct program *p, struct arena *scratch)
{
    struct places s = {0};
    collect_places(p, &s, scratch);
    size_t *order = arena_array(scratch, s.count + 1, sizeof *order);
    struct hole *taken = arena_array(scratch, s.count + 1, sizeof *taken);
    for (size_t i = 0; i < s.count; i++)
        order[i] = i;
    qsort_r(order, s.count, sizeof *order, larger_first, s.items);
    for (size_t i = 0; i < s.count; i++) {
        struct place *x = &s.items[order[i]];
        x->offset = lowest_fit(&s, order, i, x, taken);
        p->bytes[VALUE_SCRATCH] = max_u64(p->bytes[VALUE_SCRATCH], x->offset + x->bytes);
    }
    for (size_t i = 0; i < p->num_values; i++)
        if (s.of_value[i] != SIZE_MAX) p->values[i].offset = s.items[s.of_value[i]].offset;
}

void memory_plan_make(struct program *p, const struct op_kernel *kernels)
{
    struct arena scratch;
    arena_init(&scratch);
    memset(p->bytes, 0, sizeof p->bytes);
    add_workspaces(p, kernels);
    find_lives(p, &scratch);
    save_values(p);
    for (size_t i = 0; i < p->num_values; i++) {
        struct program_value *v = &p->values[i];
        if (v->class < VALUE_INPUT || v->class > VALUE_SAVED) continue;
        v->offset = p->bytes[v->class];
        p->bytes[v->class] += align_bytes(v->bytes);
    }
    plan_scratch(p, &scratch);
    arena_release(&scratch);
}

/* ---- for people ---- */

/* Bytes at once. A value that takes another's place counts once. */
static uint64_t alive_at(const struct program *p, uint32_t call)
{
    const value_id from = taken_over(p, call);
    uint64_t bytes = 0;
    for (size_t i = 0; i < p->num_values; i++) {
        const struct program_value *v = &p->values[i];
        if (v->class == VALUE_SCRATCH && v->first <= call && call <= v->last) bytes += v->bytes;
    }
    if (from != NO_VALUE) bytes -= p->values[from].bytes;
    return bytes;
}

static uint32_t fullest_call(const struct program *p)
{
    uint32_t best = 0;
    uint64_t most = 0;
    for (uint32_t k = 0; k < p->num_calls; k++) {
        uint64_t bytes = alive_at(p, k);
        if (bytes > most) {
            most = bytes;
            best = k;
        }
    }
    return best;
}

void memory_plan_print(const struct program *p, struct strbuf *out)
{
    if (!p->num_calls) return;
    uint32_t k = fullest_call(p);
    strbuf_printf(out, "  scratch: %.2f MB, of which %.2f are alive in %s\n",
                  (double)p->bytes[VALUE_SCRATCH] / 1e6, (double)alive_at(p, k) / 1e6,
                  p->calls[k].label);
    for (size_t i = 0; i < p->num_values; i++) {
        const struct program_value *v = &p->values[i];
        if (v->class != VALUE_SCRATCH || v->first > k || v->last < k) continue;
        if ((value_id)i == taken_over(p, k)) continue; /* what takes its place is named */
        strbuf_printf(out, "    %10.2f MB at %10.2f  %s\n", (double)v->bytes / 1e6,
                      (double)v->offset / 1e6, v->name);
    }
}
