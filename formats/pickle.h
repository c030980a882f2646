/* pickle.h - Python's pickle, read as data and written for torch.load(weights_only=True).
 *
 * The reader is a closed-world interpreter of the opcodes of protocols 0 to 5: a stack, a memo, no
 * import, no call. What it knows by name (rebuild functions of tensors, OrderedDict, torch.Size,
 * bytes ...) becomes the kind it stands for; all else becomes a VALUE_GLOBAL or VALUE_OBJECT. Input
 * passes through a window, so a file of any size costs what is kept of it only.
 *
 * Limits: memory at most 64 bytes for each byte read, beyond the first MiB; memo index at most the
 * number of opcodes so far; lengths at most what is left of the input; nesting bounded by the stack
 * on the heap, never by C's. Breaking one, an unknown opcode, a stack that underflows or does not
 * end with one value is ERR_CORRUPT "opcode 0xNN at byte M: ...". */
#ifndef FERRY_FORMATS_PICKLE_H
#define FERRY_FORMATS_PICKLE_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/strbuf.h"
#include "formats/bytes.h"
#include "formats/value.h"

/* What a caller does with instances while they are built, so that a .metadata of a hundred thousand
 * chunks costs what its chunks do and not what its Python objects do. Each may be NULL. */
struct pickle_hooks {
    void *context;
    /* Called when an instance is put into a container or is the result: class name (module dropped)
     * and the value. What it returns, if not NULL, stands in the instance's place as the `native`
     * of a VALUE_NATIVE; what only the instance held is used again, so the hook must copy what it
     * keeps. With this hook the stream is read two or three times, the first ones to learn which
     * memo entries matter. */
    void *(*built)(void *context, const char *class_name, const struct value *v);
    size_t collect_bytes; /* how many bytes of values make it worth looking; 0: 4 MiB */
    /* With `built`: text keys of dicts whose values need not be built: mostly VALUE_SKIPPED. If
     * something that is kept refers into one, the stream is read again without skipping. */
    const char *const *skip_attributes;
    size_t num_skip_attributes;
    /* Called for each persistent id of a torch storage, while the position is still known for a
     * message. numel is that of the root storage. */
    enum status (*storage)(void *context, const struct value_storage *storage, struct error *err);
};

/* Reads one pickle that starts at `offset` of the input and sets *end (may be NULL) to the byte
 * behind its STOP. The values are in arena a. hooks may be NULL. Storages of persistent ids appear
 * as VALUE_STORAGE. */
MUST_CHECK enum status pickle_read(struct arena *a, const struct bytes *in, uint64_t offset,
                                   const struct pickle_hooks *hooks, struct value **out,
                                   uint64_t *end, struct error *err);

/* The same from memory. */
MUST_CHECK enum status pickle_read_bytes(struct arena *a, const void *data, size_t bytes,
                                         struct value **out, struct error *err);

/* Appends the pickle of v, protocol 2: only opcodes that the weights_only unpickler of torch knows.
 * Objects, globals and dtypes come out as they were read. Shared values and cycles are memoised.
 * ERR_UNSUPPORTED where a value has no such form (SKIPPED, NATIVE, an int past 255 bytes, a text
 * that is no UTF-8, a tuple that contains itself). */
MUST_CHECK enum status pickle_write(struct strbuf *out, const struct value *v, struct error *err);

/* Pieces of a protocol-2 stream, for writers that never hold the whole value (.metadata). */
void pickle_put_int(struct strbuf *out, int64_t v);
void pickle_put_text(struct strbuf *out, const char *text); /* C0 80 becomes NUL */
void pickle_put_global(struct strbuf *out, const char *module, const char *name);

#endif
