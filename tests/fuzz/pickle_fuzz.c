/* pickle_fuzz.c - any bytes as a pickle: plainly, then with hooks that replace, skip and collect at
 * every turn. What was read is printed, walked, written, and read again. */
#include <stdlib.h>
#include <string.h>

#include "formats/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum status visit(void *context, const char *path, const struct value *tensor,
                         struct error *err)
{
    (void)tensor, (void)err;
    *(size_t *)context += strlen(path);
    return OK;
}

static void use(struct arena *a, const struct value *v)
{
    struct strbuf text = {0}, pickle = {0};
    struct error err;
    struct value *again;
    size_t total = 0;
    value_print(&text, v, 1000);
    (void)!value_walk(v, "", visit, &total, &err);
    if (!pickle_write(&pickle, v, &err) &&
        pickle_read_bytes(a, pickle.data, pickle.length, &again, &err))
        abort(); /* what we write, we read */
    strbuf_release(&text);
    strbuf_release(&pickle);
}

static void read_plainly(const uint8_t *data, size_t size)
{
    struct arena a;
    struct value *v;
    struct error err;
    arena_init(&a);
    if (!pickle_read_bytes(&a, data, size, &v, &err)) use(&a, v);
    arena_release(&a);
}

/* Not of the kind whose bytes the reader finds in memory. */
static enum status read_input(const struct bytes *b, uint64_t at, void *to, size_t count,
                              struct error *err)
{
    (void)err;
    memcpy(to, (const uint8_t *)b->from.data + at, count);
    return OK;
}

/* Replaces every other instance, after a look at all of it. */
static void *built(void *context, const char *class_name, const struct value *v)
{
    struct strbuf text = {0};
    value_print(&text, v, 200);
    strbuf_release(&text);
    return *class_name % 2 ? context : NULL;
}

static void read_with_hooks(const uint8_t *data, size_t size)
{
    static const char *const skipped[] = {"a", "all_local_plans"};
    static const struct bytes_kind kind = {.read = read_input};
    const struct bytes in = {.kind = &kind, .path = "input", .size_bytes = size, .from.data = data};
    static int context;
    struct pickle_hooks hooks = {.context = &context,
                                 .built = built,
                                 .collect_bytes = 1,
                                 .skip_attributes = skipped,
                                 .num_skip_attributes = 2};
    struct arena a;
    struct value *v;
    struct error err;
    struct strbuf text = {0};
    arena_init(&a);
    if (!pickle_read(&a, &in, 0, &hooks, &v, NULL, &err)) value_print(&text, v, 1000);
    strbuf_release(&text);
    arena_release(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    read_plainly(data, size);
    read_with_hooks(data, size);
    return 0;
}
