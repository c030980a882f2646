/* Writes values in protocol 2, in two passes: the first counts references, so
 * only shared values take a memo entry; the second writes. Neither recurses:
 * the file decides the nesting. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/checked.h"
#include "common/count.h"
#include "common/memory.h"
#include "common/utf8.h"
#include "formats/pickle_internal.h"

enum { BATCH = 1000 }; /* items between MARK and APPENDS or SETITEMS, as in CPython */

/* ---- pieces ---- */

static void put_bytes(struct strbuf *out, uint64_t number, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++, number >>= 8)
        strbuf_add_char(out, (char)(number & 0xFF));
}

void pickle_put_int(struct strbuf *out, int64_t v)
{
    if (v >= 0 && v < 256) {
        strbuf_add_char(out, 'K');
        put_bytes(out, (uint64_t)v, 1);
    } else if (v >= 0 && v < 65536) {
        strbuf_add_char(out, 'M');
        put_bytes(out, (uint64_t)v, 2);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        strbuf_add_char(out, 'J');
        put_bytes(out, (uint64_t)v, 4);
    } else {
        unsigned n = 5;
        while (n < 8 && (v >> (8 * n - 1)) != (v < 0 ? -1 : 0))
            n++;
        strbuf_add_char(out, (char)0x8A);
        strbuf_add_char(out, (char)n);
        put_bytes(out, (uint64_t)v, n);
    }
}

static void put_text(struct strbuf *out, const char *text, size_t length)
{
    strbuf_add_char(out, 'X');
    put_bytes(out, length, 4);
    strbuf_add(out, text, length);
}

/* C0 80 in a name is NUL; see stored.h. */
void pickle_put_text(struct strbuf *out, const char *text)
{
    struct strbuf s = {0};
    const char *nul = strstr(text, "\xC0\x80");
    if (!nul) {
        put_text(out, text, strlen(text));
        return;
    }
    for (; nul; text = nul + 2, nul = strstr(text, "\xC0\x80")) {
        strbuf_add(&s, text, (size_t)(nul - text));
        strbuf_add_char(&s, '\0');
    }
    strbuf_add_text(&s, text);
    put_text(out, s.data, s.length);
    strbuf_release(&s);
}

void pickle_put_global(struct strbuf *out, const char *module, const char *name)
{
    strbuf_add_char(out, 'c');
    strbuf_add_text(out, module);
    strbuf_add_char(out, '\n');
    strbuf_add_text(out, name);
    strbuf_add_char(out, '\n');
}

static void put_put(struct strbuf *out, uint64_t id)
{
    strbuf_add_char(out, id < 256 ? 'q' : 'r');
    put_bytes(out, id, id < 256 ? 1 : 4);
}

static void put_get(struct strbuf *out, uint64_t id)
{
    strbuf_add_char(out, id < 256 ? 'h' : 'j');
    put_bytes(out, id, id < 256 ? 1 : 4);
}

static void put_float(struct strbuf *out, double number)
{
    uint64_t bits;
    memcpy(&bits, &number, sizeof bits);
    strbuf_add_char(out, 'G');
    for (int shift = 56; shift >= 0; shift -= 8)
        strbuf_add_char(out, (char)(bits >> shift & 0xFF));
}

/* ---- storages and tensors ---- */

static void put_storage(struct strbuf *out, const struct value_storage *s)
{
    strbuf_add_char(out, '(');
    pickle_put_text(out, "storage");
    pickle_put_global(out, s->typed ? "torch" : "torch.storage", s->class_name);
    pickle_put_text(out, s->key);
    pickle_put_text(out, "cpu");
    pickle_put_int(out, (int64_t)s->numel);
    strbuf_add_text(out, "tQ");
}

/* Halves dims[begin..end). */
static void put_dims(struct strbuf *out, const uint64_t *dims, unsigned count, unsigned begin,
                     unsigned end)
{
    strbuf_add_char(out, '(');
    for (unsigned d = 0; d < count; d++)
        pickle_put_int(out, (int64_t)(d >= begin && d < end ? dims[d] / 2 : dims[d]));
    strbuf_add_char(out, 't');
}

