#include "ckpt/plan.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/held.h"
#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/memory.h"

void plan_init(struct plan *p, const struct catalog *source)
{
    *p = (struct plan){.source = source};
    arena_init(&p->arena);
    catalog_init(&p->made, &p->arena);
}

void plan_release(struct plan *p)
{
    map_release(&p->copy_names);
    catalog_release(&p->made);
    arena_release(&p->arena);
}

uint32_t plan_add_file(struct plan *p, const char *path)
{
    *ARENA_PUSH(&p->arena, p->files, p->num_files, p->files_capacity) =
        (struct output_file){.path = arena_copy_text(&p->arena, path)};
    return (uint32_t)(p->num_files - 1);
}

uint32_t plan_add_memory(struct plan *p, void *memory)
{
    *ARENA_PUSH(&p->arena, p->files, p->num_files, p->files_capacity) =
        (struct output_file){.memory = memory};
    return (uint32_t)(p->num_files - 1);
}

static bool is_memory(const struct plan *p, uint32_t segment)
{
    return !p->files[p->segments[segment].file].path;
}

uint32_t plan_add_segment(struct plan *p, uint32_t file, enum dtype dtype, uint64_t numel,
                          bool wants_crc)
{
    *ARENA_PUSH(&p->arena, p->segments, p->num_segments, p->segments_capacity) =
        (struct segment){.file = file, .dtype = dtype, .numel = numel, .wants_crc = wants_crc};
    p->files[file].num_segments++;
    return (uint32_t)(p->num_segments - 1);
}

static struct plan_copy *copy_of(struct plan *p, const struct tensor *t)
{
    size_t i = p->num_copies;
    if (!map_add(&p->copy_names, t->name, i, &i)) {
        if (p->copies[i].source != t) p->twice = t->name;
        return &p->copies[i];
    }
    struct plan_copy *c = ARENA_PUSH(&p->arena, p->copies, p->num_copies, p->copies_capacity);
    *c = (struct plan_copy){.source = t};
    return c;
}

/* Pieces of ranks and of experts often have equal axes: they share them. */
static struct packed_pair pack_piece(struct plan *p, const struct pair *pair)
{
    struct packed_pair packed = p->last_strided;
    if (!packed.num_axes || packed.num_axes != pair->num_axes ||
        memcmp(packed.axes, pair->axes, pair->num_axes * sizeof *pair->axes)) {
        packed = pair_pack(&p->arena, pair);
        if (packed.num_axes) p->last_strided = packed;
        return packed;
    }
    packed.a_offset = pair->a_offset;
    packed.b_offset = pair->b_offset;
    return packed;
}

void plan_add_piece(struct plan *p, const struct tensor *t, uint32_t segment,
                    const struct pair *pair)
{
    struct plan_copy *c = copy_of(p, t);
    if (!c->pieces_capacity) {
        c->pieces_capacity = 1;
        c->pieces = arena_alloc(&p->arena, sizeof *c->pieces);
    }
    *ARENA_PUSH(&p->arena, c->pieces, c->num_pieces, c->pieces_capacity) =
        (struct target_piece){pack_piece(p, pair), segment};
}

void plan_add_number(struct plan *p, const struct tensor *t, double number)
{
    if (!tensor_is_hole(t)) copy_of(p, t)->add = number;
}

enum dtype plan_digest_dtype(const struct plan *p, const struct plan_copy *c)
{
    return c->num_pieces && c->add == 0 ? plan_piece_dtype(p, &c->pieces[0]) : c->source->dtype;
}

enum dtype plan_piece_dtype(const struct plan *p, const struct target_piece *piece)
{
    return p->segments[piece->segment].dtype;
}

/* A piece that fills a segment. */
struct filling {
    const struct plan_copy *copy;
    const struct target_piece *piece;
};

/* Turns the pieces of a segment, so that a is the segment. */
static enum status turn_fillings(const struct filling *f, size_t n, struct pair *pairs,
                                 struct error *err)
{
    for (size_t i = 0; i < n; i++) {
        pairs[i] = pair_unpack(&f[i].piece->pair);
        TRY(pair_turn(&pairs[i], f[i].copy->source->name, err));
    }
    return OK;
}

static enum status check_tiles(const struct plan *p, const struct filling *f, size_t n,
                               struct pair *pairs, struct error *err)
{
    const struct segment *s = &p->segments[f->piece->segment];
    const char *path = p->files[s->file].path, *name = f->copy->source->name;
    size_t bad;
    uint64_t covered;
    TRY(turn_fillings(f, n, pairs, err));
    if (pairs_tile(pairs, n, s->numel, &bad, &covered)) return OK;
    if (bad < n)
        return fail(err, ERR_OURS,
                    "%s: elements of %s are planned twice or past their segment's end", path, name);
    return fail(err, ERR_OURS, "%s: %s is planned for %" PRIu64 " of %" PRIu64 " elements", path,
                name, covered, s->numel);
}

