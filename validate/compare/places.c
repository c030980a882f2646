#include "validate/compare/places.h"

#include <ctype.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/count.h"
#include "common/strbuf.h"

enum { MAX_DIGITS = 18 };

/* One part of a dotted name. */
struct part {
    const char *text;
    size_t length;
};

static struct part part_at(const char *from)
{
    return (struct part){from, strcspn(from, ".")};
}

static const char *next_part(struct part p)
{
    return p.text[p.length] ? p.text + p.length + 1 : NULL;
}

static bool is_number(struct part p)
{
    for (size_t i = 0; i < p.length; i++)
        if (!isdigit((unsigned char)p.text[i])) return false;
    return p.length > 0 && p.length <= MAX_DIGITS;
}

static bool mentions_expert(struct part p)
{
    return memmem(p.text, p.length, "expert", strlen("expert")) != NULL;
}

/* The kind: `rest` with * in place of the expert's number. */
static const char *kind_of(struct arena *a, const char *rest, int64_t *expert)
{
    bool after_expert = false;
    *expert = -1;
    for (const char *at = rest; at;) {
        struct part p = part_at(at);
        if (after_expert && is_number(p)) {
            *expert = (int64_t)strtoll(p.text, NULL, 10);
            return arena_printf(a, "%.*s*%s", (int)(p.text - rest), rest, p.text + p.length);
        }
        after_expert = mentions_expert(p);
        at = next_part(p);
    }
    return arena_copy_text(a, rest);
}

static enum region region_of(const char *name)
{
    static const struct {
        const char *pattern;
        enum region region;
    } rows[] = {
        {"*output_layer*", REGION_HEAD}, {"*lm_head*", REGION_HEAD},
        {"*embed_out*", REGION_HEAD},    {"*embed*", REGION_EMBEDDINGS},
        {"*.wte.*", REGION_EMBEDDINGS},  {"*.wpe.*", REGION_EMBEDDINGS},
        {"wte.*", REGION_EMBEDDINGS},    {"wpe.*", REGION_EMBEDDINGS},
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        if (fnmatch(rows[i].pattern, name, 0) == 0) return rows[i].region;
    return REGION_OTHER;
}

struct place place_of_name(struct arena *a, const char *name)
{
    struct place out = {.layer = -1, .expert = -1, .kind = name};
    for (const char *at = name; at;) {
        struct part p = part_at(at);
        at = next_part(p);
        if (!is_number(p) || !at) continue;
        out.region = REGION_LAYER;
        out.layer = (int64_t)strtoll(p.text, NULL, 10);
        out.stack = arena_text(a, name, p.text > name ? (size_t)(p.text - name) - 1 : 0);
        out.kind = kind_of(a, at, &out.expert);
        return out;
    }
    out.region = region_of(name);
    out.kind = arena_copy_text(a, name);
    return out;
}

static int compare_texts(const char *x, const char *y)
{
    return strcmp(x ? x : "", y ? y : "");
}

bool place_same_kind(const struct place *x, const struct place *y)
{
    return !x->stack == !y->stack && compare_texts(x->stack, y->stack) == 0 &&
           strcmp(x->kind, y->kind) == 0;
}

int place_compare(const struct place *x, const struct place *y)
{
    static const int order[NUM_REGIONS] = {
        [REGION_EMBEDDINGS] = 0, [REGION_LAYER] = 1, [REGION_OTHER] = 2, [REGION_HEAD] = 3};
    if (x->region != y->region) return order[x->region] - order[y->region];
    int stacks = compare_texts(x->stack, y->stack);
    if (stacks) return stacks;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static bool is_main(const struct place *p, const char *main_stack)
{
    return !p->stack || (main_stack && strcmp(p->stack, main_stack) == 0);
}

const char *place_text(struct arena *a, const struct place *p, const char *main_stack)
{
    static const char *const names[NUM_REGIONS] = {
        [REGION_EMBEDDINGS] = "embeddings", [REGION_HEAD] = "head", [REGION_OTHER] = "other"};
    if (p->region != REGION_LAYER) return names[p->region];
    if (is_main(p, main_stack)) return arena_printf(a, "layer %" PRId64, p->layer);
    return arena_printf(a, "%s.%" PRId64, p->stack, p->layer);
}

const char *layers_range_text(struct arena *a, const struct place *like, int64_t first,
                              int64_t last, const char *main_stack)
{
    struct place p = *like;
    p.layer = first;
    if (first == last) return place_text(a, &p, main_stack);
    bool main = is_main(like, main_stack);
    return arena_printf(a, "%s%slayers %" PRId64 " to %" PRId64, main ? "" : like->stack,
                        main ? "" : " ", first, last);
}

const char *place_kind_text(struct arena *a, const struct place *p, const char *main_stack)
{
    if (is_main(p, main_stack)) return p->kind;
    return arena_printf(a, "%s.*.%s", p->stack, p->kind);
}
