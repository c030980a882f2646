/* Types of plain scalars follow the regular expressions of PyYAML's resolver
 * (pyyaml: lib/yaml/resolver.py), in reading and printing: text that matches
 * one is quoted. */
#include "common/yaml.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <yaml.h>

#include "common/arena.h"
#include "common/checked.h"
#include "common/file.h"
#include "common/json.h"
#include "common/map.h"
#include "common/memory.h"
#include "common/utf8.h"

enum { MAX_NODES = 1000000 };

/* ---- scalars ---- */

/* The first match decides. PyYAML makes dates of OTHER, or refuses it. */
enum scalar { S_TRUE, S_FALSE, S_NULL, S_FLOAT, S_INT, S_MERGE, S_OTHER, S_TEXT };

static const struct {
    const char *first; /* first characters of a match */
    const char *pattern;
} resolvers[S_TEXT] = {
    [S_TRUE] = {"yYtToO", "^(yes|Yes|YES|true|True|TRUE|on|On|ON)$"},
    [S_FALSE] = {"nNfFoO", "^(no|No|NO|false|False|FALSE|off|Off|OFF)$"},
    [S_NULL] = {"~nN", "^(~|null|Null|NULL)$"},
    [S_FLOAT] = {"-+0123456789.", "^([-+]?[0-9][0-9_]*[.][0-9_]*([eE][-+][0-9]+)?"
                                  "|[.][0-9][0-9_]*([eE][-+][0-9]+)?"
                                  "|[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+[.][0-9_]*"
                                  "|[-+]?[.](inf|Inf|INF)"
                                  "|[.](nan|NaN|NAN))$"},
    [S_INT] = {"-+0123456789", "^([-+]?0b[01_]+"
                               "|[-+]?0[0-7_]+"
                               "|[-+]?(0|[1-9][0-9_]*)"
                               "|[-+]?0x[0-9a-fA-F_]+"
                               "|[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+)$"},
    [S_MERGE] = {"<", "^<<$"},
    [S_OTHER] = {"=0123456789", "^(=|[0-9]{4}-[0-9]{2}-[0-9]{2}"
                                "|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt]|[ \t]+)[0-9]{1,2}"
                                ":[0-9]{2}:[0-9]{2}([.][0-9]*)?"
                                "([ \t]*(Z|[-+][0-9]{1,2}(:[0-9]{2})?))?)$"},
};

struct patterns {
    regex_t compiled[S_TEXT];
};

static void patterns_init(struct patterns *p)
{
    for (int i = 0; i < S_TEXT; i++)
        if (regcomp(&p->compiled[i], resolvers[i].pattern, REG_EXTENDED | REG_NOSUB))
            out_of_memory(strlen(resolvers[i].pattern));
}

static void patterns_release(struct patterns *p)
{
    for (int i = 0; i < S_TEXT; i++)
        regfree(&p->compiled[i]);
}

static enum scalar resolve_scalar(const struct patterns *p, const char *plain)
{
    if (!*plain) return S_NULL;
    for (int i = 0; i < S_TEXT; i++)
        if (strchr(resolvers[i].first, *plain) && regexec(&p->compiled[i], plain, 0, NULL, 0) == 0)
            return (enum scalar)i;
    return S_TEXT;
}

/* Parts in base 60, "1:30" = 90; false past 64 bits. */
static bool sexagesimal(const char *digits, uint64_t *value)
{
    *value = 0;
    for (const char *p = digits;; p++) {
        char *end;
        uint64_t part = strtoull(p, &end, 10);
        if (!mul_u64(*value, 60, value) || !add_u64(*value, part, value)) return false;
        p = end;
        if (*p != ':') return true;
    }
}

/* An integer not in decimal; false past 64 bits or without a digit. */
static bool other_integer(const char *digits, uint64_t *value)
{
    errno = 0;
    if (strchr(digits, ':')) return sexagesimal(digits, value);
    int base = digits[1] == 'b' ? 2 : digits[1] == 'x' ? 16 : 8;
    if (base != 8) digits += 2;
    *value = strtoull(digits, NULL, base);
    return *digits && errno != ERANGE;
}

static double other_float(const char *digits)
{
    if (strcasecmp(digits, ".inf") == 0) return INFINITY;
    if (strcasecmp(digits, ".nan") == 0) return NAN;
    double value = 0;
    for (const char *p = digits;; p++) {
        char *end;
        value = 60 * value + strtod(p, &end);
        p = end;
        if (*p != ':') return value;
    }
}

