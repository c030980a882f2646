/* A pass over the stream that follows only the stack's depth. */
#include <stdlib.h>
#include <string.h>

#include "common/memory.h"
#include "formats/pickle_internal.h"

/* Opcodes that the survey looks at. */
enum {
    OP_STOP = '.',
    OP_MARK = '(',
    OP_POP = '0',
    OP_SETITEMS = 'u',
    OP_GET = 'g',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    OP_BINUNICODE = 'X',
    OP_SHORT_BINUNICODE = 0x8C,
    OP_BINUNICODE8 = 0x8D,
    OP_MEMOIZE = 0x94,
};

/* Skips longer texts: no attribute has such a name. */
enum { LONGEST_NAME = 64 };

struct shape {
    size_t depth;
    size_t *marks;
    size_t num_marks, capacity;
};

static size_t shape_floor(const struct shape *s)
{
    return s->num_marks ? s->marks[s->num_marks - 1] : 0;
}

static void push_mark(struct shape *s)
{
    if (s->num_marks == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->marks = must_realloc(s->marks, s->capacity * sizeof *s->marks);
    }
    s->marks[s->num_marks++] = s->depth;
}

/* Applies t to the stack; *low is the lowest place that changes. false: the
 * stack underflows. */
static bool shape_step(struct shape *s, const struct pickle_token *t, size_t *low)
{
    const struct pickle_opcode *op = t->opcode;
    bool to_mark = op->pops < 0;
    *low = s->depth;
    if (t->code == OP_MARK) {
        push_mark(s);
        return true;
    }
    if (t->code == OP_POP && s->num_marks && s->depth == shape_floor(s)) {
        s->num_marks--;
        return true;
    }
    if (to_mark) {
        if (!s->num_marks) return false;
        s->depth = s->marks[--s->num_marks];
    }
    size_t pops = op->pops == TO_MARK_AND_BELOW ? 1 : to_mark ? 0 : (size_t)op->pops;
    if (s->depth - shape_floor(s) < pops) return false;
    *low = s->depth -= pops;
    s->depth += (size_t)op->pushes;
    return true;
}

/* ---- skips ---- */

/* The value of a key to skip, until its end is found: it is at `slot` of the
 * stack, and ends behind the last opcode that changed that place. */
struct candidate {
    bool active;
    size_t slot;
    bool begun;
    struct pickle_skip skip;
};

static bool is_skipped_key(const struct shape *s, const struct pickle_token *t,
                           const struct pickle_hooks *hooks)
{
    if (t->code != OP_BINUNICODE && t->code != OP_SHORT_BINUNICODE && t->code != OP_BINUNICODE8)
        return false;
    if (!t->bytes || !s->num_marks || (s->depth - shape_floor(s)) % 2) return false;
    for (size_t i = 0; i < hooks->num_skip_attributes; i++) {
        const char *name = hooks->skip_attributes[i];
        if (strlen(name) == t->length && memcmp(name, t->bytes, t->length) == 0) return true;
    }
    return false;
}

static void keep_skip(struct pickle_survey *s, const struct pickle_skip *skip)
{
    if (s->num_skips == s->skips_capacity) {
        s->skips_capacity = s->skips_capacity ? 2 * s->skips_capacity : 4;
        s->skips = must_realloc(s->skips, s->skips_capacity * sizeof *s->skips);
    }
    s->skips[s->num_skips++] = *skip;
}

/* Follows c over an opcode that changed the stack from `low` up and ends at
 * here->end. */
static void candidate_step(struct candidate *c, struct pickle_survey *s,
                           const struct pickle_token *t, size_t low, size_t depth,
                           const struct pickle_skip *here)
{
    if (low < c->slot) {
        bool names_key = !c->begun && low + 1 == c->slot && depth == c->slot;
        if (names_key) { /* PUT of the key */
            c->skip.begin = here->end;
            return;
        }
        if (c->begun && t->code == OP_SETITEMS) keep_skip(s, &c->skip);
        c->active = false;
    } else if (low == c->slot && depth > low) {
        uint64_t begin = c->skip.begin;
        c->skip = *here;
        c->skip.begin = begin;
        c->begun = true;
    }
}

/* The reader reports errors in the stream; returns only failures to read. */
static enum status but_for_corrupt(enum status st)
{
    return st == ERR_CORRUPT ? OK : st;
}

enum status survey_find_skips(struct pickle_survey *s, struct pickle_lexer *x,
                              const struct pickle_hooks *hooks, struct error *err)
{
    struct shape shape = {0};
    struct candidate c = {0};
    struct pickle_skip here = {0};
    struct pickle_token t;
    size_t low;
    enum status st;
    while (!(st = lexer_next(x, &t, LONGEST_NAME, err)) && t.code != OP_STOP) {
        bool key = !c.active && is_skipped_key(&shape, &t, hooks);
        if (!shape_step(&shape, &t, &low)) break;
        here.end = lexer_offset(x);
        here.num_opcodes++;
        here.num_memoized += t.code == OP_MEMOIZE;
        if (c.active) candidate_step(&c, s, &t, low, shape.depth, &here);
        if (key) c = (struct candidate){true, shape.depth, false, {.begin = here.end}};
    }
    free(shape.marks);
    return but_for_corrupt(st);
}

/* ---- memo entries in use ---- */

static void set_fetched(struct pickle_survey *s, uint64_t index)
{
    size_t word = (size_t)(index / 64);
    if (word >= s->num_words) {
        size_t num_words = word + word / 2 + 16;
        s->fetched = must_realloc(s->fetched, num_words * sizeof *s->fetched);
        memset(s->fetched + s->num_words, 0, (num_words - s->num_words) * sizeof *s->fetched);
        s->num_words = num_words;
    }
    s->fetched[word] |= (uint64_t)1 << index % 64;
}

static void count_ranks(struct pickle_survey *s)
{
    s->rank = must_malloc(s->num_words * sizeof *s->rank + 1);
    for (size_t w = 0; w < s->num_words; w++) {
        s->rank[w] = (uint32_t)s->num_fetched;
        s->num_fetched += (size_t)__builtin_popcountll(s->fetched[w]);
    }
}

enum status survey_find_fetched(struct pickle_survey *s, struct pickle_lexer *x, struct error *err)
{
    struct pickle_token t;
    uint64_t num_opcodes = 0;
    size_t skip = 0;
    enum status st;
    while (!(st = lexer_next(x, &t, LONGEST_NAME, err)) && t.code != OP_STOP) {
        num_opcodes++;
        bool get = t.code == OP_GET || t.code == OP_BINGET || t.code == OP_LONG_BINGET;
        if (get && t.number <= num_opcodes) set_fetched(s, t.number);
        if (skip < s->num_skips && lexer_offset(x) == s->skips[skip].begin) {
            num_opcodes = s->skips[skip].num_opcodes;
            lexer_seek(x, s->skips[skip++].end);
        }
    }
    count_ranks(s);
    return but_for_corrupt(st);
}

bool survey_fetched(const struct pickle_survey *s, uint64_t index, size_t *number)
{
    uint64_t word = index / 64, bit = (uint64_t)1 << index % 64;
    if (word >= s->num_words || !(s->fetched[word] & bit)) return false;
    *number = s->rank[word] + (size_t)__builtin_popcountll(s->fetched[word] & (bit - 1));
    return true;
}

void survey_release(struct pickle_survey *s)
{
    free(s->skips);
    free(s->fetched);
    free(s->rank);
    *s = (struct pickle_survey){0};
}
