/* pickle.h - Python's pickle, read as data and written for torch.load(weights_only=True).
 *
 * The reader is a closed-world interpreter of the opcodes of protocols 0 to 5: a stack, a memo, no
 * import, no call. What it knows by name (rebuild functions of tensors, OrderedDict, torch.Size,
 * bytes ...) becomes the kind it stands for; all else becomes a VALUE_GLOBAL or VALUE_OBJECT. Input
 * passes through a window, so a file of any size costs what is kept of it only.
 *
 * Limits: values at most as many as bytes read; memo index at most the number of opcodes so far;
 * lengths at most what is left of the input; nesting bounded by the stack on the heap, never by C's.
 * Breaking one, an unknown opcode, a stack that underflows or does not end with one value is
 * ERR_CORRUPT "opcode 0xNN at byte M: ...". */
#ifndef FERRY_FORMATS_PICKLE_H
#define FERRY_FORMATS_PICKLE_H

#include "common/status.h"
#include "common/strbuf.h"
#include "formats/value.h"

/* Where a pickle's bytes come from: read() gives 1..bytes bytes at offset of the stream. */
struct pickle_input {
    enum status (*read)(void *context, uint64_t offset, void *to, size_t bytes, struct error *err);
    void *context;
    uint64_t size_bytes; /* of the whole stream */
};

/* What a caller does with instances while they are built, so that a .metadata of a hundred thousand
 * chunks costs what its chunks do and not what its Python objects do. */
struct pickle_hooks {
    void *context;
    /* Called when an instance is complete, which is at the opcode after its last BUILD, SETITEMS ...
     * or when it is put into a container: class name (module dropped) and the value. May return a
     * VALUE_NATIVE to stand in its place; NULL leaves it. What only the replaced value held is
     * given back to the pool, so the hook must copy what it keeps. */
    struct value *(*built)(void *context, struct arena *a, const char *class_name,
                           const struct value *v);
    /* Attributes (keys of an instance's state dict) whose values are not built: VALUE_SKIPPED. If
     * something that is kept refers into one, the stream is read again without skipping. */
    const char *const *skip_attributes;
    size_t num_skip_attributes;
};

/* Reads one pickle that starts at `offset` of the input and sets *end to the byte behind its STOP
 * (both may matter in the legacy stream of torch; else 0 and NULL). The values are in arena a.
 * hooks may be NULL. Storages of persistent ids appear as VALUE_STORAGE. */
MUST_CHECK enum status pickle_read(struct arena *a, const struct pickle_input *in, uint64_t offset,
                                   const struct pickle_hooks *hooks, struct value **out,
                                   uint64_t *end, struct error *err);

/* The same from memory. */
MUST_CHECK enum status pickle_read_bytes(struct arena *a, const void *data, size_t bytes,
                                         struct value **out, struct error *err);

/* Appends the pickle of v, protocol 2: only opcodes that the weights_only unpickler of torch knows.
 * Objects, globals and dtypes come out as they were read. Shared values and cycles are memoised.
 * ERR_UNSUPPORTED where a value has no such form (SKIPPED, NATIVE, an int past 255 bytes). */
MUST_CHECK enum status pickle_write(struct strbuf *out, const struct value *v, struct error *err);

/* Pieces of a protocol-2 stream, for writers that never hold the whole value (.metadata). */
void pickle_put_int(struct strbuf *out, int64_t v);
void pickle_put_text(struct strbuf *out, const char *text);
void pickle_put_global(struct strbuf *out, const char *module, const char *name);

#endif
