#include "ckpt/sink_memory.h"

static void *address(const struct sink *s, uint32_t segment)
{
    const struct segment *to = &s->plan->segments[segment];
    return (char *)s->plan->files[to->file].memory + to->offset_bytes;
}

void sink_memory_init(struct sink *s, const struct plan *p)
{
    *s = (struct sink){.plan = p, .address = address};
}
