/* The stack machine. Invariants:
 *
 * 1. When an opcode's function runs, step_opcode() has checked that the values
 *    it pops are on the stack, above the last open MARK.
 * 2. Nothing on the stack, in the memo or in a container is NULL. Constants and
 *    globals are shared and never change; BUILD and the like change only lists,
 *    sets, dicts and objects.
 * 3. A hook's VALUE_NATIVE overwrites the object in place, so all references
 *    see it. */
#include "formats/pickle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/memory.h"
#include "formats/pickle_internal.h"

enum {
    HIGHEST_PROTOCOL = 5,
    BYTES_PER_BYTE = 64, /* memory per byte of the stream; see pickle.h */
    BYTES_AT_LEAST = 1 << 20,
};

/* ---- values ---- */

struct value *reader_int(struct pickle_reader *r, int64_t integer)
{
    bool is_small = integer >= 0 && integer < 256;
    if (is_small && r->small_ints[integer]) return r->small_ints[integer];
    struct value *v = pool_value(&r->pool, VALUE_INT);
    v->integer = integer;
    if (is_small) r->small_ints[integer] = v;
    return v;
}

struct value *reader_text(struct pickle_reader *r, enum value_kind kind, const char *text,
                          size_t length)
{
    struct value *v = pool_value(&r->pool, kind);
    char *copy = pool_payload(&r->pool, length + 1);
    if (length) memcpy(copy, text, length);
    copy[length] = '\0';
    v->text = copy;
    v->count = (uint32_t)length;
    return v;
}

struct value *reader_object(struct pickle_reader *r, const struct value_object *o)
{
    struct value *v = pool_value(&r->pool, VALUE_OBJECT);
    v->object = pool_payload(&r->pool, sizeof *o);
    *v->object = *o;
    return v;
}

static size_t width_of(const struct value *v)
{
    return v->kind == VALUE_DICT ? 2 : 1;
}

static size_t room_of(const struct value *v, size_t count)
{
    size_t capacity = v->kind == VALUE_TUPLE ? count : value_capacity(count);
    return capacity * width_of(v) * sizeof(struct value *);
}

void reader_append(struct pickle_reader *r, struct value *v, struct value **items, size_t count)
{
    size_t old_bytes = room_of(v, v->count), bytes = room_of(v, v->count + count);
    size_t used = v->count * width_of(v);
    if (bytes > old_bytes) {
        struct value **larger = pool_payload(&r->pool, bytes);
        if (used) memcpy(larger, v->items, used * sizeof *larger);
        pool_payload_free(&r->pool, v->items, old_bytes);
        v->items = larger;
    }
    if (count) memcpy(v->items + used, items, count * width_of(v) * sizeof *items);
    v->count += (uint32_t)count;
}

struct value *reader_items(struct pickle_reader *r, enum value_kind kind, struct value **items,
                           size_t count)
{
    struct value *v = pool_value(&r->pool, kind);
    reader_append(r, v, items, count);
    return v;
}

static const char *const kind_names[] = {
    [VALUE_NONE] = "None",
    [VALUE_BOOL] = "a bool",
    [VALUE_INT] = "an int",
    [VALUE_BIG_INT] = "an int",
    [VALUE_FLOAT] = "a float",
    [VALUE_TEXT] = "a text",
    [VALUE_BYTES] = "bytes",
    [VALUE_LIST] = "a list",
    [VALUE_TUPLE] = "a tuple",
    [VALUE_SET] = "a set",
    [VALUE_DICT] = "a dict",
    [VALUE_GLOBAL] = "a global",
    [VALUE_OBJECT] = "an object",
    [VALUE_STORAGE] = "a storage",
    [VALUE_TENSOR] = "a tensor",
    [VALUE_NATIVE] = "an object that is in use",
    [VALUE_SKIPPED] = "a skipped value",
};

/* ---- the stack ---- */

void reader_push(struct pickle_reader *r, struct value *v)
{
    if (r->depth == r->capacity) {
        r->capacity *= 2;
        r->stack = must_realloc(r->stack, r->capacity * sizeof *r->stack);
    }
    r->stack[r->depth++] = v;
}

static struct value *pop(struct pickle_reader *r)
{
    return r->stack[--r->depth];
}

static struct value *top(const struct pickle_reader *r)
{
    return r->stack[r->depth - 1];
}