static void put_hooks(struct strbuf *out)
{
    pickle_put_global(out, "collections", "OrderedDict");
    strbuf_add_text(out, ")R");
}

/* torch counts pairs of 4-bit elements, which are row-major
 * (pickle_calls.c:count_halves): halves the last dimension and the other
 * strides. */
static void put_plain_tensor(struct strbuf *out, const struct value_tensor *t)
{
    bool typed = t->storage->typed, pairs = t->dtype == DT_F4;
    unsigned n = t->num_dims, last = pairs ? n - 1 : n;
    pickle_put_global(out, "torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    strbuf_add_char(out, '(');
    put_storage(out, t->storage);
    pickle_put_int(out, (int64_t)(pairs ? t->offset / 2 : t->offset));
    put_dims(out, t->shape, n, last, n);
    put_dims(out, t->stride, n, 0, pairs ? last : 0);
    strbuf_add_char(out, (char)0x89); /* requires_grad */
    put_hooks(out);
    if (!typed) pickle_put_global(out, "torch", dtype_infos[t->dtype].torch);
    strbuf_add_text(out, "tR");
}

static enum status check_tensor(const struct value_tensor *t, struct error *err)
{
    const char *name = dtype_infos[t->dtype].name;
    const struct value_storage *s = t->storage;
    bool odd = t->dtype == DT_F4 && (!t->num_dims || t->shape[t->num_dims - 1] % 2);
    if (!dtype_infos[t->dtype].torch || odd)
        return fail(err, ERR_UNSUPPORTED, "torch has no %s tensor%s", name,
                    odd ? " of that shape" : "");
    if (s->typed && s->dtype != t->dtype)
        return fail(err, ERR_UNSUPPORTED, "a %s tensor in a %s", name, s->class_name);
    if (s->view_offset) return fail(err, ERR_UNSUPPORTED, "a view of a storage of a legacy file");
    return OK;
}

static enum status put_tensor(struct strbuf *out, const struct value_tensor *t, struct error *err)
{
    TRY(check_tensor(t, err));
    if (t->parameter) {
        pickle_put_global(out, "torch._utils", "_rebuild_parameter");
        strbuf_add_char(out, '(');
    }
    put_plain_tensor(out, t);
    if (t->parameter) {
        strbuf_add_char(out, (char)0x89);
        put_hooks(out);
        strbuf_add_text(out, "tR");
    }
    return OK;
}

enum status pickle_put_tensor(struct strbuf *out, enum dtype dtype, unsigned num_dims,
                              const uint64_t *shape, struct error *err)
{
    struct arena a;
    arena_init(&a);
    const struct value *v = value_tensor(&a, "0", dtype, num_dims, shape);
    strbuf_add(out, "\x80\x02", 2);
    enum status st = put_tensor(out, v->tensor, err);
    strbuf_add_char(out, '.');
    arena_release(&a);
    return st;
}

/* ---- counting references ---- */

/* A value's number in the table: first its references (2: more than one), then
 * that writing has begun, then its memo entry. */
enum { ONCE = 1, SHARED = 2, BEGUN = 3, FIRST_MEMO = 4 };

struct frame {
    const struct value *v;
    size_t next; /* next part */
};

struct writer {
    struct strbuf *out;
    struct pointer_map seen;
    uint64_t num_memos;
    struct frame *frames;
    size_t depth, capacity;
    enum status (*storage)(void *context, const struct value_storage *s, struct error *err);
    void *context;
};

static void push_frame(struct writer *w, const struct value *v)
{
    if (w->depth == w->capacity) {
        w->capacity = w->capacity ? 2 * w->capacity : 64;
        w->frames = must_realloc(w->frames, w->capacity * sizeof *w->frames);
    }
    w->frames[w->depth++] = (struct frame){v, 0};
}

static size_t num_items(const struct value *v)
{
    switch (v->kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_SET:
        return v->count;
    case VALUE_DICT:
        return 2 * (size_t)v->count;
    default:
        return 0;
    }
}

static void count_one(struct writer *w, const struct value *v)
{
    bool added;
    if (!v) return;
    uint64_t *n = pointer_map_at(&w->seen, v, &added);
    *n = added ? ONCE : SHARED;
    if (added) push_frame(w, v);
}

static void count_references(struct writer *w, const struct value *root)
{
    count_one(w, root);
    while (w->depth) {
        const struct value *v = w->frames[--w->depth].v;
        for (size_t i = 0; i < num_items(v); i++)
            count_one(w, v->items[i]);
        if (v->kind != VALUE_OBJECT) continue;
        const struct value_object *o = v->object;
        const struct value *parts[] = {o->callable, o->args,  o->kwargs, o->state,
                                       o->items,    o->pairs, o->rebuild};
        for (size_t i = 0; i < COUNT(parts); i++)
            count_one(w, parts[i]);
    }
}

/* ---- values without parts ---- */

/* Well-formed except for lone surrogates, which Python's surrogatepass reads
 * and writes. */
static bool is_python_text(const char *text, size_t length)
{
    for (size_t at = 0, n; at < length; at += n) {
        n = utf8_sequence(text + at, length - at);
        const unsigned char *p = (const unsigned char *)text + at;
        if (!n && length - at >= 3 && p[0] == 0xED && p[1] >= 0xA0 && p[1] <= 0xBF &&
            p[2] >= 0x80 && p[2] <= 0xBF)
            n = 3;
        if (!n) return false;
    }
    return true;
}

/* Protocol 2 has no bytes: _codecs.encode(text in Latin-1). */
static void put_encoded(struct strbuf *out, const char *bytes, size_t count)
{
    struct strbuf text = {0};
    strbuf_add(&text, "", 0);
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c >= 0x80) strbuf_add_char(&text, (char)(0xC0 | c >> 6));
        strbuf_add_char(&text, (char)(c >= 0x80 ? 0x80 | (c & 0x3F) : c));
    }
    pickle_put_global(out, "_codecs", "encode");
    put_text(out, text.data, text.length);
    pickle_put_text(out, "latin1");
    strbuf_add_text(out, "\x86R");
    strbuf_release(&text);
}