/* NULL: not a number JSON can write; it stays text. */
static cJSON *other_number(enum scalar kind, bool negative, const char *digits)
{
    if (kind == S_FLOAT) {
        double value = other_float(digits);
        return json_new_double(negative ? -value : value);
    }
    uint64_t value;
    if (!other_integer(digits, &value)) return NULL;
    char text[24];
    snprintf(text, sizeof text, "%s%llu", negative ? "-" : "", (unsigned long long)value);
    return cJSON_CreateRaw(text);
}

/* Without underscores and + most numbers are JSON and keep their digits. */
static cJSON *number_item(enum scalar kind, const char *plain)
{
    struct strbuf text = {0};
    cJSON *item;
    for (const char *p = *plain == '+' ? plain + 1 : plain; *p; p++)
        if (*p != '_') strbuf_add_char(&text, *p);
    if (json_parse(text.data, text.length, JSON_STRICT, &item, NULL)) {
        bool negative = text.data[0] == '-';
        item = other_number(kind, negative, text.data + negative);
    }
    strbuf_release(&text);
    return item;
}

static cJSON *scalar_item(enum scalar kind, const char *text)
{
    cJSON *number = kind == S_INT || kind == S_FLOAT ? number_item(kind, text) : NULL;
    if (number) return number;
    if (kind == S_NULL) return cJSON_CreateNull();
    if (kind == S_TRUE || kind == S_FALSE) return cJSON_CreateBool(kind == S_TRUE);
    return cJSON_CreateString(text);
}

/* ---- reading ---- */

struct reader {
    yaml_parser_t parser;
    yaml_event_t event; /* current event */
    struct patterns patterns;
    struct strbuf key, text;
    unsigned depth;
    size_t num_nodes;

    struct arena names; /* of the anchors */
    struct map anchors; /* name -> index into anchored */
    cJSON **anchored;   /* NULL while its node is being read */
    size_t num_anchored, capacity;

    cJSON *trees; /* [0]: the document; then values of merge keys */
    struct error *err;
};

MUST_CHECK static enum status refuse_at(const struct reader *r, const yaml_mark_t *at,
                                        const char *what)
{
    return fail(r->err, ERR_CORRUPT, "line %zu column %zu: %s", at->line + 1, at->column + 1, what);
}

MUST_CHECK static enum status refuse_event(const struct reader *r, const char *what)
{
    return refuse_at(r, &r->event.start_mark, what);
}

MUST_CHECK static enum status refuse_depth(const struct reader *r)
{
    char what[64];
    (void)snprintf(what, sizeof what, "nested more than %d deep", JSON_MAX_DEPTH);
    return refuse_event(r, what);
}

MUST_CHECK static enum status next_event(struct reader *r)
{
    yaml_event_delete(&r->event);
    if (yaml_parser_parse(&r->parser, &r->event)) return OK;
    const yaml_parser_t *p = &r->parser;
    if (p->error == YAML_MEMORY_ERROR) out_of_memory(p->offset);
    if (p->error == YAML_READER_ERROR)
        return fail(r->err, ERR_CORRUPT, "byte %zu: %s", p->problem_offset, p->problem);
    return refuse_at(r, &p->problem_mark, p->problem);
}

/* The current scalar as text; NUL becomes C0 80, as in json.h. */
static const char *scalar_text(const struct reader *r, struct strbuf *out)
{
    const char *from = (const char *)r->event.data.scalar.value;
    const char *end = from + r->event.data.scalar.length;
    strbuf_clear(out);
    for (const char *nul; (nul = memchr(from, '\0', (size_t)(end - from))); from = nul + 1) {
        strbuf_add(out, from, (size_t)(nul - from));
        strbuf_add_text(out, "\xC0\x80");
    }
    strbuf_add(out, from, (size_t)(end - from));
    return out->data;
}

/* Kind of the current scalar with the text `text`. */
static enum scalar scalar_kind(const struct reader *r, const char *text)
{
    const char *tag = (const char *)r->event.data.scalar.tag;
    bool plain = r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    if (!plain || (tag && strcmp(tag, YAML_STR_TAG) == 0)) return S_TEXT;
    return resolve_scalar(&r->patterns, text);
}

static cJSON *attach_item(cJSON *parent, const char *name, cJSON *item)
{
    if (!item) out_of_memory(sizeof *item);
    bool ok = cJSON_IsObject(parent) ? cJSON_AddItemToObject(parent, name, item)
                                     : cJSON_AddItemToArray(parent, item);
    if (!ok) out_of_memory(sizeof *item);
    return item;
}