/* Lowest place that may be popped. */
static size_t floor_of(const struct pickle_reader *r)
{
    return r->num_marks ? r->marks[r->num_marks - 1] : 0;
}

/* Takes everything above the last MARK, and the mark; items stay valid until
 * the next push. */
static struct value **pop_mark(struct pickle_reader *r, size_t *count)
{
    size_t base = r->marks[--r->num_marks];
    *count = r->depth - base;
    r->depth = base;
    return r->stack + base;
}

/* An instance is complete once it goes into a container: calls the hook. */
static struct value *complete_instance(struct pickle_reader *r, struct value *v)
{
    if (v->kind != VALUE_OBJECT || !r->hooks->built) return v;
    const struct value *class = v->object->callable;
    const char *name = class->kind == VALUE_GLOBAL ? class->global->name : "";
    void *native = r->hooks->built(r->hooks->context, name, v);
    if (!native) return v;
    pool_value_clear(&r->pool, v);
    v->kind = VALUE_NATIVE;
    v->native = native;
    return v;
}

static void complete_all(struct pickle_reader *r, struct value **items, size_t count)
{
    for (size_t i = 0; i < count && r->hooks->built; i++)
        complete_instance(r, items[i]);
}

/* ---- protocol and frames ---- */

static enum status run_proto(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    (void)r;
    if (t->number <= HIGHEST_PROTOCOL) return OK;
    return fail(err, ERR_CORRUPT, "protocol %" PRIu64 ", the highest is %d", t->number,
                HIGHEST_PROTOCOL);
}

/* The length is a hint, but must not point past the end. */
static enum status run_frame(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    uint64_t left = r->lexer.size_bytes - lexer_offset(&r->lexer);
    if (t->number <= left) return OK;
    return fail(err, ERR_CORRUPT, "a frame of %" PRIu64 " bytes, %" PRIu64 " are left", t->number,
                left);
}

/* ---- stack and memo ---- */

static enum status run_mark(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    (void)t, (void)err;
    if (r->num_marks == r->marks_capacity) {
        r->marks_capacity = r->marks_capacity ? 2 * r->marks_capacity : 64;
        r->marks = must_realloc(r->marks, r->marks_capacity * sizeof *r->marks);
    }
    r->marks[r->num_marks++] = r->depth;
    return OK;
}

static enum status run_pop(struct pickle_reader *r, const struct pickle_token *t, struct error *err)
{
    (void)t;
    if (r->depth > floor_of(r))
        r->depth--;
    else if (r->num_marks)
        r->num_marks--;
    else
        return fail(err, ERR_CORRUPT, "POP on an empty stack");
    return OK;
}

static enum status run_pop_mark(struct pickle_reader *r, const struct pickle_token *t,
                                struct error *err)
{
    size_t count;
    (void)t, (void)err;
    pop_mark(r, &count);
    return OK;
}

static enum status run_dup(struct pickle_reader *r, const struct pickle_token *t, struct error *err)
{
    (void)t, (void)err;
    reader_push(r, top(r));
    return OK;
}

/* The place of entry `index` in r->memo; false if nothing fetches it. */
static bool memo_place(const struct pickle_reader *r, uint64_t index, size_t *place)
{
    *place = (size_t)index;
    return !r->hooks->built || survey_fetched(&r->survey, index, place);
}

static void memo_set(struct pickle_reader *r, uint64_t index, struct value *v)
{
    size_t place;
    if (!memo_place(r, index, &place)) return;
    if (place >= r->memo_capacity) {
        size_t capacity = place + place / 2 + 64;
        r->memo = must_realloc(r->memo, capacity * sizeof *r->memo);
        memset(r->memo + r->memo_capacity, 0, (capacity - r->memo_capacity) * sizeof *r->memo);
        r->memo_capacity = capacity;
    }
    r->memo[place] = v;
}

/* MEMOIZE uses the number of entries as index. A survey keeps only some entries
 * and could not count them if PUT set one twice, so the two opcodes may not
 * mix; Python never mixes them. */
static enum status not_mixed(const struct pickle_reader *r, struct error *err)
{
    if (!r->memo_by_put || !r->memo_by_order) return OK;
    return fail(err, ERR_CORRUPT, "PUT and MEMOIZE in one stream");
}