static enum status put_big_int(struct strbuf *out, const struct value *v, struct error *err)
{
    if (v->count > 255)
        return fail(err, ERR_UNSUPPORTED, "an int of %" PRIu32 " bytes; torch reads at most 255",
                    v->count);
    strbuf_add_char(out, (char)0x8A);
    strbuf_add_char(out, (char)v->count);
    strbuf_add(out, v->text, v->count);
    return OK;
}

static enum status put_leaf(struct writer *w, const struct value *v, struct error *err)
{
    switch (v->kind) {
    case VALUE_NONE:
        strbuf_add_char(w->out, 'N');
        return OK;
    case VALUE_BOOL:
        strbuf_add_char(w->out, (char)(v->truth ? 0x88 : 0x89));
        return OK;
    case VALUE_INT:
        pickle_put_int(w->out, v->integer);
        return OK;
    case VALUE_BIG_INT:
        return put_big_int(w->out, v, err);
    case VALUE_FLOAT:
        put_float(w->out, v->number);
        return OK;
    case VALUE_TEXT:
        if (!is_python_text(v->text, v->count))
            return fail(err, ERR_UNSUPPORTED, "a text that is not UTF-8");
        put_text(w->out, v->text, v->count);
        return OK;
    case VALUE_BYTES:
        put_encoded(w->out, v->text, v->count);
        return OK;
    case VALUE_GLOBAL:
        pickle_put_global(w->out, v->global->module, v->global->name);
        return OK;
    case VALUE_STORAGE:
        if (w->storage) TRY(w->storage(w->context, v->storage, err));
        put_storage(w->out, v->storage);
        return OK;
    case VALUE_TENSOR:
        if (w->storage) TRY(w->storage(w->context, v->tensor->storage, err));
        return put_tensor(w->out, v->tensor, err);
    default:
        return fail(err, ERR_UNSUPPORTED, "a value that was skipped while reading");
    }
}