static const char *anchor_name(const yaml_event_t *e)
{
    const yaml_char_t *name = e->type == YAML_SCALAR_EVENT           ? e->data.scalar.anchor
                              : e->type == YAML_MAPPING_START_EVENT  ? e->data.mapping_start.anchor
                              : e->type == YAML_SEQUENCE_START_EVENT ? e->data.sequence_start.anchor
                                                                     : NULL;
    return (const char *)name;
}

/* Index of an anchor's node. A repeated anchor replaces the earlier one. */
static size_t anchor_slot(struct reader *r, const char *name)
{
    size_t slot = r->num_anchored;
    if (map_get(&r->anchors, name, &slot)) return slot;
    *ARENA_PUSH(&r->names, r->anchored, r->num_anchored, r->capacity) = NULL;
    map_add(&r->anchors, arena_copy_text(&r->names, name), slot, NULL);
    return slot;
}

/* Number of nodes of item; *depth: nesting of collections, 0 for a scalar. */
static size_t count_nodes(const cJSON *item, unsigned *depth)
{
    size_t count = 1;
    unsigned deepest = 0, below;
    for (const cJSON *c = item->child; c; c = c->next) {
        count += count_nodes(c, &below);
        if (below > deepest) deepest = below;
    }
    *depth = deepest + (cJSON_IsArray(item) || cJSON_IsObject(item));
    return count;
}

/* Copies item below parent; counts as if written there. */
MUST_CHECK static enum status copy_node(struct reader *r, const cJSON *item, cJSON *parent,
                                        const char *name, cJSON **copy)
{
    unsigned depth;
    r->num_nodes += count_nodes(item, &depth);
    if (r->num_nodes > MAX_NODES) return refuse_event(r, "more than 1,000,000 nodes");
    if (r->depth + depth > JSON_MAX_DEPTH) return refuse_depth(r);
    *copy = attach_item(parent, name, cJSON_Duplicate(item, true));
    return OK;
}

MUST_CHECK static enum status read_alias(struct reader *r, cJSON *parent, const char *name,
                                         cJSON **node)
{
    size_t slot;
    if (!map_get(&r->anchors, (const char *)r->event.data.alias.anchor, &slot))
        return refuse_event(r, "an alias of an unknown anchor");
    if (!r->anchored[slot]) return refuse_event(r, "an alias within its own anchor");
    TRY(copy_node(r, r->anchored[slot], parent, name, node));
    return next_event(r);
}

MUST_CHECK static enum status read_scalar(struct reader *r, cJSON *parent, const char *name,
                                          cJSON **node)
{
    const char *text = scalar_text(r, &r->text);
    *node = attach_item(parent, name, scalar_item(scalar_kind(r, text), text));
    return next_event(r);
}

MUST_CHECK static enum status read_node(struct reader *r, cJSON *parent, const char *name,
                                        cJSON **node);

MUST_CHECK static enum status read_sequence(struct reader *r, cJSON *sequence)
{
    TRY(next_event(r));
    for (cJSON *node; r->event.type != YAML_SEQUENCE_END_EVENT;)
        TRY(read_node(r, sequence, NULL, &node));
    return next_event(r);
}

/* Adds missing members from a mapping or a sequence of mappings. */
MUST_CHECK static enum status merge_members(struct reader *r, cJSON *mapping, struct map *keys,
                                            const cJSON *from)
{
    for (const cJSON *c = from->child; c; c = c->next) {
        cJSON *copy = NULL;
        if (cJSON_IsArray(from))
            TRY(merge_members(r, mapping, keys, c));
        else if (!map_get(keys, c->string, NULL)) {
            TRY(copy_node(r, c, mapping, c->string, &copy));
            map_add(keys, copy->string, 0, NULL);
        }
    }
    return OK;
}

static bool can_be_merged(const cJSON *item)
{
    if (!cJSON_IsArray(item)) return cJSON_IsObject(item);
    for (const cJSON *c = item->child; c; c = c->next)
        if (!cJSON_IsObject(c)) return false;
    return true;
}

/* One key with its value. The value of a merge key goes to *merged only. */
MUST_CHECK static enum status read_member(struct reader *r, cJSON *mapping, struct map *keys,
                                          const cJSON **merged)
{
    if (r->event.type != YAML_SCALAR_EVENT) return refuse_event(r, "a key that is not a scalar");
    const char *key = scalar_text(r, &r->key);
    if (map_get(keys, key, NULL)) return refuse_event(r, "a repeated key in a mapping");
    bool is_merge = scalar_kind(r, key) == S_MERGE;
    yaml_mark_t at = r->event.start_mark;
    cJSON *node;
    TRY(next_event(r));
    TRY(read_node(r, is_merge ? r->trees : mapping, key, &node));
    map_add(keys, is_merge ? "<<" : node->string, 0, NULL);
    if (!is_merge) node->valueint = at.line < INT_MAX ? (int)at.line + 1 : 0;
    if (!is_merge) return OK;
    *merged = node;
    if (can_be_merged(node)) return OK;
    return refuse_at(r, &at, "<< takes a mapping or a sequence of mappings");
}