static enum status run_put(struct pickle_reader *r, const struct pickle_token *t, struct error *err)
{
    r->memo_by_put = true;
    TRY(not_mixed(r, err));
    if (t->number > r->num_opcodes)
        return fail(err, ERR_CORRUPT, "memo index %" PRIu64 " after %" PRIu64 " opcodes", t->number,
                    r->num_opcodes);
    memo_set(r, t->number, top(r));
    return OK;
}

static enum status run_memoize(struct pickle_reader *r, const struct pickle_token *t,
                               struct error *err)
{
    (void)t;
    r->memo_by_order = true;
    TRY(not_mixed(r, err));
    memo_set(r, r->num_memoized++, top(r));
    return OK;
}

static enum status run_get(struct pickle_reader *r, const struct pickle_token *t, struct error *err)
{
    size_t place;
    bool set = memo_place(r, t->number, &place) && place < r->memo_capacity && r->memo[place];
    if (!set) {
        r->refers_to_skipped = r->survey.num_skips > 0;
        return fail(err, ERR_CORRUPT, "memo entry %" PRIu64 " was never set", t->number);
    }
    reader_push(r, r->memo[place]);
    return OK;
}

/* ---- containers ---- */

static enum status push_items(struct pickle_reader *r, enum value_kind kind, struct value **items,
                              size_t count)
{
    complete_all(r, items, count);
    reader_push(r, reader_items(r, kind, items, count));
    return OK;
}

/* EMPTY_LIST, EMPTY_DICT, EMPTY_SET, EMPTY_TUPLE. */
static enum status run_empty(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    (void)err;
    return push_items(r, t->opcode->kind, NULL, 0);
}

/* TUPLE1, TUPLE2, TUPLE3. */
static enum status run_short_tuple(struct pickle_reader *r, const struct pickle_token *t,
                                   struct error *err)
{
    (void)err;
    size_t count = (size_t)t->opcode->pops;
    r->depth -= count;
    return push_items(r, VALUE_TUPLE, r->stack + r->depth, count);
}

/* TUPLE, LIST, FROZENSET. */
static enum status run_items(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    (void)err;
    size_t count;
    struct value **items = pop_mark(r, &count);
    return push_items(r, t->opcode->kind, items, count);
}

static enum status check_pairs(struct value **items, size_t count, struct error *err)
{
    if (count % 2) return fail(err, ERR_CORRUPT, "a key without a value");
    for (size_t i = 0; i < count; i += 2)
        if (items[i]->kind == VALUE_LIST || items[i]->kind == VALUE_DICT)
            return fail(err, ERR_CORRUPT, "%s cannot be a key", kind_names[items[i]->kind]);
    return OK;
}

static enum status run_dict(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    (void)t;
    size_t count;
    struct value **items = pop_mark(r, &count);
    TRY(check_pairs(items, count, err));
    complete_all(r, items, count);
    reader_push(r, reader_items(r, VALUE_DICT, items, count / 2));
    return OK;
}

/* The container for additions to `to`: itself, if of that kind; a list or dict
 * beside an object. */
static enum status container_of(struct pickle_reader *r, struct value *to, enum value_kind kind,
                                struct value **out, struct error *err)
{
    *out = to;
    if (to->kind == kind) return OK;
    if (to->kind == VALUE_OBJECT && !to->object->args) to = to->object->callable; /* with a state */
    if (to->kind != VALUE_OBJECT)
        return fail(err, ERR_CORRUPT, "cannot add items to %s", kind_names[to->kind]);
    struct value **beside = kind == VALUE_DICT ? &to->object->pairs : &to->object->items;
    if (!*beside) *beside = reader_items(r, kind == VALUE_DICT ? kind : VALUE_LIST, NULL, 0);
    *out = *beside;
    return OK;
}

static enum status add_items(struct pickle_reader *r, struct value *to, enum value_kind kind,
                             struct value **items, size_t count, struct error *err)
{
    struct value *container;
    TRY(container_of(r, to, kind, &container, err));
    complete_all(r, items, count);
    if (kind == VALUE_DICT) {
        TRY(check_pairs(items, count, err));
        count /= 2;
    }
    if (count > UINT32_MAX - container->count)
        return fail(err, ERR_CORRUPT, "%s of 2^32 items", kind_names[container->kind]);
    reader_append(r, container, items, count);
    return OK;
}