/* ---- values with parts ---- */

static bool memoises(const struct value *v)
{
    switch (v->kind) {
    case VALUE_NONE:
    case VALUE_BOOL:
    case VALUE_INT:
    case VALUE_BIG_INT:
    case VALUE_FLOAT:
    case VALUE_STORAGE:
        return false;
    default:
        return true;
    }
}

/* v is on top of the stack: gives it a memo entry if anyone fetches it. */
static void memoise_value(struct writer *w, const struct value *v)
{
    uint64_t *state = pointer_map_at(&w->seen, v, NULL);
    if (*state == ONCE || !memoises(v)) return;
    *state = FIRST_MEMO + w->num_memos;
    put_put(w->out, w->num_memos++);
}

/* Begins v: done at once without parts, else a frame for step_frame(). Lists
 * and dicts can be fetched before their items are written, so they may contain
 * themselves. */
static enum status begin_value(struct writer *w, const struct value *v, struct error *err)
{
    uint64_t *state = pointer_map_at(&w->seen, v, NULL);
    if (*state >= FIRST_MEMO) {
        put_get(w->out, *state - FIRST_MEMO);
        return OK;
    }
    switch (v->kind) {
    case VALUE_LIST:
    case VALUE_DICT:
        strbuf_add_char(w->out, v->kind == VALUE_LIST ? ']' : '}');
        memoise_value(w, v);
        push_frame(w, v);
        return OK;
    case VALUE_TUPLE:
    case VALUE_SET:
    case VALUE_OBJECT:
        if (*state == BEGUN)
            return fail(err, ERR_UNSUPPORTED, "a %s that contains itself",
                        v->kind == VALUE_TUPLE ? "tuple" : "value");
        if (*state == SHARED) *state = BEGUN;
        if (v->kind == VALUE_SET) {
            pickle_put_global(w->out, "builtins", "set");
            strbuf_add_char(w->out, ']');
        }
        if (v->kind == VALUE_TUPLE && (v->count == 0 || v->count > 3))
            strbuf_add_char(w->out, v->count ? '(' : ')');
        push_frame(w, v);
        return OK;
    default:
        TRY(put_leaf(w, v, err));
        memoise_value(w, v);
        return OK;
    }
}

static void pop_frame(struct writer *w)
{
    w->depth--;
}

static void end_tuple(struct writer *w, const struct value *v)
{
    static const char ends[] = {'\x85', '\x86', '\x87'};
    if (v->count) strbuf_add_char(w->out, v->count > 3 ? 't' : ends[v->count - 1]);
    memoise_value(w, v);
    pop_frame(w);
}

static enum status step_tuple(struct writer *w, struct frame *f, struct error *err)
{
    const struct value *v = f->v;
    if (f->next < v->count) return begin_value(w, v->items[f->next++], err);
    end_tuple(w, v);
    return OK;
}

/* Items in batches: MARK item ... APPENDS, or item APPEND in a batch of one. */
static enum status step_items(struct writer *w, struct frame *f, struct error *err)
{
    const struct value *v = f->v;
    bool pairs = v->kind == VALUE_DICT;
    size_t width = pairs ? 2 : 1, batch = BATCH * width, count = width * v->count;
    size_t in_batch = f->next % batch, begun = f->next - in_batch;
    bool ends = f->next && (in_batch == 0 || f->next == count);
    if (ends) {
        if (in_batch == 0) begun = f->next - batch;
        bool single = f->next - begun == width;
        strbuf_add_char(w->out, single ? (pairs ? 's' : 'a') : (pairs ? 'u' : 'e'));
    }
    if (f->next == count) {
        if (v->kind == VALUE_SET) {
            strbuf_add_text(w->out, "\x85R");
            memoise_value(w, v);
        }
        pop_frame(w);
        return OK;
    }
    if (in_batch == 0 && count - f->next > width) strbuf_add_char(w->out, '(');
    return begin_value(w, v->items[f->next++], err);
}

