/* facts.h - lines about a machine: name,
 * value, state, and the way on. */
#ifndef FERRY_COMMON_FACTS_H
#define FERRY_COMMON_FACTS_H

#include <stddef.h>

#include "common/arena.h"

enum fact_state {
    FACT_OK,
    FACT_MISSING, /* an optional thing */
    FACT_WARNING, /* works, but not well */
    FACT_BROKEN   /* no command can work */
};

struct fact {
    const char *name, *value;
    const char *advice; /* NULL: none */
    enum fact_state state;
};

struct facts {
    struct arena *arena; /* of all texts */
    struct fact *rows;   /* on the heap */
    size_t count, room;
};

/* Name and advice are not copied. */
void facts_add(struct facts *f, const char *name, enum fact_state state, const char *advice,
               const char *fmt, ...) PRINTF_LIKE(5, 6);
const char *fact_state_name(enum fact_state state); /* "ok" */

#endif