/* APPEND, SETITEM. */
static enum status run_add(struct pickle_reader *r, const struct pickle_token *t, struct error *err)
{
    size_t count = (size_t)t->opcode->pops - 1;
    r->depth -= count;
    return add_items(r, top(r), t->opcode->kind, r->stack + r->depth, count, err);
}

/* APPENDS, SETITEMS, ADDITEMS. */
static enum status run_add_to_mark(struct pickle_reader *r, const struct pickle_token *t,
                                   struct error *err)
{
    size_t count;
    struct value **items = pop_mark(r, &count);
    return add_items(r, top(r), t->opcode->kind, items, count, err);
}

/* ---- globals, calls, instances ---- */

static enum status run_global(struct pickle_reader *r, const struct pickle_token *t,
                              struct error *err)
{
    const char *newline = memchr(t->bytes, '\n', t->length);
    size_t length = (size_t)(newline - t->bytes);
    return pickle_push_global(r, t->bytes, length, newline + 1, t->length - length - 1, err);
}

static enum status run_stack_global(struct pickle_reader *r, const struct pickle_token *t,
                                    struct error *err)
{
    (void)t;
    const struct value *name = pop(r), *module = pop(r);
    if (name->kind != VALUE_TEXT || module->kind != VALUE_TEXT)
        return fail(err, ERR_CORRUPT, "module and name are %s and %s, expected texts",
                    kind_names[module->kind], kind_names[name->kind]);
    return pickle_push_global(r, module->text, module->count, name->text, name->count, err);
}

/* A text on top of the stack is mostly the key for the failed call's result. */
static enum status in_key(struct pickle_reader *r, enum status st, struct error *err)
{
    const struct value *key = r->depth > floor_of(r) ? top(r) : NULL;
    if (!key || key->kind != VALUE_TEXT || key->count > 200) return st;
    strbuf_clear(&r->scratch);
    strbuf_add_escaped(&r->scratch, key->text, key->count);
    return fail_in(err, "%s", r->scratch.data ? r->scratch.data : "");
}

static enum status push_call(struct pickle_reader *r, struct value *callable, struct value *args,
                             struct error *err)
{
    struct value *v;
    if (args->kind != VALUE_TUPLE)
        return fail(err, ERR_CORRUPT, "the arguments are %s, not a tuple", kind_names[args->kind]);
    enum status st = pickle_call(r, callable, args, &v, err);
    if (st) return in_key(r, st, err);
    if (!v) v = reader_object(r, &(struct value_object){.callable = callable, .args = args});
    reader_push(r, v);
    return OK;
}

static enum status run_reduce(struct pickle_reader *r, const struct pickle_token *t,
                              struct error *err)
{
    (void)t;
    struct value *args = pop(r), *callable = pop(r);
    return push_call(r, callable, args, err);
}

static enum status new_object(struct pickle_reader *r, struct value *class, struct value *args,
                              struct value *kwargs, struct error *err)
{
    if (args->kind != VALUE_TUPLE)
        return fail(err, ERR_CORRUPT, "the arguments are %s, not a tuple", kind_names[args->kind]);
    reader_push(r, reader_object(
                       r, &(struct value_object){
                              .callable = class, .args = args, .kwargs = kwargs, .by_new = true}));
    return OK;
}

static enum status run_newobj(struct pickle_reader *r, const struct pickle_token *t,
                              struct error *err)
{
    (void)t;
    struct value *args = pop(r), *class = pop(r);
    return new_object(r, class, args, NULL, err);
}

static enum status run_newobj_ex(struct pickle_reader *r, const struct pickle_token *t,
                                 struct error *err)
{
    (void)t;
    struct value *kwargs = pop(r), *args = pop(r), *class = pop(r);
    if (kwargs->kind != VALUE_DICT)
        return fail(err, ERR_CORRUPT, "the keyword arguments are %s", kind_names[kwargs->kind]);
    return new_object(r, class, args, kwargs, err);
}

/* Protocol 0: a class by two lines, with its arguments above the mark. */
static enum status run_inst(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    size_t count;
    struct value **items = pop_mark(r, &count);
    struct value *args = reader_items(r, VALUE_TUPLE, items, count);
    TRY(run_global(r, t, err));
    return push_call(r, pop(r), args, err);
}

