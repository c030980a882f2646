#include "common/map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "common/memory.h"

/* The kernel gives each process 16 random bytes. */
static uint64_t process_seed(void)
{
    const void *random = (const void *)getauxval(AT_RANDOM);
    uint64_t seed = 0;
    if (random) memcpy(&seed, random, sizeof seed);
    return seed;
}

uint64_t hash_bytes(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = 0xCBF29CE484222325u ^ process_seed();
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ p[i]) * 0x100000001B3u;
    return h;
}

void map_release(struct map *m)
{
    free(m->slots);
    *m = (struct map){0};
}

/* The slot of key, or the free one for it. */
static struct map_slot *map_slot_of(const struct map *m, const char *key)
{
    uint64_t h = hash_bytes(key, strlen(key));
    for (size_t i = (size_t)(h ^ h >> 32);; i++) {
        struct map_slot *s = &m->slots[i & (m->num_slots - 1)];
        if (!s->key || strcmp(s->key, key) == 0) return s;
    }
}

static void grow_map(struct map *m)
{
    struct map larger = {.num_slots = m->num_slots ? 2 * m->num_slots : 16, .count = m->count};
    larger.slots = must_calloc(larger.num_slots, sizeof *larger.slots);
    for (size_t i = 0; i < m->num_slots; i++)
        if (m->slots[i].key) *map_slot_of(&larger, m->slots[i].key) = m->slots[i];
    free(m->slots);
    *m = larger;
}

bool map_add(struct map *m, const char *key, size_t value, size_t *old)
{
    if (2 * m->count >= m->num_slots) grow_map(m);
    struct map_slot *s = map_slot_of(m, key);
    if (s->key) {
        if (old) *old = s->value;
        return false;
    }
    *s = (struct map_slot){key, value};
    m->count++;
    return true;
}

bool map_get(const struct map *m, const char *key, size_t *value)
{
    if (!m->num_slots) return false;
    const struct map_slot *s = map_slot_of(m, key);
    if (s->key && value) *value = s->value;
    return s->key != NULL;
}
