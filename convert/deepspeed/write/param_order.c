#include "convert/deepspeed/write/param_order.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/map.h"

/* A module and its parameters, in input order. */
struct module {
    const char *name; /* its last component */
    size_t stem;      /* bytes of the name before its number; SIZE_MAX: none */
    unsigned long number;
    size_t *params;
    size_t num_params, capacity;
};

struct ordering {
    struct arena *a;
    const char *const *names;
    size_t *order;
    size_t count;
};

static void set_number(struct module *m)
{
    const size_t length = strlen(m->name);
    m->stem = length;
    while (m->stem && isdigit((unsigned char)m->name[m->stem - 1]))
        m->stem--;
    if (m->stem < length)
        m->number = strtoul(m->name + m->stem, NULL, 10);
    else
        m->stem = SIZE_MAX;
}

static bool come_turned(const struct module *x, const struct module *y)
{
    return x->stem != SIZE_MAX && x->stem == y->stem && memcmp(x->name, y->name, x->stem) == 0 &&
           y->number < x->number;
}

static void sort_numbered(struct module *modules, size_t count)
{
    for (size_t i = 0; i < count; i++)
        for (size_t k = i + 1; k < count; k++) {
            if (!come_turned(&modules[i], &modules[k])) continue;
            const struct module swapped = modules[i];
            modules[i] = modules[k];
            modules[k] = swapped;
        }
}

/* Orders a module's parameters; prefix: length of its name in theirs. */
static void order_module(struct ordering *o, const size_t *params, size_t count, size_t prefix)
{
    struct module *modules = NULL;
    size_t num_modules = 0, capacity = 0;
    struct map found = {0};
    for (size_t i = 0; i < count; i++) {
        const char *name = o->names[params[i]] + prefix, *dot = strchr(name, '.');
        if (!dot) {
            o->order[o->count++] = params[i];
            continue;
        }
        size_t at = num_modules;
        const char *component = arena_text(o->a, name, (size_t)(dot - name));
        if (map_add(&found, component, at, &at)) {
            struct module *m = ARENA_PUSH(o->a, modules, num_modules, capacity);
            *m = (struct module){.name = component};
            set_number(m);
        }
        struct module *m = &modules[at];
        *ARENA_PUSH(o->a, m->params, m->num_params, m->capacity) = params[i];
    }
    map_release(&found);
    sort_numbered(modules, num_modules);
    for (size_t i = 0; i < num_modules; i++)
        order_module(o, modules[i].params, modules[i].num_params,
                     prefix + strlen(modules[i].name) + 1);
}

size_t *param_order(struct arena *a, const char *const *names, size_t count)
{
    size_t *all = arena_array(a, count, sizeof *all);
    struct ordering o = {.a = a, .names = names, .order = arena_array(a, count, sizeof *o.order)};
    for (size_t i = 0; i < count; i++)
        all[i] = i;
    order_module(&o, all, count, 0);
    return o.order;
}