static enum status run_obj(struct pickle_reader *r, const struct pickle_token *t, struct error *err)
{
    (void)t;
    size_t count;
    struct value **items = pop_mark(r, &count);
    if (!count) return fail(err, ERR_CORRUPT, "no class above the mark");
    struct value *class = items[0];
    return push_call(r, class, reader_items(r, VALUE_TUPLE, items + 1, count - 1), err);
}

/* A value without a place for a state drops it: the attributes of a state dict
 * (_metadata) or of a tensor. A shared global becomes an object of its own. */
static enum status run_build(struct pickle_reader *r, const struct pickle_token *t,
                             struct error *err)
{
    (void)t;
    struct value *state = complete_instance(r, pop(r)), *v = top(r);
    switch (v->kind) {
    case VALUE_OBJECT:
        v->object->state = state;
        return OK;
    case VALUE_GLOBAL:
        r->stack[r->depth - 1] =
            reader_object(r, &(struct value_object){.callable = v, .state = state});
        return OK;
    case VALUE_DICT:
    case VALUE_SET:
    case VALUE_TENSOR:
        return OK;
    default:
        return fail(err, ERR_CORRUPT, "cannot set a state of %s", kind_names[v->kind]);
    }
}

static enum status run_binpersid(struct pickle_reader *r, const struct pickle_token *t,
                                 struct error *err)
{
    (void)t;
    struct value *v, *id = pop(r);
    TRY(pickle_persistent(r, id, &v, err));
    reader_push(r, v);
    return OK;
}

static enum status run_persid(struct pickle_reader *r, const struct pickle_token *t,
                              struct error *err)
{
    (void)r, (void)t;
    return fail(err, ERR_CORRUPT, "persistent ids in text are not supported");
}

static enum status run_refused(struct pickle_reader *r, const struct pickle_token *t,
                               struct error *err)
{
    (void)r;
    return fail(err, ERR_CORRUPT, "%s is not supported in a file", t->opcode->name);
}

static enum status run_stop(struct pickle_reader *r, const struct pickle_token *t,
                            struct error *err)
{
    (void)t;
    struct value *v = complete_instance(r, pop(r));
    if (r->num_marks) return fail(err, ERR_CORRUPT, "STOP while a MARK is open");
    if (r->depth) return fail(err, ERR_CORRUPT, "STOP with %zu more values", r->depth);
    r->result = v;
    return OK;
}

