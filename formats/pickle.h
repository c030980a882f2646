/* pickle.h - Python's pickle, read as data and written for
 * torch.load(weights_only=True).
 *
 * The reader interprets the opcodes of protocols 0 to 5 with a stack and a
 * memo; it imports and calls nothing. Known names (rebuild functions of
 * tensors, OrderedDict, torch.Size, bytes ...) become values of their kind; all
 * others become a VALUE_GLOBAL or VALUE_OBJECT. Input passes through a window:
 * memory depends on the values kept, not on the file's size.
 *
 * Limits: memory at most 64 bytes for each byte read, beyond the first MiB;
 * memo index at most the number of opcodes so far; lengths at most the rest of
 * the input; nesting bounded by the stack on the heap, never by C's. Passing a
 * limit, an unknown opcode, a stack that underflows or does not end with one
 * value is ERR_CORRUPT "opcode 0xNN at byte M: ...". */
#ifndef FERRY_FORMATS_PICKLE_H
#define FERRY_FORMATS_PICKLE_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"
#include "formats/bytes.h"
#include "formats/value.h"

/* Callbacks while instances are built: a .metadata of a hundred thousand chunks
 * takes the memory of its chunks, not of its Python objects. Each may be
 * NULL. */
struct pickle_hooks {
    void *context;
    /* Called with the class name (without module) and the value of an instance
     * that is put into a container or is the result. A result other than NULL
     * replaces the instance by a VALUE_NATIVE with that pointer; the instance's
     * memory is reused, so the hook must copy what it keeps. With this hook the
     * stream is read two or three times, first to find the memo entries in
     * use. */
    void *(*built)(void *context, const char *class_name, const struct value *v);
    size_t collect_bytes; /* bytes of new values between collections; 0: 4 MiB */
    /* With `built`: keys of dicts whose values become VALUE_SKIPPED. If a kept
     * value refers into one, the stream is read again without skipping. */
    const char *const *skip_attributes;
    size_t num_skip_attributes;
    /* Called for each persistent id of a torch storage; a failure gets the
     * position in the stream. numel is the root storage's. */
    enum status (*storage)(void *context, const struct value_storage *storage, struct error *err);
};

/* Reads one pickle at `offset` of the input; *end (may be NULL) is the offset
 * behind its STOP. Values are in arena a. hooks may be NULL. Storages of
 * persistent ids are VALUE_STORAGE. */
MUST_CHECK enum status pickle_read(struct arena *a, const struct bytes *in, uint64_t offset,
                                   const struct pickle_hooks *hooks, struct value **out,
                                   uint64_t *end, struct error *err);

/* As pickle_read(), from memory. */
MUST_CHECK enum status pickle_read_bytes(struct arena *a, const void *data, size_t bytes,
                                         struct value **out, struct error *err);

/* Appends the pickle of v in protocol 2, with opcodes of torch's weights_only
 * unpickler. Objects, globals and dtypes are written as read. Shared values and
 * cycles are memoised. ERR_UNSUPPORTED for SKIPPED, NATIVE, an int of more than
 * 255 bytes, a text that is not UTF-8, a tuple that contains itself. */
MUST_CHECK enum status pickle_write(struct strbuf *out, const struct value *v, struct error *err);

/* A copy in another arena, for the kinds of pickle_write(). */
MUST_CHECK enum status value_copy(struct arena *a, const struct value *v, struct value **out,
                                  struct error *err);

/* Parts of a protocol-2 stream, for writers without the whole value in memory
 * (.metadata). */
void pickle_put_int(struct strbuf *out, int64_t v);
void pickle_put_text(struct strbuf *out, const char *text); /* C0 80 becomes NUL */
void pickle_put_global(struct strbuf *out, const char *module, const char *name);

#endif
