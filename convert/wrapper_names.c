#include "convert/wrapper_names.h"

#include <string.h>

#include "common/count.h"
#include "common/text.h"

static const char *const wrappers[] = {"_fsdp_wrapped_module.", "_orig_mod.",
                                       "_checkpoint_wrapped_module."};

void wrapper_names_init(struct wrapper_names *w, struct checkpoint *c)
{
    *w = (struct wrapper_names){.c = c};
}

void wrapper_names_release(struct wrapper_names *w)
{
    map_release(&w->originals);
}

/* Moves *at behind one wrapper. */
static bool skip_wrapper(const char **at)
{
    for (size_t i = 0; i < COUNT(wrappers); i++)
        if (text_skip_prefix(at, wrappers[i])) return true;
    return false;
}

/* Copies component by component. `to` has room for the name. */
static void copy_without(char *to, const char *name)
{
    const char *at = name;
    bool is_first = true;
    while (*at) {
        if (skip_wrapper(&at)) continue;
        if (is_first && text_skip_prefix(&at, "module.")) continue;
        is_first = false;
        const size_t n = strcspn(at, ".") + 1;
        const size_t length = at[n - 1] ? n : n - 1;
        memcpy(to, at, length);
        to += length;
        at += length;
    }
    *to = 0;
}

static bool has_wrappers(const char *name)
{
    const char *at = name;
    if (text_starts_with(name, "module.")) return true;
    while (*at) {
        if (skip_wrapper(&at)) return true;
        at += strcspn(at, ".");
        at += *at == '.';
    }
    return false;
}

const char *name_without_wrappers(struct arena *a, const char *name)
{
    const size_t size = strlen(name) + 1;
    if (!has_wrappers(name)) return name;
    char *stripped = arena_alloc(a, size);
    copy_without(stripped, name);
    return strcmp(stripped, name) ? stripped : name;
}

enum status wrapper_names_strip(struct wrapper_names *w, const char *name, const char **out,
                                struct error *err)
{
    struct arena *a = &w->c->arena;
    size_t old;
    const char *stripped = name_without_wrappers(a, name);
    if (stripped == name) stripped = arena_copy_text(a, name);
    *out = stripped;
    if (map_add(&w->originals, stripped, w->num_names, &old)) {
        const char *copy = strcmp(stripped, name) ? arena_copy_text(a, name) : stripped;
        *ARENA_PUSH(a, w->names, w->num_names, w->capacity) = copy;
        if (copy != stripped && !w->num_stripped++) w->first = copy;
        return OK;
    }
    if (strcmp(w->names[old], name) == 0) return OK;
    return fail(err, ERR_UNSUPPORTED,
                "%s: %s and %s become the same name without the modules that wrap the model",
                w->c->path, w->names[old], name);
}

void wrapper_names_note(const struct wrapper_names *w)
{
    if (w->num_stripped)
        checkpoint_note(w->c, "%zu name%s modules that wrap the model, stripped (%s)",
                        w->num_stripped, w->num_stripped == 1 ? " has" : "s have", w->first);
}