// clang-format off
const struct pickle_opcode pickle_opcodes[256] = {
    /*         name                argument      pops pushes    kind of the value */
    [0x80] = {"PROTO",             ARG_U8,         0, 0, run_proto, VALUE_NONE},
    ['.']  = {"STOP",              ARG_NONE,       1, 0, run_stop, VALUE_NONE},
    [0x95] = {"FRAME",             ARG_U64,        0, 0, run_frame, VALUE_NONE},
    ['(']  = {"MARK",              ARG_NONE,       0, 0, run_mark, VALUE_NONE},
    ['0']  = {"POP",               ARG_NONE,       0, 0, run_pop, VALUE_NONE},
    ['1']  = {"POP_MARK",          ARG_NONE, TO_MARK, 0, run_pop_mark, VALUE_NONE},
    ['2']  = {"DUP",               ARG_NONE,       1, 2, run_dup, VALUE_NONE},
    ['N']  = {"NONE",              ARG_NONE,       0, 1, pickle_run_none, VALUE_NONE},
    [0x88] = {"NEWTRUE",           ARG_NONE,       0, 1, pickle_run_true, VALUE_NONE},
    [0x89] = {"NEWFALSE",          ARG_NONE,       0, 1, pickle_run_false, VALUE_NONE},
    ['K']  = {"BININT1",           ARG_U8,         0, 1, pickle_run_int, VALUE_NONE},
    ['M']  = {"BININT2",           ARG_U16,        0, 1, pickle_run_int, VALUE_NONE},
    ['J']  = {"BININT",            ARG_I32,        0, 1, pickle_run_int, VALUE_NONE},
    [0x8A] = {"LONG1",             ARG_BYTES_U8,   0, 1, pickle_run_long, VALUE_NONE},
    [0x8B] = {"LONG4",             ARG_BYTES_I32,  0, 1, pickle_run_long, VALUE_NONE},
    ['I']  = {"INT",               ARG_LINE,       0, 1, pickle_run_text_int, VALUE_NONE},
    ['L']  = {"LONG",              ARG_LINE,       0, 1, pickle_run_text_long, VALUE_NONE},
    ['G']  = {"BINFLOAT",          ARG_F64,        0, 1, pickle_run_float, VALUE_NONE},
    ['F']  = {"FLOAT",             ARG_LINE,       0, 1, pickle_run_text_float, VALUE_NONE},
    ['X']  = {"BINUNICODE",        ARG_BYTES_U32,  0, 1, pickle_run_text, VALUE_NONE},
    [0x8C] = {"SHORT_BINUNICODE",  ARG_BYTES_U8,   0, 1, pickle_run_text, VALUE_NONE},
    [0x8D] = {"BINUNICODE8",       ARG_BYTES_U64,  0, 1, pickle_run_text, VALUE_NONE},
    ['V']  = {"UNICODE",           ARG_LINE,       0, 1, pickle_run_unicode_line, VALUE_NONE},
    ['U']  = {"SHORT_BINSTRING",   ARG_BYTES_U8,   0, 1, pickle_run_text, VALUE_NONE},
    ['T']  = {"BINSTRING",         ARG_BYTES_I32,  0, 1, pickle_run_text, VALUE_NONE},
    ['S']  = {"STRING",            ARG_LINE,       0, 1, pickle_run_quoted, VALUE_NONE},
    ['C']  = {"SHORT_BINBYTES",    ARG_BYTES_U8,   0, 1, pickle_run_bytes, VALUE_NONE},
    ['B']  = {"BINBYTES",          ARG_BYTES_U32,  0, 1, pickle_run_bytes, VALUE_NONE},
    [0x8E] = {"BINBYTES8",         ARG_BYTES_U64,  0, 1, pickle_run_bytes, VALUE_NONE},
    [0x96] = {"BYTEARRAY8",        ARG_BYTES_U64,  0, 1, pickle_run_bytes, VALUE_NONE},
    [']']  = {"EMPTY_LIST",        ARG_NONE,       0, 1, run_empty, VALUE_LIST},
    ['}']  = {"EMPTY_DICT",        ARG_NONE,       0, 1, run_empty, VALUE_DICT},
    [')']  = {"EMPTY_TUPLE",       ARG_NONE,       0, 1, run_empty, VALUE_TUPLE},
    [0x8F] = {"EMPTY_SET",         ARG_NONE,       0, 1, run_empty, VALUE_SET},
    ['a']  = {"APPEND",            ARG_NONE,       2, 1, run_add, VALUE_LIST},
    ['e']  = {"APPENDS",           ARG_NONE, TO_MARK_AND_BELOW, 1, run_add_to_mark, VALUE_LIST},
    ['s']  = {"SETITEM",           ARG_NONE,       3, 1, run_add, VALUE_DICT},
    ['u']  = {"SETITEMS",          ARG_NONE, TO_MARK_AND_BELOW, 1, run_add_to_mark, VALUE_DICT},
    [0x90] = {"ADDITEMS",          ARG_NONE, TO_MARK_AND_BELOW, 1, run_add_to_mark, VALUE_SET},
    [0x91] = {"FROZENSET",         ARG_NONE, TO_MARK, 1, run_items, VALUE_SET},
    ['t']  = {"TUPLE",             ARG_NONE, TO_MARK, 1, run_items, VALUE_TUPLE},
    [0x85] = {"TUPLE1",            ARG_NONE,       1, 1, run_short_tuple, VALUE_NONE},
    [0x86] = {"TUPLE2",            ARG_NONE,       2, 1, run_short_tuple, VALUE_NONE},
    [0x87] = {"TUPLE3",            ARG_NONE,       3, 1, run_short_tuple, VALUE_NONE},
    ['l']  = {"LIST",              ARG_NONE, TO_MARK, 1, run_items, VALUE_LIST},
    ['d']  = {"DICT",              ARG_NONE, TO_MARK, 1, run_dict, VALUE_NONE},
    ['c']  = {"GLOBAL",            ARG_TWO_LINES,  0, 1, run_global, VALUE_NONE},
    [0x93] = {"STACK_GLOBAL",      ARG_NONE,       2, 1, run_stack_global, VALUE_NONE},
    ['R']  = {"REDUCE",            ARG_NONE,       2, 1, run_reduce, VALUE_NONE},
    [0x81] = {"NEWOBJ",            ARG_NONE,       2, 1, run_newobj, VALUE_NONE},
    [0x92] = {"NEWOBJ_EX",         ARG_NONE,       3, 1, run_newobj_ex, VALUE_NONE},
    ['b']  = {"BUILD",             ARG_NONE,       2, 1, run_build, VALUE_NONE},
    ['i']  = {"INST",              ARG_TWO_LINES, TO_MARK, 1, run_inst, VALUE_NONE},
    ['o']  = {"OBJ",               ARG_NONE, TO_MARK, 1, run_obj, VALUE_NONE},
    ['Q']  = {"BINPERSID",         ARG_NONE,       1, 1, run_binpersid, VALUE_NONE},
    ['P']  = {"PERSID",            ARG_LINE,       0, 1, run_persid, VALUE_NONE},
    ['q']  = {"BINPUT",            ARG_U8,         1, 1, run_put, VALUE_NONE},
    ['r']  = {"LONG_BINPUT",       ARG_U32,        1, 1, run_put, VALUE_NONE},
    ['p']  = {"PUT",               ARG_INDEX_LINE, 1, 1, run_put, VALUE_NONE},
    [0x94] = {"MEMOIZE",           ARG_NONE,       1, 1, run_memoize, VALUE_NONE},
    ['h']  = {"BINGET",            ARG_U8,         0, 1, run_get, VALUE_NONE},
    ['j']  = {"LONG_BINGET",       ARG_U32,        0, 1, run_get, VALUE_NONE},
    ['g']  = {"GET",               ARG_INDEX_LINE, 0, 1, run_get, VALUE_NONE},
    [0x82] = {"EXT1",              ARG_U8,         0, 1, run_refused, VALUE_NONE},
    [0x83] = {"EXT2",              ARG_U16,        0, 1, run_refused, VALUE_NONE},
    [0x84] = {"EXT4",              ARG_I32,        0, 1, run_refused, VALUE_NONE},
    [0x97] = {"NEXT_BUFFER",       ARG_NONE,       0, 1, run_refused, VALUE_NONE},
    [0x98] = {"READONLY_BUFFER",   ARG_NONE,       1, 1, run_refused, VALUE_NONE},
};
// clang-format on

