#include "train/model/weights.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "common/threads.h"
#include "train/engine/memory_plan.h"

_Static_assert((int)DIGEST_AXES >= (int)MAX_AXES, "a part has more axes than the op takes");

/* A rank's part of a tensor, sent to rank 0. */
struct weight_part {
    uint64_t tensor; /* number in the catalog */
    struct pair view;
    struct digest sums;
    enum dtype dtype;
    unsigned rank;
};

struct weight_parts {
    struct weight_part *items; /* on the heap */
    size_t count;
};

/* ---- on every rank ---- */

static size_t count_parts(const struct parameters *p)
{
    size_t count = 0;
    for (size_t i = 0; i < p->count; i++)
        count += p->items[i].num_parts;
    return count;
}

static union op_params digest_params(const struct pair *view)
{
    union op_params out = {
        .digest = {.at = view->b_offset, .first = view->a_offset, .num_axes = view->num_axes}};
    for (unsigned k = 0; k < view->num_axes; k++)
        out.digest.axes[k] = (struct digest_axis){view->axes[k].extent, view->axes[k].b_stride,
                                                  view->axes[k].a_stride};
    return out;
}

/* Device memory: the sums of all parts, then the workspace of one op. */
struct digesting {
    const struct model *model;
    const struct op_kernel *kernel;
    char *sums, *workspace;
};

static struct operand array_of(const struct model *m, const struct parameter *x)
{
    return (struct operand){
        .data = (char *)m->memory + x->offset, .type = x->type, .num_dims = 1, .shape = {x->numel}};
}

static uint64_t workspace_bytes(const struct digesting *d)
{
    const struct parameters *p = &d->model->parameters;
    const struct operand out = {.data = NULL, .type = OPERAND_INT, .num_dims = 1, .shape = {4}};
    uint64_t most = 0;
    for (size_t i = 0; i < p->count && d->kernel->workspace; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++) {
            const union op_params params = digest_params(&p->items[i].parts[k].part);
            const struct operand in = array_of(d->model, &p->items[i]);
            most = max_u64(most, d->kernel->workspace(&params, &in, &out));
        }
    return most;
}

static enum status run_digests(const struct digesting *d, struct error *err)
{
    const struct parameters *p = &d->model->parameters;
    char *sums = d->sums;
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++, sums += sizeof(struct digest)) {
            const union op_params params = digest_params(&p->items[i].parts[k].part);
            const struct operand in = array_of(d->model, &p->items[i]);
            const struct operand out = {
                .data = sums, .type = OPERAND_INT, .num_dims = 1, .shape = {4}};
            TRY(work_check(err));
            TRY(d->kernel->run(&params, &in, &out, d->workspace, err));
        }
    return OK;
}

/* Computes the digests of all parts on the host: sums[count]. */
static enum status digest_parts(const struct model *m, struct digest *sums, size_t count,
                                struct error *err)
{
    struct digesting d = {.model = m, .kernel = &m->kernels[OP_DIGEST]};
    const uint64_t bytes = count * sizeof *sums;
    const uint64_t aligned = ceil_div_u64(bytes, MEMORY_ALIGNMENT) * MEMORY_ALIGNMENT;
    void *memory;
    TRY(m->device->allocate(&memory, aligned + workspace_bytes(&d), "digests", err));
    d.sums = memory;
    d.workspace = d.sums + aligned;
    enum status st = run_digests(&d, err);
    if (!st) st = m->device->download(sums, d.sums, bytes, err);
    m->device->release(memory);
    return st;
}

static struct weight_part *list_parts(const struct model *m, const struct digest *sums,
                                      size_t count)
{
    const struct parameters *p = &m->parameters;
    struct weight_part *items = must_calloc(count + 1, sizeof *items), *next = items;
    for (size_t i = 0; i < p->count; i++)
        for (size_t k = 0; k < p->items[i].num_parts; k++)
            *next++ = (struct weight_part){
                .tensor = (uint64_t)(p->items[i].parts[k].tensor - m->checkpoint->catalog.tensors),
                .view = p->items[i].parts[k].part,
                .sums = *sums++,
                .dtype = parameter_dtype(p, &p->items[i]),
                .rank = m->groups.of[GROUP_WORLD].index};
    return items;
}

static enum status own_parts(const struct model *m, struct weight_parts *out, struct error *err)
{
    out->count = count_parts(&m->parameters);
    struct digest *sums = must_calloc(out->count + 1, sizeof *sums);
    enum status st = digest_parts(m, sums, out->count, err);
    out->items = list_parts(m, sums, out->count);
    free(sums);
    return st;
}

static enum status send_parts(struct comm_group *world, const struct weight_parts *own,
                              struct error *err)
{
    const uint64_t count = own->count;
    TRY(comm_send(world, 0, &count, sizeof count, err));
    return comm_send(world, 0, own->items, own->count * sizeof *own->items, err);
}

