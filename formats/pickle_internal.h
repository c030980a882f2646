/* pickle_internal.h - parts of the pickle reader and writer; for
 * formats/pickle*.c and torch.c.
 *
 *   lexer   bytes to opcodes with their arguments         pickle_lex.c
 *   survey  a first pass over the stream, for the hooks   pickle_survey.c
 *   pool    memory of values, reused while reading        pickle_pool.c
 *   reader  the stack machine                             pickle.c,
 *                                                         pickle_scalars.c
 *   calls   values of known calls                         pickle_calls.c
 *   writer                                                pickle_write.c */
#ifndef FERRY_FORMATS_PICKLE_INTERNAL_H
#define FERRY_FORMATS_PICKLE_INTERNAL_H

#include "common/map.h"
#include "formats/pickle.h"
#include "formats/value_internal.h"

/* ---- lexer ---- */

enum pickle_argument {
    ARG_NONE,
    ARG_U8,
    ARG_U16,
    ARG_I32,
    ARG_U32,
    ARG_U64,
    ARG_F64,        /* big-endian; in `bytes` */
    ARG_LINE,       /* up to the newline, without it */
    ARG_INDEX_LINE, /* a decimal number on a line */
    ARG_TWO_LINES,  /* with the newline between them */
    ARG_BYTES_U8,   /* a length, then that many bytes */
    ARG_BYTES_U32,
    ARG_BYTES_I32,
    ARG_BYTES_U64,
};

/* `pops` of opcodes that take all values above the last mark; the second: and
 * the value below it. */
enum { TO_MARK = -1, TO_MARK_AND_BELOW = -2 };

struct pickle_reader;
struct pickle_token;

/* Runs an opcode with its argument read and enough values on the stack. */
typedef enum status pickle_run(struct pickle_reader *r, const struct pickle_token *t,
                               struct error *err);

struct pickle_opcode {
    const char *name; /* NULL: no such opcode */
    enum pickle_argument argument;
    signed char pops, pushes; /* values of the stack; MARK and POP count themselves */
    pickle_run *run;
    enum value_kind kind; /* kind of the container it makes or adds to */
};
extern const struct pickle_opcode pickle_opcodes[256];

struct pickle_token {
    unsigned code;
    const struct pickle_opcode *opcode;
    uint64_t offset;   /* of the opcode in the stream */
    uint64_t number;   /* I32: sign-extended */
    const char *bytes; /* LINE, BYTES, F64; valid until the next token; NULL: skipped */
    size_t length;
};

struct pickle_lexer {
    const struct bytes *in;
    const char *data; /* data[at..end) comes next */
    size_t at, end;
    uint64_t base;       /* offset of data[0] in the stream */
    uint64_t size_bytes; /* of the stream */
    char *buffer;        /* holds data if `in` is not in memory */
    size_t capacity;
};

void lexer_init(struct pickle_lexer *x, const struct bytes *in, uint64_t offset);
void lexer_release(struct pickle_lexer *x);
void lexer_seek(struct pickle_lexer *x, uint64_t offset);
static inline uint64_t lexer_offset(const struct pickle_lexer *x)
{
    return x->base + x->at;
}
/* Reads the next opcode and its argument. Skips an argument of more than
 * keep_bytes bytes. */
MUST_CHECK enum status lexer_next(struct pickle_lexer *x, struct pickle_token *t, size_t keep_bytes,
                                  struct error *err);

/* ---- survey ---- */

/* A skipped value: bytes [begin, end) of the stream; memo entries set and
 * opcodes seen up to its end. */
struct pickle_skip {
    uint64_t begin, end;
    size_t num_memoized;
    uint64_t num_opcodes;
};

struct pickle_survey {
    struct pickle_skip *skips;
    size_t num_skips, skips_capacity;
    /* Memo entries fetched outside the skips: bit i % 64 of fetched[i / 64];
     * rank[w] of them lie before fetched[w]. */
    uint64_t *fetched;
    uint32_t *rank;
    size_t num_words, num_fetched;
};

/* An error in the stream ends a pass silently: the reader reports it later. */
MUST_CHECK enum status survey_find_skips(struct pickle_survey *s, struct pickle_lexer *x,
                                         const struct pickle_hooks *hooks, struct error *err);
MUST_CHECK enum status survey_find_fetched(struct pickle_survey *s, struct pickle_lexer *x,
                                           struct error *err);
/* Whether memo entry `index` is fetched; its number among such entries. */
bool survey_fetched(const struct pickle_survey *s, uint64_t index, size_t *number);
void survey_release(struct pickle_survey *s);

/* ---- pool ---- */

enum { POOL_CLASSES = 40 };