/* ---- the loop ---- */

static enum status check_stack(const struct pickle_reader *r, const struct pickle_opcode *op,
                               struct error *err)
{
    size_t base = floor_of(r), have = r->depth - base, pops = (size_t)(op->pops > 0 ? op->pops : 0);
    if (op->pops < 0) {
        if (!r->num_marks) return fail(err, ERR_CORRUPT, "%s without a MARK", op->name);
        if (op->pops == TO_MARK) return OK;
        size_t outer = r->num_marks > 1 ? r->marks[r->num_marks - 2] : 0;
        have = base - outer;
        pops = 1;
    }
    if (have >= pops) return OK;
    return fail(err, ERR_CORRUPT, "%s needs %zu values, the stack has %zu", op->name, pops, have);
}

/* Copies of memoised values could make a small file use unlimited memory. */
static enum status check_memory(const struct pickle_reader *r, size_t before, uint64_t offset,
                                struct error *err)
{
    uint64_t bytes = r->pool.arena->total_bytes - before;
    if (r->depth >= UINT32_MAX) return fail(err, ERR_CORRUPT, "2^32 values on the stack");
    if (bytes < BYTES_AT_LEAST || bytes / BYTES_PER_BYTE <= lexer_offset(&r->lexer) - offset)
        return OK;
    return fail(err, ERR_CORRUPT,
                "its values take %" PRIu64 " bytes of memory, at most %d for each byte are allowed",
                bytes, BYTES_PER_BYTE);
}

static void collect_values(struct pickle_reader *r)
{
    for (size_t i = 0; i < r->depth; i++)
        pool_mark(&r->pool, r->stack[i]);
    for (size_t i = 0; i < r->memo_capacity; i++)
        pool_mark(&r->pool, r->memo[i]);
    for (size_t i = 0; i < 256; i++)
        pool_mark(&r->pool, r->small_ints[i]);
    pool_sweep(&r->pool, r->depth + r->memo_capacity);
}