MUST_CHECK static enum status read_members(struct reader *r, cJSON *mapping, struct map *keys)
{
    const cJSON *merged = NULL;
    TRY(next_event(r));
    while (r->event.type != YAML_MAPPING_END_EVENT)
        TRY(read_member(r, mapping, keys, &merged));
    if (merged) TRY(merge_members(r, mapping, keys, merged));
    return next_event(r);
}

MUST_CHECK static enum status read_mapping(struct reader *r, cJSON *mapping)
{
    struct map keys = {0};
    enum status st = read_members(r, mapping, &keys);
    map_release(&keys);
    return st;
}

MUST_CHECK static enum status read_collection(struct reader *r, cJSON *parent, const char *name,
                                              cJSON **node)
{
    if (r->depth == JSON_MAX_DEPTH) return refuse_depth(r);
    bool is_mapping = r->event.type == YAML_MAPPING_START_EVENT;
    *node = attach_item(parent, name, is_mapping ? cJSON_CreateObject() : cJSON_CreateArray());
    r->depth++;
    TRY(is_mapping ? read_mapping(r, *node) : read_sequence(r, *node));
    r->depth--;
    return OK;
}

/* The node that begins with the current event. It joins its parent before its
 * own nodes are read, so the root frees it after any failure. */
static enum status read_node(struct reader *r, cJSON *parent, const char *name, cJSON **node)
{
    if (r->event.type == YAML_ALIAS_EVENT) return read_alias(r, parent, name, node);
    if (++r->num_nodes > MAX_NODES) return refuse_event(r, "more than 1,000,000 nodes");
    const char *anchor = anchor_name(&r->event);
    size_t slot = anchor ? anchor_slot(r, anchor) : 0;
    if (anchor) r->anchored[slot] = NULL;
    TRY(r->event.type == YAML_SCALAR_EVENT ? read_scalar(r, parent, name, node)
                                           : read_collection(r, parent, name, node));
    if (anchor) r->anchored[slot] = *node;
    return OK;
}

MUST_CHECK static enum status read_stream(struct reader *r)
{
    cJSON *document;
    TRY(next_event(r)); /* the start of the stream */
    TRY(next_event(r));
    if (r->event.type == YAML_STREAM_END_EVENT) {
        attach_item(r->trees, NULL, cJSON_CreateNull());
        return OK;
    }
    TRY(next_event(r));
    TRY(read_node(r, r->trees, NULL, &document));
    TRY(next_event(r));
    return r->event.type == YAML_STREAM_END_EVENT ? OK : refuse_event(r, "a second document");
}

static void reader_init(struct reader *r, const struct strbuf *text, struct error *err)
{
    *r = (struct reader){.err = err};
    if (!yaml_parser_initialize(&r->parser)) out_of_memory(sizeof r->parser);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text->data, text->length);
    patterns_init(&r->patterns);
    arena_init(&r->names);
    r->trees = cJSON_CreateArray();
    if (!r->trees) out_of_memory(sizeof *r->trees);
}

static void reader_release(struct reader *r)
{
    yaml_event_delete(&r->event);
    yaml_parser_delete(&r->parser);
    patterns_release(&r->patterns);
    strbuf_release(&r->key);
    strbuf_release(&r->text);
    map_release(&r->anchors);
    arena_release(&r->names);
    cJSON_Delete(r->trees);
}

enum status yaml_read_file(const char *path, uint64_t max_bytes, cJSON **tree, struct error *err)
{
    struct strbuf text = {0};
    *tree = NULL;
    enum status st = file_read_all(path, max_bytes, &text, err);
    if (!st) {
        struct reader r;
        reader_init(&r, &text, err);
        st = read_stream(&r);
        if (st)
            st = fail_in(err, "%s", path);
        else
            *tree = cJSON_DetachItemFromArray(r.trees, 0);
        reader_release(&r);
    }
    strbuf_release(&text);
    return st;
}

/* ---- printing ---- */

struct printer {
    yaml_emitter_t emitter;
    struct patterns patterns;
    struct strbuf text;
};

/* Only memory can run out: the printer sends valid text in the right order. */
static void emit_event(struct printer *p, int made, yaml_event_t *event)
{
    if (!made || !yaml_emitter_emit(&p->emitter, event)) out_of_memory(p->text.length);
}

