#include "convert/dcp/dcp_entry.h"

#include <string.h>

#include "common/count.h"
#include "common/text.h"
#include "convert/wrapper_names.h"

static const char separator = '\x1f';

/* ---- paths ---- */

/* The last three keys of a path, or as many as there are. */
struct tail {
    const char *begin[3]; /* [0]: the last */
    size_t length[3];
    unsigned count;
    size_t above[3]; /* bytes of the path before each, without the separator */
};

static struct tail tail_of(const char *path)
{
    struct tail t = {0};
    size_t end = strlen(path);
    for (bool more = true; more && t.count < 3; t.count++) {
        size_t begin = end;
        while (begin && path[begin - 1] != separator)
            begin--;
        more = begin > 0;
        t.begin[t.count] = path + begin;
        t.length[t.count] = end - begin;
        t.above[t.count] = more ? begin - 1 : 0;
        end = t.above[t.count];
    }
    return t;
}

static bool key_is(const struct tail *t, unsigned i, const char *text)
{
    return i < t->count && t->length[i] == strlen(text) &&
           memcmp(t->begin[i], text, t->length[i]) == 0;
}

static const char *key_text(struct arena *a, const struct tail *t, unsigned i)
{
    return arena_text(a, t->begin[i], t->length[i]);
}

/* The first n bytes of a path as text for people. */
static const char *above_text(struct arena *a, const char *path, size_t n)
{
    char *text = arena_text(a, path, n);
    for (char *at = text; *at; at++)
        if (*at == separator) *at = '.';
    return text;
}

/* "PREFIX.NAME.KEY", where NAME may have dots and KEY has none. */
static bool cut_flat(struct arena *a, const char *text, const char *prefix, const char **name,
                     const char **key)
{
    if (!text_skip_prefix(&text, prefix)) return false;
    const char *dot = strrchr(text, '.');
    if (!dot || dot == text || !dot[1]) return false;
    *name = arena_text(a, text, (size_t)(dot - text));
    *key = arena_copy_text(a, dot + 1);
    return true;
}

static bool is_number(const char *text)
{
    return *text && text[strspn(text, "0123456789")] == '\0';
}

struct dcp_entry dcp_entry_of(struct arena *a, const char *name, const char *nested_path,
                              bool is_tensor)
{
    const char *path = nested_path ? nested_path : name;
    const struct tail t = tail_of(path);
    const char *last = key_text(a, &t, 0);
    struct dcp_entry e = {.kind = DCP_OTHER, .name = last};
    size_t above = t.above[0];
    if (key_is(&t, 2, "state") && !strchr(last, '.')) {
        e.kind = DCP_STATE;
        e.name = key_text(a, &t, 1);
        e.key = last;
        above = t.above[2];
    } else if (key_is(&t, 2, "param_groups") && is_number(key_text(a, &t, 1))) {
        e.kind = DCP_SETTING;
        e.numbered = true;
        e.name = key_text(a, &t, 1);
        e.key = last;
        above = t.above[2];
    } else if (cut_flat(a, last, "state.", &e.name, &e.key)) {
        e.kind = DCP_STATE;
    } else if (cut_flat(a, last, "param_groups.", &e.name, &e.key)) {
        e.kind = DCP_SETTING;
    } else if (!is_tensor && strcmp(last, "param_groups") == 0) {
        e.kind = DCP_GROUPS;
    } else if (is_tensor) {
        e.kind = DCP_PARAMETER;
    }
    e.below = above_text(a, path, above);
    const char *unwrapped =
        e.kind == DCP_OTHER || e.numbered ? e.name : name_without_wrappers(a, e.name);
    e.unwrapped = unwrapped != e.name;
    e.name = unwrapped;
    return e;
}