/* ---- on rank 0 ---- */

static enum status receive_parts(struct comm_group *world, struct weight_parts *all,
                                 struct error *err)
{
    for (unsigned r = 1; r < world->size; r++) {
        uint64_t count;
        TRY(comm_receive(world, r, &count, sizeof count, err));
        all->items = must_realloc(all->items, (all->count + count + 1) * sizeof *all->items);
        TRY(comm_receive(world, r, all->items + all->count, count * sizeof *all->items, err));
        all->count += count;
    }
    return OK;
}

static int compare_numbers(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

/* Orders by elements of the tensor. */
static int compare_views(const struct pair *a, const struct pair *b)
{
    int order = compare_numbers(a->a_offset, b->a_offset);
    if (!order) order = compare_numbers(a->num_axes, b->num_axes);
    for (unsigned k = 0; k < a->num_axes && !order; k++) {
        order = compare_numbers(a->axes[k].extent, b->axes[k].extent);
        if (!order) order = compare_numbers(a->axes[k].a_stride, b->axes[k].a_stride);
    }
    return order;
}

/* Copies are neighbours, the lowest rank first. */
static int by_tensor_view_rank(const void *a, const void *b)
{
    const struct weight_part *x = a, *y = b;
    int order = compare_numbers(x->tensor, y->tensor);
    if (!order) order = compare_views(&x->view, &y->view);
    return order ? order : compare_numbers(x->rank, y->rank);
}

static bool is_copy(const struct weight_part *part, const struct weight_part *of)
{
    return compare_views(&part->view, &of->view) == 0;
}

static enum status check_copy(const struct tensor *t, const struct weight_part *copy,
                              const struct weight_part *of, struct error *err)
{
    if (memcmp(&copy->sums, &of->sums, sizeof copy->sums) == 0) return OK;
    return fail(err, ERR_RANK, "rank %u holds a different copy of %s than rank %u", copy->rank,
                t->name, of->rank);
}

/* Each element is in one part. */
static enum status check_whole(const struct tensor *t, struct pair *views, size_t count,
                               struct error *err)
{
    uint64_t covered;
    size_t bad;
    if (pairs_tile(views, count, t->numel, &bad, &covered)) return OK;
    if (bad < count) return fail(err, ERR_OURS, "%s: ranks hold parts that overlap", t->name);
    return fail(err, ERR_OURS, "%s: ranks hold %" PRIu64 " of its %" PRIu64 " elements", t->name,
                covered, t->numel);
}

/* Joins the parts [0, count) of one tensor. */
static enum status join_parts(const struct tensor *t, const struct weight_part *parts, size_t count,
                              struct digest *out, struct error *err)
{
    struct pair *views = must_calloc(count, sizeof *views);
    const struct weight_part *last = NULL;
    size_t num_views = 0;
    enum status st = OK;
    *out = (struct digest){{0}};
    for (size_t i = 0; i < count && !st; i++) {
        if (last && is_copy(&parts[i], last)) {
            st = check_copy(t, &parts[i], last, err);
            continue;
        }
        last = &parts[i];
        views[num_views++] = last->view;
        digest_join(out, &last->sums);
    }
    if (!st) st = check_whole(t, views, num_views, err);
    free(views);
    return st;
}

static enum status visit_tensors(const struct model *m, struct weight_parts *all,
                                 weights_visit *visit, void *context, struct error *err)
{
    if (all->count) qsort(all->items, all->count, sizeof *all->items, by_tensor_view_rank);
    for (size_t i = 0, end; i < all->count; i = end) {
        const struct tensor *t = &m->checkpoint->catalog.tensors[all->items[i].tensor];
        struct tensor_digest d = {.name = t->name,
                                  .dtype = all->items[i].dtype,
                                  .num_dims = t->num_dims,
                                  .shape = t->shape};
        for (end = i; end < all->count && all->items[end].tensor == all->items[i].tensor;)
            end++;
        TRY(join_parts(t, all->items + i, end - i, &d.sums, err));
        TRY(visit(context, &d, err));
    }
    return OK;
}

static enum status refuse_codes(const struct parameters *p, struct error *err)
{
    for (size_t i = 0; i < p->count; i++)
        if (p->items[i].coding)
            return fail(err, ERR_UNSUPPORTED, "%s: a weight that stays coded has no digest",
                        p->items[i].name);
    return OK;
}

enum status weights_digest(struct model *m, weights_visit *visit, void *context, struct error *err)
{
    struct comm_group *world = &m->groups.of[GROUP_WORLD];
    struct weight_parts parts = {0};
    TRY(refuse_codes(&m->parameters, err));
    enum status st = own_parts(m, &parts, err);
    if (!st && world->index) st = send_parts(world, &parts, err);
    if (!st && !world->index) st = receive_parts(world, &parts, err);
    if (!st && !world->index) st = visit_tensors(m, &parts, visit, context, err);
    free(parts.items);
    return st;
}