/* Skips the value that begins at this place of the stream, if there is one. */
static void pass_over(struct pickle_reader *r)
{
    if (r->next_skip == r->survey.num_skips) return;
    const struct pickle_skip *skip = &r->survey.skips[r->next_skip];
    if (lexer_offset(&r->lexer) != skip->begin) return;
    r->next_skip++;
    lexer_seek(&r->lexer, skip->end);
    r->num_memoized = skip->num_memoized;
    r->num_opcodes = skip->num_opcodes;
    reader_push(r, r->skipped);
}

static enum status step_opcode(struct pickle_reader *r, struct error *err)
{
    struct pickle_token t;
    TRY(lexer_next(&r->lexer, &t, SIZE_MAX, err));
    r->num_opcodes++;
    enum status st = check_stack(r, t.opcode, err);
    if (!st) st = t.opcode->run(r, &t, err);
    return st ? fail_in(err, "opcode 0x%02X at byte %" PRIu64, t.code, t.offset) : OK;
}

static enum status run_opcodes(struct pickle_reader *r, uint64_t offset, struct error *err)
{
    size_t before = r->pool.arena->total_bytes;
    while (!r->result) {
        TRY(step_opcode(r, err));
        TRY(check_memory(r, before, offset, err));
        if (r->pool.allocated > r->pool.threshold && r->pool.collects) collect_values(r);
        pass_over(r);
    }
    return OK;
}

static void reader_init(struct pickle_reader *r, struct arena *a, const struct pickle_hooks *hooks)
{
    static const struct pickle_hooks no_hooks;
    *r = (struct pickle_reader){.hooks = hooks ? hooks : &no_hooks, .capacity = 64};
    r->stack = must_malloc(r->capacity * sizeof *r->stack);
    pool_init(&r->pool, a, r->hooks->built != NULL, r->hooks->collect_bytes);
    r->none = value_none(a);
    r->truths[0] = value_bool(a, false);
    r->truths[1] = value_bool(a, true);
    r->skipped = pool_value(&r->pool, VALUE_SKIPPED);
}

static void reader_release(struct pickle_reader *r)
{
    lexer_release(&r->lexer);
    pool_release(&r->pool);
    survey_release(&r->survey);
    map_release(&r->globals);
    strbuf_release(&r->scratch);
    free(r->stack);
    free(r->marks);
    free(r->memo);
}

static enum status make_survey(struct pickle_survey *s, const struct bytes *in, uint64_t offset,
                               const struct pickle_hooks *hooks, bool skip, struct error *err)
{
    struct pickle_lexer x;
    enum status st = OK;
    if (!hooks || !hooks->built) return OK;
    if (skip && hooks->num_skip_attributes) {
        lexer_init(&x, in, offset);
        st = survey_find_skips(s, &x, hooks, err);
        lexer_release(&x);
    }
    if (st) return st;
    lexer_init(&x, in, offset);
    st = survey_find_fetched(s, &x, err);
    lexer_release(&x);
    return st;
}

static enum status read_once(struct arena *a, const struct bytes *in, uint64_t offset,
                             const struct pickle_hooks *hooks, bool skip, struct value **out,
                             uint64_t *end, bool *again, struct error *err)
{
    struct pickle_reader r;
    reader_init(&r, a, hooks);
    enum status st = make_survey(&r.survey, in, offset, hooks, skip, err);
    lexer_init(&r.lexer, in, offset);
    if (!st) st = run_opcodes(&r, offset, err);
    *again = st && r.refers_to_skipped;
    *out = r.result;
    if (end) *end = lexer_offset(&r.lexer);
    reader_release(&r);
    return st;
}

enum status pickle_read(struct arena *a, const struct bytes *in, uint64_t offset,
                        const struct pickle_hooks *hooks, struct value **out, uint64_t *end,
                        struct error *err)
{
    bool again;
    enum status st = read_once(a, in, offset, hooks, true, out, end, &again, err);
    return again ? read_once(a, in, offset, hooks, false, out, end, &again, err) : st;
}

enum status pickle_read_bytes(struct arena *a, const void *data, size_t bytes, struct value **out,
                              struct error *err)
{
    struct bytes in = bytes_of_memory(bytes ? data : "", bytes);
    return pickle_read(a, &in, 0, NULL, out, NULL, err);
}
