/* train_layer_pattern.c - lists of layers as Megatron-LM's command line has them: Python's lists
 * under + and *, without the rest of Python. */
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "train/cli/train_finish.h"

/* A list of 0 and 1 in the making. */
struct pattern {
    const char *at;
    unsigned depth;
    size_t count;
    char *items; /* [MAX_LAYERS] */
};

static void skip_blanks(struct pattern *p)
{
    p->at += strspn(p->at, " ");
}

/* Whether the next character is c, which is then taken. */
static bool take(struct pattern *p, char c)
{
    skip_blanks(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

static bool take_number(struct pattern *p, uint64_t *n)
{
    skip_blanks(p);
    const size_t length = strspn(p->at, "0123456789");
    if (!length || length > 6) return false;
    char digits[8] = {0};
    memcpy(digits, p->at, length);
    p->at += length;
    return parse_u64(digits, n);
}

/* Behind "[": numbers up to "]". */
static bool take_items(struct pattern *p)
{
    uint64_t n;
    while (!take(p, ']')) {
        if (!take_number(p, &n) || n > 1 || p->count == MAX_LAYERS) return false;
        p->items[p->count++] = (char)n;
        (void)take(p, ',');
    }
    return true;
}

/* The items from `first` on, n times. */
static bool repeat(struct pattern *p, size_t first, uint64_t n)
{
    const size_t length = p->count - first;
    if (n == 0) p->count = first;
    for (uint64_t i = 1; i < n && length; i++) {
        if (p->count + length > MAX_LAYERS) return false;
        memcpy(p->items + p->count, p->items + first, length);
        p->count += length;
    }
    return true;
}

static bool take_sum(struct pattern *p);

/* A list or a sum in brackets, and its factors. */
static bool take_product(struct pattern *p)
{
    enum { MAX_NESTED = 32 };
    const size_t first = p->count;
    uint64_t n = 1, more;
    const bool is_number_first = take_number(p, &n);
    if (is_number_first && !take(p, '*')) return false;
    if (take(p, '(')) {
        if (++p->depth > MAX_NESTED || !take_sum(p) || !take(p, ')')) return false;
        p->depth--;
    } else if (!take(p, '[') || !take_items(p)) {
        return false;
    }
    if (!repeat(p, first, n)) return false;
    while (take(p, '*'))
        if (!take_number(p, &more) || !repeat(p, first, more)) return false;
    return true;
}

static bool take_sum(struct pattern *p)
{
    do {
        if (!take_product(p)) return false;
    } while (take(p, '+'));
    return true;
}

cJSON *train_layer_pattern(const char *text)
{
    uint64_t every;
    if (parse_u64(text, &every)) return every && every <= MAX_LAYERS ? json_new_u64(every) : NULL;
    struct pattern p = {.at = text, .items = must_malloc(MAX_LAYERS)};
    const bool is_list = take_sum(&p);
    skip_blanks(&p);
    cJSON *list = is_list && !*p.at ? cJSON_CreateArray() : NULL;
    for (size_t i = 0; list && i < p.count; i++)
        cJSON_AddItemToArray(list, json_new_u64((uint64_t)p.items[i]));
    free(p.items);
    return list;
}
