#include "common/facts.h"

#include <stdarg.h>
#include <stdio.h>

#include "common/memory.h"

void facts_add(struct facts *f, const char *name, enum fact_state state, const char *advice,
               const char *fmt, ...)
{
    char value[1024];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    if (f->count == f->room) {
        f->room = f->room ? 2 * f->room : 32;
        f->rows = must_realloc(f->rows, f->room * sizeof *f->rows);
    }
    f->rows[f->count++] = (struct fact){name, arena_printf(f->arena, "%s", value), advice, state};
}

const char *fact_state_name(enum fact_state state)
{
    static const char *const names[] = {"ok", "missing", "warning", "broken"};
    return names[state];
}