static int append_output(void *out, unsigned char *data, size_t bytes)
{
    strbuf_add(out, data, bytes);
    return 1;
}

/* The text for libyaml: NUL for C0 80, valid UTF-8 throughout. */
static void set_text(struct strbuf *out, const char *text)
{
    strbuf_clear(out);
    strbuf_add_text(out, "");
    while (*text) {
        size_t n = utf8_sequence(text, strnlen(text, 4));
        bool nul = strncmp(text, "\xC0\x80", 2) == 0;
        if (n)
            strbuf_add(out, text, n);
        else
            strbuf_add(out, nul ? "" : "\xEF\xBF\xBD", nul ? 1 : 3);
        text += n ? n : nul ? 2 : 1;
    }
}

static void emit_scalar(struct printer *p, bool plain)
{
    yaml_event_t e;
    int made = yaml_scalar_event_initialize(&e, NULL, NULL, (const yaml_char_t *)p->text.data,
                                            (int)p->text.length, plain, 1, YAML_ANY_SCALAR_STYLE);
    emit_event(p, made, &e);
}

static void print_text(struct printer *p, const char *text)
{
    set_text(&p->text, text);
    emit_scalar(p, resolve_scalar(&p->patterns, text) == S_TEXT);
}

/* A float of YAML 1.1 has a point and a sign in its exponent. */
static void print_number(struct printer *p, const char *number)
{
    size_t mantissa = strcspn(number, "eE");
    strbuf_clear(&p->text);
    if (strcmp(number, "NaN") == 0) {
        strbuf_add_text(&p->text, ".nan");
    } else if (strstr(number, "Infinity")) {
        strbuf_add_text(&p->text, *number == '-' ? "-.inf" : ".inf");
    } else if (!number[mantissa]) {
        strbuf_add_text(&p->text, number);
    } else {
        const char *exponent = number + mantissa + 1;
        strbuf_add(&p->text, number, mantissa);
        if (!strchr(p->text.data, '.')) strbuf_add_text(&p->text, ".0");
        strbuf_printf(&p->text, "e%s%s", strchr("+-", *exponent) ? "" : "+", exponent);
    }
    emit_scalar(p, true);
}

static void print_node(struct printer *p, const cJSON *item);

static void print_collection(struct printer *p, const cJSON *item, bool is_mapping)
{
    yaml_event_t e;
    emit_event(
        p,
        is_mapping
            ? yaml_mapping_start_event_initialize(&e, NULL, NULL, 1, YAML_BLOCK_MAPPING_STYLE)
            : yaml_sequence_start_event_initialize(&e, NULL, NULL, 1, YAML_BLOCK_SEQUENCE_STYLE),
        &e);
    for (const cJSON *c = item->child; c; c = c->next) {
        if (is_mapping) print_text(p, c->string);
        print_node(p, c);
    }
    emit_event(p,
               is_mapping ? yaml_mapping_end_event_initialize(&e)
                          : yaml_sequence_end_event_initialize(&e),
               &e);
}

static void print_node(struct printer *p, const cJSON *item)
{
    if (cJSON_IsObject(item) || cJSON_IsArray(item)) {
        print_collection(p, item, cJSON_IsObject(item));
    } else if (cJSON_IsString(item)) {
        print_text(p, item->valuestring);
    } else if (cJSON_IsRaw(item)) {
        print_number(p, item->valuestring);
    } else {
        set_text(&p->text, cJSON_IsNull(item) ? "null" : cJSON_IsTrue(item) ? "true" : "false");
        emit_scalar(p, true);
    }
}

void yaml_print(struct strbuf *out, const cJSON *tree)
{
    struct printer p = {0};
    yaml_event_t e;
    if (!yaml_emitter_initialize(&p.emitter)) out_of_memory(sizeof p.emitter);
    yaml_emitter_set_output(&p.emitter, append_output, out);
    yaml_emitter_set_unicode(&p.emitter, 1);
    patterns_init(&p.patterns);
    emit_event(&p, yaml_stream_start_event_initialize(&e, YAML_UTF8_ENCODING), &e);
    emit_event(&p, yaml_document_start_event_initialize(&e, NULL, NULL, NULL, 1), &e);
    print_node(&p, tree);
    emit_event(&p, yaml_document_end_event_initialize(&e, 1), &e);
    emit_event(&p, yaml_stream_end_event_initialize(&e), &e);
    yaml_emitter_delete(&p.emitter);
    patterns_release(&p.patterns);
    strbuf_release(&p.text);
}
