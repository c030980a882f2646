#include "validate/compare/stored_names.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>

#include "common/map.h"
#include "common/strbuf.h"
#include "validate/compare/parts.h"

enum { SHOWN_NAMES = 6 /* of one tensor, between braces */ };

const char *coordinates_text(struct arena *a, unsigned num_dims, const uint64_t *shape,
                             uint64_t index)
{
    struct strbuf text = {0};
    uint64_t stride = 1;
    for (unsigned d = 0; d < num_dims; d++)
        stride *= shape[d];
    strbuf_add_char(&text, '[');
    for (unsigned d = 0; d < num_dims; d++) {
        stride = shape[d] ? stride / shape[d] : 0;
        strbuf_printf(&text, "%s%" PRIu64, d ? ", " : "", stride ? index / stride : 0);
        index = stride ? index % stride : 0;
    }
    strbuf_add_char(&text, ']');
    const char *out = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

/* ---- several names in one ---- */

/* Length of the common beginning of all names, up to the end of a word. */
static size_t common_start(const char *const *names, size_t n)
{
    size_t length = strlen(names[0]);
    for (size_t i = 1; i < n; i++) {
        size_t k = 0;
        while (k < length && names[i][k] == names[0][k])
            k++;
        length = k;
    }
    while (length && isalnum((unsigned char)names[0][length - 1]))
        length--;
    return length;
}

/* Length of their common end behind `start`, from the end of a word on. */
static size_t common_end(const char *const *names, size_t n, size_t start)
{
    size_t all = strlen(names[0]), length = all - start;
    for (size_t i = 1; i < n; i++) {
        size_t here = strlen(names[i]), k = 0;
        while (k < length && k < here - start && names[i][here - 1 - k] == names[0][all - 1 - k])
            k++;
        length = k;
    }
    while (length && isalnum((unsigned char)names[0][all - length]))
        length--;
    return length;
}

/* "model.layers.3.mlp.{gate,up}_proj.weight", as a shell would write it. */
static const char *braced_names(struct arena *a, const char *const *names, size_t n)
{
    if (n == 1) return arena_printf(a, "%s", names[0]);
    size_t start = common_start(names, n), end = common_end(names, n, start);
    struct strbuf text = {0};
    strbuf_add(&text, names[0], start);
    strbuf_add_char(&text, '{');
    for (size_t i = 0; i < n; i++) {
        bool left_out = n > SHOWN_NAMES && i >= SHOWN_NAMES / 2 && i + 1 < n;
        if (left_out && i > SHOWN_NAMES / 2) continue;
        if (i) strbuf_add_char(&text, ',');
        if (left_out)
            strbuf_add_text(&text, "..");
        else
            strbuf_add(&text, names[i] + start, strlen(names[i]) - start - end);
    }
    strbuf_add_char(&text, '}');
    strbuf_add_text(&text, names[0] + strlen(names[0]) - end);
    const char *out = arena_text(a, text.data, text.length);
    strbuf_release(&text);
    return out;
}

/* ---- names of one tensor ---- */

static bool part_differs(const struct compared *t, unsigned side, size_t i)
{
    return t->first_in[side] && t->first_in[side][i] != UINT64_MAX;
}

/* Lists the stored names of a side, all or the differing ones; returns their
 * number. */
static size_t list_names(const struct compared *t, unsigned side, bool differing, const char **out)
{
    const struct tensor *x = t->tensors[side];
    size_t n = 0;
    for (size_t i = 0; x && i < x->num_stored_names; i++)
        if (!differing || part_differs(t, side, i)) out[n++] = x->stored_names[i];
    return n;
}

/* Turns the name of one tensor into a pattern for several (* for the layer's
 * number), or returns it unchanged. */
typedef const char *generalise(struct arena *a, const struct compared *t, const char *name);

static const char *unchanged_name(struct arena *a, const struct compared *t, const char *name)
{
    (void)a, (void)t;
    return name;
}

static const char *names_of(struct arena *a, const struct compared *t, unsigned side,
                            bool differing, generalise *general)
{
    const struct tensor *x = t->tensors[side];
    if (!x || !x->num_stored_names) return NULL;
    if (x->num_stored_names == 1 && strcmp(x->stored_names[0], t->name) == 0) return NULL;
    const char **names = arena_array(a, x->num_stored_names, sizeof *names);
    size_t n = list_names(t, side, differing, names);
    if (n == 0 || (differing && n == x->num_stored_names)) return NULL;
    for (size_t i = 0; i < n; i++)
        names[i] = general(a, t, names[i]);
    return braced_names(a, names, n);
}

const char *stored_names_text(struct arena *a, const struct compared *t, unsigned side)
{
    return names_of(a, t, side, false, unchanged_name);
}

const char *differing_names_text(struct arena *a, const struct compared *t, unsigned side)
{
    return names_of(a, t, side, true, unchanged_name);
}

/* ---- differences ---- */

struct stored_difference *stored_differences(struct arena *a, const struct comparison *c,
                                             const struct compared *t, unsigned side, size_t *count)
{
    const struct tensor *x = t->tensors[side];
    size_t n = x ? x->num_stored_names : 0;
    struct stored_difference *out = arena_array(a, n + 1, sizeof *out);
    *count = 0;
    for (size_t i = 0; i < n; i++) {
        struct stored_element o;
        if (!part_differs(t, side, i)) continue;
        if (!stored_element_of(&c->sides[side].checkpoint, x, t->first_in[side][i], &o)) continue;
        out[(*count)++] = (struct stored_difference){o.stored, o.index};
    }
    return out;
}

const char *first_stored_text(struct arena *a, const struct comparison *c, const struct compared *t,
                              unsigned side)
{
    struct stored_element o;
    if (!t->first_in[side] ||
        !stored_element_of(&c->sides[side].checkpoint, t->tensors[side], t->statistics.first, &o))
        return NULL;
    return arena_printf(a, "%s %s", o.stored->name,
                        coordinates_text(a, o.stored->num_dims, o.stored->shape, o.index));
}

/* ---- lines ---- */

const char *starred_name(struct arena *a, const struct compared *t, const char *name)
{
    struct place p = place_of_name(a, name);
    if (p.layer < 0 || p.layer != t->place.layer || p.expert != t->place.expert) return name;
    return arena_printf(a, "%s%s*.%s", p.stack, *p.stack ? "." : "", p.kind);
}

static struct stored_line line_of(struct comparison *c, const struct compared *t,
                                  generalise *general)
{
    struct arena *a = &c->arena;
    struct stored_line out = {.logical = general(a, t, t->name), .first = t, .num_tensors = 1};
    for (unsigned side = 0; side < 2; side++) {
        out.names[side] = names_of(a, t, side, false, general);
        out.differing[side] = names_of(a, t, side, true, general);
    }
    return out;
}

static const char *or_none(const char *text)
{
    return text ? text : "";
}

static const char *line_key(struct arena *a, const struct stored_line *x)
{
    return arena_printf(a, "%s\n%s\n%s\n%s\n%s", x->logical, or_none(x->names[0]),
                        or_none(x->names[1]), or_none(x->differing[0]), or_none(x->differing[1]));
}

struct stored_line *stored_lines(struct comparison *c, size_t *count)
{
    struct stored_line *out = arena_array(&c->arena, c->num_tensors + 1, sizeof *out);
    struct map lines = {0};
    *count = 0;
    for (size_t i = 0; i < c->num_tensors; i++) {
        if (outcome_passes(c->tensors[i].outcome)) continue;
        struct stored_line line = line_of(c, &c->tensors[i], starred_name);
        size_t k;
        if (!line.names[0] && !line.names[1]) continue;
        if (map_add(&lines, line_key(&c->arena, &line), *count, &k))
            out[(*count)++] = line;
        else
            out[k].num_tensors++;
    }
    map_release(&lines);
    for (size_t i = 0; i < *count; i++)
        if (out[i].num_tensors == 1) out[i] = line_of(c, out[i].first, unchanged_name);
    return out;
}