static enum status check_segment(const struct plan *p, const struct filling *f, size_t n,
                                 struct error *err)
{
    const struct segment *s = &p->segments[f->piece->segment];
    struct pair *pairs = malloc(n * sizeof *pairs);
    if (!pairs)
        return fail(err, ERR_MEMORY, "%s: no memory to check its plan", p->files[s->file].path);
    enum status st = check_tiles(p, f, n, pairs, err);
    free(pairs);
    return st;
}

/* A hole is neither read nor written: it has no cast and no other pieces. */
static enum status check_holes(const struct tensor *t, struct error *err)
{
    for (size_t i = 0; i < t->num_pieces; i++)
        if (piece_origin(&t->pieces[i])->is_hole != tensor_is_hole(t))
            return fail(err, ERR_OURS, "%s: some of its pieces are holes, others are not", t->name);
    return OK;
}

static enum status check_casts(const struct plan *p, const struct plan_copy *c, struct error *err)
{
    enum dtype last = NUM_DTYPES;
    for (size_t i = 0; i < c->num_pieces; i++) {
        enum dtype to = plan_piece_dtype(p, &c->pieces[i]);
        if (to != last) TRY(tensor_check_cast(c->source, to, err));
        last = to;
    }
    return OK;
}

/* Nests the target pieces for pair_join(). */
static enum status check_copy(struct plan *p, struct plan_copy *c, struct error *err)
{
    const struct tensor *t = c->source;
    TRY(tensor_check(t, err));
    TRY(check_casts(p, c, err));
    TRY(check_holes(t, err));
    for (size_t i = 0; i < c->num_pieces; i++) {
        struct segment *s = &p->segments[c->pieces[i].segment];
        const struct pair added = pair_unpack(&c->pieces[i].pair);
        struct pair pair = added;
        s->has_holes |= tensor_is_hole(t);
        if (tensor_is_hole(t) && p->files[s->file].path && s->dtype != t->dtype)
            return fail(err, ERR_OURS, "%s: a hole cannot have a cast", t->name);
        if (!pair_is_blocks(&c->pieces[i].pair, dtype_block(t->dtype)))
            return fail(err, ERR_UNSUPPORTED, "%s: elements of dtype %s cannot be taken one by one",
                        t->name, dtype_infos[t->dtype].name);
        TRY(pair_require_nested(&pair, t->name, err));
        if (pair_count(&pair) &&
            (pair.a_offset > t->numel || pair_a_span(&pair) > t->numel - pair.a_offset))
            return fail(err, ERR_OURS, "%s: the plan takes elements past its end", t->name);
        if (memcmp(&pair, &added, sizeof pair)) c->pieces[i].pair = pack_piece(p, &pair);
    }
    return OK;
}

/* Sorts fillings by segment: ends[i] becomes the end of segment i's, where the
 * next one's begin. ends: [num_segments + 1] zeros. */
static void collect_fillings(const struct plan *p, struct filling *all, size_t *ends)
{
    for (size_t i = 0; i < p->num_copies; i++)
        for (size_t k = 0; k < p->copies[i].num_pieces; k++)
            ends[p->copies[i].pieces[k].segment + 1]++;
    for (size_t i = 1; i <= p->num_segments; i++)
        ends[i] += ends[i - 1];
    for (size_t i = 0; i < p->num_copies; i++) {
        const struct plan_copy *c = &p->copies[i];
        for (size_t k = 0; k < c->num_pieces; k++)
            all[ends[c->pieces[k].segment]++] = (struct filling){c, &c->pieces[k]};
    }
}

static enum status check_fillings(const struct plan *p, struct error *err)
{
    size_t n = 0, filled = 0, wanted = 0, at = 0;
    for (size_t i = 0; i < p->num_copies; i++)
        n += p->copies[i].num_pieces;
    struct filling *all = malloc(n * sizeof *all + 1);
    size_t *ends = calloc(p->num_segments + 1, sizeof *ends);
    enum status st = OK;
    if (!all || !ends) st = fail(err, ERR_MEMORY, "no memory to check a plan of %zu pieces", n);
    if (!st) collect_fillings(p, all, ends);
    for (uint32_t i = 0; i < p->num_segments && !st; at = ends[i++]) {
        if (is_memory(p, i)) continue;
        wanted += p->segments[i].numel > 0;
        filled += p->segments[i].numel > 0 && ends[i] > at;
        if (ends[i] > at) st = check_segment(p, all + at, ends[i] - at, err);
    }
    free(all);
    free(ends);
    if (!st && filled < wanted)
        st = fail(err, ERR_OURS, "%zu of %zu segments are filled", filled, wanted);
    return st;
}