/* Parts of an object: first those that make it, then those that fill it. */
enum {
    STEP_CALLABLE,
    STEP_ARGS,
    STEP_KWARGS,
    STEP_REBUILD_STATE,
    STEP_MAKE,
    STEP_ITEMS,
    STEP_PAIRS,
    STEP_STATE,
    STEP_BUILD,
    STEP_END
};

static enum status begin_callable(struct writer *w, const struct value_object *o, struct error *err)
{
    if (o->kwargs) pickle_put_global(w->out, "copyreg", "__newobj_ex__");
    if (!o->rebuild) return begin_value(w, o->callable, err);
    /* _rebuild_from_type_v2(rebuild, callable, args, state) */
    pickle_put_global(w->out, "torch._tensor", "_rebuild_from_type_v2");
    strbuf_add_char(w->out, '(');
    TRY(begin_value(w, o->rebuild, err));
    return begin_value(w, o->callable, err);
}

static void put_make(struct writer *w, const struct value *v)
{
    const struct value_object *o = v->object;
    if (o->rebuild)
        strbuf_add_text(w->out, "tR");
    else if (o->kwargs)
        strbuf_add_text(w->out, "\x87R");
    else if (o->args)
        strbuf_add_char(w->out, o->by_new ? (char)0x81 : 'R');
    memoise_value(w, v);
}

static enum status step_object(struct writer *w, struct frame *f, struct error *err)
{
    const struct value *v = f->v;
    const struct value_object *o = v->object;
    switch (f->next++) {
    case STEP_CALLABLE:
        return begin_callable(w, o, err);
    case STEP_ARGS:
        return o->args ? begin_value(w, o->args, err) : OK;
    case STEP_KWARGS:
        return o->kwargs ? begin_value(w, o->kwargs, err) : OK;
    case STEP_REBUILD_STATE:
        if (!o->rebuild) return OK;
        if (o->state) return begin_value(w, o->state, err);
        strbuf_add_char(w->out, 'N');
        return OK;
    case STEP_MAKE:
        put_make(w, v);
        return OK;
    case STEP_ITEMS: /* the list's items without the list */
        if (o->items) push_frame(w, o->items);
        return OK;
    case STEP_PAIRS:
        if (o->pairs) push_frame(w, o->pairs);
        return OK;
    case STEP_STATE:
        return o->state && !o->rebuild ? begin_value(w, o->state, err) : OK;
    case STEP_BUILD:
        if (o->state && !o->rebuild) strbuf_add_char(w->out, 'b');
        return OK;
    default:
        pop_frame(w);
        return OK;
    }
}

static enum status step_frame(struct writer *w, struct error *err)
{
    struct frame *f = &w->frames[w->depth - 1];
    switch (f->v->kind) {
    case VALUE_TUPLE:
        return step_tuple(w, f, err);
    case VALUE_OBJECT:
        return step_object(w, f, err);
    default:
        return step_items(w, f, err);
    }
}

enum status pickle_write_storages(struct strbuf *out, const struct value *v,
                                  enum status (*storage)(void *context,
                                                         const struct value_storage *s,
                                                         struct error *err),
                                  void *context, struct error *err)
{
    struct writer w = {.out = out, .storage = storage, .context = context};
    count_references(&w, v);
    strbuf_add(out, "\x80\x02", 2);
    enum status st = begin_value(&w, v, err);
    while (!st && w.depth)
        st = step_frame(&w, err);
    strbuf_add_char(out, '.');
    free(w.frames);
    pointer_map_release(&w.seen);
    return st;
}

enum status pickle_write(struct strbuf *out, const struct value *v, struct error *err)
{
    return pickle_write_storages(out, v, NULL, NULL, err);
}

enum status value_copy(struct arena *a, const struct value *v, struct value **out,
                       struct error *err)
{
    struct strbuf pickle = {0};
    enum status st = pickle_write(&pickle, v, err);
    if (!st) st = pickle_read_bytes(a, pickle.data, pickle.length, out, err);
    strbuf_release(&pickle);
    return st;
}
