/* packed_data.c - data of packed documents. A pass has samples in packing
 * order; passes repeat them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "train/data/data_internal.h"
#include "train/data/packed.h"

struct packed_split {
    const struct packed_source *source;
    uint64_t first; /* document of the source */
    struct packing packing;
};

struct packed_data {
    struct packed_source sources[NUM_SPLITS]; /* only the first, if splits share it */
    bool is_open[NUM_SPLITS];
    struct packed_split splits[NUM_SPLITS];
    struct split_shares shares;
};

static enum status open_source(struct data *d, unsigned k, const struct data_paths *paths,
                               struct error *err)
{
    struct packed_data *p = d->state;
    if (p->is_open[k]) return OK;
    if (paths->count != 1)
        return fail(err, ERR_UNSUPPORTED,
                    "packed documents come from one path, but %zu are given (%s ...)", paths->count,
                    paths->words[0]);
    p->is_open[k] = true;
    return packed_source_open(&p->sources[k], paths->words[0], err);
}

static enum status pack_split(struct data *d, enum data_split split, uint64_t past,
                              struct error *err)
{
    struct packed_data *p = d->state;
    struct packed_split *s = &p->splits[split];
    const struct data_options *o = &d->options;
    const uint64_t asked = o->samples[split];
    TRY(packing_make(&s->packing, s->source->lengths + s->first, past - s->first, o->seq_length,
                     err));
    const uint64_t pass = s->packing.num_samples;
    if (!pass)
        return fail(err, ERR_UNSUPPORTED,
                    "%s: documents [%" PRIu64 ", %" PRIu64
                    ") for %s: no document has two or more tokens",
                    s->source->path, s->first, past, split_names[split]);
    if (s->packing.num_cut || s->packing.num_left_out)
        data_note(d,
                  "%s: of %" PRIu64 " documents for %s, %" PRIu64 " are truncated to %" PRIu64
                  " tokens, and %" PRIu64 " with fewer than two tokens are skipped",
                  s->source->path, past - s->first, split_names[split], s->packing.num_cut,
                  o->seq_length + 1, s->packing.num_left_out);
    d->num_samples[split] = pass;
    if (asked != ONE_EPOCH && !mul_u64(ceil_div_u64(asked, pass), pass, &d->num_samples[split]))
        return fail(err, ERR_USAGE, "%" PRIu64 " samples overflow 64 bits", asked);
    return OK;
}

/* Documents of a split: all of its own path, or its share of the common one. */
static enum status open_split(struct data *d, enum data_split split, struct error *err)
{
    struct packed_data *p = d->state;
    const struct data_options *o = &d->options;
    struct packed_split *s = &p->splits[split];
    const bool common = o->paths.count > 0;
    const bool has_data =
        common ? split_has_share(&p->shares, split) : o->split_paths[split].count > 0;
    if (!o->samples[split]) return OK;
    if (!has_data && split == SPLIT_TRAIN)
        return fail(err, ERR_USAGE, "--split %s leaves no training data", o->split);
    if (!has_data) return OK;
    const unsigned k = common ? 0 : split;
    TRY(open_source(d, k, common ? &o->paths : &o->split_paths[split], err));
    s->source = &p->sources[k];
    uint64_t past = s->source->num_documents;
    if (common) split_range(&p->shares, split, past, &s->first, &past);
    return pack_split(d, split, past, err);
}

static enum status open_packed(struct data *d, struct error *err)
{
    struct packed_data *p = d->state = must_calloc(1, sizeof *p);
    if (d->options.paths.count) TRY(split_parse(&p->shares, d->options.split, err));
    for (unsigned k = 0; k < NUM_SPLITS; k++)
        TRY(open_split(d, (enum data_split)k, err));
    return OK;
}

static void close_packed(struct data *d)
{
    struct packed_data *p = d->state;
    for (unsigned k = 0; k < NUM_SPLITS; k++) {
        packing_release(&p->splits[k].packing);
        if (p->is_open[k]) packed_source_close(&p->sources[k]);
    }
    free(p);
}

/* ---- rows ---- */

static enum status check_ids(const struct data *d, const struct packed_source *s, uint64_t document,
                             const int32_t *ids, uint64_t count, struct error *err)
{
    const uint64_t vocab = d->options.vocab_size;
    for (uint64_t i = 0; vocab && i < count; i++)
        if (ids[i] < 0 || (uint64_t)ids[i] >= vocab)
            return fail(err, ERR_CORRUPT,
                        "%s: document %" PRIu64 ", element %" PRIu64
                        " is %d: the model has %" PRIu64 " tokens",
                        s->path, document, i, ids[i], vocab);
    return OK;
}

/* Places of one run from `at` on: ids[places + 1]; padding if ids is NULL. */
static void fill_run(struct data_rows *row, uint64_t at, uint64_t places, const int32_t *ids,
                     const int32_t *mask)
{
    for (uint64_t i = 0; i < places; i++) {
        row->tokens[at + i] = ids ? ids[i] : 0;
        row->labels[at + i] = ids ? ids[i + 1] : 0;
        row->loss_mask[at + i] = ids && mask[i + 1] ? 1 : 0;
        row->positions[at + i] = (int32_t)i;
        row->starts[at + i] = i == 0;
    }
}

static enum status fill_row(const struct data *d, const struct packed_split *s, uint64_t sample,
                            int32_t *ids, int32_t *mask, struct data_rows *row, struct error *err)
{
    const uint64_t length = d->options.seq_length;
    uint64_t at = 0;
    for (uint64_t i = s->packing.firsts[sample]; i < s->packing.firsts[sample + 1]; i++) {
        const uint64_t document = s->first + s->packing.documents[i];
        const uint64_t places = packing_places(s->source->lengths[document], length);
        TRY(packed_source_read(s->source, document, places + 1, ids, mask, err));
        TRY(check_ids(d, s->source, document, ids, places + 1, err));
        fill_run(row, at, places, ids, mask);
        at += places;
    }
    fill_run(row, at, length - at, NULL, NULL);
    return OK;
}

static enum status read_packed(const struct data *d, enum data_split split, uint64_t sample,
                               struct data_rows *row, struct error *err)
{
    const struct packed_split *s = &((const struct packed_data *)d->state)->splits[split];
    int32_t *ids = must_calloc(2 * (d->options.seq_length + 1), sizeof *ids);
    enum status st = fill_row(d, s, sample % s->packing.num_samples, ids,
                              ids + d->options.seq_length + 1, row, err);
    free(ids);
    return st;
}

static void describe_sources(const struct data *d, struct strbuf *out)
{
    const struct packed_data *p = d->state;
    for (unsigned k = 0; k < NUM_SPLITS; k++) {
        const struct packed_source *s = &p->sources[k];
        uint64_t tokens = 0;
        if (!p->is_open[k]) continue;
        for (uint64_t i = 0; i < s->num_documents; i++)
            tokens += s->lengths[i];
        data_describe_file(out, s->path, s->num_documents, tokens);
    }
}

const struct data_kind data_kind_packed = {
    .open = open_packed, .close = close_packed, .read = read_packed, .describe = describe_sources};