static uint64_t segment_bytes(const struct segment *s)
{
    return dtype_run_bytes(s->dtype, s->numel);
}

static int by_offset(const void *a, const void *b, void *segments)
{
    const struct segment *all = segments;
    const struct segment *x = &all[*(const uint32_t *)a], *y = &all[*(const uint32_t *)b];
    if (x->offset_bytes != y->offset_bytes) return x->offset_bytes < y->offset_bytes ? -1 : 1;
    if (!x->numel != !y->numel) return x->numel ? 1 : -1; /* an empty one comes first */
    return x < y ? -1 : x > y;
}

static void sort_by_file(struct plan *p)
{
    uint32_t first = 0;
    p->by_file = arena_array(&p->arena, p->num_segments, sizeof *p->by_file);
    for (size_t i = 0; i < p->num_files; first += p->files[i++].num_segments)
        p->files[i].first_segment = first;
    for (size_t i = 0; i < p->num_segments; i++)
        p->by_file[p->files[p->segments[i].file].first_segment++] = (uint32_t)i;
    for (size_t i = 0; i < p->num_files; i++) {
        struct output_file *f = &p->files[i];
        f->first_segment -= f->num_segments;
        qsort_r(p->by_file + f->first_segment, f->num_segments, sizeof *p->by_file, by_offset,
                p->segments);
    }
}

static enum status check_places(const struct plan *p, const struct output_file *f,
                                struct error *err)
{
    uint64_t end = 0;
    for (size_t i = 0; i < f->num_segments && f->path; i++) {
        const struct segment *s = &p->segments[p->by_file[f->first_segment + i]];
        if (s->numel > MAX_ELEMENTS || s->offset_bytes < end || s->offset_bytes > f->size_bytes ||
            segment_bytes(s) > f->size_bytes - s->offset_bytes)
            return fail(err, ERR_OURS,
                        "%s: a segment at %" PRIu64 " overlaps another or lies outside the file",
                        f->path, s->offset_bytes);
        end = s->offset_bytes + segment_bytes(s);
    }
    return OK;
}

static enum status check_files(const struct plan *p, struct error *err)
{
    for (size_t i = 0; i < p->num_files; i++)
        if (!p->files[i].path != !p->files[0].path)
            return fail(err, ERR_OURS, "the plan has both files and arrays in memory");
    return OK;
}

enum status plan_finish(struct plan *p, struct error *err)
{
    TRY(check_files(p, err));
    if (p->twice) return fail(err, ERR_OURS, "%s: two tensors of one name are planned", p->twice);
    for (size_t i = 0; i < p->num_copies; i++)
        TRY(check_copy(p, &p->copies[i], err));
    TRY(check_fillings(p, err));
    sort_by_file(p);
    for (size_t i = 0; i < p->num_files; i++)
        TRY(check_places(p, &p->files[i], err));
    held_set_ranks(p);
    p->source_bytes = p->target_bytes = 0;
    for (size_t i = 0; i < p->num_copies; i++)
        p->source_bytes += dtype_run_bytes(p->copies[i].source->dtype, p->copies[i].source->numel);
    for (size_t i = 0; i < p->num_files; i++)
        p->target_bytes += p->files[i].size_bytes;
    return OK;
}

/* ---- the rank of each file ---- */

struct file_size {
    size_t file;
    uint64_t bytes;
};

static int by_size(const void *a, const void *b)
{
    const struct file_size *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes > y->bytes ? -1 : 1;
    return x->file < y->file ? -1 : x->file > y->file;
}

void plan_split(struct plan *p, unsigned num_ranks)
{
    struct file_size *sizes = must_calloc(p->num_files + 1, sizeof *sizes);
    uint64_t *load = must_calloc(num_ranks, sizeof *load);
    size_t n = 0;
    for (size_t i = 0; i < p->num_files; i++)
        if (!p->files[i].held) sizes[n++] = (struct file_size){i, p->files[i].size_bytes};
    qsort(sizes, n, sizeof *sizes, by_size);
    for (size_t i = 0; i < n; i++) {
        unsigned least = 0;
        for (unsigned r = 1; r < num_ranks; r++)
            if (load[r] < load[least]) least = r;
        p->files[sizes[i].file].rank = least;
        load[least] += sizes[i].bytes;
    }
    free(sizes);
    free(load);
}
