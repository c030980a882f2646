#include "common/map.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

#include "common/memory.h"

__extension__ typedef unsigned __int128 u128;

/* The kernel gives each process 16 random bytes. */
static uint64_t process_seed(void)
{
    static _Atomic uint64_t kept;
    uint64_t seed = kept;
    const void *random = seed ? NULL : (const void *)getauxval(AT_RANDOM);
    if (random) memcpy(&seed, random, sizeof seed);
    if (random) kept = seed |= 1;
    return seed;
}

/* The halves of a product depend on all bits of both factors. */
static uint64_t mix(uint64_t a, uint64_t b)
{
    const u128 product = (u128)(a ^ 0xE7037ED1A0B428DBu) * (b ^ 0x8EBC6AF09C88C6E3u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

uint64_t hash_bytes(const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = mix(process_seed(), bytes), word = 0;
    for (; bytes >= sizeof word; bytes -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        h = mix(h, word);
    }
    word = 0;
    for (size_t i = 0; i < bytes; i++)
        word = word << 8 | p[i];
    return mix(h, word);
}

void map_release(struct map *m)
{
    free(m->slots);
    *m = (struct map){0};
}

/* The slot of key, or the free one for it. */
static struct map_slot *map_slot_of(const struct map *m, const char *key, uint64_t hash)
{
    for (size_t i = (size_t)hash;; i++) {
        struct map_slot *s = &m->slots[i & (m->num_slots - 1)];
        if (!s->key || (s->hash == hash && strcmp(s->key, key) == 0)) return s;
    }
}

static void grow_map(struct map *m)
{
    struct map larger = {.num_slots = m->num_slots ? 2 * m->num_slots : 16, .count = m->count};
    larger.slots = must_calloc(larger.num_slots, sizeof *larger.slots);
    for (size_t i = 0; i < m->num_slots; i++) {
        size_t at = (size_t)m->slots[i].hash;
        if (!m->slots[i].key) continue;
        while (larger.slots[at & (larger.num_slots - 1)].key)
            at++;
        larger.slots[at & (larger.num_slots - 1)] = m->slots[i];
    }
    free(m->slots);
    *m = larger;
}

bool map_add(struct map *m, const char *key, size_t value, size_t *old)
{
    const uint64_t hash = hash_bytes(key, strlen(key));
    if (4 * m->count >= 3 * m->num_slots) grow_map(m);
    struct map_slot *s = map_slot_of(m, key, hash);
    if (s->key) {
        if (old) *old = s->value;
        return false;
    }
    *s = (struct map_slot){key, hash, value};
    m->count++;
    return true;
}

bool map_get(const struct map *m, const char *key, size_t *value)
{
    if (!m->num_slots) return false;
    const struct map_slot *s = map_slot_of(m, key, hash_bytes(key, strlen(key)));
    if (s->key && value) *value = s->value;
    return s->key != NULL;
}
