#include "train/cli/token_ids.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/panel.h"
#include "common/checked.h"
#include "common/file.h"
#include "common/memory.h"
#include "convert/open.h"

static enum status check_id(double v, uint64_t at, const char *where, struct error *err)
{
    if (v >= INT32_MIN && v <= INT32_MAX && v == (double)(int32_t)v) return OK;
    return fail(err, ERR_CORRUPT, "%s: element %" PRIu64 ": %g is not a token id", where, at, v);
}

/* Reads a tensor of ids or a mask, onto the heap. */
static enum status read_whole_numbers(struct opened *o, const struct stored_tensor *s,
                                      int32_t **out, struct error *err)
{
    struct tensor *t;
    TRY(catalog_wrap_stored(&o->checkpoint.catalog, &o->checkpoint.arena, s, &t, err));
    double *values = must_calloc(t->numel + 1, sizeof *values);
    enum status st = panel_read_numbers(&o->checkpoint.catalog, t, t->numel, values, err);
    *out = must_calloc(t->numel + 1, sizeof **out);
    for (uint64_t i = 0; i < t->numel && !st; i++) {
        st = check_id(values[i], i, s->name, err);
        if (!st) (*out)[i] = (int32_t)values[i];
    }
    free(values);
    return st;
}

static enum status check_mask(const int32_t *mask, uint64_t count, struct error *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (mask[i] != 0 && mask[i] != 1)
            return fail(err, ERR_CORRUPT,
                        "attention_mask: element %" PRIu64 " is %d, neither 0 nor 1", i, mask[i]);
    return OK;
}

/* Moves unmasked tokens to the beginning of the row. */
static enum status unpad_row(struct token_ids *t, const int32_t *mask, uint64_t row,
                             struct error *err)
{
    const uint64_t length = t->batch.length;
    const int32_t *own = mask + row * length;
    int32_t *ids = t->ids + row * length;
    uint64_t first = 0, count = 0, ones = 0;
    for (uint64_t i = 0; i < length; i++)
        ones += own[i] != 0;
    while (first < length && !own[first])
        first++;
    while (first + count < length && own[first + count])
        count++;
    if (!ones)
        return fail(err, ERR_UNSUPPORTED, "attention_mask: row %" PRIu64 " has no ones", row);
    if (count < ones)
        return fail(err, ERR_UNSUPPORTED,
                    "attention_mask: row %" PRIu64 " has %" PRIu64
                    " ones that are not contiguous; padding may stand at the ends of a row only",
                    row, ones);
    memmove(ids, ids + first, count * sizeof *ids);
    t->lengths[row] = count;
    return OK;
}

static enum status apply_mask(struct token_ids *t, const int32_t *mask, struct error *err)
{
    uint64_t longest = 0;
    t->lengths = must_calloc(t->batch.num_sequences, sizeof *t->lengths);
    for (uint64_t i = 0; i < t->batch.num_sequences; i++) {
        TRY(unpad_row(t, mask, i, err));
        longest = max_u64(longest, t->lengths[i]);
    }
    for (uint64_t i = 1; i < t->batch.num_sequences; i++) /* the rows of the longest */
        memmove(t->ids + i * longest, t->ids + i * t->batch.length, longest * sizeof *t->ids);
    t->batch.length = longest;
    return OK;
}

static bool same_stored_shape(const struct stored_tensor *a, const struct stored_tensor *b)
{
    return a->num_dims == b->num_dims &&
           memcmp(a->shape, b->shape, a->num_dims * sizeof *a->shape) == 0;
}

static enum status read_ids_and_mask(struct opened *o, const struct stored_tensor *s,
                                     struct token_ids *t, struct error *err)
{
    const struct stored_tensor *m = stored_find(&o->checkpoint.catalog.stored, "attention_mask");
    int32_t *mask = NULL;
    if (s->num_dims < 1 || s->num_dims > 2 || dtype_bytes(s->dtype) == 0 || s->dtype == DT_BOOL)
        return fail(err, ERR_USAGE,
                    "input_ids has %u dimensions of dtype %s, expected [sequences, length] of "
                    "integers",
                    s->num_dims, dtype_infos[s->dtype].name);
    TRY(read_whole_numbers(o, s, &t->ids, err));
    t->batch = (struct batch){.num_sequences = s->num_dims == 2 ? s->shape[0] : 1,
                              .length = s->shape[s->num_dims - 1]};
    if (!m) return OK;
    if (!same_stored_shape(s, m))
        return fail(err, ERR_USAGE, "attention_mask and input_ids differ in shape");
    enum status st = read_whole_numbers(o, m, &mask, err);
    if (!st) st = check_mask(mask, t->batch.num_sequences * t->batch.length, err);
    if (!st && t->batch.num_sequences && t->batch.length) st = apply_mask(t, mask, err);
    free(mask);
    return st;
}