/* Memory of values. collects: finds unreachable values by marking and reuses
 * them; else all stay until the arena is released. GLOBAL, STORAGE, TENSOR and
 * constants are never collected. */
struct value_pool {
    struct arena *arena;
    bool collects;
    struct pool_block *blocks;
    struct value *free_values;
    struct pool_free *free_payloads[POOL_CLASSES];
    size_t allocated, threshold; /* bytes since the last collection; bytes at the next */
    size_t least;                /* lowest threshold */
    size_t num_cells;            /* of all blocks */
    struct value **gray;         /* marked values with unmarked parts */
    size_t num_gray, gray_capacity;
};

/* collect_bytes: see pickle_hooks. */
void pool_init(struct value_pool *p, struct arena *a, bool collects, size_t collect_bytes);
void pool_release(struct value_pool *p); /* frees memory outside of the arena */
struct value *pool_value(struct value_pool *p, enum value_kind kind);
/* Memory with exactly one value referring to it. Pass its size to
 * pool_payload_free() again. */
void *pool_payload(struct value_pool *p, size_t bytes);
void pool_payload_free(struct value_pool *p, void *payload, size_t bytes);
/* Frees the memory of v, not v itself, before v becomes another kind. */
void pool_value_clear(struct value_pool *p, struct value *v);
/* Call pool_mark() for every root, then pool_sweep() with their number. */
void pool_mark(struct value_pool *p, struct value *root);
void pool_sweep(struct value_pool *p, size_t num_roots);

/* ---- reader ---- */

struct pickle_reader {
    struct pickle_lexer lexer;
    struct value_pool pool;
    const struct pickle_hooks *hooks; /* never NULL */
    struct pickle_survey survey;      /* empty without hooks->built */
    size_t next_skip;
    struct value **stack;
    size_t depth, capacity;
    size_t *marks; /* depth of the stack at each open MARK */
    size_t num_marks, marks_capacity;
    struct value **memo; /* by index; with a survey by number from survey_fetched() */
    size_t memo_capacity;
    size_t num_memoized;
    bool memo_by_put, memo_by_order; /* PUT and MEMOIZE do not mix */
    bool refers_to_skipped;
    uint64_t num_opcodes;
    struct map globals; /* "module\nname" -> index */
    struct value **global_values;
    size_t num_globals, globals_capacity;
    struct strbuf scratch;
    struct value *none, *truths[2], *skipped, *small_ints[256];
    struct value *result; /* of STOP */
};

void reader_push(struct pickle_reader *r, struct value *v);
struct value *reader_int(struct pickle_reader *r, int64_t integer);
struct value *reader_text(struct pickle_reader *r, enum value_kind kind, const char *text,
                          size_t length);
/* A container of copies of these items (DICT: pairs). */
struct value *reader_items(struct pickle_reader *r, enum value_kind kind, struct value **items,
                           size_t count);
struct value *reader_object(struct pickle_reader *r, const struct value_object *o);
void reader_append(struct pickle_reader *r, struct value *container, struct value **items,
                   size_t count);

pickle_run pickle_run_none, pickle_run_true, pickle_run_false, pickle_run_int, pickle_run_long,
    pickle_run_float, pickle_run_text_int, pickle_run_text_long, pickle_run_text_float,
    pickle_run_text, pickle_run_bytes, pickle_run_quoted, pickle_run_unicode_line;

/* ---- calls ---- */

/* Sets *out to the value of callable(*args) for a known callable, else to NULL.
 * ERR_CORRUPT for invalid arguments of a tensor's rebuild function. */
MUST_CHECK enum status pickle_call(struct pickle_reader *r, struct value *callable,
                                   struct value *args, struct value **out, struct error *err);
/* torch's persistent id. */
MUST_CHECK enum status pickle_persistent(struct pickle_reader *r, const struct value *id,
                                         struct value **out, struct error *err);
/* Pushes a global; Python 3's name replaces Python 2's. */
MUST_CHECK enum status pickle_push_global(struct pickle_reader *r, const char *module,
                                          size_t module_length, const char *name,
                                          size_t name_length, struct error *err);

/* ---- writer ---- */

/* As pickle_write(); calls `storage` (may be NULL) before each storage and each
 * tensor that it writes, several times for a shared storage. */
MUST_CHECK enum status pickle_write_storages(struct strbuf *out, const struct value *v,
                                             enum status (*storage)(void *context,
                                                                    const struct value_storage *s,
                                                                    struct error *err),
                                             void *context, struct error *err);
/* The pickle, PROTO to STOP, of one contiguous tensor in storage "0". */
MUST_CHECK enum status pickle_put_tensor(struct strbuf *out, enum dtype dtype, unsigned num_dims,
                                         const uint64_t *shape, struct error *err);

#endif
