/* train_layer_pattern.c - lists of layers as on Megatron-LM's command line:
 * Python's lists with + and *, without the rest of Python. */
#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "common/memory.h"
#include "common/numbers.h"
#include "train/cli/train_finish.h"

/* A list of 0 and 1 under construction. */
struct pattern {
    const char *at;
    unsigned depth;
    size_t count;
    char *items; /* [MAX_LAYERS] */
};

static void skip_pattern_blanks(struct pattern *p)
{
    p->at += strspn(p->at, " ");
}

/* Consumes the next character if it is c. */
static bool take_char(struct pattern *p, char c)
{
    skip_pattern_blanks(p);
    if (*p->at != c) return false;
    p->at++;
    return true;
}

static bool take_count(struct pattern *p, uint64_t *n)
{
    skip_pattern_blanks(p);
    const size_t length = strspn(p->at, "0123456789");
    if (!length || length > 6) return false;
    char digits[8] = {0};
    memcpy(digits, p->at, length);
    p->at += length;
    return parse_u64(digits, n);
}

/* Numbers behind "[", up to "]". */
static bool take_items(struct pattern *p)
{
    uint64_t n;
    while (!take_char(p, ']')) {
        if (!take_count(p, &n) || n > 1 || p->count == MAX_LAYERS) return false;
        p->items[p->count++] = (char)n;
        (void)take_char(p, ',');
    }
    return true;
}

/* Repeats the items from `first` on, n times in all. */
static bool repeat_items(struct pattern *p, size_t first, uint64_t n)
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
    const bool is_number_first = take_count(p, &n);
    if (is_number_first && !take_char(p, '*')) return false;
    if (take_char(p, '(')) {
        if (++p->depth > MAX_NESTED || !take_sum(p) || !take_char(p, ')')) return false;
        p->depth--;
    } else if (!take_char(p, '[') || !take_items(p)) {
        return false;
    }
    if (!repeat_items(p, first, n)) return false;
    while (take_char(p, '*'))
        if (!take_count(p, &more) || !repeat_items(p, first, more)) return false;
    return true;
}

static bool take_sum(struct pattern *p)
{
    do {
        if (!take_product(p)) return false;
    } while (take_char(p, '+'));
    return true;
}

cJSON *train_layer_pattern(const char *text)
{
    uint64_t every;
    if (parse_u64(text, &every)) return every && every <= MAX_LAYERS ? json_new_u64(every) : NULL;
    struct pattern p = {.at = text, .items = must_malloc(MAX_LAYERS)};
    const bool is_list = take_sum(&p);
    skip_pattern_blanks(&p);
    cJSON *list = is_list && !*p.at ? cJSON_CreateArray() : NULL;
    for (size_t i = 0; list && i < p.count; i++)
        cJSON_AddItemToArray(list, json_new_u64((uint64_t)p.items[i]));
    free(p.items);
    return list;
}