/* Sets the batch's arrays; no lengths if all are equal. */
static void set_batch_rows(struct token_ids *t)
{
    bool same = true;
    for (uint64_t i = 0; t->lengths && i < t->batch.num_sequences; i++)
        same &= t->lengths[i] == t->batch.length;
    t->batch.ids = t->ids;
    t->batch.lengths = same ? NULL : t->lengths;
}

enum status ids_read(const char *path, struct token_ids *out, struct error *err)
{
    struct opened o;
    const struct source_options none = {0};
    *out = (struct token_ids){.ids = NULL};
    if (!*path) return fail(err, ERR_USAGE, "the file name of the token ids is empty");
    if (!path_exists(path)) return fail(err, ERR_IO, "%s: no such file", path);
    enum status st = opened_open(&o, path, &none, NULL, true, true, err);
    if (!st) {
        const struct stored_tensor *s = stored_find(&o.checkpoint.catalog.stored, "input_ids");
        st = s ? read_ids_and_mask(&o, s, out, err) : fail(err, ERR_USAGE, "no tensor input_ids");
        if (st) (void)!fail_in(err, "%s", path);
    }
    opened_close(&o);
    set_batch_rows(out);
    out->batch.path = path;
    return st;
}

/* Reads one id. Moves *at behind the id and its separator, which *behind gets. */
static enum status parse_id(const char *text, const char **at, int32_t *id, char *behind,
                            struct error *err)
{
    char *end;
    errno = 0;
    long long v = strtoll(*at, &end, 10);
    *behind = *end;
    if (end != *at && v >= 0 && (errno || v > INT32_MAX))
        return fail(err, ERR_USAGE, "token id %.*s is above the maximum of %d", (int)(end - *at),
                    *at, INT32_MAX);
    if (end == *at || errno || v < 0 || (*end && *end != ',' && *end != ';'))
        return fail(err, ERR_USAGE, "\"%s\" is not a list of token ids such as 1,2,3;4,5,6", text);
    if (*end && !end[1]) return fail(err, ERR_USAGE, "\"%s\" ends with \"%c\"", text, *end);
    *id = (int32_t)v;
    *at = *end ? end + 1 : end;
    return OK;
}

/* Pads concatenated rows with 0 to the longest. */
static void pad_rows(struct token_ids *t, uint64_t count)
{
    int32_t *rows = must_calloc(t->batch.num_sequences * t->batch.length + 1, sizeof *rows);
    for (uint64_t i = 0, at = 0; i < t->batch.num_sequences && at < count; at += t->lengths[i], i++)
        memcpy(rows + i * t->batch.length, t->ids + at, t->lengths[i] * sizeof *rows);
    free(t->ids);
    t->ids = rows;
}

enum status ids_parse(const char *text, struct token_ids *out, struct error *err)
{
    const size_t most = strlen(text) + 1;
    uint64_t count = 0;
    char behind = ';';
    *out = (struct token_ids){.ids = must_calloc(most, sizeof *out->ids),
                              .lengths = must_calloc(most, sizeof *out->lengths)};
    struct batch *b = &out->batch;
    for (const char *at = text; *at; count++) {
        if (behind == ';') b->num_sequences++;
        TRY(parse_id(text, &at, &out->ids[count], &behind, err));
        uint64_t *length = &out->lengths[b->num_sequences - 1];
        b->length = max_u64(b->length, ++*length);
    }
    if (!count) return fail(err, ERR_USAGE, "no token ids");
    pad_rows(out, count);
    set_batch_rows(out);
    return OK;
}

void ids_release(struct token_ids *t)
{
    free(t->ids);
    free(t->lengths);
    *t = (struct token_ids){.ids = NULL};
}

enum status ids_check_one_length(const struct token_ids *t, const char *path, struct error *err)
{
    if (!t->batch.lengths) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: attention_mask gives rows of different lengths; they must be equal", path);
}
